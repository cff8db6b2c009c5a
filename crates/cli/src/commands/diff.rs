//! `ramet diff`: what differs between two sandboxes, checkpoints, commits or templates.

use ramet_client::api::{
    Diff, DiffAspect, DiffFile, DiffFileKind, DiffKind, DiffRequest, DiffState, DiffVariable,
    NoPatch, VariableState,
};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint};

const COMMAND_SHOWN: usize = 100;
const VALUE_SHOWN: usize = 60;

const HELP: &str = "\
What B has and A has not is added (+), what only A has is removed (-), the rest is changed (~).
Each side is a sandbox, running or paused; a checkpoint, as SANDBOX@CHECKPOINT or by its id
(cp-…); a commit, by its id (cm-…) or as commit:NAME; or a template, by its id (tmpl-…). Without
paths: /home, /root, /tmp and /workspace. Symlinks are not followed. If both sides are sandboxes
that run, variables of their Python contexts are compared, too (see `ramet code`).

Examples:
  ramet diff base attempt-1
  ramet diff box@before-migration box
  ramet diff attempt-1 attempt-2 /srv --patch
  ramet diff commit:main box
  ramet diff cm-0f3a cm-77b1 /srv
  ramet diff tmpl-base-1x512 box / --json";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox, checkpoint, commit or template
    a: String,
    /// What it is compared with
    b: String,
    /// Where
    paths: Vec<String>,
    /// Show what changed within text files
    #[arg(long, short)]
    patch: bool,
    /// Compare variables of Python contexts, or say why that cannot be
    #[arg(long)]
    variables: bool,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let asked = args.variables;
    let request = DiffRequest {
        against: args.a,
        paths: Some(args.paths).filter(|paths| !paths.is_empty()),
        content: args.patch,
        variables: args.variables.then_some(true),
    };
    let diff = context.client().await?.diff(&args.b, &request).await?;
    context.show(&diff, |diff| draw(diff, asked, context.paint));
    Ok(())
}

fn draw(diff: &Diff, asked: bool, paint: Paint) -> String {
    let mut text = String::new();
    for file in &diff.files {
        text.push_str(&draw_file(file, paint));
    }
    if diff.truncated {
        text.push_str(&paint.yellow("… and more; name a path to see less at a time"));
        text.push('\n');
    }
    for process in &diff.processes {
        let command = output::shorten(&process.command.join(" "), COMMAND_SHOWN);
        let line = format!("process {} {command}", process.pid);
        text.push_str(&signed(process.change, &line, paint));
    }
    for listener in &diff.listeners {
        let line = format!("port {}/{} on {}", listener.port, listener.protocol, listener.address);
        text.push_str(&signed(listener.change, &line, paint));
    }
    for variable in diff.variables.iter().flatten() {
        text.push_str(&signed(variable.change, &draw_variable(variable), paint));
    }
    if let Some(reason) = diff.no_variables.as_ref().filter(|_| asked) {
        let told = format!("variables were not compared: {}", output::clean(reason));
        text.push_str(&format!("{}\n", paint.yellow(&told)));
    }
    if text.is_empty() {
        text.push_str(&format!("nothing differs in {}\n", diff.paths.join(", ")));
    }
    let cost = &diff.cost;
    let told = format!(
        "{} changed files listed, {} looked at, {} read; took {}",
        cost.layered,
        cost.looked_at,
        cost.digested,
        output::micros(cost.total_us)
    );
    format!("{text}{}\n", paint.dim(&told))
}

fn draw_variable(variable: &DiffVariable) -> String {
    let shown = |state: &VariableState| {
        let value = output::shorten(&state.value, VALUE_SHOWN);
        format!("{value} ({})", output::shorten(&state.kind, VALUE_SHOWN))
    };
    let states: Vec<String> = variable.before.iter().chain(&variable.after).map(shown).collect();
    let name = output::shorten(&variable.name, VALUE_SHOWN);
    format!("{}: {name} = {}", output::clean(&variable.context), states.join(" → "))
}

fn draw_file(file: &DiffFile, paint: Paint) -> String {
    let mut path = output::shorten(&file.path, usize::MAX);
    let state = file.after.as_ref().or(file.before.as_ref());
    if state.is_some_and(|state| state.kind == DiffFileKind::Directory) {
        path.push('/');
    }
    let detail = match (&file.before, &file.after) {
        (Some(before), Some(after)) => {
            let aspects: Vec<String> =
                file.differs.iter().map(|aspect| aspect_of(*aspect, file, before, after)).collect();
            aspects.join(", ")
        }
        (Some(state), None) | (None, Some(state)) => about(state),
        (None, None) => String::new(),
    };
    let mut text = signed(file.change, &format!("{path}  {}", paint.dim(&detail)), paint);
    if let Some(patch) = &file.patch {
        patch.lines().for_each(|line| text.push_str(&format!("{}\n", coloured(line, paint))));
    }
    if let Some(reason) = file.no_patch {
        let reason = match reason {
            NoPatch::Binary => "no text",
            NoPatch::TooLarge => "too large for a patch",
            NoPatch::TooMany => "too many patches before it",
            NoPatch::Unreadable => "could not be read",
        };
        text.push_str(&format!("  {}\n", paint.dim(reason)));
    }
    text
}

fn signed(change: DiffKind, line: &str, paint: Paint) -> String {
    let sign = match change {
        DiffKind::Added => paint.green("+"),
        DiffKind::Removed => paint.red("-"),
        DiffKind::Changed => paint.yellow("~"),
    };
    format!("{}\n", format!("{sign} {line}").trim_end())
}

