//! `ramet run`: one command in a fresh sandbox, which is gone afterwards.

use ramet_client::api::ExecRequest;
use ramet_client::{Client, Exited};

use crate::commands::exec::{self, Place};
use crate::commands::new::{self, Shape};
use crate::context::Context;
use crate::failure::Failure;
use crate::values::{self, Line};
use crate::{output, stream, terminal};

const HELP: &str = "\
One word is a line for the shell; several are a program and its arguments.
The exit code is that of the process; 124 if its time was over, 125 if ramet itself failed.

Examples:
  ramet run -- python3 -c 'print(6 * 7)'
  ramet run 'uname -a && df -h'
  ramet run -it bash
  ramet run --memory 2G --keep -- make test";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    place: Place,
    /// Pass standard input on
    #[arg(long, short)]
    interactive: bool,
    /// Run it on a terminal
    #[arg(long, short)]
    terminal: bool,
    /// Do not delete the sandbox
    #[arg(long)]
    keep: bool,
    /// What to run
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<u8, Failure> {
    if context.json && (args.terminal || args.interactive) {
        return Err(Failure::usage("--json collects output; it goes with neither -i nor -t"));
    }
    if args.terminal {
        terminal::needed()?;
    }
    let client = context.client().await?;
    let created = new::create(&client, &args.shape.request(None)).await?;
    let id = created.sandbox.id;
    let result = work(&client, &id, &args, context).await;
    if args.keep {
        eprintln!("kept: {id}");
        return result;
    }
    let deleted = client.delete(&id).await;
    // What the command did matters more than that its sandbox could not be deleted.
    let code = result?;
    deleted?;
    Ok(code)
}

async fn work(client: &Client, id: &str, args: &Args, context: &Context) -> Result<u8, Failure> {
    let line = Line::new(&args.command);
    let env = values::map(&[]);
    if context.json {
        let request: ExecRequest = args.place.request(line, env);
        let result = client.exec(id, &request).await?;
        output::json(&result);
        return Ok(stream::exit_code(&Exited {
            exit_code: result.exit_code,
            signal: result.signal,
            timed_out: result.timed_out,
            dropped_bytes: 0,
        }));
    }
    let standard = exec::standard(args.interactive, args.terminal);
    let process = client.exec_stream(id, args.place.stream(line, env, standard)).await?;
    stream::run(process, standard).await
}
