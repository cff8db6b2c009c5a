//! From a frame to what is done with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ramet_proto::api::network::Protocol;
use ramet_proto::net::{
    GATEWAY_MAC, GATEWAY_V4, GATEWAY_V6, GUEST_V4, GUEST_V6, NETWORK_V4, NETWORK_V6,
};

use super::datagram::Kind;
use super::{Port, Tuple, names};
use crate::frame::{self, Content, Fault, Frame, Mac, Packet, Transport};
use crate::ranges::Range;
use crate::reply::{self, Failure, Icmp};

/// Where the service answers names.
pub(super) const DNS_PORT: u16 = 53;

/// Addresses that are inside, whoever has them: never reached outside.
fn is_inside(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => [GATEWAY_V4, NETWORK_V4]
            .into_iter()
            .any(|v4| Range::around(v4.into(), 24).contains(address)),
        IpAddr::V6(_) => [GATEWAY_V6, NETWORK_V6]
            .into_iter()
            .any(|v6| Range::around(v6.into(), 64).contains(address)),
    }
}

pub(super) fn is_gateway(address: IpAddr) -> bool {
    address == GATEWAY_V4 || address == GATEWAY_V6 || address == frame::link_local(GATEWAY_MAC)
}

pub(super) fn gateway_for(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { GATEWAY_V4.into() } else { GATEWAY_V6.into() }
}

impl Port {
    /// A message of the link.
    pub(super) fn frame(&mut self, message: &[u8]) {
        self.wire.stats.sent_frames += 1;
        self.wire.stats.sent_bytes += message.len() as u64;
        if !self.packets.take_all(1, self.wire.now) {
            self.wire.stats.dropped += 1;
            self.journal.refused("frame", "frames of the guest", None, "too_many_packets");
            return;
        }
        let done = frame::parse(message).and_then(|Frame { to, content }| match content {
            Content::Arp(bytes) => self.arp(bytes),
            Content::Ip(packet) => self.packet(to, &packet, message),
        });
        if let Err(fault) = done {
            self.wire.stats.dropped += 1;
            if fault != Fault::Unknown {
                self.journal.refused("frame", "frames of the guest", None, fault.word());
            }
        }
    }

    fn arp(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(who) = reply::arp_request(bytes)? else { return Ok(()) };
        // A probe has no source yet.
        if !who.source.is_unspecified() && !self.is_own(who.source.into()) {
            return Err(Fault::Spoofed);
        }
        if let Some(mac) = self.mac_of(who.target.into()) {
            self.wire.send(&reply::arp_reply(who, mac));
        }
        Ok(())
    }

    /// Who answers for an address inside.
    fn mac_of(&self, address: IpAddr) -> Option<Mac> {
        if is_gateway(address) {
            return Some(GATEWAY_MAC);
        }
        self.member_at(address).map(frame::member_mac)
    }

    /// Whether the guest may use it as its own.
    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        address == GUEST_V4 || address == GUEST_V6 || self.is_own_member(address)
    }

    fn packet(&mut self, to: Mac, packet: &Packet<'_>, message: &[u8]) -> Result<(), Fault> {
        if !self.is_own(packet.source) {
            return self.before_addresses(packet);
        }
        let group = to[0] & 1 == 1;
        if let (Transport::Icmp(bytes), true) = (&packet.transport, packet.source.is_ipv6())
            && let Icmp::Solicit(target) = reply::icmp(bytes, true)
        {
            self.solicited(target, packet.source);
            return Ok(());
        }
        if group {
            return self.flood(packet, message);
        }
        if let Some(number) = frame::member_of_mac(to) {
            return self.pass_to_member(number, packet, message);
        }
        if to == GATEWAY_MAC {
            self.route(packet);
        }
        Ok(())
    }

    /// Neighbour discovery has link-local addresses, or none; everything else of these is dropped in silence if it is ICMPv6, for kernels
    /// send reports and solicitations that nobody here needs.
    fn before_addresses(&mut self, packet: &Packet<'_>) -> Result<(), Fault> {
        let IpAddr::V6(source) = packet.source else { return Err(Fault::Spoofed) };
        let harmless = source.is_unspecified() || source.is_unicast_link_local();
        if !harmless {
            return Err(Fault::Spoofed);
        }
        if let Transport::Icmp(bytes) = packet.transport
            && let Icmp::Solicit(target) = reply::icmp(bytes, true)
            && !source.is_unspecified()
        {
            self.solicited(target, packet.source);
        }
        Ok(())
    }

    fn solicited(&mut self, target: Ipv6Addr, source: IpAddr) {
        let IpAddr::V6(source) = source else { return };
        let Some(mac) = self.mac_of(target.into()) else { return };
        if let Some(answer) = reply::advertise(target, source, mac, mac == GATEWAY_MAC) {
            self.wire.send(&answer);
        }
    }

    /// A packet for the gateway, or for something behind it.
    fn route(&mut self, packet: &Packet<'_>) {
        if is_gateway(packet.destination) {
            return self.heed_gateway(packet);
        }
        if packet.hops <= 1 {
            return self.tell(packet, Failure::Hops);
        }
        if is_inside(packet.destination) {
            return self.tell(packet, Failure::Host);
        }
        match &packet.transport {
            Transport::Tcp(segment) => self.tcp(packet, segment),
            Transport::Udp { source, destination, payload } => {
                let tuple = tuple(packet, Protocol::Udp, *source, *destination);
                self.datagram(packet, tuple, Kind::Udp, payload);
            }
            Transport::Icmp(bytes) => {
                if let Icmp::Echo { ident, .. } = reply::icmp(bytes, packet.source.is_ipv6()) {
                    let tuple = tuple(packet, Protocol::Icmp, ident, 0);
                    self.datagram(packet, tuple, Kind::Echo, bytes);
                }
            }
            Transport::Other => self.tell(packet, Failure::Prohibited),
        }
    }

    fn heed_gateway(&mut self, packet: &Packet<'_>) {
        match &packet.transport {
            Transport::Tcp(segment) => self.tcp(packet, segment),
            Transport::Udp { source, destination: DNS_PORT, payload } => {
                let guest = SocketAddr::new(packet.source, *source);
                self.asked(payload, names::Asker::Datagram { guest, gateway: packet.destination });
            }
            Transport::Udp { .. } => self.tell(packet, Failure::Port),
            Transport::Icmp(bytes) => {
                if let Icmp::Echo { ident, sequence, data } =
                    reply::icmp(bytes, packet.source.is_ipv6())
                    && let Some(answer) =
                        reply::echo_reply(packet.destination, packet.source, ident, sequence, data)
                {
                    self.wire.send(&answer);
                }
            }
            Transport::Other => {}
        }
    }

    /// Tells the guest that a packet went nowhere. Nothing is said about groups.
    pub(super) fn tell(&mut self, packet: &Packet<'_>, why: Failure) {
        if !frame::is_unicast(packet.destination) {
            return;
        }
        if let Some(answer) = reply::failed(packet, why, gateway_for(packet.source)) {
            self.wire.send(&answer);
        }
    }
}

/// What the packet belongs to.
pub(super) fn tuple(packet: &Packet<'_>, protocol: Protocol, from: u16, to: u16) -> Tuple {
    Tuple {
        protocol,
        guest: SocketAddr::new(packet.source, from),
        to: SocketAddr::new(packet.destination, to),
    }
}

/// The last address of the networks' range.
pub(super) fn network_broadcast() -> Ipv4Addr {
    Ipv4Addr::from(u32::from(NETWORK_V4) | 0xff)
}
