//! A file as SDKs see it.

use ramet_proto::agent::{Accounts, Entry, FileKind};
use serde_json::{Map, Value, json};

use super::person::name_of;
use crate::dialects::e2b::time;

/// What names of the attributes begin with that are metadata of SDKs.
pub const METADATA: &str = "e2b.";

/// A file, with names of its owner and group where they have some.
pub fn shown(entry: &Entry, accounts: &Accounts) -> Value {
    let user = accounts.users.iter().find(|user| user.uid == entry.uid);
    let group = accounts.groups.iter().find(|group| group.gid == entry.gid);
    let kind = entry.end.as_ref().map_or(entry.kind, |end| end.kind);
    let mut shown = json!({
        "name": name_of(&entry.path),
        "type": kind_of(kind),
        "path": entry.path,
        "size": entry.size.to_string(),
        "mode": entry.mode,
        "permissions": permissions(entry),
        "owner": user.map_or_else(|| entry.uid.to_string(), |user| user.name.clone()),
        "group": group.map_or_else(|| entry.gid.to_string(), |group| group.name.clone()),
        "modifiedTime": time::of_ns(entry.modified_ns.into()),
    });
    if entry.kind == FileKind::Symlink {
        shown["isSymlink"] = json!(true);
        let end = entry.end.as_ref().map(|end| &end.path).or(entry.target.as_ref());
        shown["symlinkTarget"] = json!(end);
    }
    let metadata = metadata(entry);
    if !metadata.is_empty() {
        shown["metadata"] = Value::Object(metadata);
    }
    shown
}

/// Metadata that an SDK has written.
pub fn metadata(entry: &Entry) -> Map<String, Value> {
    let pairs = entry.attributes.iter();
    pairs
        .filter_map(|(name, value)| Some((name.strip_prefix(METADATA)?.to_owned(), json!(value))))
        .collect()
}

fn kind_of(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Symlink => "FILE_TYPE_SYMLINK",
        FileKind::Other => "FILE_TYPE_UNSPECIFIED",
    }
}

fn permissions(entry: &Entry) -> String {
    let mut text = String::new();
    match entry.kind {
        FileKind::Directory => text.push('d'),
        FileKind::Symlink => text.push('L'),
        FileKind::Other => text.push('?'),
        FileKind::File => {}
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if entry.mode & bit != 0 {
            text.push(letter);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for place in (0..9).rev() {
        let letter = ["x", "w", "r"][place % 3];
        text.push_str(if entry.mode & (1 << place) == 0 { "-" } else { letter });
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ramet_proto::agent::{Account, End, Group};

    use super::*;

    fn entry(kind: FileKind, mode: u32) -> Entry {
        Entry {
            path: "/a/b".to_owned(),
            kind,
            size: 5,
            mode,
            uid: 1000,
            gid: 7,
            modified_ns: 0,
            target: None,
            end: None,
            attributes: BTreeMap::new(),
        }
    }

    #[test]
    fn entries_have_names_and_permissions() {
        let user = Account { name: "user".to_owned(), uid: 1000, home: "/".to_owned() };
        let groups = vec![Group { name: "staff".to_owned(), gid: 50 }];
        let accounts = Accounts { users: vec![user], groups };
        let file = shown(&entry(FileKind::File, 0o644), &accounts);
        assert_eq!(file["permissions"], "-rw-r--r--");
        assert_eq!((&file["owner"], &file["group"]), (&json!("user"), &json!("7")));
        assert_eq!((&file["size"], &file["name"]), (&json!("5"), &json!("b")));
        assert_eq!(permissions(&entry(FileKind::Directory, 0o1777)), "dtrwxrwxrwx");
        assert_eq!(permissions(&entry(FileKind::File, 0o4750)), "urwxr-x---");
        let mut link = entry(FileKind::Symlink, 0o777);
        link.target = Some("c".to_owned());
        assert_eq!(shown(&link, &accounts)["type"], "FILE_TYPE_SYMLINK");
        link.end = Some(End { path: "/a/c".to_owned(), kind: FileKind::Directory });
        link.attributes = BTreeMap::from([("e2b.k".to_owned(), "v".to_owned())]);
        let link = shown(&link, &accounts);
        assert_eq!(
            (&link["type"], &link["symlinkTarget"]),
            (&json!("FILE_TYPE_DIRECTORY"), &json!("/a/c"))
        );
        assert_eq!((&link["isSymlink"], &link["metadata"]), (&json!(true), &json!({"k": "v"})));
    }
}
