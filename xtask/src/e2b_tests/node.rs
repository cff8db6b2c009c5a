//! A node of its own, up for as long as SDKs are run against it.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;
use serde_json::Value;
use tempfile::TempDir;

use super::Surroundings;
use super::names::Names;
use crate::place::{self, For};
use crate::{guest, host, workspace};

/// Where sandboxes have names; nobody else's.
const DOMAIN: &str = "sandboxes.ramet.test";
/// The recipe of what E2B's code interpreter is created from.
const INTERPRETER: &str = "code-interpreter-v1";
/// How long the authority of names may take to be there.
const AUTHORITY_TIME: Duration = Duration::from_secs(60);

/// The node.
pub struct Node {
    program: PathBuf,
    home: TempDir,
    /// Where names lead to; none where they cannot be had.
    port: Option<u16>,
    /// Its address, and the file with its token.
    up: Value,
}

impl Node {
    /// Starts it, with everything that it needs.
    pub fn up(whom: For, as_is: bool) -> Result<Self> {
        if !as_is {
            guest::make(false)?;
        }
        host::install_tools()?;
        let program = place::build_programs(whom)?.join("ramet");
        let home = tempfile::Builder::new().prefix("e2b").tempdir()?;
        let port = if Uid::effective().is_root() { Some(free_port()?) } else { None };
        let mut node = Self { program, home, port, up: Value::Null };
        let mut line = vec!["--json".to_owned(), "up".to_owned()];
        match node.domain() {
            Some(domain) => {
                line.push(format!("--e2b-domain={domain}"));
            }
            None => eprintln!("SKIPPED  flows with names: their processes need root"),
        }
        let told = node.ramet(&line.iter().map(String::as_str).collect::<Vec<_>>());
        match told.and_then(|text| Ok(serde_json::from_str(&text)?)) {
            Ok(up) => node.up = up,
            Err(error) => {
                if let Err(other) = node.down() {
                    eprintln!("error: {other:#}");
                }
                return Err(error);
            }
        }
        Ok(node)
    }

    /// Builds what E2B's code interpreter is created from.
    pub fn build_interpreter(&self) -> Result<()> {
        self.ramet(&["template", "build", INTERPRETER]).map(drop)
    }

    /// Ends it, and every sandbox of it.
    pub fn down(&self) -> Result<()> {
        self.ramet(&["down", "--all"]).map(drop)
    }

    /// How SDKs find it, and who they are: two principals.
    pub fn surroundings(&self) -> Result<Surroundings> {
        let url = self.up["url"].as_str().context("ramet up says no address")?;
        let token = self.up["token_file"].as_str().context("ramet up names no token")?;
        let other = self.ramet(&["token", "new", "--principal", "other"])?;
        let set = |name, value: &str| (name, OsString::from(value));
        let mut variables = vec![
            set("E2B_API_URL", url),
            set("E2B_SANDBOX_URL", url),
            set("E2B_VOLUME_API_URL", url),
            set("E2B_API_KEY", &key_of(&fs::read_to_string(token)?)?),
            set("E2B_TEST_OTHER_KEY", &key_of(&other)?),
        ];
        let mut names = None;
        if let Some(domain) = self.domain() {
            names = Some(Names::serve(DOMAIN, self.home.path())?);
            variables.push(set("E2B_TEST_DOMAIN", &domain));
            let authority = self.authority()?;
            for name in ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"] {
                variables.push((name, authority.clone().into()));
            }
        }
        Ok(Surroundings { variables, names })
    }

    fn domain(&self) -> Option<String> {
        self.port.map(|port| format!("{DOMAIN}:{port}"))
    }

    /// Its certificate, which is there a moment after the node.
    fn authority(&self) -> Result<PathBuf> {
        let (file, end) = (self.state().join("e2b-ca.pem"), Instant::now() + AUTHORITY_TIME);
        while !file.is_file() {
            if Instant::now() > end {
                bail!("the node has names, and no authority for them");
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(file)
    }

    fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    fn ramet(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("RAMET_HOME", self.state());
        command.env("RAMET_GUEST_DIR", workspace::guest_dir());
        command.env_remove("RAMET_URL").env_remove("RAMET_TOKEN");
        command.stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().context("cannot run ramet")?;
        if !output.status.success() {
            bail!("`ramet {}` failed", arguments.join(" "));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A token as an API key.
fn key_of(token: &str) -> Result<String> {
    let digits = token.trim().strip_prefix("ramet_").context("a token begins with ramet_")?;
    Ok(format!("e2b_{digits}"))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_an_api_key() {
        assert_eq!(key_of("ramet_0a1b\n").unwrap(), "e2b_0a1b");
        assert!(key_of("secret").is_err());
    }
}
