//! Tokens of sandboxes: derived from their ids and a secret of the node, so nothing has to be kept, and a fork has its own.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::random;

/// The node's secret.
#[derive(Clone)]
pub struct Keys([u8; 32]);

impl Keys {
    /// The secret in this file, which is made if it is not there.
    pub fn load(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = random::hex(32)?;
                let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
                file.and_then(|mut file| writeln!(file, "{text}"))?;
                text
            }
            read => read?,
        };
        let hash = blake3::Hash::from_hex(text.trim());
        hash.map(|hash| Self(*hash.as_bytes()))
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not 64 hex digits"))
    }

    /// What who speaks to the sandbox itself has to show.
    pub fn access_token(&self, id: &str) -> String {
        self.derive("envd", id)
    }

    /// What who speaks to its ports has to show, if they are not public.
    pub fn traffic_token(&self, id: &str) -> String {
        self.derive("traffic", id)
    }

    /// What who reads and writes a volume has to show.
    pub fn volume_token(&self, id: &str) -> String {
        self.derive("volume", id)
    }

    /// What who uploads an archive for a build has to show.
    pub fn upload_token(&self, owner: &str, hash: &str) -> String {
        self.derive("upload", &format!("{owner}/{hash}"))
    }

    fn derive(&self, purpose: &str, id: &str) -> String {
        let text = format!("{purpose}:{id}");
        blake3::keyed_hash(&self.0, text.as_bytes()).to_hex().to_string()
    }
}

/// Whether two secrets are the same, in a time that does not tell where they differ.
pub fn same(shown: &str, right: &str) -> bool {
    blake3::hash(shown.as_bytes()) == blake3::hash(right.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_each_their_own_and_outlive_the_node() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("e2b.key");
        let keys = Keys::load(&file).unwrap();
        let token = keys.access_token("sbx-1");
        assert_ne!(token, keys.access_token("sbx-2"));
        assert_ne!(token, keys.traffic_token("sbx-1"));
        assert!(same(&token, &Keys::load(&file).unwrap().access_token("sbx-1")));
        fs::write(&file, "nonsense").unwrap();
        assert!(Keys::load(&file).is_err());
    }
}
