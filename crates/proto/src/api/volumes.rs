//! Volumes: directories that outlive sandboxes.

use serde::{Deserialize, Serialize};

/// Body of `POST /v1/volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Lower-case letters, digits and hyphens, at most 63; unique among the caller's volumes.
    pub name: String,
    /// Room for files; 1024 when absent. Only what is written takes space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_mib: Option<u32>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Volume {
    /// Names it for good: `vol-` and 16 hex digits.
    pub id: String,
    /// Name.
    pub name: String,
    /// Principal that it belongs to.
    pub owner: String,
    /// Room for files.
    pub size_mib: u32,
    /// Bytes that it takes on the node's disk.
    pub stored_bytes: u64,
    /// When it came to be.
    pub created_at_ms: u64,
    /// Sandboxes that have it; paused ones, too.
    pub used_by: Vec<VolumeUse>,
}

/// A sandbox that has a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeUse {
    /// Id of the sandbox.
    pub sandbox: String,
    /// Its name.
    pub sandbox_name: String,
    /// Where the volume is in it.
    pub path: String,
    /// How.
    pub mode: VolumeMode,
}

/// Answer of `GET /v1/volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VolumeList {
    /// By name.
    pub volumes: Vec<Volume>,
}

/// Body of `POST …/volumes`, and part of `CreateSandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AttachVolume {
    /// Name or id of the volume.
    pub volume: String,
    /// Absolute path of a directory in the sandbox; made if it is missing.
    pub path: String,
    /// Others may have it, too, and nobody writes it.
    #[serde(default)]
    pub read_only: bool,
}

/// How a sandbox has a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum VolumeMode {
    /// Nobody writes it; forks of a running sandbox share it.
    ReadOnly,
    /// The sandbox alone has it.
    ReadWrite,
    /// What it was when the sandbox was forked, rewound or checked out, copy-on-write: the sandbox's own, and no volume any more.
    Snapshot,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttachedVolume {
    /// Name of the volume.
    pub volume: String,
    /// Its id.
    pub volume_id: String,
    /// Where it is.
    pub path: String,
    /// How.
    pub mode: VolumeMode,
}
