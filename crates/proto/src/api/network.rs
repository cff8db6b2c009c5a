//! The network of sandboxes: what they may reach, who reaches them, networks of several.

use serde::{Deserialize, Serialize};

/// What a sandbox may reach outside. Nothing, unless it is said here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// One of these must fit. None: nothing is allowed.
    #[serde(default)]
    pub allow: Vec<Allow>,
}

/// Something that may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Allow {
    /// A name (`example.org`), all names below one (`*.example.org`, not `example.org` itself), an address or range (`192.0.2.0/24`,
    /// `2001:db8::/32`), or `*`: every name and every public address.
    ///
    /// Private, link-local and shared ranges, the host's own addresses and metadata services are only ever reached by an address or range that
    /// lies in them; a name that leads there is refused without one.
    pub to: String,
    /// Ports, all if empty.
    #[serde(default)]
    pub ports: Vec<PortRange>,
    /// Protocols, all if empty.
    #[serde(default)]
    pub protocols: Vec<Protocol>,
}

/// Ports from `first` to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    /// First.
    pub first: u16,
    /// Last, included.
    pub last: u16,
}

/// What goes over IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Echo requests.
    Icmp,
}

/// Bounds of a sandbox's network. 0: the node's own bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes per second to the outside, each way.
    #[serde(default)]
    pub bytes_per_s: u64,
    /// Packets per second from the guest.
    #[serde(default)]
    pub packets_per_s: u32,
    /// Connections (TCP and UDP flows) at a time.
    #[serde(default)]
    pub connections: u32,
}

/// Figures of a sandbox's network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NetStats {
    /// Bytes of frames from the guest.
    pub sent_bytes: u64,
    /// Bytes of frames to the guest.
    pub received_bytes: u64,
    /// Frames from the guest.
    pub sent_frames: u64,
    /// Frames to the guest.
    pub received_frames: u64,
    /// Connections to the outside that were made.
    pub connections: u64,
    /// Those that are there now.
    pub connections_now: u64,
    /// What was refused by the policy.
    pub refused: u64,
    /// Frames that were malformed, spoofed or over a limit.
    pub dropped: u64,
}

/// Something that happened at a sandbox's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LogEntry {
    /// Grows by one with each entry of the sandbox.
    pub number: u64,
    /// When.
    pub at_ms: u64,
    /// What became of it.
    pub verdict: Verdict,
    /// `tcp`, `udp`, `icmp`, `dns`, `tls`, `http` or `frame`.
    pub kind: String,
    /// Where to: an address and port, or a name.
    pub to: String,
    /// The name that the address was given for, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why: a stable word, as `not_allowed`, `private_address`, `name_mismatch`, `too_many_connections`.
    pub reason: String,
    /// How often it happened since the entry was made; equal ones are counted together.
    pub count: u64,
}

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was made.
    Allowed,
    /// It was not.
    Refused,
}
