//! Host ↔ monitor.
//!
//! A monitor listens on one Unix stream socket. A connection carries JSON lines: [`Message`]s to the
//! monitor, [`Answer`]s back, in the order of the requests except that [`Request::Fork`],
//! [`Request::Checkpoint`], [`Request::Pause`] and [`Request::Save`] are answered when they are done.
//! File descriptors travel beside the bytes of the request that needs them (SCM_RIGHTS).
//! After a successful [`Request::Connect`] the connection is a raw stream to that port of the guest.
//! A line is at most [`LINE_MAX`] bytes.

use serde::{Deserialize, Serialize};

use crate::agent::Identity;
use crate::needs::Needs;

/// Largest line, newline included.
pub const LINE_MAX: usize = 1024 * 1024;
/// Most children of one fork.
pub const FORK_MAX: usize = 256;
/// Most slots of a machine.
pub const SLOTS_MAX: u8 = 4;

/// A request with the number that its answer will carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Chosen by the caller.
    pub id: u64,
    /// What to do.
    pub request: Request,
}

/// From the monitor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The request with this number was done.
    Done {
        /// Number of the request.
        id: u64,
        /// What came of it.
        outcome: Outcome,
    },
    /// The request with this number was not done, and changed nothing.
    Failed {
        /// Number of the request; absent if it could not be read.
        id: Option<u64>,
        /// Why.
        failure: Failure,
    },
    /// Something happened (only after [`Request::Subscribe`]).
    Event(Event),
}

/// What a monitor can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Make the machine. Once per process, unless it was forked or restored.
    Boot(Boot),
    /// Make the machine from a directory written by [`Self::Save`].
    Restore(Restore),
    /// What it is and how it does.
    Status {},
    /// Stop the vCPUs; memory is kept.
    Pause {},
    /// Go on.
    Resume {},
    /// Make children. Comes with one listening Unix socket for each, in order.
    Fork(Fork),
    /// A fork whose only child never runs. Comes with one listening Unix socket.
    Checkpoint {},
    /// Write the machine to a directory while it runs on.
    Save {
        /// Must not exist; its parent must.
        directory: String,
        /// Answer when it is on the disk, and not only in the kernel's hands.
        #[serde(default = "yes")]
        sync: bool,
        /// Only the disks: [`Boot::saved`] takes them, [`Self::Restore`] does not.
        #[serde(default)]
        only_disks: bool,
    },
    /// Put a volume into an empty slot of a machine that runs. The guest sees a disk there.
    Attach(Attach),
    /// Empty a slot, after everything was written. The guest must have let go of it.
    Detach {
        /// Number of the slot.
        slot: u8,
    },
    /// Connect the network device to the link that comes with this (a seqpacket socket, see [`crate::net`]), instead of what it
    /// was connected to. Without a descriptor it is connected to nothing: frames of the guest wait.
    ///
    /// Children and restored machines begin like that.
    Plug {},
    /// Figures.
    Stats {},
    /// The console's latest output.
    Console {},
    /// Turn this connection into a stream to a vsock port of the guest.
    Connect {
        /// Port.
        port: u32,
    },
    /// Send [`Event`]s on this connection from now on.
    Subscribe {},
    /// Answer the guest's own fork call with a refusal.
    RefuseFork {
        /// From [`Event::GuestFork`].
        call: u64,
        /// Why, for the caller in the guest.
        message: String,
    },
    /// Read guest memory.
    ReadMemory {
        /// Guest address.
        address: u64,
        /// Number of bytes, at most 64 KiB.
        length: u32,
    },
    /// Write guest memory.
    WriteMemory {
        /// Guest address.
        address: u64,
        /// Bytes, in hex, at most 64 KiB.
        hex: String,
    },
    /// End the process. Never fails, and the answer may not arrive.
    Kill {},
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    /// 1 to 8.
    pub vcpus: u8,
    /// 64 to 16384, even.
    pub memory_mib: u32,
    /// Back the memory with huge pages where possible.
    #[serde(default = "yes")]
    pub huge_pages: bool,
    /// What runs.
    pub payload: Payload,
    /// In order: vda, vdb, ...; at most 4.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// Block devices without a medium, after the disks: places for volumes. At most [`SLOTS_MAX`].
    #[serde(default)]
    pub slots: u8,
    /// It has a network device, after the others.
    #[serde(default)]
    pub network: bool,
    /// Directory for the data of writable layers; needed if a disk is writable. The files there
    /// have no names and vanish with the last process that uses them.
    #[serde(default)]
    pub layers: Option<String>,
    /// Directory written by [`Request::Save`]: the disks begin with what it holds.
    #[serde(default)]
    pub saved: Option<String>,
    /// Who it is; a machine whose guest has an agent needs one.
    #[serde(default)]
    pub identity: Option<Identity>,
}

