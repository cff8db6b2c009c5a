//! Frames to and from other members of the port's network.
//!
//! Every guest has the same hardware address, so members are shown to each other under synthetic ones, put in here on the way. Where there are rules
//! between members, who begins is what counts: of TCP the SYN; of UDP the first datagram, whose answers are let through for a while. Segments of
//! connections that are there already pass if the rules allow the connection in either direction, so that they live on in copies of a
//! network.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ramet_proto::net::{GUEST_MAC, HEADER};

use super::Port;
use super::ingress::network_broadcast;
use crate::frame::{self, Content, Fault, Packet, Transport, member_addresses, member_mac};
use crate::reply::{self, Failure, Icmp};

/// How long an answer is let through.
const ANSWER: Duration = Duration::from_secs(180);
/// Most conversations that are remembered.
const CONVERSATIONS_MAX: usize = 4096;

/// Who has said something over UDP: (member, its port, our port), and until when it may be answered.
#[derive(Debug, Default)]
pub(super) struct Conversations {
    known: HashMap<(u8, u16, u16), Instant>,
}

impl Conversations {
    fn note(&mut self, key: (u8, u16, u16), now: Instant) {
        if self.known.len() >= CONVERSATIONS_MAX && !self.known.contains_key(&key) {
            self.known.retain(|_, until| *until > now);
            if self.known.len() >= CONVERSATIONS_MAX {
                return;
            }
        }
        self.known.insert(key, now + ANSWER);
    }

    fn knows(&self, key: (u8, u16, u16), now: Instant) -> bool {
        self.known.get(&key).is_some_and(|until| *until > now)
    }
}

impl Port {
    /// The member that has the address, if it is there and not this one.
    pub(super) fn member_at(&self, address: IpAddr) -> Option<u8> {
        let place = self.place.as_ref()?;
        let number = match address {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[15],
        };
        let other = number != place.member.number && has_address(number, address);
        (other && place.name_of(number).is_some()).then_some(number)
    }

    pub(super) fn is_own_member(&self, address: IpAddr) -> bool {
        self.place.as_ref().is_some_and(|place| has_address(place.member.number, address))
    }

    /// To one member.
    pub(super) fn pass_to_member(
        &mut self,
        number: u8,
        packet: &Packet<'_>,
        message: &[u8],
    ) -> Result<(), Fault> {
        if !self.is_own_member(packet.source) || !has_address(number, packet.destination) {
            return Err(Fault::Spoofed);
        }
        let Some(place) = &self.place else { return Ok(()) };
        let Some(name) = place.name_of(number) else {
            self.tell(packet, Failure::Host);
            return Ok(());
        };
        if !self.may_say(number, &name, packet) {
            self.refuse_member(number, &name, packet);
            return Ok(());
        }
        let frame = dress(message, place.member.number, Some(GUEST_MAC))?;
        if !place.send(number, frame) {
            self.wire.stats.dropped += 1;
        }
        Ok(())
    }

    fn may_say(&self, number: u8, name: &str, packet: &Packet<'_>) -> bool {
        let Some(place) = &self.place else { return false };
        let own = place.member.name.as_str();
        let begin = |port: Option<u16>| place.may_begin(own, name, port);
        let answer = |port: Option<u16>| place.may_begin(name, own, port);
        match &packet.transport {
            Transport::Tcp(segment) => {
                let tcp = &segment.packet;
                begin(Some(tcp.dst_port())) || !segment.begins() && answer(Some(tcp.src_port()))
            }
            Transport::Udp { source, destination, .. } => {
                let known =
                    self.conversations.knows((number, *destination, *source), self.wire.now);
                begin(Some(*destination)) || known
            }
            Transport::Icmp(bytes) => {
                let echo = matches!(reply::icmp(bytes, packet.source.is_ipv6()), Icmp::Echo { .. });
                begin(None) || !echo && answer(None)
            }
            Transport::Other => place.member.between.is_none(),
        }
    }

    fn refuse_member(&mut self, number: u8, name: &str, packet: &Packet<'_>) {
        self.wire.stats.refused += 1;
        let (kind, port) = match &packet.transport {
            Transport::Tcp(segment) => ("tcp", segment.packet.dst_port()),
            Transport::Udp { destination, .. } => ("udp", *destination),
            _ => ("icmp", 0),
        };
        let to = if port == 0 { name.to_owned() } else { format!("{name}:{port}") };
        self.journal.refused(kind, to, None, "not_between");
        let Transport::Tcp(segment) = &packet.transport else {
            return self.tell(packet, Failure::Prohibited);
        };
        if let Some(reset) = frame::reset(packet, segment, member_mac(number)) {
            self.wire.send(&reset);
        }
    }

    /// To all members that may have it. Without a member's address it is for nobody.
    pub(super) fn flood(&mut self, packet: &Packet<'_>, message: &[u8]) -> Result<(), Fault> {
        if !self.is_own_member(packet.source)
            || frame::is_unicast(packet.destination) && packet.destination != network_broadcast()
        {
            return Ok(());
        }
        let Some(place) = &self.place else { return Ok(()) };
        let frame = dress(message, place.member.number, None)?;
        let port = match packet.transport {
            Transport::Udp { destination, .. } => Some(destination),
            _ => None,
        };
        place.flood(&frame, |name| place.may_begin(&place.member.name, name, port));
        Ok(())
    }

    /// A frame of another member, which its port has checked.
    pub(super) fn deliver(&mut self, message: &[u8]) {
        let ruled = self.place.as_ref().is_some_and(|place| place.member.between.is_some());
        if ruled && let Some(key) = conversation(message) {
            self.conversations.note(key, self.wire.now);
        }
        self.wire.send(message);
    }
}

fn has_address(number: u8, address: IpAddr) -> bool {
    let (v4, v6) = member_addresses(number);
    address == v4 || address == v6
}

/// (member, its port, our port) of a datagram.
fn conversation(message: &[u8]) -> Option<(u8, u16, u16)> {
    let number = frame::member_of_mac(*message.get(HEADER + 6..)?.first_chunk()?)?;
    let mut own = message.to_vec();
    own.get_mut(HEADER + 6..HEADER + 12)?.copy_from_slice(&GUEST_MAC);
    match frame::parse(&own).ok()?.content {
        Content::Ip(Packet { transport: Transport::Udp { source, destination, .. }, .. }) => {
            Some((number, source, destination))
        }
        _ => None,
    }
}

/// The message as another guest may see it: from the member's synthetic address, with nothing in its header but a checksum that is left to do, inside of the
/// frame.
fn dress(message: &[u8], from: u8, to: Option<frame::Mac>) -> Result<Vec<u8>, Fault> {
    let mut frame = message.to_vec();
    let (header, ethernet) = frame.split_at_mut_checked(HEADER).ok_or(Fault::Malformed)?;
    let partial = header[0] & 1 == 1;
    let start = usize::from(u16::from_le_bytes([header[6], header[7]]));
    let offset = usize::from(u16::from_le_bytes([header[8], header[9]]));
    if partial && start + offset + 2 > ethernet.len() {
        return Err(Fault::Malformed);
    }
    header[0] &= 1;
    header[1..6].fill(0);
    if !partial {
        header[6..10].fill(0);
    }
    header[10..12].copy_from_slice(&[1, 0]);
    if let Some(to) = to {
        ethernet[..6].copy_from_slice(&to);
    }
    ethernet[6..12].copy_from_slice(&member_mac(from));
    Ok(frame)
}
