//! placeholder
use anyhow::Result;
use std::process::ExitCode;
/// x
#[derive(clap::Args)]
pub struct Arguments {}
/// x
pub fn run(_arguments: Arguments) -> Result<ExitCode> { Ok(ExitCode::SUCCESS) }
