//! Clients ↔ node: the HTTP API, version 1.
//!
//! JSON over HTTP. Every request but `GET /v1/health` carries `Authorization: Bearer TOKEN`. What goes
//! wrong is answered with a [`Problem`] (`application/problem+json`) whose `code` is stable. Fields
//! and query parameters that are not known, and options that a node does not support, are refused
//! (`unsupported_option`), never ignored. Times are milliseconds since 1970 (`_ms`), durations name
//! their unit.
//!
//! `{id}` is a sandbox's id, its name, or a unique beginning of the id (at least four digits, with or
//! without `sbx-`). An id that was deleted answers 410 `gone`; one that was promoted answers 410 `promoted`, and
//! `promoted_to` names the sandbox that goes on.
//!
//! # Routes
//!
//! | method and path | request | response |
//! |---|---|---|
//! | `GET /v1/health` | | 200 [`Health`]; needs no token |
//! | `GET /v1/ready` | | 200 [`Ready`]; 503 `not_ready` |
//! | `GET /v1/node` | | 200 [`Node`] |
//! | `GET /metrics` | | 200 Prometheus (OpenMetrics) text |
//! | `GET /v1/openapi.json` | | 200 this API's description; needs no token |
//! | `POST /v1/sandboxes` | [`CreateSandbox`], `Idempotency-Key` | 201 [`Created`]; 409 `name_taken`; 503 `no_capacity`, `not_ready` |
//! | `GET /v1/sandboxes` | [`ListQuery`] | 200 [`SandboxList`] |
//! | `GET /v1/sandboxes/{id}` | | 200 [`Sandbox`] |
//! | `PATCH /v1/sandboxes/{id}` | [`UpdateSandbox`] | 200 [`Sandbox`]; 409 `name_taken` |
//! | `DELETE /v1/sandboxes/{id}` | | 204; its checkpoints go with it, its children stay |
//! | `POST …/{id}/fork` | [`ForkRequest`], `Idempotency-Key` | 201 [`Forked`]; 207 [`Forked`] if a child failed |
//! | `POST …/{id}/pause` | [`PauseRequest`], or nothing | 200 [`Sandbox`] |
//! | `POST …/{id}/resume` | | 200 [`Sandbox`] |
//! | `POST …/{id}/checkpoints` | [`CreateCheckpoint`] | 201 [`Checkpoint`] |
//! | `GET …/{id}/checkpoints` | | 200 [`CheckpointList`] |
//! | `DELETE …/{id}/checkpoints/{cid}` | | 204 |
//! | `POST …/{id}/rewind` | [`RewindRequest`] | 200 [`Swapped`] |
//! | `POST …/{id}/promote` | [`PromoteRequest`] | 200 [`Swapped`]; 409 `not_a_descendant` |
//! | `POST …/{id}/diff` | [`DiffRequest`] | 200 [`Diff`] |
//! | `POST …/{id}/commits` | [`CreateCommit`] | 201 [`Commit`]; 202 [`Commit`] while it is written |
//! | `GET /v1/commits` | [`CommitsQuery`] | 200 [`CommitList`] |
//! | `GET /v1/commits/{commit}` | | 200 [`Commit`] |
//! | `DELETE /v1/commits/{commit}` | | 204; 409 `in_use` if a name points to it |
//! | `GET /v1/refs` | | 200 [`RefList`] |
//! | `PUT /v1/refs/{name}` | [`PutRef`] | 200 [`Ref`]; 409 `already_exists` |
//! | `DELETE /v1/refs/{name}` | | 204 |
//! | `GET /v1/store` | | 200 [`StoreUsage`] |
//! | `POST /v1/store/gc` | [`GcRequest`] | 200 [`GcReport`] |
//! | `POST /v1/store/check` | [`CheckRequest`] | 200 [`CheckReport`] |
//! | `POST …/{id}/volumes` | [`AttachVolume`] | 200 [`Sandbox`]; 409 `in_use`, `already_exists` |
//! | `DELETE …/{id}/volumes/{volume}` | | 200 [`Sandbox`]; 409 `in_use` if something inside uses it |
//! | `POST /v1/volumes` | [`CreateVolume`] | 201 [`Volume`]; 409 `already_exists` |
//! | `GET /v1/volumes` | | 200 [`VolumeList`] |
//! | `GET /v1/volumes/{volume}` | | 200 [`Volume`] |
//! | `DELETE /v1/volumes/{volume}` | | 204; 409 `in_use` |
//! | `GET /v1/tree` | | 200 [`Tree`] |
//! | `GET …/{id}/stats` | | 200 [`Stats`] |
//! | `GET …/{id}/logs` | | 200 [`Logs`] |
//! | `POST …/{id}/exec` | [`ExecRequest`] | 200 [`ExecResult`], when the process has ended |
//! | `POST …/{id}/code` | [`RunCode`] | 200 lines of JSON, each a [`CodeEvent`], as they happen |
//! | `GET …/{id}/contexts` | | 200 [`ContextList`] |
//! | `POST …/{id}/contexts` | [`CreateContext`] | 201 [`CodeContext`] |
//! | `DELETE …/{id}/contexts/{context}` | | 204 |
//! | `POST …/{id}/contexts/{context}/restart` | | 200 [`CodeContext`]: the same, with nothing of what it knew |
//! | `POST …/{id}/contexts/{context}/interrupt` | | 200 [`Interrupted`] |
//! | `GET …/{id}/exec/ws` | WebSocket, see below | |
//! | `GET …/{id}/processes` | | 200 [`ProcessList`] |
//! | `POST …/{id}/processes/{pid}/signal` | [`SignalRequest`] | 204 |
//! | `GET …/{id}/files` | [`ReadQuery`], `Range` | 200 or 206 the bytes; 416 `bad_range` |
//! | `PUT …/{id}/files` | [`WriteQuery`], the bytes | 201 [`File`] |
//! | `DELETE …/{id}/files` | [`RemoveQuery`] | 204 |
//! | `GET …/{id}/files/archive` | [`ReadArchiveQuery`] | 200 the directory as a tar stream |
//! | `PUT …/{id}/files/archive` | [`WriteArchiveQuery`], a tar stream | 200 [`Unpacked`] |
//! | `GET …/{id}/files/watch` | [`WatchQuery`] | 200 server-sent events: `event` is the kind, `data` a [`Change`]; see below |
//! | `GET …/{id}/files/list` | [`ListFilesQuery`] | 200 [`FileList`] |
//! | `GET …/{id}/files/stat` | [`ReadQuery`] | 200 [`File`], symlinks not followed |
//! | `POST …/{id}/files/mkdir` | [`MkdirRequest`] | 201 [`File`] |
//! | `POST …/{id}/files/move` | [`MoveRequest`] | 204 |
//! | `GET …/{id}/ports` | | 200 [`PortList`] |
//! | any `…/{id}/ports/{port}/{path}` | an HTTP request, see below | what the server in the guest answers; 502 `connection_refused` |
//! | `GET …/{id}/tcp/{port}` | `Connection: Upgrade`, `Upgrade: tcp` | 101 and then the raw stream; 502 `connection_refused` |
//! | `GET …/{id}/tcp/{port}/wait` | [`PortWaitQuery`](network::PortWaitQuery) | 200 [`PortReady`](network::PortReady); 504 `guest_unresponsive` |
//! | `POST …/{id}/links` | [`CreateLink`](network::CreateLink) | 201 [`Link`](network::Link) |
//! | `GET …/{id}/links` | | 200 [`LinkList`](network::LinkList) |
//! | `DELETE …/{id}/links/{link}` | | 204 |
//! | any `/l/{secret}/{path}` | an HTTP request, as to `…/ports/{port}`; needs no token | 404 `not_found` if the link is over |
//! | `GET …/{id}/network` | | 200 [`SandboxNetwork`](network::SandboxNetwork) |
//! | `PUT …/{id}/network` | [`NetworkRequest`](network::NetworkRequest) | 200 [`SandboxNetwork`](network::SandboxNetwork): its own layer, limits and edge rules are replaced |
//! | `GET …/{id}/network/log` | [`NetworkLogQuery`](network::NetworkLogQuery) | 200 [`NetworkLog`](network::NetworkLog); 409 `wrong_state`, 503 `network_unavailable` |
//! | `POST /v1/networks` | [`CreateNetwork`](groups::CreateNetwork) | 201 [`Network`](groups::Network); 409 `name_taken` |
//! | `GET /v1/networks` | | 200 [`NetworkList`](groups::NetworkList) |
//! | `GET /v1/networks/{network}` | | 200 [`Network`](groups::Network) |
//! | `PATCH /v1/networks/{network}` | [`UpdateNetwork`](groups::UpdateNetwork) | 200 [`Network`](groups::Network) |
//! | `DELETE /v1/networks/{network}` | | 204; 409 `in_use` while it has members |
//! | `POST /v1/networks/{network}/members` | [`JoinNetwork`](groups::JoinNetwork) | 200 [`Network`](groups::Network); 409 `in_use`, `name_taken` |
//! | `DELETE /v1/networks/{network}/members/{member}` | | 204 |
//! | `POST /v1/networks/{network}/fork` | [`ForkNetwork`](groups::ForkNetwork) | 201 [`ForkedNetwork`](groups::ForkedNetwork); 207 if a copy failed |
//! | `POST /v1/networks/{network}/pause` | [`PauseRequest`], or nothing | 200 [`NetworkSandboxes`](groups::NetworkSandboxes) |
//! | `POST /v1/networks/{network}/resume` | | 200 [`NetworkSandboxes`](groups::NetworkSandboxes) |
//! | `POST /v1/networks/{network}/checkpoint` | [`NetworkMoment`](groups::NetworkMoment) | 201 [`NetworkCheckpoint`](groups::NetworkCheckpoint) |
//! | `POST /v1/networks/{network}/rewind` | [`NetworkMoment`](groups::NetworkMoment) | 200 [`Network`](groups::Network) |
//! | `POST /v1/networks/{network}/promote` | [`PromoteNetwork`](groups::PromoteNetwork) | 200 [`Network`](groups::Network); 409 `not_a_descendant` |
//! | `POST /v1/networks/{network}/commit` | [`CommitNetwork`](groups::CommitNetwork) | 202 [`NetworkCommit`](groups::NetworkCommit) |
//! | `GET /v1/secrets` | | 200 [`SecretList`](network::SecretList) |
//! | `PUT /v1/secrets/{name}` | [`PutSecret`](network::PutSecret) | 200 [`Secret`](network::Secret) |
//! | `DELETE /v1/secrets/{name}` | | 204; 409 `in_use` |
//! | `GET /v1/tokens` | the administrator's, as the next two | 200 [`TokenList`](network::TokenList); 403 `permission_denied` |
//! | `POST /v1/tokens` | [`CreateToken`](network::CreateToken) | 201 [`CreatedToken`](network::CreatedToken) |
//! | `DELETE /v1/tokens/{token}` | | 204 |
//! | `GET /v1/templates` | | 200 [`TemplateList`] |
//! | `POST /v1/templates` | [`BuildTemplate`] | 202 [`Template`], which is `building`; 200 if the same was built before |
//! | `GET /v1/templates/{name}` | [`TemplateQuery`] | 200 [`Template`] |
//! | `DELETE /v1/templates/{name}` | | 204; a build under way ends, sandboxes from it go on |
//! | `GET /v1/templates/{name}/log` | | 200 server-sent events: `log` with a [`TemplateLog`] as it is written, at last `end` with the [`Template`] |
//! | `GET /v1/images` | | 200 [`ImageList`] |
//! | `GET /v1/images/{name}` | | 200 [`Image`] |
//! | `PUT /v1/images/{name}` | [`PutImageQuery`], the bytes | 201 [`Image`]; 413 `too_large`; 507 `no_space` |
//! | `DELETE /v1/images/{name}` | | 204; 409 `in_use` |
//! | `GET /v1/events` | [`EventsQuery`], `Last-Event-ID` | 200 server-sent events: `event` is the kind, `data` an [`Event`] |
//!
//! Every route may also answer 400 `bad_request` or `unsupported_option`, 401 `unauthorized`,
//! 404 `not_found`, 409 `wrong_state` or `ambiguous`, 429 `too_many`, 504 `guest_unresponsive`, 500 `internal`.
//!
//! # Idempotency
//! A `POST` that says `Idempotency-Key` can be sent again: while the first is under way the second
//! answers 409 `in_progress`; afterwards it gets the first one's answer again. The same key with
//! another request is refused (422 `idempotency_mismatch`). Keys are kept for a day and are the
//! caller's own. Only answers that made something are kept: after a refusal, try again.
//!
//! # Streams
//! On the WebSocket `…/exec/ws` the client's first text frame is a [`StreamRequest`]. The node answers with text frames,
//! each a [`StreamReply`]: `started` first, `exited` last; or `error`, last of all. Bytes travel in binary frames
//! whose first byte is the channel ([`STDIN`] from the client, [`STDOUT`] and [`STDERR`] from the node; a process on
//! a terminal has no [`STDERR`]). Later text frames of the client are [`StreamInput`]s. If the client hangs up,
//! the process goes on and keeps its latest output for an `attach`.
//!
//! # Ports
//! `…/ports/{port}/{path}` passes a request on to the server that listens on this TCP port in the guest, on its loopback or on
//! any address: every method, bodies streamed both ways, WebSocket and other upgrades. The server gets `Host: localhost:{port}`, and in
//! `X-Forwarded-For`, `-Host`, `-Proto` and `-Prefix` where the request came from. It does not get `Authorization`, which was for the node,
//! and nothing that concerns one connection only. Refusals of the node are problems: 502 `connection_refused` if nothing
//! listens, 504 `guest_unresponsive` if no answer begins within 5 minutes, 502 `guest_failed` if it is no HTTP.
//!
//! `…/tcp/{port}` is any TCP stream, raw, as soon as 101 is answered; each direction is closed on its own.
//! Connections belong to the machine: they end when the sandbox is rewound or promoted, and new ones reach the new machine.
//!
//! # Archives
//! Of a directory: names relative to it, modes, numeric owners, times of files, symlinks, hard links, holes (GNU tar). Sockets are left
//! out, and so is what is mounted below. An archive that cannot be read to its end breaks off. What is unpacked stays below `path`:
//! entries that are absolute, contain `..`, or would go through a symlink that leads out are refused, and so are
//! devices (400 `bad_request`); what was unpacked before stays.
//!
//! # Watch
//! Changes are told from the answer on. If more happens than is read, `overflow` says that some were not told. The stream ends with the
//! event `error` and a [`Problem`] when the guest can no longer tell, as when its machine is gone.
//!
//! # Volumes
//! A volume is a directory that outlives sandboxes, with an ext4 of its own. Many sandboxes have it read-only, or one has it read-write;
//! who asks for something else is refused (`in_use`) and told who has it. What a process in the sandbox has synced is kept, whatever ends
//! then: the sandbox, its monitor, the node. A paused sandbox keeps its volumes. Forks of a running sandbox share what it reads. What it
//! writes is a *snapshot* in them, as in everything that is made of a checkpoint, a commit or a stored sandbox: what the volume was at
//! that instant, copy-on-write, and no volume any more. A sandbox that writes a volume can neither be rewound nor promoted
//! (`wrong_state`): detach it first.
//!
//! # Events
//! Each event has an id. A client that sends the last one it has seen as `Last-Event-ID` gets what came after it, or first the event `gap` if
//! that is no longer known.
//!
//! # Images and templates
//! An image is a read-only root filesystem (erofs). A template is a machine in files: it was booted from an image, or forked
//! from a sandbox, its set-up commands have run, and its ready check has succeeded. Making a sandbox
//! from it is a fork of that machine, which is kept in memory from its first use on. The template `base` and
//! the image `base` are always there. A template has its own vCPUs, memory and disk, and so have its sandboxes.
//! Both belong to who made them; `{name}` of a template may also be its id.
//!
//! # Fork, rewind, promote
//! A child gets the source's memory, disk and processes, and an identity of its own: host name, machine-id, token,
//! random numbers. A source that holds secrets is only forked if the request says whether they are passed on
//! (`inherit_secrets`), and so are its commits, templates and promotes. Connections to the outside live on in the source and are reset in
//! the children. Rewind and promote fork a checkpoint, or the winner, with the identity of
//! the sandbox that goes on, and then end the machines that are no longer needed: id, name, labels and
//! settings stay, connections into the old machine end.
//!
//! # Diff
//! Both sides of a diff, `{id}` and `against`, are a sandbox, a checkpoint (`cp-…`, or `SANDBOX@CHECKPOINT`) or a
//! template (`tmpl-…`), running or not. Each is looked at in a copy in which no process runs and which is gone
//! afterwards, so each side is of one instant. Variables are those of the Python contexts of sandboxes that run, as they are a moment later. Symlinks are not followed; extended attributes and times are not compared.
//!
//! # Code
//! The first request for code starts the interpreter in the sandbox, which stays: children of a fork have its contexts and
//! all that they know. Code in one context runs one piece after the other, several contexts run at once. Who hangs up
//! interrupts the code. In a child, code that ran when it was made goes on unheard.
//!
//! # Automatic checkpoints
//! A sandbox with `auto_checkpoints` is checkpointed before each exec and each piece of code. The oldest automatic ones go when there are more
//! than asked for or when they hold more memory than asked for; others never go by themselves. A rewind drops the
//! automatic ones of the commands that it undoes. An exec whose checkpoint cannot be made is refused.
//!
//! # Pause and commit
//! A paused sandbox is in the store: its machine is gone and costs nothing, and a resume makes it again, exactly where it was,
//! with its identity, a new token and the right time; connections into it are closed. What it needs comes from this
//! host if it is there still, otherwise from the store while it runs already. A sandbox with `auto_resume` is resumed by the first request that needs it. A
//! paused sandbox can be forked, compared, committed and promoted without being resumed.
//!
//! A commit keeps a moment of a sandbox for good, as a state in the store that `commit` of [`CreateSandbox`] makes sandboxes
//! from. It is answered when the moment is kept in memory, and is written in the background; if the node is killed meanwhile, the
//! next start goes on with it. `{commit}` is an id, a unique beginning of one, or a name. Secrets are not in a
//! commit's description, but memory is what it was: whoever checks a commit out can find in it what the processes knew.
//!
//! # Forks from inside
//! `ramet-agent fork N` in a sandbox makes children as `POST …/fork` does, with the owner, labels and limits of the
//! sandbox and names made from its name. They do not get its secrets.

