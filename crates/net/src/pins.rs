//! Which names this port's own lookups gave which addresses.
//!
//! A name rule allows an address only while it is pinned. Bounded: the pin that ends soonest makes place.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::ranges::plain;

/// Most addresses of a port.
const ADDRESSES_MAX: usize = 2048;
/// Most names of an address.
const NAMES_MAX: usize = 32;
/// An answer is good for at least so long, whatever its TTL: programs keep addresses a while.
const LEAST: Duration = Duration::from_secs(60);
/// And for no longer.
const MOST: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Pin {
    name: Box<str>,
    until: Instant,
}

/// Addresses with their names.
#[derive(Debug, Default)]
pub struct Pins {
    addresses: HashMap<IpAddr, Vec<Pin>>,
}

impl Pins {
    /// Notes that a lookup of the name gave the address.
    pub fn pin(&mut self, address: IpAddr, name: &str, ttl: Duration, now: Instant) {
        let address = plain(address);
        if !self.addresses.contains_key(&address) && self.addresses.len() >= ADDRESSES_MAX {
            self.make_place(now);
        }
        let until = now + ttl.clamp(LEAST, MOST);
        let pins = self.addresses.entry(address).or_default();
        pins.retain(|pin| pin.until > now && *pin.name != *name);
        if pins.len() >= NAMES_MAX {
            pins.remove(0);
        }
        pins.push(Pin { name: name.into(), until });
    }

    /// Names of the address.
    #[must_use]
    pub fn names(&self, address: IpAddr, now: Instant) -> Vec<&str> {
        let pins = self.addresses.get(&plain(address)).map_or(&[][..], Vec::as_slice);
        pins.iter().rev().filter(|pin| pin.until > now).map(|pin| &*pin.name).collect()
    }

    /// Whether the name was given the address.
    #[must_use]
    pub fn has(&self, address: IpAddr, name: &str, now: Instant) -> bool {
        self.names(address, now).contains(&name)
    }

    fn make_place(&mut self, now: Instant) {
        self.addresses.retain(|_, pins| pins.iter().any(|pin| pin.until > now));
        if self.addresses.len() < ADDRESSES_MAX {
            return;
        }
        let ends = |pins: &[Pin]| pins.iter().map(|pin| pin.until).max();
        let soonest = self.addresses.iter().min_by_key(|(_, pins)| ends(pins)).map(|(a, _)| *a);
        if let Some(address) = soonest {
            self.addresses.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_end_and_are_bounded() {
        let now = Instant::now();
        let mut pins = Pins::default();
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        pins.pin(one, "a.org", Duration::ZERO, now);
        pins.pin(one, "b.org", Duration::from_secs(600), now);
        assert!(pins.has(one, "a.org", now + Duration::from_secs(59)));
        assert!(!pins.has(one, "a.org", now + Duration::from_secs(61)));
        assert!(pins.has(
            "::ffff:192.0.2.1".parse().unwrap(),
            "b.org",
            now + Duration::from_secs(61)
        ));
        assert!(!pins.has(one, "b.org", now + Duration::from_secs(601)));
        for i in 0..10_000u32 {
            pins.pin(std::net::Ipv4Addr::from(i).into(), "c.org", Duration::from_secs(60), now);
            pins.pin(one, &format!("n{i}.org"), Duration::from_secs(600), now);
        }
        assert!(pins.addresses.len() <= ADDRESSES_MAX);
        assert!(pins.names(one, now).len() <= NAMES_MAX);
        assert!(pins.has(one, "n9999.org", now));
    }
}
