//! Building a template.
//!
//! A machine that was booted from an image, or a sandbox, is forked; in the child files are written and
//! commands run; when the ready check succeeds the child is written to files and ended, and a machine is made
//! of the files, which shows that they are good. Then one transaction makes the template ready and
//! forgets the one that had its name.
//!
//! What the guest writes goes to a bounded log. Commands are given up when the build is cancelled or its time
//! is over; calls into the engine are always carried out, so that no machine is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ramet_proto::agent::{
    Exec, Exited, Identity, Input, Mkdir, Network, Reply, Request, WriteFile,
};
use ramet_proto::api::network::Layer;
use ramet_proto::api::{self, BASE_IMAGE, BASE_TEMPLATE, BuildTemplate, Encoding, TemplateState};
use tokio::time::{sleep, timeout};

use super::{Service, Template, Work};
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::host::agent::{self, Frame, unexpected};
use crate::host::{MachineId, Save, Shape};
use crate::random;
use crate::sandbox::boot::Booted;
use crate::sandbox::check;
use crate::sandbox::error::Error;
use crate::sandbox::images::blocking;
use crate::sandbox::life::{machine_of, refuse_secrets};
use crate::sandbox::line::Line;
use crate::sandbox::record::Record;

/// Most templates of a node.
pub(in crate::sandbox) const TEMPLATES_MAX: usize = 256;
/// Most builds at once.
const BUILDS_MAX: usize = 4;
/// Most commands of each kind, and most bytes of one.
const COMMANDS_MAX: usize = 256;
const COMMAND_MAX: usize = 64 << 10;
/// Most bytes of all files.
const FILES_MAX: usize = 8 << 20;
/// How long a build may take, if it does not say, and at most.
const TIME_S: u64 = 1800;
const TIME_MAX_S: u64 = 24 * 3600;
/// How long a guest may take to get ready, if the recipe does not say.
const READY_S: u64 = 60;
/// Between two looks whether it is ready.
const READY_PAUSE: Duration = Duration::from_millis(300);
/// How long the agent may take to report the end of a process whose time is over.
const GRACE: Duration = Duration::from_secs(10);

/// What a template is made from.
#[derive(Debug, Clone)]
enum Source {
    /// An image.
    Image(Booted),
    /// A sandbox, or one of its checkpoints, by their ids.
    Sandbox(String, Option<String>),
}

/// What the source gives to the template.
struct Given {
    source: Source,
    /// Digest.
    image: String,
    /// Digest of a disk that is not the node's own.
    data: String,
    shape: Shape,
    env: BTreeMap<String, String>,
    user: Option<String>,
    workdir: Option<String>,
    layers: Vec<Layer>,
}

/// A build that was asked for and found well formed.
struct Plan {
    source: Source,
    /// With the content of files.
    recipe: BuildTemplate,
    template: Template,
    /// What it reaches while it is built; nothing if there are none.
    reach: Vec<Layer>,
}

impl Service {
    /// Begins to build a template. False if there was nothing to do: the same was built before, or is
    /// being built.
    pub async fn build_template(
        &self,
        who: &Principal,
        request: BuildTemplate,
    ) -> Result<(api::Template, bool), Error> {
        let plan = self.plan(who, request)?;
        let (template, work) = self.begin(who, &plan)?;
        let shown = self.shown_template(&template, &self.sandboxes_by_template());
        let Some(work) = work else { return Ok((shown, false)) };
        let (service, who) = (self.clone(), who.clone());
        self.tasks.spawn(async move {
            let inner = service.clone();
            let target = format!("{} {}", plan.template.id, plan.template.name);
            let build = async move { inner.build(plan, work).await };
            // How it went is in the row, and noted.
            let _noted = service.operate(&who, "template_build", &target, build).await;
        });
        Ok((shown, true))
    }

    /// Writes a new template down; or gives the same one, if it is there.
    fn begin(&self, who: &Principal, plan: &Plan) -> Result<(Template, Option<Arc<Work>>), Error> {
        let _beginning = self.shelf.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = self.same_template(who, plan)? {
            return Ok((same, None));
        }
        let work = self.put_template(plan.template.clone())?;
        Ok((plan.template.clone(), Some(work)))
    }

