//! `ramet ports`: what listens in a sandbox, and waiting for it.

use std::time::Duration;

use clap::Subcommand;
use ramet_client::api::Port;
use ramet_client::api::network::PortWaitQuery;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Paint, Table};
use crate::values;

const HELP: &str = "\
`ramet forward` brings a TCP port here; HTTP also goes through the node, at
/v1/sandboxes/SANDBOX/ports/PORT/, and without a token by `ramet link`.

Examples:
  ramet ports box
  ramet ports wait box 8000
  ramet ports wait box 8000 --path /health --timeout 2m
  ramet ports box --json";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    /// Sandbox
    #[arg(required = true)]
    sandbox: Option<String>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Wait until something listens on a port, or answers there
    Wait {
        /// Sandbox
        sandbox: String,
        /// TCP port in it
        port: u16,
        /// Also wait until a GET of this path is answered with a status below 500
        #[arg(long, value_name = "PATH")]
        path: Option<String>,
        /// How long, at most 10m
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::duration)]
        timeout: Duration,
    },
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    match (&args.action, &args.sandbox) {
        (Some(Action::Wait { sandbox, port, path, timeout }), _) => {
            let query = PortWaitQuery { timeout_s: Some(timeout.as_secs()), path: path.clone() };
            let ready = context.client().await?.wait_port(sandbox, *port, &query).await?;
            context.show(&ready, |_| String::new());
        }
        (None, Some(sandbox)) => {
            let ports = context.client().await?.ports(sandbox).await?;
            context.show(&ports, |ports| draw(ports, context.paint));
        }
        (None, None) => return Err(Failure::usage("name a sandbox")),
    }
    Ok(())
}

fn draw(ports: &[Port], paint: Paint) -> String {
    let mut table = Table::new(&["PORT", "PROTOCOL", "ADDRESS"]);
    for port in ports {
        table.row(vec![port.port.to_string(), port.protocol.clone(), port.address.clone()]);
    }
    table.draw(paint)
}
