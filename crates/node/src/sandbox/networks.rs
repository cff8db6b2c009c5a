//! Networks of several sandboxes: who is a member, under which name and number.
//!
//! A network is a row in the database; its members are the sandboxes whose records say so, and nobody else. A member's place
//! ([`Member`]) is what the network service is told: ports with the same value see each other. The value has an
//! **age**: when members go back to an earlier moment one after the other, each comes to the next age, so that no
//! machine of the new moment hears one of the old.

use std::net::{Ipv4Addr, Ipv6Addr};

use ramet_proto::api::groups::{
    Between, CreateNetwork, JoinNetwork, NetworkList, NetworkMember, UpdateNetwork,
};
use ramet_proto::api::{self, EventKind};
use ramet_proto::net::{MEMBERS_MAX, Member, NETWORK_V4, NETWORK_V6};
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::life::machine_of;
use super::record::{Phase, Record};
use super::registry::Registry;
use super::{Service, check};
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::random;
use crate::store::Change;

/// Most networks of a node.
const NETWORKS_MAX: usize = 1000;
/// Most rules between members.
const BETWEEN_MAX: usize = 256;
/// Most ports of such a rule.
const PORTS_MAX: usize = 64;

/// A network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Id.
    pub id: String,
    /// Principal.
    pub owner: String,
    /// Name, unique among the owner's.
    pub name: String,
    /// When it came to be.
    pub created_at_ms: u64,
    /// The network that it is a copy of.
    #[serde(default)]
    pub parent: Option<String>,
    /// Who may begin a connection with whom.
    #[serde(default)]
    pub between: Option<Vec<Between>>,
    /// How often its members went to another moment.
    #[serde(default)]
    pub age: u64,
}

impl Network {
    /// A network to be.
    pub fn new(who: &Principal, name: String) -> Result<Self, Error> {
        Ok(Self {
            id: format!("net-{}", random::hex(8)?),
            owner: who.name().to_owned(),
            name,
            created_at_ms: now_ms(),
            parent: None,
            between: None,
            age: 0,
        })
    }

    /// A place in it.
    pub fn place(&self, name: &str, number: u8) -> Member {
        Member {
            network: format!("{}.{}", self.id, self.age),
            name: name.to_owned(),
            number,
            between: self.between.clone(),
        }
    }

    fn shown(&self, members: &[&Record]) -> api::groups::Network {
        api::groups::Network {
            id: self.id.clone(),
            name: self.name.clone(),
            owner: self.owner.clone(),
            created_at_ms: self.created_at_ms,
            parent: self.parent.clone(),
            between: self.between.clone(),
            members: members.iter().filter_map(|record| shown_member(record)).collect(),
        }
    }
}

impl Record {
    /// The network that it is a member of.
    pub fn network_id(&self) -> Option<&str> {
        let member = self.network.member.as_ref()?;
        member.network.rsplit_once('.').map(|(id, _)| id)
    }
}

fn shown_member(record: &Record) -> Option<NetworkMember> {
    let member = record.network.member.as_ref()?;
    let [a, b, c, _] = NETWORK_V4.octets();
    let mut six = NETWORK_V6.segments();
    six[7] = u16::from(member.number);
    let addresses =
        [Ipv4Addr::new(a, b, c, member.number).to_string(), Ipv6Addr::from(six).to_string()];
    Some(NetworkMember {
        name: member.name.clone(),
        number: member.number,
        addresses: addresses.to_vec(),
        sandbox: record.id.clone(),
        sandbox_name: record.name.clone(),
        state: record.phase.shown().unwrap_or(api::State::Running),
    })
}

/// The members of a network, by number.
pub fn members<'a>(registry: &'a Registry, network: &str) -> Vec<&'a Record> {
    let mut members: Vec<&Record> = registry
        .all()
        .filter(|record| record.phase != Phase::Gone && record.network_id() == Some(network))
        .collect();
    members.sort_by_key(|record| record.network.member.as_ref().map(|member| member.number));
    members
}

