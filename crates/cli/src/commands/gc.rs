//! `ramet gc`: remove what nothing needs from the store.

use ramet_client::api::{GcReport, GcRequest};

use crate::context::Context;
use crate::failure::Failure;
use crate::output;

const HELP: &str = "\
What no commit and no paused sandbox needs is condemned first and removed when its grace time is
over, so nothing that is being written is lost.

Examples:
  ramet uncommit cm-0f3a
  ramet gc --dry-run
  ramet gc
  ramet gc --copies";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    /// Also the copies of states on this host: they are cold then, and come from the store when needed
    #[arg(long)]
    copies: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let request = GcRequest { dry_run: args.dry_run, copies: args.copies };
    let report = context.client().await?.store_gc(&request).await?;
    context.show(&report, |report| draw(report, args.dry_run));
    Ok(())
}

fn draw(report: &GcReport, dry_run: bool) -> String {
    let GcReport { kept, condemned, removed, removed_bytes } = *report;
    let verb = if dry_run { "would be removed" } else { "removed" };
    let size = output::bytes(removed_bytes);
    format!(
        "{removed} objects {verb}, {size}; {condemned} wait for the end of their grace time; {kept} are needed\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_go_is_told_apart_from_what_went() {
        let report = GcReport { kept: 3, condemned: 2, removed: 1, removed_bytes: 2048 };
        let expected =
            "1 objects removed, 2 KiB; 2 wait for the end of their grace time; 3 are needed\n";
        assert_eq!(draw(&report, false), expected);
        assert!(draw(&report, true).starts_with("1 objects would be removed"));
    }
}