    /// The same template, if it is there; an error if this one cannot be begun.
    fn same_template(&self, who: &Principal, plan: &Plan) -> Result<Option<Template>, Error> {
        let (new, all) = (&plan.template, self.shelf.all());
        let building = |one: &&Template| one.state == TemplateState::Building;
        for one in all.iter().filter(|one| one.owner == who.name() && one.name == new.name) {
            let same = !new.digest.is_empty() && one.digest == new.digest;
            match one.state {
                TemplateState::Building if same => return Ok(Some(one.clone())),
                TemplateState::Building => {
                    return Err(Error::WrongState(format!(
                        "another template {} is being built; wait for it, or delete it",
                        new.name
                    )));
                }
                TemplateState::Ready if same && !plan.recipe.rebuild => {
                    return Ok(Some(one.clone()));
                }
                _ => {}
            }
        }
        if all.iter().filter(building).count() >= BUILDS_MAX {
            let text = format!("{BUILDS_MAX} templates are being built already; try again");
            return Err(Error::TooMany(text));
        }
        if all.len() >= TEMPLATES_MAX {
            let text = format!("this node has {TEMPLATES_MAX} templates, the most; delete some");
            return Err(Error::TooMany(text));
        }
        Ok(None)
    }

    fn plan(&self, who: &Principal, mut request: BuildTemplate) -> Result<Plan, Error> {
        check_recipe(&request)?;
        let Given { source, image, data, shape, mut env, user, workdir, layers } =
            self.given(who, &request)?;
        let layers = self.layers_of_template(layers, request.network.as_ref())?;
        let mut reach = Vec::new();
        if request.network.is_some() {
            reach.extend(who.cap().into_iter().chain(layers.iter().cloned()));
        }
        request.user = request.user.or(user);
        request.workdir = request.workdir.or(workdir);
        env.extend(request.env.clone());
        check::env(&env)?;
        // An image that is gone is told now.
        self.library.root(&image)?;
        let digest = match &source {
            Source::Image(_) => recipe_digest(&request, &image, shape)?,
            Source::Sandbox(..) => String::new(),
        };
        let mut shown = request.clone();
        shown.files.iter_mut().for_each(|file| file.content.clear());
        let template = Template {
            id: format!("tmpl-{}", random::hex(8)?),
            name: request.name.clone(),
            owner: who.name().to_owned(),
            state: TemplateState::Building,
            reason: None,
            shape,
            image,
            data,
            needs: None,
            recipe: shown,
            digest,
            env,
            size_bytes: 0,
            created_at_ms: now_ms(),
            build_ms: 0,
            log: String::new(),
            machine: None,
            line: Line::default(),
            layers,
        };
        Ok(Plan { source, recipe: request, template, reach })
    }

    /// What it is made from.
    fn given(&self, who: &Principal, request: &BuildTemplate) -> Result<Given, Error> {
        let Some(sandbox) = &request.sandbox else {
            let name = request.image.as_deref().unwrap_or(BASE_IMAGE);
            let image = self.image_digest(who, name)?;
            let shape = check::shape(request.vcpus, request.memory_mib, request.disk_mib)?;
            let source = Source::Image(Booted { image: image.clone(), shape });
            let (data, env, user, workdir) = (String::new(), BTreeMap::new(), None, None);
            let layers = Vec::new();
            return Ok(Given { source, image, data, shape, env, user, workdir, layers });
        };
        let record = self.find(who, sandbox)?;
        self.refuse_volumes(&record, request.checkpoint.as_deref())?;
        match request.inherit_secrets {
            None => refuse_secrets(&record, "made a template")?,
            Some(true) => {
                let text =
                    "inherit_secrets: a template keeps no secrets; give them to its sandboxes";
                return Err(Error::Unsupported(text.to_owned()));
            }
            Some(false) => {}
        }
        let checkpoint = match &request.checkpoint {
            Some(key) => Some(self.registry().checkpoint(&record.id, key)?.id.clone()),
            None if record.is_stored() => None,
            None => machine_of(&record, "become a template").map(|_| None)?,
        };
        let image = match record.image.is_empty() {
            true => self.library.base().to_owned(),
            false => record.image,
        };
        Ok(Given {
            source: Source::Sandbox(record.id, checkpoint),
            image,
            data: record.data,
            shape: record.shape,
            env: record.env,
            user: record.user,
            workdir: record.workdir,
            layers: record.template_layers,
        })
    }

