//! Headers that are set on the way out, with secrets that guests never see.
//!
//! A rule names a secret. Its value is put in its place when the service is told, and nowhere else: records, answers and logs have the
//! name. TLS to such hosts ends at the service, with certificates of an authority that only this sandbox's guest trusts.

use std::collections::BTreeSet;

use ramet_proto::api::network::EdgeRequest;
use ramet_proto::net::{AUTHORITY_NAME, Authority, EdgeRule, rule};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256,
};

use super::Net;
use crate::auth::Principal;
use crate::sandbox::Service;
use crate::sandbox::error::Error;
use crate::sandbox::record::Record;

/// Most rules of a sandbox.
const RULES_MAX: usize = 8;
/// Longest value, with the secret's name in it.
const VALUE_MAX: usize = 256;
/// Longest name of a header.
const HEADER_MAX: usize = 64;
/// Headers that are not for others to set (RFC 9110).
const RESERVED: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "expect",
];
const BEGIN: &str = "{secret:";
const END: char = '}';

/// The secret that a value names, and what is before and after it.
fn parts(value: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = value.split_once(BEGIN)?;
    let (name, after) = rest.split_once(END)?;
    (!after.contains(BEGIN)).then_some((before, name, after))
}

/// The secret that a rule names.
pub(super) fn secret_of(rule: &EdgeRequest) -> Option<&str> {
    parts(&rule.value).map(|(_, name, _)| name)
}

fn check(rule: &EdgeRequest) -> Result<(), Error> {
    let bad = |text: String| Err(Error::Bad(format!("edge: {text}")));
    if let Err(error) = rule::name(&rule.host) {
        return bad(format!("host: {error}"));
    }
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let header = &rule.header;
    if header.is_empty() || header.len() > HEADER_MAX || !header.bytes().all(letter) {
        return bad(format!("header: {header:?} is no name of a header"));
    }
    if RESERVED.contains(&header.to_ascii_lowercase().as_str()) {
        return bad(format!("header: {header} cannot be set; it belongs to the connection"));
    }
    let visible = rule.value.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if rule.value.len() > VALUE_MAX || !visible || parts(&rule.value).is_none() {
        // Not shown: it may be the secret itself.
        return bad(format!(
            "value: at most {VALUE_MAX} visible characters with one {BEGIN}NAME{END} in them; see `ramet secret set`"
        ));
    }
    Ok(())
}

impl Service {
    /// Gives a sandbox edge rules instead of those that it has; makes an authority with the first.
    pub(super) fn set_edge(
        &self,
        who: &Principal,
        net: &mut Net,
        edge: Vec<EdgeRequest>,
    ) -> Result<(), Error> {
        if edge.len() > RULES_MAX {
            return Err(Error::Bad(format!("edge: {} rules, at most {RULES_MAX}", edge.len())));
        }
        let mut seen = BTreeSet::new();
        for rule in &edge {
            check(rule)?;
            let name = secret_of(rule).unwrap_or_default();
            if self.store.secret(who.name(), name)?.is_none() {
                return Err(Error::Bad(format!(
                    "edge: there is no secret {name:?}; `ramet secret set {name}` makes it"
                )));
            }
            let (host, header) = (rule.host.to_ascii_lowercase(), rule.header.to_ascii_lowercase());
            if !seen.insert((host, header)) {
                let text = format!("edge: two rules for {} of {}", rule.header, rule.host);
                return Err(Error::Bad(text));
            }
        }
        if !edge.is_empty() && net.authority.is_none() {
            net.authority = Some(authority()?);
        }
        net.edge = edge;
        Ok(())
    }

    /// The rules with the values of secrets, for the service.
    pub(super) fn edge_rules(&self, record: &Record) -> Result<Vec<EdgeRule>, Error> {
        let mut rules = Vec::new();
        for rule in &record.network.edge {
            let Some((before, name, after)) = parts(&rule.value) else { continue };
            let Some(secret) = self.store.secret(&record.owner, name)? else {
                tracing::error!(id = record.id, name, "a secret is gone; its rule does nothing");
                continue;
            };
            rules.push(EdgeRule {
                host: rule::name(&rule.host).unwrap_or_else(|_| rule.host.clone()),
                header: rule.header.clone(),
                value: format!("{before}{secret}{after}"),
            });
        }
        Ok(rules)
    }
}

/// A new authority, for one sandbox.
fn authority() -> Result<Authority, Error> {
    let failed =
        |error: rcgen::Error| Error::Internal(format!("no authority can be made: {error}"));
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok(Authority { certificate: certificate.pem(), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(host: &str, header: &str, value: &str) -> EdgeRequest {
        EdgeRequest { host: host.into(), header: header.into(), value: value.into() }
    }

    #[test]
    fn rules_are_checked() {
        check(&rule("api.example.org", "Authorization", "Bearer {secret:KEY}")).unwrap();
        for (host, header, value) in [
            ("*.example.org", "A", "{secret:K}"),
            ("192.0.2.1", "A", "{secret:K}"),
            ("a.org", "", "{secret:K}"),
            ("a.org", "A B", "{secret:K}"),
            ("a.org", "Host", "{secret:K}"),
            ("a.org", "content-length", "{secret:K}"),
            ("a.org", "A", "s3cret"),
            ("a.org", "A", "{secret:K"),
            ("a.org", "A", "{secret:K}{secret:K}"),
            ("a.org", "A", "x\n{secret:K}"),
        ] {
            let error = check(&rule(host, header, value)).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn authorities_differ() {
        let (one, other) = (authority().unwrap(), authority().unwrap());
        assert!(
            one.certificate.starts_with("-----BEGIN CERTIFICATE")
                && one.key.contains("PRIVATE KEY")
        );
        assert_ne!(one.key, other.key);
    }
}
