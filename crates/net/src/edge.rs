//! Secrets at the edge: for some hosts TLS ends here, a header is set, and a new, verified TLS connection goes on to the address that the
//! guest meant.
//!
//! The guest trusts an authority of its sandbox alone, under which a leaf is made for each host. Values never reach the guest from here, are never logged, and
//! never leave without TLS. HTTP/1.1 only: nothing else is offered to either side.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use ramet_proto::net::{Authority, EdgeRule};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::policy::parse_name;

/// Most rules of a port.
const RULES_MAX: usize = 64;
/// How long a handshake may take, and the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// Headers that are about a connection, not a request; and those that decide where a request goes.
const NOT_TO_SET: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    ":authority",
];
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "te",
    "trailer",
    "transfer-encoding",
    "expect",
];

/// Why rules cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// Of a rule.
    #[error("{0:?} is not the exact name of a host")]
    Host(String),
    /// Of a rule.
    #[error("{0:?} is not a header that can be set")]
    Header(String),
    /// Of a rule. It is not shown.
    #[error("the value for header {0:?} of {1:?} has characters that a header cannot have")]
    Value(String, String),
    /// There is none.
    #[error("rules for headers need the certificate and key of an authority")]
    NoAuthority,
    /// It is not one.
    #[error("the authority does not work: {0}")]
    Authority(String),
    /// Too many.
    #[error("a sandbox has at most {RULES_MAX} rules for headers")]
    TooMany,
}

/// Why a connection did not work.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The outside is not who it should be, or does not speak TLS.
    #[error("the outside: {0}")]
    Outside(std::io::Error),
    /// The guest does not trust the authority, or does not speak TLS.
    #[error("the guest: {0}")]
    Guest(std::io::Error),
    /// A request was for another host.
    #[error("a request was for another host")]
    OtherHost,
}

impl Refusal {
    /// For the log.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Outside(_) => "edge_outside_failed",
            Self::Guest(_) => "edge_guest_failed",
            Self::OtherHost => "name_mismatch",
        }
    }
}

/// Rules of a port, with its authority.
pub struct Edge {
    rules: Vec<EdgeRule>,
    authority: Authority,
    hosts: HashMap<String, Vec<(HeaderName, HeaderValue)>>,
    issuer: Issuer<'static, KeyPair>,
    leaves: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl fmt::Debug for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Edge").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl PartialEq for Edge {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules && self.authority == other.authority
    }
}

impl Edge {
    /// Reads rules. None if there are none.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(
        rules: &[EdgeRule],
        authority: Option<&Authority>,
    ) -> Result<Option<Self>, EdgeError> {
        if rules.is_empty() {
            return Ok(None);
        }
        if rules.len() > RULES_MAX {
            return Err(EdgeError::TooMany);
        }
        let mut hosts: HashMap<String, Vec<_>> = HashMap::new();
        for rule in rules {
            let host = parse_name(&rule.host).ok_or_else(|| EdgeError::Host(rule.host.clone()))?;
            hosts.entry(host).or_default().push(header_of(rule)?);
        }
        let authority = authority.ok_or(EdgeError::NoAuthority)?;
        let wrong = |error: rcgen::Error| EdgeError::Authority(error.to_string());
        let key = KeyPair::from_pem(&authority.key).map_err(wrong)?;
        let issuer = Issuer::from_ca_cert_pem(&authority.certificate, key).map_err(wrong)?;
        let edge = Self {
            rules: rules.to_vec(),
            authority: authority.clone(),
            hosts,
            issuer,
            leaves: Mutex::default(),
        };
        // What cannot sign is told now, not to the guest.
        edge.make_leaf("localhost").map_err(EdgeError::Authority)?;
        Ok(Some(edge))
    }

    /// Whether the host has a rule. In lower case.
    #[must_use]
    pub fn has(&self, host: &str) -> bool {
        self.hosts.contains_key(host)
    }

    fn leaf(&self, host: &str) -> Result<Arc<ServerConfig>, String> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = leaves.get(host) {
            return Ok(leaf.clone());
        }
        let leaf = Arc::new(self.make_leaf(host)?);
        leaves.insert(host.to_owned(), leaf.clone());
        Ok(leaf)
    }

    fn make_leaf(&self, host: &str) -> Result<ServerConfig, String> {
        let text = |error: rcgen::Error| error.to_string();
        let key = KeyPair::generate().map_err(text)?;
        let mut params = CertificateParams::new([host.to_owned()]).map_err(text)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&key, &self.issuer).map_err(text)?;
        let chain = vec![leaf.der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(str::to_owned)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn header_of(rule: &EdgeRule) -> Result<(HeaderName, HeaderValue), EdgeError> {
    let name = HeaderName::from_bytes(rule.header.as_bytes())
        .ok()
        .filter(|name| !NOT_TO_SET.contains(&name.as_str()))
        .ok_or_else(|| EdgeError::Header(rule.header.clone()))?;
    let mut value = HeaderValue::from_str(&rule.value)
        .map_err(|_| EdgeError::Value(rule.header.clone(), rule.host.clone()))?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    static PROVIDER: OnceLock<Arc<rustls::crypto::CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| rustls::crypto::ring::default_provider().into()).clone()
}