fn about(state: &DiffState) -> String {
    let target = state.target.as_deref().map(|target| output::shorten(target, usize::MAX));
    match (state.kind, target) {
        (DiffFileKind::File, _) => output::bytes(state.size),
        (DiffFileKind::Symlink, Some(target)) => format!("-> {target}"),
        (DiffFileKind::Directory, _) => String::new(),
        (kind, _) => kind_of(kind).to_owned(),
    }
}

fn aspect_of(aspect: DiffAspect, file: &DiffFile, before: &DiffState, after: &DiffState) -> String {
    match aspect {
        DiffAspect::Type => format!("{} → {}", kind_of(before.kind), kind_of(after.kind)),
        DiffAspect::Content if file.assumed => "content, perhaps: too large to read".to_owned(),
        DiffAspect::Content if before.size == after.size => "content".to_owned(),
        DiffAspect::Content => {
            format!("content, {} → {}", output::bytes(before.size), output::bytes(after.size))
        }
        DiffAspect::Mode => format!("mode {:04o} → {:04o}", before.mode, after.mode),
        DiffAspect::Owner => {
            format!("owner {}:{} → {}:{}", before.uid, before.gid, after.uid, after.gid)
        }
        DiffAspect::Target => format!("{} → {}", about(before), about(after)),
    }
}

fn kind_of(kind: DiffFileKind) -> &'static str {
    match kind {
        DiffFileKind::File => "file",
        DiffFileKind::Directory => "directory",
        DiffFileKind::Symlink => "symlink",
        DiffFileKind::Fifo => "fifo",
        DiffFileKind::Socket => "socket",
        DiffFileKind::CharacterDevice => "character device",
        DiffFileKind::BlockDevice => "block device",
    }
}

/// A line of a patch, made harmless.
fn coloured(line: &str, paint: Paint) -> String {
    let clean: String =
        line.chars().map(|c| if c.is_control() && c != '\t' { '?' } else { c }).collect();
    match clean.as_bytes().first() {
        Some(b'+') => paint.green(&clean),
        Some(b'-') => paint.red(&clean),
        Some(b'@') => paint.bold(&clean),
        _ => clean,
    }
}

#[cfg(test)]
mod tests {
    use ramet_client::api::{DiffCost, DiffListener, DiffProcess};

    use super::*;

    fn state(kind: DiffFileKind, size: u64, mode: u32) -> DiffState {
        DiffState { kind, size, mode, uid: 0, gid: 0, modified_ns: 0, target: None }
    }

    fn file(path: &str, before: Option<DiffState>, after: Option<DiffState>) -> DiffFile {
        let change = match (&before, &after) {
            (None, _) => DiffKind::Added,
            (_, None) => DiffKind::Removed,
            _ => DiffKind::Changed,
        };
        DiffFile {
            path: path.to_owned(),
            change,
            differs: Vec::new(),
            assumed: false,
            before,
            after,
            patch: None,
            no_patch: None,
        }
    }

    fn diff(files: Vec<DiffFile>) -> Diff {
        Diff {
            id: "sbx-1".into(),
            against: "sbx-2".into(),
            paths: vec!["/home".into()],
            parted_at_ms: None,
            files,
            truncated: false,
            processes: Vec::new(),
            listeners: Vec::new(),
            variables: None,
            no_variables: None,
            cost: DiffCost { layered: 3, looked_at: 2, digested: 1, total_us: 1500 },
        }
    }

    #[test]
    fn a_diff_is_drawn() {
        use DiffFileKind::{Directory, File, Symlink};
        let mut changed =
            file("/home/f", Some(state(File, 10, 0o644)), Some(state(File, 2000, 0o755)));
        changed.differs = vec![DiffAspect::Content, DiffAspect::Mode];
        changed.patch = Some("--- a/home/f\n+++ b/home/f\n@@ -1 +1 @@\n-\x1b[2J\n+y\n".to_owned());
        let link = DiffState { target: Some("x".into()), ..state(Symlink, 1, 0o777) };
        let mut told = diff(vec![
            file("/home/d", None, Some(state(Directory, 0, 0o755))),
            changed,
            file("/home/l\n", Some(link), None),
        ]);
        told.processes = vec![DiffProcess {
            change: DiffKind::Added,
            pid: 7,
            uid: 0,
            command: vec!["sleep".into(), "9".into()],
        }];
        told.listeners = vec![DiffListener {
            change: DiffKind::Removed,
            protocol: "tcp".into(),
            address: "0.0.0.0".into(),
            port: 80,
        }];
        told.variables = Some(vec![DiffVariable {
            context: "python".into(),
            name: "best".into(),
            change: DiffKind::Changed,
            before: Some(VariableState { kind: "int".into(), value: "1".into() }),
            after: Some(VariableState { kind: "str".into(), value: "'two'".into() }),
        }]);
        let expected = "\
+ /home/d/
~ /home/f  content, 10 B → 1 KiB, mode 0644 → 0755
--- a/home/f
+++ b/home/f
@@ -1 +1 @@
-?[2J
+y
- /home/l  -> x
+ process 7 sleep 9
- port 80/tcp on 0.0.0.0
~ python: best = 1 (int) → 'two' (str)
3 changed files listed, 2 looked at, 1 read; took 1.5 ms
";
        assert_eq!(draw(&told, false, Paint::plain()), expected);
    }

    #[test]
    fn no_difference_is_said() {
        assert!(
            draw(&diff(Vec::new()), false, Paint::plain())
                .starts_with("nothing differs in /home\n")
        );
    }
}
