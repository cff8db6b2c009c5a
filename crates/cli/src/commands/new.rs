//! `ramet new`: create a sandbox.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use ramet_client::Client;
use ramet_client::api::{AttachVolume, AutoCheckpoints, Code, CreateSandbox, Created, OnTimeout};

use crate::commands::net::Network;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint};
use crate::values;

/// How long a template may take to get warm.
const WARM_TIME: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(500);

const HELP: &str = "\
Examples:
  ramet new
  ramet new box --memory 1G --vcpus 2 --disk 16G
  ramet new box --template python
  ramet new box --env LANG=C --secret API_KEY --label team=a
  ramet new box --timeout 2h --idle-timeout 10m --on-timeout pause
  ramet new box --auto-checkpoints 10
  ramet new box --idle-timeout 10m --on-timeout pause --auto-resume
  ramet new box --commit before-migration
  ramet new box --volume data:/mnt/data --volume models:/models:ro
  ramet new box --egress packages --allow api.example.org:443/tcp";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Name: lower-case letters, digits and hyphens; also its host name
    name: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

/// What a new sandbox is like; also of `ramet run`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Shape {
    /// Template to create it from; see `ramet template ls`
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Image to boot instead; see `ramet image ls`
    #[arg(long, value_name = "NAME", conflicts_with = "template")]
    pub image: Option<String>,
    /// Commit to go on from instead; see `ramet log`
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["template", "image"])]
    pub commit: Option<String>,
    /// vCPUs
    #[arg(long, value_name = "N")]
    pub vcpus: Option<u8>,
    /// Memory, like 512M or 2G
    #[arg(long, value_name = "SIZE", value_parser = values::memory_mib)]
    pub memory: Option<u32>,
    /// Disk, like 512M or 16G
    #[arg(long, value_name = "SIZE", value_parser = values::memory_mib)]
    pub disk: Option<u32>,
    #[command(flatten)]
    pub settings: Settings,
}

/// What a new sandbox has, whatever it is made from; also of `ramet checkout`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Settings {
    /// Environment of its processes
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    pub env: Vec<(String, String)>,
    /// Like --env, but never shown, and forks say whether they inherit it; KEY alone takes it from here
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = values::pair_or_own)]
    pub secret: Vec<(String, String)>,
    /// For your own use
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    pub label: Vec<(String, String)>,
    /// End it this long after its creation
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub timeout: Option<Duration>,
    /// End it after this long without a request to it
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub idle_timeout: Option<Duration>,
    /// Share of the host's processors against other sandboxes; 100 without it
    #[arg(long, value_name = "N")]
    pub cpu_weight: Option<u32>,
    /// Most processor time, in percent of one processor
    #[arg(long, value_name = "PERCENT")]
    pub cpu_quota: Option<u32>,
    /// Most processes inside
    #[arg(long, value_name = "N")]
    pub pids: Option<u32>,
    /// What the end of its time is
    #[arg(long, value_enum, default_value = "kill")]
    pub on_timeout: End,
    /// Checkpoint it before each exec and keep the last N of these; `ramet rewind --last` goes back
    #[arg(long, value_name = "N")]
    pub auto_checkpoints: Option<u32>,
    /// Most memory of these checkpoints, like 512M or 2G
    #[arg(long, value_name = "SIZE", requires = "auto_checkpoints", value_parser = values::memory_mib)]
    pub auto_checkpoints_memory: Option<u32>,
    /// Volume that it gets, and where; read-write unless it ends with :ro
    #[arg(long, value_name = "VOLUME:PATH[:ro]", value_parser = values::volume)]
    pub volume: Vec<AttachVolume>,
    /// When it is paused, let the first request that needs it resume it
    #[arg(long)]
    pub auto_resume: bool,
    #[command(flatten)]
    pub network: Network,
}

/// What happens at the end of its time.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum End {
    /// It is deleted
    #[default]
    Kill,
    /// It is paused
    Pause,
}

impl From<End> for OnTimeout {
    fn from(end: End) -> Self {
        match end {
            End::Kill => Self::Kill,
            End::Pause => Self::Pause,
        }
    }
}

impl Shape {
    /// As a request.
    pub fn request(&self, name: Option<String>) -> CreateSandbox {
        CreateSandbox {
            template: self.template.clone(),
            image: self.image.clone(),
            commit: self.commit.clone(),
            vcpus: self.vcpus,
            memory_mib: self.memory,
            disk_mib: self.disk,
            ..self.settings.request(name)
        }
    }
}

impl Settings {
    /// As a request that says nothing of what it is made from.
    pub fn request(&self, name: Option<String>) -> CreateSandbox {
        CreateSandbox {
            name,
            env: values::map(&self.env),
            secrets: values::map(&self.secret),
            labels: values::map(&self.label),
            timeout_s: self.timeout.map(|time| time.as_secs()),
            idle_timeout_s: self.idle_timeout.map(|time| time.as_secs()),
            on_timeout: self.on_timeout.into(),
            cpu_weight: self.cpu_weight,
            cpu_quota_percent: self.cpu_quota,
            pids_max: self.pids,
            auto_checkpoints: self.auto_checkpoints.map(|keep| AutoCheckpoints {
                keep,
                memory_mib: self
                    .auto_checkpoints_memory
                    .map_or_else(AutoCheckpoints::memory_mib, u64::from),
            }),
            auto_resume: self.auto_resume,
            volumes: self.volume.clone(),
            network: self.network.request(),
            ..CreateSandbox::default()
        }
    }
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let created = create(&client, &args.shape.request(args.name.clone())).await?;
    context.show(&created, |created| line(created, "", context.paint));
    Ok(())
}

/// A new sandbox on a line, and what else there is to say.
pub fn line(created: &Created, more: &str, paint: Paint) -> String {
    let sandbox = &created.sandbox;
    let id = if sandbox.id == sandbox.name { String::new() } else { format!("  {}", sandbox.id) };
    let time = paint.dim(&format!("ready after {}{more}", output::micros(created.total_us)));
    format!("{}{}  {time}\n", paint.bold(&sandbox.name), paint.dim(&id))
}

/// Creates it, waiting for its template to get warm.
pub async fn create(client: &Client, request: &CreateSandbox) -> Result<Created, Failure> {
    let began = Instant::now();
    let mut told = false;
    loop {
        match client.create(request).await {
            Err(error) if error.code() == Some(Code::NotReady) && began.elapsed() < WARM_TIME => {
                if !told && std::io::stderr().is_terminal() {
                    eprintln!("waiting for the template");
                    told = true;
                }
                tokio::time::sleep(PAUSE).await;
            }
            result => return Ok(result?),
        }
    }
}
