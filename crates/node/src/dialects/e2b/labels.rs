//! What the dialect keeps as labels of a sandbox or commit: metadata, and notes of its own.
//!
//! A key that a label can have is one. Others, and those that begin like the dialect's own notes, are written with their
//! bytes in hex behind [`KEY`]. What else begins with [`OWN`] is a note, and no metadata.

use std::collections::BTreeMap;

use crate::dialects::e2b::Fault;

/// What the dialect's notes begin with.
const OWN: &str = "e2b.";
/// What keys that could be no labels begin with.
const KEY: &str = "e2b.key/";
/// Longest label.
const LABEL_MAX: usize = 128;

/// `private`: ports are only for who has the token.
pub const TRAFFIC: &str = "e2b.traffic";
/// The value of [`TRAFFIC`].
pub const PRIVATE: &str = "private";
/// Id of the template that a sandbox was made from, as SDKs know it.
pub const TEMPLATE: &str = "e2b.template";
/// Its name.
pub const ALIAS: &str = "e2b.alias";
/// The build that a sandbox is there for.
pub const BUILD: &str = "e2b.build";
/// Name and tag of a commit that is a snapshot; empty if it has none.
pub const SNAPSHOT: &str = "e2b.snapshot";
/// What is to happen at the end of its time, while a sandbox that was paused by hand must not end.
pub const ON_TIMEOUT: &str = "e2b.on-timeout";

/// Labels.
pub type Labels = BTreeMap<String, String>;

/// The label of a key of metadata.
fn encode(key: &str) -> Result<String, Fault> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-/".contains(c);
    let fits = !key.is_empty() && key.chars().all(|c| plain(c) || c == '.');
    let label = if fits && !key.starts_with(OWN) {
        key.to_owned()
    } else {
        let escaped = key.bytes().map(|byte| match char::from(byte) {
            c if plain(c) => c.to_string(),
            _ => format!(".{byte:02x}"),
        });
        format!("{KEY}{}", escaped.collect::<String>())
    };
    if label.len() > LABEL_MAX {
        return Err(Fault::bad(format!("metadata: the key {key:?} is too long")));
    }
    Ok(label)
}

/// The key of metadata that a label is; none for a note.
fn decode(label: &str) -> Option<String> {
    let Some(escaped) = label.strip_prefix(KEY) else {
        return (!label.starts_with(OWN)).then(|| label.to_owned());
    };
    let (mut bytes, mut rest) = (Vec::new(), escaped.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'.' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// Whether ports of a sandbox with these labels are for everyone who knows its id. Those of one that was not made by the dialect
/// never are: nobody has said that its id is a secret.
pub fn is_public(labels: &Labels) -> bool {
    labels.contains_key(TEMPLATE) && labels.get(TRAFFIC).is_none_or(|traffic| traffic != PRIVATE)
}

/// Labels of metadata.
pub fn of(metadata: Labels) -> Result<Labels, Fault> {
    metadata.into_iter().map(|(key, value)| Ok((encode(&key)?, value))).collect()
}

/// The metadata that labels are.
pub fn metadata(labels: &Labels) -> Labels {
    labels.iter().filter_map(|(label, value)| Some((decode(label)?, value.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back() {
        for key in ["a", "a.b/c", "a b", "e2b.traffic", "e2b.key/x", "schlüssel", "", "=&%", "."] {
            let label = encode(key).unwrap();
            let letter = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            assert!(label.chars().all(letter), "{label}");
            assert_eq!(decode(&label).as_deref(), Some(key));
        }
        assert_eq!(encode("a.b").unwrap(), "a.b");
        assert!(encode(&"ü".repeat(64)).is_err());
        for note in [TRAFFIC, "e2b.key/.", "e2b.key/.zz", "e2b.key/.ff"] {
            assert_eq!(decode(note), None, "{note}");
        }
    }
}
