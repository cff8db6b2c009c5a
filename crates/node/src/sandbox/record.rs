//! What is kept of a sandbox and of a checkpoint.
//!
//! These are the rows of the database, apart from the API's types: what a client sees is made by
//! [`Record::shown`]. Secrets are here, because a rewind gives them to the machine again, and nowhere
//! else; they are dropped when the sandbox is gone.

use std::collections::BTreeMap;

use ramet_proto::agent::Identity;
use ramet_proto::api;
use ramet_proto::api::network::Layer;
use serde::{Deserialize, Serialize};

use super::line::Line;
use super::network::Net;
use super::volumes::{self, Attachment};
use crate::auth::Principal;
use crate::clock::{boot, now_ms, uptime_ms, wall_ms};
use crate::host::{Cpu, MachineId, Shape};
use crate::random;

/// Where a sandbox is in its life.
///
/// ```text
///   Making ──▶ Running ◀──▶ Paused
///     │           │            │
///     ▼           ├──▶ Failed ◀┤
///  (forgotten)    ▼      ▼     ▼
///                      Gone
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its name is taken, its machine is not there yet. Forgotten after a crash.
    Making,
    /// It runs.
    Running,
    /// It stands still.
    Paused,
    /// Its machine ended by itself.
    Failed,
    /// Deleted or promoted; kept so that its id and the tree can be explained.
    Gone,
}

impl Phase {
    /// As clients see it; nothing while it is made.
    pub fn shown(self) -> Option<api::State> {
        match self {
            Self::Making => None,
            Self::Running => Some(api::State::Running),
            Self::Paused => Some(api::State::Paused),
            Self::Failed => Some(api::State::Failed),
            Self::Gone => Some(api::State::Gone),
        }
    }
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Order of creation; also the cursor of lists.
    pub number: u64,
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Phase.
    pub phase: Phase,
    /// Principal.
    pub owner: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Template that its line began with.
    pub template: String,
    /// Id of that template.
    #[serde(default)]
    pub template_id: String,
    /// Digest of the image below; empty in rows that are older than images.
    #[serde(default)]
    pub image: String,
    /// Digest of its empty disk, if that is not this node's own.
    #[serde(default)]
    pub data: String,
    /// Shape.
    pub shape: Shape,
    /// User of processes that name none.
    #[serde(default)]
    pub user: Option<String>,
    /// Working directory of processes that name none.
    #[serde(default)]
    pub workdir: Option<String>,
    /// Sandbox that it was forked from.
    pub parent: Option<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: BTreeMap<String, String>,
    /// When it came to be.
    pub created_at_ms: u64,
    /// When its time limit began to count (creation, or the last resume): time since the host's boot, and which boot.
    #[serde(default)]
    pub limit_from_ms: u64,
    /// Likewise.
    #[serde(default)]
    pub limit_boot: String,
    /// Last request to it, as it is told.
    pub active_at_ms: u64,
    /// The same since the host's boot. After a restart of the node idleness counts anew.
    #[serde(skip, default = "uptime_ms")]
    pub idle_from_ms: u64,
    /// 0 is none.
    pub timeout_s: u64,
    /// 0 is none.
    pub idle_timeout_s: u64,
    /// What happens then.
    pub on_timeout: api::OnTimeout,
    /// Why it failed.
    pub failure: Option<api::SandboxFailure>,
    /// Who goes on as it did.
    pub promoted_to: Option<String>,
    /// When it was gone.
    pub gone_at_ms: Option<u64>,
    /// Its machine, while it runs or is paused.
    pub machine: Option<MachineId>,
    /// Share of the processors.
    #[serde(default)]
    pub cpu: Cpu,
    /// Most processes inside; 0 is no limit.
    #[serde(default)]
    pub pids_max: u32,
    /// Hash of the token that its guest has.
    pub token_hash: String,
    /// Idempotency key of the request that made it.
    #[serde(default)]
    pub made_by: Option<String>,
    /// Where the state of its machine comes from.
    #[serde(default)]
    pub line: Line,
    /// Checkpoints before each exec.
    #[serde(default)]
    pub auto_checkpoints: Option<api::AutoCheckpoints>,
    /// It was made by a call from inside its parent.
    #[serde(default)]
    pub called: bool,
    /// A request that needs it resumes it.
    #[serde(default)]
    pub auto_resume: bool,
    /// Its state when it was last paused in the store; it is there still.
    #[serde(default)]
    pub stored: Option<api::StoredState>,
    /// The last state in the store that its memory comes from: what has not changed since need not be written again.
    #[serde(default)]
    pub ancestor: Option<String>,
    /// The commit that it goes on from.
    #[serde(default)]
    pub commit: Option<String>,
    /// Its machine was made from the store and never runs: it is there to be forked while the sandbox is paused.
    #[serde(default)]
    pub stand_in: bool,
    /// Volumes in its machine's slots. These are the claims to volumes.
    #[serde(default)]
    pub volumes: Vec<Attachment>,
    /// Layers of the template that its line began with.
    #[serde(default)]
    pub template_layers: Vec<Layer>,
    /// What it reaches.
    #[serde(default)]
    pub network: Net,
}

