//! TLS for names in a domain, with certificates of the node's own authority.
//!
//! The authority is made at the first start and kept: its certificate is what clients have to trust, its key stays with the node. The
//! certificate for the names is never kept; it is made at each start, and again before it is too old.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use time::{Duration, OffsetDateTime};
use tokio_rustls::TlsAcceptor;

use crate::clock::now_ms;

/// What clients see as the authority's name.
const AUTHORITY: &str = "ramet E2B authority";
/// Days that a certificate holds, before and after it was made, and after which it is made anew.
const BEFORE: i64 = 2;
const AFTER: i64 = 90;
const RENEWED: i64 = 30;
const DAY_MS: u64 = 86_400_000;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A certificate.
    #[error("a certificate cannot be made")]
    Certificate(#[from] rcgen::Error),
    /// The rest.
    #[error("TLS cannot be used")]
    Tls(#[from] rustls::Error),
}

/// Signs for names in a domain.
struct Names {
    issuer: Issuer<'static, KeyPair>,
    domain: String,
    /// The certificate, and the day it was made.
    now: Mutex<(Arc<CertifiedKey>, i64)>,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Names {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let day = today();
        if (day - now.1).abs() >= RENEWED {
            match leaf(&self.issuer, &self.domain, day) {
                Ok(new) => *now = (Arc::new(new), day),
                Err(error) => tracing::error!(?error, "the certificate is not renewed"),
            }
        }
        Some(now.0.clone())
    }
}

fn today() -> i64 {
    i64::try_from(now_ms() / DAY_MS).unwrap_or(0)
}

/// For names in this domain, with the authority in these files, which are made if they are not there.
pub fn acceptor(certificate: &Path, key: &Path, domain: &str) -> Result<TlsAcceptor, Error> {
    let issuer = authority(certificate, key)?;
    let day = today();
    let now = Mutex::new((Arc::new(leaf(&issuer, domain, day)?), day));
    let names = Names { issuer, domain: domain.to_owned(), now };
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = builder.with_cert_resolver(Arc::new(names));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn authority(certificate: &Path, key: &Path) -> Result<Issuer<'static, KeyPair>, Error> {
    if !certificate.exists() || !key.exists() {
        make_authority(certificate, key)?;
    }
    let pair = KeyPair::from_pem(&fs::read_to_string(key)?)?;
    Ok(Issuer::from_ca_cert_pem(&fs::read_to_string(certificate)?, pair)?)
}

fn make_authority(certificate: &Path, key: &Path) -> Result<(), Error> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let signed = params.self_signed(&pair)?;
    // The certificate comes last: what is half made is made again.
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(key)?;
    file.write_all(pair.serialize_pem().as_bytes())?;
    Ok(fs::write(certificate, signed.pem())?)
}

fn leaf(issuer: &Issuer<'static, KeyPair>, domain: &str, day: i64) -> Result<CertifiedKey, Error> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let names = [format!("*.{domain}"), format!("api.{domain}"), domain.to_owned()];
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, domain);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let at = |day: i64| OffsetDateTime::UNIX_EPOCH.saturating_add(Duration::days(day));
    (params.not_before, params.not_after) = (at(day - BEFORE), at(day + AFTER));
    let signed = params.signed_by(&pair, issuer)?;
    let key = PrivateKeyDer::try_from(pair.serialize_der());
    let key = key.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let key = ring::sign::any_supported_type(&key)?;
    Ok(CertifiedKey::new(vec![signed.der().clone()], key))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use axum::Router;
    use axum::routing::get;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;
    use tokio_util::sync::CancellationToken;

    use super::*;

    async fn ask(address: std::net::SocketAddr, ca: &Path, name: &str) -> io::Result<String> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn names_of_the_domain_are_trusted_by_the_authority_that_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let (ca, key) = (root.path().join("ca.pem"), root.path().join("ca.key"));
        let first = acceptor(&ca, &key, "sbx.test").unwrap();
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        let kept = fs::read(&ca).unwrap();
        let tls = acceptor(&ca, &key, "sbx.test").unwrap();
        drop(first);
        assert_eq!(fs::read(&ca).unwrap(), kept);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let scheme = |headers: axum::http::HeaderMap| async move {
            headers["x-forwarded-proto"].to_str().unwrap().to_owned()
        };
        let routes = Router::new().route("/", get(scheme));
        let served = super::super::serve::serve_secure(listener, tls, routes, stop.clone());
        let server = tokio::spawn(served);
        for name in ["49983-abc.sbx.test", "api.sbx.test", "sbx.test"] {
            let answer = ask(address, &ca, name).await.unwrap();
            assert!(answer.ends_with("https"), "{answer}");
        }
        assert!(ask(address, &ca, "other.test").await.is_err());
        stop.cancel();
        server.await.unwrap();
    }
}
