//! From create to delete.

use std::collections::BTreeMap;
use std::time::Instant;

use ramet_proto::agent::Identity;
use ramet_proto::api::{
    self, AttachVolume, BASE_IMAGE, BASE_TEMPLATE, CreateSandbox, Created, EventKind, ForkRequest,
    Forked, ForkedChild, UpdateSandbox,
};
use ramet_proto::control::FORK_MAX;
use ramet_proto::net::{Authority, Member};

use super::boot::Booted;
use super::durable::commits::{Commit, not_durable};
use super::error::Error;
use super::network::Net;
use super::record::{Phase, Record, Root, Wish};
use super::registry::{Filter, Label};
use super::{Service, check, volumes};
use crate::auth::Principal;
use crate::clock::{now_ms, since_us};
use crate::host::{Born, Cpu, Engine, MachineId, Offspring, Shape};
use crate::metrics::seconds;
use crate::store::Change;

/// Most bytes of identities that one fork can carry; the control line has a bound.
const IDENTITIES_MAX: usize = 900 << 10;
/// Most characters of an idempotency key.
const KEY_MAX: usize = 256;

/// What a new sandbox is forked from.
enum Seed {
    /// The machine that was booted from an image.
    Booted(Booted),
    /// The machine of a template, by its id.
    Template(String),
    /// A commit, or only its files.
    Commit { commit: Box<Commit>, only_disk: bool },
}

/// What became of a child, before HTTP has words for it.
pub type Child = Result<(Record, Born), Error>;

/// How children are made.
#[derive(Default)]
pub(super) struct Manner {
    /// Idempotency key of the request.
    pub made_by: Option<String>,
    /// The call from inside that it answers.
    pub call: Option<u64>,
    /// Where each child is in a copy of the source's network. The source stands still with the other members, and goes on.
    pub places: Vec<Member>,
}

/// What came of a fork.
pub(super) struct Brood {
    /// Rendezvous, pause and fork(2), in microseconds.
    times: (u64, u64, u64),
    total_us: u64,
    /// One for each child, in order.
    pub children: Vec<Child>,
}

impl Brood {
    /// What the source lost.
    pub fn pause_us(&self) -> u64 {
        self.times.1
    }

    fn shown(&self, problem: fn(&Error) -> api::Problem) -> Forked {
        let (rendezvous_us, pause_us, fork_us) = self.times;
        let children = self.children.iter().map(|child| shown_child(child, problem)).collect();
        Forked { rendezvous_us, pause_us, fork_us, total_us: self.total_us, children }
    }
}

impl Service {
    /// Makes a sandbox from its template.
    pub async fn create(
        &self,
        who: &Principal,
        request: CreateSandbox,
        key: Option<String>,
    ) -> Result<Created, Error> {
        self.create_in(who, request, key, None).await
    }

    /// Likewise, in a network.
    pub(super) async fn create_in(
        &self,
        who: &Principal,
        request: CreateSandbox,
        key: Option<String>,
        member: Option<Member>,
    ) -> Result<Created, Error> {
        let key = idempotency(key, "create", &request)?;
        let auto_checkpoints = self.checked_auto(request.auto_checkpoints)?;
        self.check_volumes(who, &request.volumes)?;
        let volumes = request.volumes.clone();
        let (seed, root, mut env) = self.seed(who, &request).await?;
        let network = self.network_of_new(who, request.network.as_ref(), &root.layers)?;
        let network = Net { member, ..network };
        let mut wish = wish(request)?;
        env.append(&mut wish.env);
        check::env(&env)?;
        let made_by = key.as_ref().map(|(key, _)| key.clone());
        let wish = Wish { env, made_by, auto_checkpoints, network, ..wish };
        let (service, principal) = (self.clone(), who.clone());
        let target = wish.name.clone().unwrap_or_default();
        self.operate(who, "create", &target, async move {
            let work = async {
                let created = service.create_one(&principal, wish, seed, root).await?;
                service.furnish(&principal, created, &volumes).await
            };
            service.once(&principal, key, work).await
        })
        .await
    }

