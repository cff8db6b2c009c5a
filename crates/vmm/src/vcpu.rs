//! vCPU threads: run, stop with the state captured, go on, or end.
//!
//! ```text
//!            stop()                    go()
//!  running ─────────▶ parked, captured ─────▶ running
//!     │                     │ quit()
//!     └── the guest ended ──┴──────────────▶ gone
//! ```
//!
//! States are captured when all vCPUs have left the guest, not before: one that still runs may send an interrupt
//! to one that was captured already, and the child would never get it ([`Muster`]).
//!
//! The main thread decides, the vCPU's thread obeys. A parked thread waits at its gate: it holds no lock, allocates
//! nothing, has no exit half done, and its state lies in the gate. That is what makes
//! fork(2) of the process safe, and [`Vcpus::assert_parked`] checks it.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvm_ioctls::{VcpuExit, VcpuFd};
use ramet_proto::control::Stop;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use crate::devices::virtio::QUEUES_MAX;
use crate::devices::{Bus, PortRead};
use crate::kvm::{ImmediateExit, Plan, VcpuState};

/// Most vCPUs of a machine.
pub const VCPUS_MAX: usize = 8;
/// Exits handled while completing the last one before a stop; more would be a bug in KVM.
const COMPLETIONS_MAX: usize = 64;
/// A vCPU that does not stop within this time is beyond help.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// What vCPU threads tell the main thread. One for all of them.
pub struct Notices {
    /// Wakes the main loop.
    wake: Mutex<EventFd>,
    /// Queues that the guest kicked, a bit for each: device × [`QUEUES_MAX`] + queue.
    pub kicked: AtomicU64,
    /// The vCPU that waits at the doorbell, plus one.
    pub bell: AtomicU32,
    /// The agent acknowledged its identity.
    pub acknowledged: AtomicBool,
    /// When a vCPU was about to enter the guest for the first time, on the machine's clock; 0 before.
    pub entered_ns: AtomicU64,
    /// Why the guest ended.
    stopped: Mutex<Option<Stop>>,
}

impl Notices {
    /// Nothing to tell yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            wake: Mutex::new(event()?),
            kicked: AtomicU64::new(0),
            bell: AtomicU32::new(0),
            acknowledged: AtomicBool::new(false),
            entered_ns: AtomicU64::new(0),
            stopped: Mutex::new(None),
        })
    }

    /// Wakes the main loop.
    pub fn wake(&self) {
        // Fails only if the counter is full, and then the loop is awake.
        let _full = lock(&self.wake).write(1);
    }

    /// The descriptor that becomes readable.
    pub fn wake_descriptor(&self) -> RawFd {
        lock(&self.wake).as_raw_fd()
    }

    /// Nothing is new any more.
    pub fn hush(&self) {
        // Fails only if there was nothing.
        let _quiet = lock(&self.wake).read();
    }

    /// In a forked child: the parent's descriptor is forgotten, and what it was told of its own vCPUs.
    /// Kicks stay: their queues are the child's now.
    pub fn renew(&self) -> io::Result<()> {
        std::mem::forget(std::mem::replace(&mut *lock(&self.wake), event()?));
        self.bell.store(0, Ordering::Release);
        self.acknowledged.store(false, Ordering::Release);
        self.entered_ns.store(0, Ordering::Release);
        *lock(&self.stopped) = None;
        Ok(())
    }

    /// Marks a queue of a device as kicked.
    pub fn kick(&self, device: usize, queue: usize) {
        self.kicked.fetch_or(1 << (device * QUEUES_MAX + queue), Ordering::AcqRel);
        self.wake();
    }

    /// Takes the reason why the guest ended.
    pub fn take_stop(&self) -> Option<Stop> {
        lock(&self.stopped).take()
    }

    fn stop(&self, reason: Stop) {
        lock(&self.stopped).get_or_insert(reason);
        self.wake();
    }
}

fn event() -> io::Result<EventFd> {
    EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    Run,
    Stop,
    Quit,
}

struct Gate {
    inside: Mutex<Inside>,
    changed: Condvar,
    /// Counts changes of `inside`, for those who look before they sleep.
    changes: AtomicU32,
    /// Looking is worth it: there are more cores than vCPUs.
    look: bool,
}

