//! Files: in and out, in part, of any size, and what is refused.

use std::io::Cursor;

use ramet_client::api::{
    Code, FileKind, ListFilesQuery, MkdirRequest, MoveRequest, RemoveQuery, WriteQuery,
};

use crate::bed::{fresh, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] =
    stories![files_go_in_and_out, a_part_of_a_file, a_large_file, what_a_file_cannot];

/// Size of the large file.
const LARGE: usize = 24 << 20;

fn at(path: &str) -> WriteQuery {
    WriteQuery { path: path.to_owned(), ..WriteQuery::default() }
}

fn files_go_in_and_out() {
    let sandbox = fresh("files");
    let (client, id) = (&sandbox.node.client, sandbox.id.as_str());
    let query = WriteQuery {
        mode: Some("0640".to_owned()),
        owner: Some("nobody".to_owned()),
        ..at("/srv/deep/er/file")
    };
    let file = wait(client.write_file(id, &query, "content")).unwrap();
    assert_eq!((file.kind, file.size, file.mode), (FileKind::File, 7, 0o640));
    assert_eq!(sandbox.sh("stat -c '%U %a' /srv/deep/er/file"), "nobody 640");
    assert_eq!(sandbox.get("/srv/deep/er/file"), "content");
    sandbox.put("/srv/deep/er/file", "shorter");
    let file = wait(client.stat(id, "/srv/deep/er/file")).unwrap();
    assert_eq!(file.mode, 0o640, "a file that is replaced keeps its mode");
    let link = WriteQuery { symlink: Some("er/file".to_owned()), ..at("/srv/deep/link") };
    let link = wait(client.write_file(id, &link, "")).unwrap();
    assert_eq!((link.kind, link.target.as_deref()), (FileKind::Symlink, Some("er/file")));
    assert_eq!(sandbox.get("/srv/deep/link"), "shorter");
    let made = MkdirRequest { path: "/srv/deep/new/one".to_owned(), mode: None, owner: None };
    assert_eq!(wait(client.mkdir(id, &made)).unwrap().kind, FileKind::Directory);
    let moved =
        MoveRequest { from: "/srv/deep/er/file".to_owned(), to: "/srv/deep/new/file".to_owned() };
    wait(client.move_file(id, &moved)).unwrap();
    let list = ListFilesQuery { path: "/srv/deep".to_owned(), depth: Some(9) };
    let list = wait(client.list_files(id, &list)).unwrap();
    let paths: Vec<&str> = list.iter().map(|file| file.path.as_str()).collect();
    let below = ["er", "link", "new", "new/file", "new/one"];
    assert_eq!(paths, below.map(|path| format!("/srv/deep/{path}")));
    let remove = |recursive| RemoveQuery { path: "/srv/deep".to_owned(), recursive };
    assert_eq!(refusal(wait(client.remove_file(id, &remove(false)))), Code::NotEmpty);
    wait(client.remove_file(id, &remove(true))).unwrap();
    assert_eq!(refusal(wait(client.stat(id, "/srv/deep"))), Code::FileNotFound);
}

fn a_part_of_a_file() {
    let sandbox = fresh("parts");
    sandbox.put("/srv/digits", "0123456789");
    let part = |first, last| {
        wait(async {
            let range = sandbox.node.client.read_range(&sandbox.id, "/srv/digits", first..last);
            let mut reader = range.await?;
            let mut bytes = Vec::new();
            while let Some(piece) = reader.next().await? {
                bytes.extend_from_slice(&piece);
            }
            Ok(String::from_utf8(bytes).expect("digits"))
        })
    };
    assert_eq!(part(3, 6).unwrap(), "345");
    assert_eq!(part(8, 100).unwrap(), "89");
    assert_eq!(refusal(part(10, 11)), Code::BadRange);
    let kernel = sandbox.get("/proc/uptime");
    assert!(kernel.contains('.'), "files without a size are read, too: {kernel:?}");
}

fn a_large_file() {
    let sandbox = fresh("large");
    let content: Vec<u8> = (0..LARGE).map(|at| (at / 251 + at % 251).to_le_bytes()[0]).collect();
    let expected = blake3::hash(&content);
    let client = &sandbox.node.client;
    let large = at("/srv/large");
    let upload = client.upload(&sandbox.id, &large, Cursor::new(content));
    assert_eq!(wait(upload).unwrap().size, LARGE as u64);
    let read = wait(async {
        let mut reader = client.read_file(&sandbox.id, "/srv/large").await?;
        assert_eq!(reader.length(), Some(LARGE as u64));
        let mut hasher = blake3::Hasher::new();
        while let Some(bytes) = reader.next().await? {
            hasher.update(&bytes);
        }
        Ok::<_, ramet_client::Error>(hasher.finalize())
    });
    assert_eq!(read.unwrap(), expected);
}

fn what_a_file_cannot() {
    let sandbox = fresh("refused");
    let (client, id) = (&sandbox.node.client, sandbox.id.as_str());
    assert_eq!(refusal(sandbox.try_get("/no/file")), Code::FileNotFound);
    assert_eq!(refusal(sandbox.try_get("/etc")), Code::IsADirectory);
    assert_eq!(refusal(sandbox.try_get("relative")), Code::BadRequest);
    assert_eq!(refusal(sandbox.try_put("/etc/passwd/x", "")), Code::NotADirectory);
    assert_eq!(refusal(sandbox.try_put("/proc/nothing/x", "")), Code::FileNotFound);
    let mode = WriteQuery { mode: Some("rwx".to_owned()), ..at("/srv/x") };
    assert_eq!(refusal(wait(client.write_file(id, &mode, ""))), Code::BadRequest);
    let owner = WriteQuery { owner: Some("no-such-user".to_owned()), ..at("/srv/x") };
    assert_eq!(refusal(wait(client.write_file(id, &owner, ""))), Code::NoSuchUser);
    assert_eq!(refusal(sandbox.try_get("/srv/x")), Code::FileNotFound, "nothing half written");
}