fn yes() -> bool {
    true
}

/// What runs in the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Payload {
    /// An uncompressed x86-64 Linux with a PVH entry, and ramet's agent in its initramfs.
    Linux {
        /// Path of vmlinux.
        kernel: String,
        /// Path of the initramfs.
        initramfs: Option<String>,
        /// Added to the monitor's own command line.
        cmdline: String,
    },
    /// Machine code at 1 MiB, entered in long mode at privilege level 3 on every vCPU: RDI holds
    /// the size of the memory, RSI the number of the vCPU, RSP a stack of its own. All memory is
    /// mapped one to one, all ports are open. No agent, no interrupts. For tests and benchmarks.
    Flat {
        /// Path of the code.
        image: String,
    },
}

/// A block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Path of the read-only base image, a multiple of 4 KiB long.
    pub base: String,
    /// Writes are refused.
    pub read_only: bool,
}

/// A volume in a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Number of the slot.
    pub slot: u8,
    /// Directory of the volume's files.
    pub volume: String,
    /// The volume is not written: what the guest writes all the same is its own and goes with it.
    /// Otherwise nobody else may have the volume.
    pub read_only: bool,
}

/// Make a machine from files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// Written by [`Request::Save`].
    pub directory: String,
    /// What to do with it.
    pub start: Start,
    /// Who it is. Needed if it starts and has an agent.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// As in [`Boot`].
    #[serde(default)]
    pub layers: Option<String>,
    /// Where the base images of the disks are now, in order, without slots; where they were when it was saved, if
    /// empty. They must be the same images.
    #[serde(default)]
    pub bases: Vec<String>,
    /// Volumes that the machine wrote when it was saved and goes on to write. Others are copies of
    /// what they were then. Refused if one was written since.
    #[serde(default)]
    pub volumes: Vec<Attach>,
    /// Read and check the files even if they look untouched since they were written.
    #[serde(default)]
    pub verify: bool,
    /// Socket of whoever brings what is missing of memory and disks while the machine runs
    /// ([`crate::pager`]), and has checked it; if absent, everything is there.
    #[serde(default)]
    pub pager: Option<String>,
}

/// What a new machine does first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Run.
    Run,
    /// Stay as it is: a template or a checkpoint, that is only ever forked or saved.
    Frozen,
}

/// Make children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// 1 to [`FORK_MAX`].
    pub children: Vec<Child>,
    /// It answers the guest's own call ([`Event::GuestFork`]).
    #[serde(default)]
    pub call: Option<u64>,
    /// A source that is paused goes on afterwards: it was only to stand still together with others.
    #[serde(default)]
    pub resume: bool,
}

/// A child to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Child {
    /// Who it is. Needed if the guest has an agent.
    #[serde(default)]
    pub identity: Option<Identity>,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// Nothing more to say.
    Nothing {},
    /// Answer to [`Request::Status`].
    Status(Status),
    /// Answer to [`Request::Fork`] and [`Request::Checkpoint`].
    Forked(Forked),
    /// Answer to [`Request::Save`].
    Saved(Saved),
    /// Answer to [`Request::Stats`].
    Stats(Box<Stats>),
    /// Answer to [`Request::Console`].
    Console {
        /// Bytes ever written; `text` is the end of them.
        written: u64,
        /// What is kept, bytes that are no UTF-8 replaced.
        text: String,
    },
    /// Answer to [`Request::ReadMemory`].
    Memory {
        /// Bytes, in hex.
        hex: String,
    },
}

/// State of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Nothing was booted yet.
    Empty,
    /// vCPUs run.
    Running,
    /// vCPUs are stopped, memory is kept.
    Paused,
    /// A template or checkpoint.
    Frozen,
    /// It is over.
    Stopped(Stop),
}

/// Why a machine is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Stop {
    /// The guest powered off.
    Shutdown,
    /// The guest asked for a reboot.
    Reboot,
    /// The guest's kernel panicked.
    Panic,
    /// The processor gave up.
    TripleFault,
    /// KVM or the host failed.
    Failure {
        /// How.
        message: String,
    },
}

