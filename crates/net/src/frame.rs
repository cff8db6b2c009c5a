//! Frames: what the guest sent, read and checked, and what it is sent, built.
//!
//! Reading never panics and never believes: every length is checked, fragments and what is not understood are faults. Checksums are not looked
//! at, since the guest leaves them to its device; frames to the guest leave them, too ([`seal`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ramet_proto::net::{FRAME_MAX, GATEWAY_MAC, GUEST_MAC, HEADER};
use smoltcp::phy::{Checksum, ChecksumCapabilities};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv4Repr,
    Ipv6Packet, Ipv6Repr, TcpControl, TcpPacket, TcpRepr, UdpPacket,
};

/// Where the packet begins in a message of a link.
pub const PACKET: usize = HEADER + ETHERNET;
/// Length of an Ethernet header.
const ETHERNET: usize = 14;
/// Longest message of a link.
pub const MESSAGE_MAX: usize = HEADER + FRAME_MAX;
/// The rest of a checksum is for the receiver's device to compute.
const NEEDS_CSUM: u8 = 1;

/// A hardware address.
pub type Mac = [u8; 6];

/// Why a frame was dropped: words of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Lengths or fields make no sense.
    Malformed,
    /// From an address that is not the guest's.
    Spoofed,
    /// A part of a packet.
    Fragment,
    /// A protocol that is not spoken here. Dropped in silence.
    Unknown,
}

impl Fault {
    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Spoofed => "spoofed",
            Self::Fragment => "fragment",
            Self::Unknown => "unknown_protocol",
        }
    }
}

/// A frame of the guest.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Where to.
    pub to: Mac,
    /// What is in it.
    pub content: Content<'a>,
}

/// What a frame carries.
#[derive(Debug)]
pub enum Content<'a> {
    /// An ARP message.
    Arp(&'a [u8]),
    /// A packet.
    Ip(Packet<'a>),
}

/// An IP packet.
#[derive(Debug)]
pub struct Packet<'a> {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// Hops that are left.
    pub hops: u8,
    /// What is in it.
    pub transport: Transport<'a>,
    /// All of it, headers included.
    pub bytes: &'a [u8],
}

/// What a packet carries.
#[derive(Debug)]
pub enum Transport<'a> {
    /// A segment, well-formed.
    Tcp(Segment<'a>),
    /// A datagram.
    Udp {
        /// From.
        source: u16,
        /// To.
        destination: u16,
        /// What is in it.
        payload: &'a [u8],
    },
    /// ICMP or ICMPv6, of the packet's own family, with its header.
    Icmp(&'a [u8]),
    /// Something else.
    Other,
}

/// What is asked of a TCP segment.
#[derive(Debug)]
pub struct Segment<'a> {
    /// The segment.
    pub packet: TcpPacket<&'a [u8]>,
}

impl Segment<'_> {
    /// Whether it begins a connection.
    #[must_use]
    pub fn begins(&self) -> bool {
        self.packet.syn() && !self.packet.ack() && !self.packet.rst() && !self.packet.fin()
    }
}

/// Reads a message of a link.
///
/// # Errors
/// Why it has to be dropped.
pub fn parse(message: &[u8]) -> Result<Frame<'_>, Fault> {
    if message.len() > MESSAGE_MAX {
        return Err(Fault::Malformed);
    }
    let frame = message.get(HEADER..).ok_or(Fault::Malformed)?;
    let ethernet = EthernetFrame::new_checked(frame).map_err(|_| Fault::Malformed)?;
    if ethernet.src_addr().0 != GUEST_MAC {
        return Err(Fault::Spoofed);
    }
    let payload = frame.get(ETHERNET..).ok_or(Fault::Malformed)?;
    let content = match ethernet.ethertype() {
        EthernetProtocol::Arp => Content::Arp(payload),
        EthernetProtocol::Ipv4 => Content::Ip(ipv4(payload)?),
        EthernetProtocol::Ipv6 => Content::Ip(ipv6(payload)?),
        EthernetProtocol::Unknown(_) => return Err(Fault::Unknown),
    };
    Ok(Frame { to: ethernet.dst_addr().0, content })
}

