//! The network of sandboxes: what they may reach, who reaches them, networks of several.
//!
//! # Layers
//! What a sandbox may reach is a list of layers, and all of them must allow it: the cap of the token that made it, the layer
//! of the template that its line began with, those of the sandboxes that it was forked from, and its own. So a fork, or whoever
//! has a token with a cap, can only narrow. A sandbox that was made without `network` reaches nothing.
//!
//! # Rules
//! `TO[:PORTS][/PROTOCOLS]`, as the command line takes them: `example.org`, `*.example.org:443/tcp`, `192.0.2.0/24:8000-8100/tcp+udp`,
//! `[2001:db8::/32]:53`. See [`crate::net::rule`].

use serde::{Deserialize, Serialize};

/// What a sandbox, its children or a template ask of the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NetworkRequest {
    /// A preset that is allowed besides `allow`: `none`, `open` (everything public), `packages`, or another one of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// What is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Allow>,
    /// Bounds; those of the source of a fork hold as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Headers that are set on the way out. Not for templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edge: Vec<EdgeRequest>,
}

/// A header that requests to a host get on the way out, with a secret that the guest never sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EdgeRequest {
    /// Exact name of the host. TLS connections to it end at the node, whose certificate for it the guest trusts.
    pub host: String,
    /// Name of the header; one that the guest sends is replaced.
    pub header: String,
    /// Its value, with one `{secret:NAME}` in it: `Bearer {secret:API_KEY}`.
    pub value: String,
}

/// Answer of `GET …/network` and `PUT …/network`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxNetwork {
    /// Its machine is connected. Otherwise nothing is reached, whatever is allowed.
    pub connected: bool,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// All of these must allow what is reached. None: nothing is.
    pub layers: Vec<Layer>,
    /// Bounds.
    pub limits: Limits,
    /// Headers that are set on the way out, without values of secrets.
    pub edge: Vec<EdgeRequest>,
    /// Figures since its machine was connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stats: Option<NetStats>,
}

/// One of the policies that must allow what a sandbox reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Layer {
    /// Where it comes from.
    pub from: LayerSource,
    /// The preset that it was made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// What is allowed, the preset included.
    pub allow: Vec<Allow>,
}

/// Where a [`Layer`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LayerSource {
    /// The cap of a token.
    Token,
    /// The template that its line began with.
    Template,
    /// A sandbox that it was forked from.
    Source,
    /// Itself. The only one that can be replaced.
    Own,
    /// Of a newer node.
    #[serde(other)]
    Unknown,
}

/// Query of `GET …/network/log`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct NetworkLogQuery {
    /// Only entries with a greater number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// At most so many, the newest, 1 to 1000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Answer of `GET …/network/log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkLog {
    /// Oldest first. Equal ones are counted together.
    pub entries: Vec<LogEntry>,
}

/// Whether the node has a network for its sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeNetwork {
    /// The network service runs.
    pub up: bool,
    /// Why it does not; sandboxes reach nothing then, and everything else works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Presets that `egress` can name.
    #[serde(default)]
    pub presets: Vec<String>,
}

/// Body of `PUT /v1/secrets/{name}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PutSecret {
    /// At most 4096 visible ASCII characters. Never shown again.
    pub value: String,
}

impl std::fmt::Debug for PutSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PutSecret").finish_non_exhaustive()
    }
}

/// A secret that edge rules can name. Its value stays in the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Secret {
    /// Name.
    pub name: String,
    /// When it was first set.
    pub created_at_ms: u64,
    /// When it was last set.
    pub updated_at_ms: u64,
    /// Sandboxes with an edge rule that names it.
    pub used_by: Vec<String>,
}

/// Answer of `GET /v1/secrets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SecretList {
    /// The caller's, by name.
    pub secrets: Vec<Secret>,
}

/// Body of `POST /v1/tokens`. With `egress` or `allow` the token has a cap: sandboxes that are made with it, or forked, or whose
/// network is changed with it, reach no more than that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Whose it is: letters, digits, hyphens and dots, at most 63.
    pub principal: String,
    /// A preset of the cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<String>,
    /// Rules of the cap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Allow>,
}

/// Answer of `POST /v1/tokens`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedToken {
    /// The token itself. Shown this once.
    pub token: String,
    /// What is known of it.
    pub about: Token,
}

impl std::fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreatedToken").field("about", &self.about).finish_non_exhaustive()
    }
}

/// A token that the node accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// Names it.
    pub id: String,
    /// Whose it is.
    pub principal: String,
    /// Its cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<Policy>,
    /// When it was made.
    pub created_at_ms: u64,
}

/// Answer of `GET /v1/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenList {
    /// Oldest first.
    pub tokens: Vec<Token>,
}

/// Body of `POST …/links`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateLink {
    /// TCP port in the guest.
    pub port: u16,
    /// How long it holds, at most 30 days; a day when absent, or for as long as the sandbox is there if it is `public`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// It may hold for ever.
    #[serde(default)]
    pub public: bool,
}

/// A way to a port that needs no token: whoever has the address can use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Link {
    /// Names it.
    pub id: String,
    /// Its sandbox.
    pub sandbox: String,
    /// TCP port in the guest.
    pub port: u16,
    /// It was asked for as public.
    pub public: bool,
    /// When it was made.
    pub created_at_ms: u64,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Path at the node, with its secret. Shown only when the link is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Answer of `GET …/links`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinkList {
    /// Oldest first.
    pub links: Vec<Link>,
}

/// Query of `GET …/tcp/{port}/wait`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct PortWaitQuery {
    /// How long, at most 600; 30 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Also wait until a `GET` of this path is answered with a status below 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// Answer of `GET …/tcp/{port}/wait`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortReady {
    /// The port.
    pub port: u16,
    /// With `path`: the status that was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long it took.
    pub waited_ms: u64,
}

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
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = NetworkLimits))]
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
