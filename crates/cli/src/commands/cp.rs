//! `ramet cp`: copy files and directories to, from and between sandboxes.
//!
//! A source is read as a list of entries (directories, files, symlinks), and each is written at the
//! destination. Modes and symlinks are kept, contents are streamed. Devices, fifos and sockets
//! are refused, not left out.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures_util::stream;
use ramet_client::api::{Code, FileKind, ListFilesQuery, MkdirRequest, WriteQuery};
use ramet_client::{Client, Error, FileReader};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWriteExt};

use crate::context::Context;
use crate::failure::{Failure, NOT_FOUND};
use crate::output;
use crate::values::{self, RemotePath};

/// As deep as the node lists.
const DEPTH_MAX: u32 = 64;

const HELP: &str = "\
A path in a sandbox is SANDBOX:PATH; a relative one counts from /root. A local path with a colon is
written ./a:b. `-` is standard input or output. A destination that is a directory, or ends with a
slash, gets the source inside.

Examples:
  ramet cp ./project box:/root/
  ramet cp box:/root/result.json .
  ramet cp a:/data b:/data
  ramet cp box:/etc/os-release -";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// From where
    source: String,
    /// To where
    destination: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Standard,
    Local(PathBuf),
    Remote(RemotePath),
}

impl Place {
    fn parse(text: &str) -> Self {
        if text == "-" {
            return Self::Standard;
        }
        values::remote_path(text).map_or_else(|_| Self::Local(PathBuf::from(text)), Self::Remote)
    }

    fn name(&self) -> Option<String> {
        let path = match self {
            Self::Standard => return None,
            Self::Local(path) => path.as_path(),
            Self::Remote(remote) => Path::new(&remote.path),
        };
        Some(path.file_name()?.to_string_lossy().into_owned())
    }
}

/// Something below the source; the source itself has an empty path.
#[derive(Debug)]
struct Entry {
    path: String,
    kind: Kind,
    mode: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    File { size: u64 },
    Symlink(String),
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let (source, destination) = (Place::parse(&args.source), Place::parse(&args.destination));
    if !matches!((&source, &destination), (Place::Remote(_), _) | (_, Place::Remote(_))) {
        return Err(Failure::usage("neither path is in a sandbox")
            .next("write one of them as SANDBOX:PATH"));
    }
    let client = context.client().await?;
    if source == Place::Standard || destination == Place::Standard {
        return pipe(&client, &source, &destination).await;
    }
    let entries = list(&client, &source).await?;
    let into = args.destination.ends_with('/') || is_directory(&client, &destination).await?;
    let target = if into { inside(&destination, source.name()) } else { destination };
    let (mut files, mut bytes) = (0_u64, 0_u64);
    for entry in &entries {
        copy(&client, &source, &target, entry).await?;
        if let Kind::File { size } = entry.kind {
            (files, bytes) = (files + 1, bytes + size);
        }
    }
    context.show(&json!({ "files": files, "bytes": bytes }), |_| {
        format!("{files} files, {}\n", output::bytes(bytes))
    });
    Ok(())
}

