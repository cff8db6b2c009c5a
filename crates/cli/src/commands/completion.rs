//! `ramet completion`: a script that completes commands and options.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::output;

const HELP: &str = "\
Examples:
  ramet completion bash > /etc/bash_completion.d/ramet
  ramet completion zsh > ~/.zfunc/_ramet
  ramet completion fish > ~/.config/fish/completions/ramet.fish";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Does it.
pub fn run(args: &Args) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "ramet", &mut script);
    output::print(&String::from_utf8_lossy(&script));
}
