//! Host ↔ agent.
//!
//! # Sessions
//! One connection is one operation. The host connects to vsock port [`PORT`] (through the monitor's
//! `connect` request), sends one [`Request`], and what follows depends on it. Flow control is the
//! connection's own: whoever reads slowly slows the other side down, and nothing is buffered without
//! bound. Hundreds of operations at once are hundreds of connections. Closing one's side for writing
//! is hanging up, except on a dialled stream.
//!
//! # Frames
//! Every message is a frame: `u32` payload length (little endian), `u8` [`Channel`], payload. The
//! payload of [`Channel::Message`] is JSON; the others carry bytes. Payloads are at most
//! [`FRAME_MAX`] bytes. After a successful [`Request::Dial`] there are no more frames: the
//! connection is the dialled stream, half-close included.
//!
//! # Link
//! The agent itself keeps one connection to the monitor ([`crate::doorbell::LINK_PORT`]), on which
//! [`ToAgent`] and [`ToMonitor`] travel as JSON lines.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// vsock port on which the agent accepts sessions.
pub const PORT: u32 = 1024;

/// Largest payload of a frame.
pub const FRAME_MAX: usize = 256 * 1024;

/// Bytes before the payload of a frame: length and channel.
pub const HEAD: usize = 5;

/// What stands before the payload of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// What the payload is.
    pub channel: Channel,
    /// Its length, at most [`FRAME_MAX`].
    pub length: usize,
}

/// Why a head is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// The payload would be this long.
    TooLong(u32),
    /// There is no such channel.
    UnknownChannel(u8),
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(length) => {
                write!(f, "frame of {length} bytes is longer than {FRAME_MAX}")
            }
            Self::UnknownChannel(number) => write!(f, "channel {number} does not exist"),
        }
    }
}

impl std::error::Error for HeadError {}

impl Head {
    /// The head with these bytes, checked before anyone makes room for the payload.
    pub fn decode([a, b, c, d, number]: [u8; HEAD]) -> Result<Self, HeadError> {
        let channel = Channel::from_u8(number).ok_or(HeadError::UnknownChannel(number))?;
        let length = u32::from_le_bytes([a, b, c, d]);
        match usize::try_from(length) {
            Ok(bytes) if bytes <= FRAME_MAX => Ok(Self { channel, length: bytes }),
            _ => Err(HeadError::TooLong(length)),
        }
    }

    /// As bytes. The caller keeps the payload within [`FRAME_MAX`].
    pub fn encode(self) -> [u8; HEAD] {
        debug_assert!(self.length <= FRAME_MAX, "frame too long");
        let [a, b, c, d] = u32::try_from(self.length).unwrap_or(u32::MAX).to_le_bytes();
        [a, b, c, d, self.channel as u8]
    }
}

/// What the payload of a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    /// JSON: a [`Request`], [`Input`] or [`Reply`].
    Message = 0,
    /// Bytes for the process, or of the file being written.
    Stdin = 1,
    /// Bytes from the process (both streams, when it has a terminal), or of the file being read.
    Stdout = 2,
    /// Bytes from the process.
    Stderr = 3,
}

impl Channel {
    /// The channel with this number.
    pub fn from_u8(number: u8) -> Option<Self> {
        [Self::Message, Self::Stdin, Self::Stdout, Self::Stderr]
            .into_iter()
            .find(|channel| *channel as u8 == number)
    }
}