    async fn create_one(
        &self,
        who: &Principal,
        wish: Wish,
        seed: Seed,
        root: Root,
    ) -> Result<Created, Error> {
        let began = Instant::now();
        let _admitted = self.admit(self.settings.sandbox_mib).await?;
        let mut record = Record::new(who, wish, root)?;
        let identity = record.identity(false)?;
        let mut records = vec![record];
        self.reserve(who, &mut records)?;
        let mut feed = None;
        let made = match &seed {
            Seed::Commit { commit, only_disk } => {
                let record = &mut records[0];
                record.line = commit.line.branch(now_ms()).unwrap_or_default();
                record.commit = Some(commit.id.clone());
                if !only_disk {
                    record.volumes.clone_from(&commit.volumes);
                    // Its memory may be on its way for a while; if it does not come, this is where it is paused.
                    record.stored.clone_from(&commit.stored);
                }
                record.ancestor = commit.stored.as_ref().map(|stored| stored.state.clone());
                self.check_out(commit, *only_disk, identity).await.map(|raised| {
                    feed = raised.feed;
                    vec![Ok(raised.born)]
                })
            }
            Seed::Booted(booted) => {
                let source = self.booted(booted).await;
                self.first_of(who, source, &mut records[0], identity).await
            }
            Seed::Template(id) => {
                let source = self.template_machine(id).await;
                self.first_of(who, source, &mut records[0], identity).await
            }
        };
        let children = self.settle(records, made).await?;
        let first = children.into_iter().next();
        let (record, born) =
            first.unwrap_or_else(|| Err(Error::Internal("a fork without a child".to_owned())))?;
        self.follow(&record, feed);
        if matches!(&seed, Seed::Commit { commit, .. } if commit.trusts) {
            self.reset_trust(&record).await;
        }
        self.events.tell(&record.owner, EventKind::Created, &record.id, None, None);
        let total_us = since_us(began);
        self.metrics.create.observe(seconds(total_us));
        Ok(Created {
            sandbox: record.shown(),
            entered_us: born.entered_us,
            ready_us: born.ready_us,
            total_us,
        })
    }

    /// Gives a new sandbox its volumes, and what it is to trust. One that cannot have them goes.
    async fn furnish(
        &self,
        who: &Principal,
        created: Created,
        volumes: &[AttachVolume],
    ) -> Result<Created, Error> {
        let id = &created.sandbox.id;
        let record = self.find(who, id)?;
        let told = record.network.authority.is_some() || record.network.member.is_some();
        if volumes.is_empty() && !told {
            return Ok(created);
        }
        let own = self.own(id).await?;
        let furnished = async {
            if told {
                self.tell_guest(&record).await?;
            }
            for volume in volumes {
                self.attach_one(who, id, volume).await?;
            }
            Ok(())
        };
        if let Err(error) = furnished.await {
            drop(own);
            self.end_one(who, id).await?;
            return Err(error);
        }
        Ok(Created { sandbox: self.find(who, id)?.shown(), ..created })
    }

    /// A sandbox that begins as a fork of a template.
    async fn first_of(
        &self,
        who: &Principal,
        source: Result<MachineId, Error>,
        record: &mut Record,
        identity: Identity,
    ) -> Result<Vec<Result<Born, crate::host::Error>>, Error> {
        let source = source?;
        if let Some((_, line)) = self.template_found(who, &record.template_id) {
            record.line = line.branch(now_ms()).unwrap_or_default();
        }
        Ok(self.fork_machine(source, vec![identity]).await?.children)
    }

    /// What a sandbox is forked from, what its line begins with, and the environment that comes with it.
    async fn seed(
        &self,
        who: &Principal,
        request: &CreateSandbox,
    ) -> Result<(Seed, Root, BTreeMap<String, String>), Error> {
        let template = request.template.as_deref();
        let given = [template, request.image.as_deref(), request.commit.as_deref()];
        if given.iter().flatten().count() > 1 {
            return Err(Error::Bad("one of template, image and commit, not several".to_owned()));
        }
        if request.disk && request.commit.is_none() {
            return Err(Error::Bad("disk: only with a commit, whose files it takes".to_owned()));
        }
        if let Some(key) = &request.commit {
            return self.seed_of_commit(who, key, request).await;
        }
        if let Some(name) = template.filter(|name| *name != BASE_TEMPLATE) {
            return self.seed_of_template(who, name, request);
        }
        let image = request.image.as_deref().unwrap_or(BASE_IMAGE);
        let shape = check::shape(request.vcpus, request.memory_mib, request.disk_mib)?;
        let booted = Booted { image: self.image_digest(who, image)?, shape };
        let root = Root {
            template: match image {
                BASE_IMAGE => BASE_TEMPLATE.to_owned(),
                name => format!("image:{name}"),
            },
            template_id: booted.id(self.library.base()),
            image: booted.image.clone(),
            shape,
            ..Root::default()
        };
        Ok((Seed::Booted(booted), root, BTreeMap::new()))
    }