fn ipv4(bytes: &[u8]) -> Result<Packet<'_>, Fault> {
    let packet = Ipv4Packet::new_checked(bytes).map_err(|_| Fault::Malformed)?;
    if packet.version() != 4 || packet.header_len() < 20 {
        return Err(Fault::Malformed);
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return Err(Fault::Fragment);
    }
    let bytes = bytes.get(..usize::from(packet.total_len())).ok_or(Fault::Malformed)?;
    let payload = bytes.get(usize::from(packet.header_len())..).ok_or(Fault::Malformed)?;
    Ok(Packet {
        source: packet.src_addr().into(),
        destination: packet.dst_addr().into(),
        hops: packet.hop_limit(),
        transport: transport(packet.next_header(), IpProtocol::Icmp, payload)?,
        bytes,
    })
}

/// Extension headers are not followed: no guest needs them to reach the outside.
fn ipv6(bytes: &[u8]) -> Result<Packet<'_>, Fault> {
    let packet = Ipv6Packet::new_checked(bytes).map_err(|_| Fault::Malformed)?;
    if packet.version() != 6 {
        return Err(Fault::Malformed);
    }
    if packet.next_header() == IpProtocol::Ipv6Frag {
        return Err(Fault::Fragment);
    }
    let bytes = bytes.get(..packet.total_len()).ok_or(Fault::Malformed)?;
    let payload = bytes.get(packet.header_len()..).ok_or(Fault::Malformed)?;
    Ok(Packet {
        source: packet.src_addr().into(),
        destination: packet.dst_addr().into(),
        hops: packet.hop_limit(),
        transport: transport(packet.next_header(), IpProtocol::Icmpv6, payload)?,
        bytes,
    })
}

fn transport(
    protocol: IpProtocol,
    icmp: IpProtocol,
    payload: &[u8],
) -> Result<Transport<'_>, Fault> {
    match protocol {
        IpProtocol::Tcp => {
            let packet = TcpPacket::new_checked(payload).map_err(|_| Fault::Malformed)?;
            if packet.src_port() == 0 || packet.dst_port() == 0 || packet.header_len() < 20 {
                return Err(Fault::Malformed);
            }
            Ok(Transport::Tcp(Segment { packet }))
        }
        IpProtocol::Udp => {
            let packet = UdpPacket::new_checked(payload).map_err(|_| Fault::Malformed)?;
            if packet.src_port() == 0 || packet.dst_port() == 0 {
                return Err(Fault::Malformed);
            }
            Ok(Transport::Udp {
                source: packet.src_port(),
                destination: packet.dst_port(),
                payload: packet.payload(),
            })
        }
        _ if protocol == icmp => Ok(Transport::Icmp(payload)),
        _ => Ok(Transport::Other),
    }
}

/// Checksums of packets to the guest: IP headers and ICMP here, TCP and UDP by [`seal`]. None is checked.
#[must_use]
pub fn checksums() -> ChecksumCapabilities {
    let mut all = ChecksumCapabilities::ignored();
    all.ipv4 = Checksum::Tx;
    all.icmpv4 = Checksum::Tx;
    all.icmpv6 = Checksum::Tx;
    all
}

/// Completes a message whose packet is at [`PACKET`]: header, Ethernet header, and for TCP and UDP the part of the checksum that is
/// of the pseudo header; the rest is left to the guest's device. A packet that cannot be one is left as it is.
pub fn seal(message: &mut [u8], from: Mac) {
    let Some((head, packet)) = message.split_at_mut_checked(PACKET) else { return };
    head.fill(0);
    head[10] = 1; // num_buffers
    head[HEADER..HEADER + 6].copy_from_slice(&GUEST_MAC);
    head[HEADER + 6..HEADER + 12].copy_from_slice(&from);
    let v4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
    head[HEADER + 12..].copy_from_slice(if v4 { &[0x08, 0x00] } else { &[0x86, 0xdd] });
    let start = if v4 { usize::from(packet[0] & 0xf) * 4 } else { 40 };
    let Some((header, payload)) = packet.split_at_mut_checked(start) else { return };
    let protocol = header.get(if v4 { 9 } else { 6 }).copied();
    let field = match protocol {
        Some(6) => 16u8,
        Some(17) => 6,
        _ => return,
    };
    let addresses = if v4 { &header[12..20] } else { &header[8..40] };
    let sum = pseudo(addresses, protocol.unwrap_or_default(), payload.len());
    let at = usize::from(field);
    if let Some(checksum) = payload.get_mut(at..at + 2) {
        checksum.copy_from_slice(&sum.to_be_bytes());
        head[0] = NEEDS_CSUM;
        let begin = u16::try_from(ETHERNET + start).unwrap_or_default();
        head[6..8].copy_from_slice(&begin.to_le_bytes());
        head[8] = field;
    }
}

