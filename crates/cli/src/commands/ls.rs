//! `ramet ls`: list sandboxes.

use clap::ValueEnum;
use ramet_client::api::{ListQuery, Sandbox, State};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};

const HELP: &str = "\
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
        let labels: Vec<String> =
            sandbox.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let parent = sandbox.parent.as_deref().unwrap_or("-");
        let parent =
            list.iter().find(|other| other.id == parent).map_or(parent, |other| &other.name);
        table.row(vec![
            sandbox.name.clone(),
            sandbox.id.clone(),
            paint.state(sandbox.state),
            format!("{}x{}M", sandbox.vcpus, sandbox.memory_mib),
            output::age(sandbox.created_at_ms, now_ms),
            parent.to_owned(),
            labels.join(","),
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

#[cfg(test)]
mod tests {
    use super::*;
    use ramet_client::api::OnTimeout;
    use std::collections::BTreeMap;

    fn sandbox(id: &str, name: &str, parent: Option<&str>) -> Sandbox {
        Sandbox {
            id: id.into(),
            name: name.into(),
            state: State::Running,
            owner: "admin".into(),
            labels: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
            template: "base".into(),
            vcpus: 1,
            memory_mib: 512,
            disk_mib: 4096,
            user: None,
            workdir: None,
            parent: parent.map(str::to_owned),
            env: BTreeMap::new(),
            secret_names: Vec::new(),
            created_at_ms: 0,
            active_at_ms: 0,
            timeout_s: 0,
            idle_timeout_s: 0,
            on_timeout: OnTimeout::Kill,
            cpu_weight: 100,
            cpu_quota_percent: 0,
            pids_max: 0,
            auto_checkpoints: None,
            failure: None,
        }
    }

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
}
