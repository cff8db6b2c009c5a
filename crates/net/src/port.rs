//! One port: everything that happens at the network side of one machine.
//!
//! A port is owned by its task ([`Port::run`]) and nobody else touches it. What can happen is in the `select!` there: a frame of the guest, readiness of a socket, a
//! frame of another member, an answer of the resolver, a command, time. Each is handled without waiting; what takes time is a task in the port's own
//! set and reports by [`Event`].

mod connections;
mod datagram;
pub mod exercise;
mod ingress;
mod members;
mod names;
mod outside;
pub mod setup;
mod tcp;
mod wire;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use ramet_proto::api::network::{LogEntry, NetStats, Protocol};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::alarm::Alarm;
use crate::bucket::Bucket;
use crate::edge::Trust;
use crate::frame::MESSAGE_MAX;
use crate::journal::Journal;
use crate::link::Link;
use crate::pins::Pins;
use crate::ranges::Kept;
use crate::resolver::Upstream;
use crate::switch::{self, Inlet, Outlet, Place, Switch};

use self::outside::Outside;
use self::setup::Setup;
use self::wire::Wire;

/// Frames of the guest before others have their turn.
const FRAMES: usize = 64;
/// Least that a limit of bytes lets through at once: a datagram must fit.
const BURST: u64 = 128 << 10;
/// Events of helpers that wait.
const EVENTS_MAX: usize = 256;

/// What all ports share.
#[derive(Debug)]
pub struct Shared {
    /// Ranges that are reached only by name.
    pub kept: RwLock<Arc<Kept>>,
    /// Resolves names.
    pub upstream: Upstream,
    /// Networks.
    pub switch: Switch,
    /// Whom the edge believes.
    pub trust: Trust,
}

