//! `ramet cp`: copy files and directories to, from and between sandboxes.
//!
//! A file goes as it is, a directory as an archive that is unpacked while it is packed: nothing is held
//! whole. Modes, symlinks, hard links and holes are kept, owners between sandboxes; what comes from a sandbox is
//! the user's here. Devices are refused, and here fifos, too; sockets are left out.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures_util::stream;
use ramet_archive::{Owner, Pack, Specials, Unpack};
use ramet_client::api::{
    Code, FileKind, ListFilesQuery, ReadArchiveQuery, WriteArchiveQuery, WriteQuery,
};
use ramet_client::{Client, Error, FileReader};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::task::spawn_blocking;
use tokio_util::io::{StreamReader, SyncIoBridge};

use crate::context::Context;
use crate::failure::{FAILED, Failure, NOT_FOUND};
use crate::output;
use crate::values::{self, RemotePath};

/// Bytes of an archive between packing and sending.
const PIPE: usize = 256 << 10;

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
    let directory = is_directory(&client, &source).await?;
    let into = args.destination.ends_with('/') || is_directory(&client, &destination).await?;
    let target = if into { inside(&destination, source.name()) } else { destination };
    let Copied { files, bytes } = match directory {
        true => copy_tree(&client, &source, &target).await?,
        false => copy_file(&client, &source, &target).await?,
    };
    context.show(&json!({ "files": files, "bytes": bytes }), |_| {
        format!("{files} files, {}\n", output::bytes(bytes))
    });
    Ok(())
}

/// What was copied.
struct Copied {
    files: u64,
    bytes: u64,
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

fn at(remote: &RemotePath, name: &str) -> RemotePath {
    let path = format!("{}/{name}", remote.path.trim_end_matches('/'));
    RemotePath { sandbox: remote.sandbox.clone(), path }
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

/// A directory, as an archive that is unpacked while it is packed.
async fn copy_tree(client: &Client, from: &Place, to: &Place) -> Result<Copied, Failure> {
    match (from, to) {
        (Place::Local(from), Place::Remote(to)) => {
            let (archive, writer) = tokio::io::duplex(PIPE);
            let (from, writer) = (from.clone(), SyncIoBridge::new(writer));
            // Numbers of users here mean nothing there.
            let options = Pack { one_filesystem: false, owner: Some((0, 0)) };
            let packing = spawn_blocking(move || ramet_archive::pack(&from, writer, options));
            let unpacked = write_archive(client, to, archive).await;
            match joined(packing.await)? {
                // The node says why it took no more.
                Err(ramet_archive::Error::Stream(_)) | Ok(_) => unpacked,
                Err(error) => Err(Failure::because("cannot pack", &error)),
            }
        }
        (Place::Remote(from), Place::Local(to)) => {
            let archive = SyncIoBridge::new(Box::pin(read_archive(client, from).await?));
            let to = to.clone();
            // The guest is not trusted with anything here but plain files.
            let options =
                Unpack { owner: Owner::Own, mode_mask: 0o777, specials: Specials::Refuse };
            let unpacking = spawn_blocking(move || ramet_archive::unpack(archive, &to, options));
            let counts = joined(unpacking.await)?;
            let counts = counts.map_err(|error| Failure::because("cannot unpack", &error))?;
            Ok(Copied { files: counts.files, bytes: counts.bytes })
        }
        (Place::Remote(from), Place::Remote(to)) => {
            write_archive(client, to, read_archive(client, from).await?).await
        }
        _ => Err(Failure::usage("neither path is in a sandbox")),
    }
}

fn joined<T>(result: Result<T, tokio::task::JoinError>) -> Result<T, Failure> {
    result.map_err(|error| Failure::because("copying broke off", &error))
}

async fn read_archive(
    client: &Client,
    from: &RemotePath,
) -> Result<impl AsyncRead + Send + 'static, Failure> {
    let query = ReadArchiveQuery { path: from.path.clone(), ..ReadArchiveQuery::default() };
    Ok(readable(client.read_archive(&from.sandbox, &query).await?))
}

async fn write_archive(
    client: &Client,
    to: &RemotePath,
    archive: impl AsyncRead + Send + 'static,
) -> Result<Copied, Failure> {
    let query = WriteArchiveQuery { path: to.path.clone(), ..WriteArchiveQuery::default() };
    let unpacked = client.write_archive(&to.sandbox, &query, archive).await?;
    Ok(Copied { files: unpacked.files, bytes: unpacked.bytes })
}

/// A file with its mode.
async fn copy_file(client: &Client, from: &Place, to: &Place) -> Result<Copied, Failure> {
    let bytes = match (from, to) {
        (Place::Local(from), Place::Remote(to)) => {
            let (file, mode) = open(from).await?;
            upload(client, to, Some(mode), file).await?
        }
        (Place::Remote(from), Place::Remote(to)) => {
            let mode = mode_of(client, from).await?;
            let reader = client.read_file(&from.sandbox, &from.path).await?;
            upload(client, to, mode, readable(reader)).await?
        }
        (Place::Remote(from), Place::Local(to)) => download(client, from, to).await?,
        _ => return Err(Failure::usage("neither path is in a sandbox")),
    };
    Ok(Copied { files: 1, bytes })
}

async fn open(path: &Path) -> Result<(tokio::fs::File, u32), Failure> {
    let cannot = |error: std::io::Error| {
        let exit = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { FAILED };
        Failure::because(format!("cannot read {}", path.display()), &error).exit(exit)
    };
    // Looked at before it is opened: a fifo would wait.
    let metadata = tokio::fs::metadata(path).await.map_err(cannot)?;
    if !metadata.is_file() {
        let text = format!("{} is neither file nor directory", path.display());
        return Err(Failure::new(text));
    }
    let file = tokio::fs::File::open(path).await.map_err(cannot)?;
    Ok((file, metadata.permissions().mode() & 0o7777))
}

/// The mode of a file in a sandbox; none of a symlink, whose own means nothing.
async fn mode_of(client: &Client, from: &RemotePath) -> Result<Option<u32>, Failure> {
    let file = client.stat(&from.sandbox, &from.path).await?;
    Ok((file.kind == FileKind::File).then_some(file.mode & 0o7777))
}

async fn upload(
    client: &Client,
    to: &RemotePath,
    mode: Option<u32>,
    content: impl AsyncRead + Send + 'static,
) -> Result<u64, Failure> {
    let mode = mode.map(|mode| format!("{mode:o}"));
    let query = WriteQuery { path: to.path.clone(), mode, ..WriteQuery::default() };
    Ok(client.upload(&to.sandbox, &query, content).await?.size)
}

async fn download(client: &Client, from: &RemotePath, to: &Path) -> Result<u64, Failure> {
    let cannot =
        |error: std::io::Error| Failure::because(format!("cannot write {}", to.display()), &error);
    let mode = mode_of(client, from).await?;
    let mut reader = client.read_file(&from.sandbox, &from.path).await?;
    let mut file = tokio::fs::File::create(to).await.map_err(cannot)?;
    let mut size = 0;
    while let Some(bytes) = reader.next().await? {
        file.write_all(&bytes).await.map_err(cannot)?;
        size += bytes.len() as u64;
    }
    file.flush().await.map_err(cannot)?;
    if let Some(mode) = mode {
        let permissions = std::fs::Permissions::from_mode(mode & 0o777);
        file.set_permissions(permissions).await.map_err(cannot)?;
    }
    Ok(size)
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
    StreamReader::new(Box::pin(pieces))
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
        assert_eq!(at(&target, "b").path, "/root/a/b");
    }
}
