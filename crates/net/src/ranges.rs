//! Ranges of addresses, and which of them are reached only by name.
//!
//! **Kept** ranges are those that a sandbox must not reach by accident: private, shared and link-local ones, loopback, metadata services, multicast,
//! reserved ones, and the host's own addresses. A rule reaches into a kept range only if the rule itself lies in it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses. The address has no bits beyond the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    address: IpAddr,
    prefix: u8,
}

/// Why a text is not a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Not an address before the slash.
    #[error("{0:?} is not an address")]
    Address(String),
    /// Not a length after the slash.
    #[error("{0:?} is not the length of a prefix: it is 0 to {1}")]
    Prefix(String, u8),
    /// Bits beyond the prefix.
    #[error("{0} has bits beyond its prefix; {1} is the range")]
    Bits(String, Range),
}

impl Range {
    /// The range of one address.
    #[must_use]
    pub fn one(address: IpAddr) -> Self {
        let address = plain(address);
        Self { address, prefix: bits(address) }
    }

    /// The range with that prefix which has the address in it.
    #[must_use]
    pub fn around(address: IpAddr, prefix: u8) -> Self {
        let prefix = prefix.min(bits(address));
        let address = match address {
            IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) & mask_v4(prefix)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & mask_v6(prefix)).into(),
        };
        Self { address, prefix }
    }

    /// Whether the address lies in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u32::from(own) ^ u32::from(other)) & mask_v4(self.prefix) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (u128::from(own) ^ u128::from(other)) & mask_v6(self.prefix) == 0
            }
            _ => false,
        }
    }

    /// Whether all of it lies in the other.
    #[must_use]
    pub fn within(&self, other: &Self) -> bool {
        self.prefix >= other.prefix && other.contains(self.address)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.prefix < bits(self.address) {
            write!(f, "/{}", self.prefix)?;
        }
        Ok(())
    }
}

impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let parsed: IpAddr =
            address.parse().map_err(|_| RangeError::Address(address.to_owned()))?;
        let most = bits(parsed);
        let Some(length) = length else { return Ok(Self::one(parsed)) };
        let wrong = || RangeError::Prefix(length.to_owned(), most);
        let prefix: u8 = length.parse().map_err(|_| wrong())?;
        if prefix > most {
            return Err(wrong());
        }
        let range = Self::around(parsed, prefix);
        if range.address != parsed {
            return Err(RangeError::Bits(text.to_owned(), range));
        }
        Ok(range.plain())
    }
}

impl Range {
    /// A range of IPv4-mapped addresses is the IPv4 range.
    #[must_use]
    pub fn plain(self) -> Self {
        match (self.address, plain(self.address)) {
            (IpAddr::V6(_), IpAddr::V4(v4)) if self.prefix >= 96 => {
                Self { address: v4.into(), prefix: self.prefix - 96 }
            }
            _ => self,
        }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

/// The address without the dress of IPv4-mapped IPv6.
#[must_use]
pub fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The address that a packet ends up at: IPv4-mapped addresses and the translation prefix `64:ff9b::/96` lead to IPv4.
#[must_use]
pub fn effective(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = plain(address) else { return plain(address) };
    let segments = v6.segments();
    if segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
        let [.., a, b, c, d] = v6.octets();
        return Ipv4Addr::new(a, b, c, d).into();
    }
    address
}

macro_rules! v4 {
    ($($b:literal),* ; $p:literal) => {
        Range { address: IpAddr::V4(Ipv4Addr::new($($b),*)), prefix: $p }
    };
}

macro_rules! v6 {
    ($($s:literal),* ; $p:literal) => {
        Range { address: IpAddr::V6(Ipv6Addr::new($($s),*)), prefix: $p }
    };
}

/// Kept on every host. Smaller ranges inside larger ones are kept for themselves: a rule has to lie in the smallest.
const KEPT: [Range; 35] = [
    v4!(0, 0, 0, 0; 8),
    v4!(10, 0, 0, 0; 8),
    v4!(100, 64, 0, 0; 10),
    v4!(100, 100, 100, 200; 32),
    v4!(127, 0, 0, 0; 8),
    v4!(169, 254, 0, 0; 16),
    v4!(169, 254, 169, 254; 32),
    v4!(169, 254, 170, 2; 32),
    v4!(172, 16, 0, 0; 12),
    v4!(192, 0, 0, 0; 24),
    v4!(192, 0, 0, 192; 32),
    v4!(192, 168, 0, 0; 16),
    v4!(198, 18, 0, 0; 15),
    v4!(224, 0, 0, 0; 4),
    v4!(240, 0, 0, 0; 4),
    v4!(192, 88, 99, 0; 24),
    v6!(0, 0, 0, 0, 0, 0, 0, 0; 96),
    v6!(0, 0, 0, 0, 0, 0, 0, 1; 128),
    v6!(0x64, 0xff9b, 1, 0, 0, 0, 0, 0; 48),
    v6!(0x100, 0, 0, 0, 0, 0, 0, 0; 64),
    v6!(0x2001, 0, 0, 0, 0, 0, 0, 0; 32),
    v6!(0x2001, 2, 0, 0, 0, 0, 0, 0; 48),
    v6!(0x2001, 0x10, 0, 0, 0, 0, 0, 0; 28),
    v6!(0x2002, 0, 0, 0, 0, 0, 0, 0; 16),
    v6!(0x5f00, 0, 0, 0, 0, 0, 0, 0; 16),
    v6!(0xfc00, 0, 0, 0, 0, 0, 0, 0; 7),
    v6!(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254; 128),
    v6!(0xfd00, 0xc1, 0, 0, 0, 0, 0, 0xa9fe; 128),
    v6!(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254; 128),
    v6!(0xfe80, 0, 0, 0, 0, 0, 0, 0; 10),
    v6!(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe; 128),
    v6!(0xfec0, 0, 0, 0, 0, 0, 0, 0; 10),
    v6!(0xff00, 0, 0, 0, 0, 0, 0, 0; 8),
    v6!(0xfe00, 0, 0, 0, 0, 0, 0, 0; 9),
    v6!(0x4000, 0, 0, 0, 0, 0, 0, 0; 3),
];

/// What is kept on this host: the fixed ranges, the host's own addresses, and what the operator said.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    /// The host's, looked up again and again, and the operator's.
    pub more: Vec<Range>,
}