    /// A template has no volumes: nobody would say whose they are.
    fn refuse_volumes(&self, record: &Record, checkpoint: Option<&str>) -> Result<(), Error> {
        let registry = self.registry();
        let volumes = match checkpoint {
            Some(key) => &registry.checkpoint(&record.id, key)?.volumes,
            None => &record.volumes,
        };
        let Some(attachment) = volumes.first() else { return Ok(()) };
        Err(Error::WrongState(format!(
            "the sandbox {} has the volume {} and cannot become a template with it; detach it first",
            record.id, attachment.name
        )))
    }

    async fn build(&self, plan: Plan, work: Arc<Work>) -> Result<(), Error> {
        let began = Instant::now();
        let limit = Duration::from_secs(plan.recipe.timeout_s.unwrap_or(TIME_S));
        let (id, image) = (plan.template.id.clone(), plan.template.image.clone());
        let mut build = Build {
            service: self.clone(),
            work: work.clone(),
            end: began + limit,
            plan,
            child: None,
        };
        let reaches = !build.plan.reach.is_empty();
        let built = build.carry_out().await;
        if reaches {
            self.disconnect(&id).await;
        }
        if let Some(child) = build.child.take() {
            self.kill(child).await;
        }
        let settled = match built {
            Ok(ready) => self.settle_template(ready, began, &work).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &settled {
            self.template_failed(&id, error, began, &work).await;
            self.drop_image_if_unused(&image).await;
        }
        settled
    }

    /// The template is ready, and takes its name over.
    pub(in crate::sandbox) async fn settle_template(
        &self,
        ready: Template,
        began: Instant,
        work: &Work,
    ) -> Result<(), Error> {
        work.log.line(&format!("ready after {:.1} s", began.elapsed().as_secs_f64()));
        let size_bytes = self.library.template_size(&ready.id);
        let build_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let ready = Template { size_bytes, build_ms, log: work.log.tail(), ..ready };
        let owner = Principal::new(&ready.owner);
        let mut before = self.shelf.named(&owner, &ready.name);
        before.retain(|one| one.id != ready.id && one.state != TemplateState::Building);
        let forget: Vec<String> = before.iter().map(|one| one.id.clone()).collect();
        let machine = ready.machine.clone();
        // It may be deleted in this moment; whoever comes second sees what the first has done.
        let settling = work.warming.lock().await;
        let written = match self.shelf.get(&ready.id) {
            Some(_) => self.store.put_template(&ready, &forget).map_err(Error::from),
            None => Err(Error::WrongState("it was deleted".to_owned())),
        };
        if let Err(error) = written {
            if let Some(machine) = machine {
                self.kill(machine).await;
            }
            return Err(error);
        }
        self.shelf.put(ready);
        drop(settling);
        for old in before {
            self.shelf.remove(&old.id);
            self.clear_template(old).await;
        }
        if let Some(machine) = machine {
            self.watch(&machine).await;
        }
        Ok(())
    }

    /// The template has failed, unless it was deleted; what it has written goes.
    async fn template_failed(&self, id: &str, error: &Error, began: Instant, work: &Work) {
        work.log.line(&format!("failed: {error}"));
        self.remove_template_files(id).await;
        let Some((template, _)) = self.shelf.get(id) else { return };
        let failed = Template {
            state: TemplateState::Failed,
            reason: Some(error.to_string()),
            build_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            log: work.log.tail(),
            machine: None,
            ..template
        };
        if let Err(error) = self.put_template(failed) {
            tracing::error!(?error, id, "a template's failure could not be written down");
        }
    }
}

/// A build under way.
struct Build {
    service: Service,
    work: Arc<Work>,
    /// When its time is over.
    end: Instant,
    plan: Plan,
    /// The machine in which it happens. Whoever has the build ends it.
    child: Option<MachineId>,
}

impl Build {
    /// All steps. The template as it is then, with its machine.
    async fn carry_out(&mut self) -> Result<Template, Error> {
        let child = self.fork().await?;
        self.child = Some(child.clone());
        self.connect(&child).await?;
        self.furnish(&child).await?;
        for (number, line) in self.plan.recipe.run.iter().enumerate() {
            self.work.log.line(&format!("$ {line}"));
            let exited = self.command(&child, line, self.end).await?;
            if exited.code != Some(0) {
                let how = how(&exited);
                return Err(Error::BuildFailed(format!("run[{number}] {line:?} {how}")));
            }
        }
        for line in &self.plan.recipe.start {
            self.work.log.line(&format!("$ {line} &"));
            // The session ends here, the process does not.
            self.begin(&child, line, None).await?;
        }
        self.await_ready(&child).await?;
        self.save(child).await
    }

