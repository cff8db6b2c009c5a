//! One function for each request: check, do or enqueue, answer.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ramet_proto::agent::Identity;
use ramet_proto::control::{
    Answer, Attach, Boot, Code, Failure, Fork, Message, Outcome, Request, Restore, Start, State,
    Status,
};
use vm_memory::{Bytes, GuestAddress};

use super::{Driver, Task, TaskKind};
use crate::control::{Received, Refused, line};
use crate::disk::Disk;
use crate::machine::{Machine, open_volume};
use crate::{fork, hex, restore, stats, sys};

/// Most bytes of memory read or written at once.
const MEMORY_MAX: usize = 64 << 10;

impl Driver {
    pub(super) fn request(&mut self, client: u32, received: Received) {
        let Received { message, descriptors } = received;
        let Message { id, request } = match message {
            Ok(message) => message,
            Err(refused) => {
                let Refused { id, failure } = *refused;
                return self.with_client(client, |client| client.failed(id, failure));
            }
        };
        let asker = Some((client, id));
        let expected = match descriptors_of(&request) {
            Ok(expected) => expected,
            Err(failure) => return self.refuse(asker, failure),
        };
        if !expected.contains(&descriptors.len()) {
            let message = format!(
                "the request came with {} descriptors and needs {}",
                descriptors.len(),
                expected.end()
            );
            return self.refuse(asker, Failure { code: Code::BadDescriptors, message });
        }
        let unfit = match request {
            Request::Plug {} => (!descriptors.iter().all(sys::is_seqpacket))
                .then_some("the descriptor is no seqpacket socket"),
            _ => (!descriptors.iter().all(sys::is_listener))
                .then_some("a descriptor is no listening socket"),
        };
        if let Some(message) = unfit {
            let message = message.into();
            return self.refuse(asker, Failure { code: Code::BadDescriptors, message });
        }
        match self.carry_out(client, id, request, descriptors) {
            Ok(Some(outcome)) => self.answer(asker, outcome),
            Ok(None) => {}
            Err(failure) => self.refuse(asker, failure),
        }
    }

