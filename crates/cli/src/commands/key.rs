//! `ramet key`: keys that sign what is moved.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use ramet_store::SigningKey;
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;

const HELP: &str = "\
Keys are those of minisign. A node that is started with --sign-key signs what it gives away; one
that is started with --trust takes only what one of the keys has signed.

Examples:
  ramet key generate team
  rametd --sign-key team.key …
  rametd --trust team.pub …";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a pair of keys: NAME.key to sign with, which is secret, and NAME.pub to verify with
    Generate {
        /// Path of the files, without their endings
        #[arg(default_value = "ramet")]
        name: PathBuf,
    },
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let Action::Generate { name } = &args.action;
    let (secret, public) = SigningKey::generate()?;
    let with = |end: &str| {
        let mut path = name.clone().into_os_string();
        path.push(end);
        PathBuf::from(path)
    };
    let (secret_path, public_path) = (with(".key"), with(".pub"));
    write(&secret_path, &secret, 0o600)?;
    if let Err(failure) = write(&public_path, &public, 0o644) {
        // Half a pair is of no use; why it is half matters more than whether it could be removed.
        let _removed = std::fs::remove_file(&secret_path);
        return Err(failure);
    }
    let line = public.lines().last().unwrap_or("").to_owned();
    let value = json!({ "secret": secret_path, "public": public_path, "key": line });
    context.show(&value, |_| {
        format!("{}  {}  {line}\n", secret_path.display(), public_path.display())
    });
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    made.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    })
    .map_err(|error| Failure::because(format!("cannot write {}", path.display()), &error))
}
