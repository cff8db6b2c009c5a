//! `ramet ls`: list sandboxes.

use clap::ValueEnum;
use ramet_client::api::{ListQuery, Sandbox, State};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};

const HELP: &str = "\
A paused sandbox is in the store, warm if this host can let it go on without fetching it, with the
bytes that were written for it; or in the host's memory.

Examples:
  ramet ls
  ramet ls --state paused --label team=a
  ramet rm $(ramet ls -q --label attempt)";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Only with this label; KEY for any value
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    label: Option<String>,
    /// Only in this state; all but gone when absent
    #[arg(long, value_enum)]
    state: Option<StateName>,
    /// Only ids
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum StateName {
    Running,
    Paused,
    Failed,
    Gone,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let state = args.state.map(|state| match state {
        StateName::Running => State::Running,
        StateName::Paused => State::Paused,
        StateName::Failed => State::Failed,
        StateName::Gone => State::Gone,
    });
    let query = ListQuery { label: args.label.clone(), state, ..ListQuery::default() };
    let list = context.client().await?.list_all(&query).await?;
    if args.quiet && !context.json {
        for sandbox in &list {
            output::line(&sandbox.id);
        }
        return Ok(());
    }
    context.show(&list, |list| draw(list, output::now_ms(), context.paint));
    Ok(())
}

fn draw(list: &[Sandbox], now_ms: u64, paint: Paint) -> String {
    if list.is_empty() {
        return "No sandboxes. Try: ramet new box\n".to_owned();
    }
    let mut table = Table::new(&["NAME", "ID", "STATE", "SHAPE", "AGE", "PARENT", "LABELS"]);
    for sandbox in list {
        let parent = sandbox.parent.as_deref().unwrap_or("-");
        let parent =
            list.iter().find(|other| other.id == parent).map_or(parent, |other| &other.name);
        table.row(vec![
            sandbox.name.clone(),
            sandbox.id.clone(),
            state(sandbox, paint),
            format!("{}x{}M", sandbox.vcpus, sandbox.memory_mib),
            output::age(sandbox.created_at_ms, now_ms),
            parent.to_owned(),
            output::pairs(&sandbox.labels),
        ]);
    }
    let mut text = table.draw(paint);
    for sandbox in list {
        if let Some(failure) = &sandbox.failure {
            text.push_str(&format!("{}: {}\n", sandbox.name, failure.reason));
        }
    }
    text
}

/// The state, and of a paused one where it is.
fn state(sandbox: &Sandbox, paint: Paint) -> String {
    let state = paint.state(sandbox.state);
    match output::place(sandbox) {
        Some(place) => format!("{state} {}", paint.dim(&place)),
        None => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{sandbox, stored};

    #[test]
    fn parents_are_shown_by_name() {
        let list = [sandbox("sbx-1", "box", None), sandbox("sbx-2", "try", Some("sbx-1"))];
        let expected = "\
NAME  ID     STATE    SHAPE   AGE  PARENT  LABELS
box   sbx-1  running  1x512M  1m   -       k=v
try   sbx-2  running  1x512M  1m   box     k=v
";
        assert_eq!(draw(&list, 60_000, Paint::plain()), expected);
    }

    #[test]
    fn a_paused_one_is_somewhere() {
        let mut list = [sandbox("sbx-1", "box", None), sandbox("sbx-2", "try", None)];
        list[0].state = State::Paused;
        list[1].state = State::Paused;
        list[1].stored = Some(stored());
        let expected = "\
NAME  ID     STATE                          SHAPE   AGE  PARENT  LABELS
box   sbx-1  paused in memory               1x512M  1m   -       k=v
try   sbx-2  paused in store, warm, 12 MiB  1x512M  1m   -       k=v
";
        assert_eq!(draw(&list, 60_000, Paint::plain()), expected);
    }
}