mod code;
mod durable;
pub mod groups;
mod moves;
pub mod network;
mod volumes;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use code::*;
pub use durable::*;
pub use moves::*;
pub use volumes::*;

/// Channel of a process's standard input in binary frames.
pub const STDIN: u8 = 1;
/// Channel of a process's standard output, or of its terminal.
pub const STDOUT: u8 = 2;
/// Channel of a process's standard error.
pub const STDERR: u8 = 3;

/// Header that makes a `POST` repeatable.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// What a client upgrades to for a raw stream.
pub const TCP: &str = "tcp";
/// Header with the id of the last event that a client has seen.
pub const LAST_EVENT_ID: &str = "last-event-id";
/// The template that every node has.
pub const BASE_TEMPLATE: &str = "base";
/// The image that every node has.
pub const BASE_IMAGE: &str = "base";
/// Free space of a sandbox's disk, if nobody asks for another.
pub const DISK_MIB: u32 = 4096;

/// Why a request was not carried out (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Always `about:blank`; `code` says what it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status, also where the problem is part of a longer answer.
    pub status: u16,
    /// For programs.
    pub code: Code,
    /// What was wrong with this request, and what to do.
    pub detail: String,
    /// With `promoted`: the sandbox that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promoted_to: Option<String>,
}

/// Stable codes of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 400: not well formed, or a value out of its range.
    BadRequest,
    /// 400: a field, parameter or value that this node does not support.
    UnsupportedOption,
    /// 401: no token, or not a valid one.
    Unauthorized,
    /// 404: no such route, sandbox, checkpoint, template or image (of this caller).
    NotFound,
    /// 405: the path is right, the method is not.
    MethodNotAllowed,
    /// 409: the state of the sandbox does not allow it.
    WrongState,
    /// 409: another live sandbox of this owner has the name.
    NameTaken,
    /// 409: several sandboxes begin so.
    Ambiguous,
    /// 409: the first request with this key is under way.
    InProgress,
    /// 409: the winner does not descend from the sandbox.
    NotADescendant,
    /// 409: the sandbox holds secrets, and it was not said whether they are passed on.
    HoldsSecrets,
    /// 503: the network service does not run.
    NetworkUnavailable,
    /// 410: it was deleted.
    Gone,
    /// 410: it was promoted; see `promoted_to`.
    Promoted,
    /// 409: something else needs it.
    InUse,
    /// 413: the body is too large.
    TooLarge,
    /// 416: the range is not in the file.
    BadRange,
    /// 422: the key was used with another request.
    IdempotencyMismatch,
    /// 429: too much at once; try again.
    TooMany,
    /// 500: the node failed; its log says more.
    Internal,
    /// 503: not enough memory for another sandbox.
    NoCapacity,
    /// 503: the template is not warm yet.
    NotReady,
    /// 504: the guest does not answer.
    GuestUnresponsive,
    /// 404: no such file in the guest.
    FileNotFound,
    /// 409: the file exists.
    AlreadyExists,
    /// 409: a part of the path is no directory.
    NotADirectory,
    /// 409: the path is a directory.
    IsADirectory,
    /// 409: the directory is not empty.
    NotEmpty,
    /// 403: the guest does not permit it.
    PermissionDenied,
    /// 507: the guest's or the host's disk is full.
    NoSpace,
    /// 400: no such user in the guest.
    NoSuchUser,
    /// 404: no such process in the guest.
    NoSuchProcess,
    /// 500: what is in the store was damaged.
    Damaged,
    /// 503: the store does not answer, or only with errors.
    StoreUnavailable,
    /// 409: the state was saved on another processor or by another version, and cannot go on on this host.
    Incompatible,
    /// 403: not signed by a key that this node trusts.
    Untrusted,
    /// 502: nothing listens on the port in the guest.
    ConnectionRefused,
    /// 502: the guest failed in another way.
    GuestFailed,
    /// Of a newer node.
    #[serde(other)]
    Unknown,
}

