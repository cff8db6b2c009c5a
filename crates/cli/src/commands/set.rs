//! `ramet set`: change what a living sandbox is like.

use std::time::Duration;

use clap::{ArgGroup, ValueEnum};
use ramet_client::api::{AutoCheckpoints, Sandbox, UpdateSandbox};

use crate::commands::inspect;
use crate::commands::new::End;
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::values;

const HELP: &str = "\
What is not named stays. Limits of time count from the creation or the last resume.

Examples:
  ramet set box --auto-resume on --idle-timeout 10m --on-timeout pause
  ramet set box --auto-checkpoints 10
  ramet set box --auto-checkpoints off --timeout off
  ramet set box --name other --label team=a --unlabel attempt
  ramet set box --cpu-weight 50 --cpu-quota 200";

const CHANGES: [&str; 10] = [
    "name",
    "label",
    "unlabel",
    "timeout",
    "idle_timeout",
    "on_timeout",
    "cpu_weight",
    "cpu_quota",
    "auto_checkpoints",
    "auto_resume",
];

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP, override_usage = "ramet set [OPTIONS] <SANDBOX>")]
#[command(group(ArgGroup::new("changes").required(true).multiple(true).args(CHANGES)))]
pub struct Args {
    /// Sandbox
    sandbox: String,
    /// New name; the guest's host name stays until the next rewind or promote
    #[arg(long)]
    name: Option<String>,
    /// Label that it gets; others stay
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    label: Vec<(String, String)>,
    /// Label that it loses
    #[arg(long, value_name = "KEY")]
    unlabel: Vec<String>,
    /// End it this long after its creation or last resume
    #[arg(long, value_name = "TIME|off", value_parser = values::duration_or_off)]
    timeout: Option<Duration>,
    /// End it after this long without a request to it
    #[arg(long, value_name = "TIME|off", value_parser = values::duration_or_off)]
    idle_timeout: Option<Duration>,
    /// What the end of its time is
    #[arg(long, value_enum)]
    on_timeout: Option<End>,
    /// Share of the host's processors against other sandboxes
    #[arg(long, value_name = "N")]
    cpu_weight: Option<u32>,
    /// Most processor time, in percent of one processor
    #[arg(long, value_name = "PERCENT|off", value_parser = values::number_or_off)]
    cpu_quota: Option<u32>,
    /// Checkpoint it before each exec and keep the last N of these; those that are too many go
    #[arg(long, value_name = "N|off", value_parser = values::number_or_off)]
    auto_checkpoints: Option<u32>,
    /// Most memory of these checkpoints, like 512M or 2G
    #[arg(long, value_name = "SIZE", requires = "auto_checkpoints", value_parser = values::memory_mib)]
    auto_checkpoints_memory: Option<u32>,
    /// When it is paused, let the first request that needs it resume it
    #[arg(long, value_enum, value_name = "on|off")]
    auto_resume: Option<Switch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let now = client.sandbox(&args.sandbox).await?;
    let changed = client.update(&now.id, &request(args, &now)).await?;
    context.show(&changed, |sandbox| inspect::describe(sandbox, output::now_ms(), context.paint));
    Ok(())
}

/// What is to change of a sandbox that is like this now.
fn request(args: &Args, now: &Sandbox) -> UpdateSandbox {
    let labelled = !args.label.is_empty() || !args.unlabel.is_empty();
    let labels = labelled.then(|| {
        let mut labels = now.labels.clone();
        labels.retain(|key, _| !args.unlabel.contains(key));
        labels.extend(args.label.iter().cloned());
        labels
    });
    let memory_mib = args.auto_checkpoints_memory.map(u64::from);
    let memory_mib = memory_mib.or(now.auto_checkpoints.map(|automatic| automatic.memory_mib));
    let memory_mib = memory_mib.unwrap_or_else(AutoCheckpoints::memory_mib);
    UpdateSandbox {
        name: args.name.clone(),
        labels,
        timeout_s: args.timeout.map(|time| time.as_secs()),
        idle_timeout_s: args.idle_timeout.map(|time| time.as_secs()),
        on_timeout: args.on_timeout.map(Into::into),
        cpu_weight: args.cpu_weight,
        cpu_quota_percent: args.cpu_quota,
        auto_checkpoints: args.auto_checkpoints.map(|keep| AutoCheckpoints { keep, memory_mib }),
        auto_resume: args.auto_resume.map(|switch| switch == Switch::On),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use clap::{Args as _, FromArgMatches};
    use std::collections::BTreeMap;

    fn parsed(words: &[&str]) -> Result<UpdateSandbox, clap::Error> {
        let matches = Args::augment_args(clap::Command::new("set"))
            .try_get_matches_from([&["set", "box"], words].concat())?;
        let mut now = samples::sandbox("sbx-1", "box", None);
        now.auto_checkpoints = Some(AutoCheckpoints { keep: 3, memory_mib: 77 });
        Ok(request(&Args::from_arg_matches(&matches)?, &now))
    }

    #[test]
    fn only_what_is_named_changes() {
        let request = parsed(&["--auto-resume", "on"]).unwrap();
        assert_eq!(request, UpdateSandbox { auto_resume: Some(true), ..UpdateSandbox::default() });
        let request = parsed(&["--timeout", "off", "--idle-timeout", "10m"]).unwrap();
        assert_eq!((request.timeout_s, request.idle_timeout_s), (Some(0), Some(600)));
        assert_eq!(request.on_timeout, None);
    }

    #[test]
    fn nothing_to_change_is_refused() {
        assert!(parsed(&[]).is_err());
        assert!(parsed(&["--auto-checkpoints-memory", "1G"]).is_err());
        for wrong in [["--auto-resume", "maybe"], ["--timeout", "never"], ["--cpu-quota", "-1"]] {
            assert!(parsed(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn other_labels_stay() {
        let labels = |pairs: &[(&str, &str)]| -> Option<BTreeMap<String, String>> {
            Some(
                pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            )
        };
        assert_eq!(parsed(&["--label", "a=b"]).unwrap().labels, labels(&[("a", "b"), ("k", "v")]));
        assert_eq!(parsed(&["--unlabel", "k"]).unwrap().labels, labels(&[]));
        assert_eq!(parsed(&["--name", "x"]).unwrap().labels, None);
    }

    #[test]
    fn the_memory_of_checkpoints_stays_unless_it_is_named() {
        let automatic = |words: &[&str]| parsed(words).unwrap().auto_checkpoints.unwrap();
        let off = automatic(&["--auto-checkpoints", "off"]);
        assert_eq!((off.keep, off.memory_mib), (0, 77));
        let on = automatic(&["--auto-checkpoints", "5", "--auto-checkpoints-memory", "1G"]);
        assert_eq!((on.keep, on.memory_mib), (5, 1024));
    }
}
