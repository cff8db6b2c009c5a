//! Names of sandboxes, for E2B's SDKs in their usual way: `PORT-SANDBOX.DOMAIN` over TLS.
//!
//! Names and certificate are the user's: here they are only passed on to rametd, which listens for them on a
//! port of the loopback interface. In the software host that port is inside, and a gate leads to it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Wishes for names.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Names {
    /// Domain that sandboxes have names in for E2B's SDKs, and the port of the loopback interface that they are
    /// reached on by TLS
    #[arg(long, env = "RAMET_E2B_DOMAIN", value_name = "NAME:PORT")]
    #[arg(requires_all = ["e2b_certificate", "e2b_key"])]
    pub e2b_domain: Option<Domain>,
    /// File with the certificates of *.NAME, its own first
    #[arg(long, env = "RAMET_E2B_CERTIFICATE", value_name = "FILE")]
    pub e2b_certificate: Option<PathBuf>,
    /// File with the certificate's key
    #[arg(long, env = "RAMET_E2B_KEY", value_name = "FILE")]
    pub e2b_key: Option<PathBuf>,
}

/// A domain with a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its port on the loopback interface.
    pub port: u16,
}

/// All that is needed for names.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The domain.
    pub domain: &'a Domain,
    /// File with its certificates.
    pub certificate: &'a PathBuf,
    /// File with its key.
    pub key: &'a PathBuf,
}

impl Names {
    /// For the keeper.
    pub fn arguments(&self) -> Vec<String> {
        let Some(named) = self.wanted() else { return Vec::new() };
        let Named { domain, certificate, key } = named;
        rametd_arguments(domain, None, &certificate.to_string_lossy(), &key.to_string_lossy())
    }

    /// What is wished for, if anything.
    pub fn wanted(&self) -> Option<Named<'_>> {
        let (domain, certificate) = (self.e2b_domain.as_ref()?, self.e2b_certificate.as_ref()?);
        Some(Named { domain, certificate, key: self.e2b_key.as_ref()? })
    }
}

/// For rametd, which finds the files there and listens here.
pub fn rametd_arguments(
    domain: &Domain,
    listen: Option<SocketAddr>,
    certificate: &str,
    key: &str,
) -> Vec<String> {
    let mut words = vec![
        format!("--e2b-domain={domain}"),
        format!("--e2b-certificate={certificate}"),
        format!("--e2b-key={key}"),
    ];
    words.extend(listen.map(|address| format!("--e2b-listen={address}")));
    words
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
    fn all_is_passed_on_or_nothing() {
        let mut names = Names { e2b_domain: "a.b:1".parse().ok(), ..Names::default() };
        assert_eq!(names.arguments().len(), 0);
        (names.e2b_certificate, names.e2b_key) = (Some("c".into()), Some("k".into()));
        let expected = ["--e2b-domain=a.b:1", "--e2b-certificate=c", "--e2b-key=k"];
        assert_eq!(names.arguments(), expected);
    }
}
