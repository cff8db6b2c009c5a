//! `ramet exec`: run a command in a sandbox.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use ramet_client::Exited;
use ramet_client::api::{ExecRequest, StreamExec};

use crate::context::Context;
use crate::failure::Failure;
use crate::stream::{self, Standard};
use crate::values::{self, Line};
use crate::{output, terminal};

/// Most standard input that fits into one request.
const STDIN_MAX: u64 = 8 << 20;

const HELP: &str = "\
One word is a line for the shell; several are a program and its arguments.
The exit code is that of the process; 124 if its time was over, 125 if ramet itself failed.
With --json the output is collected and printed when the process has ended.

Examples:
  ramet exec box -- python3 -c 'print(1)'
  ramet exec box 'cd /tmp && ls | wc -l'
  echo hello | ramet exec -i box cat
  ramet exec -it box bash
  ramet exec -d box -- ./server; ramet exec --attach 312 box";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    pub options: Options,
    /// Pass standard input on
    #[arg(long, short)]
    pub interactive: bool,
    /// Run it on a terminal
    #[arg(long, short)]
    pub terminal: bool,
    /// Leave it running and print its pid
    #[arg(long, short, conflicts_with_all = ["interactive", "terminal"])]
    pub detach: bool,
    /// Join a process that was started before, by its pid
    #[arg(long, value_name = "PID", conflicts_with_all = ["detach", "command"])]
    pub attach: Option<i32>,
    /// Sandbox
    pub sandbox: String,
    /// What to run
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required_unless_present = "attach")]
    pub command: Vec<String>,
}

/// How a process is run; also of `ramet run` and `ramet each`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Environment of the process
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = values::pair)]
    pub env: Vec<(String, String)>,
    #[command(flatten)]
    pub place: Place,
}

/// The part of it that has no other meaning anywhere.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Place {
    /// Working directory; the user's home when absent
    #[arg(long, short = 'w', value_name = "DIR")]
    pub cwd: Option<String>,
    /// User, or user:group; root when absent
    #[arg(long, short, value_name = "USER")]
    pub user: Option<String>,
    /// Kill the process after this time
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub time: Option<Duration>,
}

impl Place {
    /// A process on a stream.
    pub fn stream(
        &self,
        line: Line,
        env: BTreeMap<String, String>,
        standard: Standard,
    ) -> StreamExec {
        let (argv, command) = line.fields();
        let mut exec = StreamExec {
            argv,
            command,
            env,
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            stdin: standard != Standard::Output,
            terminal: (standard == Standard::Terminal).then(terminal::size),
            timeout_ms: self.milliseconds(),
        };
        if let (Some(_), Ok(term)) = (exec.terminal, std::env::var("TERM")) {
            exec.env.entry("TERM".to_owned()).or_insert(term);
        }
        exec
    }

    /// A process whose output is collected.
    pub fn request(&self, line: Line, env: BTreeMap<String, String>) -> ExecRequest {
        let (argv, command) = line.fields();
        ExecRequest {
            argv,
            command,
            env,
            cwd: self.cwd.clone(),
            user: self.user.clone(),
            timeout_ms: self.milliseconds(),
            ..ExecRequest::default()
        }
    }

    fn milliseconds(&self) -> Option<u64> {
        self.time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

/// What of ramet's own the process gets.
pub fn standard(interactive: bool, terminal: bool) -> Standard {
    match (interactive, terminal) {
        (_, true) => Standard::Terminal,
        (true, false) => Standard::Input,
        (false, false) => Standard::Output,
    }
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<u8, Failure> {
    if context.json && (args.terminal || args.attach.is_some()) {
        return Err(Failure::usage("--json collects output; it goes with neither -t nor --attach"));
    }
    if args.terminal {
        terminal::needed()?;
    }
    let client = context.client().await?;
    let standard = standard(args.interactive, args.terminal);
    if let Some(pid) = args.attach {
        return stream::run(client.attach(&args.sandbox, pid).await?, standard).await;
    }
    let line = Line::new(&args.command);
    let env = values::map(&args.options.env);
    if context.json && !args.detach {
        return collect(&args, args.options.place.request(line, env), context).await;
    }
    let exec = args.options.place.stream(line, env, standard);
    let mut process = client.exec_stream(&args.sandbox, exec).await?;
    if args.detach {
        let value = serde_json::json!({ "pid": process.pid() });
        context.show(&value, |_| format!("{}\n", process.pid()));
        process.input().close().await?;
        return Ok(0);
    }
    stream::run(process, standard).await
}

async fn collect(args: &Args, mut request: ExecRequest, context: &Context) -> Result<u8, Failure> {
    if args.interactive {
        let mut text = String::new();
        let read = std::io::stdin().lock().take(STDIN_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| Failure::because("cannot read standard input", &error))?;
        request.stdin = Some(text);
    }
    let result = context.client().await?.exec(&args.sandbox, &request).await?;
    output::json(&result);
    Ok(stream::exit_code(&Exited {
        exit_code: result.exit_code,
        signal: result.signal,
        timed_out: result.timed_out,
        dropped_bytes: 0,
    }))
}