/// First frame of a session, from the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Start a process. Answers [`Reply::Started`], output frames, then [`Reply::Exited`].
    /// If the host hangs up, the process goes on and keeps its latest output for [`Self::Attach`].
    Exec(Exec),
    /// Join a process started by `Exec`: [`Reply::Started`], its kept output, then as `Exec`. One
    /// client at a time. Also for one that has ended, as long as the agent remembers it.
    Attach(Attach),
    /// As `Attach`, also beside others: each of them gets all output from then on, and the slowest sets the pace.
    Join(Attach),
    /// Speak to a process started by `Exec` without hearing it. Answers [`Reply::Started`]; then [`Reply::Done`] for each
    /// frame once the process has it, input in `Stdin` frames and every [`Input`] that a process takes.
    Feed(Attach),
    /// Processes started by `Exec` as they were asked for. Answers [`Reply::Commands`] in parts, in order of pid, then
    /// [`Reply::Done`].
    Commands {},
    /// Users and groups. Answers [`Reply::Accounts`].
    Accounts {},
    /// Every process in the guest. Answers [`Reply::Processes`].
    Processes {},
    /// Send a signal. Answers [`Reply::Done`].
    Signal(Signal),
    /// Answers [`Reply::Stat`], then the content in `Stdout` frames, with [`Reply::Hole`] for each
    /// hole between them, then [`Reply::Done`].
    ReadFile(ReadFile),
    /// Followed by `Stdin` frames and [`Input::Hole`]s and closed by [`Input::End`]. The file
    /// appears under its name at the end, whole, or not at all. Answers [`Reply::Stat`].
    WriteFile(WriteFile),
    /// A directory as a tar stream. Answers [`Reply::Stat`], then the archive in `Stdout` frames, then
    /// [`Reply::Done`].
    ReadArchive(ReadArchive),
    /// Followed by a tar stream in `Stdin` frames and closed by [`Input::End`]. Answers
    /// [`Reply::Unpacked`].
    WriteArchive(WriteArchive),
    /// Answers [`Reply::Entries`], in several parts when there are many, then [`Reply::Done`].
    List(List),
    /// Answers [`Reply::Stat`]. Does not follow a symlink in the last place.
    Stat {
        /// Absolute path.
        path: String,
    },
    /// Make a directory and its missing parents. Answers [`Reply::Stat`].
    Mkdir(Mkdir),
    /// Rename within the guest, replacing a file. Answers [`Reply::Done`].
    Move {
        /// Absolute path of what is there.
        from: String,
        /// Absolute path that it gets.
        to: String,
    },
    /// Remove. Answers [`Reply::Done`].
    Remove {
        /// Absolute path.
        path: String,
        /// Also directories that are not empty.
        recursive: bool,
    },
    /// Report changes below a directory until the host hangs up. Answers [`Reply::Done`] once
    /// watching, then [`Reply::Changed`] for each change.
    Watch {
        /// Absolute path of a file or directory.
        path: String,
        /// Also below its directories, present and future.
        recursive: bool,
    },
    /// Connect to a listener in the guest. Answers [`Reply::Done`], then the raw stream.
    Dial(Dial),
    /// Answers [`Reply::Usage`].
    Usage {},
    /// Write to the disks what is only in memory. Answers [`Reply::Done`].
    Sync {},
    /// Everything at and below these paths that the writable layer of the root holds: what was ever
    /// changed since the image. Answers [`Reply::Layer`], then [`Reply::Layered`] in parts, in
    /// [`path_order`], then [`Reply::Done`]. A path that goes through a symlink is refused.
    Layer {
        /// Absolute, in their shortest form, in [`path_order`], none below another.
        paths: Vec<String>,
    },
    /// What is at these places as processes see it. Answers [`Reply::Seen`] in parts, in order, then
    /// [`Reply::Done`]. Where nothing is, nothing is answered; symlinks are not followed.
    Look {
        /// In [`path_order`], none below another.
        places: Vec<Place>,
    },
    /// What regular files hold. Answers [`Reply::Digests`] in parts, one for each path, then
    /// [`Reply::Done`].
    Digest {
        /// Absolute.
        paths: Vec<Name>,
        /// When this time is over, the rest has no digest.
        time_ms: u64,
    },
    /// Sockets that wait for others. Answers [`Reply::Listeners`].
    Listeners {},
    /// Mount the disk that was put into a slot. Answers [`Reply::Done`].
    Mount(Mount),
    /// Unmount a disk from wherever it is, after everything was written to it. Answers [`Reply::Done`], also if
    /// it is not mounted. One that is in use stays where it is (`busy`), and what was written to it is on it.
    Unmount {
        /// As in [`Mount`].
        device: String,
    },
    /// What the machine is among others. Answers [`Reply::Done`].
    Network(Network),
    /// End the guest: processes get SIGTERM, after the grace SIGKILL, filesystems are synced.
    /// Answers [`Reply::Done`] at once.
    Shutdown {
        /// Reboot instead of power off.
        reboot: bool,
        /// Time between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
}