/// Answer of `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// Version of the node.
    pub version: String,
}

/// Answer of `GET /v1/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ready {
    /// True: sandboxes can be created.
    pub ready: bool,
    /// They have a network. Without it everything else works.
    #[serde(default)]
    pub network: bool,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Node {
    /// Version of the node.
    pub version: String,
    /// Where guests run.
    pub host_mode: HostMode,
    /// When the node was started.
    pub started_at_ms: u64,
    /// Who asks.
    pub principal: String,
    /// What can be asked for.
    pub limits: Limits,
    /// Memory of the host.
    pub memory_total_mib: u64,
    /// Memory that the host can still give.
    pub memory_available_mib: u64,
    /// Sandboxes that run, of all owners.
    pub running: u32,
    /// Sandboxes that are paused, of all owners.
    pub paused: u32,
    /// The template `base`, by shape.
    pub templates: Vec<Template>,
    /// The network of sandboxes.
    #[serde(default)]
    pub network: network::NodeNetwork,
}

/// Where guests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HostMode {
    /// On the machine's own KVM.
    Hardware,
    /// In the emulated host.
    Software,
}

/// Bounds of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Limits {
    /// Most vCPUs of a sandbox.
    pub vcpus_max: u8,
    /// Least memory of a sandbox.
    pub memory_mib_min: u32,
    /// Most memory of a sandbox.
    pub memory_mib_max: u32,
    /// Least disk of a sandbox.
    #[serde(default)]
    pub disk_mib_min: u32,
    /// Most disk of a sandbox.
    #[serde(default)]
    pub disk_mib_max: u32,
    /// Most live sandboxes.
    pub sandboxes_max: u32,
    /// Most children of one fork.
    pub fork_max: u32,
    /// Most checkpoints of one sandbox.
    pub checkpoints_max: u32,
    /// Memory that the node leaves to the host.
    pub memory_reserve_mib: u64,
}

