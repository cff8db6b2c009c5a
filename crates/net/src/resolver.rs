//! Names are asked for here, on behalf of all ports: upstream servers, with a cache.
//!
//! The servers are those that were given, or else the host's own, which are read again when its configuration changes.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use hickory_proto::xfer::Protocol;
use hickory_proto::{ProtoError, ProtoErrorKind};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::name_server::TokioConnectionProvider;
use tokio::sync::Semaphore;

use crate::dns::Answer;

/// Lookups under way, of all ports.
const LOOKUPS_MAX: usize = 512;
/// Longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(8);
/// For one server.
const ATTEMPT: Duration = Duration::from_secs(3);
/// Where the host's servers are.
const HOST: &str = "/etc/resolv.conf";

/// Upstream.
#[derive(Debug)]
pub struct Upstream {
    given: Vec<SocketAddr>,
    current: RwLock<Current>,
    slots: Semaphore,
}

#[derive(Debug, Default)]
struct Current {
    resolver: Option<Arc<TokioResolver>>,
    /// When the host's configuration was changed, as far as it was read.
    stamp: Option<SystemTime>,
}

impl Upstream {
    /// These servers, or the host's if there are none.
    #[must_use]
    pub fn new(given: Vec<SocketAddr>) -> Self {
        let upstream =
            Self { given, current: RwLock::default(), slots: Semaphore::new(LOOKUPS_MAX) };
        upstream.refresh();
        upstream
    }

    /// Reads the host's configuration again if it changed.
    pub fn refresh(&self) {
        let stamp = std::fs::metadata(HOST).and_then(|meta| meta.modified()).ok();
        let fresh = |current: &Current| {
            current.resolver.is_some() && (!self.given.is_empty() || current.stamp == stamp)
        };
        if self.current.read().is_ok_and(|current| fresh(&current)) {
            return;
        }
        let resolver = if self.given.is_empty() { system() } else { Some(given(&self.given)) };
        if let Ok(mut current) = self.current.write() {
            *current = Current { resolver: resolver.map(Arc::new), stamp };
        }
    }

    /// Looks a name up. Always answers.
    pub async fn lookup(&self, name: &str, kind: RecordType) -> Answer {
        let resolver = self.current.read().ok().and_then(|current| current.resolver.clone());
        let (Some(resolver), Ok(_slot)) = (resolver, self.slots.try_acquire()) else {
            return Answer::only(ResponseCode::ServFail);
        };
        let Ok(mut name) = Name::from_ascii(name) else {
            return Answer::only(ResponseCode::FormErr);
        };
        name.set_fqdn(true);
        match tokio::time::timeout(DEADLINE, resolver.lookup(name, kind)).await {
            Ok(Ok(found)) => {
                Answer { code: ResponseCode::NoError, records: found.records().to_vec() }
            }
            Ok(Err(error)) => Answer::only(error.proto().map_or(ResponseCode::ServFail, code)),
            Err(_) => Answer::only(ResponseCode::ServFail),
        }
    }
}

fn code(error: &ProtoError) -> ResponseCode {
    match error.kind() {
        ProtoErrorKind::NoRecordsFound { response_code, .. } => *response_code,
        _ => ResponseCode::ServFail,
    }
}

fn options() -> ResolverOpts {
    let mut options = ResolverOpts::default();
    options.timeout = ATTEMPT;
    options.attempts = 2;
    options.cache_size = 2048;
    options.use_hosts_file = ResolveHosts::Never;
    options.preserve_intermediates = true;
    options.negative_max_ttl = Some(Duration::from_secs(30));
    options.positive_max_ttl = Some(Duration::from_secs(3600));
    options.edns0 = true;
    options
}

fn build(config: ResolverConfig) -> TokioResolver {
    let provider = TokioConnectionProvider::default();
    TokioResolver::builder_with_config(config, provider).with_options(options()).build()
}

fn given(servers: &[SocketAddr]) -> TokioResolver {
    let mut config = ResolverConfig::new();
    for server in servers {
        config.add_name_server(NameServerConfig::new(*server, Protocol::Udp));
        config.add_name_server(NameServerConfig::new(*server, Protocol::Tcp));
    }
    build(config)
}

fn system() -> Option<TokioResolver> {
    match hickory_resolver::system_conf::read_system_conf() {
        Ok((config, _)) if !config.name_servers().is_empty() => Some(build(config)),
        Ok(_) => {
            tracing::warn!("{HOST} names no servers: names are not resolved");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "cannot read {HOST}: names are not resolved");
            None
        }
    }
}

/// Reads `ADDR[:PORT]` of a server.
///
/// # Errors
/// If it is neither.
pub fn parse_server(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, 53));
    }
    text.parse().map_err(|_| format!("{text:?} is not an address, with or without a port"))
}