/// A machine's network, as far as it is not the same for all ([`crate::net`]). What was before is undone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Number in a network: it gets one more address.
    pub member: Option<u8>,
    /// Certificate (PEM) of an authority named [`crate::net::AUTHORITY_NAME`] that programs are to trust.
    pub authority: Option<String>,
}

/// Later frames from the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Input {
    /// No more standard input, or the whole file is sent.
    End {},
    /// The terminal has a new size.
    Resize(Terminal),
    /// Send a signal to the process's group.
    Signal {
        /// Number of the signal.
        signal: i32,
    },
    /// This many bytes of the file being written are a hole.
    Hole {
        /// Length of the hole.
        length: u64,
    },
}

/// A process to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// Program and arguments. The program is looked up in the PATH that the process gets.
    pub argv: Vec<String>,
    /// Added to the agent's own environment for processes.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; the user's home when absent.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Name, or number, or `user:group`; root when absent.
    #[serde(default)]
    pub user: Option<String>,
    /// Standard input is open and fed by `Stdin` frames. Without it, it is `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
    /// Run on a terminal of this size.
    #[serde(default)]
    pub terminal: Option<Terminal>,
    /// Kill the whole group after this time.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// A name for it, which [`Request::Commands`] tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// It ends only when nobody holds its outputs any more, nor those that it has left behind. Its time is the limit of that too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub linger: bool,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminal {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// Join a running or ended process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The pid from [`Reply::Started`].
    pub pid: i32,
}

/// Send a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// The process.
    pub pid: i32,
    /// Number of the signal.
    pub signal: i32,
    /// To the process's whole group.
    pub group: bool,
}

/// Read a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    /// Absolute path. A symlink is followed.
    pub path: String,
    /// First byte.
    #[serde(default)]
    pub offset: u64,
    /// Number of bytes; to the end when absent.
    #[serde(default)]
    pub length: Option<u64>,
}

/// Write a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// Absolute path. Missing parents are made.
    pub path: String,
    /// Permission bits; those of the file that is replaced, or 0644.
    #[serde(default)]
    pub mode: Option<u32>,
    /// As [`Exec::user`]; that of the file that is replaced, or root.
    #[serde(default)]
    pub owner: Option<String>,
    /// Make a symlink with this target instead (no content follows; `End` is still sent).
    #[serde(default)]
    pub symlink: Option<String>,
    /// Extended attributes that the file gets, below `user.`; those of the file that is replaced are gone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// Read a directory as an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadArchive {
    /// Absolute path of a directory. A symlink is followed.
    pub path: String,
    /// Compressed.
    pub gzip: bool,
}

/// Unpack an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteArchive {
    /// Absolute path of a directory; made if it is missing.
    pub path: String,
    /// Compressed.
    pub gzip: bool,
    /// As [`Exec::user`], for everything; numbers of the archive when absent.
    #[serde(default)]
    pub owner: Option<String>,
}

/// List a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Absolute path.
    pub path: String,
    /// How many levels below; 1 is the directory's own entries.
    pub depth: u32,
}

/// Mount a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Its device: `/dev/vdc` and so on.
    pub device: String,
    /// Absolute path of a directory; made if it is missing.
    pub path: String,
    /// It is not to be written.
    pub read_only: bool,
}

/// Make a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mkdir {
    /// Absolute path. An existing directory is left as it is.
    pub path: String,
    /// Permission bits of what is made; 0755 when absent.
    #[serde(default)]
    pub mode: Option<u32>,
    /// As [`Exec::user`], for what is made.
    #[serde(default)]
    pub owner: Option<String>,
}

