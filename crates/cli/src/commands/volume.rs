//! `ramet volume`: directories that outlive sandboxes.

use clap::Subcommand;
use ramet_client::api::{AttachVolume, CreateVolume, Sandbox, Volume, VolumeMode};
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Sheet, Table};
use crate::values;

const HELP: &str = "\
A volume is a directory that outlives sandboxes. Many sandboxes can have it read-only, or one
read-write. What was synced in it is kept, whatever ends then.

Forks of a running sandbox share what it reads. What it writes is a snapshot in them, and in
everything made of a checkpoint, a commit or a sandbox in the store: the volume as it was at that
instant, copy-on-write, and no volume any more. A sandbox that writes a volume can be paused and
resumed, but neither rewound nor promoted; detach it first.

Examples:
  ramet volume create data --size 10G
  ramet new box --volume data:/mnt/data
  ramet volume attach box data:/mnt/data:ro
  ramet volume detach box data
  ramet volume ls
  ramet volume rm data";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make an empty volume
    Create {
        /// Name: lower-case letters, digits and hyphens
        name: String,
        /// Room for files, like 512M or 10G; 1G without it
        #[arg(long, value_name = "SIZE", value_parser = values::memory_mib)]
        size: Option<u32>,
    },
    /// List volumes, what they take, and who has them
    Ls,
    /// Show a volume
    Inspect {
        /// Volume
        volume: String,
    },
    /// Remove volumes that no sandbox has, and everything in them
    Rm {
        /// Volumes
        #[arg(required = true)]
        volumes: Vec<String>,
    },
    /// Give a running sandbox a volume
    Attach {
        /// Sandbox
        sandbox: String,
        /// Which volume, where, and whether it is only read
        #[arg(value_name = "VOLUME:PATH[:ro]", value_parser = values::volume)]
        volume: AttachVolume,
    },
    /// Take a volume from a running sandbox
    Detach {
        /// Sandbox
        sandbox: String,
        /// Volume, or where it is
        volume: String,
    },
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    match args.action {
        Action::Create { name, size } => {
            let volume = client.create_volume(&CreateVolume { name, size_mib: size }).await?;
            context.show(&volume, |volume| {
                let size = context.paint.dim(&output::bytes(u64::from(volume.size_mib) << 20));
                format!("{}  {size}\n", context.paint.bold(&volume.name))
            });
        }
        Action::Ls => {
            let list = client.volumes().await?;
            context.show(&list, |list| draw(list, output::now_ms(), context.paint));
        }
        Action::Inspect { volume } => {
            let volume = client.volume(&volume).await?;
            context.show(&volume, |volume| describe(volume, output::now_ms()));
        }
        Action::Rm { volumes } => {
            for volume in &volumes {
                client.delete_volume(volume).await?;
            }
            context.show(&json!({ "removed": volumes }), |_| String::new());
        }
        Action::Attach { sandbox, volume } => {
            let sandbox = client.attach_volume(&sandbox, &volume).await?;
            context.show(&sandbox, lines);
        }
        Action::Detach { sandbox, volume } => {
            let sandbox = client.detach_volume(&sandbox, &volume).await?;
            context.show(&sandbox, lines);
        }
    }
    Ok(())
}

/// Volumes of a sandbox, a line each.
fn lines(sandbox: &Sandbox) -> String {
    let line = |one: &ramet_client::api::AttachedVolume| {
        format!("{}  {}  {}\n", one.volume, one.path, mode(one.mode))
    };
    sandbox.volumes.iter().map(line).collect()
}

/// How a sandbox has a volume.
pub fn mode(mode: VolumeMode) -> &'static str {
    match mode {
        VolumeMode::ReadOnly => "read-only",
        VolumeMode::ReadWrite => "read-write",
        VolumeMode::Snapshot => "snapshot",
    }
}

fn draw(list: &[Volume], now_ms: u64, paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "SIZE", "TAKES", "AGE", "USED BY"]);
    for volume in list {
        let users: Vec<String> = volume
            .used_by
            .iter()
            .map(|user| format!("{} ({})", user.sandbox_name, mode(user.mode)))
            .collect();
        table.row(vec![
            volume.name.clone(),
            output::bytes(u64::from(volume.size_mib) << 20),
            output::bytes(volume.stored_bytes),
            output::age(volume.created_at_ms, now_ms),
            if users.is_empty() { "-".to_owned() } else { users.join(", ") },
        ]);
    }
    table.draw(paint)
}

fn describe(volume: &Volume, now_ms: u64) -> String {
    let mut sheet = Sheet::default();
    sheet.line("name", &volume.name);
    sheet.line("id", &volume.id);
    sheet.line("owner", &volume.owner);
    sheet.line("size", output::bytes(u64::from(volume.size_mib) << 20));
    sheet.line("takes", output::bytes(volume.stored_bytes));
    sheet.line("age", output::age(volume.created_at_ms, now_ms));
    for user in &volume.used_by {
        let text = format!("{} at {}, {}", user.sandbox_name, user.path, mode(user.mode));
        sheet.line("used by", text);
    }
    sheet.finish()
}