/// What a sandbox's line began with; forks have it from their source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// Name of the template.
    pub template: String,
    /// Its id.
    pub template_id: String,
    /// Digest of the image.
    pub image: String,
    /// Digest of the empty disk; empty if it is the node's own.
    #[serde(default)]
    pub data: String,
    /// Shape.
    pub shape: Shape,
    /// User of processes that name none.
    pub user: Option<String>,
    /// Working directory of processes that name none.
    pub workdir: Option<String>,
    /// Layers of the template.
    #[serde(default)]
    pub layers: Vec<Layer>,
}

/// What is asked for a new sandbox.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// The id when absent.
    pub name: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: BTreeMap<String, String>,
    /// 0 is none.
    pub timeout_s: u64,
    /// 0 is none.
    pub idle_timeout_s: u64,
    /// What happens then.
    pub on_timeout: api::OnTimeout,
    /// Share of the processors.
    pub cpu: Cpu,
    /// 0 is no limit.
    pub pids_max: u32,
    /// Idempotency key of the request.
    pub made_by: Option<String>,
    /// Checkpoints before each exec.
    pub auto_checkpoints: Option<api::AutoCheckpoints>,
    /// A request that needs it resumes it.
    pub auto_resume: bool,
    /// What it reaches.
    pub network: Net,
}

impl Record {
    /// A sandbox to be. The registry gives it its number.
    pub fn new(owner: &Principal, wish: Wish, root: Root) -> std::io::Result<Self> {
        let id = format!("sbx-{}", random::hex(8)?);
        let now = now_ms();
        Ok(Self {
            number: 0,
            name: wish.name.unwrap_or_else(|| id.clone()),
            id,
            phase: Phase::Making,
            owner: owner.name().to_owned(),
            labels: wish.labels,
            template: root.template,
            template_id: root.template_id,
            image: root.image,
            data: root.data,
            shape: root.shape,
            user: root.user,
            workdir: root.workdir,
            parent: None,
            env: wish.env,
            secrets: wish.secrets,
            created_at_ms: now,
            limit_from_ms: uptime_ms(),
            limit_boot: boot().to_owned(),
            active_at_ms: now,
            idle_from_ms: uptime_ms(),
            timeout_s: wish.timeout_s,
            idle_timeout_s: wish.idle_timeout_s,
            on_timeout: wish.on_timeout,
            failure: None,
            promoted_to: None,
            gone_at_ms: None,
            machine: None,
            cpu: wish.cpu,
            pids_max: wish.pids_max,
            token_hash: String::new(),
            made_by: wish.made_by,
            line: Line::default(),
            auto_checkpoints: wish.auto_checkpoints,
            called: false,
            auto_resume: wish.auto_resume,
            stored: None,
            ancestor: None,
            commit: None,
            stand_in: false,
            volumes: Vec::new(),
            template_layers: root.layers,
            network: wish.network,
        })
    }

    /// What its line began with.
    pub fn root(&self) -> Root {
        Root {
            template: self.template.clone(),
            template_id: self.template_id.clone(),
            image: self.image.clone(),
            data: self.data.clone(),
            shape: self.shape,
            user: self.user.clone(),
            workdir: self.workdir.clone(),
            layers: self.template_layers.clone(),
        }
    }

    /// Who its next machine is, with a new token whose hash is noted here.
    pub fn identity(&mut self, deterministic: bool) -> std::io::Result<Identity> {
        let token = format!("sandbox_{}", random::hex(32)?);
        self.token_hash = crate::auth::hash(&token);
        Ok(Identity {
            hostname: self.name.clone(),
            instance: self.id.clone(),
            token: Some(token),
            env: self.env.clone(),
            secrets: self.secrets.clone(),
            deterministic,
            pids_max: (self.pids_max > 0).then_some(self.pids_max),
            ..Identity::default()
        })
    }

