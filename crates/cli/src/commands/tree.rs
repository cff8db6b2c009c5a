//! `ramet tree`: who comes from whom, drawn.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use futures_util::future::join_all;
use ramet_client::Client;
use ramet_client::api::{EventsQuery, ListQuery, Sandbox, State, Tree, TreeKind, TreeNode};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint};

/// How often a watched tree is drawn anew though nothing happened, for the ages in it.
const REFRESH: Duration = Duration::from_secs(5);
/// Events that come this close are drawn at once.
const GATHER: Duration = Duration::from_millis(50);
/// Pause before subscribing again.
const AGAIN: Duration = Duration::from_secs(1);
/// Sandboxes that are asked for their checkpoints at once.
const AT_ONCE: usize = 16;
/// Characters of a command that are shown.
const COMMAND_SHOWN: usize = 40;

const HELP: &str = "\
A checkpoint is marked with ◆, one that was made before a command with ◇.

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
    // Programs get the tree as it is, and can ask for the rest.
    let more = if context.json { More::default() } else { more(client, &tree).await? };
    context.show(&tree, |tree| draw(tree, &more, output::now_ms(), context.paint));
    Ok(())
}

/// What is drawn beside nodes, by their ids.
#[derive(Default)]
struct More {
    /// Where paused sandboxes are.
    places: BTreeMap<String, String>,
    /// Commands that automatic checkpoints were made before.
    commands: BTreeMap<String, String>,
}

async fn more(client: &Client, tree: &Tree) -> Result<More, Failure> {
    let mut list = client.list_all(&ListQuery::default()).await?;
    list.retain(|sandbox| tree.nodes.iter().any(|node| node.id == sandbox.id));
    let place = |sandbox: &Sandbox| Some((sandbox.id.clone(), output::place(sandbox)?));
    let mut more = More { places: list.iter().filter_map(place).collect(), ..More::default() };
    list.retain(|sandbox| sandbox.auto_checkpoints.is_some_and(|automatic| automatic.keep > 0));
    for some in list.chunks(AT_ONCE) {
        let asked = join_all(some.iter().map(|sandbox| client.checkpoints(&sandbox.id))).await;
        // A sandbox that is gone by now has none.
        for checkpoint in asked.into_iter().flatten().flatten().filter(|one| one.automatic) {
            more.commands.insert(checkpoint.id, checkpoint.command.unwrap_or_default());
        }
    }
    Ok(more)
}

async fn watch(client: &Client, root: Option<&str>, context: &Context) -> Result<(), Failure> {
    let screen = std::io::stdout().is_terminal() && !context.json;
    loop {
        let mut events = client.events(&EventsQuery::default()).await?;
        loop {
            if screen {
                // Home, then the tree, then nothing: no flicker.
                let tree = below(client.tree().await?, root);
                let more = more(client, &tree).await?;
                let drawn = draw(&tree, &more, output::now_ms(), context.paint);
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
fn draw(tree: &Tree, more: &More, now_ms: u64, paint: Paint) -> String {
    let ids: Vec<&str> = tree.nodes.iter().map(|node| node.id.as_str()).collect();
    let mut children: BTreeMap<Option<&str>, Vec<&TreeNode>> = BTreeMap::new();
    for node in &tree.nodes {
        let parent = node.parent.as_deref().filter(|parent| ids.contains(parent));
        children.entry(parent).or_default().push(node);
    }
    let mut drawing = Drawing { children, more, now_ms, paint, text: String::new() };
    drawing.roots();
    if drawing.text.is_empty() {
        drawing.text.push_str("Nothing yet. Try: ramet new box\n");
    }
    drawing.text
}

struct Drawing<'t> {
    children: BTreeMap<Option<&'t str>, Vec<&'t TreeNode>>,
    more: &'t More,
    now_ms: u64,
    paint: Paint,
    text: String,
}

impl<'t> Drawing<'t> {
    fn roots(&mut self) {
        for root in self.children.remove(&None).into_iter().flatten() {
            let label = self.label(root);
            self.text.push_str(&format!("{label}\n"));
            self.below(&root.id, "");
        }
    }

    fn below(&mut self, id: &'t str, indent: &str) {
        let nodes = self.children.remove(&Some(id)).unwrap_or_default();
        for (index, node) in nodes.iter().enumerate() {
            let last = index + 1 == nodes.len();
            let (branch, bar) =
                if last { ("└── ", "    ") } else { ("├── ", "│   ") };
            let branch = self.paint.dim(&format!("{indent}{branch}"));
            let label = self.label(node);
            self.text.push_str(&format!("{branch}{label}\n"));
            self.below(&node.id, &format!("{indent}{bar}"));
        }
    }

    fn label(&self, node: &TreeNode) -> String {
        let paint = self.paint;
        let age = paint.dim(&output::age(node.created_at_ms, self.now_ms));
        match node.kind {
            TreeKind::Template => format!("{} {}", paint.bold(&node.name), paint.dim("template")),
            TreeKind::Checkpoint => match self.more.commands.get(&node.id) {
                None => format!("◆ {} {} {age}", node.name, paint.dim("checkpoint")),
                Some(command) => {
                    let command = output::shorten(command, COMMAND_SHOWN);
                    format!("◇ {} {} {age}", node.name, paint.dim(&format!("before {command}")))
                }
            },
            TreeKind::Sandbox => {
                let state = node.state.unwrap_or(State::Running);
                let name = match state {
                    State::Gone => paint.dim(&node.name),
                    _ => paint.bold(&node.name),
                };
                let id = if node.id == node.name { String::new() } else { format!(" {}", node.id) };
                let place = self.more.places.get(&node.id);
                let place = place.map(|place| format!(" {place}")).unwrap_or_default();
                let state = paint.state(state);
                format!("{name} {state}{}{} {age}", paint.dim(&place), paint.dim(&id))
            }
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
        assert_eq!(draw(&tree(), &More::default(), 60_000, Paint::plain()), expected);
    }

    #[test]
    fn paused_sandboxes_are_somewhere_and_automatic_checkpoints_are_marked() {
        let mut tree = below(tree(), Some("sbx-1"));
        tree.nodes.truncate(3);
        tree.nodes[2].state = Some(State::Paused);
        tree.nodes.push(node("cp-2", TreeKind::Checkpoint, "cp-2", Some("sbx-1")));
        let pair = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let more = More {
            places: pair("sbx-2", "in store, cold, 12 MiB"),
            commands: pair("cp-2", "make\ntest"),
        };
        let expected = "\
box running sbx-1 1m
├── ◆ before checkpoint 1m
├── a paused in store, cold, 12 MiB sbx-2 1m
└── ◇ cp-2 before make test 1m
";
        assert_eq!(draw(&tree, &more, 60_000, Paint::plain()), expected);
    }

    #[test]
    fn a_part_of_the_tree_has_its_own_root() {
        let expected = "\
a running sbx-2 1m
└── sbx-3 running 1m
";
        let (part, more) = (below(tree(), Some("sbx-2")), More::default());
        assert_eq!(draw(&part, &more, 60_000, Paint::plain()), expected);
        let nothing = Tree { nodes: Vec::new() };
        assert!(draw(&nothing, &more, 0, Paint::plain()).contains("ramet new"));
    }
}
