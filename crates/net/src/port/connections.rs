//! Connections of the port: made if the policy allows, given their turns, ended.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ramet_proto::api::network::Protocol;
use ramet_proto::net::GATEWAY_MAC;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::datagram::{self, Kind, Refusal};
use super::ingress::{DNS_PORT, gateway_for, is_gateway, tuple};
use super::tcp::{self, Connected, Turn};
use super::{Event, Flow, Port, Tuple};
use crate::edge;
use crate::frame::{self, Content, Packet, Segment, Transport};
use crate::policy::{Decision, Destination};
use crate::ranges::plain;
use crate::reply::Failure;
use crate::sniff::Heard;

/// Ports on which nothing but a name that fits will do.
const SPOKEN: [u16; 2] = [80, 443];
/// The port of QUIC, whose names cannot be heard.
const QUIC: u16 = 443;

impl Tuple {
    fn destination(&self) -> Destination {
        Destination { address: self.to.ip(), port: self.to.port(), protocol: self.protocol }
    }

    fn kind(&self) -> &'static str {
        match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Icmp => "icmp",
        }
    }

    fn show(&self) -> String {
        match self.protocol {
            Protocol::Icmp => self.to.ip().to_string(),
            _ => self.to.to_string(),
        }
    }
}

/// What may become of a new connection.
struct Admitted {
    names: Vec<String>,
    listening: bool,
}

impl Port {
    /// A segment to the gateway or beyond.
    pub(super) fn tcp(&mut self, packet: &Packet<'_>, segment: &Segment<'_>) {
        let (from, to) = (segment.packet.src_port(), segment.packet.dst_port());
        let tuple = tuple(packet, Protocol::Tcp, from, to);
        if let Some(&id) = self.tuples.get(&tuple) {
            return self.segment(id, packet, segment);
        }
        if !segment.begins() {
            return self.reset(packet, segment);
        }
        let begun = if is_gateway(packet.destination) {
            self.begin_inside(tuple, packet)
        } else {
            self.begin(tuple, packet)
        };
        match begun {
            Ok(()) => {}
            Err(Errno::NETUNREACH | Errno::HOSTUNREACH) => self.tell(packet, Failure::Host),
            Err(_) => self.reset(packet, segment),
        }
    }

    fn segment(&mut self, id: u64, packet: &Packet<'_>, segment: &Segment<'_>) {
        let connecting =
            matches!(self.flows.get(&id), Some(Flow::Tcp(flow)) if flow.is_connecting());
        if !connecting {
            self.turn(id, Some(packet.bytes));
        } else if segment.packet.rst() {
            self.end(id);
        }
    }

    fn reset(&mut self, packet: &Packet<'_>, segment: &Segment<'_>) {
        if let Some(reset) = frame::reset(packet, segment, GATEWAY_MAC) {
            self.wire.send(&reset);
        }
    }

    /// A connection to the gateway: names are served there, and nothing else.
    fn begin_inside(&mut self, tuple: Tuple, packet: &Packet<'_>) -> Result<(), Errno> {
        if tuple.to.port() != DNS_PORT {
            return Err(Errno::CONNREFUSED);
        }
        if self.is_full() {
            return Err(self.refuse(&tuple, "too_many_connections"));
        }
        let (guests, service) = pair()?;
        self.serve_names(service);
        let flow =
            tcp::Flow::new(tuple.guest, tuple.to, guests, packet.bytes.to_vec(), self.wire.now);
        self.insert(tuple, Flow::Tcp(flow))
    }

    fn begin(&mut self, tuple: Tuple, packet: &Packet<'_>) -> Result<(), Errno> {
        let admitted = self.admit(&tuple)?;
        let outside = connect(tuple.to).inspect_err(|error| self.note_failure(&tuple, *error))?;
        let mut flow =
            tcp::Flow::new(tuple.guest, tuple.to, outside, packet.bytes.to_vec(), self.wire.now);
        (flow.names, flow.listening) = (admitted.names, admitted.listening);
        self.insert(tuple, Flow::Tcp(flow))
    }