/// What sandboxes are created from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Template {
    /// Id, as in the tree.
    pub id: String,
    /// Name. While a template is built anew there are two of its name: the one in use, and the one to be.
    pub name: String,
    /// It comes with the node: an image, booted and nothing else. One for each shape in use.
    #[serde(default)]
    pub built_in: bool,
    /// Whether it can be used.
    pub state: TemplateState,
    /// Why it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its machine is in memory: a create is a fork and nothing else.
    #[serde(default)]
    pub warm: bool,
    /// vCPUs.
    pub vcpus: u8,
    /// Memory.
    pub memory_mib: u32,
    /// Disk.
    #[serde(default)]
    pub disk_mib: u32,
    /// Digest of the image below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<String>,
    /// What it was built from, without the content of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<BuildTemplate>,
    /// Environment that its sandboxes begin with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Live sandboxes of all owners that come from it.
    #[serde(default)]
    pub sandboxes: u32,
    /// Bytes on the node's disk.
    #[serde(default)]
    pub size_bytes: u64,
    /// When its making began.
    #[serde(default)]
    pub created_at_ms: u64,
    /// How long that took, or has taken so far.
    #[serde(default)]
    pub build_ms: u64,
    /// The end of what its commands have written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log: String,
}

/// Whether a template can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TemplateState {
    /// It is being made.
    Building,
    /// It can.
    Ready,
    /// It could not be made.
    Failed,
}

/// Answer of `GET /v1/templates`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateList {
    /// Those of the node, then the caller's, oldest first. Logs are left out.
    pub templates: Vec<Template>,
}

