//! `ramet fork`: copies of a sandbox, all from one instant.

use ramet_client::api::groups::ForkNetwork;
use ramet_client::api::{ForkRequest, Forked};

use crate::commands::net::Network;
use crate::commands::network;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};
use crate::values;

const HELP: &str = "\
The source goes on; each copy has its memory, disk and processes, and an identity of its own.
A source that holds secrets is only copied with --inherit-secrets or --drop-secrets. Copies reach
what the source may, or less; connections to the outside live on in the source only. The exit code
is 1 if a copy failed; the others are there.

Examples:
  ramet fork box
  ramet fork box 4
  ramet fork box --name left --name right
  ramet fork box --from before-migration
  ramet fork box 8 --label attempt=1 --env SEED=7 --secret API_KEY
  ramet fork box --drop-secrets --egress none
  ramet fork --group shop 3";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox, or network with --group
    sandbox: String,
    /// How many; 1, or as many as there are names
    count: Option<u32>,
    /// Name of a copy, one for each
    #[arg(long, short)]
    name: Vec<String>,
    /// Label of the copies, instead of the source's
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    label: Vec<(String, String)>,
    /// Added to the environment of the source
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    env: Vec<(String, String)>,
    /// Secret of the copies; KEY alone takes it from here
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = values::pair_or_own)]
    secret: Vec<(String, String)>,
    /// From a moment that was kept, by name or id, instead of from now
    #[arg(long, value_name = "CHECKPOINT")]
    from: Option<String>,
    /// Copy all members of a network at one instant; each copy is a network of its own
    #[arg(long, conflicts_with_all = ["from", "label", "env", "secret", "egress", "allow"])]
    group: bool,
    /// Leave the random state of interpreters as it was
    #[arg(long)]
    deterministic: bool,
    /// Give the copies the edge rules of the source, too
    #[arg(long, help_heading = "Network")]
    keep_edge: bool,
    #[command(flatten)]
    secrets: values::Secrets,
    #[command(flatten)]
    network: Network,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<u8, Failure> {
    if args.group {
        let request = ForkNetwork {
            count: args.count,
            names: Some(args.name).filter(|names| !names.is_empty()),
            inherit_secrets: args.secrets.said(),
            keep_edge: args.keep_edge,
            deterministic: args.deterministic,
        };
        return network::fork(&args.sandbox, &request, context).await;
    }
    let request = ForkRequest {
        count: args.count,
        names: Some(args.name).filter(|names| !names.is_empty()),
        labels: Some(values::map(&args.label)).filter(|labels| !labels.is_empty()),
        env: values::map(&args.env),
        secrets: values::map(&args.secret),
        checkpoint: args.from,
        deterministic: args.deterministic,
        inherit_secrets: args.secrets.said(),
        network: args.network.request(),
        keep_edge: args.keep_edge,
        ..ForkRequest::default()
    };
    let forked = context.client().await?.fork(&args.sandbox, &request).await?;
    context.show(&forked, |forked| draw(forked, context.paint));
    Ok(u8::from(forked.children.iter().any(|child| child.error.is_some())))
}

fn draw(forked: &Forked, paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "ID", "READY"]);
    for child in &forked.children {
        match (&child.sandbox, &child.error) {
            (Some(sandbox), _) => table.row(vec![
                sandbox.name.clone(),
                sandbox.id.clone(),
                child.ready_us.map(output::micros).unwrap_or_default(),
            ]),
            (None, Some(problem)) => table.row(vec![
                paint.red("failed"),
                "-".into(),
                output::shorten(&problem.detail, 100),
            ]),
            (None, None) => table.row(vec![paint.red("failed"), "-".into(), "-".into()]),
        }
    }
    let times = format!(
        "the source lost {}; all of it took {}",
        output::micros(forked.pause_us),
        output::micros(forked.total_us)
    );
    format!("{}{}\n", table.draw(paint), paint.dim(&times))
}
