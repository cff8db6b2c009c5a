//! The program where no node runs: exit codes, one line of error, the next step, help.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn ramet(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ramet"));
    command.args(arguments).env("RAMET_HOME", home).env("PATH", "");
    for name in ["RAMET_URL", "RAMET_TOKEN", "RAMET_VMM", "RAMETD", "RAMET_GUEST_DIR"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn no_start_refuses_with_4_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("state");
    for arguments in [
        &["ls"] as &[&str],
        &["tree"],
        &["new", "box"],
        &["fork", "box", "4"],
        &["cp", "box:/a", "."],
        &["ports", "box"],
        &["forward", "box", "80"],
        &["files", "watch", "box:/a"],
        &["rm", "--all"],
        &["pause", "box"],
        &["commit", "box"],
        &["log"],
        &["checkout", "main"],
        &["tag"],
        &["store", "check"],
        &["set", "box", "--auto-resume", "off"],
        &["each", "box", "--count", "2", "--", "true"],
    ] {
        let output = ramet(&home, &[&["--no-start"], arguments].concat());
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("error: no node is running\n  next: "));
        assert!(output.stdout.is_empty());
    }
    assert!(!home.exists());
}

#[test]
fn where_exit_codes_are_those_of_a_process_a_failure_is_125() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [&["--no-start", "exec", "box", "true"], &["--no-start", "run", "true", "x"]] {
        assert_eq!(ramet(dir.path(), arguments).status.code(), Some(125));
    }
    assert_eq!(ramet(dir.path(), &["exec"]).status.code(), Some(2));
}

#[test]
fn wrong_usage_is_2() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &[] as &[&str],
        &["no-such-command"],
        &["fork"],
        &["new", "--memory", "lots"],
        &["files", "ls", "no-colon"],
        &["--no-start", "cp", "a", "b"],
        &["promote", "a", "b", "c"],
        &["tag", "a-name-alone"],
        &["set", "box"],
        &["new", "--commit", "a", "--template", "b"],
        &["log", "-n", "0"],
        &["store", "burn"],
        &["exec", "-d", "-i", "box", "true"],
        &["--no-start", "exec", "-it", "box", "bash"],
        &["--no-start", "shell", "box"],
    ] {
        let output = ramet(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn errors_are_json_if_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let output = ramet(dir.path(), &["ls", "--no-start", "--json"]);
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["exit"], 4);
    assert!(error["error"]["next"].as_str().unwrap().contains("ramet up"));
}

#[test]
fn a_node_elsewhere_that_is_not_there_is_4() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ramet"));
    command.env("RAMET_HOME", dir.path()).env("RAMET_URL", "http://127.0.0.1:1");
    command.env("RAMET_TOKEN", "ramet_x");
    let output = command.arg("ls").output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("no node answers at http://127.0.0.1:1"));
}

#[test]
fn without_its_programs_up_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bin/ramet");
    std::fs::create_dir(dir.path().join("bin")).unwrap();
    // Not by this process: whatever another thread starts meanwhile would have the file open for writing, and it could not be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_ramet")).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut command = Command::new(&program);
    command.env_clear().env("RAMET_HOME", dir.path().join("state")).current_dir(dir.path());
    let output = command.arg("up").output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("ramet-vmm is not here"), "{}", stderr(&output));
    assert!(stderr(&output).contains("ramet doctor"));
}

#[test]
fn down_without_a_node_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let output = ramet(dir.path(), &["down"]);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "No node is running.\n")
    );
}

#[test]
fn doctor_says_what_is_wrong_with_the_fix_and_fails() {
    let dir = tempfile::tempdir().unwrap();
    let output = ramet(dir.path(), &["doctor", "--json"]);
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    for what in ["/dev/kvm", "host mode", "QEMU", "memory", "disk", "guest files", "cgroup v2"] {
        assert!(findings.iter().any(|finding| finding["what"] == what), "{what}");
    }
    let node = findings.iter().find(|finding| finding["what"] == "node").unwrap();
    assert_eq!((node["verdict"].as_str(), node["fix"].as_str()), (Some("warn"), Some("ramet up")));
}

#[test]
fn help_has_exit_codes_and_every_shell_a_completion() {
    let dir = tempfile::tempdir().unwrap();
    let help = stdout(&ramet(dir.path(), &["--help"]));
    assert!(help.contains("Exit codes:") && help.contains("RAMET_HOME"));
    for shell in ["bash", "zsh", "fish"] {
        let output = ramet(dir.path(), &["completion", shell]);
        assert!(output.status.success() && stdout(&output).contains("uncommit"), "{shell}");
    }
}