    /// Asks the policy and the limits.
    fn admit(&mut self, tuple: &Tuple) -> Result<Admitted, Errno> {
        if !frame::is_unicast(plain(tuple.to.ip())) {
            return Err(self.refuse(tuple, "not_allowed"));
        }
        let names = self.pins.names(tuple.to.ip(), self.wire.now);
        let decision = self.setup.rules.decide(tuple.destination(), &names, &self.shared.kept());
        let at_edge =
            self.setup.edge.as_ref().is_some_and(|edge| names.iter().any(|name| edge.has(name)));
        let names = names.into_iter().map(str::to_owned).collect();
        let listening = at_edge || decision == Decision::AllowedByName;
        if let Decision::Refused(reason) = decision {
            return Err(self.refuse(tuple, reason.word()));
        }
        if self.is_full() {
            return Err(self.refuse(tuple, "too_many_connections"));
        }
        Ok(Admitted { names, listening })
    }

    fn is_full(&self) -> bool {
        self.flows.len() >= usize::try_from(self.setup.limits.connections).unwrap_or(usize::MAX)
    }

    fn refuse(&mut self, tuple: &Tuple, reason: &'static str) -> Errno {
        self.wire.stats.refused += 1;
        let names = self.pins.names(tuple.to.ip(), self.wire.now);
        self.journal.refused(tuple.kind(), tuple.show(), names.first().copied(), reason);
        Errno::CONNREFUSED
    }

