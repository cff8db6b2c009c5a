//! `ramet files`: look at and change files in a sandbox.

use clap::Subcommand;
use ramet_client::api::{
    Change, File, FileKind, ListFilesQuery, MkdirRequest, MoveRequest, RemoveQuery, WatchQuery,
};
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};
use crate::values::{self, RemotePath};

const HELP: &str = "\
Paths are written SANDBOX:PATH; a relative one counts from /root. Contents: see `ramet cp`.

Examples:
  ramet files ls box:/root
  ramet files stat box:/etc/passwd
  ramet files mkdir box:/data/new
  ramet files mv box:/data/a /data/b
  ramet files rm -r box:/data
  ramet files watch -r box:/root     changes, as they happen; Ctrl-C ends it";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List a directory
    Ls {
        /// SANDBOX:PATH
        #[arg(value_parser = values::remote_path)]
        path: RemotePath,
        /// Levels below
        #[arg(long, short, default_value_t = 1)]
        depth: u32,
    },
    /// Show what a path is
    Stat {
        /// SANDBOX:PATH
        #[arg(value_parser = values::remote_path)]
        path: RemotePath,
    },
    /// Make a directory, and its parents
    Mkdir {
        /// SANDBOX:PATH
        #[arg(value_parser = values::remote_path)]
        path: RemotePath,
        /// Permission bits in octal
        #[arg(long, short)]
        mode: Option<String>,
    },
    /// Give a file another path; a file there is replaced
    Mv {
        /// SANDBOX:PATH
        #[arg(value_parser = values::remote_path)]
        from: RemotePath,
        /// Absolute path in the same sandbox
        to: String,
    },
    /// Remove a file or directory
    Rm {
        /// SANDBOX:PATH
        #[arg(value_parser = values::remote_path)]
        path: RemotePath,
        /// Also directories that are not empty
        #[arg(long, short)]
        recursive: bool,
    },
    /// Show changes as they happen, one a line
    Watch {
        /// SANDBOX:PATH
        #[arg(value_parser = values::remote_path)]
        path: RemotePath,
        /// Also below its directories
        #[arg(long, short)]
        recursive: bool,
    },
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    match args.action {
        Action::Ls { path, depth } => {
            let query = ListFilesQuery { path: path.path, depth: Some(depth) };
            let entries = client.list_files(&path.sandbox, &query).await?;
            context.show(&entries, |entries| draw(entries, context.paint));
        }
        Action::Stat { path } => {
            let file = client.stat(&path.sandbox, &path.path).await?;
            context.show(&file, |file| draw(std::slice::from_ref(file), context.paint));
        }
        Action::Mkdir { path, mode } => {
            let request = MkdirRequest { path: path.path, mode, owner: None };
            let file = client.mkdir(&path.sandbox, &request).await?;
            context.show(&file, |file| format!("{}\n", file.path));
        }
        Action::Mv { from, to } => {
            let to = same_sandbox(&from, &to)?;
            let request = MoveRequest { from: from.path, to };
            client.move_file(&from.sandbox, &request).await?;
            context.show(&json!({ "path": request.to }), |_| format!("{}\n", request.to));
        }
        Action::Rm { path, recursive } => {
            let query = RemoveQuery { path: path.path, recursive };
            client.remove_file(&path.sandbox, &query).await?;
            context.show(&json!({ "removed": query.path }), |_| String::new());
        }
        Action::Watch { path, recursive } => {
            let query = WatchQuery { path: path.path, recursive };
            let mut watch = client.watch_files(&path.sandbox, &query).await?;
            while let Some(change) = watch.next().await? {
                show_change(&change, context);
            }
            return Err(Failure::new("the node has ended the watch"));
        }
    }
    Ok(())
}

/// One line, also as JSON: there is no end to wait for.
fn show_change(change: &Change, context: &Context) {
    let kind = serde_json::to_value(change.kind).unwrap_or_default();
    let kind = kind.as_str().unwrap_or("unknown");
    if context.json {
        output::line(&json!({ "kind": kind, "path": change.path }).to_string());
    } else {
        output::line(&format!("{kind:<10}  {}", output::shorten(&change.path, 4096)));
    }
}

/// The new path, with or without the sandbox before it.
fn same_sandbox(from: &RemotePath, to: &str) -> Result<String, Failure> {
    match values::remote_path(to) {
        Ok(remote) if remote.sandbox == from.sandbox => Ok(remote.path),
        Ok(_) => Err(Failure::usage("a file cannot be moved to another sandbox")
            .next("`ramet cp` copies it there")),
        Err(_) if to.starts_with('/') => Ok(to.to_owned()),
        Err(_) => Err(Failure::usage(format!("{to} is no absolute path"))),
    }
}

fn draw(entries: &[File], paint: Paint) -> String {
    let mut table = Table::new(&["MODE", "OWNER", "SIZE", "PATH"]);
    for file in entries {
        let kind = match file.kind {
            FileKind::File => '-',
            FileKind::Directory => 'd',
            FileKind::Symlink => 'l',
            FileKind::Other => '?',
        };
        let target = file.target.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default();
        table.row(vec![
            format!("{kind}{:04o}", file.mode & 0o7777),
            format!("{}:{}", file.uid, file.gid),
            output::bytes(file.size),
            output::shorten(&format!("{}{target}", file.path), 4096),
        ]);
    }
    table.draw(paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_stays_in_its_sandbox() {
        let from = values::remote_path("box:/a").unwrap();
        assert_eq!(same_sandbox(&from, "/b").unwrap(), "/b");
        assert_eq!(same_sandbox(&from, "box:/b").unwrap(), "/b");
        assert!(same_sandbox(&from, "other:/b").is_err());
        assert!(same_sandbox(&from, "b").is_err());
    }
}
