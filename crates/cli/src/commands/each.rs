//! `ramet each`: best of N in one line.
//!
//! One fork for each line of input, all of a batch from one instant, a command in each at the same
//! time, the results as a table. Then the forks are deleted, or the best one is promoted.
//!
//! Invariant: whatever happens, forks that are not to be kept are deleted before this ends.

use std::io::{BufRead, IsTerminal};

use clap::ValueEnum;
use futures_util::future::join_all;
use ramet_client::Client;
use ramet_client::api::{ExecResult, ForkRequest};
use serde::Serialize;

use crate::commands::exec::Place;
use crate::commands::promote;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};
use crate::values::{self, Line};

/// Characters of an item and of an output that are shown.
const ITEM_SHOWN: usize = 30;
const OUTPUT_SHOWN: usize = 60;

const HELP: &str = "\
One word is a line for the shell, several are a program and its arguments; {} is replaced by the
item, in a line for the shell as one word. The command also finds RAMET_ITEM and RAMET_INDEX (from 0)
in its environment. With --best the last line of the output has to be a number. The exit code is 1
if a command did not exit with 0, or nothing could be the best.

Examples:
  seq 8 | ramet each box -- 'python3 try.py --seed {}'
  ramet each box --items red,green,blue -- ./paint {}
  seq 8 | ramet each box --best max --promote -- 'python3 try.py --seed {}'
  ramet each box --count 4 --keep --json -- 'make test'";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox to fork
    sandbox: String,
    /// Items, instead of the lines of standard input
    #[arg(long, value_delimiter = ',', conflicts_with = "count")]
    items: Vec<String>,
    /// Items 0 to N-1, instead of the lines of standard input
    #[arg(long, short, value_name = "N")]
    count: Option<u32>,
    /// At most this many at once; as many as the node forks at once when absent
    #[arg(long, short, value_name = "N")]
    parallel: Option<u32>,
    /// Which score is the best; the score is the last line of the output
    #[arg(long, value_enum)]
    best: Option<Best>,
    /// Let the sandbox go on as the best one
    #[arg(long, requires = "best")]
    promote: bool,
    /// Do not delete the forks
    #[arg(long)]
    keep: bool,
    /// Environment of the commands
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    env: Vec<(String, String)>,
    /// Secret of the forks; KEY alone takes it from here
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = values::pair_or_own)]
    secret: Vec<(String, String)>,
    #[command(flatten)]
    secrets: values::Secrets,
    #[command(flatten)]
    place: Place,
    /// What to run
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Best {
    /// The lowest
    Min,
    /// The highest
    Max,
}

