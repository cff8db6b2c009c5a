//! Tasks that are done with the guest at rest; above all, fork.
//!
//! [`Driver::perform`] is the whole pause: stop, capture, fork(2), go on. Everything that can be prepared is
//! prepared before it, everything that can wait comes after it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::Ordering;
use std::time::Instant;

use ramet_proto::agent::Identity;
use ramet_proto::control::{Born, Code, Failure, Forked, Outcome, State, Stop};
use ramet_proto::doorbell::SOURCE;

use super::{BIRTH, BIRTH_DEADLINE, Driver, LISTENER, SAVE_DEADLINE, Task, TaskKind, micros};
use crate::birth::{Begun, Birth, Purpose, Report, Reporter, Settled, channel};
use crate::fork::{Side, exit, fork, keep_only};
use crate::machine::{host, kvm_failed};
use crate::poller::{Poller, READ};
use crate::save;

/// This process is a child that has not reported yet.
pub struct OwnBirth {
    index: usize,
    reporter: Reporter,
    since: Instant,
}

/// What children are made for.
enum Brood {
    Run { children: Vec<Option<Identity>>, listeners: Vec<OwnedFd>, resume: bool },
    Keep { listener: OwnedFd },
    Write { directory: save::Directory },
}

impl Brood {
    fn count(&self) -> usize {
        match self {
            Self::Run { children, .. } => children.len(),
            Self::Keep { .. } | Self::Write { .. } => 1,
        }
    }
}

impl Driver {
    /// Does a task. `bell` is the vCPU at the doorbell, if the guest came there.
    pub(super) fn perform(&mut self, task: Task, bell: Option<u8>) {
        let Task { asker, kind, asked } = task;
        let rendezvous_us = micros(asked.elapsed());
        let (brood, call) = match kind {
            TaskKind::Introduce(_) => return,
            TaskKind::Pause => return self.pause(asker, bell),
            TaskKind::Fork { children, listeners, call, resume } => {
                (Ok(Brood::Run { children, listeners, resume }), call)
            }
            TaskKind::Checkpoint { listener } => (Ok(Brood::Keep { listener }), None),
            TaskKind::Save { directory, sync, only_disks } => {
                let made = save::Directory::make(&directory, sync, only_disks);
                (made.map(|directory| Brood::Write { directory }), None)
            }
        };
        self.calls.retain(|waiting| Some(*waiting) != call);
        let prepared = brood.and_then(|brood| {
            let ends = channel().map_err(|error| host("a socket", &error))?;
            Ok((brood, ends))
        });
        match prepared {
            Ok((brood, (reporter, reader))) => {
                let purpose = match brood {
                    Brood::Write { .. } => Purpose::Save,
                    _ => Purpose::Fork,
                };
                let time = match purpose {
                    Purpose::Save => SAVE_DEADLINE,
                    Purpose::Fork => BIRTH_DEADLINE,
                };
                let (client, id) = asker.unwrap_or_default();
                let deadline = Instant::now() + time;
                let begun = Begun { client, id, purpose, deadline, rendezvous_us };
                self.multiply(begun, brood, bell, reporter, reader);
            }
            Err(failure) => {
                if let Some(vcpu) = bell {
                    self.answer_bell(vcpu, SOURCE);
                }
                self.refuse(asker, failure);
            }
        }
        if !self.reborn {
            self.next_task();
        }
    }

    /// Stops the vCPUs. Volumes are on the disk then: whoever ends the machine loses nothing of them.
    fn pause(&mut self, asker: Option<(u32, u64)>, bell: Option<u8>) {
        match self.rest(bell) {
            Ok(()) => {
                if let Err(failure) = self.flush_volumes() {
                    self.refuse(asker, failure);
                    return self.next_task();
                }
                self.state = State::Paused;
                self.answer(asker, Outcome::Nothing {});
                self.next_task();
            }
            Err(failure) => self.refuse(asker, failure),
        }
    }

    /// If it fails, the machine runs on.
    fn flush_volumes(&mut self) -> Result<(), Failure> {
        let (Some(machine), Some(running)) = (&mut self.machine, &self.running) else {
            return Ok(());
        };
        let flushed = machine.flush();
        if flushed.is_err() {
            drop(machine.resume(running));
            machine.notices.wake();
        }
        flushed
    }

    /// Stops the vCPUs, if they run. On failure the machine is over.
    fn rest(&mut self, bell: Option<u8>) -> Result<(), Failure> {
        let (State::Running, Some(machine), Some(running)) =
            (&self.state, &mut self.machine, &self.running)
        else {
            return Ok(());
        };
        let Err(message) = machine.stop(running, bell) else { return Ok(()) };
        // The guest may have ended by itself at that very moment; then that is the reason.
        let stop = machine.notices.take_stop();
        let failure = Failure { code: Code::WrongState, message: message.clone() };
        self.end_machine(stop.unwrap_or(Stop::Failure { message }));
        Err(failure)
    }