/// Answer to [`Request::Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// [`crate::VERSION`].
    pub version: u32,
    /// The monitor's process.
    pub pid: u32,
    /// State.
    pub state: State,
    /// The guest's agent is up and has its identity.
    pub ready: bool,
    /// Times that this machine's line was forked: 0 for a booted machine.
    pub generation: u32,
}

/// A fork that was carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forked {
    /// From the request to the moment the guest was at the doorbell.
    pub rendezvous_us: u64,
    /// From the first vCPU stopped to the last one going on: what the source lost.
    pub pause_us: u64,
    /// The part of it spent in fork(2).
    pub fork_us: u64,
    /// One for each child, in order.
    pub children: Vec<Result<Born, Failure>>,
}

/// A child that runs. Times count from the source's stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Born {
    /// The child's monitor.
    pub pid: u32,
    /// Its guest was entered.
    pub entered_us: u64,
    /// Its agent has taken its identity; the same as `entered_us` without an agent.
    pub ready_us: u64,
}

/// A machine that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    /// As in [`Forked`].
    pub pause_us: u64,
    /// Time the writer took.
    pub write_us: u64,
    /// Bytes of guest memory that are not holes.
    pub memory_bytes: u64,
    /// Bytes of disk layers.
    pub disk_bytes: u64,
    /// What it needs to go on.
    pub needs: Needs,
}

/// Figures of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stats {
    /// Times of the last fork of this machine.
    pub last_pause_us: Option<u64>,
    /// Times of this machine's own birth.
    pub entered_us: Option<u64>,
    /// Likewise.
    pub ready_us: Option<u64>,
    /// Proportional share of memory, guest RAM included (smaps_rollup).
    pub pss_kib: u64,
    /// Memory of this process alone, guest RAM included.
    pub private_kib: u64,
    /// Private memory that is not guest RAM.
    pub monitor_private_kib: u64,
    /// Page tables of the process.
    pub page_tables_kib: u64,
    /// Guest RAM that this machine does not share with another.
    pub ram_private_kib: u64,
    /// Guest RAM that is present.
    pub ram_present_kib: u64,
    /// One for each disk.
    pub disks: Vec<DiskStats>,
}

/// Figures of a disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskStats {
    /// Size that the guest sees, in blocks of 4 KiB.
    pub blocks: u64,
    /// Blocks that differ from the base.
    pub changed_blocks: u64,
    /// Blocks in this machine's own layer.
    pub own_blocks: u64,
    /// Layers below it that hold blocks.
    pub layers: u32,
    /// Requests since birth.
    pub reads: u64,
    /// Likewise.
    pub writes: u64,
    /// Requests that failed, because the host's disk is full or broken.
    pub errors: u64,
}

/// What a subscriber hears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The agent is up, or has taken a new identity.
    Ready {},
    /// The machine is over.
    Stopped(Stop),
    /// A process in the guest asks for a fork: answer with [`Request::Fork`] or
    /// [`Request::RefuseFork`], with the same call.
    GuestFork {
        /// Number of the call.
        call: u64,
        /// How many children it wants.
        count: u32,
    },
    /// The host's disk refused a write of the guest.
    DiskFailed {
        /// Number of the disk.
        disk: u32,
        /// How.
        message: String,
    },
}

/// Why a request was not carried out. `code` is stable and for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// For programs.
    pub code: Code,
    /// What was wrong, and what to do.
    pub message: String,
}

/// Stable codes of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The message is not one, or has options that are not known.
    BadMessage,
    /// A value is out of its range.
    BadValue,
    /// A file that the request names is not there or not what it must be.
    BadFile,
    /// The message came with the wrong number of file descriptors.
    BadDescriptors,
    /// The machine's state does not allow it.
    WrongState,
    /// The guest did not come to the doorbell in time.
    GuestUnresponsive,
    /// Nothing listens on that port of the guest.
    ConnectionRefused,
    /// Saved by another version.
    OtherVersion,
    /// Saved on another processor.
    OtherCpu,
    /// A saved file is truncated or altered.
    Damaged,
    /// A volume was written since the machine was saved.
    VolumeChanged,
    /// No space left on the host's disk.
    NoSpace,
    /// KVM refused.
    Kvm,
    /// The host refused.
    Host,
    /// The child's process ended before it was ready.
    ChildDied,
    /// Too much is going on; try again.
    Busy,
}
