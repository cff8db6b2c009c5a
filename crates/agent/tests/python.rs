//! The hook of Python interpreters: they draw new numbers when told to, and never notice otherwise.
//!
//! Uses `/run/ramet/reseed`, which it makes and removes; skipped where that cannot be made (not
//! root, a guest's own) or where there is no Python.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DIRECTORY: &str = "/run/ramet/reseed";
const SCRIPT: &str = "
import os, random, sys
def say(*words): print(*words, flush=True)
random.seed(1)
say(os.getpid())
sys.stdin.readline()
say(random.random())
child = os.fork()
if child == 0:
    say(os.path.exists(f'/run/ramet/reseed/{os.getpid()}'))
    os._exit(0)
os.waitpid(child, 0)
os.unlink(f'/run/ramet/reseed/{child}')
";

fn python(script: &str) -> Command {
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", hook).args(["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The number that a seeded interpreter draws, and whether its forked child is registered.
fn draw(signal: bool) -> (String, String, PathBuf) {
    let mut child = python(SCRIPT).spawn().expect("python runs");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut line = || lines.next().expect("a line").expect("UTF-8");
    let registered = Path::new(DIRECTORY).join(line());
    assert!(registered.exists(), "it is registered");
    if signal {
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-48", &pid]).status().expect("kill runs").success());
    }
    writeln!(child.stdin.take().expect("its input")).expect("told to go on");
    let (number, inherited) = (line(), line());
    assert!(child.wait().expect("it ends").success());
    (number, inherited, registered)
}

#[test]
fn an_interpreter_draws_new_numbers_when_told_to() {
    if python("").status().is_err() || Path::new(DIRECTORY).exists() {
        return eprintln!("skipped: no python3, or this is a guest");
    }
    let script = "import signal; print(signal.getsignal(48) == signal.SIG_DFL)";
    let plain = python(script).output().expect("it runs");
    assert_eq!(plain.stdout, b"True\n", "outside a guest nothing is touched");
    if std::fs::create_dir_all(DIRECTORY).is_err() {
        return eprintln!("skipped: {DIRECTORY} cannot be made");
    }
    let (untold, inherited, registered) = draw(false);
    let (told, ..) = draw(true);
    let gone = !registered.exists();
    std::fs::remove_dir(DIRECTORY).expect("everyone has signed off");
    // Only if it was made above.
    let _ = std::fs::remove_dir("/run/ramet");
    // random.seed(1) gives this in every Python 3.
    assert_eq!(untold, "0.13436424411240122");
    assert_ne!(told, untold);
    assert_eq!(inherited, "True");
    assert!(gone);
}