    /// Nothing means that the answer comes later, or never.
    fn carry_out(
        &mut self,
        client: u32,
        id: u64,
        request: Request,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Outcome>, Failure> {
        match request {
            Request::Boot(boot) => self.boot(&boot).map(nothing),
            Request::Restore(restore) => self.restore(restore).map(nothing),
            Request::Status {} => Ok(Some(Outcome::Status(self.status()))),
            Request::Resume {} => self.resume().map(nothing),
            Request::Pause {} => self.begin(client, id, TaskKind::Pause),
            Request::Fork(fork) => {
                self.check_fork(&fork)?;
                let children = fork.children.into_iter().map(|child| child.identity).collect();
                let kind = TaskKind::Fork {
                    children,
                    listeners: descriptors,
                    call: fork.call,
                    resume: fork.resume,
                };
                self.begin(client, id, kind)
            }
            Request::Checkpoint {} => match descriptors.pop() {
                Some(listener) => self.begin(client, id, TaskKind::Checkpoint { listener }),
                None => unreachable!("counted above"),
            },
            Request::Save { directory, sync, only_disks } => {
                self.begin(client, id, TaskKind::Save { directory, sync, only_disks })
            }
            Request::Attach(attach) => self.attach(&attach).map(nothing),
            Request::Detach { slot } => self.detach(slot).map(nothing),
            Request::Plug {} => self.plug(descriptors.pop()).map(nothing),
            Request::Stats {} => self.stats(),
            Request::Console {} => self.console(),
            Request::Connect { port } => self.connect(client, id, port).map(|()| None),
            Request::Subscribe {} => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.subscribed = true;
                }
                Ok(nothing(()))
            }
            Request::RefuseFork { call, message } => {
                self.refuse_call(call, &message);
                Ok(nothing(()))
            }
            Request::ReadMemory { address, length } => self.read_memory(address, length),
            Request::WriteMemory { address, hex } => self.write_memory(address, &hex).map(nothing),
            Request::Kill {} => {
                self.answer(Some((client, id)), Outcome::Nothing {});
                fork::exit(0)
            }
        }
    }

    fn boot(&mut self, boot: &Boot) -> Result<(), Failure> {
        self.expect_empty()?;
        let (machine, running) = Machine::boot(boot)?;
        self.machine = Some(machine);
        self.running = Some(running);
        self.state = State::Running;
        self.adopt_machine(boot.identity.clone())
    }

    fn restore(&mut self, restore: Restore) -> Result<(), Failure> {
        self.expect_empty()?;
        let mut machine = restore::restore(&restore)?;
        if restore.start == Start::Frozen {
            self.machine = Some(machine);
            self.state = State::Frozen;
            return Ok(());
        }
        if machine.agent && restore.identity.is_none() {
            return Err(needs_identity());
        }
        machine.set_answer(ramet_proto::doorbell::WOKEN, restore.identity)?;
        let agent = machine.agent;
        let running = machine
            .start_stopped(Instant::now())
            .map_err(|error| crate::machine::kvm_failed(&error))?;
        self.machine = Some(machine);
        self.running = Some(running);
        self.state = State::Running;
        self.introduced = agent;
        self.adopt_machine(None)
    }

    /// A machine has come to be in this process.
    fn adopt_machine(&mut self, identity: Option<Identity>) -> Result<(), Failure> {
        self.watch_wake().map_err(|error| crate::machine::host("an event", &error))?;
        let agent = self.machine.as_ref().is_some_and(|machine| machine.agent);
        self.ready = !agent;
        if let (true, Some(identity)) = (agent, identity) {
            let kind = TaskKind::Introduce(Box::new(identity));
            self.tasks.push_back(Task { asker: None, kind, asked: Instant::now() });
        }
        Ok(())
    }

    fn expect_empty(&self) -> Result<(), Failure> {
        if self.state == State::Empty {
            return Ok(());
        }
        let message = "this monitor has its machine already; start another one".into();
        Err(Failure { code: Code::WrongState, message })
    }

    fn status(&self) -> Status {
        Status {
            version: ramet_proto::VERSION,
            pid: std::process::id(),
            state: self.state.clone(),
            ready: self.ready,
            generation: self.machine.as_ref().map_or(0, |machine| machine.generation),
        }
    }

    fn resume(&mut self) -> Result<(), Failure> {
        match (&self.state, &mut self.machine, &self.running) {
            (State::Running, ..) => Ok(()),
            (State::Paused, Some(machine), Some(running)) => {
                drop(machine.resume(running));
                machine.notices.wake();
                self.state = State::Running;
                Ok(())
            }
            _ => Err(self.wrong_state("resume")),
        }
    }

    fn attach(&mut self, attach: &Attach) -> Result<(), Failure> {
        let (index, machine) = self.slot(attach.slot, "get a volume")?;
        if !machine.disks[index].is_empty() {
            let message = format!("the slot {} is taken", attach.slot);
            return Err(Failure { code: Code::WrongState, message });
        }
        let layers = machine.disks[index].directory();
        let disk = open_volume(&attach.volume, attach.read_only, layers)?;
        machine.change_medium(index, disk);
        Ok(())
    }

    fn detach(&mut self, slot: u8) -> Result<(), Failure> {
        let (index, machine) = self.slot(slot, "give a volume back")?;
        if machine.disks[index].is_empty() {
            return Ok(());
        }
        machine.flush()?;
        let empty = Disk::slot(machine.disks[index].directory());
        machine.change_medium(index, empty);
        Ok(())
    }

    fn plug(&mut self, link: Option<OwnedFd>) -> Result<(), Failure> {
        let wrong = self.wrong_state("be connected to a network");
        let machine = self.machine.as_mut().ok_or(wrong)?;
        let Some(net) = &mut machine.net else {
            let message = "this machine has no network device".into();
            return Err(Failure { code: Code::WrongState, message });
        };
        let plugged = net.plug(link, &self.poller, super::NET);
        plugged.map_err(|error| crate::machine::host("the link", &error))
    }

    /// The device of a slot of a machine that runs.
    fn slot(&mut self, slot: u8, what: &str) -> Result<(usize, &mut Machine), Failure> {
        if self.state != State::Running {
            return Err(self.wrong_state(what));
        }
        let wrong = self.wrong_state(what);
        let machine = self.machine.as_mut().ok_or(wrong)?;
        Ok((machine.slot_index(slot)?, machine))
    }

    /// Enqueues what needs the guest at rest.
    fn begin(&mut self, client: u32, id: u64, kind: TaskKind) -> Result<Option<Outcome>, Failure> {
        match (&self.state, &kind) {
            (State::Paused, TaskKind::Pause) => return Ok(nothing(())),
            (State::Frozen, TaskKind::Pause) => return Err(self.wrong_state("pause")),
            (State::Running | State::Paused | State::Frozen, _) => {}
            _ => return Err(self.wrong_state("fork, pause or save")),
        }
        let agent = self.machine.as_ref().is_some_and(|machine| machine.agent);
        if self.state == State::Running && agent && !self.ready && !self.introduced {
            let message = "the guest is not ready yet; wait for it and try again".into();
            return Err(Failure { code: Code::GuestUnresponsive, message });
        }
        self.enqueue(Task { asker: Some((client, id)), kind, asked: Instant::now() });
        Ok(None)
    }

    fn check_fork(&self, fork: &Fork) -> Result<(), Failure> {
        let agent = self.machine.as_ref().is_some_and(|machine| machine.agent);
        if agent && fork.children.iter().any(|child| child.identity.is_none()) {
            return Err(needs_identity());
        }
        match fork.call {
            Some(call) if !self.calls.contains(&call) => {
                let message = format!("the guest did not make call {call}, or it was answered");
                Err(Failure { code: Code::BadValue, message })
            }
            _ => Ok(()),
        }
    }

    fn stats(&self) -> Result<Option<Outcome>, Failure> {
        let Some(machine) = &self.machine else { return Err(self.wrong_state("tell figures")) };
        let mut stats =
            stats::collect(machine).map_err(|error| crate::machine::host("figures", &error))?;
        stats.last_pause_us = self.last_pause_us;
        stats.entered_us = self.born.as_ref().map(|born| born.entered_us);
        stats.ready_us = self.born.as_ref().map(|born| born.ready_us);
        Ok(Some(Outcome::Stats(Box::new(stats))))
    }

    fn console(&self) -> Result<Option<Outcome>, Failure> {
        let Some(machine) = &self.machine else { return Err(self.wrong_state("show a console")) };
        let (written, bytes) = machine.bus.console_tail();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(Outcome::Console { written, text }))
    }

    /// Hands the client's connection over to the stream device.
    fn connect(&mut self, number: u32, id: u64, port: u32) -> Result<(), Failure> {
        if self.state != State::Running {
            return Err(self.wrong_state("connect"));
        }
        let Some(machine) = &mut self.machine else { return Ok(()) };
        if !machine.vsock.has_room() {
            let message = "too many connections to this machine".into();
            return Err(Failure { code: Code::Busy, message });
        }
        let message = format!("nothing listens on port {port} of the guest, or it does not answer");
        let failure = Failure { code: Code::ConnectionRefused, message };
        if !machine.bus.virtio(machine.vsock_index()).queues().live() {
            return Err(failure);
        }
        let Some(client) = self.clients.remove(&number) else { return Ok(()) };
        self.poller.remove(client.socket());
        let Some(socket) = client.into_stream() else { return Ok(()) };
        let refusal = line(&Answer::Failed { id: Some(id), failure });
        let greeting = line(&Answer::Done { id, outcome: Outcome::Nothing {} });
        machine.vsock.open(socket, port, greeting, refusal);
        Ok(())
    }

    fn read_memory(&self, address: u64, length: u32) -> Result<Option<Outcome>, Failure> {
        let length = length as usize;
        let machine = self.machine_for_memory(length)?;
        let mut bytes = vec![0; length];
        let read = machine.ram.guest().read_slice(&mut bytes, GuestAddress(address));
        read.map_err(|error| no_memory(address, &error))?;
        Ok(Some(Outcome::Memory { hex: hex::encode(&bytes) }))
    }

    fn write_memory(&self, address: u64, text: &str) -> Result<(), Failure> {
        let bytes = hex::decode(text).ok_or_else(|| Failure {
            code: Code::BadValue,
            message: "the bytes are not in hex".into(),
        })?;
        let machine = self.machine_for_memory(bytes.len())?;
        let written = machine.ram.guest().write_slice(&bytes, GuestAddress(address));
        written.map_err(|error| no_memory(address, &error))
    }

    fn machine_for_memory(&self, length: usize) -> Result<&Machine, Failure> {
        if length > MEMORY_MAX {
            let message = format!("{length} bytes are too many; at most {MEMORY_MAX} at once");
            return Err(Failure { code: Code::BadValue, message });
        }
        match (&self.machine, &self.state) {
            (Some(machine), State::Running | State::Paused | State::Frozen) => Ok(machine),
            _ => Err(self.wrong_state("show its memory")),
        }
    }

    fn wrong_state(&self, what: &str) -> Failure {
        let state = match &self.state {
            State::Empty => "has not booted".to_owned(),
            State::Running => "is running".to_owned(),
            State::Paused => "is paused".to_owned(),
            State::Frozen => "is frozen".to_owned(),
            State::Stopped(stop) => format!("is over ({})", super::describe(stop)),
        };
        Failure { code: Code::WrongState, message: format!("a machine that {state} cannot {what}") }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as `carry_out` returns it")]
fn nothing((): ()) -> Option<Outcome> {
    Some(Outcome::Nothing {})
}

/// How many descriptors a request comes with.
fn descriptors_of(request: &Request) -> Result<RangeInclusive<usize>, Failure> {
    match request {
        Request::Fork(fork) => check_count(fork.children.len()).map(|count| count..=count),
        Request::Checkpoint {} => Ok(1..=1),
        Request::Plug {} => Ok(0..=1),
        _ => Ok(0..=0),
    }
}

fn check_count(count: usize) -> Result<usize, Failure> {
    let most = ramet_proto::control::FORK_MAX;
    if (1..=most).contains(&count) {
        return Ok(count);
    }
    let message = format!("a fork makes 1 to {most} children, not {count}");
    Err(Failure { code: Code::BadValue, message })
}

fn needs_identity() -> Failure {
    let message = "a machine with an agent needs an identity for each new one".into();
    Failure { code: Code::BadValue, message }
}

fn no_memory(address: u64, error: &vm_memory::GuestMemoryError) -> Failure {
    let message = format!("{address:#x} is not in the guest's memory: {error}");
    Failure { code: Code::BadValue, message }
}
