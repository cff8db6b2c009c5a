//! `ramet token`: who may use the node.

use clap::Subcommand;
use ramet_client::api::network::{Allow, CreateToken, Token};
use serde_json::json;

use crate::commands::net::Egress;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};

const HELP: &str = "\
Sandboxes belong to a principal; each token is of one. With --egress or --allow a token has a cap:
what is made, forked or changed with it reaches no more than that, whatever is asked for. Only the
administrator makes tokens.

Examples:
  ramet token new --principal ann
  ramet token new --principal agent --egress packages --allow api.example.org:443/tcp
  ramet token ls
  ramet token rm tok-0f3a...";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a token, which is shown this once
    New {
        /// Whose it is
        #[arg(long, value_name = "NAME")]
        principal: String,
        #[command(flatten)]
        egress: Egress,
    },
    /// List tokens, without themselves
    Ls,
    /// Have tokens no longer accepted
    Rm {
        /// Their ids
        #[arg(required = true)]
        tokens: Vec<String>,
    },
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    match args.action {
        Action::New { principal, egress } => {
            let Egress { egress, allow } = egress;
            let made = client.create_token(&CreateToken { principal, egress, allow }).await?;
            context.show(&made, |made| format!("{}\n", made.token));
        }
        Action::Ls => {
            let list = client.tokens().await?;
            context.show(&list, |list| draw(list, output::now_ms(), context.paint));
        }
        Action::Rm { tokens } => {
            for token in &tokens {
                client.delete_token(token).await?;
            }
            context.show(&json!({ "removed": tokens }), |_| String::new());
        }
    }
    Ok(())
}

fn draw(list: &[Token], now_ms: u64, paint: Paint) -> String {
    let mut table = Table::new(&["ID", "PRINCIPAL", "AGE", "CAP"]);
    for token in list {
        let cap = match &token.cap {
            None => "-".to_owned(),
            Some(cap) if cap.allow.is_empty() => "nothing".to_owned(),
            Some(cap) => cap.allow.iter().map(Allow::to_string).collect::<Vec<_>>().join(" "),
        };
        table.row(vec![
            token.id.clone(),
            token.principal.clone(),
            output::age(token.created_at_ms, now_ms),
            output::shorten(&cap, 80),
        ]);
    }
    table.draw(paint)
}