/// Body of `POST /v1/templates`: an image or a sandbox, and what is done before it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BuildTemplate {
    /// Lower-case letters, digits and hyphens, at most 63. A template of this name goes on until the new one is ready.
    pub name: String,
    /// Image to boot; `base` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Sandbox to fork instead; it goes on. Its secrets are not taken along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// One of that sandbox's checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Written first, at most 8 MiB in all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<TemplateFile>,
    /// Lines for `/bin/sh -c`, one after the other. Each must succeed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run: Vec<String>,
    /// Lines for `/bin/sh -c` that are started then and left running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<String>,
    /// A line that is tried until it succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// How long that may take; a minute when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_timeout_s: Option<u64>,
    /// How long all may take; half an hour when absent, at most a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Environment of these processes and of those of its sandboxes; added to that of the sandbox it comes from.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// User of processes that name none, here and in its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of processes that name none, here and in its sandboxes. Made if it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// As for a sandbox; not with `sandbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u8>,
    /// Likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// What it may reach while it is built. Its sandboxes reach no more than that, either. Nothing is reached when absent, and
    /// its sandboxes have no such layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<network::NetworkRequest>,
    /// With a `sandbox` that holds secrets: `false`, since a template keeps none. What its processes know stays in their memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherit_secrets: Option<bool>,
    /// Build it even if the same was built before.
    #[serde(default)]
    pub rebuild: bool,
}

/// A file that a template gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TemplateFile {
    /// Absolute path in the guest.
    pub path: String,
    /// What is in it; left out where a template is shown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// How `content` is written.
    #[serde(default)]
    pub encoding: Encoding,
    /// Permission bits in octal; 0644 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// Query of `GET /v1/templates/{name}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct TemplateQuery {
    /// Answer when it is no longer `building`, or after this time, at most 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<u64>,
}

/// A piece of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateLog {
    /// Bytes before it.
    pub offset: u64,
    /// What was written.
    pub text: String,
}

/// A read-only root filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Image {
    /// Name.
    pub name: String,
    /// It comes with the node.
    #[serde(default)]
    pub built_in: bool,
    /// BLAKE3 of its bytes, in hex. Images with the same digest are kept once.
    pub digest: String,
    /// Its length.
    pub size_bytes: u64,
    /// When it came.
    pub created_at_ms: u64,
    /// Names of the caller's templates that are built on it.
    #[serde(default)]
    pub templates: Vec<String>,
}

/// Answer of `GET /v1/images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImageList {
    /// Those of the node, then the caller's, by name.
    pub images: Vec<Image>,
}

/// Query of `PUT /v1/images/{name}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct PutImageQuery {
    /// BLAKE3 of the bytes, in hex. If another image of the caller has it, the body may be empty.
    pub digest: String,
}

/// Body of `POST /v1/sandboxes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// Lower-case letters, digits and hyphens, at most 63; also its host name. The id when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `base` when absent. Another one has its own vCPUs, memory and disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Image to boot, instead of a template. The first of a shape boots, the others are forks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Commit to go on from, instead of a template: id, unique beginning of it, or name. It has its own vCPUs, memory and disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Take only the files of the commit, and boot anew: on any processor. Of a commit that has more than files it is what
    /// the guest had written to its disk by then, as after a power failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk: bool,
    /// 1 when absent, or the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u8>,
    /// Even; 512 when absent, or the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Free space of its disk; 4096 when absent, or the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// Environment of its processes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Like `env`, also in `/run/ramet/secrets/`, never shown again; forks say whether they inherit them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// For the caller's own use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `on_timeout` happens this long after its creation or its last resume. 0 or absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// `on_timeout` happens after this long without a request to it. 0 or absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_s: Option<u64>,
    /// What happens then.
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// Share of the host's processors against other sandboxes, 1 to 10000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<u32>,
    /// Most processor time, in percent of one processor. 0 or absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota_percent: Option<u32>,
    /// Most processes inside. 0 or absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids_max: Option<u32>,
    /// Checkpoint it before each exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// When it is paused, a request that needs it resumes it.
    #[serde(default)]
    pub auto_resume: bool,
    /// Volumes that it gets, all or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<AttachVolume>,
    /// What it may reach; nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<network::NetworkRequest>,
}

/// Checkpoints that are made before each exec, and how many stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AutoCheckpoints {
    /// So many stay, at most as many as a sandbox may have checkpoints; 0 is none.
    pub keep: u32,
    /// As long as all of them hold at most this much memory, shared pages by share.
    #[serde(default = "AutoCheckpoints::memory_mib")]
    pub memory_mib: u64,
}

impl AutoCheckpoints {
    /// Memory where none is said.
    pub fn memory_mib() -> u64 {
        1024
    }
}

/// What happens when a sandbox's time is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// It is deleted.
    #[default]
    Kill,
    /// It is paused.
    Pause,
}

/// State of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It runs.
    Running,
    /// It stands still, in the store or in memory.
    Paused,
    /// Its machine ended by itself; see `failure`.
    Failed,
    /// It was deleted, or promoted.
    Gone,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sandbox {
    /// Names it for good: `sbx-` and 16 hex digits.
    pub id: String,
    /// Name, unique among the owner's live sandboxes; the id if none was given.
    pub name: String,
    /// State.
    pub state: State,
    /// Principal that it belongs to.
    pub owner: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Template that its line began with; `image:NAME` if it was an image.
    pub template: String,
    /// vCPUs.
    pub vcpus: u8,
    /// Memory.
    pub memory_mib: u32,
    /// Free space of its disk at the beginning.
    #[serde(default)]
    pub disk_mib: u32,
    /// User of processes that name none; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of processes that name none; the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Sandbox that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Environment of its processes.
    pub env: BTreeMap<String, String>,
    /// Names of its secrets.
    pub secret_names: Vec<String>,
    /// It holds secrets: its forks, commits, templates and promotes must say whether they are passed on.
    #[serde(default)]
    pub holds_secrets: bool,
    /// When it came to be.
    pub created_at_ms: u64,
    /// Last request to it.
    pub active_at_ms: u64,
    /// Limits, as asked for; 0 is none.
    pub timeout_s: u64,
    /// Likewise.
    pub idle_timeout_s: u64,
    /// When its time is over, if it has a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at_ms: Option<u64>,
    /// What happens at the end of its time.
    pub on_timeout: OnTimeout,
    /// Share of the host's processors against other sandboxes.
    pub cpu_weight: u32,
    /// Most processor time, in percent of one processor; 0 is no limit.
    pub cpu_quota_percent: u32,
    /// Most processes inside; 0 is no limit.
    pub pids_max: u32,
    /// Checkpoints before each exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// A request that needs it resumes it.
    #[serde(default)]
    pub auto_resume: bool,
    /// Its volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<AttachedVolume>,
    /// The commit that it goes on from, or that was made of it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Where it is while it is paused in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredState>,
    /// With state `failed`; also why the last resume did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<SandboxFailure>,
}

