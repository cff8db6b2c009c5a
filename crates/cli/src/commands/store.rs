//! `ramet store`: what is kept, what it takes, and whether it is whole.

use clap::Subcommand;
use ramet_client::api::{CheckReport, CheckRequest, StoreUsage};

use crate::context::Context;
use crate::failure::{FAILED, Failure};
use crate::output::{self, Paint, Sheet};

const HELP: &str = "\
Commits and paused sandboxes are in the store. What several of them have in common is kept once.
The exit code of a check is 1 if something is damaged and was not repaired.

Examples:
  ramet store
  ramet store check
  ramet store check --deep --repair
  ramet gc";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Look whether everything is there
    Check {
        /// Also read and verify every byte
        #[arg(long)]
        deep: bool,
        /// Replace what is damaged or missing from copies on this host
        #[arg(long)]
        repair: bool,
    },
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<u8, Failure> {
    let client = context.client().await?;
    let Some(Action::Check { deep, repair }) = args.action else {
        let usage = client.store_usage().await?;
        context.show(&usage, describe);
        return Ok(0);
    };
    let report = client.store_check(&CheckRequest { deep, repair }).await?;
    context.show(&report, |report| draw(report, repair, context.paint));
    Ok(if left(&report) == 0 { 0 } else { FAILED })
}

/// How much is still damaged.
fn left(report: &CheckReport) -> u64 {
    let damage = u64::try_from(report.damage.len()).unwrap_or(u64::MAX);
    damage.saturating_sub(report.repaired)
}

fn draw(report: &CheckReport, repair: bool, paint: Paint) -> String {
    let mut text = String::new();
    for damage in &report.damage {
        text.push_str(&format!("{} {}\n", paint.red("damaged:"), output::clean(damage)));
    }
    let told = match (report.damage.len(), left(report)) {
        (0, _) => "nothing is damaged".to_owned(),
        (all, 0) => format!("{all} were damaged, all of them repaired"),
        (all, left) if repair => format!("{all} were damaged, {left} could not be repaired"),
        (all, _) => format!("{all} damaged; --repair replaces what this host has copies of"),
    };
    format!("{text}{} objects checked; {told}\n", report.checked)
}

fn describe(usage: &StoreUsage) -> String {
    let mut sheet = Sheet::default();
    sheet.line("location", &usage.location);
    sheet.line("commits", usage.commits.to_string());
    sheet.line("paused", usage.paused.to_string());
    sheet.line("logical size", output::bytes(usage.logical_bytes));
    let ratio = ratio(usage).map(|ratio| format!(", {ratio} times less")).unwrap_or_default();
    sheet.line("stored", format!("{}{ratio}", output::bytes(usage.stored_bytes)));
    sheet.line("cached here", output::bytes(usage.cache_bytes));
    sheet.finish()
}

/// How much smaller it is for keeping everything once, compressed.
fn ratio(usage: &StoreUsage) -> Option<String> {
    let tenths = usage.logical_bytes.saturating_mul(10).checked_div(usage.stored_bytes)?;
    Some(format!("{}.{}", tenths / 10, tenths % 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_once_is_counted_once() {
        let mut usage = StoreUsage {
            location: "file:///var/lib/ramet/store".into(),
            commits: 7,
            paused: 2,
            logical_bytes: 2 << 30,
            stored_bytes: 300 << 20,
            cache_bytes: 0,
        };
        let expected = "\
location         file:///var/lib/ramet/store
commits          7
paused           2
logical size     2.0 GiB
stored           300 MiB, 6.8 times less
cached here      0 B
";
        assert_eq!(describe(&usage), expected);
        usage.stored_bytes = 0;
        assert!(describe(&usage).contains("stored           0 B\n"));
    }

    #[test]
    fn damage_that_is_left_is_counted() {
        let damage = vec!["chunk 00 of cm-1 is missing".to_owned(), "chunk 01\nof cm-2".to_owned()];
        let mut report = CheckReport { checked: 9, damage, repaired: 1 };
        assert_eq!(left(&report), 1);
        let expected = "\
damaged: chunk 00 of cm-1 is missing
damaged: chunk 01 of cm-2
9 objects checked; 2 were damaged, 1 could not be repaired
";
        assert_eq!(draw(&report, true, Paint::plain()), expected);
        assert!(draw(&report, false, Paint::plain()).contains("--repair"));
        report.repaired = 2;
        assert!(draw(&report, true, Paint::plain()).ends_with("all of them repaired\n"));
        report.damage.clear();
        assert!(left(&report) == 0 && draw(&report, true, Paint::plain()).contains("nothing"));
    }
}
