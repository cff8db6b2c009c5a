//! `ramet`, as people and scripts use it: output, JSON, exit codes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use ramet_tests::linux;

use crate::bed::{directory, eventually, fresh, node, ramet, ran};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![
    new_ls_and_rm,
    exec_passes_everything_on,
    exec_on_a_terminal,
    a_process_is_detached_and_attached,
    run_leaves_nothing_behind,
    fork_tree_and_promote,
    a_moment_is_kept_and_gone_back_to,
    files_are_copied_both_ways,
    each_finds_the_best,
    failures_have_codes,
    the_first_command_starts_a_node,
];

fn new_ls_and_rm() {
    let created = node().ramet(&["new", "cli-new", "--label", "cli=1", "--env", "A=b", "--json"]);
    let id = created.json()["sandbox"]["id"].as_str().expect("an id").to_owned();
    let table = node().ramet(&["ls", "--label", "cli"]).ok();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("NAME") && lines.len() == 2, "{table}");
    assert!(lines[1].contains("cli-new") && lines[1].contains("running"), "{table}");
    assert!(!table.contains('\x1b'), "no colours in a pipe");
    let list = node().ramet(&["ls", "--label", "cli=1", "--json"]).json();
    assert_eq!((list[0]["id"].as_str(), list[0]["env"]["A"].as_str()), (Some(&*id), Some("b")));
    assert_eq!(node().ramet(&["ls", "-q", "--label", "cli"]).ok(), id);
    node().ramet(&["pause", "cli-new"]).ok();
    let paused = node().ramet(&["ls", "--state", "paused", "--label", "cli", "--json"]).json();
    assert_eq!(paused[0]["state"], "paused");
    node().ramet(&["resume", "cli-new"]).ok();
    let top = node().ramet(&["top", "--json"]).json();
    assert!(top.as_array().expect("rows").iter().any(|row| row["sandbox"]["id"] == *id));
    node().ramet(&["exec", "cli-new", "echo spoken > /dev/console"]).ok();
    assert!(node().ramet(&["logs", "cli-new"]).ok().contains("spoken"));
    assert!(node().ramet(&["ps", "cli-new"]).ok().contains("PID"));
    node().ramet(&["rm", "cli-new"]).ok();
    assert_eq!(node().ramet(&["ls", "-q", "--label", "cli"]).ok(), "");
}

