//! Run programs: their output goes to the progress line, and if they fail the error says which
//! command it was, what it said last, and what to do.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::progress::Status;

/// Lines of a failed command's output that the error shows.
const TAIL_LINES: usize = 15;

/// The cargo that runs us.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Run to the end. Standard output and error are shown as progress.
pub fn run(status: &Status, command: &mut Command, advice: &str) -> Result<()> {
    let shown = describe(command);
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    command.stdin(std::process::Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start `{shown}`; {advice}"))?;
    // The command holds the pipe's writing ends; they have to go for the reader to see the end.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let tail = follow(status, reader)?;
    let exit = child.wait()?;
    if !exit.success() {
        let tail: Vec<String> = tail.iter().map(|line| format!("    {line}")).collect();
        bail!("`{shown}` failed ({exit}); it said:\n{}\n  {advice}", tail.join("\n"));
    }
    Ok(())
}

/// Run to the end and give its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` failed ({}): {}", output.status, stderr.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed no UTF-8"))
}

fn follow(status: &Status, reader: std::io::PipeReader) -> Result<VecDeque<String>> {
    let mut tail = VecDeque::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        if line.is_empty() {
            continue;
        }
        status.detail(&line);
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
    match text.char_indices().nth(160) {
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
        let error = run(&Status::hidden(), &mut command, "try again").unwrap_err().to_string();
        assert!(error.contains("`sh -c"), "{error}");
        assert!(error.contains("broken") && error.contains("try again"), "{error}");
        assert!(error.contains("exit status: 3"), "{error}");
        assert_eq!(error.lines().count(), TAIL_LINES + 2, "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let mut command = Command::new("/nonexistent/program");
        let error = run(&Status::hidden(), &mut command, "install it").unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/program"));
    }
}