/// What became of an item.
#[derive(Debug, Serialize)]
struct Outcome {
    item: String,
    sandbox: Option<String>,
    name: Option<String>,
    result: Option<ExecResult>,
    error: Option<String>,
    score: Option<f64>,
    best: bool,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<u8, Failure> {
    let items = items(&args)?;
    let client = context.client().await?;
    let mut outcomes = Vec::new();
    let result = tokio::select! {
        result = work(&client, &args, &items, &mut outcomes) => result,
        _ = tokio::signal::ctrl_c() => Err(Failure::new("interrupted").exit(130)),
    };
    let best = args.best.and_then(|best| choose(&outcomes, best));
    let mut promoted = Ok(());
    if let Some(index) = best {
        outcomes[index].best = true;
        if let (true, Ok(()), Some(winner)) = (args.promote, &result, &outcomes[index].sandbox) {
            promoted = promote::promote(&client, &args.sandbox, winner, false, args.secrets)
                .await
                .map(drop);
            if promoted.is_ok() {
                outcomes[index].sandbox = None;
            }
        }
    }
    if !args.keep {
        delete(&client, &outcomes).await;
    }
    result?;
    context.show(&outcomes, |outcomes| draw(outcomes, args.best.is_some(), context.paint));
    promoted?;
    if let (true, None) = (args.best.is_some(), best) {
        return Err(Failure::new("no command gave a score")
            .next("the last line of its output has to be a number"));
    }
    if args.promote && !context.json {
        output::line(&format!("{} goes on as the best one", args.sandbox));
    }
    let failed = |outcome: &Outcome| !outcome.result.as_ref().is_some_and(|result| result.ok);
    Ok(u8::from(outcomes.iter().any(failed)))
}

fn items(args: &Args) -> Result<Vec<String>, Failure> {
    let items: Vec<String> = if let Some(count) = args.count {
        (0..count).map(|index| index.to_string()).collect()
    } else if !args.items.is_empty() {
        args.items.clone()
    } else {
        if std::io::stdin().is_terminal() {
            eprintln!("reading items from the terminal, one for each line; Ctrl-D ends them");
        }
        let lines: Result<Vec<String>, _> = std::io::stdin().lock().lines().collect();
        let lines = lines.map_err(|error| Failure::because("cannot read the items", &error))?;
        lines.into_iter().filter(|line| !line.trim().is_empty()).collect()
    };
    if items.is_empty() {
        return Err(Failure::usage("there are no items")
            .next("give them as lines of standard input, with --items, or with --count"));
    }
    Ok(items)
}

/// Forks and runs, batch by batch. What has been forked is in `outcomes`, whatever happens.
async fn work(
    client: &Client,
    args: &Args,
    items: &[String],
    outcomes: &mut Vec<Outcome>,
) -> Result<(), Failure> {
    let most = client.node().await?.limits.fork_max.max(1);
    let batch = usize::try_from(args.parallel.unwrap_or(most).clamp(1, most)).unwrap_or(1);
    let line = Line::new(&args.command);
    for (number, some) in items.chunks(batch).enumerate() {
        let start = outcomes.len();
        fork(client, args, some, outcomes).await?;
        let running = outcomes[start..].iter().enumerate().map(|(offset, outcome)| {
            execute(client, args, &line, outcome, number * batch + offset)
        });
        let results = join_all(running).await;
        for (outcome, result) in outcomes[start..].iter_mut().zip(results) {
            match result {
                Some(Ok(result)) => {
                    outcome.score = result.ok.then(|| score(&result.stdout)).flatten();
                    outcome.result = Some(result);
                }
                Some(Err(failure)) => outcome.error = Some(failure.to_string()),
                None => {}
            }
        }
        if !args.keep && args.best.is_none() {
            delete(client, &outcomes[start..]).await;
            outcomes[start..].iter_mut().for_each(|outcome| outcome.sandbox = None);
        }
    }
    Ok(())
}

async fn fork(
    client: &Client,
    args: &Args,
    items: &[String],
    outcomes: &mut Vec<Outcome>,
) -> Result<(), Failure> {
    let request = ForkRequest {
        count: Some(u32::try_from(items.len()).unwrap_or(u32::MAX)),
        secrets: values::map(&args.secret),
        inherit_secrets: args.secrets.said(),
        ..ForkRequest::default()
    };
    let forked = client.fork(&args.sandbox, &request).await?;
    for (item, child) in items.iter().zip(forked.children) {
        outcomes.push(Outcome {
            item: item.clone(),
            name: child.sandbox.as_ref().map(|sandbox| sandbox.name.clone()),
            sandbox: child.sandbox.map(|sandbox| sandbox.id),
            result: None,
            error: child.error.map(|problem| problem.detail),
            score: None,
            best: false,
        });
    }
    Ok(())
}

async fn execute(
    client: &Client,
    args: &Args,
    line: &Line,
    outcome: &Outcome,
    index: usize,
) -> Option<Result<ExecResult, Failure>> {
    let mut env = values::map(&args.env);
    env.insert("RAMET_ITEM".to_owned(), outcome.item.clone());
    env.insert("RAMET_INDEX".to_owned(), index.to_string());
    let request = args.place.request(line.substitute(&outcome.item), env);
    let sandbox = outcome.sandbox.as_ref()?;
    Some(client.exec(sandbox, &request).await.map_err(Failure::from))
}

/// The number on the last line.
fn score(stdout: &str) -> Option<f64> {
    let last = stdout.lines().rev().find(|line| !line.trim().is_empty())?;
    last.trim().parse().ok().filter(|score: &f64| score.is_finite())
}

/// The first of the best.
fn choose(outcomes: &[Outcome], best: Best) -> Option<usize> {
    let scored = outcomes.iter().enumerate();
    let scored = scored.filter_map(|(index, outcome)| Some((index, outcome.score?)));
    let better = |a: f64, b: f64| if best == Best::Min { a < b } else { a > b };
    scored
        .fold(None, |chosen: Option<(usize, f64)>, (index, score)| match chosen {
            Some((_, known)) if !better(score, known) => chosen,
            _ => Some((index, score)),
        })
        .map(|(index, _)| index)
}

async fn delete(client: &Client, outcomes: &[Outcome]) {
    let ids = outcomes.iter().filter_map(|outcome| outcome.sandbox.as_ref());
    for (id, deleted) in join_all(ids.map(|id| async move { (id, client.delete(id).await) })).await
    {
        if let Err(error) = deleted {
            eprintln!("warning: {id} was not deleted: {error}");
        }
    }
}

fn draw(outcomes: &[Outcome], scored: bool, paint: Paint) -> String {
    let mut head = vec!["ITEM", "SANDBOX", "EXIT", "TIME", "OUTPUT"];
    if scored {
        head.insert(4, "SCORE");
    }
    let mut table = Table::new(&head);
    for outcome in outcomes {
        let result = outcome.result.as_ref();
        let exit = match result {
            Some(result) if result.timed_out => paint.red("time over"),
            Some(result) if result.ok => paint.green("0"),
            Some(result) => paint.red(
                &result.exit_code.map_or_else(|| "signal".to_owned(), |code| code.to_string()),
            ),
            None => paint.red("failed"),
        };
        let last = |text: &str| text.trim_end().lines().last().unwrap_or_default().to_owned();
        let shown = match (result, &outcome.error) {
            (_, Some(error)) => error.clone(),
            (Some(result), None) if result.stdout.trim().is_empty() => last(&result.stderr),
            (Some(result), None) => last(&result.stdout),
            (None, None) => String::new(),
        };
        let mut row = vec![
            output::shorten(&outcome.item, ITEM_SHOWN),
            outcome.name.clone().unwrap_or_else(|| "-".to_owned()),
            exit,
            result.map(|result| output::micros(result.duration_us)).unwrap_or_default(),
            output::shorten(&shown, OUTPUT_SHOWN),
        ];
        if scored {
            let score = outcome.score.map(|score| score.to_string()).unwrap_or_default();
            let score = if outcome.best { paint.bold(&format!("{score} ← best")) } else { score };
            row.insert(4, score);
        }
        table.row(row);
    }
    table.draw(paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(item: &str, stdout: &str, code: i32) -> Outcome {
        let result = ExecResult {
            pid: 1,
            stdout: stdout.into(),
            stderr: String::new(),
            exit_code: Some(code),
            signal: None,
            ok: code == 0,
            timed_out: false,
            truncated: false,
            duration_us: 1500,
        };
        Outcome {
            item: item.into(),
            sandbox: Some("sbx-1".into()),
            name: Some(format!("fork-{item}")),
            score: score(stdout),
            result: Some(result),
            error: None,
            best: false,
        }
    }

    #[test]
    fn the_score_is_the_last_line() {
        assert_eq!(score("1\n2.5\n\n"), Some(2.5));
        assert_eq!(score("-3e2"), Some(-300.0));
        for none in ["", "x", "1 x", "nan", "inf"] {
            assert_eq!(score(none), None, "{none}");
        }
    }

    #[test]
    fn the_best_is_the_first_of_equals() {
        let outcomes = [
            outcome("a", "2", 0),
            outcome("b", "x", 0),
            outcome("c", "5", 0),
            outcome("d", "5", 0),
        ];
        assert_eq!(choose(&outcomes, Best::Min), Some(0));
        assert_eq!(choose(&outcomes, Best::Max), Some(2));
        assert_eq!(choose(&outcomes[1..2], Best::Max), None);
    }

    #[test]
    fn results_are_a_table() {
        let mut outcomes = [outcome("1", "loading\n0.5\n", 0), outcome("2", "oops", 3)];
        outcomes[0].best = true;
        let expected = "\
ITEM  SANDBOX  EXIT  TIME    SCORE       OUTPUT
1     fork-1   0     1.5 ms  0.5 ← best  0.5
2     fork-2   3     1.5 ms              oops
";
        assert_eq!(draw(&outcomes, true, Paint::plain()), expected);
    }
}
