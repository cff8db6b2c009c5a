//! `ramet promote`: a sandbox goes on as one of its descendants.

use ramet_client::Client;
use ramet_client::api::{PromoteRequest, State, Swapped, Tree, TreeKind};

use crate::context::Context;
use crate::failure::{CONFLICT, Failure};
use crate::output;
use crate::values;

const HELP: &str = "\
The sandbox keeps its id, name and labels, and has the winner's memory, disk and processes from then
on. The others stay, unless --prune is given.

Examples:
  ramet promote attempt-3              its parent goes on as attempt-3 did
  ramet promote box attempt-3          box does
  ramet promote --prune attempt-3      and the other attempts are deleted";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP, override_usage = "ramet promote [OPTIONS] [SANDBOX] WINNER")]
pub struct Args {
    /// The sandbox that goes on (the winner's parent when absent), and the winner
    #[arg(required = true, num_args = 1..=2, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
    /// Delete everything else that comes from the sandbox
    #[arg(long)]
    prune: bool,
    #[command(flatten)]
    secrets: values::Secrets,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let (sandbox, winner) = match args.sandboxes.as_slice() {
        [sandbox, winner] => (sandbox.clone(), winner.clone()),
        [winner] => (parent(&client, winner).await?, winner.clone()),
        _ => return Err(Failure::usage("give the winner")),
    };
    let (swapped, removed) = promote(&client, &sandbox, &winner, args.prune, args.secrets).await?;
    context.show(&swapped, |swapped| {
        let paint = context.paint;
        let more = if removed > 0 { format!(", {removed} others deleted") } else { String::new() };
        let time = paint.dim(&format!("took {}{more}", output::micros(swapped.total_us)));
        format!("{} goes on as {winner} did  {time}\n", paint.bold(&swapped.sandbox.name))
    });
    Ok(())
}

async fn parent(client: &Client, winner: &str) -> Result<String, Failure> {
    client.sandbox(winner).await?.parent.ok_or_else(|| {
        Failure::new(format!("{winner} was not forked from a sandbox"))
            .exit(CONFLICT)
            .next("`ramet tree` shows who comes from whom")
    })
}

/// Promotes, and deletes the losers if that is wanted: how many.
pub async fn promote(
    client: &Client,
    sandbox: &str,
    winner: &str,
    prune: bool,
    secrets: values::Secrets,
) -> Result<(Swapped, usize), Failure> {
    let losers = if prune {
        let (root, best) = (client.sandbox(sandbox).await?.id, client.sandbox(winner).await?.id);
        losers(&client.tree().await?, &root, &best)
    } else {
        Vec::new()
    };
    let request = PromoteRequest { winner: winner.to_owned(), inherit_secrets: secrets.said() };
    let swapped = client.promote(sandbox, &request).await?;
    for loser in &losers {
        client.delete(loser).await?;
    }
    Ok((swapped, losers.len()))
}

/// Live sandboxes that come from `root` but neither are nor come from `winner`.
fn losers(tree: &Tree, root: &str, winner: &str) -> Vec<String> {
    let (mut below, mut lost) = (vec![root], Vec::new());
    // Parents come before children, and what comes from the winner is never entered.
    for node in tree.nodes.iter().filter(|node| node.kind == TreeKind::Sandbox) {
        let from = node.parent.as_deref().is_some_and(|parent| below.contains(&parent));
        if !from || node.id == winner {
            continue;
        }
        below.push(&node.id);
        if node.state != Some(State::Gone) {
            lost.push(node.id.clone());
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramet_client::api::TreeNode;
    use std::collections::BTreeMap;

    #[test]
    fn what_comes_from_the_winner_is_spared() {
        let node = |id: &str, parent: &str, state| TreeNode {
            id: id.into(),
            kind: TreeKind::Sandbox,
            name: id.into(),
            parent: Some(parent.into()),
            state: Some(state),
            created_at_ms: 0,
            labels: BTreeMap::new(),
        };
        let nodes = vec![
            node("root", "tpl", State::Running),
            node("a", "root", State::Paused),
            node("winner", "a", State::Running),
            node("of-winner", "winner", State::Running),
            node("gone", "root", State::Gone),
            node("b", "gone", State::Running),
            node("other", "tpl", State::Running),
        ];
        assert_eq!(losers(&Tree { nodes }, "root", "winner"), ["a", "b"]);
    }
}
