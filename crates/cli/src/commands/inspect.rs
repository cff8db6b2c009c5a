//! `ramet inspect`: everything about a sandbox.

use ramet_client::api::{OnTimeout, Sandbox};

use crate::commands::volume;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Sheet};

const HELP: &str = "\
Examples:
  ramet inspect box
  ramet inspect box --json";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox
    sandbox: String,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let sandbox = context.client().await?.sandbox(&args.sandbox).await?;
    context.show(&sandbox, |sandbox| describe(sandbox, output::now_ms(), context.paint));
    Ok(())
}

/// Everything about a sandbox, as text.
pub fn describe(sandbox: &Sandbox, now_ms: u64, paint: Paint) -> String {
    let mut sheet = Sheet::default();
    sheet.line("name", paint.bold(&sandbox.name));
    sheet.line("id", &sandbox.id);
    sheet.line("state", paint.state(sandbox.state));
    stored(sandbox, &mut sheet);
    sheet.some("reason", sandbox.failure.as_ref().map(|failure| output::clean(&failure.reason)));
    sheet.line("owner", &sandbox.owner);
    sheet.line("age", output::age(sandbox.created_at_ms, now_ms));
    sheet.line("last request", format!("{} ago", output::age(sandbox.active_at_ms, now_ms)));
    sheet.line("template", &sandbox.template);
    sheet.some("parent", sandbox.parent.as_deref());
    sheet.some("commit", sandbox.commit.as_deref());
    let disk = output::bytes(u64::from(sandbox.disk_mib) << 20);
    sheet.line("shape", format!("{}x{}M+{disk}", sandbox.vcpus, sandbox.memory_mib));
    sheet.some("user", sandbox.user.as_deref());
    sheet.some("workdir", sandbox.workdir.as_deref());
    if !sandbox.labels.is_empty() {
        sheet.line("labels", output::pairs(&sandbox.labels));
    }
    for (key, value) in &sandbox.env {
        sheet.line("env", output::shorten(&format!("{key}={value}"), 200));
    }
    if !sandbox.secret_names.is_empty() {
        sheet.line("secrets", sandbox.secret_names.join(", "));
    }
    for one in &sandbox.volumes {
        let text = format!("{} at {}, {}", one.volume, one.path, volume::mode(one.mode));
        sheet.line("volume", text);
    }
    settings(sandbox, &mut sheet);
    sheet.finish()
}

/// Where it is while it is paused.
fn stored(sandbox: &Sandbox, sheet: &mut Sheet) {
    sheet.some("paused", output::place(sandbox));
    if let Some(stored) = &sandbox.stored {
        sheet.line("stored state", &stored.state);
        sheet.line("size", output::bytes(stored.logical_bytes));
        sheet.line("written", output::bytes(stored.written_bytes));
        sheet.line("stored at", output::date(stored.stored_at_ms));
    }
}

/// What `ramet set` changes.
fn settings(sandbox: &Sandbox, sheet: &mut Sheet) {
    let end = match sandbox.on_timeout {
        OnTimeout::Kill => "deleted",
        OnTimeout::Pause => "paused",
    };
    let limit = |seconds: u64| match seconds {
        0 => "off".to_owned(),
        seconds => format!("{}, then {end}", time(seconds)),
    };
    sheet.line("timeout", limit(sandbox.timeout_s));
    sheet.line("idle timeout", limit(sandbox.idle_timeout_s));
    sheet.line("auto-resume", if sandbox.auto_resume { "on" } else { "off" });
    let automatic = sandbox.auto_checkpoints.filter(|automatic| automatic.keep > 0);
    sheet.line(
        "auto-checkpoints",
        automatic.map_or("off".to_owned(), |automatic| {
            format!("the last {}, in at most {} MiB", automatic.keep, automatic.memory_mib)
        }),
    );
    sheet.line("cpu weight", sandbox.cpu_weight.to_string());
    let or_off = |number: u32, unit: &str| match number {
        0 => "off".to_owned(),
        number => format!("{number}{unit}"),
    };
    sheet.line("cpu quota", or_off(sandbox.cpu_quota_percent, "%"));
    sheet.line("pids", or_off(sandbox.pids_max, ""));
}

/// A time as it is given to options.
fn time(seconds: u64) -> String {
    let units = [(86400, 'd'), (3600, 'h'), (60, 'm')];
    let (factor, unit) =
        units.into_iter().find(|(factor, _)| seconds.is_multiple_of(*factor)).unwrap_or((1, 's'));
    format!("{}{unit}", seconds / factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use ramet_client::api::{AutoCheckpoints, State};

    #[test]
    fn where_it_is_and_its_settings_are_shown() {
        let mut sandbox = samples::sandbox("sbx-1", "box", None);
        let text = describe(&sandbox, 60_000, Paint::plain());
        assert!(text.contains("auto-resume      off\nauto-checkpoints off\n"), "{text}");
        assert!(!text.contains("paused "), "{text}");
        sandbox.state = State::Paused;
        sandbox.stored = Some(samples::stored());
        sandbox.idle_timeout_s = 600;
        sandbox.on_timeout = OnTimeout::Pause;
        sandbox.auto_checkpoints = Some(AutoCheckpoints { keep: 5, memory_mib: 512 });
        let text = describe(&sandbox, 60_000, Paint::plain());
        for line in [
            "paused           in store, warm, 12 MiB\n",
            "size             340 MiB\n",
            "timeout          off\n",
            "idle timeout     10m, then paused\n",
            "auto-checkpoints the last 5, in at most 512 MiB\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }

    #[test]
    fn times_are_as_they_are_given() {
        assert_eq!([90, 600, 7200, 86400].map(time), ["90s", "10m", "2h", "1d"]);
    }
}
