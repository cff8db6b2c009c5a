//! `ramet rm`: delete sandboxes.

use ramet_client::Client;
use ramet_client::api::{ListQuery, State, Tree, TreeKind};
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;

const HELP: &str = "\
Checkpoints go with their sandbox; what was forked from it stays, unless --children is given.

Examples:
  ramet rm box
  ramet rm --children box      all that comes from it, too
  ramet rm --all";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandboxes
    #[arg(required_unless_present = "all")]
    sandboxes: Vec<String>,
    /// Also all that comes from them
    #[arg(long, short)]
    children: bool,
    /// All sandboxes
    #[arg(long, conflicts_with = "sandboxes")]
    all: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let ids = if args.all {
        let list = client.list_all(&ListQuery::default()).await?;
        list.into_iter().map(|sandbox| sandbox.id).collect()
    } else if args.children {
        with_children(&client, &args.sandboxes).await?
    } else {
        args.sandboxes.clone()
    };
    for id in &ids {
        client.delete(id).await?;
    }
    context.show(&json!({ "removed": ids }), |_| match (args.all, args.children) {
        (false, false) => String::new(),
        _ => format!("{} deleted\n", ids.len()),
    });
    Ok(())
}

async fn with_children(client: &Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let mut roots = Vec::new();
    for name in names {
        roots.push(client.sandbox(name).await?.id);
    }
    Ok(descendants(&client.tree().await?, &roots))
}

/// Live sandboxes among these and all that comes from them.
fn descendants(tree: &Tree, roots: &[String]) -> Vec<String> {
    let (mut known, mut live) = (Vec::new(), Vec::new());
    // Parents come before children.
    for node in tree.nodes.iter().filter(|node| node.kind == TreeKind::Sandbox) {
        let from = node.parent.as_ref().is_some_and(|parent| known.contains(&parent));
        if from || roots.contains(&node.id) {
            known.push(&node.id);
            if node.state != Some(State::Gone) {
                live.push(node.id.clone());
            }
        }
    }
    live
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramet_client::api::TreeNode;
    use std::collections::BTreeMap;

    #[test]
    fn children_are_found_behind_one_that_is_gone() {
        let node = |id: &str, parent: Option<&str>, state| TreeNode {
            id: id.into(),
            kind: TreeKind::Sandbox,
            name: id.into(),
            parent: parent.map(str::to_owned),
            state: Some(state),
            created_at_ms: 0,
            labels: BTreeMap::new(),
        };
        let nodes = vec![
            node("a", None, State::Running),
            node("b", Some("a"), State::Gone),
            node("c", Some("b"), State::Paused),
            node("d", None, State::Running),
        ];
        assert_eq!(descendants(&Tree { nodes }, &["a".to_owned()]), ["a", "c"]);
    }
}