    async fn seed_of_commit(
        &self,
        who: &Principal,
        key: &str,
        request: &CreateSandbox,
    ) -> Result<(Seed, Root, BTreeMap<String, String>), Error> {
        let commit = self.find_commit(who, key).await?;
        if commit.stored.is_none() {
            return Err(not_durable(&commit));
        }
        let what = format!("the commit {}", commit.id);
        same_shape(request, commit.root.shape, &what)?;
        let (root, env) = (commit.root.clone(), commit.env.clone());
        let only_disk = request.disk || commit.disk;
        Ok((Seed::Commit { commit: Box::new(commit), only_disk }, root, env))
    }

    fn seed_of_template(
        &self,
        who: &Principal,
        name: &str,
        request: &CreateSandbox,
    ) -> Result<(Seed, Root, BTreeMap<String, String>), Error> {
        let template = self.usable_template(who, name)?;
        let shape = template.shape;
        same_shape(request, shape, &format!("the template {name}"))?;
        let root = template.root();
        Ok((Seed::Template(template.id), root, template.env))
    }

    /// Makes children of a sandbox, all from one instant.
    pub async fn fork(
        &self,
        who: &Principal,
        key: &str,
        request: ForkRequest,
        idempotency_key: Option<String>,
        problem: fn(&Error) -> api::Problem,
    ) -> Result<Forked, Error> {
        let source = self.find(who, key)?;
        let once = idempotency(idempotency_key, &format!("fork {}", source.id), &request)?;
        let (service, principal) = (self.clone(), who.clone());
        let id = source.id.clone();
        self.operate(who, "fork", &id, async move {
            let made_by = once.as_ref().map(|(key, _)| key.clone());
            let manner = Manner { made_by, ..Manner::default() };
            let work = async {
                let brood = service.fork_all(&principal, &source.id, request, manner).await?;
                Ok(brood.shown(problem))
            };
            service.once(&principal, once, work).await
        })
        .await
    }

    /// Makes children.
    pub(super) async fn fork_all(
        &self,
        who: &Principal,
        id: &str,
        request: ForkRequest,
        manner: Manner,
    ) -> Result<Brood, Error> {
        let began = Instant::now();
        let Manner { made_by, call, places } = manner;
        let _share = self.share(id).await?;
        let source = self.find(who, id)?;
        let (machine, line, volumes) = match &request.checkpoint {
            Some(key) => {
                let checkpoint = self.registry().checkpoint(id, key)?.clone();
                let volumes = volumes::snapshots(&checkpoint.volumes);
                (self.checkpoint_machine(&checkpoint).await?, checkpoint.line, volumes)
            }
            None => {
                let volumes = match source.is_stored() {
                    true => volumes::snapshots(&source.volumes),
                    false => volumes::shared(&source.volumes),
                };
                (self.present(&source, "fork").await?, source.line.clone(), volumes)
            }
        };
        let secrets = passed_on(&source, &request)?;
        // What a guest trusted in an earlier moment is not known; nothing, if its sandbox never had anything to trust.
        let from_now = request.checkpoint.is_none() || source.network.authority.is_none();
        let unknown = Net { authority: Some(Authority::default()), ..source.network.clone() };
        let request = ForkRequest { secrets, ..request };
        let (mut records, identities) = self.children(who, &source, request, made_by)?;
        for record in &mut records {
            record.line = line.branch(now_ms())?;
            record.called = call.is_some();
            record.volumes.clone_from(&volumes);
        }
        let held = !places.is_empty();
        for (record, place) in records.iter_mut().zip(places) {
            record.network.member = Some(place);
        }
        let count = u64::try_from(records.len()).unwrap_or(u64::MAX);
        let _admitted = self.admit(count.saturating_mul(self.settings.sandbox_mib)).await?;
        self.reserve(who, &mut records)?;
        let made = match call {
            Some(call) => self.answer_machine(machine, call, identities).await,
            None if held => self.fork_held_machine(machine, identities).await,
            None => self.fork_machine(machine, identities).await,
        };
        let (times, made) = match made {
            Ok(made) => {
                let times = (made.rendezvous_us, made.pause_us, made.fork_us);
                (times, Ok(made.children))
            }
            Err(error) => ((0, 0, 0), Err(error)),
        };
        let children = self.settle(records, made).await?;
        self.registry().touch(&source.id);
        for (record, _) in children.iter().flatten() {
            self.settle_trust(record, if from_now { &source.network } else { &unknown }).await;
            let (owner, parent) = (&record.owner, Some(source.id.as_str()));
            self.events.tell(owner, EventKind::Forked, &record.id, parent, None);
        }
        let total_us = since_us(began);
        self.metrics.fork.observe(seconds(total_us));
        Ok(Brood { times, total_us, children })
    }