/// How long either side looks for a change before it sleeps: about the length of a pause. Waking a thread that
/// sleeps costs the pause more, and lets the scheduler put a new child on the vCPU's core.
const LOOK: Duration = Duration::from_millis(3);

impl Gate {
    fn new(look: bool) -> Self {
        let inside = Inside { want: Want::Run, parked: None, answer: None };
        Self {
            inside: Mutex::new(inside),
            changed: Condvar::new(),
            changes: AtomicU32::new(0),
            look,
        }
    }

    /// Tells the other side that something changed.
    fn announce(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits until `done` holds or the deadline has passed.
    fn wait_until(
        &self,
        deadline: Option<Instant>,
        done: impl Fn(&Inside) -> bool,
    ) -> MutexGuard<'_, Inside> {
        let mut inside = lock(&self.inside);
        while !done(&inside) {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            inside = match left {
                Some(left) if left.is_zero() => return inside,
                Some(left) => {
                    let waited = self.changed.wait_timeout(inside, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(inside).unwrap_or_else(PoisonError::into_inner),
            };
        }
        inside
    }

    /// Looks for a change for a while, leaving the core to others who want it.
    fn look_for_change(&self, seen: u32) {
        let end = Instant::now() + LOOK;
        while self.look && self.changes.load(Ordering::Acquire) == seen && Instant::now() < end {
            std::thread::yield_now();
        }
    }
}

struct Inside {
    want: Want,
    /// Set while the thread waits at the gate.
    parked: Option<Parked>,
    /// Answer for the thread that waits at the doorbell.
    answer: Option<u32>,
}

/// Where vCPUs wait for each other after they have left the guest.
struct Muster {
    /// Those that have left, and those that will never come because they are over.
    present: Mutex<(usize, usize)>,
    changed: Condvar,
    total: usize,
}

impl Muster {
    fn new(total: usize) -> Self {
        Self { present: Mutex::new((0, 0)), changed: Condvar::new(), total }
    }

    /// Comes, and waits for the others. False if it took too long.
    fn attend(&self) -> bool {
        let mut present = lock(&self.present);
        present.0 += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(present, STOP_DEADLINE, |present| {
            present.0 + present.1 < self.total
        });
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Will not come again.
    fn leave(&self) {
        lock(&self.present).1 += 1;
        self.changed.notify_all();
    }

    /// All go on.
    fn dismiss(&self) {
        lock(&self.present).0 = 0;
    }
}

/// The vCPU threads of a machine.
pub struct Vcpus {
    threads: Vec<Thread>,
    muster: Arc<Muster>,
}

struct Thread {
    gate: Arc<Gate>,
    immediate_exit: ImmediateExit,
    handle: JoinHandle<()>,
}

/// What vCPUs had captured and is of no more use.
#[derive(Default)]
pub struct Captured([Option<Parked>; VCPUS_MAX]);

/// A vCPU's state, or why it could not be read.
type Parked = Result<Box<VcpuState>, String>;

/// Everything that a vCPU thread shares with the rest.
#[derive(Clone)]
pub struct Surroundings {
    /// Devices.
    pub bus: Arc<Bus>,
    /// The way to the main thread.
    pub notices: Arc<Notices>,
    /// What to capture.
    pub plan: Arc<Plan>,
    /// Start of the machine's clock.
    pub epoch: Instant,
}

impl Vcpus {
    /// Starts a thread for each vCPU.
    pub fn start(vcpus: Vec<VcpuFd>, run_size: usize, around: &Surroundings) -> io::Result<Self> {
        register_signal_handler(SIGRTMIN(), ignore).map_err(io::Error::from)?;
        let mut threads = Vec::new();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let look = vcpus.len() < cores;
        let muster = Arc::new(Muster::new(vcpus.len()));
        for (index, mut vcpu) in (0u32..).zip(vcpus) {
            let immediate_exit = ImmediateExit::of(&mut vcpu, run_size)?;
            let gate = Arc::new(Gate::new(look));
            let mut worker = Worker {
                index,
                vcpu,
                immediate_exit,
                gate: Arc::clone(&gate),
                muster: Arc::clone(&muster),
                around: around.clone(),
            };
            let handle = std::thread::Builder::new()
                .name(format!("vcpu{index}"))
                .stack_size(128 << 10)
                .spawn(move || worker.work())?;
            threads.push(Thread { gate, immediate_exit, handle });
        }
        Ok(Self { threads, muster })
    }

    /// Asks all to stop, and waits until they have. Their states, in order.
    pub fn stop(&self) -> Result<Vec<VcpuState>, String> {
        for thread in &self.threads {
            thread.request(Want::Stop);
        }
        let deadline = Instant::now() + STOP_DEADLINE;
        self.threads.iter().map(|thread| thread.wait_parked(deadline)).collect()
    }

    /// Lets all go on. What they had captured is given back, to be dropped when there is time: after a fork every
    /// page that is written costs a copy, and the allocator's are many.
    #[must_use]
    pub fn go(&self) -> Captured {
        let mut captured = Captured::default();
        self.muster.dismiss();
        for (thread, place) in self.threads.iter().zip(&mut captured.0) {
            let mut inside = lock(&thread.gate.inside);
            inside.want = Want::Run;
            *place = inside.parked.take();
            drop(inside);
            thread.gate.announce();
        }
        captured
    }

    /// Answers the vCPU that waits at the doorbell.
    pub fn answer_bell(&self, vcpu: usize, value: u32) {
        let gate = &self.threads[vcpu].gate;
        lock(&gate.inside).answer = Some(value);
        gate.announce();
    }

    /// Every thread but the caller's is asleep at its gate and holds nothing.
    pub fn assert_parked(&self) {
        for thread in &self.threads {
            assert!(lock(&thread.gate.inside).parked.is_some(), "fork with a vCPU not parked");
        }
    }

    /// Ends the threads and closes the vCPUs.
    pub fn quit(self) {
        for thread in &self.threads {
            thread.request(Want::Quit);
        }
        for thread in self.threads {
            // A panicked vCPU thread is over as well.
            let _panicked = thread.handle.join();
        }
    }
}

impl Thread {
    fn request(&self, want: Want) {
        let mut inside = lock(&self.gate.inside);
        inside.want = want;
        inside.answer.get_or_insert(ramet_proto::doorbell::SOURCE);
        // Under the lock, so that the thread cannot clear it after having seen the old wish.
        self.immediate_exit.set(true);
        let asleep = inside.parked.is_some();
        drop(inside);
        self.gate.announce();
        if !asleep {
            // Fails only if the thread is gone already.
            let _gone = self.handle.kill(SIGRTMIN());
        }
    }

    fn wait_parked(&self, deadline: Instant) -> Result<VcpuState, String> {
        let changes = self.gate.changes.load(Ordering::Acquire);
        if lock(&self.gate.inside).parked.is_none() {
            self.gate.look_for_change(changes);
        }
        let inside = self.gate.wait_until(Some(deadline), |inside| inside.parked.is_some());
        match &inside.parked {
            Some(parked) => parked.as_ref().map(|state| (**state).clone()).map_err(Clone::clone),
            None => Err("a vCPU did not stop".into()),
        }
    }
}

/// What to do after an exit.
enum Next {
    Run,
    /// The guest is over; wait to be told to quit.
    Over(Stop),
}

struct Worker {
    index: u32,
    vcpu: VcpuFd,
    immediate_exit: ImmediateExit,
    gate: Arc<Gate>,
    muster: Arc<Muster>,
    around: Surroundings,
}

impl Worker {
    fn work(&mut self) {
        self.stamp_entry();
        loop {
            if !self.may_run() {
                return;
            }
            if let Next::Over(reason) = self.run_once() {
                self.around.notices.stop(reason);
                self.muster.leave();
                self.park(Err("the guest is over".into()));
                return;
            }
        }
    }

    /// Parks if asked to. False when it is time to quit.
    fn may_run(&mut self) -> bool {
        let want = {
            let inside = lock(&self.gate.inside);
            if inside.want == Want::Run {
                self.immediate_exit.set(false);
            }
            inside.want
        };
        match want {
            Want::Run => true,
            Want::Quit => false,
            Want::Stop => {
                let state = self.complete_and_capture();
                self.park(state)
            }
        }
    }

    /// Sleeps at the gate. False when it is time to quit.
    fn park(&self, state: Parked) -> bool {
        let mut inside = lock(&self.gate.inside);
        inside.parked = Some(state);
        let seen = self.gate.changes.load(Ordering::Acquire).wrapping_add(1);
        self.gate.announce();
        drop(inside);
        self.gate.look_for_change(seen);
        let mut inside = self
            .gate
            .wait_until(None, |inside| inside.parked.is_none() || inside.want == Want::Quit);
        inside.answer = None;
        if inside.want == Want::Run {
            self.immediate_exit.set(false);
        }
        inside.want != Want::Quit
    }

    /// Lets KVM finish the instruction whose exit was handled last, then reads the state.
    fn complete_and_capture(&mut self) -> Parked {
        let completed = self.complete();
        let in_time = self.muster.attend();
        completed?;
        if !in_time {
            return Err("a vCPU did not stop".into());
        }
        let captured = self.around.plan.capture(&mut self.vcpu);
        captured.map(Box::new).map_err(|error| format!("cannot read the state of a vCPU: {error}"))
    }

    fn complete(&mut self) -> Result<(), String> {
        for _ in 0..COMPLETIONS_MAX {
            self.immediate_exit.set(true);
            self.around.plan.prepare(&mut self.vcpu);
            match self.run_once() {
                Next::Run if self.interrupted() => return Ok(()),
                Next::Run => {}
                Next::Over(reason) => {
                    self.around.notices.stop(reason);
                    return Err("the guest is over".into());
                }
            }
        }
        Err("a vCPU does not come to rest".into())
    }

    /// Whether the last KVM_RUN returned because it was told to.
    fn interrupted(&mut self) -> bool {
        self.vcpu.get_kvm_run().exit_reason == kvm_bindings::KVM_EXIT_INTR
    }

    fn stamp_entry(&self) {
        let now = u64::try_from(self.around.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
        let stamp = &self.around.notices.entered_ns;
        if stamp.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.around.notices.wake();
        }
    }

    fn run_once(&mut self) -> Next {
        let (bus, index) = (&self.around.bus, self.index);
        match self.vcpu.run() {
            Ok(VcpuExit::IoIn(port, data)) => {
                if bus.read_port(port, data) == PortRead::Bell {
                    let value = await_answer(&self.gate, &self.around.notices, index);
                    fill(data, value);
                }
                Next::Run
            }
            Ok(VcpuExit::IoOut(port, data)) => match bus.write_port(port, data) {
                Some(stop) => Next::Over(stop),
                None => Next::Run,
            },
            Ok(VcpuExit::MmioRead(address, data)) => {
                bus.read_memory(address, data);
                Next::Run
            }
            Ok(VcpuExit::MmioWrite(address, data)) => {
                bus.write_memory(address, data);
                Next::Run
            }
            Ok(VcpuExit::Intr | VcpuExit::IoapicEoi(_) | VcpuExit::Hlt) => Next::Run,
            Ok(VcpuExit::Shutdown) => Next::Over(Stop::TripleFault),
            Ok(VcpuExit::SystemEvent(kind, _)) => Next::Over(failure(format!("event {kind}"))),
            Ok(exit) => Next::Over(failure(format!("unexpected exit {exit:?}"))),
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {
                // KVM reports an interruption by errno; keep one way to ask for it.
                self.vcpu.get_kvm_run().exit_reason = kvm_bindings::KVM_EXIT_INTR;
                Next::Run
            }
            Err(error) => Next::Over(failure(format!("KVM_RUN: {error}"))),
        }
    }
}

/// Tells the main thread that the guest is at the doorbell, and waits for its answer.
fn await_answer(gate: &Gate, notices: &Notices, vcpu: u32) -> u32 {
    let mut inside = lock(&gate.inside);
    inside.answer = None;
    if inside.want != Want::Run {
        return ramet_proto::doorbell::NOT_EXPECTED;
    }
    notices.bell.store(vcpu + 1, Ordering::Release);
    notices.wake();
    drop(inside);
    let mut inside = gate.wait_until(None, |inside| inside.answer.is_some());
    inside.answer.take().unwrap_or(ramet_proto::doorbell::NOT_EXPECTED)
}

/// Stores as much of `value` as the guest asked for.
fn fill(data: &mut [u8], value: u32) {
    for (byte, part) in data.iter_mut().zip(value.to_le_bytes().into_iter().cycle()) {
        *byte = part;
    }
}

fn failure(message: String) -> Stop {
    Stop::Failure { message }
}

/// Locks are only ever held for a few instructions that do not panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Interrupts KVM_RUN, and does nothing else.
extern "C" fn ignore(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

#[cfg(test)]
mod tests;
