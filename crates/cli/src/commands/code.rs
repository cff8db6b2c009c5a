//! `ramet code`: run code in a sandbox, in a context that keeps what it makes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ramet_client::Client;
use ramet_client::api::{CodeError, CodeEvent, CodeResult, RunCode};
use tokio::sync::mpsc;

use crate::context::Context;
use crate::failure::{FAILED, Failure};
use crate::output;
use crate::values;

/// Most code that fits into one request.
const CODE_MAX: u64 = 8 << 20;

const HELP: &str = "\
Variables, imports and functions stay for the next code in the same context, and forks of the
sandbox have them, too. Without code and on a terminal it asks for one piece after the other; a
block ends with an empty line, Ctrl-C interrupts what runs, Ctrl-D ends.
The exit code is 1 if the code failed. With --json every event is one line.

Examples:
  ramet code box -c 'x = 41'; ramet code box -c 'x + 1'
  ramet code box analysis.py --save plots
  ramet code box -l javascript -c 'await fetch(\"http://localhost:3000\")'
  echo 'print(1)' | ramet code box -
  ramet code box";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox
    sandbox: String,
    /// File with code; - is standard input
    #[arg(conflicts_with = "code")]
    file: Option<String>,
    /// Code
    #[arg(long, short)]
    code: Option<String>,
    /// Id of the context
    #[arg(long, conflicts_with = "language")]
    context: Option<String>,
    /// python, javascript, typescript or bash; else what the file's name says, else python
    #[arg(long, short)]
    language: Option<String>,
    /// Environment of the code
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    env: Vec<(String, String)>,
    /// Interrupt the code after this time
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    time: Option<Duration>,
    /// Write images to files in this directory
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
}

/// Does it. The exit code.
pub async fn run(args: Args, context: &Context) -> Result<u8, Failure> {
    let code = source(&args)?;
    let client = context.client().await?;
    let mut shown = Shown::new(args.save.clone(), context)?;
    let Some(code) = code else { return converse(&args, &client, &mut shown).await };
    let request = request(&args, code);
    let ok = execute(&client, &args.sandbox, &request, &mut shown).await?;
    Ok(if ok { 0 } else { FAILED })
}

/// The code, if it is not asked for piece by piece.
fn source(args: &Args) -> Result<Option<String>, Failure> {
    if let Some(code) = &args.code {
        return Ok(Some(code.clone()));
    }
    let piped = !io::stdin().is_terminal();
    match args.file.as_deref() {
        Some("-") => read(io::stdin().lock(), "standard input").map(Some),
        Some(path) => {
            let file = std::fs::File::open(path);
            let file =
                file.map_err(|error| Failure::because(format!("cannot open {path}"), &error))?;
            read(file, path).map(Some)
        }
        None if piped => read(io::stdin().lock(), "standard input").map(Some),
        None => Ok(None),
    }
}

fn read(from: impl Read, name: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let read = from.take(CODE_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::because(format!("cannot read {name}"), &error))?;
    if text.len() as u64 > CODE_MAX {
        return Err(Failure::new(format!("{name} is longer than {}", output::bytes(CODE_MAX))));
    }
    Ok(text)
}

fn request(args: &Args, code: String) -> RunCode {
    let named = args.file.as_deref().filter(|_| args.context.is_none()).and_then(language_of);
    RunCode {
        code,
        context: args.context.clone(),
        language: args.language.clone().or_else(|| named.map(str::to_owned)),
        env: values::map(&args.env),
        timeout_s: args.time.map(|time| time.as_secs().max(1)),
    }
}

/// What the name of a file says.
fn language_of(path: &str) -> Option<&'static str> {
    match Path::new(path).extension()?.to_str()? {
        "py" => Some("python"),
        "js" | "mjs" | "cjs" => Some("javascript"),
        "ts" | "mts" => Some("typescript"),
        "sh" | "bash" => Some("bash"),
        _ => None,
    }
}

