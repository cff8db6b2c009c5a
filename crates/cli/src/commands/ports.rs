//! `ramet ports`: what listens in a sandbox.

use ramet_client::api::Port;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Paint, Table};

const HELP: &str = "\
`ramet forward` brings a TCP port here; HTTP also goes through the node, at
/v1/sandboxes/SANDBOX/ports/PORT/.

Examples:
  ramet ports box
  ramet ports box --json";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox
    sandbox: String,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let ports = context.client().await?.ports(&args.sandbox).await?;
    context.show(&ports, |ports| draw(ports, context.paint));
    Ok(())
}

fn draw(ports: &[Port], paint: Paint) -> String {
    let mut table = Table::new(&["PORT", "PROTOCOL", "ADDRESS"]);
    for port in ports {
        table.row(vec![port.port.to_string(), port.protocol.clone(), port.address.clone()]);
    }
    table.draw(paint)
}
