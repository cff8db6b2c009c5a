//! The one owner of a machine: it takes requests, works the devices, and decides what happens next.
//!
//! A single thread waits for everything that can happen: a client's request, a kick or an exit of a vCPU, a
//! byte for the guest, a child's report, a deadline. What needs the guest at rest ([`Task`]) waits in a queue and
//! is done one at a time:
//!
//! ```text
//!            has an agent                at the doorbell
//!  queued ───────────────▶ rendezvous ───────────────────▶ stop ─▶ do it ─▶ go on
//!     └───── has none, or is stopped already ───────────────┘
//! ```
//!
//! fork(2) happens here. The child returns from it into the same loop, as the owner of its own machine, with
//! nothing of the source's but memory (see [`Driver::be_born`]).

mod children;
mod requests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramet_proto::agent::{Failure as AgentFailure, Identity, ToAgent, ToMonitor};
use ramet_proto::control::{Code, Event, Failure, Outcome, State, Stop};
use ramet_proto::doorbell::{NOT_EXPECTED, WOKEN};

use crate::birth::Birth;
use crate::control::Client;
use crate::devices::lock;
use crate::devices::virtio::{QUEUES_MAX, block, rng, vsock};
use crate::machine::{Machine, Running};
use crate::poller::{Interest, Poller, READ};

pub use children::OwnBirth;

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const NET: u64 = 2;
const CLIENT: u64 = 1 << 32;
const BIRTH: u64 = 1 << 33;

/// Clients at once.
const CLIENTS_MAX: usize = 256;
/// Tasks that wait.
const TASKS_MAX: usize = 64;
/// Guest's own fork calls that wait for an answer.
const CALLS_MAX: usize = 16;
/// The guest must come to the doorbell within this time. Generous, since an emulated host is slow.
const RENDEZVOUS_DEADLINE: Duration = Duration::from_secs(20);
/// A task that needs a fork waits this long for the rest of the machine's files.
const WHOLE_DEADLINE: Duration = Duration::from_secs(120);
/// Children must be ready within this time.
const BIRTH_DEADLINE: Duration = Duration::from_secs(60);
/// A save must be written within this time.
const SAVE_DEADLINE: Duration = Duration::from_secs(600);

/// Something that is done with the guest at rest.
struct Task {
    /// Who asked; nobody for the machine's own.
    asker: Option<(u32, u64)>,
    kind: TaskKind,
    asked: Instant,
}

enum TaskKind {
    /// Tell the agent who it is, after boot.
    Introduce(Box<Identity>),
    Pause,
    Fork {
        children: Vec<Option<Identity>>,
        listeners: Vec<OwnedFd>,
        call: Option<u64>,
        resume: bool,
    },
    Checkpoint {
        listener: OwnedFd,
    },
    Save {
        directory: String,
        sync: bool,
        only_disks: bool,
    },
}

impl TaskKind {
    /// Whether it is done by fork(2).
    fn forks(&self) -> bool {
        matches!(self, Self::Fork { .. } | Self::Checkpoint { .. } | Self::Save { .. })
    }
}

/// The guest was asked to come to the doorbell.
struct Meeting {
    task: Task,
    deadline: Instant,
}

/// The owner.
pub struct Driver {
    poller: Poller,
    listener: UnixListener,
    clients: HashMap<u32, Client>,
    next_client: u32,
    machine: Option<Machine>,
    running: Option<Running>,
    state: State,
    /// The agent has its identity.
    ready: bool,
    /// Waiting for the agent's acknowledgement.
    introduced: bool,
    tasks: VecDeque<Task>,
    meeting: Option<Meeting>,
    meetings: u64,
    calls: Vec<u64>,
    births: HashMap<u32, Birth>,
    next_birth: u32,
    own_birth: Option<OwnBirth>,
    last_pause_us: Option<u64>,
    born: Option<ramet_proto::control::Born>,
    /// This process is another one than when the loop last waited.
    reborn: bool,
}

