//! What a port may reach: pure decisions over rules, pinned names and kept ranges.
//!
//! Every policy of the list must allow; an empty list denies. An address is allowed by an address rule that covers it, by `*` if it is public, or by a name
//! rule if one of the names that this port's own lookups gave it fits. Kept ranges (see [`crate::ranges`]) are reached only by an address
//! rule that lies in them. Where a name rule was needed, all policies have to agree on one name, and the connection's own words are held against
//! it later ([`Rules::allows_name`]).

use std::net::IpAddr;

use ramet_proto::api::network::{Allow, Policy, PortRange, Protocol};
use ramet_proto::net::rule::{self, RuleError, Target};

use crate::ranges::{Kept, Range, effective};

/// Most policies of a port.
pub const POLICIES_MAX: usize = 32;

/// Why policies are none. The text says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A rule.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// Too many policies.
    #[error("a sandbox has at most {POLICIES_MAX} policies")]
    TooMany,
}

/// What a rule reaches, as it is asked here.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    /// Every name, every public address.
    All,
    /// One name.
    Name(String),
    /// All names that end so; it begins with a dot.
    Below(String),
    /// An address or range.
    Range(Range),
}

impl From<Target> for Reach {
    fn from(target: Target) -> Self {
        match target {
            Target::All => Self::All,
            Target::Name(name) => Self::Name(name),
            Target::Below(name) => Self::Below(format!(".{name}")),
            Target::Range(range) => Self::Range(Range::around(range.first, range.prefix).plain()),
        }
    }
}

impl Reach {
    fn names(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Name(own) => own == name,
            Self::Below(parent) => name.len() > parent.len() && name.ends_with(parent.as_str()),
            Self::Range(_) => false,
        }
    }

    fn covers(&self, address: IpAddr, kept: &Kept) -> bool {
        match self {
            Self::All => !kept.keeps(address),
            Self::Range(own) => {
                own.contains(address) && kept.around(address).all(|range| own.within(range))
            }
            Self::Name(_) | Self::Below(_) => false,
        }
    }
}

/// A host name in lower case, without the last dot.
#[must_use]
pub fn parse_name(text: &str) -> Option<String> {
    rule::name(text).ok()
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    to: Reach,
    ports: Vec<PortRange>,
    protocols: Vec<Protocol>,
}

impl Rule {
    fn parse(allow: &Allow) -> Result<Self, RuleError> {
        let to = allow.to.parse::<Target>()?.into();
        Ok(Self { to, ports: allow.ports.clone(), protocols: allow.protocols.clone() })
    }

    /// A rule with ports says nothing of echo requests, which have none, unless it names them.
    fn fits(&self, port: u16, protocol: Protocol) -> bool {
        let named = self.protocols.contains(&protocol);
        if protocol == Protocol::Icmp {
            return named || self.protocols.is_empty() && self.ports.is_empty();
        }
        (named || self.protocols.is_empty())
            && (self.ports.is_empty()
                || self.ports.iter().any(|range| (range.first..=range.last).contains(&port)))
    }
}

fn parse_policy(policy: &Policy) -> Result<Vec<Rule>, RuleError> {
    rule::check(policy)?;
    policy.allow.iter().map(Rule::parse).collect()
}

/// Where a connection goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Destination {
    /// As the guest wrote it.
    pub address: IpAddr,
    /// 0 for echo requests.
    pub port: u16,
    /// What goes there.
    pub protocol: Protocol,
}

/// What the rules say of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Whatever it says.
    Allowed,
    /// As long as what it says of names fits.
    AllowedByName,
    /// No.
    Refused(Reason),
}

/// Why something was refused: stable words of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No rule allows it.
    NotAllowed,
    /// Only a rule that names this kept address would.
    PrivateAddress,
}

impl Reason {
    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::NotAllowed => "not_allowed",
            Self::PrivateAddress => "private_address",
        }
    }
}

/// All policies of a port, read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    policies: Vec<Vec<Rule>>,
}

impl Rules {
    /// Reads policies.
    ///
    /// # Errors
    /// The first rule that is not one.
    pub fn parse(policies: &[Policy]) -> Result<Self, PolicyError> {
        if policies.len() > POLICIES_MAX {
            return Err(PolicyError::TooMany);
        }
        let policies = policies.iter().map(parse_policy).collect::<Result<_, _>>()?;
        Ok(Self { policies })
    }

    fn all(&self, allows: impl Fn(&[Rule]) -> bool) -> bool {
        !self.policies.is_empty() && self.policies.iter().all(|policy| allows(policy))
    }

    /// Whether the name may be looked up. In lower case, without the last dot.
    #[must_use]
    pub fn allows_lookup(&self, name: &str) -> bool {
        self.all(|policy| policy.iter().any(|rule| rule.to.names(name)))
    }

    /// Whether an answer of a lookup may be shown: an address that is kept needs a rule that names it, in every policy.
    #[must_use]
    pub fn allows_answer(&self, address: IpAddr, kept: &Kept) -> bool {
        let address = effective(address);
        !kept.keeps(address)
            || self.all(|policy| policy.iter().any(|rule| rule.to.covers(address, kept)))
    }

    /// Whether a connection may be made to an address that these names were given.
    #[must_use]
    pub fn decide(&self, to: Destination, names: &[&str], kept: &Kept) -> Decision {
        let address = effective(to.address);
        let direct = |policy: &[Rule]| direct(policy, address, to, kept);
        if self.all(direct) {
            return Decision::Allowed;
        }
        if kept.keeps(address) {
            return Decision::Refused(Reason::PrivateAddress);
        }
        if names.iter().any(|name| self.allows_name(name, to, kept)) {
            return Decision::AllowedByName;
        }
        Decision::Refused(Reason::NotAllowed)
    }

    /// Whether every policy allows the destination under this name. Whether the name was given the address, the caller knows.
    #[must_use]
    pub fn allows_name(&self, name: &str, to: Destination, kept: &Kept) -> bool {
        let address = effective(to.address);
        let named = |rule: &Rule| rule.to.names(name) && rule.fits(to.port, to.protocol);
        let kept_there = kept.keeps(address);
        self.all(|policy| {
            direct(policy, address, to, kept) || !kept_there && policy.iter().any(named)
        })
    }
}

fn direct(policy: &[Rule], address: IpAddr, to: Destination, kept: &Kept) -> bool {
    policy.iter().any(|rule| rule.fits(to.port, to.protocol) && rule.to.covers(address, kept))
}

#[cfg(test)]
mod tests;