fn exec_passes_everything_on() {
    let sandbox = fresh("cli-exec");
    let exec = |words: &[&str]| node().ramet(&[&["exec", "cli-exec"], words].concat());
    let ran = exec(&["echo out; echo err >&2; exit 9"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (9, "out\n", "err\n"));
    assert_eq!(exec(&["--", "echo", "$HOME"]).ok(), "$HOME", "several words are no shell line");
    assert_eq!(exec(&["kill -15 $$"]).code, 143);
    let options =
        ["exec", "-e", "A=b", "-w", "/usr", "-u", "nobody", "cli-exec", "echo $A $PWD $(id -un)"];
    assert_eq!(node().ramet(&options).ok(), "b /usr nobody");
    assert_eq!(node().ramet(&["exec", "--time", "1s", "cli-exec", "sleep 99"]).code, 124);
    let fed = node().ramet_fed("typed\n", &["exec", "-i", "cli-exec", "cat; echo end"]);
    assert_eq!(fed.ok(), "typed\nend");
    let json = node().ramet_fed("in", &["exec", "-i", "--json", "cli-exec", "cat; exit 3"]);
    assert_eq!(json.code, 3);
    let result: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!((result["stdout"].as_str(), result["exit_code"].as_i64()), (Some("in"), Some(3)));
    assert_eq!(exec(&["--", "/no/program", "word"]).code, 125);
    drop(sandbox);
}

fn exec_on_a_terminal() {
    let _sandbox = fresh("cli-tty");
    let refused = node().ramet(&["exec", "-it", "cli-tty", "tty"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.err.contains("terminal"), "{refused:?}");
    // script(1) gives it one.
    let mut script = std::process::Command::new("script");
    let program = std::env::var("RAMET").expect("RAMET");
    let line = format!("{program} exec -it cli-tty 'tty && stty size; exit 6'");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env("RAMET_URL", format!("http://{}", node().address()));
    script.env("RAMET_TOKEN", node().token());
    let ran = ran(script, "");
    assert_eq!(ran.code, 6, "{ran:?}");
    assert!(ran.out.contains("/dev/pts/"), "{ran:?}");
}

fn a_process_is_detached_and_attached() {
    let _sandbox = fresh("cli-detach");
    let line = "echo early; sleep 1; echo late; exit 8";
    let pid = node().ramet(&["exec", "-d", "cli-detach", line]).ok();
    let mut last = None;
    eventually("it can be joined", || {
        let attached = node().ramet(&["exec", "--attach", &pid, "cli-detach"]);
        let joined = attached.code == 8;
        last = Some(attached);
        joined
    });
    assert_eq!(last.expect("it ran").out, "early\nlate\n");
}

fn run_leaves_nothing_behind() {
    let before = node().ramet(&["ls", "-q"]).ok().lines().count();
    let ran = node().ramet(&["run", "--env", "A=b", "--", "sh", "-c", "echo $A; exit 5"]);
    assert_eq!((ran.code, ran.out.as_str()), (5, "b\n"));
    let json = node().ramet(&["run", "--json", "hostname"]).json();
    assert_eq!(json["ok"], true);
    assert_eq!(node().ramet_fed("x", &["run", "-i", "cat"]).ok(), "x");
    assert_eq!(node().ramet(&["ls", "-q"]).ok().lines().count(), before);
}

fn fork_tree_and_promote() {
    let sandbox = fresh("cli-root");
    sandbox.put("/srv/value", "root");
    let table = node().ramet(&["fork", "cli-root", "--name", "cli-a", "--name", "cli-b"]).ok();
    assert!(table.contains("cli-a") && table.contains("cli-b"), "{table}");
    let forked = node().ramet(&["fork", "cli-b", "2", "--json"]).json();
    assert_eq!(forked["children"].as_array().map(Vec::len), Some(2));
    let tree = node().ramet(&["tree", "cli-root"]).ok();
    let lines: Vec<&str> = tree.lines().collect();
    assert_eq!(lines.len(), 5, "{tree}");
    assert!(lines[0].starts_with("cli-root"), "{tree}");
    assert!(lines[1].contains("─ cli-a") && lines[2].contains("─ cli-b"), "{tree}");
    let nodes = node().ramet(&["tree", "--json", "cli-root"]).json();
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(5));
    node().ramet(&["exec", "cli-b", "echo b > /srv/value"]).ok();
    node().ramet(&["promote", "--prune", "cli-b"]).ok();
    assert_eq!(node().ramet(&["exec", "cli-root", "cat /srv/value"]).ok(), "b");
    let gone = node().ramet(&["exec", "cli-b", "true"]);
    assert_eq!(gone.code, 125, "{gone:?}");
    assert_eq!(node().ramet(&["promote", "cli-root", "cli-a"]).code, 3, "it was pruned");
    node().ramet(&["rm", "--children", "cli-root"]).ok();
    assert_eq!(node().ramet(&["tree", "cli-root"]).code, 3);
}

fn a_moment_is_kept_and_gone_back_to() {
    let sandbox = fresh("cli-back");
    sandbox.put("/srv/value", "one");
    node().ramet(&["checkpoint", "make", "cli-back", "--name", "one"]).ok();
    sandbox.put("/srv/value", "two");
    let list = node().ramet(&["checkpoint", "ls", "cli-back", "--json"]).json();
    assert_eq!(list[0]["name"], "one");
    node().ramet(&["rewind", "cli-back"]).ok();
    assert_eq!(sandbox.get("/srv/value"), "one");
    node().ramet(&["checkpoint", "rm", "cli-back", "one"]).ok();
    assert_eq!(node().ramet(&["rewind", "cli-back"]).code, 3);
    assert_eq!(node().ramet(&["rewind", "cli-back", "one"]).code, 3);
}

fn files_are_copied_both_ways() {
    let (sandbox, other) = (fresh("cli-cp"), fresh("cli-cp-2"));
    let local = directory("cp");
    let project = local.join("project");
    fs::create_dir_all(project.join("deep/empty")).expect("a directory");
    fs::write(project.join("deep/script"), "#!/bin/sh\necho ran\n").expect("a file");
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(project.join("deep/script"), executable).expect("a mode");
    symlink("deep/script", project.join("link")).expect("a symlink");
    let from = project.to_str().expect("UTF-8");
    node().ramet(&["cp", from, "cli-cp:/srv/"]).ok();
    assert_eq!(sandbox.sh("/srv/project/link; ls -d /srv/project/deep/empty"), {
        "ran\n/srv/project/deep/empty"
    });
    node().ramet(&["cp", "cli-cp:/srv/project", "cli-cp-2:/srv/copy"]).ok();
    assert_eq!(other.sh("/srv/copy/link"), "ran");
    let back = local.join("back");
    node().ramet(&["cp", "cli-cp-2:/srv/copy", back.to_str().expect("UTF-8")]).ok();
    assert_eq!(fs::read_to_string(back.join("link")).expect("followed"), "#!/bin/sh\necho ran\n");
    assert!(fs::symlink_metadata(back.join("link")).expect("there").is_symlink());
    node().ramet_fed("piped", &["cp", "-", "cli-cp:/srv/piped"]).ok();
    assert_eq!(node().ramet(&["cp", "cli-cp:/srv/piped", "-"]).ok(), "piped");
    let list = node().ramet(&["files", "ls", "cli-cp:/srv", "--json"]).json();
    assert_eq!(list[0]["path"], "/srv/piped");
    node().ramet(&["files", "mv", "cli-cp:/srv/piped", "/srv/moved"]).ok();
    node().ramet(&["files", "mkdir", "cli-cp:/srv/new"]).ok();
    node().ramet(&["files", "stat", "cli-cp:/srv/moved"]).ok();
    assert_eq!(node().ramet(&["files", "rm", "cli-cp:/srv/piped"]).code, 3);
    assert_eq!(node().ramet(&["cp", "cli-cp:/no/file", "."]).code, 3);
    assert_eq!(node().ramet(&["cp", from, "also-local"]).code, 2);
}

fn each_finds_the_best() {
    let sandbox = fresh("cli-each");
    sandbox.put("/srv/base", "10");
    let command = "echo $(( $(cat /srv/base) * {} )) | tee /srv/score";
    let ran = node().ramet_fed("3\n7\n5\n", &["each", "cli-each", "--json", "--", command]);
    let results = ran.json();
    let outputs: Vec<_> = (0..3).map(|place| results[place]["result"]["stdout"].clone()).collect();
    assert_eq!(outputs, ["30\n", "70\n", "50\n"]);
    let words =
        ["each", "cli-each", "--items", "3,7,5", "--best", "max", "--promote", "--", command];
    let table = node().ramet(&words).ok();
    assert!(table.contains("70 ← best"), "{table}");
    assert_eq!(sandbox.get("/srv/score"), "70\n", "it goes on as the best one");
    let words = ["each", "cli-each", "--count", "2", "--", "exit $RAMET_INDEX"];
    assert_eq!(node().ramet(&words).code, 1, "one of them failed");
    let tree = node().ramet(&["tree", "cli-each", "--json"]).json();
    assert_eq!(tree["nodes"].as_array().map(Vec::len), Some(1), "no fork is left: {tree}");
}

fn failures_have_codes() {
    let _sandbox = fresh("cli-taken");
    let failed = |words: &[&str], code: i32, next: &str| {
        let ran = node().ramet(words);
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(ran.err.contains(next), "{ran:?}");
    };
    failed(&["rm", "nobody"], 3, "ramet ls");
    failed(&["new", "cli-taken"], 5, "ramet rm");
    failed(&["new", "No Good"], 1, "lower-case");
    failed(&["fly"], 2, "unrecognized");
    failed(&["exec", "nobody", "true"], 125, "nobody");
    failed(&["new", "--template", "no-such-template"], 3, "no-such-template");
    let mut stranger = ramet();
    stranger.env("RAMET_URL", format!("http://{}", node().address()));
    stranger.env("RAMET_TOKEN", "a-token-that-nobody-gave").arg("ls");
    assert_eq!(ran(stranger, "").code, 4);
    let mut nowhere = ramet();
    nowhere.env("RAMET_URL", "http://127.0.0.1:1").env("RAMET_TOKEN", "x").args(["ls", "--json"]);
    let nowhere = ran(nowhere, "");
    assert_eq!(nowhere.code, 4);
    let error: serde_json::Value = serde_json::from_str(&nowhere.err).expect("JSON");
    assert_eq!(error["error"]["exit"], 4);
}

/// The guest's files; those that only a software host is started from need not be here.
fn guest_files() -> PathBuf {
    let directory = directory("own-guest");
    for entry in fs::read_dir(linux::guest_dir()).expect("the guest's files").flatten() {
        if entry.path().is_file() {
            symlink(entry.path(), directory.join(entry.file_name())).expect("a link");
        }
    }
    for name in ["vmlinuz", "host-initramfs.cpio"] {
        if !directory.join(name).exists() {
            fs::write(directory.join(name), "").expect("a file");
        }
    }
    directory
}

fn the_first_command_starts_a_node() {
    let (home, guest) = (directory("own"), guest_files());
    let own = |words: &[&str]| {
        let mut command = ramet();
        command.env("RAMET_HOME", &home).env("RAMET_GUEST_DIR", &guest).args(words);
        ran(command, "")
    };
    assert_eq!(own(&["--no-start", "ls"]).code, 4);
    let created = own(&["new", "box", "--json"]).json();
    assert_eq!(created["sandbox"]["name"], "box");
    assert_eq!(own(&["exec", "box", "hostname"]).ok(), "box");
    let up = own(&["up", "--json"]).json();
    assert_eq!(up["already"], true);
    let doctor = own(&["doctor"]);
    assert_eq!(doctor.code, 0, "{doctor:?}");
    own(&["down"]).ok();
    assert_eq!(own(&["--no-start", "ls"]).code, 4);
    // Here sandboxes live on without their node.
    let found = own(&["ls", "--json"]).json();
    assert_eq!(found[0]["id"], created["sandbox"]["id"]);
    assert_eq!(own(&["exec", "box", "hostname"]).ok(), "box");
    let down = own(&["down", "--all", "--json"]).json();
    assert_eq!(down["deleted"], 1);
    eventually("nothing is left", || linux::processes_of(&home).expect("/proc").is_empty());
}
