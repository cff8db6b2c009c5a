//! `ramet`: the command line of a node.
//!
//! Every command is a file in `commands`: it reads its arguments, asks the node through
//! `ramet-client`, and prints. [`context::Context`] finds the node, or starts one; `node` is what
//! starting one takes. Errors are one line and the next step; exit codes are in [`failure`].
//!
//! What it refuses: to decide. Names, limits and states are the node's business; the command line
//! passes on what it says.

mod commands;
mod context;
mod failure;
mod node;
mod output;
mod progress;
#[cfg(test)]
mod samples;
mod stream;
mod terminal;
mod transit;
mod values;

use std::process::ExitCode;

use clap::Parser;

use commands::Command;
use context::Context;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed
  2    wrong usage
  3    no such sandbox, checkpoint, commit, template, image, file or process
  4    no node: not running, not reachable, or the token is wrong
  5    the state does not allow it (name taken, paused, not a descendant, ...)
  6    not enough memory, not ready yet, or the store does not answer
  7    the guest does not answer
  exec, shell and run pass on the exit code of the process (128 + N if signal N killed it, 124 if
  its time was over); 125 is then a failure of ramet itself.

Environment:
  RAMET_URL, RAMET_TOKEN   a node somewhere else
  RAMET_HOME               state of the own node; else $XDG_STATE_HOME/ramet or ~/.local/state/ramet
  RAMET_VMM, RAMETD        the programs ramet-vmm and rametd; else beside ramet, or in PATH
  RAMET_NET                likewise ramet-net, the network of sandboxes
  RAMET_GUEST_DIR          files of the guest; else the directory `guest` in the state
  NO_COLOR                 no colours

Examples:
  ramet new box                              a sandbox
  ramet exec box -- python3 -c 'print(1)'    a command in it
  ramet fork box 4                           four copies of it, running, from one instant
  ramet tree                                 who comes from whom
  ramet pause box                            into the store; it costs nothing until `ramet resume`
  ramet commit box -m 'tests pass'           keep this moment for good; see `ramet checkout`
  ramet template build python                a warm machine with pandas, to create sandboxes from
  seq 8 | ramet each box --best max --promote -- 'python3 try.py --seed {}'
                                             eight attempts at once; box goes on as the best one";

/// Fork running machines.
///
/// A sandbox is a microVM; a fork copies it while it runs: memory, disk, processes. Sandboxes are
/// given by name, id, or a unique beginning of the id. The first command that needs a node starts one.
#[derive(Parser)]
#[command(name = "ramet", version, after_long_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Do not start a node; fail if none runs
    #[arg(long, global = true)]
    no_start: bool,
    /// Address of the node, instead of the own one
    #[arg(long, global = true, env = "RAMET_URL", value_name = "URL")]
    url: Option<String>,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let context = Context::new(cli.json, !cli.no_start, cli.url);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(cli.command.run(&context));
            // Threads that read files or standard input must not hold up the end.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(failure::Failure::new(format!("cannot start: {error}"))),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print(context.json, output::Paint::stderr());
            ExitCode::from(failure.exit)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does_and_gives_an_example() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            let help = command.get_after_long_help().or(command.get_after_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("ramet "), "{} has no example", command.get_name());
        }
    }

    #[test]
    fn words_after_the_sandbox_are_the_command() {
        let cli = Cli::try_parse_from(["ramet", "exec", "-it", "box", "ls", "-la"]).unwrap();
        let Command::Exec(exec) = cli.command else { panic!("another command") };
        assert_eq!(exec.command, ["ls", "-la"]);
        assert!(exec.interactive && exec.terminal);
        let cli = Cli::try_parse_from(["ramet", "exec", "box", "--", "ls", "--json"]).unwrap();
        assert!(!cli.json);
    }

    #[test]
    fn global_options_stand_anywhere() {
        let cli = Cli::try_parse_from(["ramet", "ls", "--json", "--no-start"]).unwrap();
        assert!(cli.json && cli.no_start);
    }
}
