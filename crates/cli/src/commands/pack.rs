//! `ramet pack`: a commit or template in a file.

use std::io::IsTerminal;
use std::path::PathBuf;

use ramet_client::FileReader;
use serde_json::json;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::transit::What;

const HELP: &str = "\
The file holds everything that is needed to go on from it on another node, the image below it
included, and a checksum. With --have it is smaller, and can only be unpacked where those commits
are.

Examples:
  ramet pack good -o good.pack
  ramet pack cm-0f3a --have cm-77aa -o - | ssh there ramet unpack -
  ramet pack --template python -o python.pack";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Commit, tag or branch; with --template a template
    what: String,
    /// File to write, which must not exist; - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// It is a template
    #[arg(long, short)]
    template: bool,
    /// Id of a commit that the receiver has; can be given several times
    #[arg(long, value_name = "COMMIT")]
    have: Vec<String>,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let to_stdout = args.output.as_os_str() == "-";
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Failure::usage("a pack is nothing for a terminal; name a file"));
    }
    let client = context.client().await?;
    let content = What::new(&args.what, args.template).pack(&client, &args.have).await?;
    if to_stdout {
        let mut out = tokio::io::stdout();
        pour(content, &mut out).await?;
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        Failure::because(format!("cannot write {}", args.output.display()), &error)
    };
    let mut file = tokio::fs::File::create_new(&args.output).await.map_err(failed)?;
    let written = async {
        let bytes = pour(content, &mut file).await?;
        file.sync_all().await.map_err(failed)?;
        Ok::<u64, Failure>(bytes)
    };
    let bytes = match written.await {
        Ok(bytes) => bytes,
        Err(failure) => {
            // Half a pack is of no use; why it is half matters more than whether it could be removed.
            let _removed = tokio::fs::remove_file(&args.output).await;
            return Err(failure);
        }
    };
    let path = args.output.display().to_string();
    context.show(&json!({ "file": path, "bytes": bytes }), |_| {
        format!("{path}  {}\n", context.paint.dim(&output::bytes(bytes)))
    });
    Ok(())
}

async fn pour(
    mut content: FileReader,
    out: &mut (impl AsyncWrite + Unpin),
) -> Result<u64, Failure> {
    let failed = |error: std::io::Error| Failure::because("cannot write the pack", &error);
    let mut progress = Progress::new();
    progress.show("packing");
    let (details, mut bytes) = (progress.details(), 0);
    while let Some(piece) = content.next().await? {
        out.write_all(&piece).await.map_err(failed)?;
        bytes += piece.len() as u64;
        details(&output::bytes(bytes));
    }
    out.flush().await.map_err(failed)?;
    progress.clear();
    Ok(bytes)
}
