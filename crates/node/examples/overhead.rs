//! What the node adds to a command: `overhead AGENT`, for `cargo xtask bench node`.
//!
//! The node is the real one, with its routes, rules and a database on disk. There are no machines: whatever sandbox
//! is meant, the agent is `AGENT`, a process of this machine. So the time of a command through HTTP
//! can be compared with that of the same command asked of the same agent.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ramet_client::Client;
use ramet_client::api::{CreateSandbox, ExecRequest};
use ramet_node::auth::{self, Tokens};
use ramet_node::host::Host;
use ramet_node::host::agent::{Frame, Session};
use ramet_node::host::fake::Fake;
use ramet_node::host::net::fake::FakeNet;
use ramet_node::http::{self, App, USUAL};
use ramet_node::sandbox::{Service, Settings};
use ramet_node::store::Store;
use ramet_proto::agent::{Exec, Reply, Request};
use serde_json::json;
use std::os::unix::net::UnixStream;
use tokio::net::TcpListener;

const TOKEN: &str = "token";
/// How often each side is asked, in turns.
const SAMPLES: usize = 400;
/// How often before that.
const WARM_UP: usize = 50;
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends with this program.
struct Agent {
    process: Child,
    socket: PathBuf,
}

impl Agent {
    fn start(program: &Path, directory: &Path) -> Result<Self> {
        let socket = directory.join("agent.sock");
        let process = Command::new(program).args(["serve", "--unix"]).arg(&socket).spawn();
        let agent = Self { process: process.context("cannot start the agent")?, socket };
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(&agent.socket).is_err() {
            if Instant::now() > end {
                bail!("the agent does not listen");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(agent)
    }

    /// How long a command takes that the agent alone is asked for.
    async fn ask(&self) -> Result<f64> {
        let began = Instant::now();
        let mut session = Session::new(UnixStream::connect(&self.socket)?)?;
        let argv = vec!["/bin/true".to_owned()];
        session.ask(&Request::Exec(Exec { argv, ..Exec::default() })).await?;
        loop {
            if let Frame::Reply(Reply::Exited(exited)) = session.listener.soon().await? {
                if exited.code != Some(0) {
                    bail!("/bin/true ended with {exited:?}");
                }
                return Ok(millis(began));
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // One that has ended already needs no killing.
        let _gone = self.process.kill().and_then(|()| self.process.wait());
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let program = std::env::args_os().nth(1).context("usage: overhead AGENT")?;
    let directory = tempfile::tempdir()?;
    let agent = Agent::start(Path::new(&program), directory.path())?;
    let client = serve(directory.path(), &agent).await?;
    let created = client.create(&CreateSandbox::default()).await?;
    let (mut through, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + SAMPLES {
        alone.push(agent.ask().await?);
        through.push(ask(&client, &created.sandbox.id).await?);
    }
    let [through, alone] = [through, alone].map(|mut samples| {
        let mut samples = samples.split_off(WARM_UP);
        samples.sort_by(f64::total_cmp);
        [samples[SAMPLES / 2], samples[SAMPLES * 95 / 100]].map(round)
    });
    let row = |name: &str, [p50, p95]: [f64; 2], floor: Option<f64>| {
        let ratio = floor.map(|floor| round(p50 / floor));
        json!({ "name": name, "params": {}, "unit": "ms", "p50": p50, "p95": p95,
            "floor_p50": floor, "ratio": ratio })
    };
    let added = [round(through[0] - alone[0]), round(through[1] - alone[1])];
    let rows = [
        row("agent_exec", alone, None),
        row("api_exec", through, Some(alone[0])),
        row("exec_overhead", added, None),
    ];
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}

/// A node on a port of its own, and a client of it.
async fn serve(directory: &Path, agent: &Agent) -> Result<Client> {
    let store = Arc::new(Store::open(&directory.join("ramet.db"))?);
    store.add_token(&auth::hash(TOKEN), auth::ADMIN, 0)?;
    let tokens = Tokens::load(&store)?;
    let engine = Fake::new();
    engine.speak_with(agent.socket.clone());
    let service = Service::new(Host::new(engine, FakeNet::new()), store, Settings::default());
    service.recover().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let routes = http::router(App::new(service, tokens, USUAL));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(Client::new(&format!("http://{address}"), TOKEN)?)
}

/// How long a command takes through the node.
async fn ask(client: &Client, id: &str) -> Result<f64> {
    let began = Instant::now();
    let argv = Some(vec!["/bin/true".to_owned()]);
    let result = client.exec(id, &ExecRequest { argv, ..ExecRequest::default() }).await?;
    if result.exit_code != Some(0) {
        bail!("/bin/true ended with {result:?}");
    }
    Ok(millis(began))
}

fn millis(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