    /// Records and identities of children to be.
    fn children(
        &self,
        who: &Principal,
        source: &Record,
        request: ForkRequest,
        made_by: Option<String>,
    ) -> Result<(Vec<Record>, Vec<Identity>), Error> {
        let names = request.names.clone().unwrap_or_default();
        let most = u32::try_from(FORK_MAX).unwrap_or(u32::MAX);
        let given = u32::try_from(names.len()).unwrap_or(u32::MAX);
        let count = request.count.unwrap_or(given.max(1));
        if !(1..=most).contains(&count) {
            return Err(Error::Bad(format!("count: 1 to {most}, not {count}")));
        }
        if !names.is_empty() && given != count {
            return Err(Error::Bad(format!("names: {given} names for {count} children")));
        }
        names.iter().try_for_each(|name| check::name(name))?;
        request.labels.as_ref().map_or(Ok(()), check::labels)?;
        check::seconds("timeout_s", request.timeout_s.unwrap_or(0))?;
        let own = request.env.clone();
        let env: BTreeMap<_, _> = source.env.clone().into_iter().chain(own).collect();
        check::env(&env)?;
        check::secrets(&request.secrets)?;
        let network = self.network_of_children(who, source, &request)?;
        let mut names = names.into_iter();
        let (mut records, mut identities) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let wish = Wish {
                name: names.next(),
                labels: request.labels.clone().unwrap_or_else(|| source.labels.clone()),
                env: env.clone(),
                secrets: request.secrets.clone(),
                timeout_s: request.timeout_s.unwrap_or(source.timeout_s),
                idle_timeout_s: source.idle_timeout_s,
                on_timeout: request.on_timeout.unwrap_or(source.on_timeout),
                cpu: source.cpu,
                pids_max: source.pids_max,
                made_by: made_by.clone(),
                auto_checkpoints: source.auto_checkpoints,
                auto_resume: source.auto_resume,
                network: network.clone(),
            };
            let mut record = Record::new(who, wish, source.root())?;
            record.parent = Some(source.id.clone());
            record.ancestor.clone_from(&source.ancestor);
            record.commit.clone_from(&source.commit);
            identities.push(record.identity(request.deterministic)?);
            records.push(record);
        }
        check_size(&identities)?;
        Ok((records, identities))
    }

    /// Takes the names of sandboxes to be, and writes them down.
    fn reserve(&self, who: &Principal, records: &mut [Record]) -> Result<(), Error> {
        self.commit(|registry| {
            let live = registry.all().filter(|record| record.phase != Phase::Gone).count();
            let most = self.settings.sandboxes_max as usize;
            if live + records.len() > most {
                let text = format!("this node has {live} sandboxes of at most {most}; remove some");
                return Err(Error::NoCapacity(text));
            }
            let names: Vec<_> =
                records.iter().map(|record| (record.id.as_str(), record.name.as_str())).collect();
            registry.check_names(who.name(), &names)?;
            for record in records.iter_mut() {
                record.number = registry.next_number();
            }
            Ok(Change { sandboxes: records.to_vec(), ..Change::default() })
        })
    }

    /// Forks a machine.
    pub(super) async fn fork_machine(
        &self,
        source: MachineId,
        identities: Vec<Identity>,
    ) -> Result<Offspring, Error> {
        let made = self.host.call(move |engine| engine.fork(&source, identities)).await?;
        self.observe(&made);
        Ok(made)
    }

    /// Forks a machine that stands still with others, and goes on.
    async fn fork_held_machine(
        &self,
        source: MachineId,
        identities: Vec<Identity>,
    ) -> Result<Offspring, Error> {
        let made = self.host.call(move |engine| engine.fork_held(&source, identities)).await?;
        self.observe(&made);
        Ok(made)
    }

    /// Forks a machine in answer to a call from inside.
    async fn answer_machine(
        &self,
        source: MachineId,
        call: u64,
        identities: Vec<Identity>,
    ) -> Result<Offspring, Error> {
        let answer = move |engine: &dyn Engine| engine.answer_fork(&source, call, identities);
        let made = self.host.call(answer).await?;
        self.observe(&made);
        Ok(made)
    }

    fn observe(&self, made: &Offspring) {
        self.metrics.pause.observe(seconds(made.pause_us));
        for born in made.children.iter().flatten() {
            self.metrics.ready.observe(seconds(born.ready_us));
        }
    }

    /// Gives reserved sandboxes their machines, and forgets those that got none.
    async fn settle(
        &self,
        records: Vec<Record>,
        made: Result<Vec<Result<Born, crate::host::Error>>, Error>,
    ) -> Result<Vec<Child>, Error> {
        let forget: Vec<String> = records.iter().map(|record| record.id.clone()).collect();
        let born = match made {
            Ok(born) => born,
            Err(error) => {
                self.commit(|_| Ok(Change { forget, ..Change::default() }))?;
                return Err(error);
            }
        };
        let mut children: Vec<Child> = Vec::new();
        for (mut record, born) in records.into_iter().zip(born) {
            let limited = match born {
                Ok(born) => self.limit(&born.machine, record.cpu).await.map(|()| born),
                Err(error) => Err(error.into()),
            };
            children.push(limited.map(|born| {
                record.phase = Phase::Running;
                record.machine = Some(born.machine.clone());
                (record, born)
            }));
        }
        let running: Vec<Record> =
            children.iter().flatten().map(|(record, _)| record.clone()).collect();
        let forget: Vec<String> =
            forget.into_iter().filter(|id| running.iter().all(|record| record.id != *id)).collect();
        if let Err(error) =
            self.commit(|_| Ok(Change { sandboxes: running, forget, ..Change::default() }))
        {
            for (record, _) in children.drain(..).flatten() {
                if let Some(machine) = record.machine {
                    self.kill(machine).await;
                }
            }
            return Err(error);
        }
        for (_, born) in children.iter().flatten() {
            self.watch(&born.machine).await;
        }
        let born: Vec<&Record> = children.iter().flatten().map(|(record, _)| record).collect();
        self.connect(&born).await;
        Ok(children)
    }

    /// Gives a new machine its share of the processors. One that cannot have it is ended.
    pub(super) async fn limit(&self, machine: &MachineId, cpu: Cpu) -> Result<(), Error> {
        if cpu == Cpu::default() {
            return Ok(());
        }
        let limited = machine.clone();
        let result = self.host.call(move |engine| engine.limit(&limited, cpu)).await;
        if result.is_err() {
            self.kill(machine.clone()).await;
        }
        Ok(result?)
    }

    /// A sandbox.
    pub fn get(&self, who: &Principal, key: &str) -> Result<api::Sandbox, Error> {
        Ok(self.with_warmth(self.find(who, key)?.shown()))
    }

    /// A page of sandboxes.
    pub fn list(&self, who: &Principal, query: &api::ListQuery) -> Result<api::SandboxList, Error> {
        let limit = query.limit.unwrap_or(100);
        if !(1..=1000).contains(&limit) {
            return Err(Error::Bad(format!("limit: 1 to 1000, not {limit}")));
        }
        let after = match query.cursor.as_deref().map(str::parse) {
            None => 0,
            Some(Ok(after)) => after,
            Some(Err(_)) => return Err(Error::Bad("cursor: not one of this node".to_owned())),
        };
        let label = query.label.as_deref().map(Label::parse);
        let filter = Filter { label, state: query.state, after, limit: limit as usize };
        let registry = self.registry();
        let (page, next) = registry.list(who, &filter);
        Ok(api::SandboxList {
            sandboxes: page.into_iter().map(|one| self.with_warmth(one.shown())).collect(),
            next_cursor: next.map(|next| next.to_string()),
        })
    }

    /// Everything, with parents.
    pub fn tree(&self, who: &Principal) -> api::Tree {
        let mut nodes = self.boots.nodes(self.library.base());
        nodes.extend(self.template_nodes(who));
        nodes.extend(self.registry().tree(who));
        api::Tree { nodes }
    }

    /// Changes name, labels or limits.
    pub async fn update(
        &self,
        who: &Principal,
        key: &str,
        request: UpdateSandbox,
    ) -> Result<api::Sandbox, Error> {
        request.name.as_deref().map_or(Ok(()), check::name)?;
        request.labels.as_ref().map_or(Ok(()), check::labels)?;
        check::seconds("timeout_s", request.timeout_s.unwrap_or(0))?;
        check::seconds("idle_timeout_s", request.idle_timeout_s.unwrap_or(0))?;
        let auto_checkpoints = self.checked_auto(request.auto_checkpoints)?;
        let id = self.find(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "update", &target, async move {
            let _own = service.own(&id).await?;
            let mut changed = service.find(&principal, &id)?;
            let cpu = check::cpu(Cpu {
                weight: request.cpu_weight.unwrap_or(changed.cpu.weight),
                quota_percent: request.cpu_quota_percent.unwrap_or(changed.cpu.quota_percent),
            })?;
            if cpu != changed.cpu {
                let machine = machine_of(&changed, "be limited")?;
                service.host.call(move |engine| engine.limit(&machine, cpu)).await?;
                changed.cpu = cpu;
            }
            service.commit(|registry| {
                if let Some(name) = request.name {
                    registry.check_names(principal.name(), &[(&id, &name)])?;
                    changed.name = name;
                }
                changed.labels = request.labels.unwrap_or(changed.labels.clone());
                changed.timeout_s = request.timeout_s.unwrap_or(changed.timeout_s);
                changed.idle_timeout_s = request.idle_timeout_s.unwrap_or(changed.idle_timeout_s);
                changed.on_timeout = request.on_timeout.unwrap_or(changed.on_timeout);
                if request.auto_checkpoints.is_some() {
                    changed.auto_checkpoints = auto_checkpoints;
                }
                changed.auto_resume = request.auto_resume.unwrap_or(changed.auto_resume);
                changed.touch();
                Ok(Change { sandboxes: vec![changed.clone()], ..Change::default() })
            })?;
            service.events.tell(&changed.owner, EventKind::Updated, &id, None, None);
            if request.auto_checkpoints.is_some() {
                service.trim_soon(&id);
            }
            Ok(changed.shown())
        })
        .await
    }

    /// Ends a sandbox and its checkpoints. Its children stay.
    pub async fn delete(&self, who: &Principal, key: &str) -> Result<(), Error> {
        let id = self.find(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "delete", &target, async move { service.end_one(&principal, &id).await })
            .await
    }

    async fn end_one(&self, who: &Principal, id: &str) -> Result<(), Error> {
        let _own = self.own(id).await?;
        let mut record = self.find(who, id)?;
        self.last_writes(&record).await;
        let (machine, kept) = (record.machine.take(), record.clone());
        self.disconnect(id).await;
        record.end();
        let owner = record.owner.clone();
        let mut ended = Vec::new();
        self.commit(|registry| {
            ended = registry.checkpoints_of(id).into_iter().cloned().collect();
            let forget_checkpoints = ended.iter().map(|checkpoint| checkpoint.id.clone()).collect();
            let forget_links = registry.links_of(id).iter().map(|link| link.id.clone()).collect();
            let sandboxes = vec![record];
            Ok(Change { sandboxes, forget_checkpoints, forget_links, ..Change::default() })
        })?;
        self.events.tell(&owner, EventKind::Deleted, id, None, None);
        if let Some(machine) = machine {
            self.kill(machine).await;
        }
        for checkpoint in ended {
            self.end_checkpoint(&owner, checkpoint).await;
        }
        self.forget_stored(&kept).await;
        self.drop_bases(&kept.root()).await;
        Ok(())
    }
}

