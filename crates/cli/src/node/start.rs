//! Starting the own node: a keeper in the background, then waiting until sandboxes can be created.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ramet_client::Client;
use ramet_client::api::{Code, TemplateState};

use crate::failure::{Failure, NO_ROOM, UNREACHABLE};
use crate::node::home::{Home, Record};
use crate::node::names::Names;
use crate::progress::Progress;

/// How long a node may take until it is ready. Emulated machines boot two kernels.
const READY_TIME: Duration = Duration::from_secs(600);
/// Pause between looks.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one question may take while the node is coming up.
const ASK_TIME: Duration = Duration::from_secs(5);
/// Lines of the log that are shown when it failed.
const SHOWN_LINES: usize = 12;

/// Wishes for the node, passed on to the keeper.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Memory of the software host in MiB; half of the machine's when absent, 4 to 16 GiB
    #[arg(long, value_parser = crate::values::memory_mib, value_name = "SIZE")]
    pub host_memory: Option<u32>,
    /// CPUs of the software host
    #[arg(long, value_name = "N")]
    pub host_cpus: Option<u32>,
    /// Port of the API in hardware mode; 7878 when absent, or a free one if that is taken
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    #[command(flatten)]
    pub store: Store,
    #[command(flatten)]
    pub network: Network,
    #[command(flatten)]
    pub names: Names,
}

/// The network of sandboxes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Network {
    /// Server that names are asked of, instead of this machine's; can be given several times
    #[arg(long, env = "RAMET_DNS", value_name = "ADDRESS[:PORT]", value_delimiter = ',')]
    pub dns: Vec<String>,
    /// Addresses that no sandbox reaches unless a rule names them, besides private ones; can be given several times
    #[arg(long, env = "RAMET_REFUSE", value_name = "ADDRESS[/BITS]", value_delimiter = ',')]
    pub refuse: Vec<String>,
    /// Host of the preset `packages`, or a rule; can be given several times
    #[arg(long, env = "RAMET_PACKAGES_HOSTS", value_name = "HOST", value_delimiter = ' ')]
    pub packages_host: Vec<String>,
    /// Rule of a preset that --egress can name; can be given several times
    #[arg(long, value_name = "NAME=RULE")]
    pub preset: Vec<String>,
}

impl Network {
    /// For the keeper, and for rametd, which calls them the same.
    pub fn arguments(&self) -> Vec<String> {
        let given = [
            ("dns", &self.dns),
            ("refuse", &self.refuse),
            ("packages-host", &self.packages_host),
            ("preset", &self.preset),
        ];
        let words = given
            .into_iter()
            .flat_map(|(name, values)| values.iter().map(move |value| format!("--{name}={value}")));
        words.collect()
    }
}

/// Where the node keeps states.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Store {
    /// Where states are kept: a directory, or s3://BUCKET/PREFIX; in hardware mode
    #[arg(long, env = "RAMET_STORE", value_name = "PLACE")]
    pub store: Option<String>,
    /// Address of a server that speaks S3, if it is not Amazon's; keys come from AWS_ACCESS_KEY_ID and
    /// AWS_SECRET_ACCESS_KEY
    #[arg(long, env = "RAMET_S3_ENDPOINT", value_name = "URL", requires = "store")]
    pub s3_endpoint: Option<String>,
    /// Most MiB of copies of states on the node's host
    #[arg(long, value_name = "MIB")]
    pub copies: Option<u64>,
    /// Milliseconds that each request to the store takes longer than it would
    #[arg(long, hide = true, value_name = "MS")]
    pub store_distance: Option<u64>,
}

impl Store {
    /// For the keeper, and for rametd, which calls them the same.
    pub fn arguments(&self) -> Vec<String> {
        let given = [
            ("store", self.store.clone()),
            ("s3-endpoint", self.s3_endpoint.clone()),
            ("copies", self.copies.map(|value| value.to_string())),
            ("store-distance", self.store_distance.map(|value| value.to_string())),
        ];
        let word = |(name, value): (&str, Option<String>)| Some(format!("--{name}={}", value?));
        given.into_iter().filter_map(word).collect()
    }
}

impl Options {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            arguments.extend(value.map(|value| format!("--{name}={value}")));
        };
        add("host-memory", self.host_memory.map(|value| value.to_string()));
        add("host-cpus", self.host_cpus.map(|value| value.to_string()));
        add("port", self.port.map(|value| value.to_string()));
        arguments.extend(self.store.arguments());
        arguments.extend(self.network.arguments());
        arguments.extend(self.names.arguments());
        arguments
    }
}

/// A node that is ready.
pub struct Started {
    /// Where it is.
    pub record: Record,
    /// It was there before.
    pub already: bool,
    /// How long it took.
    pub time: Duration,
}

