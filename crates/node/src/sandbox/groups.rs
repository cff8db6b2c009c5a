//! What is done with all members of a network at one instant.
//!
//! The instant is a **hold**: all members are stopped, and only when the last one stands still is the first one copied. A member that
//! goes on while another still stands cannot change it: the service's frames wait outside of a machine that stands. So the
//! copies are consistent however long each takes, and connections between members live on in every copy, with
//! the same names and addresses. Connections to the outside live on in the source only.
//!
//! A copy of a network is whole or not there: what was made of one that failed is ended. Every operation is a task of the service: a
//! client that hangs up does not let the members go before all of them were copied.

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::future::join_all;
use ramet_proto::api::groups::{
    CommitNetwork, ForkNetwork, ForkedNetwork, GROUP_LABEL, MEMBER_LABEL, NetworkCheckpoint,
    NetworkCommit, NetworkCopy, NetworkSandboxes, PromoteNetwork,
};
use ramet_proto::api::{self, CreateCommit, CreateSandbox, EventKind, ForkRequest, PauseRequest};
use ramet_proto::control::FORK_MAX;

use super::durable::commits::Commit;
use super::error::Error;
use super::life::{Brood, Child, Manner};
use super::networks::{Network, members};
use super::record::{Phase, Record};
use super::{Service, check};
use crate::auth::Principal;
use crate::clock::since_us;
use crate::host::MachineId;
use crate::random;

/// Members that stand still. Dropping it lets them go on.
pub(super) struct Hold {
    service: Service,
    machines: Vec<MachineId>,
    /// What it took until all stood.
    us: u64,
}

impl Hold {
    /// Lets them go on. Those that do already are no error, nor are those that are gone.
    async fn release(mut self) {
        let machines = std::mem::take(&mut self.machines);
        self.service.let_go(machines).await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let machines = std::mem::take(&mut self.machines);
        if !machines.is_empty() {
            let service = self.service.clone();
            self.service.tasks.spawn(async move { service.let_go(machines).await });
        }
    }
}

/// What became of members, or the first failure.
fn all<T>(results: Vec<Result<T, Error>>) -> Result<Vec<T>, Error> {
    results.into_iter().collect()
}

impl Service {
    async fn let_go(&self, machines: Vec<MachineId>) {
        let resumed = machines.into_iter().map(|machine| async move {
            let result = self.host.call(move |engine| engine.resume(&machine)).await;
            if let Err(error) = result {
                tracing::debug!(?error, "a machine that was held does not go on");
            }
        });
        join_all(resumed).await;
    }

    /// Stops all of these that run. If one cannot be stopped, all go on.
    async fn hold(&self, records: &[Record]) -> Result<Hold, Error> {
        let began = Instant::now();
        let running = records.iter().filter(|record| record.phase == Phase::Running);
        let machines: Vec<MachineId> =
            running.filter_map(|record| record.machine.clone()).collect();
        let mut hold = Hold { service: self.clone(), machines: machines.clone(), us: 0 };
        let stopped = machines.into_iter().map(|machine| async move {
            self.host.call(move |engine| engine.pause(&machine)).await.map_err(Error::from)
        });
        if let Err(error) = all(join_all(stopped).await) {
            hold.release().await;
            return Err(error);
        }
        hold.us = since_us(began);
        Ok(hold)
    }

    /// The members of a network that has some, none of which has failed.
    fn sound_members(&self, network: &Network) -> Result<Vec<Record>, Error> {
        let found = self.all_members(network);
        if found.is_empty() {
            let text = format!("the network {} has no members", network.name);
            return Err(Error::WrongState(text));
        }
        match found.iter().find(|record| !matches!(record.phase, Phase::Running | Phase::Paused)) {
            None => Ok(found),
            Some(failed) => Err(Error::WrongState(format!(
                "the member {} of {} does not run and is not paused; rewind it, delete it, or let it leave",
                failed.name, network.name
            ))),
        }
    }

    /// Copies of a whole network, all of one instant.
    pub async fn fork_network(
        &self,
        who: &Principal,
        key: &str,
        request: ForkNetwork,
        problem: fn(&Error) -> api::Problem,
    ) -> Result<ForkedNetwork, Error> {
        let network = self.find_network(who, key)?;
        let (service, principal, target) = (self.clone(), who.clone(), network.id.clone());
        self.operate(who, "network_fork", &target, async move {
            let _own = service.own(&network.id).await?;
            let network = service.find_network(&principal, &network.id)?;
            service.fork_group(&principal, &network, &request, problem).await
        })
        .await
    }