    /// A child of the source, with an identity of its own and without secrets.
    async fn fork(&mut self) -> Result<MachineId, Error> {
        let service = self.service.clone();
        let _admitted = service.admit(service.settings.sandbox_mib).await?;
        let (source, line, _share) = match &self.plan.source {
            Source::Image(booted) => {
                let id = booted.id(service.library.base());
                self.work.log.line(&format!("booting {id}"));
                let machine = service.booted(booted).await?;
                let line = service.boots.found(&id, service.library.base());
                (machine, line.map(|(_, line)| line).unwrap_or_default(), None)
            }
            Source::Sandbox(id, checkpoint) => {
                self.work.log.line(&format!("forking {id}"));
                let share = service.share(id).await?;
                let (machine, line) = self.moment(id, checkpoint.as_deref()).await?;
                (machine, line, Some(share))
            }
        };
        self.check_time()?;
        let identity = Identity {
            hostname: self.plan.template.name.clone(),
            instance: self.plan.template.id.clone(),
            env: self.plan.template.env.clone(),
            ..Identity::default()
        };
        self.plan.template.line = line.branch(now_ms())?;
        Ok(service.fork_machine(source, vec![identity]).await?.only()?.machine)
    }

    /// Its place at the network, if it has any; and it trusts nothing that a sandbox did.
    async fn connect(&self, child: &MachineId) -> Result<(), Error> {
        let Plan { source, template, reach, .. } = &self.plan;
        if !reach.is_empty() {
            self.service.connect_build(&template.id, child, reach.clone()).await?;
        }
        let Source::Sandbox(id, _) = source else { return Ok(()) };
        let trusts =
            self.service.registry().get(id).is_some_and(|one| one.network.authority.is_some());
        if trusts {
            let mut session = self.service.host.agent(child).await?;
            session.done(&Request::Network(Network::default())).await?;
        }
        Ok(())
    }

    /// The machine and the line of a sandbox, or of one of its checkpoints.
    async fn moment(&self, id: &str, checkpoint: Option<&str>) -> Result<(MachineId, Line), Error> {
        let who = Principal::new(&self.plan.template.owner);
        let record = self.service.find(&who, id)?;
        let Some(key) = checkpoint else {
            let machine = self.service.present(&record, "become a template").await?;
            return Ok((machine, record.line));
        };
        let checkpoint = self.service.registry().checkpoint(id, key)?.clone();
        Ok((self.service.checkpoint_machine(&checkpoint).await?, checkpoint.line))
    }

    /// The working directory, and the files.
    async fn furnish(&self, child: &MachineId) -> Result<(), Error> {
        let recipe = &self.plan.recipe;
        if let Some(path) = recipe.workdir.clone() {
            let mkdir = Mkdir { path, mode: None, owner: recipe.user.clone() };
            let mut session = self.service.host.agent(child).await?;
            match session.ask(&Request::Mkdir(mkdir)).await? {
                Reply::Stat(_) => {}
                other => return Err(unexpected(&other).into()),
            }
        }
        for file in &recipe.files {
            self.work.log.line(&format!("writing {}", file.path));
            let content = decoded(file)?;
            let write = WriteFile {
                path: file.path.clone(),
                mode: check::mode(file.mode.as_deref())?,
                owner: recipe.user.clone(),
                ..WriteFile::default()
            };
            let mut session = self.service.host.agent(child).await?;
            session.speaker.message(&Request::WriteFile(write)).await?;
            let sent = timeout(agent::PATIENCE, session.speaker.bytes(&content)).await;
            sent.map_err(|_| agent::Error::Timeout)??;
            session.speaker.input(&Input::End {}).await?;
            session.listener.reply().await?;
        }
        Ok(())
    }