/// Starts the node unless it runs, and waits until it is ready.
pub async fn start(home: &Home, options: &Options) -> Result<Started, Failure> {
    let began = Instant::now();
    home.make()?;
    let already = home.kept();
    let mut child = if already { None } else { Some(spawn(home, options)?) };
    let mut progress = Progress::new();
    let record = loop {
        if let Some(stage) = home.stage() {
            progress.show(&stage);
        }
        if let Some(record) = home.running()
            && ready(&record).await?
        {
            break record;
        }
        if !home.kept() && ended(&mut child) {
            progress.clear();
            return Err(failed(home, "the node did not start"));
        }
        if began.elapsed() > READY_TIME {
            progress.clear();
            let text = format!("the node was not ready within {} s", READY_TIME.as_secs());
            return Err(failed(home, &text));
        }
        tokio::time::sleep(PAUSE).await;
    };
    progress.clear();
    Ok(Started { record, already, time: began.elapsed() })
}

/// Sandboxes can be created. Errors are those that waiting does not heal.
async fn ready(record: &Record) -> Result<bool, Failure> {
    let client = Client::new(&record.url, &record.token()?)?;
    let Ok(asked) = tokio::time::timeout(ASK_TIME, client.ready()).await else { return Ok(false) };
    match asked {
        Ok(ready) => Ok(ready.ready),
        Err(error) if error.code() == Some(Code::Unauthorized) => Err(error.into()),
        Err(error) if error.code() == Some(Code::NotReady) => {
            warming(&client).await?;
            Ok(false)
        }
        Err(_) => Ok(false),
    }
}

/// An error if there is nothing to wait for: the template did not boot.
async fn warming(client: &Client) -> Result<(), Failure> {
    let Ok(Ok(node)) = tokio::time::timeout(ASK_TIME, client.node()).await else { return Ok(()) };
    match node.templates.iter().find(|template| template.state == TemplateState::Failed) {
        Some(template) => {
            let reason = template.reason.as_deref().unwrap_or("it did not boot");
            Err(Failure::new(format!("the template {} failed: {reason}", template.name))
                .exit(NO_ROOM)
                .next("`ramet new` tries again; `ramet doctor` checks this machine"))
        }
        None => Ok(()),
    }
}

/// The keeper that was started has ended; or nobody was started, and the one that was there is gone.
fn ended(child: &mut Option<Child>) -> bool {
    child.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(Some(_)) | Err(_)))
}

fn spawn(home: &Home, options: &Options) -> Result<Child, Failure> {
    let cannot = |error: &dyn std::error::Error| Failure::because("cannot start a node", error);
    home.forget();
    let own = std::env::current_exe().map_err(|error| cannot(&error))?;
    // Appended to: somebody else may be starting a node in this moment, and the keeper empties it.
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(home.log_file());
    let log = log.map_err(|error| cannot(&error))?;
    let other = log.try_clone().map_err(|error| cannot(&error))?;
    let mut command = Command::new(own);
    command.args(["up", "--foreground", "--detached"]).args(options.arguments());
    command.env("RAMET_HOME", home.root()).env_remove("RAMET_URL").env_remove("RAMET_TOKEN");
    command.stdin(Stdio::null()).stdout(log).stderr(other);
    command.spawn().map_err(|error| cannot(&error))
}

fn failed(home: &Home, what: &str) -> Failure {
    let log = home.log_file();
    let lines = last_lines(&log);
    let text = if lines.is_empty() { what.to_owned() } else { format!("{what}:\n{lines}") };
    Failure::new(text)
        .exit(UNREACHABLE)
        .next(format!("`ramet doctor` checks this machine; all of the log is {}", log.display()))
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    shown.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_passed_on() {
        assert_eq!(Options::default().arguments().len(), 0);
        let store = Store { store: Some("s3://b/p".into()), copies: Some(9), ..Store::default() };
        let packages_host = vec!["a.example".into(), "b.example:8080".into()];
        let network = Network { packages_host, ..Network::default() };
        let (host_memory, host_cpus, port) = (Some(2048), Some(2), Some(1));
        let names = Names { e2b_domain: "a.example:8443".parse().ok() };
        let options = Options { host_memory, host_cpus, port, store, network, names };
        let expected = [
            "--host-memory=2048",
            "--host-cpus=2",
            "--port=1",
            "--store=s3://b/p",
            "--copies=9",
            "--packages-host=a.example",
            "--packages-host=b.example:8080",
            "--e2b-domain=a.example:8443",
        ];
        assert_eq!(options.arguments(), expected);
    }

    #[test]
    fn the_end_of_a_log_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(last_lines(&log), "");
        let text: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        std::fs::write(&log, text.join("\n")).unwrap();
        assert!(last_lines(&log).starts_with("  8\n") && last_lines(&log).ends_with("  19"));
    }
}