/// Runs code and shows what comes of it; whether it succeeded.
async fn execute(
    client: &Client,
    sandbox: &str,
    request: &RunCode,
    shown: &mut Shown,
) -> Result<bool, Failure> {
    let mut events = client.run_code(sandbox, request).await?;
    let mut ok = true;
    while let Some(event) = events.next().await? {
        ok &= !matches!(event, CodeEvent::Error(_));
        let last = matches!(event, CodeEvent::End {});
        shown.show(event)?;
        if last {
            return Ok(ok);
        }
    }
    Err(Failure::new("the node hung up before the code had ended"))
}

/// One piece of code after the other, as it is typed.
async fn converse(args: &Args, client: &Client, shown: &mut Shown) -> Result<u8, Failure> {
    let mut lines = typed();
    let mut block = Block::default();
    loop {
        shown.prompt(block.prompt());
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = tokio::signal::ctrl_c() => {
                block = Block::default();
                eprintln!();
                continue;
            }
        };
        let Some(line) = line else { return Ok(0) };
        let Some(code) = block.add(&line) else { continue };
        let request = request(args, code);
        let outcome = tokio::select! {
            outcome = execute(client, &args.sandbox, &request, shown) => outcome.map(drop),
            // Hanging up interrupts it.
            _ = tokio::signal::ctrl_c() => {
                eprintln!("\ninterrupted");
                Ok(())
            }
        };
        outcome?;
    }
}

/// Lines as they are typed, until the end of input.
fn typed() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Lines that belong together: from one that opens a block to an empty one.
#[derive(Default)]
struct Block {
    lines: Vec<String>,
}

impl Block {
    fn prompt(&self) -> &'static str {
        if self.lines.is_empty() { ">>> " } else { "... " }
    }

    /// Adds a line; the code, once it is whole.
    fn add(&mut self, line: &str) -> Option<String> {
        if self.lines.is_empty() && line.trim().is_empty() {
            return None;
        }
        self.lines.push(line.to_owned());
        let whole = if self.lines.len() == 1 { !self.is_open() } else { line.trim().is_empty() };
        // Brackets and line ends are all over at the line that closes them.
        let closed = self.lines.len() > 1 && !self.is_open() && !self.is_indented();
        (whole || closed).then(|| std::mem::take(&mut self.lines).join("\n"))
    }

    /// Whether more has to follow.
    fn is_open(&self) -> bool {
        let text = self.lines.join("\n");
        let count = |signs: [char; 3]| text.matches(signs).count();
        let ends = text.trim_end();
        count(['(', '[', '{']) > count([')', ']', '}'])
            || ends.ends_with([':', '\\'])
            || ends.starts_with('@') && self.lines.len() == 1
    }

    /// Whether a block of Python is being written.
    fn is_indented(&self) -> bool {
        let opens =
            |line: &String| line.trim_end().ends_with(':') || line.starts_with([' ', '\t', '@']);
        self.lines.iter().any(opens)
    }
}

/// Prints events.
struct Shown {
    save: Option<PathBuf>,
    json: bool,
    colours: bool,
    saved: BTreeMap<&'static str, u32>,
}

impl Shown {
    fn new(save: Option<PathBuf>, context: &Context) -> Result<Self, Failure> {
        if let Some(directory) = &save {
            let made = std::fs::create_dir_all(directory);
            let name = directory.display();
            made.map_err(|error| Failure::because(format!("cannot make {name}"), &error))?;
        }
        let colours = io::stderr().is_terminal();
        Ok(Self { save, json: context.json, colours, saved: BTreeMap::new() })
    }

    fn prompt(&self, prompt: &str) {
        if !self.json {
            eprint!("{prompt}");
        }
    }

    fn show(&mut self, event: CodeEvent) -> Result<(), Failure> {
        if let CodeEvent::Result(result) = &event {
            self.save(result)?;
        }
        if self.json {
            let line = serde_json::to_string(&event);
            output::line(&line.map_err(|error| Failure::because("cannot write JSON", &error))?);
        }
        match event {
            CodeEvent::Failed { problem } => return Err(Failure::new(problem.detail)),
            _ if self.json => {}
            CodeEvent::Stdout(said) => output::print(&said.text),
            CodeEvent::Stderr(said) => {
                let mut stderr = io::stderr().lock();
                // Whoever has closed it does not want to read it.
                drop(stderr.write_all(said.text.as_bytes()).and_then(|()| stderr.flush()));
            }
            CodeEvent::Result(result) => output::line(&summary(&result)),
            CodeEvent::Error(error) => eprintln!("{}", told(&error, self.colours)),
            CodeEvent::Started { .. } | CodeEvent::Keepalive {} | CodeEvent::End {} => {}
        }
        Ok(())
    }