/// What a sandbox goes on from has its own shape.
fn same_shape(request: &CreateSandbox, shape: Shape, what: &str) -> Result<(), Error> {
    let same = request.vcpus.is_none_or(|vcpus| vcpus == shape.vcpus)
        && request.memory_mib.is_none_or(|memory| memory == shape.memory_mib)
        && request.disk_mib.is_none_or(|disk| disk == shape.disk_mib);
    if same {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{what} has {} vCPUs, {} MiB of memory and {} MiB of disk, and so have its sandboxes; \
         leave vcpus, memory_mib and disk_mib out, or make it with others",
        shape.vcpus, shape.memory_mib, shape.disk_mib
    )))
}

fn wish(request: CreateSandbox) -> Result<Wish, Error> {
    request.name.as_deref().map_or(Ok(()), check::name)?;
    check::labels(&request.labels)?;
    check::env(&request.env)?;
    check::secrets(&request.secrets)?;
    Ok(Wish {
        name: request.name,
        labels: request.labels,
        env: request.env,
        secrets: request.secrets,
        timeout_s: check::seconds("timeout_s", request.timeout_s.unwrap_or(0))?,
        idle_timeout_s: check::seconds("idle_timeout_s", request.idle_timeout_s.unwrap_or(0))?,
        on_timeout: request.on_timeout,
        cpu: check::cpu(Cpu {
            weight: request.cpu_weight.unwrap_or(Cpu::default().weight),
            quota_percent: request.cpu_quota_percent.unwrap_or(0),
        })?,
        pids_max: check::pids(request.pids_max.unwrap_or(0))?,
        made_by: None,
        auto_checkpoints: None,
        auto_resume: request.auto_resume,
        network: Net::default(),
    })
}

