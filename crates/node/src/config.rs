//! What a node is told at its start.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use nix::fcntl::{Flock, FlockArg};
use ramet_proto::api::HostMode;
use ramet_proto::api::network::{Allow, PortRange, Protocol};
use ramet_proto::net::rule::RuleError;
use ramet_store::{Limits, Location, S3, SigningKey, VerifyingKey};

use crate::Error;
use crate::host::Shape;
use crate::sandbox::Settings;
use crate::sandbox::network::Presets;

/// Options of `rametd`.
#[derive(Debug, Clone, Parser)]
#[command(name = "rametd", version, about = "The sandboxes of one machine, over HTTP")]
pub struct Config {
    /// Address to listen on
    #[arg(long, env = "RAMET_LISTEN", default_value = "127.0.0.1:7878")]
    pub listen: SocketAddr,
    /// Domain whose names lead to sandboxes, for E2B's SDKs, with the port they use if it is not 443: PORT-SANDBOX.DOMAIN and api.DOMAIN
    #[arg(long, env = "RAMET_E2B_DOMAIN", value_name = "DOMAIN[:PORT]", value_parser = domain)]
    pub e2b_domain: Option<String>,
    /// Address to listen on with TLS, for names in that domain; the authority that clients have to trust is in DATA_DIR/e2b-ca.pem
    #[arg(long, env = "RAMET_E2B_LISTEN", value_name = "ADDRESS", requires = "e2b_domain")]
    pub e2b_listen: Option<SocketAddr>,
    /// Directory of the database, disk layers and sockets
    #[arg(long, env = "RAMET_DATA_DIR", default_value = "/var/lib/ramet")]
    pub data_dir: PathBuf,
    /// Directory of the sockets; its path must be short [default: DATA_DIR/run]
    #[arg(long, env = "RAMET_RUN_DIR")]
    pub run_dir: Option<PathBuf>,
    /// Directory of vmlinux, initramfs.cpio, base.erofs and data.ext4
    #[arg(long, env = "RAMET_GUEST_DIR")]
    pub guest_dir: PathBuf,
    /// The monitor [default: ramet-vmm beside this program]
    #[arg(long, env = "RAMET_VMM")]
    pub vmm: Option<PathBuf>,
    /// The network service [default: ramet-net beside this program]
    #[arg(long, env = "RAMET_NET")]
    pub net: Option<PathBuf>,
    /// Address of a server that names of sandboxes' peers are asked of; can be given several times [default: those of this host]
    #[arg(long, env = "RAMET_DNS", value_name = "ADDRESS[:PORT]", value_delimiter = ',')]
    pub dns: Vec<String>,
    /// Addresses that no sandbox reaches unless a rule names them, besides private ones; can be given several times
    #[arg(long, env = "RAMET_REFUSE", value_name = "ADDRESS[/BITS]", value_delimiter = ',')]
    pub refuse: Vec<String>,
    /// File with certificates that hosts of edge rules are trusted by, besides those of this host
    #[arg(long, env = "RAMET_EDGE_TRUST", value_name = "FILE")]
    pub edge_trust: Option<PathBuf>,
    /// A host of the preset `packages`, or a rule; can be given several times. Ports 80 and 443 if it names none
    #[arg(long = "packages-host", env = "RAMET_PACKAGES_HOSTS", value_name = "HOST")]
    #[arg(value_delimiter = ' ', value_parser = rule)]
    pub packages: Vec<Allow>,
    /// A rule of a preset that requests can name; can be given several times
    #[arg(long = "preset", value_name = "NAME=RULE", value_parser = preset)]
    pub presets: Vec<(String, Allow)>,
    /// File with the administrator's token; made if it is not there [default: DATA_DIR/token]
    #[arg(long, env = "RAMET_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Where this node runs, as it tells its clients
    #[arg(long, env = "RAMET_HOST_MODE", default_value = "hardware")]
    pub host_mode: Mode,
    /// vCPUs of the template that is made warm at the start
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub warm_vcpus: u8,
    /// Memory in MiB of the template that is made warm at the start
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(128..=16384))]
    pub warm_memory: u32,
    /// Most sandboxes
    #[arg(long, default_value_t = 1000)]
    pub sandboxes_max: u32,
    /// Memory in MiB that is left to the host
    #[arg(long, default_value_t = 256)]
    pub reserve: u64,
    /// Where states are kept: a directory, or s3://BUCKET/PREFIX [default: DATA_DIR/store]
    #[arg(long, env = "RAMET_STORE", value_name = "PLACE")]
    pub store: Option<String>,
    /// Address of a server that speaks S3, if it is not Amazon's; keys come from AWS_ACCESS_KEY_ID and
    /// AWS_SECRET_ACCESS_KEY
    #[arg(long, env = "RAMET_S3_ENDPOINT", value_name = "URL")]
    pub s3_endpoint: Option<String>,
    /// Milliseconds that each request to the store takes longer than it would: for measurements
    #[arg(long, hide = true, default_value_t = 0, value_name = "MS")]
    pub store_distance: u64,
    /// What remotes begin with that others than the administrator may push to and pull from; can be given several times
    #[arg(long = "remote", value_name = "PREFIX")]
    pub remotes: Vec<String>,
    /// File with logins for registries, as `docker login` writes it [default: ~/.docker/config.json]
    #[arg(long, env = "RAMET_REGISTRY_AUTH", value_name = "FILE")]
    pub registry_auth: Option<PathBuf>,
    /// File with the key that signs what is moved from here; `ramet key generate` makes one
    #[arg(long, env = "RAMET_SIGN_KEY", value_name = "FILE")]
    pub sign_key: Option<PathBuf>,
    /// A key, or a file with one, that must have signed what is moved to here; can be given several times, and then one
    /// of them must have
    #[arg(long = "trust", value_name = "KEY|FILE")]
    pub trust: Vec<String>,
    /// Seconds that a sandbox which goes on from a store waits for one that does not answer, before it is paused again
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub store_patience: u64,
    /// Most MiB of copies of states on this host
    #[arg(long, default_value_t = 32768)]
    pub copies: u64,
}