    fn save(&mut self, result: &CodeResult) -> Result<(), Failure> {
        let Some(directory) = self.save.clone() else { return Ok(()) };
        let forms = [("png", &result.png), ("jpeg", &result.jpeg), ("pdf", &result.pdf)];
        for (form, text) in forms {
            let Some(text) = text else { continue };
            let bytes = STANDARD.decode(text);
            let bytes =
                bytes.map_err(|error| Failure::because(format!("the {form} is broken"), &error))?;
            self.write(&directory, form, &bytes)?;
        }
        result.svg.as_ref().map_or(Ok(()), |svg| self.write(&directory, "svg", svg.as_bytes()))
    }

    fn write(&mut self, directory: &Path, form: &'static str, bytes: &[u8]) -> Result<(), Failure> {
        let number = self.saved.entry(form).or_default();
        *number += 1;
        let path = directory.join(format!("result-{number}.{form}"));
        let written = std::fs::write(&path, bytes);
        written.map_err(|error| {
            Failure::because(format!("cannot write {}", path.display()), &error)
        })?;
        eprintln!("{}", path.display());
        Ok(())
    }
}

/// A result on a terminal: its text, or the forms that it has.
fn summary(result: &CodeResult) -> String {
    if let Some(text) = &result.text {
        return text.clone();
    }
    let forms = [
        ("html", result.html.is_some()),
        ("markdown", result.markdown.is_some()),
        ("svg", result.svg.is_some()),
        ("png", result.png.is_some()),
        ("jpeg", result.jpeg.is_some()),
        ("pdf", result.pdf.is_some()),
        ("latex", result.latex.is_some()),
        ("json", result.json.is_some()),
        ("javascript", result.javascript.is_some()),
    ];
    let has: Vec<&str> = forms.iter().filter(|(_, has)| *has).map(|(form, _)| *form).collect();
    format!("<{}>", if has.is_empty() { "a result".to_owned() } else { has.join(", ") })
}

fn told(error: &CodeError, colours: bool) -> String {
    let text = if error.traceback.is_empty() {
        format!("{}: {}", error.name, error.value)
    } else {
        error.traceback.clone()
    };
    if colours { text } else { without_colours(&text) }
}

/// Text without the escapes that a terminal takes for colours.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.find('m').map_or(part, |end| &part[end + 1..]));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(lines: &[&str]) -> Vec<String> {
        let mut block = Block::default();
        lines.iter().filter_map(|line| block.add(line)).collect()
    }

    #[test]
    fn blocks_end_with_an_empty_line_and_brackets_where_they_close() {
        assert_eq!(pieces(&["", "x = 1", "x"]), ["x = 1", "x"]);
        assert_eq!(
            pieces(&["for i in x:", "  print(i)", "", "y"]),
            ["for i in x:\n  print(i)\n", "y"]
        );
        assert_eq!(pieces(&["f(", "1", ")", "y"]), ["f(\n1\n)", "y"]);
        assert_eq!(pieces(&["a \\", "+ b"]), ["a \\\n+ b"]);
    }

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(without_colours("\x1b[0;31mError\x1b[0m: x"), "Error: x");
    }

    #[test]
    fn files_say_their_language() {
        let all = ["a.py", "b.mjs", "c.ts", "d.sh", "e", "f.txt"].map(language_of);
        let expected =
            [Some("python"), Some("javascript"), Some("typescript"), Some("bash"), None, None];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_result_without_text_says_what_it_is() {
        let result =
            CodeResult { png: Some("x".into()), html: Some("y".into()), ..CodeResult::default() };
        assert_eq!(summary(&result), "<html, png>");
    }
}