impl Kept {
    /// Kept ranges that the address lies in.
    pub fn around(&self, address: IpAddr) -> impl Iterator<Item = &Range> {
        KEPT.iter().chain(&self.more).filter(move |range| range.contains(address))
    }

    /// Whether the address is reached only by a rule that names it.
    #[must_use]
    pub fn keeps(&self, address: IpAddr) -> bool {
        self.around(address).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_contain_what_they_say() {
        assert!(range("192.0.2.0/24").contains("192.0.2.255".parse().unwrap()));
        assert!(!range("192.0.2.0/24").contains("192.0.3.0".parse().unwrap()));
        assert!(range("0.0.0.0/0").contains("255.255.255.255".parse().unwrap()));
        assert!(!range("0.0.0.0/0").contains("::1".parse().unwrap()));
        assert!(range("::/0").contains("2001:db8::1".parse().unwrap()));
        assert!(range("10.1.0.0/16").within(&range("10.0.0.0/8")));
        assert!(!range("10.0.0.0/8").within(&range("10.1.0.0/16")));
        assert_eq!(range("::ffff:10.0.0.0/104"), range("10.0.0.0/8"));
        assert_eq!(range("::ffff:192.0.2.1"), range("192.0.2.1"));
    }

    #[test]
    fn errors_say_what_to_write() {
        let error = |text: &str| text.parse::<Range>().unwrap_err().to_string();
        assert_eq!(
            error("192.0.2.1/24"),
            "192.0.2.1/24 has bits beyond its prefix; 192.0.2.0/24 is the range"
        );
        assert!(error("192.0.2.0/33").contains("0 to 32"));
        assert!(error("2001:db8::/129").contains("0 to 128"));
        assert!(error("x/8").contains("not an address"));
    }

    #[test]
    fn translated_addresses_are_what_they_lead_to() {
        let leads = |from: &str, to: &str| {
            assert_eq!(effective(from.parse().unwrap()), to.parse::<IpAddr>().unwrap());
        };
        leads("::ffff:169.254.169.254", "169.254.169.254");
        leads("64:ff9b::a9fe:a9fe", "169.254.169.254");
        leads("2001:db8::1", "2001:db8::1");
        leads("192.0.2.1", "192.0.2.1");
    }

    #[test]
    fn private_and_own_addresses_are_kept() {
        let kept = Kept { more: vec![range("203.0.113.9")] };
        for address in [
            "10.0.0.1",
            "172.31.0.1",
            "192.168.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "0.0.0.0",
            "::",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "2002::1",
            "203.0.113.9",
        ] {
            assert!(kept.keeps(address.parse().unwrap()), "{address}");
        }
        for address in ["203.0.113.10", "8.8.8.8", "2001:db8::1", "2606:4700::1"] {
            assert!(!kept.keeps(address.parse().unwrap()), "{address}");
        }
    }
}