    /// The host itself lacks something.
    fn note_failure(&mut self, tuple: &Tuple, error: Errno) {
        if matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) {
            self.journal.refused(tuple.kind(), tuple.show(), None, "out_of_resources");
        }
    }

    fn insert(&mut self, tuple: Tuple, mut flow: Flow) -> Result<(), Errno> {
        let id = self.next_flow;
        self.next_flow += 1;
        let due = match &mut flow {
            Flow::Tcp(flow) => {
                self.outside.add(flow.outside(), id)?;
                flow.due(&self.wire)
            }
            Flow::Datagram(flow) => {
                self.outside.add(flow.outside(), id)?;
                flow.due()
            }
        };
        self.wire.stats.connections += 1;
        self.flows.insert(id, flow);
        self.tuples.insert(tuple, id);
        self.schedule(id, due);
        Ok(())
    }

    /// A flow is looked at no later than this.
    fn schedule(&mut self, id: u64, due: Instant) {
        let known = self.scheduled.get(&id).copied();
        if known.is_some_and(|known| known <= due) {
            return;
        }
        if let Some(known) = known {
            self.schedule.remove(&(known, id));
        }
        self.schedule.insert((due, id));
        self.scheduled.insert(id, due);
    }

    /// A flow's socket is ready for something.
    pub(super) fn outside_ready(&mut self, id: u64, events: EventFlags) {
        match self.flows.get_mut(&id) {
            Some(Flow::Tcp(flow)) => {
                flow.ready(events);
                if flow.is_connecting() {
                    self.connecting(id);
                }
                self.turn(id, None);
            }
            Some(Flow::Datagram(flow)) => {
                flow.readable = true;
                self.turn(id, None);
            }
            None => {}
        }
    }

    fn connecting(&mut self, id: u64) {
        let Some(Flow::Tcp(flow)) = self.flows.get_mut(&id) else { return };
        if let Connected::No(error, syn) = flow.connected(&mut self.wire) {
            self.end(id);
            self.answer_syn(error, &syn);
        }
    }

    /// The outside did not take a connection: the guest is told in the way that it would have been.
    fn answer_syn(&mut self, error: Errno, syn: &[u8]) {
        let mut message = vec![0; frame::PACKET];
        message.extend_from_slice(syn);
        frame::seal(&mut message, ramet_proto::net::GUEST_MAC);
        let Ok(frame) = frame::parse(&message) else { return };
        let Content::Ip(packet) = frame.content else { return };
        match (&packet.transport, error) {
            (_, Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::TIMEDOUT | Errno::HOSTDOWN) => {
                self.tell(&packet, Failure::Host);
            }
            (Transport::Tcp(segment), _) => self.reset(&packet, segment),
            _ => {}
        }
    }

    /// A flow's turn, with a packet of the guest if there is one.
    pub(super) fn turn(&mut self, id: u64, packet: Option<&[u8]>) {
        let (turn, due) = match self.flows.get_mut(&id) {
            Some(Flow::Tcp(flow)) => {
                let turn = flow.turn(&mut self.wire, packet);
                (turn, flow.due(&self.wire))
            }
            Some(Flow::Datagram(flow)) => {
                let refused = flow.receive(&mut self.wire).err();
                let (due, to, guest) = (flow.due(), flow.to, flow.guest);
                let more = flow.readable;
                if let Some(refusal) = refused {
                    self.refused_outside(to, guest, refusal);
                }
                return match (more, self.wire.link.ready()) {
                    (true, true) => self.schedule(id, self.wire.now),
                    (true, false) => {
                        self.blocked.insert(id);
                    }
                    (false, _) => self.schedule(id, due),
                };
            }
            None => return,
        };
        match turn {
            Turn::On if !self.wire.link.ready() => {
                self.blocked.insert(id);
                self.schedule(id, due);
            }
            Turn::On => self.schedule(id, due),
            Turn::Over => self.end(id),
            Turn::Heard(heard) => self.heard(id, &heard),
        }
    }

    /// The time that a flow wanted to be looked at.
    pub(super) fn flow_due(&mut self, id: u64) {
        let now = self.wire.now;
        match self.flows.get_mut(&id) {
            Some(Flow::Tcp(flow)) if flow.is_connecting() => {
                self.connecting(id);
                if let Some(Flow::Tcp(flow)) = self.flows.get_mut(&id) {
                    let due = flow.due(&self.wire);
                    self.schedule(id, due);
                }
            }
            Some(Flow::Tcp(flow)) if flow.is_late(now) => {
                flow.abort(&mut self.wire);
                self.end(id);
            }
            Some(Flow::Tcp(_)) => self.turn(id, None),
            Some(Flow::Datagram(flow)) if flow.readable => self.turn(id, None),
            Some(Flow::Datagram(flow)) if flow.due() <= now => self.end(id),
            Some(Flow::Datagram(flow)) => {
                let due = flow.due();
                self.schedule(id, due);
            }
            None => {}
        }
    }

    pub(super) fn end(&mut self, id: u64) {
        let tuple = match self.flows.remove(&id) {
            Some(Flow::Tcp(flow)) => {
                Tuple { protocol: Protocol::Tcp, guest: flow.guest, to: flow.to }
            }
            Some(Flow::Datagram(flow)) => datagram_tuple(&flow),
            None => return,
        };
        self.tuples.remove(&tuple);
        self.blocked.remove(&id);
        if let Some(due) = self.scheduled.remove(&id) {
            self.schedule.remove(&(due, id));
        }
        if self.flows.is_empty() {
            self.shrink();
        }
    }

    /// An idle port holds next to nothing.
    fn shrink(&mut self) {
        self.flows.shrink_to_fit();
        self.tuples.shrink_to_fit();
        self.scheduled.shrink_to_fit();
        self.blocked.shrink_to_fit();
    }

    /// All connections go, without a word to the guest: its machine is gone, or is another one.
    pub(super) fn drop_flows(&mut self) {
        for flow in self.flows.values_mut() {
            if let Flow::Tcp(flow) = flow {
                flow.abort(&mut self.wire);
            }
        }
        self.flows.clear();
        self.tuples.clear();
        self.schedule.clear();
        self.scheduled.clear();
        self.blocked.clear();
        self.helpers.abort_all();
        self.lookups = 0;
        self.shrink();
    }

    /// What the guest said first decides, where a name is needed.
    fn heard(&mut self, id: u64, heard: &Heard) {
        let Some(Flow::Tcp(flow)) = self.flows.get(&id) else { return };
        let tuple = Tuple { protocol: Protocol::Tcp, guest: flow.guest, to: flow.to };
        let names: Vec<&str> = flow.names.iter().map(String::as_str).collect();
        let by_name = self.setup.rules.decide(tuple.destination(), &names, &self.shared.kept());
        let must = by_name != Decision::Allowed;
        let name = match heard {
            Heard::Tls(name) | Heard::Http(name) => name.as_deref(),
            Heard::Other | Heard::More => None,
        };
        let pinned = name.filter(|name| names.contains(name));
        let at_edge =
            pinned.filter(|name| self.setup.edge.as_ref().is_some_and(|edge| edge.has(name)));
        let refusal = match (heard, at_edge, name) {
            (Heard::Tls(_), Some(host), _) => {
                let host = host.to_owned();
                return self.hand_to_edge(id, host);
            }
            (Heard::Http(_), Some(_), _) => Some("plaintext"),
            _ if !must => None,
            (Heard::Other | Heard::More, ..) => {
                SPOKEN.contains(&tuple.to.port()).then_some("not_understood")
            }
            (_, _, None) => Some("name_missing"),
            (_, _, Some(_)) => match pinned {
                Some(name)
                    if self.setup.rules.allows_name(
                        name,
                        tuple.destination(),
                        &self.shared.kept(),
                    ) =>
                {
                    None
                }
                _ => Some("name_mismatch"),
            },
        };
        let said = pinned.map(str::to_owned);
        match refusal {
            None => self.pass(id, said),
            Some(reason) => {
                let kind = match heard {
                    Heard::Tls(_) => "tls",
                    Heard::Http(_) => "http",
                    _ => "tcp",
                };
                let to = name.map_or_else(|| tuple.show(), str::to_owned);
                self.journal.refused(kind, to, names.first().copied(), reason);
                self.wire.stats.refused += 1;
                self.break_off(id);
            }
        }
    }

    /// The flow goes on, and what the guest said is passed on.
    fn pass(&mut self, id: u64, name: Option<String>) {
        if let Some(Flow::Tcp(flow)) = self.flows.get_mut(&id) {
            flow.listening = false;
            if let Some(name) = name {
                flow.names = vec![name];
            }
        }
        self.turn(id, None);
    }

    fn break_off(&mut self, id: u64) {
        if let Some(Flow::Tcp(flow)) = self.flows.get_mut(&id) {
            flow.abort(&mut self.wire);
        }
        self.end(id);
    }

    /// The flow's outside becomes a helper that ends TLS here and begins it anew.
    fn hand_to_edge(&mut self, id: u64, host: String) {
        let Some(edge) = self.setup.edge.clone() else { return self.break_off(id) };
        let Some(Flow::Tcp(flow)) = self.flows.get_mut(&id) else { return };
        let Ok((guests, service)) = pair() else { return self.break_off(id) };
        let outside = flow.replace_outside(guests);
        self.outside.remove(&outside);
        if self.outside.add(flow.outside(), id).is_err() {
            return self.break_off(id);
        }
        flow.edge = true;
        let (shared, report) = (self.shared.clone(), self.report.clone());
        let name = host.clone();
        self.helpers.spawn(async move {
            let served = edge::serve(&edge, &host, service, outside, &shared.trust).await;
            if let Err(refusal) = served {
                tracing::debug!(%refusal, "edge");
                let reason = refusal.word();
                // The port is gone if this fails.
                drop(report.send(Event::EdgeRefused { host, reason }).await);
            }
        });
        self.pass(id, Some(name));
    }

    /// A datagram to the outside.
    pub(super) fn datagram(
        &mut self,
        packet: &Packet<'_>,
        tuple: Tuple,
        kind: Kind,
        payload: &[u8],
    ) {
        let id = match self.tuples.get(&tuple) {
            Some(id) => *id,
            None => match self.begin_datagram(tuple, kind) {
                Ok(id) => id,
                Err(Errno::NETUNREACH | Errno::HOSTUNREACH) => {
                    return self.tell(packet, Failure::Host);
                }
                Err(_) => return self.tell(packet, Failure::Prohibited),
            },
        };
        let Some(Flow::Datagram(flow)) = self.flows.get_mut(&id) else { return };
        match flow.send(&mut self.wire, payload) {
            Ok(()) => {}
            Err(Refusal::Port) => self.tell(packet, Failure::Port),
            Err(Refusal::Host) => self.tell(packet, Failure::Host),
        }
    }

    fn begin_datagram(&mut self, tuple: Tuple, kind: Kind) -> Result<u64, Errno> {
        let admitted = self.admit(&tuple)?;
        if admitted.listening && kind == Kind::Udp && tuple.to.port() == QUIC {
            return Err(self.refuse(&tuple, "name_unchecked"));
        }
        let to = SocketAddr::new(plain(tuple.to.ip()), tuple.to.port());
        let mut flow = match datagram::Flow::new(kind, tuple.guest, to, self.wire.now) {
            Ok(flow) => flow,
            Err(Errno::ACCESS | Errno::PERM) if kind == Kind::Echo => {
                return Err(self.refuse(&tuple, "echo_not_permitted"));
            }
            Err(error) => {
                self.note_failure(&tuple, error);
                return Err(error);
            }
        };
        flow.to = tuple.to;
        flow.names = admitted.names;
        let id = self.next_flow;
        self.insert(tuple, Flow::Datagram(flow))?;
        Ok(id)
    }

    /// Somebody outside said that nobody listens there.
    fn refused_outside(&mut self, to: SocketAddr, guest: SocketAddr, refusal: Refusal) {
        let why = match refusal {
            Refusal::Port => Failure::Port,
            Refusal::Host => Failure::Host,
        };
        // The datagram itself is gone; its addresses and ports are what the guest needs.
        let from = (guest.ip(), guest.port());
        let Some(message) = frame::udp(from, (to.ip(), to.port()), &[]) else { return };
        let bytes = &message[frame::PACKET..];
        let packet = Packet {
            source: guest.ip(),
            destination: to.ip(),
            hops: 64,
            transport: Transport::Other,
            bytes,
        };
        if let Some(answer) = crate::reply::failed(&packet, why, gateway_for(guest.ip())) {
            self.wire.send(&answer);
        }
    }

    /// After a change of the configuration: what is not allowed any more is reset.
    pub(super) fn review_flows(&mut self, edge_changed: bool) {
        let kept = self.shared.kept();
        let mut over = Vec::new();
        for (id, flow) in &self.flows {
            let (tuple, names) = match flow {
                Flow::Tcp(flow) if is_gateway(flow.to.ip()) => continue,
                Flow::Tcp(flow) if flow.edge && edge_changed => {
                    over.push(*id);
                    continue;
                }
                Flow::Tcp(flow) => {
                    let tuple = Tuple { protocol: Protocol::Tcp, guest: flow.guest, to: flow.to };
                    (tuple, &flow.names)
                }
                Flow::Datagram(flow) => (datagram_tuple(flow), &flow.names),
            };
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let decision = self.setup.rules.decide(tuple.destination(), &names, &kept);
            if matches!(decision, Decision::Refused(_)) {
                over.push(*id);
            }
        }
        for id in over {
            self.break_off(id);
        }
    }
}

fn datagram_tuple(flow: &datagram::Flow) -> Tuple {
    let protocol = match flow.kind {
        Kind::Udp => Protocol::Udp,
        Kind::Echo => Protocol::Icmp,
    };
    Tuple { protocol, guest: flow.guest, to: flow.to }
}

/// Begins to connect, without waiting.
fn connect(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let to = SocketAddr::new(plain(to.ip()), to.port());
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Two ends: one for a flow, one for a helper.
fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}