/// Standard input into a file, or a file to standard output.
async fn pipe(client: &Client, source: &Place, destination: &Place) -> Result<(), Failure> {
    match (source, destination) {
        (Place::Remote(remote), _) => {
            let mut reader = client.read_file(&remote.sandbox, &remote.path).await?;
            let mut stdout = tokio::io::stdout();
            while let Some(bytes) = reader.next().await? {
                let written = stdout.write_all(&bytes).await;
                written.map_err(|error| Failure::because("cannot write the output", &error))?;
            }
            let flushed = stdout.flush().await;
            flushed.map_err(|error| Failure::because("cannot write the output", &error))
        }
        (_, Place::Remote(remote)) => {
            let query = WriteQuery { path: remote.path.clone(), ..WriteQuery::default() };
            client.upload(&remote.sandbox, &query, tokio::io::stdin()).await?;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn inside(place: &Place, name: Option<String>) -> Place {
    let Some(name) = name else { return place.clone() };
    match place {
        Place::Standard => Place::Standard,
        Place::Local(path) => Place::Local(path.join(name)),
        Place::Remote(remote) => Place::Remote(at(remote, &name)),
    }
}

fn at(remote: &RemotePath, path: &str) -> RemotePath {
    let whole = if path.is_empty() {
        remote.path.clone()
    } else {
        format!("{}/{path}", remote.path.trim_end_matches('/'))
    };
    RemotePath { sandbox: remote.sandbox.clone(), path: whole }
}

async fn is_directory(client: &Client, place: &Place) -> Result<bool, Failure> {
    match place {
        Place::Standard => Ok(false),
        Place::Local(path) => Ok(path.is_dir()),
        Place::Remote(remote) => match client.stat(&remote.sandbox, &remote.path).await {
            Ok(file) if file.kind == FileKind::Symlink => {
                let query = ListFilesQuery { path: remote.path.clone(), depth: None };
                Ok(client.list_files(&remote.sandbox, &query).await.is_ok())
            }
            Ok(file) => Ok(file.kind == FileKind::Directory),
            Err(error) if error.code() == Some(Code::FileNotFound) => Ok(false),
            Err(error) => Err(error.into()),
        },
    }
}

/// Everything that is copied, directories before what is in them.
async fn list(client: &Client, source: &Place) -> Result<Vec<Entry>, Failure> {
    match source {
        Place::Standard => Ok(Vec::new()),
        Place::Local(path) => {
            let mut entries = Vec::new();
            list_local(path, "", &mut entries)?;
            Ok(entries)
        }
        Place::Remote(remote) => list_remote(client, remote).await,
    }
}

fn list_local(root: &Path, below: &str, entries: &mut Vec<Entry>) -> Result<(), Failure> {
    let path = if below.is_empty() { root.to_owned() } else { root.join(below) };
    let cannot = |error: std::io::Error| {
        let exit = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { 1 };
        Failure::because(format!("cannot read {}", path.display()), &error).exit(exit)
    };
    // What is named is followed; what is found below is kept as it is.
    let metadata = if below.is_empty() { path.metadata() } else { path.symlink_metadata() };
    let metadata = metadata.map_err(cannot)?;
    let mode = metadata.permissions().mode() & 0o7777;
    let kind = if metadata.is_dir() {
        Kind::Directory
    } else if metadata.is_symlink() {
        Kind::Symlink(text(&std::fs::read_link(&path).map_err(cannot)?)?)
    } else if metadata.is_file() {
        Kind::File { size: metadata.len() }
    } else {
        return Err(special(&path.display().to_string()));
    };
    let directory = kind == Kind::Directory;
    entries.push(Entry { path: below.to_owned(), kind, mode });
    if directory {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(cannot)? {
            names.push(text(Path::new(&entry.map_err(cannot)?.file_name()))?);
        }
        names.sort();
        for name in names {
            let below = if below.is_empty() { name } else { format!("{below}/{name}") };
            list_local(root, &below, entries)?;
        }
    }
    Ok(())
}

fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::new(format!("{} is no UTF-8", path.display())))
}

fn special(path: &str) -> Failure {
    Failure::new(format!("{path} is neither file, directory nor symlink"))
}

async fn list_remote(client: &Client, remote: &RemotePath) -> Result<Vec<Entry>, Failure> {
    let root = client.stat(&remote.sandbox, &remote.path).await?;
    let mut entries = vec![entry_of(&root, "")?];
    if root.kind == FileKind::Directory {
        let query = ListFilesQuery { path: remote.path.clone(), depth: Some(DEPTH_MAX) };
        for file in client.list_files(&remote.sandbox, &query).await? {
            let below = file.path.strip_prefix(remote.path.trim_end_matches('/'));
            let below = below.unwrap_or(&file.path).trim_start_matches('/');
            if !below.is_empty() {
                entries.push(entry_of(&file, below)?);
            }
        }
    }
    Ok(entries)
}

fn entry_of(file: &ramet_client::api::File, below: &str) -> Result<Entry, Failure> {
    let kind = match file.kind {
        FileKind::Directory => Kind::Directory,
        FileKind::File => Kind::File { size: file.size },
        FileKind::Symlink => Kind::Symlink(file.target.clone().unwrap_or_default()),
        FileKind::Other => return Err(special(&file.path)),
    };
    // The other side is not trusted with paths here.
    if below.split('/').any(|part| part == "..") {
        return Err(Failure::new(format!("{} leads out of what is copied", file.path)));
    }
    Ok(Entry { path: below.to_owned(), kind, mode: file.mode & 0o7777 })
}

async fn copy(
    client: &Client,
    source: &Place,
    target: &Place,
    entry: &Entry,
) -> Result<(), Failure> {
    match target {
        Place::Remote(remote) => {
            let to = at(remote, &entry.path);
            write_remote(client, source, &to, entry).await
        }
        Place::Local(path) => {
            let to = if entry.path.is_empty() { path.clone() } else { path.join(&entry.path) };
            write_local(client, source, &to, entry).await
        }
        Place::Standard => Ok(()),
    }
}

async fn write_remote(
    client: &Client,
    source: &Place,
    to: &RemotePath,
    entry: &Entry,
) -> Result<(), Failure> {
    let mode = Some(format!("{:o}", entry.mode));
    let query = WriteQuery { path: to.path.clone(), mode: mode.clone(), ..WriteQuery::default() };
    match (&entry.kind, source) {
        (Kind::Directory, _) => {
            let request = MkdirRequest { path: to.path.clone(), mode, owner: None };
            client.mkdir(&to.sandbox, &request).await?;
        }
        (Kind::Symlink(target), _) => {
            let query = WriteQuery { symlink: Some(target.clone()), mode: None, ..query };
            client.write_file(&to.sandbox, &query, Vec::new()).await?;
        }
        (Kind::File { .. }, Place::Remote(from)) => {
            let from = at(from, &entry.path);
            let reader = client.read_file(&from.sandbox, &from.path).await?;
            client.upload(&to.sandbox, &query, readable(reader)).await?;
        }
        (Kind::File { .. }, Place::Local(from)) => {
            let from = if entry.path.is_empty() { from.clone() } else { from.join(&entry.path) };
            let cannot = format!("cannot read {}", from.display());
            let file = tokio::fs::File::open(&from).await;
            let file = file.map_err(|error| Failure::because(cannot, &error))?;
            client.upload(&to.sandbox, &query, file).await?;
        }
        (Kind::File { .. }, Place::Standard) => {}
    }
    Ok(())
}

/// A file on its way here, as something that can be read.
fn readable(reader: FileReader) -> impl AsyncRead + Send + 'static {
    let pieces = stream::unfold(reader, |mut reader| async move {
        let failed = |error: Error| std::io::Error::other(error);
        match reader.next().await {
            Ok(None) => None,
            Ok(Some(bytes)) => Some((Ok(bytes), reader)),
            Err(error) => Some((Err(failed(error)), reader)),
        }
    });
    tokio_util::io::StreamReader::new(Box::pin(pieces))
}