/// Whom the edge believes: the host's authorities and those that the operator gave. Read when the first connection needs them.
#[derive(Debug, Default)]
pub struct Trust {
    more: Vec<CertificateDer<'static>>,
    config: OnceLock<Arc<ClientConfig>>,
}

impl Trust {
    /// With the authorities in these files.
    ///
    /// # Errors
    /// If one cannot be read or has none.
    pub fn with(files: &[impl AsRef<Path>]) -> Result<Self, rustls::pki_types::pem::Error> {
        let mut more = Vec::new();
        for file in files {
            more.extend(CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Self { more, config: OnceLock::new() })
    }

    async fn config(&self) -> std::io::Result<Arc<ClientConfig>> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let more = self.more.clone();
        let made = tokio::task::spawn_blocking(move || client_config(more)).await;
        let made = made.map_err(std::io::Error::other)?.map_err(std::io::Error::other)?;
        Ok(self.config.get_or_init(|| made).clone())
    }
}

fn client_config(more: Vec<CertificateDer<'static>>) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "an authority of the host cannot be read");
    }
    roots.add_parsable_certificates(native.certs.into_iter().chain(more));
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Serves one connection of a guest to its end.
///
/// # Errors
/// Why it did not come to its natural end.
pub async fn serve(
    edge: &Edge,
    host: &str,
    guest: OwnedFd,
    outside: OwnedFd,
    trust: &Trust,
) -> Result<(), Refusal> {
    // The outside first: a guest whose server is not who it should be gets no answer at all.
    let outside = within(connect(host, outside, trust)).await.map_err(Refusal::Outside)?;
    let guest = within(accept(edge, host, guest)).await.map_err(Refusal::Guest)?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(outside));
    let (sender, connection) =
        handshake.await.map_err(|error| Refusal::Outside(std::io::Error::other(error)))?;
    let rewriter = Rewriter {
        host: host.to_owned(),
        headers: edge.hosts.get(host).cloned().unwrap_or_default(),
        sender: tokio::sync::Mutex::new(sender),
        misdirected: Mutex::new(false),
        upgraded: Mutex::new(None),
    };
    converse(&rewriter, guest, connection.with_upgrades()).await;
    let upgraded = rewriter.upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((inside, outside)) = upgraded
        && let (Ok(inside), Ok(outside)) = tokio::join!(inside, outside)
    {
        // It ends when either end does.
        drop(
            tokio::io::copy_bidirectional(&mut TokioIo::new(inside), &mut TokioIo::new(outside))
                .await,
        );
    }
    match rewriter.misdirected.into_inner() {
        Ok(true) => Err(Refusal::OtherHost),
        _ => Ok(()),
    }
}

async fn within<T>(work: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    tokio::time::timeout(HANDSHAKE, work).await?
}

async fn connect(
    host: &str,
    outside: OwnedFd,
    trust: &Trust,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    let stream = TcpStream::from_std(outside.into())?;
    TlsConnector::from(trust.config().await?).connect(name, stream).await
}