    /// Notes a request to it.
    pub fn touch(&mut self) {
        self.active_at_ms = now_ms();
        self.idle_from_ms = uptime_ms();
    }

    /// Its time limit begins to count.
    pub fn begin_time(&mut self) {
        self.limit_from_ms = uptime_ms();
        boot().clone_into(&mut self.limit_boot);
    }

    /// The uptime at which its time is over; none if it has no limit, or if only a running sandbox has one.
    fn end_ms(&self) -> Option<u64> {
        let counts = self.on_timeout == api::OnTimeout::Kill || self.phase == Phase::Running;
        let all = (self.timeout_s > 0 && counts).then(|| self.timeout_s.saturating_mul(1000))?;
        Some(self.limit_from_ms.saturating_add(all))
    }

    /// Time that is left of its limit.
    pub fn left_ms(&self) -> Option<u64> {
        self.end_ms().map(|end| end.saturating_sub(uptime_ms()))
    }

    /// When its time is over, by the wall clock.
    fn ends_at_ms(&self) -> Option<u64> {
        self.end_ms().map(wall_ms)
    }

    /// Whether it is paused in the store.
    pub fn is_stored(&self) -> bool {
        self.phase == Phase::Paused && (self.machine.is_none() || self.stand_in)
    }

    /// It is gone from now on.
    pub fn end(&mut self) {
        self.phase = Phase::Gone;
        self.gone_at_ms = Some(now_ms());
        self.machine = None;
        self.secrets.clear();
        self.volumes.clear();
        self.network = Net::default();
    }

    /// What a client sees.
    pub fn shown(&self) -> api::Sandbox {
        api::Sandbox {
            id: self.id.clone(),
            name: self.name.clone(),
            state: self.phase.shown().unwrap_or(api::State::Running),
            owner: self.owner.clone(),
            labels: self.labels.clone(),
            template: self.template.clone(),
            vcpus: self.shape.vcpus,
            memory_mib: self.shape.memory_mib,
            disk_mib: self.shape.disk_mib,
            user: self.user.clone(),
            workdir: self.workdir.clone(),
            parent: self.parent.clone(),
            env: self.env.clone(),
            secret_names: self.secrets.keys().cloned().collect(),
            holds_secrets: self.holds_secrets(),
            created_at_ms: self.created_at_ms,
            active_at_ms: self.active_at_ms,
            timeout_s: self.timeout_s,
            idle_timeout_s: self.idle_timeout_s,
            ends_at_ms: self.ends_at_ms(),
            on_timeout: self.on_timeout,
            cpu_weight: self.cpu.weight,
            cpu_quota_percent: self.cpu.quota_percent,
            pids_max: self.pids_max,
            auto_checkpoints: self.auto_checkpoints,
            auto_resume: self.auto_resume,
            volumes: volumes::shown(self),
            commit: self.commit.clone(),
            stored: self.stored.clone().filter(|_| self.is_stored()),
            failure: self.failure.clone(),
        }
    }
}

/// A frozen moment of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Its sandbox.
    pub sandbox: String,
    /// When.
    pub created_at_ms: u64,
    /// Time that making it took.
    pub total_us: u64,
    /// The machine that never runs, while it is in memory.
    pub machine: Option<MachineId>,
    /// Where it is, if it was put into the store.
    #[serde(default)]
    pub stored: Option<api::StoredState>,
    /// Where its state comes from.
    #[serde(default)]
    pub line: Line,
    /// The command that it was made before, if it was made by itself.
    #[serde(default)]
    pub command: Option<String>,
    /// Volumes that the sandbox had.
    #[serde(default)]
    pub volumes: Vec<Attachment>,
}

impl Checkpoint {
    /// What a client sees.
    pub fn shown(&self) -> api::Checkpoint {
        api::Checkpoint {
            id: self.id.clone(),
            name: self.name.clone(),
            sandbox: self.sandbox.clone(),
            created_at_ms: self.created_at_ms,
            total_us: self.total_us,
            automatic: self.command.is_some(),
            command: self.command.clone(),
            in_memory: self.machine.is_some(),
            stored: self.stored.clone(),
        }
    }

    /// Whether it goes by itself.
    pub fn is_automatic(&self) -> bool {
        self.command.is_some()
    }
}
