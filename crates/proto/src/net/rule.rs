//! What rules of a policy mean: the one parser of [`Allow::to`], and of rules as people write them. Pure.
//!
//! A rule is `TO[:PORTS][/PROTOCOLS]`. `TO` is `*`, a name, `*.` and a name, an address, or a range of addresses; one of
//! version 6 stands in brackets if ports follow. `PORTS` are numbers and spans with commas between them, `PROTOCOLS` are `tcp`,
//! `udp` and `icmp` with `+` between them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::api::network::{Allow, Policy, PortRange, Protocol};

/// Most rules of a policy.
pub const RULES_MAX: usize = 256;
/// Most spans of ports of a rule.
pub const SPANS_MAX: usize = 32;
/// Longest name.
const NAME_MAX: usize = 253;
/// Longest part of a name.
const LABEL_MAX: usize = 63;

/// What a rule leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Every name and every public address.
    All,
    /// Exactly this name, in lower case.
    Name(String),
    /// Every name below this one, itself not included.
    Below(String),
    /// These addresses.
    Range(Range),
}

/// Addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first of them.
    pub first: IpAddr,
    /// Bits that they have in common.
    pub prefix: u8,
}

/// Why a rule is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleError(String);

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RuleError {}

fn wrong<T>(text: String) -> Result<T, RuleError> {
    Err(RuleError(text))
}

impl Range {
    /// Whether an address is one of them. The two versions have nothing in common.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4()
            && bits(address) & mask(self.first, self.prefix) == bits(self.first)
    }
}

/// The number that an address is, at the upper end.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(four) => u128::from(four.to_bits()) << 96,
        IpAddr::V6(six) => six.to_bits(),
    }
}

fn mask(address: IpAddr, prefix: u8) -> u128 {
    let prefix = u32::from(prefix).min(if address.is_ipv4() { 32 } else { 128 });
    u128::MAX.checked_shl(128 - prefix).unwrap_or(0)
}

impl FromStr for Target {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text == "*" {
            return Ok(Self::All);
        }
        if let Some(below) = text.strip_prefix("*.") {
            return name(below).map(Self::Below);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            return Ok(Self::Range(Range { first: address, prefix }));
        }
        match text.split_once('/') {
            Some((address, prefix)) => range(text, address, prefix).map(Self::Range),
            None => name(text).map(Self::Name),
        }
    }
}

fn range(text: &str, address: &str, prefix: &str) -> Result<Range, RuleError> {
    let Ok(first) = address.parse::<IpAddr>() else {
        return wrong(format!("{text:?} is no range of addresses: {address:?} is no address"));
    };
    let most = if first.is_ipv4() { 32 } else { 128 };
    let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = match prefix.parse::<u8>() {
        Ok(prefix) if digits && prefix <= most => prefix,
        _ => return wrong(format!("{text:?}: after the slash stands a number from 0 to {most}")),
    };
    let range = Range { first, prefix };
    if !range.contains(first) {
        return wrong(format!("{text:?} has more bits set than the first {prefix}"));
    }
    Ok(range)
}

/// A name of a host, in lower case and without a dot at its end.
pub fn name(text: &str) -> Result<String, RuleError> {
    let plain = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len())
            && label.bytes().all(letter)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let number =
        plain.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    if plain.len() > NAME_MAX || !plain.split('.').all(label) || number {
        return wrong(format!(
            "{text:?} is neither a name of a host (letters, digits and hyphens; others in their `xn--` form), nor `*.` and a \
             name, nor an address or range, nor `*`"
        ));
    }
    Ok(plain)
}

/// Checks a policy: every rule, and how many there are.
pub fn check(policy: &Policy) -> Result<(), RuleError> {
    if policy.allow.len() > RULES_MAX {
        return wrong(format!("{} rules, at most {RULES_MAX}", policy.allow.len()));
    }
    policy.allow.iter().try_for_each(|rule| rule.check())
}

impl Allow {
    /// Whether it can be used.
    pub fn check(&self) -> Result<(), RuleError> {
        self.to.parse::<Target>()?;
        if self.ports.len() > SPANS_MAX {
            return wrong(format!(
                "{}: {} spans of ports, at most {SPANS_MAX}",
                self.to,
                self.ports.len()
            ));
        }
        let bad = |span: &&PortRange| span.first == 0 || span.first > span.last;
        if let Some(span) = self.ports.iter().find(bad) {
            let PortRange { first, last } = span;
            return wrong(format!("{}: ports from {first} to {last} are none", self.to));
        }
        let only_icmp = self.protocols == [Protocol::Icmp];
        if only_icmp && !self.ports.is_empty() {
            return wrong(format!("{}: ICMP has no ports", self.to));
        }
        Ok(())
    }
}

impl FromStr for Allow {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (rest, protocols) = split_protocols(text)?;
        let (to, ports) = split_ports(text, rest)?;
        let rule = Self { to: to.to_owned(), ports, protocols };
        rule.check()?;
        Ok(rule)
    }
}