/// Where a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// On the machine's own KVM
    Hardware,
    /// In the emulated host
    Software,
}

impl Config {
    /// The shape that is made warm at the start.
    pub fn usual(&self) -> Shape {
        Shape { vcpus: self.warm_vcpus, memory_mib: self.warm_memory & !1, ..Shape::default() }
    }

    /// What the service has to know.
    pub fn settings(&self) -> Result<Settings, Error> {
        let trusted = self.trust.iter().map(|key| trusted(key)).collect::<Result<Vec<_>, _>>()?;
        Ok(Settings {
            host_mode: match self.host_mode {
                Mode::Hardware => HostMode::Hardware,
                Mode::Software => HostMode::Software,
            },
            sandboxes_max: self.sandboxes_max,
            reserve_mib: self.reserve,
            data_dir: self.data_dir.clone(),
            guest_dir: self.guest_dir.clone(),
            store: self.store.as_deref().map(|place| location(place, self.s3_endpoint.as_deref())),
            copies_max: self.copies << 20,
            store_patience: Duration::from_secs(self.store_patience),
            store_limits: Limits {
                distance: Duration::from_millis(self.store_distance),
                ..Limits::default()
            },
            s3: s3(self.s3_endpoint.as_deref()),
            remotes: self.remotes.clone(),
            logins: self.registry_auth.clone().or_else(usual_logins),
            sign: self.sign_key.as_deref().map(signing).transpose()?.map(Arc::new),
            trusted: (!trusted.is_empty()).then(|| trusted.into()),
            presets: self.presets(),
            ..Settings::default()
        })
    }
}

impl Config {
    fn presets(&self) -> Presets {
        let mut presets = Presets::new();
        for (name, rule) in &self.presets {
            presets.entry(name.clone()).or_default().push(rule.clone());
        }
        if !self.packages.is_empty() {
            let usual = |port| PortRange { first: port, last: port };
            let packages = self.packages.iter().cloned().map(|rule| match rule.ports.is_empty() {
                true => Allow {
                    ports: vec![usual(80), usual(443)],
                    protocols: vec![Protocol::Tcp],
                    ..rule
                },
                false => rule,
            });
            presets.entry("packages".to_owned()).or_default().extend(packages);
        }
        presets
    }

    /// What the network service is told.
    pub fn net_arguments(&self) -> Vec<String> {
        let pairs = |name: &'static str, values: &[String]| {
            values.iter().map(move |value| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let trust = self.edge_trust.iter().map(|file| file.display().to_string());
        let trust: Vec<String> = trust.collect();
        [pairs("--dns", &self.dns), pairs("--refuse", &self.refuse), pairs("--trust", &trust)]
            .concat()
    }
}

fn rule(text: &str) -> Result<Allow, String> {
    text.parse().map_err(|error: RuleError| error.to_string())
}

/// A name in DNS, perhaps with a port.
fn domain(text: &str) -> Result<String, String> {
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(letter);
    // Names in it have 30 letters more.
    if name.len() > 200 || !name.contains('.') || !name.split('.').all(label) {
        return Err(
            "a domain is a name with a dot in it, of letters, digits and hyphens".to_owned()
        );
    }
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err("what follows the colon is a port".to_owned());
    }
    Ok(text.to_ascii_lowercase())
}

