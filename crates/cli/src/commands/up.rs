//! `ramet up`: start the node, or be the keeper of one.

use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::node::home::Home;
use crate::node::keeper::{self, Plan};
use crate::node::start::{self, Options};
use crate::output;

const HELP: &str = "\
Where KVM runs guest kernels, rametd runs on this machine. Elsewhere it runs in an emulated machine
with KVM of its own: the same in everything but speed. `ramet doctor` says which and why.

Examples:
  ramet up
  ramet up --host-memory 8G      more memory where an emulated machine is needed
  ramet up --foreground          under a service manager; SIGTERM stops it";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Stay here, and stop on SIGTERM or Ctrl-C
    #[arg(long)]
    foreground: bool,
    /// Leave the session of whoever started this
    #[arg(long, hide = true, requires = "foreground")]
    detached: bool,
    #[command(flatten)]
    options: Options,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    if context.elsewhere() {
        return Err(Failure::usage("RAMET_URL names a node that is not started here")
            .next("unset RAMET_URL to use a node of this machine"));
    }
    let home = Home::find()?;
    if args.foreground {
        return foreground(home, args.options, args.detached).await;
    }
    let started = start::start(&home, &args.options).await?;
    let record = &started.record;
    let value = json!({
        "url": record.url,
        "token_file": record.token_file,
        "mode": record.mode,
        "pid": record.pid,
        "log": home.log_file(),
        "already": started.already,
        "seconds": started.time.as_secs_f64(),
    });
    context.show(&value, |_| {
        let mode = match record.mode {
            ramet_client::api::HostMode::Hardware => "hardware",
            ramet_client::api::HostMode::Software => "software host",
        };
        let how = if started.already {
            "was up already".to_owned()
        } else {
            format!("is up after {}", output::seconds(started.time))
        };
        format!(
            "The node {how}: {} ({mode})\n  token  {}\n  log    {}\nTry: ramet new box\n",
            context.paint.bold(&record.url),
            record.token_file.display(),
            home.log_file().display()
        )
    });
    Ok(())
}

async fn foreground(home: Home, options: Options, detached: bool) -> Result<(), Failure> {
    if detached {
        // Fails only if this process leads a session already, which is as good.
        let _ = rustix::process::setsid();
    }
    home.make()?;
    let lock = home.lock().map_err(|error| Failure::because("cannot lock the state", &error))?;
    let Some(_lock) = lock else {
        return Err(Failure::new("a node is running already").next("`ramet down` stops it"));
    };
    home.forget();
    if detached {
        home.empty_log();
    }
    let plan = Plan::make(home, options).await?;
    let work = tokio::task::spawn_blocking(move || keeper::keep(&plan));
    work.await.map_err(|error| Failure::because("the keeper broke", &error))?
}
