//! Node ↔ network service: what `ramet-net` is told, and what it tells.
//!
//! The service listens on a Unix seqpacket socket. Each message is one JSON text of at most [`MESSAGE_MAX`] bytes; requests carry an id,
//! answers the same. The node is the only client at a time: who connects later takes the place of who came before.
//! Ports outlive the connection, so a node that starts again finds them ([`Request::List`]).
//!
//! A **port** is the network side of one machine. [`Request::Attach`] comes with one descriptor, a seqpacket socket: the **link**, whose
//! other end the machine's monitor has. Each message on a link is a frame: [`HEADER`] bytes of virtio-net header (version 1, with `num_buffers`, little-endian),
//! then the Ethernet frame, at most [`FRAME_MAX`] bytes. Of the header only `flags` (`NEEDS_CSUM` both ways, `DATA_VALID`
//! to the guest), `csum_start` and `csum_offset` are used; segmentation is not offered, since the MTU is [`MTU`].
//!
//! Inside, every machine has the same addresses: [`GUEST_MAC`], [`GUEST_V4`], [`GUEST_V6`]; [`GATEWAY_V4`] and [`GATEWAY_V6`] are the service itself, which
//! answers ARP, neighbour solicitations, ICMP echo and DNS there. A member of a network has one more address in [`NETWORK_V4`] and [`NETWORK_V6`].

pub mod rule;

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::api::network::{Limits, Policy};

/// Longest message between node and service.
pub const MESSAGE_MAX: usize = 192 << 10;
/// Bytes of the header before each frame.
pub const HEADER: usize = 12;
/// Largest packet, without the Ethernet header.
pub const MTU: u16 = 65520;
/// Longest frame, without [`HEADER`].
pub const FRAME_MAX: usize = MTU as usize + 14;
/// Of every guest.
pub const GUEST_MAC: [u8; 6] = [0x52, 0x4d, 0x54, 0, 0, 2];
/// Of the service, seen from every guest.
pub const GATEWAY_MAC: [u8; 6] = [0x52, 0x4d, 0x54, 0, 0, 1];
/// Of every guest, in a /24.
pub const GUEST_V4: Ipv4Addr = Ipv4Addr::new(10, 114, 0, 2);
/// Of the service.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 114, 0, 1);
/// Of every guest, in a /64.
pub const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd72, 0x616d, 0x6574, 0, 0, 0, 0, 2);
/// Of the service.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd72, 0x616d, 0x6574, 0, 0, 0, 0, 1);
/// First address of networks, a /24; member number n is n further. The same in every network: nothing crosses them.
pub const NETWORK_V4: Ipv4Addr = Ipv4Addr::new(10, 114, 1, 0);
/// Likewise, a /64.
pub const NETWORK_V6: Ipv6Addr = Ipv6Addr::new(0xfd72, 0x616d, 0x6574, 1, 0, 0, 0, 0);
/// Members of a network are numbered 1 to this.
pub const MEMBERS_MAX: u8 = 250;
/// What names of members may end with: `db` is `db.ramet.internal`, too.
pub const DOMAIN: &str = "ramet.internal";

/// Common name of every authority: programs find a certificate by a hash of its name.
pub const AUTHORITY_NAME: &str = "ramet edge";
/// That hash, as OpenSSL computes it.
pub const AUTHORITY_HASH: &str = "3e1d7458";

/// From the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Chosen by the node.
    pub id: u64,
    /// What to do.
    pub request: Request,
}

/// What the service can be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// A machine's port. Comes with its link. If the port is there already, its old link is closed, its connections to the outside are
    /// reset, and it goes on with this one.
    Attach(Box<Port>),
    /// Another configuration; the link stays, and so do connections that are still allowed. Others are reset.
    Configure(Box<Port>),
    /// The port goes, with all its connections.
    Detach {
        /// Name of the port.
        port: String,
    },
    /// All ports.
    List {},
    /// Figures of a port.
    Stats {
        /// Name of the port.
        port: String,
    },
    /// Refusals and, if asked for, connections, oldest first.
    Log {
        /// Name of the port.
        port: String,
        /// Only entries with a greater number.
        after: u64,
        /// At most so many, the newest.
        limit: u32,
    },
    /// The service ends. Never fails.
    Stop {},
}

/// Configuration of a port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Chosen by the node; the id of the sandbox.
    pub port: String,
    /// All of these must allow a connection. None: nothing is allowed.
    pub policies: Vec<Policy>,
    /// Bounds.
    pub limits: Limits,
    /// The network that it is a member of.
    pub member: Option<Member>,
    /// Headers that are added on the way out, with their values.
    pub edge: Vec<EdgeRule>,
    /// Certificate and key (PEM) of the authority that the guest trusts; needed if there is an edge rule.
    pub authority: Option<Authority>,
}

/// A place in a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// The network. Ports with the same value see each other. Copies of a network have values of their own.
    pub network: String,
    /// Name among the members.
    pub name: String,
    /// 1 to [`MEMBERS_MAX`]: the place of its address.
    pub number: u8,
    /// Of this network: who may begin a connection with whom. None: everybody with everybody.
    pub between: Option<Vec<Between>>,
}

/// A permission between members: everything else is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Between {
    /// Name of the member that begins, or `*`.
    pub from: String,
    /// Name of the other, or `*`.
    pub to: String,
    /// Ports of the other; all if empty.
    #[serde(default)]
    pub ports: Vec<u16>,
}

/// A header for requests to a host.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeRule {
    /// Exact name of the host. Connections to it are ended at the service.
    pub host: String,
    /// Name of the header; one that the guest sent is replaced.
    pub header: String,
    /// Its value. A secret: never logged, and not shown by `Debug`.
    pub value: String,
}

impl std::fmt::Debug for EdgeRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EdgeRule")
            .field("host", &self.host)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// A certificate authority of one sandbox.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authority {
    /// PEM.
    pub certificate: String,
    /// PEM. A secret.
    pub key: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// From the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// First message on a connection.
    Hello {
        /// [`crate::VERSION`].
        version: u32,
        /// Process of the service.
        pid: u32,
    },
    /// Done.
    Done {
        /// Number of the request.
        id: u64,
        /// What came of it.
        outcome: Outcome,
    },
    /// Not done; nothing changed.
    Failed {
        /// Number of the request; absent if it could not be read.
        id: Option<u64>,
        /// For programs.
        code: Code,
        /// What was wrong.
        message: String,
    },
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// Nothing more to say.
    Nothing {},
    /// Answer to [`Request::List`].
    Ports(Vec<Listed>),
    /// Answer to [`Request::Stats`].
    Stats(Box<crate::api::network::NetStats>),
    /// Answer to [`Request::Log`].
    Log(Vec<crate::api::network::LogEntry>),
}

/// A port that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// Its name.
    pub port: String,
    /// The other end of its link is still open.
    pub linked: bool,
}

/// Why the service refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The message is not one.
    BadMessage,
    /// A value is out of its range.
    BadValue,
    /// The message came with the wrong number of descriptors.
    BadDescriptors,
    /// There is no such port.
    NotFound,
    /// Too many ports.
    TooMany,
}