fn preset(text: &str) -> Result<(String, Allow), String> {
    let (name, text) = text.split_once('=').ok_or("a preset is NAME=RULE")?;
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty()
        || name.len() > 63
        || !name.bytes().all(letter)
        || ["none", "open"].contains(&name)
    {
        return Err("the name of a preset has lower-case letters, digits and hyphens, and is neither none nor open".to_owned());
    }
    Ok((name.to_owned(), rule(text)?))
}

/// Where logins for registries usually are.
fn usual_logins() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
    let place = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from).or_else(home);
    place.map(|place| place.join("config.json"))
}

/// The key that signs.
fn signing(path: &Path) -> Result<SigningKey, Error> {
    let what = || format!("--sign-key {}", path.display());
    let text = fs::read_to_string(path).map_err(|source| Error::Io { what: what(), source })?;
    let password = std::env::var("RAMET_SIGN_PASSWORD").ok();
    SigningKey::parse(&text, password.as_deref())
        .map_err(|error| Error::Key { what: what(), reason: error.to_string() })
}

/// A key that is trusted: itself, or a file with it.
fn trusted(key: &str) -> Result<VerifyingKey, Error> {
    if let Ok(key) = VerifyingKey::parse(key) {
        return Ok(key);
    }
    let what = || format!("--trust {key}");
    let text = fs::read_to_string(key).map_err(|source| Error::Io { what: what(), source })?;
    VerifyingKey::parse(&text)
        .map_err(|error| Error::Key { what: what(), reason: error.to_string() })
}

/// How S3 is reached.
fn s3(endpoint: Option<&str>) -> S3 {
    S3 {
        endpoint: endpoint.map(str::to_owned),
        allow_http: endpoint.is_some_and(|url| url.starts_with("http://")),
        ..S3::default()
    }
}

/// What `--store` means.
fn location(place: &str, endpoint: Option<&str>) -> Location {
    let Some(bucket) = place.strip_prefix("s3://") else { return Location::Local(place.into()) };
    let (bucket, prefix) = bucket.split_once('/').unwrap_or((bucket, ""));
    Location::S3(S3 {
        bucket: bucket.to_owned(),
        prefix: prefix.trim_matches('/').to_owned(),
        ..s3(endpoint)
    })
}

/// Takes a data directory for this process alone.
pub fn lock(data: &Path) -> Result<Flock<File>, Error> {
    let path = data.join("lock");
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.map_err(|source| Error::Io { what: path.display().to_string(), source })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| Error::Taken(data.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_well_formed() {
        <Config as clap::CommandFactory>::command().debug_assert();
        let config = Config::parse_from(["rametd", "--guest-dir", "/g"]);
        assert!(config.listen.ip().is_loopback());
        assert_eq!(config.usual(), Shape::default());
    }

    #[test]
    fn domains_are_names() {
        for fine in ["sbx.example.org", "a.b:8443"] {
            assert_eq!(domain(fine).as_deref(), Ok(fine));
        }
        for bad in ["localhost", "a..b", "a.b:", "a.b:x", "*.a.b", "https://a.b", ""] {
            assert!(domain(bad).is_err(), "{bad}");
        }
        let line = ["rametd", "--guest-dir", "/g", "--e2b-listen", "127.0.0.1:1"];
        assert!(Config::try_parse_from(line).is_err());
    }

    #[test]
    fn presets_are_made_of_rules() {
        let line = [
            "rametd",
            "--guest-dir",
            "/g",
            "--packages-host",
            "a.example",
            "--packages-host",
            "b.example:8080",
        ];
        let config = Config::parse_from(line.into_iter().chain([
            "--preset",
            "own=c.example:1",
            "--preset",
            "own=*.d.example",
        ]));
        let presets = config.presets();
        let shown = |name: &str| presets[name].iter().map(Allow::to_string).collect::<Vec<_>>();
        assert_eq!(shown("packages"), ["a.example:80,443/tcp", "b.example:8080"]);
        assert_eq!(shown("own"), ["c.example:1", "*.d.example"]);
        for wrong in ["open=a.org", "x", "x=a b", "X=a.org"] {
            assert!(
                Config::try_parse_from(["rametd", "--guest-dir", "/g", "--preset", wrong]).is_err()
            );
        }
    }

    #[test]
    fn one_node_for_each_directory() {
        let root = tempfile::tempdir().unwrap();
        let first = lock(root.path()).unwrap();
        assert!(matches!(lock(root.path()), Err(Error::Taken(_))));
        drop(first);
        lock(root.path()).unwrap();
    }
}