/// The secrets of children: a source that holds some is only forked if it is said what becomes of them.
fn passed_on(source: &Record, request: &ForkRequest) -> Result<BTreeMap<String, String>, Error> {
    let mut secrets = match request.inherit_secrets {
        None => {
            refuse_secrets(source, "forked")?;
            BTreeMap::new()
        }
        Some(true) => source.secrets.clone(),
        Some(false) => BTreeMap::new(),
    };
    secrets.extend(request.secrets.clone());
    Ok(secrets)
}

/// For requests that do not say what becomes of secrets.
pub(super) fn refuse_secrets(record: &Record, what: &str) -> Result<(), Error> {
    if !record.holds_secrets() {
        return Ok(());
    }
    let names: Vec<&str> = record.secrets.keys().map(String::as_str).collect();
    Err(Error::HoldsSecrets(format!(
        "the sandbox {} holds secrets ({}) and is only {what} if `inherit_secrets` says whether they are passed on",
        record.name,
        names.join(", ")
    )))
}

/// The machine of a sandbox that has one.
pub(super) fn machine_of(record: &Record, what: &str) -> Result<MachineId, Error> {
    match (&record.machine, record.phase) {
        (Some(machine), Phase::Running | Phase::Paused) => Ok(machine.clone()),
        (None, Phase::Paused) => Err(Error::WrongState(format!(
            "the sandbox {} is paused in the store and cannot {what}; resume it first",
            record.id
        ))),
        _ => Err(Error::WrongState(format!(
            "the sandbox {} has failed and cannot {what}; rewind or delete it",
            record.id
        ))),
    }
}

