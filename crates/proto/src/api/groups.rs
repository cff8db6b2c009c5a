//! Networks of several sandboxes, and what is done with all of their members at one instant.

use serde::{Deserialize, Serialize};

use super::{Checkpoint, Commit, Problem, Sandbox, State};
pub use crate::net::Between;

/// Label of the commits of a network: the group that they are of.
pub const GROUP_LABEL: &str = "ramet.group";
/// Label of the commits of a network: number and name of the member, as `3 db`.
pub const MEMBER_LABEL: &str = "ramet.member";

/// Body of `POST /v1/networks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateNetwork {
    /// Unique among the caller's networks; as names of sandboxes.
    pub name: String,
    /// Who may begin a connection with whom; everybody with everybody when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<Vec<Between>>,
    /// Begin with the members of a group commit, each checked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Body of `PATCH /v1/networks/{network}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct UpdateNetwork {
    /// As in [`CreateNetwork`]; absent is everybody with everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<Vec<Between>>,
}

/// A network. Its members see each other and nothing of other networks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Network {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Principal.
    pub owner: String,
    /// When it came to be.
    pub created_at_ms: u64,
    /// The network that it is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// As in [`CreateNetwork`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<Vec<Between>>,
    /// By number.
    pub members: Vec<NetworkMember>,
}

/// A sandbox in a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkMember {
    /// Its name there, which the others resolve.
    pub name: String,
    /// Its number there.
    pub number: u8,
    /// Its addresses there.
    pub addresses: Vec<String>,
    /// Id of the sandbox.
    pub sandbox: String,
    /// Its name.
    pub sandbox_name: String,
    /// Its state.
    pub state: State,
}

/// Answer of `GET /v1/networks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkList {
    /// The caller's, by name.
    pub networks: Vec<Network>,
}

/// Body of `POST /v1/networks/{network}/members`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinNetwork {
    /// The sandbox, which must run and be in no network.
    pub sandbox: String,
    /// Its name there; the sandbox's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Body of `POST /v1/networks/{network}/fork`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ForkNetwork {
    /// Copies; as many as names, or 1, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Names of the copies; `{name}-1` and so on when absent. Their sandboxes are named `{copy}-{member}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// As in a fork of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherit_secrets: Option<bool>,
    /// As in a fork of one.
    #[serde(default)]
    pub keep_edge: bool,
    /// As in a fork of one.
    #[serde(default)]
    pub deterministic: bool,
}

/// Answer of `POST /v1/networks/{network}/fork`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForkedNetwork {
    /// Until all members had stopped.
    pub hold_us: u64,
    /// The longest fork of a member after that.
    pub pause_us: u64,
    /// All of it.
    pub total_us: u64,
    /// In order.
    pub copies: Vec<NetworkCopy>,
}

/// A copy of a network, whole, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkCopy {
    /// The copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Why not. Nothing is left of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// Body of `POST /v1/networks/{network}/checkpoint` and `…/rewind`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NetworkMoment {
    /// Name of the checkpoints, one of each member.
    pub checkpoint: String,
}

/// Answer of `POST /v1/networks/{network}/checkpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkCheckpoint {
    /// One of each member, of one instant.
    pub checkpoints: Vec<Checkpoint>,
}

/// Body of `POST /v1/networks/{network}/promote`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PromoteNetwork {
    /// A copy of this network, with the same members.
    pub winner: String,
    /// As in a promote of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherit_secrets: Option<bool>,
}

/// Body of `POST /v1/networks/{network}/commit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CommitNetwork {
    /// As in a commit of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// As in a commit of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// As in a commit of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherit_secrets: Option<bool>,
}

/// Answer of `POST /v1/networks/{network}/commit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkCommit {
    /// Names all of them: for [`CreateNetwork::group`], and the value of the label [`GROUP_LABEL`].
    pub group: String,
    /// One of each member, of one instant. They are written in the background.
    pub commits: Vec<Commit>,
}

/// Answer of `POST /v1/networks/{network}/pause` and `…/resume`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkSandboxes {
    /// The members.
    pub sandboxes: Vec<Sandbox>,
}
