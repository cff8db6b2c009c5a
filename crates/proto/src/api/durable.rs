//! What outlives machines: paused sandboxes in the store, commits and their names, the store itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::needs::Needs;

/// Body of `POST …/pause`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Keep the machine in the host's memory instead of the store: takes no time, frees nothing, and does not outlive
    /// the host.
    #[serde(default)]
    pub memory: bool,
    /// Keep only the files. It boots anew when it is resumed, on any host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk: bool,
}

/// A machine's state in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredState {
    /// Names its content: BLAKE3 in hex.
    pub state: String,
    /// Bytes of memory and disk that are not zero.
    pub logical_bytes: u64,
    /// Bytes that were written for it: what the store did not have yet, compressed.
    pub written_bytes: u64,
    /// Bytes that it takes in the store, with what it shares with others.
    #[serde(default)]
    pub stored_bytes: u64,
    /// When it was safe.
    pub stored_at_ms: u64,
    /// It can go on without being fetched.
    #[serde(default)]
    pub warm: bool,
    /// It is files alone: what goes on from it boots.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk: bool,
    /// What its machine needs of a host; not known of old ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Needs>,
}

/// Body of `POST …/commits`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateCommit {
    /// What it is, in words; at most 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Who made it; the caller when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// For the caller's own use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A branch that points to it from when it is durable on, made if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Answer when it is durable, not when the moment is kept.
    #[serde(default)]
    pub wait: bool,
    /// Keep only the files. A sandbox of it boots anew, on any host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disk: bool,
    /// Of a sandbox that holds secrets: `true`, since memory is kept as it is and whoever checks the commit out can find them in
    /// it. Not needed with `disk`. If it is not said, the commit is refused (`holds_secrets`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherit_secrets: Option<bool>,
}

/// How far a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CommitState {
    /// Its moment is kept in memory and is being written.
    Writing,
    /// It is in the store.
    Durable,
    /// It could not be written; see `failure`.
    Failed,
}

/// A state of a sandbox, kept for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Commit {
    /// Names it for good: `cm-` and 16 hex digits.
    pub id: String,
    /// How far it is.
    pub state: CommitState,
    /// Why it could not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Principal that it belongs to.
    pub owner: String,
    /// Message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Author.
    pub author: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The commits before it in its line, nearest first; also those that are gone.
    pub ancestors: Vec<String>,
    /// Sandbox that it was made of.
    pub sandbox: String,
    /// That sandbox's name then.
    pub sandbox_name: String,
    /// Template that its line began with.
    pub template: String,
    /// vCPUs.
    pub vcpus: u8,
    /// Memory.
    pub memory_mib: u32,
    /// Free space of the disk at the beginning.
    pub disk_mib: u32,
    /// When its moment was.
    pub created_at_ms: u64,
    /// Time that keeping the moment took: what the sandbox and the caller waited at least.
    pub kept_us: u64,
    /// It has only the files; a sandbox of it boots anew.
    #[serde(default)]
    pub disk: bool,
    /// What is in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredState>,
    /// Names that point to it.
    pub refs: Vec<String>,
}

/// Query of `GET /v1/commits`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct CommitsQuery {
    /// Only this commit and its ancestors, by id or name; or those of a sandbox's line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// `KEY` or `KEY=VALUE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// 1 to 1000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// From the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Answer of `GET /v1/commits`, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CommitList {
    /// A page of them.
    pub commits: Vec<Commit>,
    /// For the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What a name of a commit is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RefKind {
    /// It stays where it is.
    #[default]
    Tag,
    /// It moves on with each commit that is made on it.
    Branch,
}

/// Body of `PUT /v1/refs/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutRef {
    /// Id, unique beginning of it, or another name of a commit.
    pub commit: String,
    /// Tag when absent.
    #[serde(default)]
    pub kind: RefKind,
    /// A name that points elsewhere is moved.
    #[serde(default)]
    pub force: bool,
}

/// A name of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ref {
    /// Lower-case letters, digits, hyphens and dots, at most 63.
    pub name: String,
    /// What it is.
    pub kind: RefKind,
    /// The commit.
    pub commit: String,
    /// When it was made or moved.
    pub updated_at_ms: u64,
}

/// Answer of `GET /v1/refs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefList {
    /// All of the caller's, by name.
    pub refs: Vec<Ref>,
}

/// Answer of `GET /v1/store`: what the caller keeps, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoreUsage {
    /// Where it is.
    pub location: String,
    /// Commits that are durable.
    pub commits: u64,
    /// Sandboxes that are paused in it.
    pub paused: u64,
    /// Bytes of all of them, each counted by itself.
    pub logical_bytes: u64,
    /// Bytes that they take, everything counted once.
    pub stored_bytes: u64,
    /// Bytes on this host that make them go on without being fetched.
    pub cache_bytes: u64,
}

/// Body of `POST /v1/store/gc`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GcRequest {
    /// Only say what would go.
    #[serde(default)]
    pub dry_run: bool,
    /// Remove this host's copies of states as well: what goes on from them is cold then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copies: bool,
}

/// Answer of `POST /v1/store/gc`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GcReport {
    /// Objects that something needs.
    pub kept: u64,
    /// Objects that nothing needs and that go when the grace time is over.
    pub condemned: u64,
    /// Objects that are gone now.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
}

/// Body of `POST /v1/store/check`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// Read and verify every byte, not only that it is there.
    #[serde(default)]
    pub deep: bool,
    /// Replace what is damaged or missing from copies on this host.
    #[serde(default)]
    pub repair: bool,
}

/// Answer of `POST /v1/store/check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckReport {
    /// Objects that were looked at.
    pub checked: u64,
    /// What is wrong, each in a sentence that names what it hits.
    pub damage: Vec<String>,
    /// How many of them were repaired.
    pub repaired: u64,
}