/// A listener in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Dial {
    /// TCP, to the guest's loopback (IPv4, then IPv6).
    Tcp {
        /// Port.
        port: u16,
    },
    /// A Unix stream socket.
    Unix {
        /// Absolute path.
        path: String,
    },
}

/// Frames from the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// It was done.
    Done {},
    /// It was not done. Always the last frame.
    Error(Failure),
    /// The process runs.
    Started {
        /// Its pid, and the number of its group.
        pid: i32,
    },
    /// The process has ended and all its output was sent.
    Exited(Exited),
    /// Part of the answer to [`Request::Commands`].
    Commands {
        /// In order of pid.
        commands: Vec<Command>,
    },
    /// Answer to [`Request::Accounts`].
    Accounts(Accounts),
    /// Answer to [`Request::Processes`].
    Processes {
        /// In order of pid.
        processes: Vec<Process>,
    },
    /// Answer to [`Request::Stat`] and others.
    Stat(Entry),
    /// Part of the answer to [`Request::List`].
    Entries {
        /// Depth first, by name.
        entries: Vec<Entry>,
    },
    /// This many bytes of the file being read are a hole.
    Hole {
        /// Length of the hole.
        length: u64,
    },
    /// Answer to [`Request::WriteArchive`].
    Unpacked(Unpacked),
    /// Something changed below a watched path.
    Changed(Change),
    /// Answer to [`Request::Usage`].
    Usage(Usage),
    /// First answer to [`Request::Layer`].
    Layer {
        /// Names the image that the layer lies on.
        base: String,
    },
    /// Part of the answer to [`Request::Layer`].
    Layered {
        /// In [`path_order`].
        entries: Vec<Layered>,
    },
    /// Part of the answer to [`Request::Look`].
    Seen {
        /// In [`path_order`].
        entries: Vec<Seen>,
    },
    /// Part of the answer to [`Request::Digest`].
    Digests {
        /// Hex; absent where there is no regular file, or no time was left.
        digests: Vec<Option<String>>,
    },
    /// Answer to [`Request::Listeners`].
    Listeners {
        /// In order.
        listeners: Vec<Listener>,
    },
}

/// Why an operation was not done. `code` is stable and for programs, `message` is for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// One of: `bad_request`, `not_found`, `already_exists`, `not_a_directory`, `is_a_directory`,
    /// `not_empty`, `permission_denied`, `no_space`, `no_such_user`, `no_such_process`, `busy`,
    /// `connection_refused`, `timed_out`, `too_many`, `io`.
    pub code: String,
    /// What was wrong and with what.
    pub message: String,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exited {
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal, if one killed it.
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// Output that was dropped while nobody was attached.
    pub dropped_bytes: u64,
}

/// A process as [`Request::Exec`] asked for it. Of one that was asked for at great length, only the program is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Pid.
    pub pid: i32,
    /// [`Exec::argv`].
    pub argv: Vec<String>,
    /// [`Exec::env`].
    pub env: BTreeMap<String, String>,
    /// [`Exec::cwd`].
    pub cwd: Option<String>,
    /// [`Exec::tag`].
    pub tag: Option<String>,
    /// It runs on a terminal.
    pub terminal: bool,
    /// It has ended, and its end is still remembered.
    pub ended: bool,
}

/// Users and groups of the guest, as many as fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accounts {
    /// In their order.
    pub users: Vec<Account>,
    /// In their order.
    pub groups: Vec<Group>,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Name.
    pub name: String,
    /// Number.
    pub uid: u32,
    /// Home directory.
    pub home: String,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name.
    pub name: String,
    /// Number.
    pub gid: u32,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Pid.
    pub pid: i32,
    /// Parent's pid.
    pub parent: i32,
    /// Process group.
    pub group: i32,
    /// Owner.
    pub uid: u32,
    /// Letter of `/proc/PID/stat`.
    pub state: String,
    /// Command line, or the name in brackets for a kernel thread.
    pub command: Vec<String>,
    /// User and system time.
    pub cpu_ms: u64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// It was started by [`Request::Exec`].
    pub started_here: bool,
}

