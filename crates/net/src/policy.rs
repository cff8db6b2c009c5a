//! What a port may reach: pure decisions over rules, pinned names and kept ranges.
//!
//! Every policy of the list must allow; an empty list denies. An address is allowed by an address rule that covers it, by `*` if it is public, or by a name
//! rule if one of the names that this port's own lookups gave it fits. Kept ranges (see [`crate::ranges`]) are reached only by an address
//! rule that lies in them. Where a name rule was needed, all policies have to agree on one name, and the connection's own words are held against
//! it later ([`Rules::allows_name`]).

use std::net::IpAddr;

use ramet_proto::api::network::{Allow, Policy, PortRange, Protocol};

use crate::ranges::{Kept, Range, RangeError, effective};

/// Most policies of a port.
pub const POLICIES_MAX: usize = 32;
/// Most rules of a policy.
pub const RULES_MAX: usize = 1024;
/// Longest name.
pub const NAME_MAX: usize = 253;

/// Why a rule is not one. The text says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Nothing.
    #[error("a rule needs something to reach: a name, `*.name`, an address, a range, or `*`")]
    Empty,
    /// Not a name, and looks like none of the others.
    #[error("{to:?} is not a name: {why}")]
    Name {
        /// What was written.
        to: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Neither address nor range.
    #[error("{to:?} is not an address or range")]
    Range {
        /// What was written.
        to: String,
        /// What is wrong with it.
        source: RangeError,
    },
    /// The last port is before the first, or there is a port 0.
    #[error(
        "{first} to {last} is not a range of ports: they are 1 to 65535, the first not after the last"
    )]
    Ports {
        /// As written.
        first: u16,
        /// As written.
        last: u16,
    },
    /// Ports of echo requests.
    #[error("a rule for {0:?} has ports and only the protocol icmp, which has none")]
    PortsOfIcmp(String),
    /// Too many rules.
    #[error("a policy has at most {RULES_MAX} rules")]
    TooManyRules,
    /// Too many policies.
    #[error("a sandbox has at most {POLICIES_MAX} policies")]
    TooManyPolicies,
}

/// What a rule reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `*`: every name, every public address.
    Any,
    /// One name.
    Name(String),
    /// All names below this one, which is kept with a leading dot.
    Below(String),
    /// An address or range.
    Range(Range),
}

impl Target {
    /// Reads what a rule says.
    ///
    /// # Errors
    /// If it is none of the forms.
    pub fn parse(to: &str) -> Result<Self, PolicyError> {
        if to.is_empty() {
            return Err(PolicyError::Empty);
        }
        if to == "*" {
            return Ok(Self::Any);
        }
        if to.contains('/') || to.contains(':') || to.parse::<IpAddr>().is_ok() {
            let range =
                to.parse().map_err(|source| PolicyError::Range { to: to.to_owned(), source })?;
            return Ok(Self::Range(range));
        }
        let name = |text: &str| {
            parse_name(text).map_err(|why| PolicyError::Name { to: to.to_owned(), why })
        };
        match to.strip_prefix("*.") {
            Some(parent) => Ok(Self::Below(format!(".{}", name(parent)?))),
            None => Ok(Self::Name(name(to)?)),
        }
    }

    fn names(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(own) => own == name,
            Self::Below(parent) => name.len() > parent.len() && name.ends_with(parent.as_str()),
            Self::Range(_) => false,
        }
    }

    fn covers(&self, address: IpAddr, kept: &Kept) -> bool {
        match self {
            Self::Any => !kept.keeps(address),
            Self::Range(own) => {
                own.contains(address) && kept.around(address).all(|range| own.within(range))
            }
            Self::Name(_) | Self::Below(_) => false,
        }
    }
}

/// A host name in lower case, without the last dot.
///
/// # Errors
/// What is wrong with it.
pub fn parse_name(text: &str) -> Result<String, &'static str> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() || text.len() > NAME_MAX {
        return Err("a name has 1 to 253 characters");
    }
    let last = text.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("its last label is a number, as in an address");
    }
    for label in text.split('.') {
        if label.is_empty() || label.len() > 63 {
            return Err("the labels between its dots have 1 to 63 characters");
        }
        if !label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
            return Err(
                "it has characters other than letters, digits, `-`, `_` and dots (international names are written as `xn--…`; `*` stands only at the front)",
            );
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err("a label begins or ends with `-`");
        }
    }
    Ok(text.to_ascii_lowercase())
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    to: Target,
    ports: Vec<PortRange>,
    protocols: Vec<Protocol>,
}

impl Rule {
    fn parse(allow: &Allow) -> Result<Self, PolicyError> {
        let to = Target::parse(&allow.to)?;
        for &PortRange { first, last } in &allow.ports {
            if first == 0 || first > last {
                return Err(PolicyError::Ports { first, last });
            }
        }
        if !allow.ports.is_empty() && allow.protocols.as_slice() == [Protocol::Icmp] {
            return Err(PolicyError::PortsOfIcmp(allow.to.clone()));
        }
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

/// Checks a policy as a caller wrote it.
///
/// # Errors
/// The first rule that is not one.
pub fn check(policy: &Policy) -> Result<(), PolicyError> {
    parse_policy(policy).map(|_| ())
}

fn parse_policy(policy: &Policy) -> Result<Vec<Rule>, PolicyError> {
    if policy.allow.len() > RULES_MAX {
        return Err(PolicyError::TooManyRules);
    }
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
            return Err(PolicyError::TooManyPolicies);
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
