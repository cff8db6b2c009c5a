//! Who asks: bearer tokens and principals.
//!
//! A token is 32 random bytes in hex behind `ramet_`. Only its BLAKE3 hash is kept; a random token of that length
//! needs no slow hash. Comparison takes the same time wherever the hashes differ.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ramet_proto::api::network::Policy;

use crate::random;
use crate::store::{self, Store};

/// Who the token of the token file belongs to.
pub const ADMIN: &str = "admin";

/// Somebody whose sandboxes are theirs alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    name: Arc<str>,
    cap: Option<Arc<Policy>>,
}

impl Principal {
    /// With this name, and no cap.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), cap: None }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What sandboxes may reach at most that are made with the token that was used.
    pub fn policy(&self) -> Option<&Policy> {
        self.cap.as_deref()
    }

    /// Whether it is the administrator, with a token that has no cap.
    pub fn is_admin(&self) -> bool {
        self.name() == ADMIN && self.cap.is_none()
    }
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or written.
    #[error("the token file {} cannot be used", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("the token file {} holds no token of at least 16 characters", path.display())]
    NoToken {
        /// Where.
        path: PathBuf,
    },
    /// The database failed.
    #[error("the token cannot be kept")]
    Store(#[from] store::Error),
}

/// The hash that is kept.
pub fn hash(token: &str) -> String {
    blake3::hash(token.as_bytes()).to_hex().to_string()
}

/// Every token that is accepted.
#[derive(Debug, Clone)]
pub struct Tokens(Arc<RwLock<Vec<(blake3::Hash, Principal)>>>);

fn read(store: &Store) -> Result<Vec<(blake3::Hash, Principal)>, store::Error> {
    let known = |token: store::Token| {
        let name = token.principal.as_str().into();
        let principal = Principal { name, cap: token.cap.map(Arc::new) };
        Some((blake3::Hash::from_hex(token.hash).ok()?, principal))
    };
    Ok(store.tokens()?.into_iter().filter_map(known).collect())
}

impl Tokens {
    /// Those of the database.
    pub fn load(store: &Store) -> Result<Self, store::Error> {
        Ok(Self(Arc::new(RwLock::new(read(store)?))))
    }

    /// Those of the database, which has changed.
    pub fn reload(&self, store: &Store) -> Result<(), store::Error> {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = read(store)?;
        Ok(())
    }

    /// Whose token this is.
    pub fn principal(&self, token: &str) -> Option<Principal> {
        let hash = blake3::hash(token.as_bytes());
        // All are looked at, and `==` on hashes takes constant time.
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().fold(
            None,
            |found, (known, principal)| {
                if *known == hash { Some(principal.clone()) } else { found }
            },
        )
    }
}

/// A new token.
pub fn generate() -> io::Result<String> {
    Ok(format!("ramet_{}", random::hex(32)?))
}

/// Accepts the token in this file for the administrator; makes the file if it is not there.
pub fn use_token_file(path: &Path, store: &Store, now: u64) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let token = match fs::read_to_string(path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = generate().map_err(failed)?;
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            file.and_then(|mut file| writeln!(file, "{token}")).map_err(failed)?;
            token
        }
        Err(error) => return Err(failed(error)),
    };
    if token.len() < 16 || token.contains(char::is_whitespace) {
        return Err(Error::NoToken { path: path.to_owned() });
    }
    Ok(store.add_token(&hash(&token), ADMIN, now)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_is_made_once_and_only_its_hash_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("token");
        let store = Store::in_memory().unwrap();
        use_token_file(&path, &store, 1).unwrap();
        let token = fs::read_to_string(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        use_token_file(&path, &store, 2).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), token);
        assert!(!format!("{:?}", store.tokens().unwrap()).contains(token.trim()));
        let tokens = Tokens::load(&store).unwrap();
        assert_eq!(tokens.principal(token.trim()), Some(Principal::new(ADMIN)));
        assert_eq!(tokens.principal("ramet_"), None);
        fs::write(&path, "short").unwrap();
        assert!(matches!(use_token_file(&path, &store, 1), Err(Error::NoToken { .. })));
    }
}