    async fn fork_group(
        &self,
        who: &Principal,
        network: &Network,
        request: &ForkNetwork,
        problem: fn(&Error) -> api::Problem,
    ) -> Result<ForkedNetwork, Error> {
        let began = Instant::now();
        let sources = self.sound_members(network)?;
        let copies = self.copies_to_be(who, network, request)?;
        self.reserve_networks(who, &copies)?;
        let made = self.fork_members(who, &sources, &copies, request).await;
        let (hold_us, broods) = match made {
            Ok(made) => made,
            Err(error) => {
                self.forget_networks(copies.into_iter().map(|copy| copy.id).collect())?;
                return Err(error);
            }
        };
        let pause_us = broods.iter().flatten().map(Brood::pause_us).max().unwrap_or(0);
        let mut by_copy: Vec<Vec<Child>> = copies.iter().map(|_| Vec::new()).collect();
        for brood in broods {
            match brood {
                Ok(brood) => {
                    for (copy, child) in by_copy.iter_mut().zip(brood.children) {
                        copy.push(child);
                    }
                }
                // Of this member there is no child at all, for the same reason.
                Err(error) => {
                    let text = problem(&error).detail;
                    by_copy
                        .iter_mut()
                        .for_each(|copy| copy.push(Err(Error::Internal(text.clone()))));
                }
            }
        }
        let mut shown = Vec::new();
        for (copy, children) in copies.into_iter().zip(by_copy) {
            shown.push(self.settle_copy(who, copy, children, problem).await?);
        }
        Ok(ForkedNetwork { hold_us, pause_us, total_us: since_us(began), copies: shown })
    }

    fn copies_to_be(
        &self,
        who: &Principal,
        network: &Network,
        request: &ForkNetwork,
    ) -> Result<Vec<Network>, Error> {
        let names = request.names.clone().unwrap_or_default();
        let given = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let count = request.count.unwrap_or(given.max(1));
        let most = u32::try_from(FORK_MAX).unwrap_or(u32::MAX);
        if !(1..=most).contains(&count) {
            return Err(Error::Bad(format!("count: 1 to {most}, not {count}")));
        }
        if !names.is_empty() && given != count {
            return Err(Error::Bad(format!("names: {given} names for {count} copies")));
        }
        let mut names = names.into_iter();
        let mut free = self.free_names(who, &network.name);
        (0..count)
            .map(|_| {
                let name = names.next().or_else(|| free.next()).unwrap_or_default();
                check::name(&name)?;
                let parent = Some(network.id.clone());
                let between = network.between.clone();
                Ok(Network { parent, between, ..Network::new(who, name)? })
            })
            .collect()
    }

    /// `NAME-1` and so on, those that are not taken.
    fn free_names(&self, who: &Principal, name: &str) -> impl Iterator<Item = String> + use<> {
        let registry = self.registry();
        let taken: Vec<String> = registry
            .networks()
            .filter(|network| network.owner == who.name())
            .map(|network| network.name.clone())
            .collect();
        let name = name.to_owned();
        (1..10_000).map(move |n| format!("{name}-{n}")).filter(move |name| !taken.contains(name))
    }

    async fn fork_members(
        &self,
        who: &Principal,
        sources: &[Record],
        copies: &[Network],
        request: &ForkNetwork,
    ) -> Result<(u64, Vec<Result<Brood, Error>>), Error> {
        let hold = self.hold(sources).await?;
        let broods = join_all(sources.iter().map(|source| {
            let member = source.network.member.as_ref();
            let (name, number) = member.map_or(("", 0), |member| (&*member.name, member.number));
            let named = |copy: &Network| format!("{}-{name}", copy.name);
            let fork = ForkRequest {
                count: u32::try_from(copies.len()).ok(),
                names: Some(copies.iter().map(named).collect()),
                inherit_secrets: request.inherit_secrets,
                keep_edge: request.keep_edge,
                deterministic: request.deterministic,
                ..ForkRequest::default()
            };
            let places = copies.iter().map(|copy| copy.place(name, number)).collect();
            let manner = Manner { places, ..Manner::default() };
            self.fork_all(who, &source.id, fork, manner)
        }));
        let broods = broods.await;
        let us = hold.us;
        hold.release().await;
        Ok((us, broods))
    }

