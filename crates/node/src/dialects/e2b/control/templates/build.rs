//! A build under way: a sandbox in which the steps are carried out, and which then becomes a template of the node.
//!
//! Every step has the user, directory and variables that the steps before it have set. What is written goes to the log as it comes. The
//! sandbox has a time limit, so that nothing is left behind if the node ends meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ramet_proto::agent::{Channel, Exited, Reply};
use ramet_proto::api::network::NetworkRequest;
use ramet_proto::api::{
    ArchiveFormat, BuildTemplate, CreateSandbox, MkdirRequest, StreamExec, StreamRequest,
    TemplateQuery, TemplateState, WriteArchiveQuery,
};
use tokio::io::AsyncReadExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::super::{Control, create, labels};
use super::known::{self, Build, INTERNAL, Status};
use super::progress::{Level, Log};
use super::reference::{self, Found, Seed};
use super::steps::{Copy, Recipe, Step, below, quoted};
use super::{drop_templates, files};
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::dialects::e2b::Fault;
use crate::host::agent::{Frame, unexpected};
use crate::sandbox::Error;

/// How long a build may take.
const TIME: Duration = Duration::from_secs(3600);
/// How long its sandbox lives at most.
const SANDBOX_S: u64 = 2 * 3600;
/// How long the ready check is tried.
const READY_S: u64 = 300;
/// Stands for the ready check of a start command that has none.
const SETTLE: &str = "sleep 20";
/// User, and directory, of a template that says nothing.
const USER: &str = "user";
const HOME: &str = "/home/user";
/// Names of what comes before and after the steps.
const FIRST: &str = "base";
const LAST: &str = "finalize";
/// Bytes of an archive that are sent at a time.
const PIECE: usize = 256 << 10;
/// Longest piece of a line that waits for its end.
const LINE_MAX: usize = 4096;
/// What a gzip stream begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Puts what was unpacked where it belongs: directory, path or pattern in it, target, owner, mode.
const PLACE: &str = r#"set -eu
cd "$1"; from=$2; to=$3
[ -z "$4" ] || chown -R -h "$4" .
[ -z "$5" ] || chmod -R "$5" .
IFS=; set -- $from
[ -e "$1" ] || [ -L "$1" ] || { echo "$from: not in the context" >&2; exit 1; }
if [ $# -eq 1 ] && [ ! -d "$1" ]; then
  case $to in */) mkdir -p "$to" ;; *) mkdir -p "$(dirname "$to")" ;; esac
  cp -a "$1" "$to"
else
  mkdir -p "$to"
  for one; do if [ -d "$one" ]; then cp -a "$one/." "$to/"; else cp -a "$one" "$to/"; fi; done
fi"#;

/// Why a build failed, and at which step.
struct Failure {
    text: String,
    step: String,
}

/// A build.
struct Job {
    control: Control,
    who: Principal,
    /// Id of what it is a build of.
    template: String,
    build: Build,
    recipe: Recipe,
    log: Arc<Log>,
}

/// Where the steps are.
struct Place {
    sandbox: String,
    user: String,
    workdir: String,
    env: BTreeMap<String, String>,
}

/// Begins a build, which the service carries out.
pub fn begin(
    control: Control,
    who: Principal,
    template: String,
    build: Build,
    recipe: Recipe,
    turn: OwnedSemaphorePermit,
) {
    let log = control.builds.begin(&build.id);
    let service = control.service().clone();
    let job = Job { control, who, template, build, recipe, log };
    service.keep(async move {
        job.run().await;
        drop(turn);
    });
}