/// Sum of a pseudo header, not complemented.
pub(crate) fn pseudo(addresses: &[u8], protocol: u8, length: usize) -> u16 {
    let words =
        addresses.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let length = u32::try_from(length).unwrap_or_default();
    let sum = words.sum::<u32>() + u32::from(protocol) + (length >> 16) + (length & 0xffff);
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or_default()
}

/// Whether somebody may have the address for himself.
#[must_use]
pub fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_multicast() && !v4.is_broadcast() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_multicast() && !v6.is_unspecified(),
    }
}

/// An IP header. Both addresses have to be of one family.
#[must_use]
pub fn ip_repr(
    source: IpAddr,
    destination: IpAddr,
    protocol: IpProtocol,
    length: usize,
) -> Option<IpRepr> {
    match (source, destination) {
        (IpAddr::V4(src_addr), IpAddr::V4(dst_addr)) => Some(IpRepr::Ipv4(Ipv4Repr {
            src_addr,
            dst_addr,
            next_header: protocol,
            payload_len: length,
            hop_limit: 64,
        })),
        (IpAddr::V6(src_addr), IpAddr::V6(dst_addr)) => Some(IpRepr::Ipv6(Ipv6Repr {
            src_addr,
            dst_addr,
            next_header: protocol,
            payload_len: length,
            hop_limit: 64,
        })),
        _ => None,
    }
}

/// A message with a packet to the guest; `fill` writes what comes after the IP header.
#[must_use]
pub fn build(repr: &IpRepr, from: Mac, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let length = repr.header_len() + repr.payload_len();
    let mut message = vec![0; PACKET + length];
    repr.emit(&mut message[PACKET..], &checksums());
    fill(&mut message[PACKET + repr.header_len()..]);
    seal(&mut message, from);
    message
}

/// A datagram to the guest.
#[must_use]
pub fn udp(from: (IpAddr, u16), to: (IpAddr, u16), payload: &[u8]) -> Option<Vec<u8>> {
    let length = 8 + payload.len();
    let repr = ip_repr(from.0, to.0, IpProtocol::Udp, length)?;
    let field = u16::try_from(length).ok()?;
    Some(build(&repr, GATEWAY_MAC, |room| {
        let mut packet = UdpPacket::new_unchecked(&mut *room);
        packet.set_src_port(from.1);
        packet.set_dst_port(to.1);
        packet.set_len(field);
        packet.payload_mut().copy_from_slice(payload);
    }))
}

/// The answer to a segment that belongs to nothing, or is refused. None if the segment is a reset itself.
#[must_use]
pub fn reset(packet: &Packet<'_>, segment: &Segment<'_>, from: Mac) -> Option<Vec<u8>> {
    let tcp = &segment.packet;
    if tcp.rst() {
        return None;
    }
    let (seq_number, ack_number) = if tcp.ack() {
        (tcp.ack_number(), None)
    } else {
        (smoltcp::wire::TcpSeqNumber(0), Some(tcp.seq_number() + tcp.segment_len()))
    };
    let answer = TcpRepr {
        src_port: tcp.dst_port(),
        dst_port: tcp.src_port(),
        control: TcpControl::Rst,
        seq_number,
        ack_number,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let (source, destination) = (packet.destination, packet.source);
    let repr = ip_repr(source, destination, IpProtocol::Tcp, answer.buffer_len())?;
    Some(build(&repr, from, |room| {
        let (source, destination) = (IpAddress::from(source), IpAddress::from(destination));
        answer.emit(&mut TcpPacket::new_unchecked(room), &source, &destination, &checksums());
    }))
}

/// Synthetic hardware address of a member of a network.
#[must_use]
pub fn member_mac(number: u8) -> Mac {
    [GUEST_MAC[0], GUEST_MAC[1], GUEST_MAC[2], 1, 0, number]
}

/// Which member has this hardware address.
#[must_use]
pub fn member_of_mac(mac: Mac) -> Option<u8> {
    (mac[..5] == member_mac(0)[..5]).then_some(mac[5])
}

/// Address of a member, of both families.
#[must_use]
pub fn member_addresses(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    let v4 = u32::from(ramet_proto::net::NETWORK_V4) + u32::from(number);
    let v6 = u128::from(ramet_proto::net::NETWORK_V6) + u128::from(number);
    (v4.into(), v6.into())
}

/// The link-local address that follows from a hardware address.
#[must_use]
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[cfg(test)]
mod tests;