    /// Starts a line for the shell.
    async fn begin(
        &self,
        child: &MachineId,
        line: &str,
        time: Option<Duration>,
    ) -> Result<agent::Session, Error> {
        self.check_time()?;
        let exec = Exec {
            argv: ["/bin/sh", "-c", line].map(str::to_owned).to_vec(),
            cwd: self.plan.recipe.workdir.clone(),
            user: self.plan.recipe.user.clone(),
            timeout_ms: time.map(|time| u64::try_from(time.as_millis().max(1)).unwrap_or(u64::MAX)),
            ..Exec::default()
        };
        let mut session = self.service.host.agent(child).await?;
        match session.ask(&Request::Exec(exec)).await? {
            Reply::Started { .. } => Ok(session),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Runs a line for the shell to its end; what it writes goes to the log.
    async fn command(&self, child: &MachineId, line: &str, end: Instant) -> Result<Exited, Error> {
        let left = end.min(self.end).saturating_duration_since(Instant::now());
        let mut session = self.begin(child, line, Some(left)).await?;
        let output = async {
            loop {
                match session.listener.next().await? {
                    Frame::Bytes(_, bytes) => self.work.log.write(&bytes),
                    Frame::Reply(Reply::Exited(exited)) => return Ok(exited),
                    Frame::Reply(other) => return Err(Error::from(unexpected(&other))),
                }
            }
        };
        tokio::select! {
            exited = timeout(left + GRACE, output) => {
                exited.unwrap_or_else(|_| Err(agent::Error::Timeout.into()))
            }
            () = self.work.cancel.cancelled() => Err(deleted()),
            () = self.service.stop.cancelled() => Err(stopping()),
        }
    }

    /// Tries the ready check until it succeeds.
    async fn await_ready(&self, child: &MachineId) -> Result<(), Error> {
        let Some(line) = &self.plan.recipe.ready else { return Ok(()) };
        let seconds = self.plan.recipe.ready_timeout_s.unwrap_or(READY_S);
        let end = self.end.min(Instant::now() + Duration::from_secs(seconds));
        self.work.log.line(&format!("until ready: {line}"));
        loop {
            let exited = self.command(child, line, end).await?;
            if exited.code == Some(0) {
                return Ok(());
            }
            if Instant::now() + READY_PAUSE >= end {
                let text =
                    format!("it was not ready within {seconds} s: {line:?} {}", how(&exited));
                return Err(Error::BuildFailed(text));
            }
            sleep(READY_PAUSE).await;
        }
    }

    /// Writes the child to files, ends it, and makes the machine of the files that never runs.
    async fn save(&mut self, child: MachineId) -> Result<Template, Error> {
        self.check_time()?;
        self.work.log.line("saving");
        let mut template = self.plan.template.clone();
        let mut root = template.root();
        self.service.keep_bases(&mut root).await?;
        template.data = root.data;
        let (library, id) = (self.service.library.clone(), template.id.clone());
        let directory = blocking(move || Ok(library.place_template(&id)?)).await?;
        let (source, how) = (child.clone(), Save { sync: true, only_disks: false });
        let needs = self.service.host.call(move |engine| engine.save(&source, &directory, how));
        let needs = Some(needs.await?);
        self.child = None;
        self.service.kill(child).await;
        let machine = self.service.restore_template(&template).await?;
        let template = Template { needs, ..template };
        Ok(Template { state: TemplateState::Ready, machine: Some(machine), ..template })
    }

    fn check_time(&self) -> Result<(), Error> {
        match () {
            () if self.work.cancel.is_cancelled() => Err(deleted()),
            () if self.service.stop.is_cancelled() => Err(stopping()),
            () if Instant::now() >= self.end => {
                Err(Error::BuildFailed("its time is over".to_owned()))
            }
            () => Ok(()),
        }
    }
}

fn deleted() -> Error {
    Error::BuildFailed("it was deleted while it was built".to_owned())
}

fn stopping() -> Error {
    Error::BuildFailed("the node stopped while it was built".to_owned())
}

/// How a process ended, in words.
fn how(exited: &Exited) -> String {
    match (exited.timed_out, exited.code, exited.signal) {
        (true, ..) => "was not done in time".to_owned(),
        (_, Some(code), _) => format!("exited with code {code}"),
        (_, _, Some(signal)) => format!("was killed by signal {signal}"),
        _ => "ended, nobody knows how".to_owned(),
    }
}

fn decoded(file: &api::TemplateFile) -> Result<Vec<u8>, Error> {
    match file.encoding {
        Encoding::Text => Ok(file.content.clone().into_bytes()),
        Encoding::Base64 => STANDARD.decode(&file.content).map_err(|error| {
            Error::Bad(format!("files: {}: not base64 with padding: {error}", file.path))
        }),
    }
}

fn check_recipe(request: &BuildTemplate) -> Result<(), Error> {
    check::name(&request.name)?;
    if request.name == BASE_TEMPLATE {
        return Err(Error::Bad(format!("the template {BASE_TEMPLATE} is the node's own")));
    }
    check_sources(request)?;
    check::env(&request.env)?;
    request.workdir.as_deref().map_or(Ok(()), |path| check::path("workdir", path))?;
    let commands = [("run", &request.run[..]), ("start", &request.start[..])];
    let ready = ("ready", request.ready.as_slice());
    for (what, lines) in commands.into_iter().chain([ready]) {
        let bad = |line: &String| {
            line.trim().is_empty() || line.len() > COMMAND_MAX || line.contains('\0')
        };
        if lines.len() > COMMANDS_MAX || lines.iter().any(bad) {
            let text = format!(
                "{what}: at most {COMMANDS_MAX} lines of at most {COMMAND_MAX} bytes, not empty and without NUL"
            );
            return Err(Error::Bad(text));
        }
    }
    let mut bytes = 0;
    for file in &request.files {
        check::path("files", &file.path)?;
        check::mode(file.mode.as_deref())?;
        bytes += decoded(file)?.len();
    }
    if bytes > FILES_MAX {
        return Err(Error::Bad(format!("files: {bytes} bytes in all, at most {FILES_MAX}")));
    }
    for (what, seconds) in
        [("timeout_s", request.timeout_s), ("ready_timeout_s", request.ready_timeout_s)]
    {
        if seconds.is_some_and(|seconds| !(1..=TIME_MAX_S).contains(&seconds)) {
            return Err(Error::Bad(format!("{what}: 1 to {TIME_MAX_S}")));
        }
    }
    Ok(())
}

fn check_sources(request: &BuildTemplate) -> Result<(), Error> {
    let bad = |text: &str| Err(Error::Bad(text.to_owned()));
    if request.sandbox.is_none() && request.checkpoint.is_some() {
        return bad("checkpoint: say whose it is, in sandbox");
    }
    if request.sandbox.is_some() && request.image.is_some() {
        return bad("either image or sandbox, not both");
    }
    let shape =
        request.vcpus.is_some() || request.memory_mib.is_some() || request.disk_mib.is_some();
    if request.sandbox.is_some() && shape {
        return bad("vcpus, memory_mib and disk_mib are those of the sandbox; leave them out");
    }
    Ok(())
}

/// What stands for everything that a template is built from.
fn recipe_digest(request: &BuildTemplate, image: &str, shape: Shape) -> Result<String, Error> {
    // The same under another name, or asked for with other words, is the same.
    let plain = BuildTemplate {
        name: String::new(),
        image: None,
        vcpus: None,
        memory_mib: None,
        disk_mib: None,
        rebuild: false,
        ..request.clone()
    };
    let text = serde_json::to_string(&(plain, image, shape));
    let text = text.map_err(|error| Error::Internal(error.to_string()))?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}