/// What kind of file an [`Entry`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symlink.
    Symlink,
    /// Device, fifo or socket.
    Other,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Absolute path; bytes that are no UTF-8 are replaced.
    pub path: String,
    /// Kind.
    pub kind: FileKind,
    /// Length in bytes.
    pub size: u64,
    /// Permission bits, with set-id and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Nanoseconds since 1970.
    pub modified_ns: i64,
    /// Where a symlink points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What a symlink leads to in the end, if there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Extended attributes of programs (those below `user.`, without that), as far as they are text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// What a symlink leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// Absolute path without symlinks.
    pub path: String,
    /// Kind.
    pub kind: FileKind,
}

/// A path as the kernel has it: text where it is UTF-8, else its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Name {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl Name {
    /// The name with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(bytes.to_owned()),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// For people; bytes that are no UTF-8 are replaced.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

/// The order of a walk that visits a directory before its entries, and entries by the bytes of their
/// names: a slash comes before every other byte.
pub fn path_order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let rank = |byte: &u8| if *byte == b'/' { 0 } else { u16::from(*byte) + 1 };
    a.iter().map(rank).cmp(b.iter().map(rank))
}

/// Whether a path is another one or lies below it.
pub fn path_within(path: &[u8], above: &[u8]) -> bool {
    let rest = path.strip_prefix(above);
    above == b"/" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// A place to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Absolute path.
    pub path: Name,
    /// Also everything below.
    pub deep: bool,
}

/// What the writable layer holds at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayeredKind {
    /// Regular file.
    File,
    /// Directory; what the image has there shows through.
    Directory,
    /// Directory that hides what the image has there.
    Opaque,
    /// Symlink.
    Symlink,
    /// Device, fifo or socket.
    Other,
    /// What the image has there is hidden.
    Removed,
    /// Another filesystem is mounted there, so the layer says nothing.
    Elsewhere,
}

/// An entry of the writable layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layered {
    /// Absolute path, as processes see it.
    pub path: Name,
    /// What it is. With `removed` and `elsewhere` the rest is zero.
    pub kind: LayeredKind,
    /// Number of its inode in the layer.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Permission bits, with set-id and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of its content, nanoseconds since 1970; anyone may set it.
    pub modified_ns: i64,
    /// Last change of anything, by the guest's clock.
    pub changed_ns: i64,
}

/// Kind of a [`Seen`] file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeenKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symlink.
    Symlink,
    /// Fifo.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharacterDevice,
    /// Block device.
    BlockDevice,
}

/// A file as processes see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Absolute path.
    pub path: Name,
    /// Kind.
    pub kind: SeenKind,
    /// Length in bytes.
    pub size: u64,
    /// Permission bits, with set-id and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Nanoseconds since 1970.
    pub modified_ns: i64,
    /// Where a symlink points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Name>,
}

/// A socket that waits for others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Address that it is bound to.
    pub address: String,
    /// Port.
    pub port: u16,
}

/// What an archive held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unpacked {
    /// Entries of any kind.
    pub entries: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of regular files, holes included.
    pub bytes: u64,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It appeared.
    Created,
    /// Its content changed.
    Written,
    /// It is gone.
    Removed,
    /// It got another name: a pair of `MovedFrom` and `MovedTo`, if both are watched.
    MovedFrom,
    /// The other half.
    MovedTo,
    /// Mode, owner or times.
    Attributes,
    /// Too much happened at once and some changes were not reported.
    Overflow,
}

/// A change below a watched path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// Absolute path.
    pub path: String,
}

