//! Sockets that wait for others, as `/proc/net` has them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ramet_proto::agent::Listener;

/// More are not told.
const LISTENERS_MAX: usize = 1000;
/// A TCP socket that listens.
const LISTEN: &str = "0A";
/// A UDP socket that has no peer.
const UNCONNECTED: &str = "07";

/// All of them, in order, each once.
pub fn all() -> Vec<Listener> {
    let tables = [("tcp", LISTEN), ("tcp6", LISTEN), ("udp", UNCONNECTED), ("udp6", UNCONNECTED)];
    let mut found: Vec<Listener> = tables
        .into_iter()
        .flat_map(|(table, state)| {
            // A kernel without IPv6 has no such table.
            let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
            listeners(&table[..3], state, &text)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.truncate(LISTENERS_MAX);
    found
}

fn listeners(protocol: &str, state: &str, table: &str) -> Vec<Listener> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        if fields.nth(1)? != state {
            return None;
        }
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let address = parse(address)?.to_string();
        Some(Listener { protocol: protocol.to_owned(), address, port })
    };
    table.lines().skip(1).filter_map(line).collect()
}

/// An address is written as words of the machine, each in hex.
fn parse(hex: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        let digits = hex.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_tables_of_the_kernel() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
             1: 0100007F:1F91 0200007F:0050 01 00000000:00000000\n\
             2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A\n\
             nonsense\n";
        let found = listeners("tcp", LISTEN, table);
        let told: Vec<_> = found.iter().map(|one| (one.address.as_str(), one.port)).collect();
        assert_eq!(told, [("127.0.0.1", 8080), ("::1", 80)]);
    }

    #[test]
    fn finds_a_listener_of_this_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("bound").port();
        assert!(all().iter().any(|one| one.port == port && one.protocol == "tcp"));
    }
}