/// The key with what stands for its request.
fn idempotency(
    key: Option<String>,
    what: &str,
    request: &impl serde::Serialize,
) -> Result<Option<(String, String)>, Error> {
    let Some(key) = key else { return Ok(None) };
    if key.is_empty() || key.len() > KEY_MAX {
        return Err(Error::Bad(format!("Idempotency-Key: 1 to {KEY_MAX} characters")));
    }
    let text = serde_json::to_string(request).map_err(|e| Error::Internal(e.to_string()))?;
    Ok(Some((key, blake3::hash(format!("{what} {text}").as_bytes()).to_hex().to_string())))
}

fn check_size(identities: &[Identity]) -> Result<(), Error> {
    let pairs = |map: &BTreeMap<String, String>| -> usize {
        map.iter().map(|(key, value)| key.len() + value.len() + 8).sum()
    };
    let size: usize =
        identities.iter().map(|one| 512 + pairs(&one.env) + pairs(&one.secrets)).sum();
    if size > IDENTITIES_MAX {
        let text = format!(
            "environment and secrets of all children: {size} bytes, at most {IDENTITIES_MAX}; fork fewer at a time"
        );
        return Err(Error::Bad(text));
    }
    Ok(())
}

fn shown_child(child: &Child, problem: fn(&Error) -> api::Problem) -> ForkedChild {
    match child {
        Ok((record, born)) => ForkedChild {
            sandbox: Some(record.shown()),
            entered_us: Some(born.entered_us),
            ready_us: Some(born.ready_us),
            error: None,
        },
        Err(error) => ForkedChild {
            sandbox: None,
            entered_us: None,
            ready_us: None,
            error: Some(problem(error)),
        },
    }
}