/// Why a sandbox failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxFailure {
    /// In words.
    pub reason: String,
    /// End of its console, if it could still be had.
    pub console: String,
}

/// Answer of `POST /v1/sandboxes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Created {
    /// The new sandbox.
    pub sandbox: Sandbox,
    /// From the template's stop to the guest's first instruction.
    pub entered_us: u64,
    /// From the template's stop until its agent had its identity.
    pub ready_us: u64,
    /// The whole request in the node.
    pub total_us: u64,
}

/// Query of `GET /v1/sandboxes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Only with this label: `key=value`, or `key` for any value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Only in this state; all but `gone` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(inline))]
    pub state: Option<State>,
    /// At most this many, 1 to 1000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of sandboxes, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxList {
    /// The page.
    pub sandboxes: Vec<Sandbox>,
    /// Where the next page begins; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Body of `PATCH /v1/sandboxes/{id}`. What is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UpdateSandbox {
    /// New name. The guest's host name stays until the next rewind or promote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All labels from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// New limit, counted from its creation or last resume; 0 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// New limit; 0 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_s: Option<u64>,
    /// What happens at the end of its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// New share of the host's processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<u32>,
    /// New limit of processor time, in percent of one processor; 0 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota_percent: Option<u32>,
    /// Checkpoints before each exec from now on; what is too many goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_checkpoints: Option<AutoCheckpoints>,
    /// Whether a request resumes it when it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
}

/// Body of `POST …/fork`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// 1 when absent, or as many as there are names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// One for each child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// Labels of the children; those of the source when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Added to the environment of the source.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// From this moment that was kept, by id, unique beginning of it, or name; from now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Secrets of the children, besides those that they inherit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// What becomes of the secrets of a source that holds some: `true`, the children get them; `false`, they do not. If it is not
    /// said, the fork is refused (`holds_secrets`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherit_secrets: Option<bool>,
    /// What the children may reach of what the source may; the same when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<network::NetworkRequest>,
    /// The children have the edge rules of the source, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_edge: bool,
    /// Leave the random state of interpreters as it was.
    #[serde(default)]
    pub deterministic: bool,
    /// Time limit of the children, from when they are made; as long as the source's when absent, 0 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// What happens to the children then; as to the source when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
}

/// Answer of `POST …/fork`. Times of children count from the source's stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Forked {
    /// From the request to the moment the guest was ready to be cut.
    pub rendezvous_us: u64,
    /// What the source lost.
    pub pause_us: u64,
    /// The part of it spent in fork(2).
    pub fork_us: u64,
    /// The whole request in the node.
    pub total_us: u64,
    /// One for each child, in order.
    pub children: Vec<ForkedChild>,
}

/// What became of a child: `sandbox` and its times, or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForkedChild {
    /// The child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Its guest was entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entered_us: Option<u64>,
    /// Its agent had its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_us: Option<u64>,
    /// Why there is no child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// Body of `POST …/checkpoints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateCheckpoint {
    /// Unique among the sandbox's checkpoints; the id when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A frozen moment of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Checkpoint {
    /// `cp-` and 16 hex digits.
    pub id: String,
    /// Name; the id if none was given.
    pub name: String,
    /// Its sandbox.
    pub sandbox: String,
    /// When it was made.
    pub created_at_ms: u64,
    /// Time that making it took.
    pub total_us: u64,
    /// It was made before an exec, and goes when there are too many.
    #[serde(default)]
    pub automatic: bool,
    /// The command that an automatic one was made before, shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// It is in the host's memory; otherwise it comes back from the store when it is needed.
    #[serde(default = "yes")]
    pub in_memory: bool,
    /// What is in the store, if memory was needed for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredState>,
}

fn yes() -> bool {
    true
}

/// Answer of `GET …/checkpoints`, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckpointList {
    /// All of them.
    pub checkpoints: Vec<Checkpoint>,
}

/// Body of `POST …/rewind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RewindRequest {
    /// Id, unique beginning of it, or name of one of the sandbox's checkpoints, which stays.
    pub checkpoint: String,
}

/// Body of `POST …/diff`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DiffRequest {
    /// What it is compared with: what only it has is `added`, what only `against` has is `removed`.
    pub against: String,
    /// Absolute paths, at most 64; `/home`, `/root`, `/tmp` and `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
    /// Also what changed within text files, as patches.
    #[serde(default)]
    pub content: bool,
    /// Also variables of Python contexts; if both sides are sandboxes that run when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<bool>,
}

/// Answer of `POST …/diff`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Diff {
    /// What was compared.
    pub id: String,
    /// With what.
    pub against: String,
    /// Where.
    pub paths: Vec<String>,
    /// When they became two; absent if nothing is known of that, and then more had to be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parted_at_ms: Option<u64>,
    /// Files that differ, directories before what is in them.
    pub files: Vec<DiffFile>,
    /// There are more differences than are told; compare less.
    pub truncated: bool,
    /// Processes that only one side has, by owner and command line. Kernel threads do not count.
    pub processes: Vec<DiffProcess>,
    /// Sockets that only one side has waiting.
    pub listeners: Vec<DiffListener>,
    /// Variables of Python contexts that differ, by context and name; absent if they were not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variables: Option<Vec<DiffVariable>>,
    /// Why they were not, if it was not the caller's wish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_variables: Option<String>,
    /// What it took.
    pub cost: DiffCost,
}

/// What a diff took.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffCost {
    /// Entries of both writable layers that were listed: all that ever changed since the image.
    pub layered: u64,
    /// Files that were looked at, on both sides.
    pub looked_at: u64,
    /// Files whose content was compared.
    pub digested: u64,
    /// The whole request in the node.
    pub total_us: u64,
}

/// On which side something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiffKind {
    /// Only `against` has it.
    Removed,
    /// Only `{id}` has it.
    Added,
    /// Both have it, and it differs.
    Changed,
}

/// In what two files differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiffAspect {
    /// They are of different kinds.
    Type,
    /// They hold something else.
    Content,
    /// Permission bits.
    Mode,
    /// Owner or group.
    Owner,
    /// They point somewhere else.
    Target,
}