impl Job {
    async fn run(&self) {
        let done = self.carry_out().await;
        let failed = done.as_ref().err();
        if let Some(failure) = failed {
            self.log.write(&failure.step, Level::Error, &failure.text);
        }
        let settled = known::change(&self.control, &self.who, &self.template, false, |known| {
            let now = now_ms();
            known.updated_at_ms = now;
            let Some(build) = known.builds.iter_mut().find(|one| one.id == self.build.id) else {
                return Err(Fault::bad("it was deleted"));
            };
            build.finished_at_ms = Some(now);
            let tags = build.tags.clone();
            match &done {
                Ok(built) => {
                    build.status = Status::Ready;
                    built.clone_into_build(build);
                    known.point(&tags, &self.build.id);
                }
                Err(failure) => {
                    build.status = Status::Error;
                    build.reason = Some((failure.text.clone(), Some(failure.step.clone())));
                }
            }
            Ok(known.prune())
        });
        match (settled, done) {
            (Ok(dropped), _) => drop_templates(&self.control, &self.who, &dropped).await,
            // It was deleted meanwhile.
            (Err(_), Ok(built)) => {
                drop_templates(&self.control, &self.who, &[built.name]).await;
            }
            (Err(_), Err(_)) => {}
        }
    }

    async fn carry_out(&self) -> Result<Built, Failure> {
        let first = |text: String| Failure { text, step: FIRST.to_owned() };
        self.log.write(FIRST, Level::Info, "making the machine");
        let mut place = timeout(TIME, self.machine()).await;
        let place = match &mut place {
            Ok(place) => place.as_mut().map_err(|text| first(text.clone()))?,
            Err(_) => return Err(first("the machine was not made in time".to_owned())),
        };
        let built = match timeout(TIME, self.steps(place)).await {
            Ok(built) => built,
            Err(_) => {
                let text = format!("the build took longer than {} s", TIME.as_secs());
                Err(Failure { text, step: LAST.to_owned() })
            }
        };
        if let Err(error) = self.control.service().delete(&self.who, &place.sandbox).await {
            tracing::warn!(?error, "the sandbox of a build could not be deleted");
        }
        built
    }

    /// The sandbox that it happens in.
    async fn machine(&self) -> Result<Place, String> {
        let (control, who) = (&self.control, &self.who);
        let Found { seed, .. } = match (&self.recipe.image, &self.recipe.template) {
            (Some(image), _) => reference::image(control, who, image).await?,
            (None, template) => {
                let template = template.as_deref().unwrap_or(ramet_proto::api::BASE_TEMPLATE);
                reference::resolve(control, who, template).await.map_err(|fault| fault.message)?
            }
        };
        let request = CreateSandbox {
            labels: [(labels::BUILD.to_owned(), self.build.id.clone())].into(),
            timeout_s: Some(SANDBOX_S),
            network: Some(NetworkRequest {
                egress: Some("open".to_owned()),
                ..NetworkRequest::default()
            }),
            ..CreateSandbox::default()
        };
        let request = self.shaped(request, &seed);
        let request = create::seeded(request, seed);
        let made = control.service().create(who, request, None).await;
        let sandbox = made.map_err(|error| error.to_string())?.sandbox;
        let shape = (sandbox.vcpus, sandbox.memory_mib);
        if self.build.vcpus.is_some_and(|vcpus| vcpus != shape.0)
            || self.build.memory_mib.is_some_and(|memory| memory != shape.1)
        {
            let text = format!(
                "what it begins with has {} vCPUs and {} MiB of memory, and so has this template",
                shape.0, shape.1
            );
            self.log.write(FIRST, Level::Warn, &text);
        }
        Ok(Place {
            sandbox: sandbox.id,
            user: sandbox.user.unwrap_or_else(|| USER.to_owned()),
            workdir: sandbox.workdir.unwrap_or_else(|| HOME.to_owned()),
            env: BTreeMap::new(),
        })
    }

    /// A machine that is booted has the shape that is asked for; others have one already.
    fn shaped(&self, request: CreateSandbox, seed: &Seed) -> CreateSandbox {
        let boots = match seed {
            Seed::Template(name) => name == ramet_proto::api::BASE_TEMPLATE,
            Seed::Image(_) => true,
            Seed::Commit(_) => false,
        };
        if !boots {
            return request;
        }
        CreateSandbox {
            vcpus: self.build.vcpus,
            memory_mib: self.build.memory_mib,
            disk_mib: self.build.disk_mib,
            ..request
        }
    }