    /// One pause, one fork(2).
    fn multiply(
        &mut self,
        begun: Begun,
        brood: Brood,
        bell: Option<u8>,
        reporter: Reporter,
        reader: UnixStream,
    ) {
        let stopped_at = Instant::now();
        let asker = Some((begun.client, begun.id));
        if let Err(failure) = self.rest(bell) {
            return self.refuse(asker, failure);
        }
        let resume =
            self.state == State::Paused && matches!(brood, Brood::Run { resume: true, .. });
        let goes_on = self.state == State::Running || resume;
        let (Some(machine), running) = (&mut self.machine, &self.running) else { return };
        if let Some(running) = running {
            running.vcpus.assert_parked();
        }
        machine.disks.iter_mut().for_each(crate::disk::Disk::freeze);
        let fork_at = Instant::now();
        let side = fork();
        if matches!(side, Ok(Side::Child)) {
            std::mem::forget(reader);
            return self.be_born(brood, reporter, stopped_at);
        }
        let fork_us = micros(fork_at.elapsed());
        let captured = match running {
            Some(running) if goes_on => Some(machine.resume(running)),
            _ => None,
        };
        let pause_us = micros(stopped_at.elapsed());
        drop(captured);
        if resume {
            machine.notices.wake();
            self.state = State::Running;
        }
        match side {
            Ok(Side::Parent { child }) => {
                self.last_pause_us = Some(pause_us);
                let mut birth = Birth::new(begun, reader, brood.count(), child);
                (birth.pause_us, birth.fork_us) = (pause_us, fork_us);
                self.await_birth(birth);
            }
            Ok(Side::Child) => unreachable!("it has left above"),
            Err(error) => self.refuse(asker, host("a process", &error)),
        }
    }

    fn await_birth(&mut self, birth: Birth) {
        let number = self.next_birth;
        self.next_birth = self.next_birth.wrapping_add(1);
        if let Err(error) = self.poller.add(birth.socket(), BIRTH | u64::from(number), READ) {
            let mut birth = birth;
            birth.give_up();
            return self.refuse(Some((birth.client, birth.id)), host("an event", &error));
        }
        self.births.insert(number, birth);
    }

    pub(super) fn heed_birth(&mut self, number: u32) {
        if self.births.get_mut(&number).is_some_and(Birth::read) {
            self.finish_birth(number);
        }
    }

    pub(super) fn finish_birth(&mut self, number: u32) {
        let Some(birth) = self.births.remove(&number) else { return };
        self.poller.remove(birth.socket());
        let asker = Some((birth.client, birth.id));
        let (rendezvous_us, pause_us, fork_us) =
            (birth.rendezvous_us, birth.pause_us, birth.fork_us);
        let known = self.clients.contains_key(&birth.client);
        match birth.purpose {
            Purpose::Fork => {
                let born = |settled| match settled {
                    Settled::Born(born) => born,
                    Settled::Saved(_) => unreachable!("children of a fork do not save"),
                };
                let outcomes = birth.outcomes().into_iter();
                let children: Vec<Result<Born, Failure>> =
                    outcomes.map(|outcome| outcome.map(born)).collect();
                if !known {
                    end_unknown(&children);
                }
                let forked = Forked { rendezvous_us, pause_us, fork_us, children };
                self.answer(asker, Outcome::Forked(forked));
            }
            Purpose::Save => match birth.outcomes().pop() {
                Some(Ok(Settled::Saved(mut saved))) => {
                    saved.pause_us = pause_us;
                    self.answer(asker, Outcome::Saved(saved));
                }
                Some(Err(failure)) => self.refuse(asker, failure),
                Some(Ok(Settled::Born(_))) | None => unreachable!("a writer saves or fails"),
            },
        }
    }

    /// In the child: becomes what it was made for, or reports why not and ends.
    fn be_born(&mut self, brood: Brood, mut reporter: Reporter, stopped_at: Instant) {
        self.reborn = true;
        let (index, identity, listener, role) = match brood {
            Brood::Write { directory } => self.write_and_exit(&directory, reporter),
            Brood::Keep { listener } => (0, None, listener, Role::Keep),
            Brood::Run { children, listeners, .. } => {
                let index = fork_siblings(children.len(), &mut reporter);
                let identity = children.into_iter().nth(index).flatten();
                (index, identity, pick(listeners, index), Role::Run)
            }
        };
        let settled = self
            .leave_source(listener, &reporter)
            .map_err(|error| host("what a child needs", &error))
            .and_then(|()| self.settle_in(index, identity, role, stopped_at));
        if let Err(failure) = settled {
            // Without a source there is nobody to tell.
            let _gone = reporter.report(Report::Failed { index, failure });
            exit(1);
        }
        self.own_birth = Some(OwnBirth { index, reporter, since: stopped_at });
        if role == Role::Keep {
            self.settle_own_birth(micros(stopped_at.elapsed()));
        }
    }

