//! Moving commits and templates between nodes, registries, stores and files.

use serde::{Deserialize, Serialize};

use super::{Commit, Template};

/// Body of `POST /v1/commits/{commit}/push` and `POST /v1/templates/{name}/push`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PushRequest {
    /// Where to: `file:///DIRECTORY[#NAME]` or `s3://BUCKET/PREFIX[#NAME]`, a store that is made if there is none, or
    /// `oci://HOST[:PORT]/REPOSITORY[:TAG]`, as the node reaches them. A name or tag that is there moves.
    pub remote: String,
}

/// Body of `POST /v1/pull`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// Where from, as in a push. In a store, NAME is a name or an id of something there; it can be left out if there is
    /// only one.
    pub remote: String,
    /// A new tag of the commit here, or the name of the template here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Take a commit also if its machine cannot go on on this host: its files can be checked out.
    #[serde(default)]
    pub disk: bool,
}

/// Query of `GET /v1/commits/{commit}/pack` and `GET /v1/templates/{name}/pack`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct PackQuery {
    /// Ids of commits, with commas between them, that the receiver has: what they hold is left out. Others than this
    /// node's mean nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub have: Option<String>,
}

/// Query of `POST /v1/unpack`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct UnpackQuery {
    /// As in a pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// As in a pull.
    #[serde(default)]
    pub disk: bool,
}

/// Event `progress` of a push or pull: how far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoveProgress {
    /// Chunks of all that moves, as far as it is known.
    pub chunks: u64,
    /// Chunks that are there by now.
    pub done_chunks: u64,
    /// Chunks that travelled: the others were there.
    pub moved_chunks: u64,
    /// Bytes of those that travelled.
    pub moved_bytes: u64,
}

/// Event `end` of a push or pull, and answer of `POST /v1/unpack`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Moved {
    /// The commit that was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// The template that was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
    /// It was there already, and nothing was moved.
    #[serde(default)]
    pub known: bool,
    /// What was moved.
    pub progress: MoveProgress,
}
