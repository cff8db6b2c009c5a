//! What the service says itself: ARP, neighbour advertisements, echo replies, ICMP errors.
//!
//! All of these answer one frame with at most one, never larger than what is reasonable, and never answer an error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ramet_proto::net::{GATEWAY_MAC, GUEST_MAC, HEADER};
use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, IpProtocol, IpRepr};

use crate::frame::{Fault, Mac, PACKET, Packet, build, ip_repr, pseudo};

/// Most of a packet that an error repeats.
const QUOTE_V4_MAX: usize = 548;
const QUOTE_V6_MAX: usize = 1232;

/// Why a packet went nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The policy does not allow it.
    Prohibited,
    /// Nobody is there.
    Host,
    /// Nobody listens.
    Port,
    /// No hops were left.
    Hops,
}

impl Failure {
    fn v4(self) -> (u8, u8) {
        match self {
            Self::Prohibited => (3, 13),
            Self::Host => (3, 1),
            Self::Port => (3, 3),
            Self::Hops => (11, 0),
        }
    }

    fn v6(self) -> (u8, u8) {
        match self {
            Self::Prohibited => (1, 1),
            Self::Host => (1, 3),
            Self::Port => (1, 4),
            Self::Hops => (3, 0),
        }
    }
}

/// A question for a hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    /// Who asks.
    pub source: Ipv4Addr,
    /// Whose address it is about.
    pub target: Ipv4Addr,
}

/// Reads an ARP request. Announcements and answers are of no interest.
///
/// # Errors
/// If it is not ARP for IPv4, or says that the guest has another hardware address.
pub fn arp_request(bytes: &[u8]) -> Result<Option<Who>, Fault> {
    let packet = ArpPacket::new_checked(bytes).map_err(|_| Fault::Malformed)?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    } = ArpRepr::parse(&packet).map_err(|_| Fault::Malformed)?
    else {
        return Err(Fault::Malformed);
    };
    if source_hardware_addr.0 != GUEST_MAC {
        return Err(Fault::Spoofed);
    }
    let asks = operation == ArpOperation::Request && source_protocol_addr != target_protocol_addr;
    Ok(asks.then_some(Who { source: source_protocol_addr, target: target_protocol_addr }))
}

/// The answer to it.
#[must_use]
pub fn arp_reply(who: Who, mac: Mac) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: who.target,
        target_hardware_addr: EthernetAddress(GUEST_MAC),
        target_protocol_addr: who.source,
    };
    let mut message = vec![0; PACKET + repr.buffer_len()];
    message[10] = 1;
    message[HEADER..HEADER + 6].copy_from_slice(&GUEST_MAC);
    message[HEADER + 6..HEADER + 12].copy_from_slice(&mac);
    message[HEADER + 12..PACKET].copy_from_slice(&[0x08, 0x06]);
    repr.emit(&mut ArpPacket::new_unchecked(&mut message[PACKET..]));
    message
}

/// What an ICMP message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Icmp<'a> {
    /// An echo request.
    Echo {
        /// Chosen by who asks.
        ident: u16,
        /// Likewise.
        sequence: u16,
        /// To be repeated.
        data: &'a [u8],
    },
    /// A question for a hardware address.
    Solicit(Ipv6Addr),
    /// Anything else.
    Other,
}

/// Reads ICMP or ICMPv6.
#[must_use]
pub fn icmp(bytes: &[u8], v6: bool) -> Icmp<'_> {
    let echo = if v6 { 128 } else { 8 };
    match bytes {
        [kind, 0, _, _, a, b, c, d, data @ ..] if *kind == echo => Icmp::Echo {
            ident: u16::from_be_bytes([*a, *b]),
            sequence: u16::from_be_bytes([*c, *d]),
            data,
        },
        [135, 0, _, _, _, _, _, _, rest @ ..] if v6 => match rest.first_chunk::<16>() {
            Some(target) => Icmp::Solicit(Ipv6Addr::from(*target)),
            None => Icmp::Other,
        },
        _ => Icmp::Other,
    }
}

/// An echo reply to the guest.
#[must_use]
pub fn echo_reply(
    from: IpAddr,
    to: IpAddr,
    ident: u16,
    sequence: u16,
    data: &[u8],
) -> Option<Vec<u8>> {
    let kind = if from.is_ipv6() { 129 } else { 0 };
    let ([a, b], [c, d]) = (ident.to_be_bytes(), sequence.to_be_bytes());
    message(from, to, GATEWAY_MAC, [kind, 0], [a, b, c, d], data, 64)
}

/// Tells the guest that its packet went nowhere.
#[must_use]
pub fn failed(packet: &Packet<'_>, why: Failure, from: IpAddr) -> Option<Vec<u8>> {
    let (most, (kind, code)) =
        if from.is_ipv6() { (QUOTE_V6_MAX, why.v6()) } else { (QUOTE_V4_MAX, why.v4()) };
    let quote = &packet.bytes[..packet.bytes.len().min(most)];
    message(from, packet.source, GATEWAY_MAC, [kind, code], [0; 4], quote, 64)
}

/// Answers a neighbour solicitation.
#[must_use]
pub fn advertise(target: Ipv6Addr, to: Ipv6Addr, mac: Mac, router: bool) -> Option<Vec<u8>> {
    let mut body = target.octets().to_vec();
    body.extend([2, 1]);
    body.extend(mac);
    let flags = if router { 0xe0 } else { 0x60 };
    message(target.into(), to.into(), mac, [136, 0], [flags, 0, 0, 0], &body, 255)
}

fn message(
    from: IpAddr,
    to: IpAddr,
    mac: Mac,
    kind: [u8; 2],
    rest: [u8; 4],
    body: &[u8],
    hops: u8,
) -> Option<Vec<u8>> {
    let v6 = from.is_ipv6();
    let protocol = if v6 { IpProtocol::Icmpv6 } else { IpProtocol::Icmp };
    let mut repr = ip_repr(from, to, protocol, 8 + body.len())?;
    match &mut repr {
        IpRepr::Ipv4(v4) => v4.hop_limit = hops,
        IpRepr::Ipv6(v6) => v6.hop_limit = hops,
    }
    Some(build(&repr, mac, |room| {
        room[..2].copy_from_slice(&kind);
        room[4..8].copy_from_slice(&rest);
        room[8..].copy_from_slice(body);
        let sum = checksum(room, if v6 { pseudo_v6(&repr, room.len()) } else { 0 });
        room[2..4].copy_from_slice(&sum.to_be_bytes());
    }))
}

fn pseudo_v6(repr: &IpRepr, length: usize) -> u16 {
    let IpRepr::Ipv6(v6) = repr else { return 0 };
    let addresses = [v6.src_addr.octets(), v6.dst_addr.octets()].concat();
    pseudo(&addresses, 58, length)
}

/// The Internet checksum.
#[must_use]
pub fn checksum(bytes: &[u8], seed: u16) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]))
    });
    let mut sum = words.sum::<u64>() + u64::from(seed);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}
