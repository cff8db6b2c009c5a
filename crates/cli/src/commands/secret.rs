//! `ramet secret`: secrets that the node sets on the way out.

use std::io::{IsTerminal, Read};

use clap::Subcommand;
use ramet_client::api::network::Secret;
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};

const HELP: &str = "\
The value stays in the node: sandboxes have edge rules that name it, and the node puts it into a
header of their requests to one host. It is never shown again. A new value holds at once.

Examples:
  ramet secret set API_KEY < key.txt
  printf %s \"$API_KEY\" | ramet secret set API_KEY
  ramet new box --allow api.example.org --edge 'api.example.org:Authorization=Bearer {secret:API_KEY}'
  ramet secret ls
  ramet secret rm API_KEY";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Set a secret to what is read from standard input, or typed
    Set {
        /// Name: letters, digits, _ and -
        name: String,
    },
    /// List secrets, without their values
    Ls,
    /// Remove secrets that no edge rule names
    Rm {
        /// Names
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Set { name } => {
            let value = read(&name)?;
            let secret = context.client().await?.put_secret(&name, &value).await?;
            context.show(&secret, |secret| format!("{}\n", context.paint.bold(&secret.name)));
        }
        Action::Ls => {
            let list = context.client().await?.secrets().await?;
            context.show(&list, |list| draw(list, output::now_ms(), context.paint));
        }
        Action::Rm { names } => {
            let client = context.client().await?;
            for name in &names {
                client.delete_secret(name).await?;
            }
            context.show(&json!({ "removed": names }), |_| String::new());
        }
    }
    Ok(())
}

/// The value, without the newline that most tools end with.
fn read(name: &str) -> Result<String, Failure> {
    let cannot = |error: std::io::Error| Failure::because("cannot read the value", &error);
    let stdin = std::io::stdin();
    let mut text = String::new();
    if stdin.is_terminal() {
        eprint!("{name} (not shown): ");
        let typed = crate::terminal::hidden(|| stdin.read_line(&mut text));
        eprintln!();
        typed.map_err(cannot)?;
    } else {
        stdin.lock().read_to_string(&mut text).map_err(cannot)?;
    }
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    match value {
        "" => Err(Failure::usage("the value is empty").next("pass it on standard input")),
        value => Ok(value.to_owned()),
    }
}

fn draw(list: &[Secret], now_ms: u64, paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "SET", "USED BY"]);
    for secret in list {
        let users =
            if secret.used_by.is_empty() { "-".to_owned() } else { secret.used_by.join(", ") };
        table.row(vec![
            secret.name.clone(),
            output::age(secret.updated_at_ms, now_ms),
            output::shorten(&users, 80),
        ]);
    }
    table.draw(paint)
}
