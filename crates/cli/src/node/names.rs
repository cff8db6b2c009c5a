//! Names of sandboxes, for E2B's SDKs in their usual way: `PORT-SANDBOX.DOMAIN` over TLS.
//!
//! rametd listens for them on a port of the loopback interface; in the software host that port is inside, and a gate
//! leads to it. Names are certified by an authority that rametd makes. Its certificate is put where the rest of
//! the state is, for whoever is to trust it.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Wishes for names.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Names {
    /// Domain whose names lead to sandboxes, for E2B's SDKs, and the port of the loopback interface that they are
    /// reached on by TLS; the authority to trust is e2b-ca.pem in the state
    #[arg(long, env = "RAMET_E2B_DOMAIN", value_name = "NAME:PORT")]
    pub e2b_domain: Option<Domain>,
}

/// A domain with a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its port on the loopback interface.
    pub port: u16,
}

impl Names {
    /// For the keeper.
    pub fn arguments(&self) -> Vec<String> {
        self.e2b_domain.iter().map(|domain| format!("--e2b-domain={domain}")).collect()
    }

    /// For rametd, which listens there for the port of the domain.
    pub fn for_rametd(&self, listen: impl FnOnce(&Domain) -> SocketAddr) -> Vec<String> {
        let mut words = self.arguments();
        words.extend(
            self.e2b_domain.as_ref().map(|domain| format!("--e2b-listen={}", listen(domain))),
        );
        words
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

impl FromStr for Domain {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, port) = text.rsplit_once(':').ok_or("it is NAME:PORT")?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or("its port is no port")?;
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let label =
            |label: &str| !label.is_empty() && label.len() <= 63 && label.bytes().all(letter);
        if name.len() > 180 || !name.split('.').all(label) {
            return Err("its name has lower-case letters, digits, hyphens and dots");
        }
        Ok(Self { name: name.to_owned(), port })
    }
}

/// A certificate that was read whole.
pub fn is_certificate(text: &[u8]) -> bool {
    text.starts_with(b"-----BEGIN CERTIFICATE")
        && text.trim_ascii_end().ends_with(b"CERTIFICATE-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_a_name_and_a_port() {
        let domain: Domain = "sandboxes.example.org:8443".parse().unwrap();
        assert_eq!((domain.name.as_str(), domain.port), ("sandboxes.example.org", 8443));
        assert_eq!(domain.to_string(), "sandboxes.example.org:8443");
        for wrong in ["", "a.b", "a.b:0", "a.b:x", ":1", "a..b:1", "A.b:1", "a/b:1"] {
            assert!(wrong.parse::<Domain>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_passed_on_or_nothing() {
        let listen = |domain: &Domain| SocketAddr::from(([127, 0, 0, 1], domain.port));
        assert_eq!(Names::default().for_rametd(listen).len(), 0);
        let names = Names { e2b_domain: "a.b:1".parse().ok() };
        assert_eq!(names.arguments(), ["--e2b-domain=a.b:1"]);
        assert_eq!(names.for_rametd(listen), ["--e2b-domain=a.b:1", "--e2b-listen=127.0.0.1:1"]);
    }

    #[test]
    fn half_a_certificate_is_none() {
        let whole = b"-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";
        assert!(is_certificate(whole));
        assert!(!is_certificate(&whole[..40]) && !is_certificate(b""));
    }
}
