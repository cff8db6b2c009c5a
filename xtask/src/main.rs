//! `cargo xtask`: everything around the workspace that is not a program of the product.
//!
//! One file per command; this one only reads the command line and dispatches.

mod build;
mod bench;
mod command;
mod guest;
mod host;
mod packages;
mod progress;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Build and test tasks of the ramet workspace"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure
    Bench(bench::Arguments),
    /// Make the kernel, initramfs and disks of guests in target/guest/
    Guest(guest::Arguments),
    /// Run a command in the software host
    Host(host::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Guest(arguments) => guest::run(&arguments),
        Task::Host(arguments) => host::run(arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
