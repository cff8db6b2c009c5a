//! `cargo xtask`: everything around the workspace that is not a program of the product.
//!
//! One file per command; this one only reads the command line and dispatches.

mod archives;
mod bench;
mod build;
mod check;
mod command;
mod demo;
mod e2b_tests;
mod guest;
mod host;
mod interpreter_tests;
mod linux_tests;
mod node_tests;
mod packages;
mod place;
mod progress;
mod python;
mod schemathesis;
mod small;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build and test tasks of the ramet workspace")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show the main job: install and make what is missing, boot, fork, run attempts, keep the winner
    Demo(demo::Arguments),
    /// Test: install and make what is missing, check, run what CI runs; with --all everything
    Test(test::Arguments),
    /// Take random walks, crashes and faults that nobody has taken yet
    Soak(test::soak::Arguments),
    /// Check format, lints, house rules and dependencies
    Check,
    /// Measure
    Bench(bench::Arguments),
    /// Make the kernel, initramfs and disks of guests in target/guest/
    Guest(guest::Arguments),
    /// Run a command in the software host
    Host(host::Arguments),
    /// Run the tests of the code interpreter and of what guests' interpreters get
    InterpreterTests,
    /// Run the tests with Linux guests, here or in the software host
    LinuxTests(linux_tests::Arguments),
    /// Run the stories of the node with Linux guests, here or in the software host
    NodeTests(linux_tests::Arguments),
    /// Run E2B's own SDKs, newest and older, against a node
    E2bTests(e2b_tests::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Demo(arguments) => demo::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Soak(arguments) => test::soak::run(&arguments),
        Task::Check => check::run(),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Guest(arguments) => guest::run(&arguments),
        Task::Host(arguments) => host::run(arguments),
        Task::InterpreterTests => interpreter_tests::run(),
        Task::LinuxTests(arguments) => linux_tests::run(&arguments),
        Task::NodeTests(arguments) => node_tests::run(&arguments),
        Task::E2bTests(arguments) => e2b_tests::run(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