/// A file that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffFile {
    /// Absolute path; bytes that are no UTF-8 are replaced.
    pub path: String,
    /// Where it is.
    pub change: DiffKind,
    /// With `changed`: in what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<DiffAspect>,
    /// With `content` among them: it was too large to be read in time. Its times differ, what it holds may not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub assumed: bool,
    /// In `against`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<DiffState>,
    /// In `{id}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<DiffState>,
    /// A unified diff, if patches were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// Why there is none, though it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_patch: Option<NoPatch>,
}

/// A file of one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffState {
    /// Kind.
    pub kind: DiffFileKind,
    /// Length in bytes.
    pub size: u64,
    /// Permission bits, with set-id and sticky, as a number.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of its content, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Where a symlink points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// Kind of a file in a diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiffFileKind {
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

/// Why a file has no patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NoPatch {
    /// It is no text.
    Binary,
    /// It has more than 1 MiB.
    TooLarge,
    /// The patches before it are 8 MiB already.
    TooMany,
    /// It could not be read.
    Unreadable,
}

/// A process that only one side has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffProcess {
    /// `added` or `removed`.
    pub change: DiffKind,
    /// Pid.
    pub pid: i32,
    /// Owner.
    pub uid: u32,
    /// Command line.
    pub command: Vec<String>,
}

/// A waiting socket that only one side has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffListener {
    /// `added` or `removed`.
    pub change: DiffKind,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Address that it is bound to.
    pub address: String,
    /// Port.
    pub port: u16,
}

/// Body of `POST …/promote`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PromoteRequest {
    /// A descendant of the sandbox. Its id answers `promoted` from then on; its children stay, as
    /// children of the sandbox, and its checkpoints go.
    pub winner: String,
    /// What becomes of the secrets of a winner that holds others than the sandbox: `true`, the sandbox gets them; `false`, it does
    /// not. If it is not said, the promote is refused (`holds_secrets`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherit_secrets: Option<bool>,
}

/// Answer of rewind and promote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Swapped {
    /// The sandbox, now with another machine.
    pub sandbox: Sandbox,
    /// From the cut until the new machine's agent had the sandbox's identity.
    pub ready_us: u64,
    /// The whole request in the node.
    pub total_us: u64,
}

/// Everything the caller has, with parents. A parent may be gone and is then listed, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tree {
    /// Parents before children; siblings by age.
    pub nodes: Vec<TreeNode>,
}

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TreeNode {
    /// Id.
    pub id: String,
    /// What it is.
    pub kind: TreeKind,
    /// Name.
    pub name: String,
    /// Id of its parent: of a checkpoint its sandbox; of a sandbox the one that it was forked from,
    /// or its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// State of a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// When it was made.
    pub created_at_ms: u64,
    /// Labels of a sandbox.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// What a node of the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TreeKind {
    /// A warm machine of a shape.
    Template,
    /// A sandbox.
    Sandbox,
    /// A frozen moment.
    Checkpoint,
}

/// Figures of a sandbox. One that is paused in the store takes nothing of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stats {
    /// Memory on the host, shared pages by share.
    pub pss_kib: u64,
    /// Memory on the host that is its alone.
    pub private_kib: u64,
    /// Guest memory that is present.
    pub ram_present_kib: u64,
    /// Guest memory that it shares with no other.
    pub ram_private_kib: u64,
    /// Bytes by which its disks differ from their images.
    pub disk_changed_bytes: u64,
    /// Bytes of them that it shares with no other.
    pub disk_own_bytes: u64,
    /// Pause of its last fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_pause_us: Option<u64>,
    /// What its guest says; absent if it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestUsage>,
    /// What it takes in the store, while it is paused there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredState>,
}

/// What the guest uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuestUsage {
    /// vCPUs online.
    pub cpus: u32,
    /// Time all vCPUs were busy since boot.
    pub cpu_busy_ms: u64,
    /// Time since boot (of the template).
    pub uptime_ms: u64,
    /// Memory.
    pub memory_total_bytes: u64,
    /// Memory that could be had.
    pub memory_available_bytes: u64,
    /// Root filesystem.
    pub disk_total_bytes: u64,
    /// Free there.
    pub disk_free_bytes: u64,
    /// Processes.
    pub processes: u32,
}

/// The console's latest output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Logs {
    /// Bytes ever written.
    pub written: u64,
    /// The end of them.
    pub text: String,
}

/// Body of `POST …/exec`. Either `argv` or `command`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Program and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A line for `/bin/sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's, or the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Name, number or `user:group`; the sandbox's, or root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Standard input, in `encoding`. At most 8 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// How `stdin` and the output are written.
    #[serde(default)]
    pub encoding: Encoding,
    /// The process is killed after this time; 10 minutes when absent, at most a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// How bytes are written in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// UTF-8; other bytes of the output are replaced.
    #[default]
    Text,
    /// Base64, standard alphabet with padding.
    Base64,
}

/// Answer of `POST …/exec`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecResult {
    /// Its pid in the guest.
    pub pid: i32,
    /// In the encoding that was asked for.
    pub stdout: String,
    /// Likewise.
    pub stderr: String,
    /// Exit code, if it exited.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Signal, if one killed it.
    #[serde(default)]
    pub signal: Option<i32>,
    /// It exited with code 0.
    pub ok: bool,
    /// Its time was over.
    pub timed_out: bool,
    /// Output beyond 16 MiB was read and dropped; stream what is longer.
    pub truncated: bool,
    /// From the request to the end, in the node.
    pub duration_us: u64,
}

/// First text frame of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StreamRequest {
    /// Start a process.
    Exec(StreamExec),
    /// Join one that was started by `exec`, also if it has ended lately.
    Attach {
        /// From `started`.
        pid: i32,
    },
}

/// A process to start. Either `argv` or `command`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamExec {
    /// Program and arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A line for `/bin/sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory; the sandbox's, or the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Name, number or `user:group`; the sandbox's, or root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Standard input is open and fed by binary frames.
    #[serde(default)]
    pub stdin: bool,
    /// Run on a terminal of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// The process is killed after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Terminal {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// Later text frames of the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StreamInput {
    /// No more standard input.
    End {},
    /// The terminal has a new size.
    Resize(Terminal),
    /// A signal for the process's group.
    Signal {
        /// Number of the signal.
        signal: i32,
    },
}

/// Text frames of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StreamReply {
    /// The process runs.
    Started {
        /// Its pid in the guest.
        pid: i32,
    },
    /// It has ended, and all its output was sent.
    Exited {
        /// Exit code, if it exited.
        exit_code: Option<i32>,
        /// Signal, if one killed it.
        signal: Option<i32>,
        /// Its time was over.
        timed_out: bool,
        /// Output that was dropped while nobody was attached.
        dropped_bytes: u64,
    },
    /// It did not work out.
    Error(Problem),
}