    async fn steps(&self, place: &mut Place) -> Result<Built, Failure> {
        for (number, step) in self.recipe.steps.iter().enumerate() {
            let name = (number + 1).to_string();
            let failed = |text: String| Failure { text, step: name.clone() };
            let step = step.read().map_err(|fault| failed(fault.message))?;
            self.log.write(&name, Level::Info, &step.shown());
            self.step(place, &name, step).await.map_err(failed)?;
        }
        self.log.write(LAST, Level::Info, "keeping the machine");
        let failed = |text: String| Failure { text, step: LAST.to_owned() };
        self.finalize(place).await.map_err(failed)
    }

    async fn step(&self, place: &mut Place, name: &str, step: Step) -> Result<(), String> {
        match step {
            Step::Env(pairs) => place.env.extend(pairs),
            Step::User(user) => place.user = user,
            Step::Workdir(path) => {
                let path = below(&place.workdir, &path);
                let owner = Some(place.user.clone());
                let request = MkdirRequest { path: path.clone(), mode: None, owner };
                let made = self.control.service().mkdir(&self.who, &place.sandbox, request).await;
                made.map_err(|error| error.to_string())?;
                place.workdir = path;
            }
            Step::Run(line, user) => {
                let argv = shell(&line);
                let user = user.unwrap_or_else(|| place.user.clone());
                self.process(place, name, argv, user, &place.workdir).await?;
            }
            Step::Copy(copy) => self.copy(place, name, copy).await?,
        }
        Ok(())
    }

    /// Runs a process to its end, which must be a good one.
    async fn process(
        &self,
        place: &Place,
        step: &str,
        argv: Vec<String>,
        user: String,
        cwd: &str,
    ) -> Result<(), String> {
        let exec = StreamExec {
            argv: Some(argv),
            env: place.env.clone(),
            cwd: Some(cwd.to_owned()),
            user: Some(user),
            ..StreamExec::default()
        };
        let ended = self.follow(&place.sandbox, step, exec).await;
        let exited = ended.map_err(|error| error.to_string())?;
        match (exited.code, exited.signal) {
            (Some(0), _) => Ok(()),
            (Some(code), _) => Err(format!("it exited with {code}")),
            (None, signal) => Err(format!("signal {} ended it", signal.unwrap_or(0))),
        }
    }

    /// What a process writes goes to the log, line by line.
    async fn follow(&self, id: &str, step: &str, exec: StreamExec) -> Result<Exited, Error> {
        let service = self.control.service();
        let mut stream = service.stream(&self.who, id, StreamRequest::Exec(exec)).await?;
        let mut out = Lines::new(&self.log, step, Level::Info);
        let mut err = Lines::new(&self.log, step, Level::Warn);
        loop {
            match stream.listener.next().await? {
                Frame::Bytes(Channel::Stderr, bytes) => err.take(&bytes),
                Frame::Bytes(_, bytes) => out.take(&bytes),
                Frame::Reply(Reply::Exited(exited)) => return Ok(exited),
                Frame::Reply(other) => return Err(unexpected(&other).into()),
            }
        }
    }

    async fn copy(&self, place: &Place, step: &str, copy: Copy) -> Result<(), String> {
        let path = files::archive(&self.control, &self.who, &copy.hash);
        let path = path.map_err(|fault| fault.message)?;
        let to = below(&place.workdir, &copy.to);
        let directory = format!("/tmp/.e2b-copy-{step}");
        self.unpack(place, &path, &directory).await?;
        let owner = copy.owner.unwrap_or_else(|| place.user.clone());
        let mode = copy.mode.unwrap_or_default();
        let from = copy.from.trim_start_matches("./").to_owned();
        let from = if from.is_empty() { ".".to_owned() } else { from };
        let mut argv = ["/bin/sh", "-c", PLACE, "copy"].map(str::to_owned).to_vec();
        argv.extend([directory.clone(), from, to, owner, mode]);
        self.process(place, step, argv, "root".to_owned(), "/").await?;
        let remove = ["rm", "-rf", directory.as_str()].map(str::to_owned).to_vec();
        self.process(place, step, remove, "root".to_owned(), "/").await
    }

