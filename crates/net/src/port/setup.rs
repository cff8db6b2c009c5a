//! A port's configuration, read and checked: what is wrong is said to the node before anything changes.

use std::sync::Arc;

use ramet_proto::api::network::Limits;
use ramet_proto::net::{MEMBERS_MAX, Member, Port};

use crate::edge::{Edge, EdgeError};
use crate::policy::{PolicyError, Rules, parse_name};

/// Connections at a time, if the node says nothing.
const CONNECTIONS: u32 = 1024;
/// Most connections that the node can ask for.
const CONNECTIONS_MAX: u32 = 16 << 10;
/// Longest name of a port or network.
const NAME_MAX: usize = 64;
/// Most rules between members.
const BETWEEN_MAX: usize = 1024;

/// Why a configuration is not one.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Of the port.
    #[error("the name of a port has 1 to {NAME_MAX} letters, digits, `-`, `_` or `.`")]
    Name,
    /// Of the network.
    #[error("the name of a network has 1 to {NAME_MAX} printable characters")]
    Network,
    /// Of the member.
    #[error("{0:?} is not the name of a member: one label of letters, digits and `-`")]
    MemberName(String),
    /// Of the member.
    #[error("members are numbered 1 to {MEMBERS_MAX}, not {0}")]
    MemberNumber(u8),
    /// Between members.
    #[error("a network has at most {BETWEEN_MAX} rules between members")]
    Between,
    /// A rule.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Secrets at the edge.
    #[error(transparent)]
    Edge(#[from] EdgeError),
    /// Limits.
    #[error("a sandbox has at most {CONNECTIONS_MAX} connections at a time")]
    Connections,
}

/// What a port goes by.
#[derive(Debug, Clone)]
pub struct Setup {
    /// What may be reached.
    pub rules: Rules,
    /// Bounds, without zeros that mean a default.
    pub limits: Limits,
    /// Its place in a network.
    pub member: Option<Member>,
    /// Secrets at the edge, if there are rules.
    pub edge: Option<Arc<Edge>>,
}

impl Setup {
    /// Reads a configuration.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(port: &Port) -> Result<Self, SetupError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if port.port.is_empty() || port.port.len() > NAME_MAX || !port.port.bytes().all(plain) {
            return Err(SetupError::Name);
        }
        if let Some(member) = &port.member {
            check_member(member)?;
        }
        let mut limits = port.limits;
        if limits.connections == 0 {
            limits.connections = CONNECTIONS;
        }
        if limits.connections > CONNECTIONS_MAX {
            return Err(SetupError::Connections);
        }
        Ok(Self {
            rules: Rules::parse(&port.policies)?,
            limits,
            member: port.member.clone(),
            edge: Edge::parse(&port.edge, port.authority.as_ref())?.map(Arc::new),
        })
    }
}

fn check_member(member: &Member) -> Result<(), SetupError> {
    let network = &member.network;
    if network.is_empty()
        || network.len() > NAME_MAX
        || !network.bytes().all(|b| b.is_ascii_graphic())
    {
        return Err(SetupError::Network);
    }
    if parse_name(&member.name).as_ref() != Some(&member.name) || member.name.contains('.') {
        return Err(SetupError::MemberName(member.name.clone()));
    }
    if member.number == 0 || member.number > MEMBERS_MAX {
        return Err(SetupError::MemberNumber(member.number));
    }
    if member.between.as_ref().is_some_and(|rules| rules.len() > BETWEEN_MAX) {
        return Err(SetupError::Between);
    }
    Ok(())
}