impl Driver {
    /// Owns nothing yet, and listens.
    pub fn new(listener: UnixListener) -> io::Result<Self> {
        let poller = Poller::new()?;
        listener.set_nonblocking(true)?;
        poller.add(&listener, LISTENER, READ)?;
        Ok(Self {
            poller,
            listener,
            clients: HashMap::new(),
            next_client: 0,
            machine: None,
            running: None,
            state: State::Empty,
            ready: false,
            introduced: false,
            tasks: VecDeque::new(),
            meeting: None,
            meetings: 0,
            calls: Vec::new(),
            births: HashMap::new(),
            next_birth: 0,
            own_birth: None,
            last_pause_us: None,
            born: None,
            reborn: false,
        })
    }

    /// Until the process is killed.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.reborn = false;
            let timeout =
                self.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
            let events = self.poller.wait(timeout)?;
            for event in events {
                match event.token {
                    LISTENER => self.accept(),
                    WAKE => self.heed_vcpus(),
                    NET => {
                        let net = self.machine.as_mut().and_then(|machine| machine.net.as_mut());
                        net.into_iter().for_each(|net| net.ready(event.read, event.write));
                    }
                    token if token & vsock::TOKEN_BIT != 0 => {
                        let poller = &self.poller;
                        if let Some(machine) = &mut self.machine {
                            machine.vsock.ready(token, event.write, event.read, poller);
                        }
                    }
                    token if token & BIRTH != 0 => self.heed_birth(low(token)),
                    token => self.heed_client(low(token), event.write),
                }
                if self.reborn {
                    break;
                }
            }
            self.keep_deadlines();
            while self.work_streams() {}
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let meeting = self.meeting.as_ref().map(|meeting| meeting.deadline);
        let births = self.births.values().map(|birth| birth.deadline).min();
        let streams = self.machine.as_ref().and_then(|machine| machine.vsock.deadline());
        [meeting, births, streams, self.whole_deadline()].into_iter().flatten().min()
    }

    /// When the first task has waited long enough for the machine's files.
    fn whole_deadline(&self) -> Option<Instant> {
        self.machine.as_ref()?.pager.as_ref()?;
        let task = self.tasks.front().filter(|task| task.kind.forks())?;
        Some(task.asked + WHOLE_DEADLINE)
    }

    fn keep_deadlines(&mut self) {
        let now = Instant::now();
        if self.whole_deadline().is_some_and(|deadline| deadline <= now)
            && let Some(task) = self.tasks.pop_front()
        {
            let message =
                "memory and disks of this machine are still on their way; try again later";
            self.refuse_task(task, Failure { code: Code::Busy, message: message.into() });
            self.next_task();
        }
        if self.meeting.as_ref().is_some_and(|meeting| meeting.deadline <= now)
            && let Some(meeting) = self.meeting.take()
        {
            let message = format!(
                "the guest did not come to the doorbell within {} s; it may be hung or out of memory",
                RENDEZVOUS_DEADLINE.as_secs()
            );
            self.refuse_task(meeting.task, Failure { code: Code::GuestUnresponsive, message });
            self.next_task();
        }
        let late: Vec<u32> =
            self.births.iter().filter(|(_, b)| b.deadline <= now).map(|(n, _)| *n).collect();
        for number in late {
            if let Some(birth) = self.births.get_mut(&number) {
                birth.give_up();
            }
            self.finish_birth(number);
        }
        if let Some(machine) = &mut self.machine {
            machine.vsock.expire(now, &self.poller);
        }
    }

    fn accept(&mut self) {
        let Ok((socket, _)) = self.listener.accept() else { return };
        let Ok(client) = Client::new(socket) else { return };
        if self.clients.len() >= CLIENTS_MAX {
            return;
        }
        let number = self.next_client;
        self.next_client = self.next_client.wrapping_add(1);
        if self.poller.add(client.socket(), CLIENT | u64::from(number), READ).is_ok() {
            self.clients.insert(number, client);
        }
    }

    fn heed_client(&mut self, number: u32, writable: bool) {
        if writable {
            self.with_client(number, |client| client.flush());
        }
        loop {
            let Some(client) = self.clients.get_mut(&number) else { return };
            match client.receive() {
                Ok(Some(received)) => self.request(number, received),
                Ok(None) => return,
                Err(_gone) => return self.hang_up(number),
            }
            if self.reborn {
                return;
            }
        }
    }

    /// Does something with a client that may turn out to be gone.
    fn with_client(
        &mut self,
        number: u32,
        act: impl FnOnce(&mut Client) -> Result<(), crate::control::Gone>,
    ) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if act(client).is_err() {
            return self.hang_up(number);
        }
        let interest = Interest { read: true, write: client.has_output(), once: false };
        // It was added when it came.
        let _watched = self.poller.modify(client.socket(), CLIENT | u64::from(number), interest);
    }

    fn hang_up(&mut self, number: u32) {
        if let Some(client) = self.clients.remove(&number) {
            self.poller.remove(client.socket());
        }
    }

    fn answer(&mut self, asker: Option<(u32, u64)>, outcome: Outcome) {
        if let Some((client, id)) = asker {
            self.with_client(client, |client| client.done(id, outcome));
        }
    }

    fn refuse(&mut self, asker: Option<(u32, u64)>, failure: Failure) {
        if let Some((client, id)) = asker {
            self.with_client(client, |client| client.failed(Some(id), failure));
        }
    }

    fn refuse_task(&mut self, task: Task, failure: Failure) {
        if let TaskKind::Fork { call: Some(call), .. } = task.kind {
            self.refuse_call(call, &failure.message);
        }
        self.refuse(task.asker, failure);
    }

    fn tell_all(&mut self, event: &Event) {
        for number in self.clients.keys().copied().collect::<Vec<_>>() {
            self.with_client(number, |client| client.event(event));
        }
    }

    /// What vCPU threads have noted.
    fn heed_vcpus(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        machine.notices.hush();
        // The queues of a stopped machine wait: what they ask for would change memory after the vCPUs were
        // captured, and the interrupt would reach the source only.
        let kicked = match self.state {
            State::Running => machine.notices.kicked.swap(0, Ordering::AcqRel),
            _ => 0,
        };
        let failures = work_disks(machine, kicked);
        for (disk, message) in failures {
            self.tell_all(&Event::DiskFailed { disk, message });
        }
        // A guest that has run and is over already was born all the same.
        self.heed_entry();
        self.heed_stop();
        self.heed_acknowledgement();
        self.heed_bell();
        if !self.reborn && self.machine.as_ref().is_some_and(|machine| machine.pager.is_some()) {
            self.next_task();
        }
    }

    fn heed_stop(&mut self) {
        let Some(stop) = self.machine.as_ref().and_then(|machine| machine.notices.take_stop())
        else {
            return;
        };
        self.end_machine(stop);
    }

    /// The guest is over. Its memory is given back, and who waits for it is told.
    fn end_machine(&mut self, stop: Stop) {
        if let Some(running) = self.running.take() {
            running.vcpus.quit();
        }
        let Some(machine) = &mut self.machine else { return };
        drop(machine.bus.interrupts.connect(None));
        machine.ram.discard();
        self.ready = false;
        let failure = Failure {
            code: Code::WrongState,
            message: format!("the guest is over: {}", describe(&stop)),
        };
        self.state = State::Stopped(stop.clone());
        let meeting = self.meeting.take().map(|meeting| meeting.task);
        for task in meeting.into_iter().chain(std::mem::take(&mut self.tasks)) {
            self.refuse_task(task, failure.clone());
        }
        self.fail_own_birth(failure);
        self.tell_all(&Event::Stopped(stop));
    }

    /// The agent has taken its identity.
    fn heed_acknowledgement(&mut self) {
        let Some(machine) = &self.machine else { return };
        if !machine.notices.acknowledged.swap(false, Ordering::AcqRel) || !self.introduced {
            return;
        }
        lock(&machine.bus.doorbell).clear();
        self.introduced = false;
        self.ready = true;
        self.settle_own_birth(self.age_us());
        self.tell_all(&Event::Ready {});
        self.next_task();
    }

    /// The guest is at the doorbell.
    fn heed_bell(&mut self) {
        let Some(machine) = &self.machine else { return };
        let bell = machine.notices.bell.swap(0, Ordering::AcqRel);
        let Some(vcpu) = bell.checked_sub(1).and_then(|vcpu| u8::try_from(vcpu).ok()) else {
            return;
        };
        let Some(meeting) = self.meeting.take() else {
            return self.answer_bell(vcpu, NOT_EXPECTED);
        };
        match meeting.task.kind {
            TaskKind::Introduce(identity) => self.introduce(vcpu, *identity),
            _ => self.perform(meeting.task, Some(vcpu)),
        }
    }

    fn introduce(&mut self, vcpu: u8, identity: Identity) {
        let Some(machine) = &self.machine else { return };
        match machine.load_identity(identity) {
            Ok(()) => {
                self.introduced = true;
                self.answer_bell(vcpu, WOKEN);
            }
            Err(failure) => {
                self.answer_bell(vcpu, NOT_EXPECTED);
                self.end_machine(Stop::Failure { message: failure.message });
            }
        }
    }

    fn answer_bell(&self, vcpu: u8, value: u32) {
        if let Some(running) = &self.running {
            running.vcpus.answer_bell(usize::from(vcpu), value);
        }
    }

    /// Streams and random numbers, and what the agent says. True if it said something, since the answer may be
    /// waiting to be sent.
    fn work_streams(&mut self) -> bool {
        // A stopped machine's memory must stay as it was when its vCPUs were captured.
        if self.state != State::Running {
            return false;
        }
        let Some(machine) = &mut self.machine else { return false };
        let index = machine.vsock_index();
        let transport = machine.bus.virtio(index);
        if machine.vsock.serve(transport, machine.ram.guest(), &self.poller) {
            machine.bus.interrupt(index);
        }
        let index = machine.net_index();
        if let Some(net) = &mut machine.net
            && net.serve(machine.bus.virtio(index), machine.ram.guest(), &self.poller, NET)
        {
            machine.bus.interrupt(index);
        }
        let index = machine.rng_index();
        if rng::serve_kick(machine.bus.virtio(index), machine.ram.guest()) {
            machine.bus.interrupt(index);
        }
        let notices = machine.vsock.take_notices();
        let said = !notices.is_empty();
        for notice in notices {
            self.heed_agent(notice);
        }
        said && !self.reborn
    }

    fn heed_agent(&mut self, notice: vsock::Notice) {
        match notice {
            vsock::Notice::Link(ToMonitor::Hello { version }) => {
                if version != ramet_proto::VERSION {
                    let message = format!("the guest's agent speaks version {version}");
                    return self.end_machine(Stop::Failure { message });
                }
                self.next_task();
            }
            vsock::Notice::Link(ToMonitor::Fork { call, count }) => self.guest_calls(call, count),
            vsock::Notice::LinkUp => {}
            vsock::Notice::LinkDown => self.calls.clear(),
        }
    }

    /// A process in the guest asks for a fork.
    fn guest_calls(&mut self, call: u64, count: u32) {
        let heard = self.clients.values().any(|client| client.subscribed);
        if !heard {
            return self.refuse_call(call, "nobody outside answers fork calls of this machine");
        }
        if self.calls.len() >= CALLS_MAX {
            return self.refuse_call(call, "too many fork calls wait already");
        }
        self.calls.push(call);
        self.tell_all(&Event::GuestFork { call, count });
    }

    fn refuse_call(&mut self, call: u64, message: &str) {
        self.calls.retain(|waiting| *waiting != call);
        let failure = AgentFailure { code: "refused".into(), message: message.to_owned() };
        if let Some(machine) = &mut self.machine {
            // Without a link there is nobody to tell.
            let _told = machine.vsock.tell(&ToAgent::Refused { call, failure });
        }
    }

    /// Puts a task into the queue, and starts it if it is the first.
    fn enqueue(&mut self, task: Task) {
        if self.tasks.len() >= TASKS_MAX {
            let message = "too many requests wait for this machine; try again".to_owned();
            return self.refuse_task(task, Failure { code: Code::Busy, message });
        }
        self.tasks.push_back(task);
        self.next_task();
    }

    /// Begins the next task, if none is under way.
    fn next_task(&mut self) {
        while self.meeting.is_none() && !self.introduced {
            let Some(machine) = &mut self.machine else { return };
            let forks = self.tasks.front().is_some_and(|task| task.kind.forks());
            if forks && !machine.is_whole() {
                return; // the pager wakes this thread when it is
            }
            let stopped = matches!(self.state, State::Paused | State::Frozen);
            if machine.agent && !stopped {
                self.call_meeting();
                return;
            }
            let Some(task) = self.tasks.pop_front() else { return };
            self.perform(task, None);
            if self.reborn {
                return;
            }
        }
    }

    /// Asks the guest to come to the doorbell, for the first task in the queue.
    fn call_meeting(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        let Some(task) = self.tasks.front() else { return };
        let call = match task.kind {
            TaskKind::Fork { call, .. } => call,
            _ => None,
        };
        self.meetings += 1;
        let rendezvous = ToAgent::Rendezvous { meeting: self.meetings, call };
        let introduction = matches!(task.kind, TaskKind::Introduce(_));
        if machine.vsock.tell(&rendezvous)
            && let Some(task) = self.tasks.pop_front()
        {
            self.meeting = Some(Meeting { task, deadline: Instant::now() + RENDEZVOUS_DEADLINE });
        } else if !introduction && let Some(task) = self.tasks.pop_front() {
            let message = "the guest's agent is not there; wait until the machine is ready".into();
            self.refuse_task(task, Failure { code: Code::GuestUnresponsive, message });
        }
    }

    fn watch_wake(&self) -> io::Result<()> {
        let Some(machine) = &self.machine else { return Ok(()) };
        self.poller.add(&Raw(machine.notices.wake_descriptor()), WAKE, READ)
    }
}

struct Raw(RawFd);

impl AsRawFd for Raw {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Works the disks whose queues were kicked. What the host refused.
fn work_disks(machine: &mut Machine, kicked: u64) -> Vec<(u32, String)> {
    let mut failures = Vec::new();
    for (index, disk) in machine.disks.iter_mut().enumerate() {
        if kicked >> (index * QUEUES_MAX) & ((1 << QUEUES_MAX) - 1) == 0 {
            continue;
        }
        let served = block::serve_kick(machine.bus.virtio(index), machine.ram.guest(), disk);
        if served.interrupt {
            machine.bus.interrupt(index);
        }
        if let Some(message) = served.failure {
            failures.push((u32::try_from(index).unwrap_or(0), message));
        }
    }
    failures
}

fn describe(stop: &Stop) -> String {
    match stop {
        Stop::Shutdown => "it powered off".into(),
        Stop::Reboot => "it rebooted".into(),
        Stop::Panic => "its kernel panicked".into(),
        Stop::TripleFault => "its processor gave up (triple fault)".into(),
        Stop::Failure { message } => message.clone(),
    }
}

fn low(token: u64) -> u32 {
    u32::try_from(token & 0xffff_ffff).unwrap_or(0)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
