//! `ramet tree`: who comes from whom, drawn.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use ramet_client::Client;
use ramet_client::api::{EventsQuery, State, Tree, TreeKind, TreeNode};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint};

/// How often a watched tree is drawn anew though nothing happened, for the ages in it.
const REFRESH: Duration = Duration::from_secs(5);
/// Events that come this close are drawn at once.
const GATHER: Duration = Duration::from_millis(50);
/// Pause before subscribing again.
const AGAIN: Duration = Duration::from_secs(1);

const HELP: &str = "\
Examples:
  ramet tree
  ramet tree box          box and what comes from it
  ramet tree --watch      as it changes; Ctrl-C ends it";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Only this sandbox and what comes from it
    sandbox: Option<String>,
    /// Draw it again whenever something happens
    #[arg(long, short)]
    watch: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let root = match &args.sandbox {
        Some(name) => Some(client.sandbox(name).await?.id),
        None => None,
    };
    let root = root.as_deref();
    if args.watch {
        return watch(&client, root, context).await;
    }
    show(&client, root, context).await
}

async fn show(client: &Client, root: Option<&str>, context: &Context) -> Result<(), Failure> {
    let tree = below(client.tree().await?, root);
    context.show(&tree, |tree| draw(tree, output::now_ms(), context.paint));
    Ok(())
}

async fn watch(client: &Client, root: Option<&str>, context: &Context) -> Result<(), Failure> {
    let screen = std::io::stdout().is_terminal() && !context.json;
    loop {
        let mut events = client.events(&EventsQuery::default()).await?;
        loop {
            if screen {
                // Home, then the tree, then nothing: no flicker.
                let tree = below(client.tree().await?, root);
                let drawn = draw(&tree, output::now_ms(), context.paint);
                output::print(&format!("\x1b[H{}\x1b[J", drawn.replace('\n', "\x1b[K\n")));
            } else {
                show(client, root, context).await?;
            }
            let wait = if screen { REFRESH } else { Duration::MAX };
            match tokio::time::timeout(wait, events.next()).await {
                Ok(Ok(Some(_))) => {
                    // What belongs together is drawn together; how it ends shows in the next turn.
                    while let Ok(Ok(Some(_))) = tokio::time::timeout(GATHER, events.next()).await {}
                }
                Ok(_) => break,
                Err(_) => {}
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The part of a tree below a node, with it.
fn below(tree: Tree, root: Option<&str>) -> Tree {
    let Some(root) = root else { return tree };
    let mut kept: Vec<TreeNode> = Vec::new();
    // Parents come before children.
    for node in tree.nodes {
        let parent = node.parent.as_deref();
        if node.id == root || kept.iter().any(|kept| Some(kept.id.as_str()) == parent) {
            kept.push(node);
        }
    }
    Tree { nodes: kept }
}

/// The tree as text.
pub fn draw(tree: &Tree, now_ms: u64, paint: Paint) -> String {
    let ids: Vec<&str> = tree.nodes.iter().map(|node| node.id.as_str()).collect();
    let mut children: BTreeMap<Option<&str>, Vec<&TreeNode>> = BTreeMap::new();
    for node in &tree.nodes {
        let parent = node.parent.as_deref().filter(|parent| ids.contains(parent));
        children.entry(parent).or_default().push(node);
    }
    let mut text = String::new();
    for root in children.get(&None).into_iter().flatten() {
        text.push_str(&format!("{}\n", label(root, now_ms, paint)));
        draw_below(&root.id, "", &children, now_ms, paint, &mut text);
    }
    if text.is_empty() {
        text.push_str("Nothing yet. Try: ramet new box\n");
    }
    text
}

fn draw_below(
    id: &str,
    indent: &str,
    children: &BTreeMap<Option<&str>, Vec<&TreeNode>>,
    now_ms: u64,
    paint: Paint,
    text: &mut String,
) {
    let Some(nodes) = children.get(&Some(id)) else { return };
    for (index, node) in nodes.iter().enumerate() {
        let last = index + 1 == nodes.len();
        let (branch, bar) = if last { ("└── ", "    ") } else { ("├── ", "│   ") };
        let branch = paint.dim(&format!("{indent}{branch}"));
        text.push_str(&format!("{branch}{}\n", label(node, now_ms, paint)));
        draw_below(&node.id, &format!("{indent}{bar}"), children, now_ms, paint, text);
    }
}

fn label(node: &TreeNode, now_ms: u64, paint: Paint) -> String {
    let age = paint.dim(&output::age(node.created_at_ms, now_ms));
    match node.kind {
        TreeKind::Template => format!("{} {}", paint.bold(&node.name), paint.dim("template")),
        TreeKind::Checkpoint => format!("◆ {} {} {age}", node.name, paint.dim("checkpoint")),
        TreeKind::Sandbox => {
            let state = node.state.unwrap_or(State::Running);
            let name = match state {
                State::Gone => paint.dim(&node.name),
                _ => paint.bold(&node.name),
            };
            let id = if node.id == node.name { String::new() } else { format!(" {}", node.id) };
            format!("{name} {}{} {age}", paint.state(state), paint.dim(&id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, kind: TreeKind, name: &str, parent: Option<&str>) -> TreeNode {
        TreeNode {
            id: id.into(),
            kind,
            name: name.into(),
            parent: parent.map(str::to_owned),
            state: (kind == TreeKind::Sandbox).then_some(State::Running),
            created_at_ms: 0,
            labels: BTreeMap::new(),
        }
    }

    fn tree() -> Tree {
        use TreeKind::{Checkpoint, Sandbox, Template};
        let mut gone = node("sbx-4", Sandbox, "gone", Some("sbx-1"));
        gone.state = Some(State::Gone);
        Tree {
            nodes: vec![
                node("tpl-1", Template, "base", None),
                node("sbx-1", Sandbox, "box", Some("tpl-1")),
                node("cp-1", Checkpoint, "before", Some("sbx-1")),
                node("sbx-2", Sandbox, "a", Some("sbx-1")),
                node("sbx-3", Sandbox, "sbx-3", Some("sbx-2")),
                gone,
                node("sbx-5", Sandbox, "deep", Some("sbx-4")),
                node("sbx-6", Sandbox, "other", Some("tpl-1")),
                node("sbx-7", Sandbox, "orphan", Some("sbx-unknown")),
            ],
        }
    }

    #[test]
    fn the_tree_is_drawn() {
        let expected = "\
base template
├── box running sbx-1 1m
│   ├── ◆ before checkpoint 1m
│   ├── a running sbx-2 1m
│   │   └── sbx-3 running 1m
│   └── gone gone sbx-4 1m
│       └── deep running sbx-5 1m
└── other running sbx-6 1m
orphan running sbx-7 1m
";
        assert_eq!(draw(&tree(), 60_000, Paint::plain()), expected);
    }

    #[test]
    fn a_part_of_the_tree_has_its_own_root() {
        let expected = "\
a running sbx-2 1m
└── sbx-3 running 1m
";
        assert_eq!(draw(&below(tree(), Some("sbx-2")), 60_000, Paint::plain()), expected);
        assert!(draw(&Tree { nodes: Vec::new() }, 0, Paint::plain()).contains("ramet new"));
    }
}