/// Answer of `GET …/processes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProcessList {
    /// In order of pid.
    pub processes: Vec<Process>,
}

/// A process in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// It was started by an exec, and can be attached to.
    pub started_here: bool,
}

/// Body of `POST …/processes/{pid}/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// Number of the signal, 1 to 64.
    pub signal: i32,
    /// To the whole group of the process.
    #[serde(default)]
    pub group: bool,
}

/// Query with a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ReadQuery {
    /// Absolute path in the guest.
    pub path: String,
}

/// Query of `PUT …/files`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct WriteQuery {
    /// Absolute path in the guest. Missing parents are made; the file appears whole or not at all.
    pub path: String,
    /// Permission bits in octal; those of the file that is replaced, or 0644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Name, number or `user:group`; that of the file that is replaced, or root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Make a symlink with this target; the body must be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink: Option<String>,
}

/// Query of `DELETE …/files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct RemoveQuery {
    /// Absolute path in the guest.
    pub path: String,
    /// Also directories that are not empty.
    #[serde(default)]
    pub recursive: bool,
}

/// Query of `GET …/files/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ListFilesQuery {
    /// Absolute path in the guest.
    pub path: String,
    /// Levels below, 1 to 64; 1, the directory's own entries, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
}

/// Answer of `GET …/files/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileList {
    /// Depth first, by name.
    pub entries: Vec<File>,
}

/// A file in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct File {
    /// Absolute path; bytes that are no UTF-8 are replaced.
    pub path: String,
    /// Kind.
    pub kind: FileKind,
    /// Length in bytes.
    pub size: u64,
    /// Permission bits, with set-id and sticky, as a number.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of its content, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Where a symlink points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// Kind of a [`File`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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

/// How an archive is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ArchiveFormat {
    /// `tar`: as it is.
    #[default]
    #[serde(rename = "tar")]
    Tar,
    /// `tar.gz`: compressed with gzip.
    #[serde(rename = "tar.gz")]
    TarGz,
}

/// Query of `GET …/files/archive`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ReadArchiveQuery {
    /// Absolute path of a directory in the guest.
    pub path: String,
    /// `tar` when absent.
    #[serde(default)]
    pub format: ArchiveFormat,
}

/// Query of `PUT …/files/archive`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct WriteArchiveQuery {
    /// Absolute path of a directory in the guest; made if it is missing.
    pub path: String,
    /// `tar` when absent.
    #[serde(default)]
    pub format: ArchiveFormat,
    /// Name, number or `user:group` of everything; the numbers of the archive when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// Answer of `PUT …/files/archive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unpacked {
    /// Entries of any kind.
    pub entries: u64,
    /// Regular files.
    pub files: u64,
    /// Bytes of regular files, holes included.
    pub bytes: u64,
}

/// Query of `GET …/files/watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct WatchQuery {
    /// Absolute path of a file or directory in the guest.
    pub path: String,
    /// Also below its directories, present and future.
    #[serde(default)]
    pub recursive: bool,
}

/// A change below a watched path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// Absolute path; bytes that are no UTF-8 are replaced.
    pub path: String,
}

/// Kind of a [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It appeared.
    Created,
    /// Its content changed.
    Written,
    /// It is gone.
    Removed,
    /// It got another name: a pair of `moved_from` and `moved_to`, if both are watched.
    MovedFrom,
    /// The other half.
    MovedTo,
    /// Mode, owner or times.
    Attributes,
    /// Too much happened at once and some changes were not told.
    Overflow,
    /// Of a newer node.
    #[serde(other)]
    Unknown,
}

/// Answer of `GET …/ports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortList {
    /// In order of port.
    pub ports: Vec<Port>,
}

/// A socket in the guest that waits for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Port {
    /// Port.
    pub port: u16,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Address that it is bound to.
    pub address: String,
}

/// Body of `POST …/files/mkdir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MkdirRequest {
    /// Absolute path. Missing parents are made; an existing directory is left as it is.
    pub path: String,
    /// Permission bits in octal; 0755 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Name, number or `user:group`; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// Body of `POST …/files/move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Absolute path of what is there.
    pub from: String,
    /// Absolute path that it gets; a file there is replaced.
    pub to: String,
}

/// Query of `GET /v1/events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only of this sandbox (id, beginning or name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
}

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Grows by one with each event of the node since its start; a gap was not for this caller.
    pub number: u64,
    /// When.
    pub at_ms: u64,
    /// What.
    pub kind: EventKind,
    /// The sandbox; empty with `lost` and `gap`.
    pub sandbox: String,
    /// The other one: the source of a fork, the winner of a promote, the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// In words, where there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Kind of an [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// It was created from a template.
    Created,
    /// It was forked from `other`.
    Forked,
    /// It was paused.
    Paused,
    /// It goes on.
    Resumed,
    /// Its name, labels or limits changed.
    Updated,
    /// It has the new checkpoint `other`.
    Checkpointed,
    /// Its checkpoint `other` is gone.
    CheckpointDeleted,
    /// It went back to the checkpoint `other`.
    Rewound,
    /// It goes on as `other` did.
    Promoted,
    /// The commit `other` was made of it, and is being written.
    Committed,
    /// Its commit `other` is durable.
    Durable,
    /// Its commit `other` could not be written.
    CommitFailed,
    /// It has the volume `other`.
    VolumeAttached,
    /// It has the volume `other` no more.
    VolumeDetached,
    /// What it may reach, or its edge rules, changed.
    NetworkChanged,
    /// The network `sandbox` was made.
    NetworkCreated,
    /// The network `sandbox` is a copy of `other`.
    NetworkForked,
    /// The network `sandbox` goes on as `other` did.
    NetworkPromoted,
    /// The sandbox `other` is a member of the network `sandbox`.
    NetworkJoined,
    /// The sandbox `other` is no member of it any more.
    NetworkLeft,
    /// The network `sandbox` is gone.
    NetworkDeleted,
    /// There is the link `other` to one of its ports.
    LinkCreated,
    /// The link `other` is gone.
    LinkDeleted,
    /// It was deleted.
    Deleted,
    /// Its machine ended by itself.
    Failed,
    /// This client was too slow and has missed events: ask for the state anew.
    Lost,
    /// What came after the `Last-Event-ID` is no longer known: ask for the state anew.
    Gap,
    /// Of a newer node.
    #[serde(other)]
    Unknown,
}