fn split_protocols(text: &str) -> Result<(&str, Vec<Protocol>), RuleError> {
    let Some((rest, last)) = text.rsplit_once('/') else { return Ok((text, Vec::new())) };
    // What follows the slash of a range is a number, and perhaps ports.
    if last.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok((text, Vec::new()));
    }
    let protocol = |word: &str| match word.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        "icmp" => Ok(Protocol::Icmp),
        _ => wrong(format!("{text:?}: a protocol is tcp, udp or icmp, not {word:?}")),
    };
    Ok((rest, last.split('+').map(protocol).collect::<Result<_, _>>()?))
}

fn split_ports<'a>(text: &str, rest: &'a str) -> Result<(&'a str, Vec<PortRange>), RuleError> {
    let (to, ports) = match rest.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((to, "")) => (to, None),
            Some((to, after)) if after.starts_with(':') => (to, after.strip_prefix(':')),
            _ => return wrong(format!("{text:?}: after `]` stands nothing, or `:` and ports")),
        },
        // Without brackets, several colons are an address of version 6.
        None => match rest.split_once(':') {
            Some((to, ports)) if !ports.contains(':') => (to, Some(ports)),
            _ => (rest, None),
        },
    };
    let Some(ports) = ports else { return Ok((to, Vec::new())) };
    let span = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) => Ok(PortRange { first, last }),
            _ => wrong(format!("{text:?}: {word:?} is neither a port nor a span of ports")),
        }
    };
    Ok((to, ports.split(',').map(span).collect::<Result<_, _>>()?))
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let six = self.to.contains(':') && !self.ports.is_empty();
        if six {
            write!(f, "[{}]", self.to)?
        } else {
            f.write_str(&self.to)?
        }
        for (place, PortRange { first, last }) in self.ports.iter().enumerate() {
            f.write_str(if place == 0 { ":" } else { "," })?;
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        for (place, protocol) in self.protocols.iter().enumerate() {
            f.write_str(if place == 0 { "/" } else { "+" })?;
            f.write_str(match protocol {
                Protocol::Tcp => "tcp",
                Protocol::Udp => "udp",
                Protocol::Icmp => "icmp",
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_written() {
        for text in [
            "*",
            "example.org",
            "*.example.org:443/tcp",
            "192.0.2.0/24:80,8000-8100/tcp+udp",
            "192.0.2.7:53/udp",
            "192.0.2.0/24",
            "192.0.2.7/icmp",
            "2001:db8::/32",
            "[2001:db8::/32]:53",
            "[2001:db8::1]:443/tcp",
            "xn--bcher-kva.example",
            "_dns.example.org",
            "*:443",
        ] {
            let rule: Allow = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(rule.to_string(), text);
        }
        assert_eq!("[2001:db8::1]".parse::<Allow>().unwrap().to, "2001:db8::1");
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for text in [
            "",
            ":443",
            "a b",
            "ex*mple.org",
            "*.*.org",
            "*example.org",
            "-a.org",
            "a-.org",
            "a..org",
            ".org",
            "1.2.3",
            "256.0.0.1",
            "bücher.example",
            "example.org:0",
            "example.org:99999",
            "example.org:9-8",
            "example.org:x",
            "example.org/sctp",
            "192.0.2.1/24",
            "192.0.2.0/33",
            "192.0.2.0/+4",
            "2001:db8::/129",
            "x/24",
            "http://example.org",
            "[::1",
            "[::1]x",
            "192.0.2.7:80/icmp",
            "example.org:",
            "a.org/",
        ] {
            assert!(text.parse::<Allow>().is_err(), "{text}");
        }
        let long = format!("{}.org", "a".repeat(64));
        assert!(long.parse::<Allow>().is_err());
        let many = Policy { allow: vec!["a.org".parse().unwrap(); RULES_MAX + 1] };
        assert!(check(&many).is_err());
    }

    #[test]
    fn names_are_alike_whatever_their_case() {
        assert_eq!("Example.ORG.".parse::<Target>().unwrap(), Target::Name("example.org".into()));
        assert_eq!("*.Example.org".parse::<Target>().unwrap(), Target::Below("example.org".into()));
    }

    #[test]
    fn ranges_have_edges() {
        let range = |text: &str| match text.parse().unwrap() {
            Target::Range(range) => range,
            other => panic!("{other:?}"),
        };
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let net = range("192.0.2.0/24");
        assert!(net.contains(at("192.0.2.0")) && net.contains(at("192.0.2.255")));
        assert!(!net.contains(at("192.0.3.0")) && !net.contains(at("192.0.1.255")));
        assert!(range("0.0.0.0/0").contains(at("255.255.255.255")));
        assert!(!range("0.0.0.0/0").contains(at("::1")));
        assert!(range("::/0").contains(at("::1")) && !range("::/0").contains(at("1.2.3.4")));
        assert!(range("2001:db8::1").contains(at("2001:db8::1")));
        assert!(!range("2001:db8::1").contains(at("2001:db8::2")));
    }
}
