//! Names of sandboxes that lead to this machine, for the tests' processes alone.
//!
//! SDKs resolve names in several ways, one of them without the C library. All of them ask the server in
//! /etc/resolv.conf: the tests run in a mount namespace where that is the one here, which knows one domain. For
//! that it takes root.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};

/// Length of a message's head.
const HEAD: usize = 12;
/// Longest question.
const QUESTION_MAX: usize = 512;
/// Type of addresses of the older kind.
const A: u16 = 1;

/// Mounts the first two files, then becomes the rest.
const SCRIPT: &str = "mount --bind \"$0\" /etc/resolv.conf && mount --bind \"$1\" /etc/nsswitch.conf && \
                      shift && exec \"$@\"";

/// A server for names, until this process ends.
pub struct Names {
    resolv: PathBuf,
    nsswitch: PathBuf,
}

impl Names {
    /// Starts to answer for a domain. Files are left in this directory.
    pub fn serve(domain: &'static str, place: &Path) -> Result<Self> {
        let [.., third, fourth] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 53, third, fourth.clamp(1, 254));
        let socket = UdpSocket::bind((address, 53))
            .with_context(|| format!("cannot answer questions for names on {address}"))?;
        let names =
            Self { resolv: place.join("resolv.conf"), nsswitch: place.join("nsswitch.conf") };
        fs::write(&names.resolv, format!("nameserver {address}\n"))?;
        fs::write(&names.nsswitch, "hosts: files dns\n")?;
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            let mut question = [0; QUESTION_MAX];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                if let Some(reply) = answer(&question[..length], domain) {
                    // Who asked asks again.
                    let _ = socket.send_to(&reply, from);
                }
            }
        })?;
        Ok(names)
    }

    /// The same command where names lead here.
    pub fn around(&self, inner: &Command) -> Command {
        let mut outer = Command::new("unshare");
        outer.args(["--mount", "sh", "-c", SCRIPT]).arg(&self.resolv).arg(&self.nsswitch);
        outer.arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        if let Some(directory) = inner.get_current_dir() {
            outer.current_dir(directory);
        }
        outer
    }
}

/// The reply to one question: this machine for the domain's names, and that there are no others.
fn answer(question: &[u8], domain: &str) -> Option<Vec<u8>> {
    let (name, end) = name(question)?;
    let kind = u16::from_be_bytes(question.get(end..end + 2)?.try_into().ok()?);
    let asked = question.get(HEAD..end + 4)?;
    let ours = name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    let found = ours && kind == A;
    let mut reply = question[..2].to_vec();
    // An authority's answer; 3 says that there is no such name.
    reply.extend([0x84, if ours { 0 } else { 3 }, 0, 1, 0, u8::from(found), 0, 0, 0, 0]);
    reply.extend(asked);
    if found {
        // The name that was asked for, an address, for a minute.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        reply.extend(Ipv4Addr::LOCALHOST.octets());
    }
    Some(reply)
}

/// The name in a question in lower case, and where it ends.
fn name(question: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), HEAD);
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        let label = question.get(at..at + length).filter(|_| length < 64)?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str, kind: u8) -> Vec<u8> {
        let mut message = vec![7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.extend([0, 0, kind, 0, 1]);
        message
    }

    #[test]
    fn names_of_the_domain_lead_here() {
        let reply = answer(&question("3000-a.Boxes.test", 1), "boxes.test").unwrap();
        assert_eq!((&reply[..2], reply[3], reply[7]), (&[7, 8][..], 0, 1));
        assert!(reply.ends_with(&[127, 0, 0, 1]));
        let newer = answer(&question("a.boxes.test", 28), "boxes.test").unwrap();
        assert_eq!((newer[3], newer[7]), (0, 0));
        for other in ["example.org", "otherboxes.test", "test"] {
            assert_eq!(answer(&question(other, 1), "boxes.test").unwrap()[3], 3);
        }
        assert_eq!(answer(&[0; 5], "boxes.test"), None);
        assert_eq!(answer(&question("a", 1)[..14], "boxes.test"), None);
    }

    #[test]
    fn a_command_stays_what_it_is() {
        let names = Names { resolv: "r".into(), nsswitch: "n".into() };
        let mut inner = Command::new("program");
        inner.arg("word").env("NAME", "value").env_remove("OTHER").current_dir("/");
        let outer = names.around(&inner);
        let words: Vec<_> = outer.get_args().skip(4).map(|word| word.to_string_lossy()).collect();
        assert_eq!(words, ["r", "n", "program", "word"]);
        assert_eq!(outer.get_envs().count(), 2);
    }
}
