//! A registry on loopback: Debian's `docker-registry`, started for a test and gone with it.
//!
//! The program is unpacked once below `target/`; `RAMET_REGISTRY` names another one. What fails is an error with the
//! reason: a test that needs the registry and does not get it fails.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::server::run;

/// How long it may take to start.
const START: Duration = Duration::from_secs(30);
/// Who may ask a registry that asks for a login.
pub const LOGIN: (&str, &str) = ("ann", "secret");
/// The same, as the registry wants it.
const HASHED: &str = "ann:$2b$05$/nbzKp4lzo8Ka2N1RFrYqORAGXqN9sjtB2s0YEq8y.NPAqsG6iruu\n";

/// The registry. Dropping it ends the process.
#[derive(Debug)]
pub struct OciServer {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl OciServer {
    /// Starts one. Blocks until it answers.
    pub fn start() -> Result<Self, String> {
        Self::start_with(false)
    }

    /// Starts one that wants [`LOGIN`].
    pub fn closed() -> Result<Self, String> {
        Self::start_with(true)
    }

    fn start_with(closed: bool) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let program = program()?;
        let directory = tempfile::tempdir().map_err(text)?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
        let address = listener.local_addr().map_err(text)?;
        drop(listener);
        let config = directory.path().join("config.yml");
        std::fs::write(&config, configuration(directory.path(), address, closed)).map_err(text)?;
        std::fs::write(directory.path().join("logins"), HASHED).map_err(text)?;
        let log = std::fs::File::create(directory.path().join("log")).map_err(text)?;
        // The shell holds on to our end of a pipe: whatever becomes of this process, the server ends with it.
        let watch =
            r#"exec 3<&0; "$0" "$@" & pid=$!; (cat <&3 >/dev/null; kill -9 $pid) & wait $pid"#;
        let child = Command::new("sh")
            .args(["-c", watch])
            .arg(&program)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let mut server = Self { child, address, directory };
        server.wait()?;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it keeps everything.
    pub fn files(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn wait(&mut self) -> Result<(), String> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the registry ended: {status}; {}", self.log()));
            }
            if answers(self.address).is_ok_and(|answers| answers) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("the registry does not answer within {START:?}; {}", self.log()))
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        text.lines().rev().take(5).collect::<Vec<_>>().join(" | ")
    }
}

impl Drop for OciServer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // How it ended does not matter.
        let _status = self.child.wait();
    }
}

fn configuration(directory: &Path, address: SocketAddr, closed: bool) -> String {
    let place = directory.display();
    let auth = match closed {
        true => format!("auth:\n  htpasswd:\n    realm: test\n    path: {place}/logins\n"),
        false => String::new(),
    };
    format!(
        "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {place}/data\n  delete:\n    \
         enabled: true\nhttp:\n  addr: {address}\n  secret: test\n{auth}"
    )
}

fn answers(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let ask = format!("GET /v2/ HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes())?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    Ok(answer.ends_with(b" 200") || answer.ends_with(b" 401"))
}

/// The program, unpacked if need be.
fn program() -> Result<PathBuf, String> {
    if let Some(program) = std::env::var_os("RAMET_REGISTRY") {
        return Ok(program.into());
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let place = target.join("docker-registry");
    let program = place.join("usr/bin/docker-registry");
    // Others may unpack it at the same moment: one does, the others wait.
    std::fs::create_dir_all(&target).map_err(|error| error.to_string())?;
    let lock = std::fs::File::create(target.join("docker-registry.lock"));
    let lock = lock.map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    if program.is_file() {
        return Ok(program);
    }
    let fresh = target.join("docker-registry.new");
    // Of an attempt that broke off.
    let _left = std::fs::remove_dir_all(&fresh);
    std::fs::create_dir_all(&fresh).map_err(|error| error.to_string())?;
    let advice = "this needs Debian's apt and the network; or set RAMET_REGISTRY to the program";
    let mut download = Command::new("apt-get");
    download.args(["download", "-q", "docker-registry"]).current_dir(&fresh);
    run(&mut download, advice)?;
    let mut unpack = Command::new("sh");
    unpack.args(["-c", "dpkg-deb -x *.deb . && rm *.deb"]).current_dir(&fresh);
    run(&mut unpack, advice)?;
    std::fs::rename(&fresh, &place).map_err(|error| error.to_string())?;
    Ok(program)
}