async fn write_local(
    client: &Client,
    source: &Place,
    to: &Path,
    entry: &Entry,
) -> Result<(), Failure> {
    let cannot =
        |error: std::io::Error| Failure::because(format!("cannot write {}", to.display()), &error);
    match &entry.kind {
        Kind::Directory => tokio::fs::create_dir_all(to).await.map_err(cannot)?,
        Kind::Symlink(target) => {
            match tokio::fs::remove_file(to).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(cannot(error));
                }
                _ => {}
            }
            tokio::fs::symlink(target, to).await.map_err(cannot)?;
            return Ok(());
        }
        Kind::File { .. } => {
            let Place::Remote(from) = source else { return Ok(()) };
            let from = at(from, &entry.path);
            let mut reader = client.read_file(&from.sandbox, &from.path).await?;
            let mut file = tokio::fs::File::create(to).await.map_err(cannot)?;
            while let Some(bytes) = reader.next().await? {
                file.write_all(&bytes).await.map_err(cannot)?;
            }
            file.flush().await.map_err(cannot)?;
        }
    }
    // A directory that may not be written cannot be filled.
    let mode = if entry.kind == Kind::Directory { entry.mode | 0o700 } else { entry.mode };
    let permissions = std::fs::Permissions::from_mode(mode & 0o777);
    tokio::fs::set_permissions(to, permissions).await.map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        assert_eq!(Place::parse("-"), Place::Standard);
        assert_eq!(Place::parse("./a:b"), Place::Local("./a:b".into()));
        assert!(matches!(Place::parse("box:/a"), Place::Remote(_)));
        assert_eq!(Place::parse("box:/a/b/").name().as_deref(), Some("b"));
    }

    #[test]
    fn what_goes_into_a_directory_keeps_its_name() {
        let Place::Remote(target) = inside(&Place::parse("box:/root/"), Some("a".into())) else {
            panic!("another place")
        };
        assert_eq!(target.path, "/root/a");
        assert_eq!(at(&target, "b/c").path, "/root/a/b/c");
        assert_eq!(at(&target, "").path, "/root/a");
    }

    #[test]
    fn a_local_tree_is_listed_with_links_and_modes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/f"), "abc").unwrap();
        std::os::unix::fs::symlink("f", dir.path().join("d/l")).unwrap();
        let mut entries = Vec::new();
        list_local(dir.path(), "", &mut entries).unwrap();
        let found: Vec<_> =
            entries.iter().map(|entry| (entry.path.as_str(), &entry.kind)).collect();
        let link = Kind::Symlink("f".into());
        let expected = [
            ("", &Kind::Directory),
            ("d", &Kind::Directory),
            ("d/f", &Kind::File { size: 3 }),
            ("d/l", &link),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_path_that_leads_out_is_refused() {
        let file = ramet_client::api::File {
            path: "/a/../../x".into(),
            kind: FileKind::File,
            size: 0,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified_ns: 0,
            target: None,
        };
        assert!(entry_of(&file, "../../x").is_err());
        assert!(entry_of(&file, "x").is_ok());
    }
}