    /// A copy whose members are all there, or nothing of it.
    async fn settle_copy(
        &self,
        who: &Principal,
        copy: Network,
        children: Vec<Child>,
        problem: fn(&Error) -> api::Problem,
    ) -> Result<NetworkCopy, Error> {
        let mut failure = None;
        let mut born = Vec::new();
        for child in children {
            match child {
                Ok((record, _)) => born.push(record.id),
                Err(error) => failure = Some(error),
            }
        }
        let Some(error) = failure else {
            let parent = copy.parent.as_deref();
            self.events.tell(&copy.owner, EventKind::NetworkForked, &copy.id, parent, None);
            return Ok(NetworkCopy {
                network: Some(self.get_network(who, &copy.id)?),
                error: None,
            });
        };
        for id in born {
            self.delete(who, &id).await?;
        }
        self.forget_networks(vec![copy.id])?;
        Ok(NetworkCopy { network: None, error: Some(problem(&error)) })
    }

    /// Pauses all members at one instant.
    pub async fn pause_network(
        &self,
        who: &Principal,
        key: &str,
        request: PauseRequest,
    ) -> Result<NetworkSandboxes, Error> {
        let (service, principal, network) = (self.clone(), who.clone(), key.to_owned());
        self.operate(who, "network_pause", key, async move {
            service.pause_members(&principal, &network, request).await
        })
        .await
    }

    async fn pause_members(
        &self,
        who: &Principal,
        key: &str,
        request: PauseRequest,
    ) -> Result<NetworkSandboxes, Error> {
        if request.disk {
            let text = "disk: members of a network are paused as a whole, or one by one";
            return Err(Error::Unsupported(text.to_owned()));
        }
        let network = self.find_network(who, key)?;
        let _own = self.own(&network.id).await?;
        let sources = self.sound_members(&network)?;
        let mut hold = self.hold(&sources).await?;
        let paused = join_all(sources.iter().map(|one| self.pause(who, &one.id, request.clone())));
        let paused = paused.await;
        // Those that could not be paused go on.
        let failed = sources.iter().zip(&paused).filter(|(_, result)| result.is_err());
        hold.machines = failed.filter_map(|(record, _)| record.machine.clone()).collect();
        hold.release().await;
        Ok(NetworkSandboxes { sandboxes: all(paused)? })
    }

    /// Lets all members go on.
    pub async fn resume_network(
        &self,
        who: &Principal,
        key: &str,
    ) -> Result<NetworkSandboxes, Error> {
        let (service, principal, network) = (self.clone(), who.clone(), key.to_owned());
        self.operate(who, "network_resume", key, async move {
            service.resume_members(&principal, &network).await
        })
        .await
    }

    async fn resume_members(&self, who: &Principal, key: &str) -> Result<NetworkSandboxes, Error> {
        let network = self.find_network(who, key)?;
        let _own = self.own(&network.id).await?;
        let sources = self.sound_members(&network)?;
        let resumed = join_all(sources.iter().map(|one| self.resume(who, &one.id))).await;
        Ok(NetworkSandboxes { sandboxes: all(resumed)? })
    }

    /// A checkpoint of each member, all of one instant.
    pub async fn checkpoint_network(
        &self,
        who: &Principal,
        key: &str,
        name: String,
    ) -> Result<NetworkCheckpoint, Error> {
        let (service, principal, network) = (self.clone(), who.clone(), key.to_owned());
        self.operate(who, "network_checkpoint", key, async move {
            service.checkpoint_members(&principal, &network, name).await
        })
        .await
    }

    async fn checkpoint_members(
        &self,
        who: &Principal,
        key: &str,
        name: String,
    ) -> Result<NetworkCheckpoint, Error> {
        check::name(&name)?;
        let network = self.find_network(who, key)?;
        let _own = self.own(&network.id).await?;
        let sources = self.sound_members(&network)?;
        let hold = self.hold(&sources).await?;
        let made = join_all(sources.iter().map(|one| {
            let name = Some(name.clone());
            async { self.checkpoint(who, &one.id, name).await.map(|made| (one.id.clone(), made)) }
        }));
        let made = made.await;
        hold.release().await;
        if made.iter().any(Result::is_err) {
            for (id, checkpoint) in made.iter().flatten() {
                self.delete_checkpoint(who, id, &checkpoint.id).await?;
            }
        }
        let checkpoints = all(made)?.into_iter().map(|(_, checkpoint)| checkpoint).collect();
        Ok(NetworkCheckpoint { checkpoints })
    }

