//! `cargo xtask bench`: figures, each beside the floor that was measured in the same run.
//!
//! METHOD.md in this folder says what is measured and how. [`report`] is what all benchmarks share.

mod e2b;
mod engine;
mod floor;
mod linux;
mod net;
mod node;
mod quiet;
mod report;
mod source;
mod store;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Arguments of `cargo xtask bench`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Forks of nano guests on /dev/kvm: pause, first instruction, memory
    Engine(engine::Arguments),
    /// Real guests in the host mode at hand: boot, fork to the first command answered, memory
    Linux(linux::Arguments),
    /// The node in the host mode at hand: create, fork, exec, files, many idle sandboxes
    Node(node::Arguments),
    /// The store, and the node in the host mode at hand: commit, pause, resume warm and cold
    Store(store::Arguments),
    /// The network service beside others, and forks of whole networks
    Net(net::Arguments),
    /// E2B's Python SDK in the host mode at hand, beside the node's own API: create, fork, code, files
    E2b(e2b::Arguments),
    /// The process in which floors are measured
    #[command(hide = true)]
    Floor(floor::Arguments),
}

/// Runs a benchmark.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.bench {
        Bench::Engine(arguments) => engine::run(arguments),
        Bench::Linux(arguments) => linux::run(arguments),
        Bench::Node(arguments) => node::run(arguments),
        Bench::Store(arguments) => store::run(arguments),
        Bench::Net(arguments) => net::run(arguments),
        Bench::E2b(arguments) => e2b::run(arguments),
        Bench::Floor(arguments) => floor::serve(arguments),
    }
}
