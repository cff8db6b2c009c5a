//! Names of things: ids are hashes, tenants and names are checked words.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// A BLAKE3 hash.
pub type Hash = [u8; 32];

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(text: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    let bytes = text.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    for (out, pair) in hash.iter_mut().zip(bytes.chunks(2)) {
        *out = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(hash)
}

macro_rules! id {
    ($name:ident, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Hash);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                unhex(text).map(Self).ok_or_else(|| {
                    Error::bad(format!("{text:?} is no id: 64 digits of 0-9a-f are"))
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result2<S::Ok, S::Error> {
                match serializer.is_human_readable() {
                    true => serializer.collect_str(self),
                    false => self.0.serialize(serializer),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result2<Self, D::Error> {
                if !deserializer.is_human_readable() {
                    return Hash::deserialize(deserializer).map(Self);
                }
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

type Result2<T, E> = std::result::Result<T, E>;

id!(ChunkId, "Name of a chunk: the hash of its frames' hashes.");
id!(StateId, "Name of a state: the hash of its manifest's object.");

/// Whose data it is. Nothing is shared between tenants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tenant(String);

impl Tenant {
    /// Checks the name: see [`check_name`].
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        check_name("tenant", &name)?;
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Tenant {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> Self {
        tenant.0
    }
}

/// Names of tenants, kinds, roots, refs and blobs: 1 to 128 letters, digits, `-`, `_` and `.`, not beginning
/// with a dot. So a name is one part of a path in every backend, and never a way out of it.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=128).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.') {
        return Ok(());
    }
    Err(Error::bad(format!(
        "{name:?} is no name of a {what}: 1 to 128 letters, digits, '-', '_' and '.', not first a dot"
    )))
}
