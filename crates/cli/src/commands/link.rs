//! `ramet link`: ways to a port for people without a token.

use std::time::Duration;

use clap::Subcommand;
use ramet_client::api::network::{CreateLink, Link};
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};
use crate::values;

const HELP: &str = "\
Whoever has the address can use it: HTTP and WebSocket go through the node to the port. It is shown
this once. It ends after a day unless said otherwise, when it is removed, and with its sandbox.

Examples:
  ramet link new box 8000
  ramet link new box 8000 --expires 1h
  ramet link new box 8000 --public         for as long as the sandbox is there
  ramet link ls box
  ramet link rm box ln-0f3a";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a link
    New {
        /// Sandbox
        sandbox: String,
        /// TCP port in it
        port: u16,
        /// How long it holds, at most 30d; 1d without it
        #[arg(long, value_name = "TIME", value_parser = values::duration)]
        expires: Option<Duration>,
        /// It may hold for ever
        #[arg(long)]
        public: bool,
    },
    /// List links, without their addresses
    Ls {
        /// Sandbox
        sandbox: String,
    },
    /// End links
    Rm {
        /// Sandbox
        sandbox: String,
        /// Links
        #[arg(required = true)]
        links: Vec<String>,
    },
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    match args.action {
        Action::New { sandbox, port, expires, public } => {
            let expires_s = expires.map(|time| time.as_secs());
            let request = CreateLink { port, expires_s, public };
            let link = client.create_link(&sandbox, &request).await?;
            let url = client.address(link.path.as_deref().unwrap_or_default());
            context.show(&json!({ "url": url, "link": link }), |_| {
                let end = match link.expires_at_ms {
                    Some(end) => format!("until {}", output::date(end)),
                    None => "as long as the sandbox is there".to_owned(),
                };
                format!("{url}\n{}\n", context.paint.dim(&format!("{}, {end}", link.id)))
            });
        }
        Action::Ls { sandbox } => {
            let list = client.links(&sandbox).await?;
            context.show(&list, |list| draw(list, context.paint));
        }
        Action::Rm { sandbox, links } => {
            for link in &links {
                client.delete_link(&sandbox, link).await?;
            }
            context.show(&json!({ "removed": links }), |_| String::new());
        }
    }
    Ok(())
}

fn draw(list: &[Link], paint: Paint) -> String {
    let mut table = Table::new(&["ID", "PORT", "MADE", "ENDS"]);
    for link in list {
        table.row(vec![
            link.id.clone(),
            link.port.to_string(),
            output::date(link.created_at_ms),
            link.expires_at_ms.map_or_else(|| "-".to_owned(), output::date),
        ]);
    }
    table.draw(paint)
}
