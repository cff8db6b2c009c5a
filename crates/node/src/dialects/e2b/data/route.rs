//! Which sandbox a request is for: by host name if that is within the domain, else by headers, else by a signature.

use axum::extract::Request;
use axum::http::{HeaderMap, header};

const SANDBOX: &str = "e2b-sandbox-id";
const PORT: &str = "e2b-sandbox-port";

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A port of a sandbox.
    Port {
        /// Id of the sandbox, as the SDK knows it.
        sandbox: String,
        /// Port in the guest.
        port: u16,
    },
    /// Files of the sandbox whose token made the signature.
    Signed,
    /// It looks like one of these, and says why it is none.
    Bad(String),
}

/// Which sandbox a request is for, if it is for one.
pub fn target(domain: Option<&str>, request: &Request) -> Option<Target> {
    let host = host(request);
    let domain = domain.map(|domain| without_port(domain).to_ascii_lowercase());
    let label = domain.as_deref().and_then(|domain| host.strip_suffix(domain)?.strip_suffix('.'));
    match label {
        Some("api") => None,
        None | Some("sandbox") => by_headers(request.headers()).or_else(|| by_signature(request)),
        Some(label) => Some(by_label(label)),
    }
}

fn host(request: &Request) -> String {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = || request.uri().authority().map(|authority| authority.as_str());
    without_port(header.or_else(authority).unwrap_or("")).to_ascii_lowercase()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of an address in brackets are not those of a port.
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}

fn by_label(label: &str) -> Target {
    let bad = || Target::Bad(format!("Invalid host: {label:?} is not PORT-SANDBOX"));
    let Some((port, sandbox)) = label.split_once('-') else { return bad() };
    match port_of(port) {
        Some(port) => Target::Port { sandbox: sandbox.to_owned(), port },
        None => bad(),
    }
}

fn by_headers(headers: &HeaderMap) -> Option<Target> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    match (text(SANDBOX), text(PORT)) {
        (None, None) => None,
        (Some(sandbox), Some(port)) => Some(match port_of(port) {
            Some(port) => Target::Port { sandbox: sandbox.to_owned(), port },
            None => Target::Bad(format!("Invalid sandbox port: {port:?}")),
        }),
        _ => Some(Target::Bad("E2b-Sandbox-Id and E2b-Sandbox-Port belong together".to_owned())),
    }
}

fn by_signature(request: &Request) -> Option<Target> {
    let query = request.uri().query().unwrap_or("");
    let signed = query.split('&').any(|pair| pair.starts_with("signature="));
    (request.uri().path() == "/files" && signed).then_some(Target::Signed)
}

fn port_of(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port > 0)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn of(
        domain: Option<&str>,
        host: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Option<Target> {
        let mut request = Request::builder().uri(path).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        target(domain, &request.body(Body::empty()).unwrap())
    }

    fn port(sandbox: &str, port: u16) -> Option<Target> {
        Some(Target::Port { sandbox: sandbox.to_owned(), port })
    }

    #[test]
    fn headers_lead_to_a_sandbox() {
        let both = [("E2b-Sandbox-Id", "abc"), ("E2b-Sandbox-Port", "49983")];
        for host in ["127.0.0.1:7878", "[::1]:7878", "localhost", "sandbox.e2b.test", "node"] {
            assert_eq!(of(None, host, "/x", &both), port("abc", 49983), "{host}");
            assert_eq!(of(Some("e2b.test:8443"), host, "/x", &both), port("abc", 49983), "{host}");
        }
        assert_eq!(of(None, "localhost", "/x", &[]), None);
        for (name, value) in both {
            assert!(matches!(of(None, "h", "/", &[(name, value)]), Some(Target::Bad(_))));
        }
        for bad in ["", "0", "70000", "+1", "x"] {
            let headers = [("E2b-Sandbox-Id", "abc"), ("E2b-Sandbox-Port", bad)];
            assert!(matches!(of(None, "h", "/", &headers), Some(Target::Bad(_))), "{bad}");
        }
    }

    #[test]
    fn names_lead_to_a_sandbox_within_the_domain_only() {
        let domain = Some("E2B.test:8443");
        assert_eq!(of(domain, "49983-abc.e2b.test:8443", "/", &[]), port("abc", 49983));
        assert_eq!(of(domain, "3000-ABC.E2B.TEST", "/", &[]), port("abc", 3000));
        assert_eq!(of(domain, "api.e2b.test", "/files?signature=v1_x", &[]), None);
        assert_eq!(of(domain, "e2b.test", "/", &[]), None);
        assert_eq!(of(domain, "3000-abc.example.org", "/", &[]), None);
        assert_eq!(of(None, "3000-abc.e2b.test", "/", &[]), None);
        assert_eq!(of(domain, "3000-abcxe2b.test", "/", &[]), None);
        for bad in ["www.e2b.test", "x-abc.e2b.test", "0-abc.e2b.test", ".e2b.test"] {
            assert!(matches!(of(domain, bad, "/", &[]), Some(Target::Bad(_))), "{bad}");
        }
    }

    #[test]
    fn a_signature_leads_to_its_sandbox() {
        assert_eq!(of(None, "h", "/files?path=a&signature=v1_x", &[]), Some(Target::Signed));
        assert_eq!(of(None, "h", "/files?path=a", &[]), None);
        assert_eq!(of(None, "h", "/v1/x?signature=v1_x", &[]), None);
    }
}