    /// Forgets and closes whatever belongs to the source, and makes what a process needs of its own.
    fn leave_source(&mut self, listener: OwnedFd, reporter: &Reporter) -> io::Result<()> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        std::mem::forget(std::mem::take(&mut self.clients));
        std::mem::forget(std::mem::take(&mut self.births));
        std::mem::forget(std::mem::take(&mut self.tasks));
        std::mem::forget(self.running.take());
        std::mem::forget(machine.bus.interrupts.connect(None));
        machine.disown_connections();
        machine.disks.iter_mut().for_each(crate::disk::Disk::disown);
        self.calls.clear();
        let own = [listener.as_raw_fd(), reporter.socket().as_raw_fd()];
        keep_only(machine.descriptors().into_iter().chain(own))?;
        machine.notices.renew()?;
        std::mem::forget(std::mem::replace(&mut self.poller, Poller::new()?));
        std::mem::forget(std::mem::replace(&mut self.listener, UnixListener::from(listener)));
        self.listener.set_nonblocking(true)?;
        self.poller.add(&self.listener, LISTENER, READ)?;
        self.watch_wake()
    }

    fn settle_in(
        &mut self,
        index: usize,
        identity: Option<Identity>,
        role: Role,
        stopped_at: Instant,
    ) -> Result<(), Failure> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        machine.generation += 1;
        (self.last_pause_us, self.born) = (None, None);
        if role == Role::Keep {
            self.state = State::Frozen;
            return Ok(());
        }
        machine.set_answer(u32::try_from(index + 1).unwrap_or(u32::MAX), identity)?;
        let running = machine.start_stopped(stopped_at).map_err(|error| kvm_failed(&error))?;
        self.running = Some(running);
        self.state = State::Running;
        self.introduced = machine.agent;
        self.ready = !machine.agent;
        Ok(())
    }

    /// A vCPU of this new machine has entered the guest; without an agent that is all there is.
    pub(super) fn heed_entry(&mut self) {
        let Some(machine) = &self.machine else { return };
        let entered_ns = machine.notices.entered_ns.load(Ordering::Acquire);
        if entered_ns != 0 && !machine.agent {
            self.settle_own_birth(entered_ns / 1000);
        }
    }

    /// This child is ready: tells the source, once.
    pub(super) fn settle_own_birth(&mut self, ready_us: u64) {
        let Some(OwnBirth { index, mut reporter, .. }) = self.own_birth.take() else { return };
        let entered = self.machine.as_ref().map(|m| m.notices.entered_ns.load(Ordering::Acquire));
        let entered_us = entered.filter(|ns| *ns != 0).map_or(ready_us, |ns| ns / 1000);
        let born = Born { pid: std::process::id(), entered_us, ready_us };
        self.born = Some(born.clone());
        if reporter.report(Report::Born { index, born }).is_err() {
            exit(1); // the source is gone, and with it whoever could know of this child
        }
    }

    /// This child will not get ready.
    pub(super) fn fail_own_birth(&mut self, failure: Failure) {
        if let Some(OwnBirth { index, mut reporter, .. }) = self.own_birth.take() {
            let _gone = reporter.report(Report::Failed { index, failure });
            exit(1);
        }
    }

    /// Time since the source was stopped, in a child that has not reported yet.
    pub(super) fn age_us(&self) -> u64 {
        self.own_birth.as_ref().map_or(0, |birth| micros(birth.since.elapsed()))
    }

    /// In the writer: writes the machine to files, and ends.
    fn write_and_exit(&mut self, directory: &save::Directory, mut reporter: Reporter) -> ! {
        let Some(machine) = &mut self.machine else { exit(1) };
        machine.disown_connections();
        let own = [directory.as_raw_fd(), reporter.socket().as_raw_fd()];
        let report = match keep_only(machine.descriptors().into_iter().chain(own)) {
            Err(error) => Err(host("rid of descriptors", &error)),
            Ok(()) => save::write(machine, directory),
        };
        let report = match report {
            Ok(saved) => Report::Saved { saved },
            Err(failure) => {
                directory.remove();
                Report::Failed { index: 0, failure }
            }
        };
        let told = reporter.report(report);
        exit(i32::from(told.is_err()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Run,
    Keep,
}

/// Whoever asked for these children is gone, so nobody knows of them.
fn end_unknown(children: &[Result<Born, Failure>]) {
    for born in children.iter().flatten() {
        if let Ok(pidfd) = crate::sys::pidfd(born.pid) {
            crate::sys::kill(&pidfd);
        }
    }
}

/// In the stem: makes the other children, each of the same instant. Which one this process is.
fn fork_siblings(count: usize, reporter: &mut Reporter) -> usize {
    for index in 1..count {
        let report = match fork() {
            Ok(Side::Child) => return index,
            Ok(Side::Parent { child }) => Report::Forked { index, pid: child },
            Err(error) => Report::Failed { index, failure: host("a process", &error) },
        };
        if reporter.report(report).is_err() {
            exit(1);
        }
    }
    0
}

/// The child's own listener; the others are closed with everything else.
fn pick(listeners: Vec<OwnedFd>, index: usize) -> OwnedFd {
    let mut own = None;
    for (number, listener) in listeners.into_iter().enumerate() {
        if number == index {
            own = Some(listener);
        } else {
            std::mem::forget(listener);
        }
    }
    own.expect("one for each child, as counted")
}