/// What the guest uses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// vCPUs online.
    pub cpus: u32,
    /// Time all vCPUs were busy since boot.
    pub cpu_busy_ms: u64,
    /// Time since boot.
    pub uptime_ms: u64,
    /// Memory of the guest.
    pub memory_total_bytes: u64,
    /// Memory that could be had without swapping.
    pub memory_available_bytes: u64,
    /// Memory with content of files.
    #[serde(default)]
    pub memory_cached_bytes: u64,
    /// Size of the root filesystem.
    pub disk_total_bytes: u64,
    /// Free there.
    pub disk_free_bytes: u64,
    /// Processes.
    pub processes: u32,
}

/// Monitor → agent, on the link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToAgent {
    /// Seize the vCPUs and come to the doorbell.
    Rendezvous {
        /// Number of the meeting.
        meeting: u64,
        /// It answers this guest's own call ([`ToMonitor::Fork`]).
        call: Option<u64>,
    },
    /// A guest's own call will not be answered.
    Refused {
        /// Number of the call.
        call: u64,
        /// Why.
        failure: Failure,
    },
}

/// Agent → monitor, on the link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToMonitor {
    /// First message of a link: the agent is up and takes sessions.
    Hello {
        /// [`crate::VERSION`].
        version: u32,
    },
    /// A process in the guest calls fork for the whole machine.
    Fork {
        /// Number of the call, chosen by the agent.
        call: u64,
        /// How many children.
        count: u32,
    },
}

/// Who a machine is. Applied by the agent before any user process runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Host name.
    pub hostname: String,
    /// Names this machine and no other; the machine-id is derived from it.
    pub instance: String,
    /// The sandbox's own token, readable by root in `/run/ramet/token`.
    #[serde(default)]
    pub token: Option<String>,
    /// Environment of processes started from now on; replaces what was there.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Like `env`, and in `/run/ramet/secrets/`; whatever was there before is removed.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    /// Leave the random state of interpreters as it was. The kernel's is renewed all the same.
    #[serde(default)]
    pub deterministic: bool,
    /// Most processes that are not the agent's own. What was there stays when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids_max: Option<u32>,
    /// No process but the agent runs: the machine is only looked at.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub still: bool,
    /// Filled in by the monitor: 64 fresh random bytes, in hex.
    #[serde(default)]
    pub seed: String,
    /// Filled in by the monitor: wall clock, nanoseconds since 1970.
    #[serde(default)]
    pub realtime_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_in_the_order_of_a_walk() {
        let walk: [&[u8]; 7] = [b"/", b"/a", b"/a/b", b"/a/b/c", b"/a-b", b"/a\xff", b"/b"];
        assert!(walk.is_sorted_by(|a, b| path_order(a, b).is_lt()));
    }

    #[test]
    fn a_path_is_within_itself_and_its_parents() {
        assert!(
            path_within(b"/a/b", b"/a") && path_within(b"/a", b"/a") && path_within(b"/a", b"/")
        );
        assert!(!path_within(b"/ab", b"/a") && !path_within(b"/", b"/a"));
    }

    #[test]
    fn names_survive_the_wire() {
        for bytes in [&b"/plain"[..], b"/caf\xc3\xa9", b"/\xff\xfe", b"/back\\slash", b"/new\nline"]
        {
            let text = serde_json::to_string(&Name::new(bytes)).unwrap();
            assert_eq!(serde_json::from_str::<Name>(&text).unwrap().bytes(), bytes);
        }
    }

    #[test]
    fn a_head_survives_the_wire() {
        for number in 0..=3 {
            for length in [0, 1, 255, 256, FRAME_MAX] {
                let head = Head { channel: Channel::from_u8(number).unwrap(), length };
                assert_eq!(Head::decode(head.encode()), Ok(head));
            }
        }
    }

    #[test]
    fn what_is_no_head_is_refused() {
        assert_eq!(Head::decode([0, 0, 0, 0, 4]), Err(HeadError::UnknownChannel(4)));
        assert_eq!(Head::decode([1, 0, 4, 0, 1]), Err(HeadError::TooLong(262_145)));
    }
}
