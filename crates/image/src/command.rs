//! Run programs: their output goes to whoever shows progress, and if they fail the error says which
//! command it was, what it said last, and what to do.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{Error, Progress, io};

/// Lines of a failed command's output that the error shows.
const TAIL_LINES: usize = 15;
/// Characters of a command line that an error shows.
const SHOWN_MAX: usize = 160;

/// Run to the end. Standard output and error are told as progress.
pub fn run(progress: Progress<'_>, command: &mut Command, advice: &str) -> Result<(), Error> {
    let shown = describe(command);
    let (reader, writer) = std::io::pipe().map_err(io("make a pipe"))?;
    let other = writer.try_clone().map_err(io("make a pipe"))?;
    command.stdin(Stdio::null()).stdout(other).stderr(writer);
    let mut child = command.spawn().map_err(|source| Error::Start {
        command: shown.clone(),
        advice: advice.to_owned(),
        source,
    })?;
    // The command holds the pipe's writing ends; they have to go for the reader to see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let tail = follow(progress, reader).map_err(io(format!("hear `{shown}`")))?;
    let exit = child.wait().map_err(io(format!("wait for `{shown}`")))?;
    if !exit.success() {
        let tail: Vec<String> = tail.iter().map(|line| format!("    {line}")).collect();
        return Err(Error::Program {
            command: shown,
            exit: exit.to_string(),
            tail: tail.join("\n"),
            advice: advice.to_owned(),
        });
    }
    Ok(())
}

/// Run to the end and give its standard output.
pub fn output(command: &mut Command) -> Result<String, Error> {
    let shown = describe(command);
    let output = command.output().map_err(|source| Error::Start {
        command: shown.clone(),
        advice: "is it installed?".to_owned(),
        source,
    })?;
    if !output.status.success() {
        return Err(Error::Program {
            command: shown,
            exit: output.status.to_string(),
            tail: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            advice: "see above".to_owned(),
        });
    }
    String::from_utf8(output.stdout)
        .map_err(|_| Error::Bad(format!("`{shown}` printed what is no UTF-8")))
}

/// Whether a program is in the path, or where administrators have theirs.
pub fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(fixed).any(|dir| dir.join(program).is_file())
}

fn follow(
    progress: Progress<'_>,
    reader: std::io::PipeReader,
) -> std::io::Result<VecDeque<String>> {
    let mut tail = VecDeque::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        if line.is_empty() {
            continue;
        }
        progress(&line);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    Ok(tail)
}

fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    let text = words.join(" ");
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_its_last_words_and_the_advice() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 100; echo broken >&2; exit 3"]);
        let error = run(&|_| {}, &mut command, "try again").unwrap_err().to_string();
        assert!(error.contains("`sh -c"), "{error}");
        assert!(error.contains("broken") && error.contains("try again"), "{error}");
        assert!(error.contains("exit status: 3"), "{error}");
        assert_eq!(error.lines().count(), TAIL_LINES + 2, "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let mut command = Command::new("/nonexistent/program");
        let error = run(&|_| {}, &mut command, "install it").unwrap_err();
        assert!(error.to_string().contains("/nonexistent/program"), "{error}");
        assert!(!in_path("no-such-program-anywhere"));
        assert!(in_path("sh"));
    }
}