/// A name that can be looked up.
fn check_member_name(name: &str) -> Result<(), Error> {
    let good =
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-');
    if (1..=63).contains(&name.len()) && good {
        return Ok(());
    }
    let text = "1 to 63 lower-case letters, digits and hyphens: the others resolve it";
    Err(Error::Bad(format!("name: {name:?} is no name of a member; {text}")))
}

fn check_between(between: Option<&Vec<Between>>) -> Result<(), Error> {
    let Some(rules) = between else { return Ok(()) };
    if rules.len() > BETWEEN_MAX || rules.iter().any(|rule| rule.ports.len() > PORTS_MAX) {
        let text = format!("between: at most {BETWEEN_MAX} rules with {PORTS_MAX} ports each");
        return Err(Error::Bad(text));
    }
    let names = rules.iter().flat_map(|rule| [&rule.from, &rule.to]);
    names.filter(|name| *name != "*").try_for_each(|name| {
        check_member_name(name)
            .map_err(|_| Error::Bad(format!("between: {name:?} is no member's name, nor `*`")))
    })
}

impl Service {
    /// The network that a principal means: by name, id, or the beginning of one.
    pub(super) fn find_network(&self, who: &Principal, key: &str) -> Result<Network, Error> {
        let registry = self.registry();
        let mine = || registry.networks().filter(|network| network.owner == who.name());
        if let Some(exact) = mine().find(|network| network.name == key || network.id == key) {
            return Ok(exact.clone());
        }
        let digits = key.strip_prefix("net-").unwrap_or(key);
        let begins = |network: &&Network| {
            digits.len() >= 4
                && network.id.strip_prefix("net-").is_some_and(|id| id.starts_with(digits))
        };
        let mut found = mine().filter(begins);
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one.clone()),
            (Some(_), Some(_)) => Err(Error::Ambiguous(key.to_owned())),
            (None, _) => Err(Error::NotFound { what: "network", key: key.to_owned() }),
        }
    }

    fn shown_network_of_several(&self, network: &Network) -> api::groups::Network {
        let registry = self.registry();
        network.shown(&members(&registry, &network.id))
    }

    /// Makes a network, with the members of a group commit if one is named.
    pub async fn create_network(
        &self,
        who: &Principal,
        request: CreateNetwork,
    ) -> Result<api::groups::Network, Error> {
        check::name(&request.name)?;
        check_between(request.between.as_ref())?;
        let mut network = Network::new(who, request.name)?;
        network.between = request.between;
        let (service, principal, target) = (self.clone(), who.clone(), network.name.clone());
        self.operate(who, "network_create", &target, async move {
            let _own = service.own(&network.id).await?;
            service.reserve_networks(&principal, std::slice::from_ref(&network))?;
            if let Some(group) = request.group
                && let Err(error) = service.check_out_group(&principal, &network, &group).await
            {
                service.forget_networks(vec![network.id])?;
                return Err(error);
            }
            service.events.tell(&network.owner, EventKind::NetworkCreated, &network.id, None, None);
            Ok(service.shown_network_of_several(&network))
        })
        .await
    }

    /// Writes networks down, if their names are free.
    pub(super) fn reserve_networks(
        &self,
        who: &Principal,
        networks: &[Network],
    ) -> Result<(), Error> {
        self.commit(|registry| {
            if registry.networks().count() + networks.len() > NETWORKS_MAX {
                let text = format!("this node has {NETWORKS_MAX} networks, the most; remove some");
                return Err(Error::TooMany(text));
            }
            for (index, network) in networks.iter().enumerate() {
                let taken = registry
                    .networks()
                    .filter(|one| one.owner == who.name())
                    .chain(&networks[..index])
                    .any(|one| one.name == network.name);
                if taken {
                    return Err(Error::NameTaken(network.name.clone()));
                }
            }
            Ok(Change { networks: networks.to_vec(), ..Change::default() })
        })
    }

    pub(super) fn forget_networks(&self, forget_networks: Vec<String>) -> Result<(), Error> {
        self.commit(|_| Ok(Change { forget_networks, ..Change::default() }))
    }

    /// A network.
    pub fn get_network(&self, who: &Principal, key: &str) -> Result<api::groups::Network, Error> {
        Ok(self.shown_network_of_several(&self.find_network(who, key)?))
    }

    /// A principal's networks.
    pub fn networks(&self, who: &Principal) -> NetworkList {
        let registry = self.registry();
        let mut networks: Vec<_> = registry
            .networks()
            .filter(|network| network.owner == who.name())
            .map(|network| network.shown(&members(&registry, &network.id)))
            .collect();
        networks.sort_by(|one, other| one.name.cmp(&other.name));
        NetworkList { networks }
    }

    /// Changes who may begin a connection with whom.
    pub async fn update_network(
        &self,
        who: &Principal,
        key: &str,
        request: UpdateNetwork,
    ) -> Result<api::groups::Network, Error> {
        check_between(request.between.as_ref())?;
        let id = self.find_network(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "network_update", &target, async move {
            let _own = service.own(&id).await?;
            let mut network = service.find_network(&principal, &id)?;
            network.between = request.between;
            let changed = service.move_members(&network, None)?;
            for record in &changed {
                service.configure(record).await;
            }
            Ok(service.shown_network_of_several(&network))
        })
        .await
    }

    /// Writes a network and the places of its members, as the network says now; of these members only, if they are named.
    pub(super) fn move_members(
        &self,
        network: &Network,
        only: Option<&[String]>,
    ) -> Result<Vec<Record>, Error> {
        let mut moved = Vec::new();
        self.commit(|registry| {
            for record in members(registry, &network.id) {
                let mut record = record.clone();
                let named = only.is_none_or(|only| only.contains(&record.id));
                if let Some(member) = record.network.member.as_mut().filter(|_| named) {
                    *member = network.place(&member.name, member.number);
                }
                moved.push(record);
            }
            let networks = vec![network.clone()];
            Ok(Change { networks, sandboxes: moved.clone(), ..Change::default() })
        })?;
        Ok(moved)
    }

    /// Removes a network that has no members.
    pub async fn delete_network(&self, who: &Principal, key: &str) -> Result<(), Error> {
        let network = self.find_network(who, key)?;
        let (service, target) = (self.clone(), network.id.clone());
        self.operate(who, "network_delete", &target, async move {
            let _own = service.own(&network.id).await?;
            service.commit(|registry| {
                let there = members(registry, &network.id);
                if let Some(first) = there.first() {
                    return Err(Error::InUse(format!(
                        "the network {} has {} members, {} among them; delete them or let them leave first",
                        network.name,
                        there.len(),
                        first.name
                    )));
                }
                Ok(Change { forget_networks: vec![network.id.clone()], ..Change::default() })
            })?;
            service.events.tell(&network.owner, EventKind::NetworkDeleted, &network.id, None, None);
            Ok(())
        })
        .await
    }

    /// A sandbox becomes a member.
    pub async fn join_network(
        &self,
        who: &Principal,
        key: &str,
        request: JoinNetwork,
    ) -> Result<api::groups::Network, Error> {
        let network = self.find_network(who, key)?;
        let sandbox = self.find(who, &request.sandbox)?.id;
        let (service, principal) = (self.clone(), who.clone());
        let target = format!("{} {sandbox}", network.id);
        self.operate(who, "network_join", &target, async move {
            let _network = service.own(&network.id).await?;
            let _own = service.own(&sandbox).await?;
            let network = service.find_network(&principal, &network.id)?;
            let record = service.find(&principal, &sandbox)?;
            machine_of(&record, "join a network")?;
            if record.phase != Phase::Running {
                let text = format!("the sandbox {sandbox} is paused; resume it, then it can join");
                return Err(Error::WrongState(text));
            }
            let name = request.name.unwrap_or_else(|| record.name.clone());
            let member = service.free_place(&network, &record, &name)?;
            service.take_place(record, Some(member)).await?;
            let (owner, other) = (&network.owner, Some(sandbox.as_str()));
            service.events.tell(owner, EventKind::NetworkJoined, &network.id, other, Some(&name));
            Ok(service.shown_network_of_several(&network))
        })
        .await
    }

    fn free_place(&self, network: &Network, record: &Record, name: &str) -> Result<Member, Error> {
        check_member_name(name)?;
        if let Some(other) = record.network_id() {
            let text =
                format!("the sandbox {} is in the network {other}; it can be in one", record.id);
            return Err(Error::InUse(text));
        }
        let registry = self.registry();
        let there = members(&registry, &network.id);
        let places = || there.iter().filter_map(|record| record.network.member.as_ref());
        if places().any(|member| member.name == name) {
            return Err(Error::NameTaken(name.to_owned()));
        }
        let free = (1..=MEMBERS_MAX).find(|number| places().all(|member| member.number != *number));
        let number = free.ok_or_else(|| {
            Error::TooMany(format!(
                "the network {} has {MEMBERS_MAX} members, the most",
                network.name
            ))
        })?;
        Ok(network.place(name, number))
    }

    /// Writes a place down, tells the guest and the service. If the guest cannot be told, nothing changes.
    async fn take_place(&self, before: Record, member: Option<Member>) -> Result<Record, Error> {
        let mut record = before.clone();
        record.network.member = member;
        record.touch();
        if record.phase == Phase::Running {
            self.tell_guest(&record).await?;
        }
        let sandboxes = vec![record.clone()];
        if let Err(error) = self.commit(|_| Ok(Change { sandboxes, ..Change::default() })) {
            self.reset_trust(&before).await;
            return Err(error);
        }
        self.configure(&record).await;
        Ok(record)
    }

    /// A member leaves.
    pub async fn leave_network(
        &self,
        who: &Principal,
        key: &str,
        member: &str,
    ) -> Result<(), Error> {
        let network = self.find_network(who, key)?;
        let (service, principal, name) = (self.clone(), who.clone(), member.to_owned());
        let target = format!("{} {member}", network.id);
        self.operate(who, "network_leave", &target, async move {
            let _network = service.own(&network.id).await?;
            let id = service.member(&network, &name)?.id;
            let _own = service.own(&id).await?;
            let record = service.find(&principal, &id)?;
            service.take_place(record, None).await?;
            let (owner, other) = (&network.owner, Some(id.as_str()));
            service.events.tell(owner, EventKind::NetworkLeft, &network.id, other, Some(&name));
            Ok(())
        })
        .await
    }

    /// A member, by its name there or its sandbox.
    pub(super) fn member(&self, network: &Network, key: &str) -> Result<Record, Error> {
        let registry = self.registry();
        let is = |record: &&&Record| {
            let name = record.network.member.as_ref().map(|member| member.name.as_str());
            name == Some(key) || record.id == key || record.name == key
        };
        let found = members(&registry, &network.id).iter().find(is).map(|record| (*record).clone());
        found.ok_or_else(|| Error::NotFound { what: "member", key: key.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_names_that_can_be_looked_up() {
        for good in ["db", "app-1", "a", &"x".repeat(63)] {
            assert!(check_member_name(good).is_ok(), "{good}");
        }
        for bad in ["", "Db", "a.b", "-a", "a-", "a_b", "ä", &"x".repeat(64)] {
            assert!(check_member_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rules_between_name_members() {
        let rule =
            |from: &str, to: &str| Between { from: from.into(), to: to.into(), ports: vec![] };
        assert!(check_between(None).is_ok());
        assert!(check_between(Some(&vec![rule("*", "db"), rule("app", "*")])).is_ok());
        assert!(check_between(Some(&vec![rule("*.", "db")])).is_err());
        assert!(check_between(Some(&vec![rule("a", "b"); BETWEEN_MAX + 1])).is_err());
    }
}