    async fn unpack(&self, place: &Place, archive: &Path, to: &str) -> Result<(), String> {
        let gone = |_| "its files are not here any more; build again".to_owned();
        let mut file = tokio::fs::File::open(archive).await.map_err(gone)?;
        let mut piece = vec![0; PIECE];
        let mut length = file.read(&mut piece).await.map_err(|error| error.to_string())?;
        let format = match piece.starts_with(&GZIP) {
            true => ArchiveFormat::TarGz,
            false => ArchiveFormat::Tar,
        };
        let query = WriteArchiveQuery { path: to.to_owned(), format, owner: None };
        let service = self.control.service();
        let sending = async {
            let mut upload = service.write_archive(&self.who, &place.sandbox, query).await?;
            while length > 0 {
                upload.data(piece.get(..length).unwrap_or_default()).await?;
                length = file.read(&mut piece).await?;
            }
            upload.finish_archive().await
        };
        sending.await.map(drop).map_err(|error: Error| error.to_string())
    }

    /// Makes a template of the machine: starts what is to run in it, and waits until it is ready.
    async fn finalize(&self, place: &Place) -> Result<Built, String> {
        let digits: String =
            self.build.id.chars().filter(char::is_ascii_hexdigit).take(12).collect();
        let name = format!("{INTERNAL}{}-{digits}", self.template);
        let line = |line: &str| format!("exec /bin/bash -l -c {}", quoted(line));
        let settle = self.recipe.start.as_ref().map(|_| SETTLE.to_owned());
        let ready = self.recipe.ready.clone().filter(|line| !line.is_empty()).or(settle);
        let request = BuildTemplate {
            name: name.clone(),
            sandbox: Some(place.sandbox.clone()),
            start: self.recipe.start.iter().map(|start| line(start)).collect(),
            ready: ready.map(|ready| line(&ready)),
            ready_timeout_s: Some(READY_S),
            timeout_s: Some(TIME.as_secs()),
            env: place.env.clone(),
            user: Some(place.user.clone()),
            workdir: Some(place.workdir.clone()),
            ..BuildTemplate::default()
        };
        let service = self.control.service();
        let begun = service.build_template(&self.who, request).await;
        begun.map_err(|error| error.to_string())?;
        loop {
            let query = TemplateQuery { wait_s: Some(60) };
            let template = service.get_template(&self.who, &name, &query).await;
            let template = template.map_err(|error| error.to_string())?;
            if template.state == TemplateState::Building {
                continue;
            }
            for line in template.log.lines() {
                self.log.write(LAST, Level::Info, line);
            }
            if template.state == TemplateState::Failed {
                drop_templates(&self.control, &self.who, &[name]).await;
                return Err(template.reason.unwrap_or_else(|| "it failed".to_owned()));
            }
            let (vcpus, memory, disk) = (template.vcpus, template.memory_mib, template.disk_mib);
            return Ok(Built { name, shape: (vcpus, memory, disk) });
        }
    }
}

/// A line for the shell, as E2B runs it.
fn shell(line: &str) -> Vec<String> {
    ["/bin/bash", "-l", "-c", line].map(str::to_owned).to_vec()
}

/// The node's template that a build has become.
struct Built {
    name: String,
    shape: (u8, u32, u32),
}

impl Built {
    fn clone_into_build(&self, build: &mut Build) {
        let (vcpus, memory, disk) = self.shape;
        build.template = Some(self.name.clone());
        (build.vcpus, build.memory_mib, build.disk_mib) = (Some(vcpus), Some(memory), Some(disk));
    }
}

/// Bytes that become lines of a log.
struct Lines<'a> {
    log: &'a Log,
    step: &'a str,
    level: Level,
    rest: Vec<u8>,
}

impl<'a> Lines<'a> {
    fn new(log: &'a Log, step: &'a str, level: Level) -> Self {
        Self { log, step, level, rest: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' || self.rest.len() >= LINE_MAX {
                self.write();
            }
            if byte != b'\n' {
                self.rest.push(byte);
            }
        }
    }

    fn write(&mut self) {
        let text = String::from_utf8_lossy(&self.rest).into_owned();
        self.rest.clear();
        self.log.write(self.step, self.level, text.trim_end_matches('\r'));
    }
}

impl Drop for Lines<'_> {
    fn drop(&mut self) {
        if !self.rest.is_empty() {
            self.write();
        }
    }
}