impl Shared {
    /// The current ranges.
    #[must_use]
    pub fn kept(&self) -> Arc<Kept> {
        self.kept.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the service asks of a port.
#[derive(Debug)]
pub enum Command {
    /// Another configuration, and another link if there is one.
    Configure {
        /// Checked.
        setup: Box<Setup>,
        /// Its connections are reset if there is one.
        link: Option<OwnedFd>,
        /// Told when it is done.
        done: oneshot::Sender<Result<(), String>>,
    },
    /// Figures.
    Stats(oneshot::Sender<NetStats>),
    /// The log.
    Log {
        /// Only entries after this.
        after: u64,
        /// The newest so many.
        limit: usize,
        /// To whom.
        reply: oneshot::Sender<Vec<LogEntry>>,
    },
}

/// What helpers report.
#[derive(Debug)]
enum Event {
    /// An answer came.
    Resolved(Box<names::Resolved>),
    /// A question came over TCP.
    Asked { message: Vec<u8>, reply: oneshot::Sender<Vec<u8>> },
    /// The edge refused a request.
    EdgeRefused { host: String, reason: &'static str },
}

/// What a connection is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Tuple {
    protocol: Protocol,
    guest: SocketAddr,
    to: SocketAddr,
}

enum Flow {
    Tcp(tcp::Flow),
    Datagram(datagram::Flow),
}

/// A port.
pub struct Port {
    shared: Arc<Shared>,
    setup: Setup,
    wire: Wire,
    packets: Bucket,
    linked: Arc<AtomicBool>,
    journal: Journal,
    pins: Pins,
    flows: HashMap<u64, Flow>,
    tuples: HashMap<Tuple, u64>,
    /// When flows want their turn. A flow may be here earlier than it needs.
    schedule: BTreeSet<(Instant, u64)>,
    scheduled: HashMap<u64, Instant>,
    /// Flows that have more for the link than it takes.
    blocked: HashSet<u64>,
    next_flow: u64,
    outside: Outside,
    place: Option<Place>,
    inlet: Inlet,
    outlet: Outlet,
    conversations: members::Conversations,
    lookups: usize,
    helpers: JoinSet<()>,
    events: mpsc::Receiver<Event>,
    report: mpsc::Sender<Event>,
}

impl Port {
    /// A port with its link. Inside the runtime.
    ///
    /// # Errors
    /// If the link cannot be waited for, or the host gives no descriptors.
    pub fn new(
        shared: Arc<Shared>,
        setup: Setup,
        link: OwnedFd,
        linked: Arc<AtomicBool>,
    ) -> std::io::Result<Self> {
        let now = Instant::now();
        let (inlet, outlet) = switch::queue();
        let (report, events) = mpsc::channel(EVENTS_MAX);
        let place = setup.member.clone().map(|member| shared.switch.join(member, inlet.clone()));
        linked.store(true, Ordering::Relaxed);
        Ok(Self {
            wire: Wire {
                link: Link::new(link)?,
                stats: NetStats::default(),
                upward: Bucket::new(setup.limits.bytes_per_s, BURST, now),
                downward: Bucket::new(setup.limits.bytes_per_s, BURST, now),
                now,
                epoch: now,
            },
            packets: Bucket::new(setup.limits.packets_per_s.into(), 64, now),
            shared,
            setup,
            linked,
            journal: Journal::default(),
            pins: Pins::default(),
            flows: HashMap::new(),
            tuples: HashMap::new(),
            schedule: BTreeSet::new(),
            scheduled: HashMap::new(),
            blocked: HashSet::new(),
            next_flow: 0,
            outside: Outside::new()?,
            place,
            inlet,
            outlet,
            conversations: members::Conversations::default(),
            lookups: 0,
            helpers: JoinSet::new(),
            events,
            report,
        })
    }

    /// Runs until nobody can give it commands any more.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut alarm = Alarm::new();
        loop {
            if let Some((due, _)) = self.schedule.first() {
                alarm.set(*due);
            }
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => break,
                },
                () = self.wire.link.readable() => self.read_link(),
                () = self.wire.link.writable() => self.write_link(),
                () = self.outside.readable() => self.read_outside(),
                Some(event) = self.events.recv() => self.event(event),
                Some(frame) = self.outlet.next(), if self.wire.link.ready() => self.heed_members(frame),
                Some(_) = self.helpers.join_next() => {}
                () = alarm.rings() => self.time(),
            }
        }
    }

    fn tick(&mut self) {
        self.wire.now = Instant::now();
    }

    fn read_link(&mut self) {
        thread_local! {
            static ROOM: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; MESSAGE_MAX + 1]);
        }
        self.tick();
        ROOM.with_borrow_mut(|room| {
            for _ in 0..FRAMES {
                let Some(message) = self.wire.link.receive(room) else { break };
                self.frame(message);
            }
        });
        self.look_at_link();
    }

    fn write_link(&mut self) {
        self.tick();
        self.wire.link.flush();
        if self.wire.link.ready() {
            let blocked = std::mem::take(&mut self.blocked);
            for flow in blocked {
                self.turn(flow, None);
            }
        }
        self.look_at_link();
    }

    /// A link whose other end is gone has no flows.
    fn look_at_link(&mut self) {
        if self.wire.link.closed() && self.linked.swap(false, Ordering::Relaxed) {
            self.drop_flows();
        }
    }

    fn read_outside(&mut self) {
        self.tick();
        for (flow, events) in self.outside.ready() {
            self.outside_ready(flow, events);
        }
    }

    fn heed_members(&mut self, frame: Vec<u8>) {
        self.tick();
        let mut next = Some(frame);
        for _ in 0..FRAMES {
            let Some(frame) = next else { break };
            self.deliver(&frame);
            next = if self.wire.link.ready() { self.outlet.next_now() } else { None };
        }
        if let Some(frame) = next {
            self.deliver(&frame);
        }
        self.look_at_link();
    }

    fn time(&mut self) {
        self.tick();
        while let Some((due, flow)) = self.schedule.first().copied() {
            if due > self.wire.now {
                break;
            }
            self.schedule.remove(&(due, flow));
            self.scheduled.remove(&flow);
            self.flow_due(flow);
        }
    }

    fn event(&mut self, event: Event) {
        self.tick();
        match event {
            Event::Resolved(resolved) => self.resolved(*resolved),
            Event::Asked { message, reply } => self.asked(&message, names::Asker::Stream(reply)),
            Event::EdgeRefused { host, reason } => {
                self.wire.stats.refused += 1;
                self.journal.refused("http", host, None, reason);
            }
        }
    }

    fn command(&mut self, command: Command) {
        self.tick();
        match command {
            Command::Configure { setup, link, done } => {
                drop(done.send(self.configure(*setup, link)));
            }
            Command::Stats(reply) => {
                let mut stats = self.wire.stats.clone();
                stats.connections_now = self.flows.len() as u64;
                drop(reply.send(stats));
            }
            Command::Log { after, limit, reply } => {
                drop(reply.send(self.journal.after(after, limit)));
            }
        }
    }

    fn configure(&mut self, setup: Setup, link: Option<OwnedFd>) -> Result<(), String> {
        if let Some(member) = &setup.member
            && self.shared.switch.is_taken(member, self.place.as_ref())
        {
            return Err(taken(member));
        }
        let now = self.wire.now;
        if let Some(link) = link {
            let link =
                Link::new(link).map_err(|error| format!("the link does not work: {error}"))?;
            self.drop_flows();
            self.wire.link = link;
            self.linked.store(true, Ordering::Relaxed);
        }
        if setup.limits != self.setup.limits {
            self.wire.upward = Bucket::new(setup.limits.bytes_per_s, BURST, now);
            self.wire.downward = Bucket::new(setup.limits.bytes_per_s, BURST, now);
            self.packets = Bucket::new(setup.limits.packets_per_s.into(), 64, now);
        }
        if setup.member != self.setup.member {
            self.place = None;
            let join = |member| self.shared.switch.join(member, self.inlet.clone());
            self.place = setup.member.clone().map(join);
        }
        let edge_changed = setup.edge != self.setup.edge;
        self.setup = setup;
        self.review_flows(edge_changed);
        Ok(())
    }
}

/// What the node is told of a member's place that is another's.
#[must_use]
pub fn taken(member: &ramet_proto::net::Member) -> String {
    format!("another port is member {} or {:?} of this network", member.number, member.name)
}