    /// All members go back to the checkpoints of this name.
    pub async fn rewind_network(
        &self,
        who: &Principal,
        key: &str,
        checkpoint: &str,
    ) -> Result<api::groups::Network, Error> {
        let (service, principal, network) = (self.clone(), who.clone(), key.to_owned());
        let checkpoint = checkpoint.to_owned();
        self.operate(who, "network_rewind", key, async move {
            service.rewind_members(&principal, &network, &checkpoint).await
        })
        .await
    }

    async fn rewind_members(
        &self,
        who: &Principal,
        key: &str,
        checkpoint: &str,
    ) -> Result<api::groups::Network, Error> {
        let network = self.find_network(who, key)?;
        let _own = self.own(&network.id).await?;
        let sources = self.all_members(&network);
        for record in &sources {
            self.registry().checkpoint(&record.id, checkpoint)?;
        }
        let back = |record: &Record| {
            let (id, checkpoint) = (record.id.clone(), checkpoint.to_owned());
            async move { self.rewind(who, &id, checkpoint).await }
        };
        self.change_moment(network, &sources, back).await?;
        self.get_network(who, key)
    }

    fn all_members(&self, network: &Network) -> Vec<Record> {
        members(&self.registry(), &network.id).into_iter().cloned().collect()
    }

    /// Gives all members other machines, in the network's next age. A member whose change failed follows as it is.
    async fn change_moment<T, F: Future<Output = Result<T, Error>>>(
        &self,
        mut network: Network,
        sources: &[Record],
        change: impl Fn(&Record) -> F,
    ) -> Result<(), Error> {
        network.age += 1;
        self.move_members(&network, None)?;
        let changed = join_all(sources.iter().map(change)).await;
        for record in self.all_members(&network) {
            self.configure(&record).await;
        }
        all(changed).map(drop)
    }

    /// A network goes on as one of its copies did.
    pub async fn promote_network(
        &self,
        who: &Principal,
        key: &str,
        request: PromoteNetwork,
    ) -> Result<api::groups::Network, Error> {
        let (service, principal, network) = (self.clone(), who.clone(), key.to_owned());
        self.operate(who, "network_promote", key, async move {
            service.promote_members(&principal, &network, request).await
        })
        .await
    }

    async fn promote_members(
        &self,
        who: &Principal,
        key: &str,
        request: PromoteNetwork,
    ) -> Result<api::groups::Network, Error> {
        let (network, winner) =
            (self.find_network(who, key)?, self.find_network(who, &request.winner)?);
        let (first, second) = match network.id < winner.id {
            true => (&network.id, &winner.id),
            false => (&winner.id, &network.id),
        };
        if network.id == winner.id {
            return Err(Error::Bad("winner: a network cannot be promoted to itself".to_owned()));
        }
        let _own = (self.own(first).await?, self.own(second).await?);
        let sources = self.all_members(&network);
        let winners = self.sound_members(&winner)?;
        let pairs = self.pairs(&network, &sources, &winner, &winners)?;
        let hold = self.hold(&winners).await?;
        let promote = |record: &Record| {
            let winner = pairs.get(&record.id).cloned().unwrap_or_default();
            let id = record.id.clone();
            let request = api::PromoteRequest { winner, inherit_secrets: request.inherit_secrets };
            async move { self.promote(who, &id, &request).await }
        };
        let promoted = self.change_moment(network.clone(), &sources, promote).await;
        hold.release().await;
        promoted?;
        self.forget_networks(vec![winner.id.clone()])?;
        let other = Some(winner.id.as_str());
        self.events.tell(&network.owner, EventKind::NetworkPromoted, &network.id, other, None);
        self.get_network(who, key)
    }

