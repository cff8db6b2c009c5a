//! Signatures of states, in the format of minisign (ed25519).
//!
//! What is signed is a *statement*: the content of a state, and name and value of its root. The content's hash names
//! files, pages and chunks, but not how chunks are packed or which generation they have: those change when a
//! state moves to another store, and the signature moves with it.

use minisign_verify::Signature;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::id::hex;
use crate::manifest::Manifest;
use crate::roots::Root;

/// Bytes of a signature's text, at most.
const SIGNATURE_MAX: usize = 4096;
/// Signatures of a root, at most.
pub(crate) const SIGNATURES_MAX: usize = 16;

/// A key that signs. Its text is what `minisign -G` writes.
pub struct SigningKey {
    key: minisign::SecretKey,
}

/// A key that verifies. Its text is what `minisign -G` writes, or the second line of it alone.
#[derive(Clone)]
pub struct VerifyingKey {
    key: minisign_verify::PublicKey,
    text: String,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

impl std::fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerifyingKey({})", self.text)
    }
}

impl SigningKey {
    /// Reads a key; a password is needed if it is encrypted.
    pub fn parse(text: &str, password: Option<&str>) -> Result<Self> {
        let bad =
            |error: minisign::PError| Error::bad(format!("this is no key to sign with: {error}"));
        let boxed = minisign::SecretKeyBox::from_string(text).map_err(bad)?;
        // Without a password the library would ask the terminal.
        let key = match password {
            Some(password) => boxed.into_secret_key(Some(password.to_owned())),
            None => boxed.into_unencrypted_secret_key(),
        };
        Ok(Self { key: key.map_err(bad)? })
    }

    /// Makes a new key. Gives its text, which is not encrypted, and that of its other half.
    pub fn generate() -> Result<(String, String)> {
        let failed = |error: minisign::PError| Error::bad(format!("cannot make a key: {error}"));
        let pair = minisign::KeyPair::generate_unencrypted_keypair().map_err(failed)?;
        let secret = pair.sk.to_box(Some("ramet secret key")).map_err(failed)?;
        Ok((secret.into_string(), pair.pk.to_box().map_err(failed)?.into_string()))
    }

    pub(crate) fn sign(&self, statement: &[u8]) -> Result<String> {
        let signed = minisign::sign(None, &self.key, statement, None, Some("ramet state"));
        let failed = |error: minisign::PError| Error::bad(format!("cannot sign: {error}"));
        Ok(signed.map_err(failed)?.into_string())
    }
}

impl VerifyingKey {
    /// Reads a key.
    pub fn parse(text: &str) -> Result<Self> {
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("");
        let key = minisign_verify::PublicKey::from_base64(line)
            .map_err(|error| Error::bad(format!("{line:?} is no key to verify with: {error}")))?;
        Ok(Self { key, text: line.to_owned() })
    }

    fn verifies(&self, statement: &[u8], signature: &str) -> bool {
        let read = (signature.len() <= SIGNATURE_MAX).then(|| Signature::decode(signature).ok());
        let read = read.flatten();
        read.is_some_and(|signature| self.key.verify(statement, &signature, false).is_ok())
    }
}

/// What a signature of a root says.
pub(crate) fn statement(root: &Root, manifest: &Manifest) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_derive_key("ramet store 2026 value v1");
    hash_value(&root.value, &mut hasher);
    let value = hex(hasher.finalize().as_bytes());
    let content = hex(&manifest.content_hash());
    format!("ramet state 1\n{content}\n{}\n{}\n{value}\n", root.kind, root.name).into_bytes()
}

/// Whether one of the keys signed it. Without keys nothing is asked for.
pub(crate) fn verify(
    root: &Root,
    manifest: &Manifest,
    trusted: Option<&[VerifyingKey]>,
) -> Result<()> {
    let Some(keys) = trusted else { return Ok(()) };
    let what = format!("{} {}", root.kind, root.name);
    if root.signatures.is_empty() {
        return Err(Error::Untrusted(format!("{what} is not signed")));
    }
    let statement = statement(root, manifest);
    let signed = |key: &VerifyingKey| {
        root.signatures.iter().take(SIGNATURES_MAX).any(|text| key.verifies(&statement, text))
    };
    match keys.iter().any(signed) {
        true => Ok(()),
        false => Err(Error::Untrusted(format!("{what} is not signed by a key that is trusted"))),
    }
}

/// Hashes a value, whatever the order of its names.
fn hash_value(value: &Value, hasher: &mut blake3::Hasher) {
    match value {
        Value::Object(map) => {
            let mut names: Vec<_> = map.keys().collect();
            names.sort();
            hasher.update(b"{").update(&(names.len() as u64).to_le_bytes());
            for name in names {
                hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
                hash_value(&map[name], hasher);
            }
        }
        Value::Array(items) => {
            hasher.update(b"[").update(&(items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| hash_value(item, hasher));
        }
        plain => {
            let text = plain.to_string();
            hasher.update(b"=").update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
    }
}