async fn accept(
    edge: &Edge,
    host: &str,
    guest: OwnedFd,
) -> std::io::Result<tokio_rustls::server::TlsStream<UnixStream>> {
    let leaf = edge.leaf(host).map_err(std::io::Error::other)?;
    let stream = UnixStream::from_std(guest.into())?;
    TlsAcceptor::from(leaf).accept(stream).await
}

/// Both connections, until the guest's is done. When the outside's ends, the guest's ends after the answer it is at.
async fn converse(
    rewriter: &Rewriter,
    guest: tokio_rustls::server::TlsStream<UnixStream>,
    outside: impl Future<Output = hyper::Result<()>>,
) {
    let service = hyper::service::service_fn(|request| rewriter.pass(request));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(600));
    let guest = builder.serve_connection(TokioIo::new(guest), service).with_upgrades();
    let (mut guest, mut outside) = (std::pin::pin!(guest), std::pin::pin!(outside));
    let mut outside_done = false;
    loop {
        tokio::select! {
            _ = guest.as_mut() => break,
            _ = outside.as_mut(), if !outside_done => {
                outside_done = true;
                guest.as_mut().graceful_shutdown();
            }
        }
    }
    let upgraded = rewriter.upgraded.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    if upgraded && !outside_done {
        // What was upgraded is handed over now.
        drop(tokio::time::timeout(Duration::from_secs(1), outside).await);
    }
}

type Body = Either<Incoming, Full<Bytes>>;

/// Passes requests on, changed.
struct Rewriter {
    host: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    sender: tokio::sync::Mutex<SendRequest<Incoming>>,
    misdirected: Mutex<bool>,
    upgraded: Mutex<Option<(OnUpgrade, OnUpgrade)>>,
}

impl Rewriter {
    async fn pass(&self, mut request: Request<Incoming>) -> hyper::Result<Response<Body>> {
        if let Some(refusal) = self.check(&request) {
            return Ok(refusal);
        }
        let upgrade = request.headers().contains_key(header::UPGRADE);
        let inside = upgrade.then(|| hyper::upgrade::on(&mut request));
        self.rewrite(&mut request, upgrade);
        let mut sender = self.sender.lock().await;
        let sent = match sender.ready().await {
            Ok(()) => sender.send_request(request).await,
            Err(error) => Err(error),
        };
        let Ok(mut response) = sent else {
            return Ok(plain(StatusCode::BAD_GATEWAY, "the server outside hung up\n"));
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            if let Some(inside) = inside {
                let outside = hyper::upgrade::on(&mut response);
                *self.upgraded.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((inside, outside));
            }
            return Ok(response.map(Either::Left));
        }
        let closes = says(response.headers(), header::CONNECTION, "close");
        strip(response.headers_mut());
        if closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(Either::Left))
    }

    /// Requests for other hosts, and those that are no requests to a host, go no further.
    fn check(&self, request: &Request<Incoming>) -> Option<Response<Body>> {
        if request.method() == Method::CONNECT {
            return Some(plain(StatusCode::METHOD_NOT_ALLOWED, "no tunnels here\n"));
        }
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let host = hosts.next().and_then(|value| value.to_str().ok()).map(without_port);
        let one = hosts.next().is_none();
        let in_uri = request.uri().host().is_none_or(|host| host.eq_ignore_ascii_case(&self.host));
        if one && in_uri && host.is_some_and(|host| host.eq_ignore_ascii_case(&self.host)) {
            return None;
        }
        *self.misdirected.lock().unwrap_or_else(PoisonError::into_inner) = true;
        Some(plain(StatusCode::MISDIRECTED_REQUEST, "this connection is for another host\n"))
    }

    fn rewrite(&self, request: &mut Request<Incoming>, upgrade: bool) {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        strip(request.headers_mut());
        if upgrade {
            let value = HeaderValue::from_static("upgrade");
            request.headers_mut().insert(header::CONNECTION, value);
        }
        for (name, _) in &self.headers {
            request.headers_mut().remove(name);
        }
        for (name, value) in &self.headers {
            request.headers_mut().append(name, value.clone());
        }
    }
}

/// What is of one connection does not go on to the next, and neither do headers that are said to be of it.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| name != "upgrade")
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn says(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from_static(text.as_bytes()))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