    /// Which sandbox of the winner goes on as which.
    fn pairs(
        &self,
        network: &Network,
        sources: &[Record],
        winner: &Network,
        winners: &[Record],
    ) -> Result<BTreeMap<String, String>, Error> {
        let name =
            |record: &Record| record.network.member.as_ref().map(|member| member.name.clone());
        let mut pairs = BTreeMap::new();
        for record in sources {
            let Some(found) = winners.iter().find(|one| name(one) == name(record)) else { break };
            if !self.registry().descends(&found.id, &record.id) {
                let (sandbox, winner) = (record.id.clone(), found.id.clone());
                return Err(Error::NotADescendant { sandbox, winner });
            }
            pairs.insert(record.id.clone(), found.id.clone());
        }
        if pairs.len() == sources.len() && pairs.len() == winners.len() {
            return Ok(pairs);
        }
        Err(Error::WrongState(format!(
            "{} and {} do not have the same members; only a copy with all of them can be promoted",
            network.name, winner.name
        )))
    }

    /// A commit of each member, all of one instant.
    pub async fn commit_network(
        &self,
        who: &Principal,
        key: &str,
        request: CommitNetwork,
    ) -> Result<NetworkCommit, Error> {
        let (service, principal, network) = (self.clone(), who.clone(), key.to_owned());
        self.operate(who, "network_commit", key, async move {
            service.commit_members(&principal, &network, request).await
        })
        .await
    }

    async fn commit_members(
        &self,
        who: &Principal,
        key: &str,
        request: CommitNetwork,
    ) -> Result<NetworkCommit, Error> {
        let network = self.find_network(who, key)?;
        let _own = self.own(&network.id).await?;
        let sources = self.sound_members(&network)?;
        let group = format!("grp-{}", random::hex(8)?);
        let hold = self.hold(&sources).await?;
        let kept = join_all(sources.iter().map(|source| {
            let member = source.network.member.as_ref();
            let place = member.map(|member| format!("{} {}", member.number, member.name));
            let labels = [(GROUP_LABEL, group.clone()), (MEMBER_LABEL, place.unwrap_or_default())];
            let commit = CreateCommit {
                message: request.message.clone(),
                author: request.author.clone(),
                labels: labels.map(|(key, value)| (key.to_owned(), value)).into(),
                inherit_secrets: request.inherit_secrets,
                ..CreateCommit::default()
            };
            self.commit_sandbox(who, &source.id, commit)
        }));
        let kept = kept.await;
        hold.release().await;
        if kept.iter().any(Result::is_err) {
            for commit in kept.iter().flatten() {
                self.delete_commit(who, &commit.id).await?;
            }
        }
        Ok(NetworkCommit { group, commits: all(kept)? })
    }

    /// The members of a group commit become those of a new network.
    pub(super) async fn check_out_group(
        &self,
        who: &Principal,
        network: &Network,
        group: &str,
    ) -> Result<(), Error> {
        let commits = self.commits_of_group(who, group)?;
        let made = join_all(commits.iter().map(|(commit, name, number)| async move {
            let request = CreateSandbox {
                name: Some(format!("{}-{name}", network.name)),
                commit: Some(commit.id.clone()),
                ..CreateSandbox::default()
            };
            self.create_in(who, request, None, Some(network.place(name, *number))).await
        }));
        let made = made.await;
        if made.iter().any(Result::is_err) {
            for created in made.iter().flatten() {
                self.delete(who, &created.sandbox.id).await?;
            }
        }
        all(made).map(drop)
    }

    fn commits_of_group(
        &self,
        who: &Principal,
        group: &str,
    ) -> Result<Vec<(Commit, String, u8)>, Error> {
        let registry = self.registry();
        let mut found = Vec::new();
        let of_group =
            |commit: &&Commit| commit.labels.get(GROUP_LABEL).is_some_and(|one| one == group);
        for commit in registry.commits_of(who).filter(of_group) {
            let place = commit.labels.get(MEMBER_LABEL).and_then(|place| place.split_once(' '));
            let parsed = place.and_then(|(number, name)| Some((number.parse().ok()?, name)));
            let Some((number, name)) = parsed else {
                let text =
                    format!("group: the commit {} does not say which member it is", commit.id);
                return Err(Error::Bad(text));
            };
            found.push((commit.clone(), name.to_owned(), number));
        }
        if found.is_empty() {
            return Err(Error::NotFound { what: "group", key: group.to_owned() });
        }
        Ok(found)
    }
}
