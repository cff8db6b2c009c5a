//! The commands, one file each: arguments, what is asked of the node, what is printed.

mod bench;
mod branch;
mod checkout;
mod checkpoint;
mod code;
mod commit;
mod completion;
mod cp;
mod diff;
pub mod doctor;
mod down;
mod e2b;
mod each;
mod exec;
mod files;
mod fork;
mod forward;
mod gc;
mod image;
mod inspect;
mod key;
mod link;
mod log;
mod logs;
mod ls;
mod net;
mod network;
mod new;
mod pack;
mod pause;
mod ports;
mod promote;
mod ps;
mod pull;
mod push;
mod refs;
mod resume;
mod rewind;
mod rm;
mod run;
mod secret;
mod set;
mod shell;
mod show;
mod store;
mod tag;
mod template;
mod token;
mod top;
mod tree;
mod uncommit;
mod unpack;
mod up;
mod volume;

use clap::Subcommand;

use crate::context::Context;
use crate::failure::{Failure, OWN_FAILURE, USAGE};

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Start the node
    Up(up::Args),
    /// Stop the node
    Down(down::Args),
    /// Check this machine, point by point
    Doctor(doctor::Args),
    /// Create a sandbox
    New(new::Args),
    /// List sandboxes
    Ls(ls::Args),
    /// Show everything about a sandbox
    Inspect(inspect::Args),
    /// Change labels, limits and habits of a sandbox
    Set(set::Args),
    /// Draw who comes from whom
    Tree(tree::Args),
    /// Run a command in a sandbox
    Exec(exec::Args),
    /// Run code in a sandbox, where what it makes stays for the next code
    Code(code::Args),
    /// Open a shell in a sandbox
    Shell(shell::Args),
    /// Copy files to, from and between sandboxes
    Cp(cp::Args),
    /// Look at and change files in a sandbox
    Files(files::Args),
    /// Show the console of a sandbox
    Logs(logs::Args),
    /// Copy a sandbox while it runs, N times from one instant
    Fork(fork::Args),
    /// Keep moments of a sandbox
    Checkpoint(checkpoint::Args),
    /// Take a sandbox back to a checkpoint
    Rewind(rewind::Args),
    /// Show what differs between two sandboxes
    Diff(diff::Args),
    /// Let a sandbox go on as one of its descendants
    Promote(promote::Args),
    /// Stop sandboxes and put them into the store
    Pause(pause::Args),
    /// Let paused sandboxes go on
    Resume(resume::Args),
    /// Keep a moment of a sandbox for good
    Commit(commit::Args),
    /// List commits
    Log(log::Args),
    /// Show everything about a commit
    Show(show::Args),
    /// Create a sandbox that goes on from a commit
    Checkout(checkout::Args),
    /// List, make and delete names of commits
    Tag(tag::Args),
    /// List, make and delete names of commits that move on
    Branch(branch::Args),
    /// Delete commits
    Uncommit(uncommit::Args),
    /// Bring a commit or template to another place
    Push(push::Args),
    /// Bring a commit or template from another place
    Pull(pull::Args),
    /// Write a commit or template to a file
    Pack(pack::Args),
    /// Take in what was packed
    Unpack(unpack::Args),
    /// Make keys that sign what is moved
    Key(key::Args),
    /// Show what the store keeps, and check it
    Store(store::Args),
    /// Remove what nothing needs from the store
    Gc(gc::Args),
    /// Delete sandboxes
    Rm(rm::Args),
    /// Show what sandboxes use
    Top(top::Args),
    /// Make machines to create sandboxes from
    Template(template::Args),
    /// Make root filesystems of packages
    Image(image::Args),
    /// Make directories that outlive sandboxes
    Volume(volume::Args),
    /// Run one command in a fresh sandbox that is gone afterwards
    Run(run::Args),
    /// Fork a sandbox for each line of input and run a command in all of them at once
    Each(each::Args),
    /// List processes in a sandbox
    Ps(ps::Args),
    /// Measure the node
    Bench(bench::Args),
    /// List what listens in a sandbox
    Ports(ports::Args),
    /// Bring TCP ports of a sandbox to this machine
    Forward(forward::Args),
    /// Make ways to a port for people without a token
    Link(link::Args),
    /// Say what a sandbox may reach, and see what it was refused
    Net(net::Args),
    /// Join sandboxes in networks, and fork, pause, rewind whole networks
    Network(network::Args),
    /// Keep secrets that the node sets on the way out
    Secret(secret::Args),
    /// Make tokens for others
    Token(token::Args),
    /// Print the settings with which E2B's SDKs use the node
    E2b(e2b::Args),
    /// Print a completion script for a shell
    Completion(completion::Args),
}

impl Command {
    /// Does it. The exit code.
    pub async fn run(self, context: &Context) -> Result<u8, Failure> {
        match self {
            Self::Exec(args) => passed_on(exec::run(args, context).await),
            Self::Code(args) => code::run(args, context).await,
            Self::Shell(args) => passed_on(shell::run(args, context).await),
            Self::Run(args) => passed_on(run::run(args, context).await),
            Self::Each(args) => each::run(args, context).await,
            Self::Doctor(args) => doctor::run(&args, context).await,
            Self::Up(args) => done(up::run(args, context).await),
            Self::Down(args) => done(down::run(&args, context).await),
            Self::New(args) => done(new::run(&args, context).await),
            Self::Ls(args) => done(ls::run(&args, context).await),
            Self::Inspect(args) => done(inspect::run(&args, context).await),
            Self::Set(args) => done(set::run(&args, context).await),
            Self::Tree(args) => done(tree::run(&args, context).await),
            Self::Cp(args) => done(cp::run(&args, context).await),
            Self::Files(args) => done(files::run(args, context).await),
            Self::Logs(args) => done(logs::run(&args, context).await),
            Self::Fork(args) => fork::run(args, context).await,
            Self::Checkpoint(args) => done(checkpoint::run(args, context).await),
            Self::Rewind(args) => done(rewind::run(args, context).await),
            Self::Diff(args) => done(diff::run(args, context).await),
            Self::Promote(args) => done(promote::run(&args, context).await),
            Self::Pause(args) => done(pause::run(&args, context).await),
            Self::Resume(args) => done(resume::run(&args, context).await),
            Self::Commit(args) => done(commit::run(&args, context).await),
            Self::Log(args) => done(log::run(&args, context).await),
            Self::Show(args) => done(show::run(&args, context).await),
            Self::Checkout(args) => done(checkout::run(&args, context).await),
            Self::Tag(args) => done(tag::run(&args, context).await),
            Self::Branch(args) => done(branch::run(&args, context).await),
            Self::Uncommit(args) => done(uncommit::run(&args, context).await),
            Self::Push(args) => done(push::run(&args, context).await),
            Self::Pull(args) => done(pull::run(&args, context).await),
            Self::Pack(args) => done(pack::run(&args, context).await),
            Self::Unpack(args) => done(unpack::run(&args, context).await),
            Self::Key(args) => done(key::run(&args, context)),
            Self::Store(args) => store::run(&args, context).await,
            Self::Gc(args) => done(gc::run(&args, context).await),
            Self::Rm(args) => done(rm::run(&args, context).await),
            Self::Template(args) => done(template::run(args, context).await),
            Self::Image(args) => done(image::run(args, context).await),
            Self::Volume(args) => done(volume::run(args, context).await),
            Self::Top(args) => done(top::run(&args, context).await),
            Self::Ps(args) => done(ps::run(&args, context).await),
            Self::Bench(args) => done(bench::run(&args, context).await),
            Self::Ports(args) => done(ports::run(&args, context).await),
            Self::Forward(args) => done(forward::run(args, context).await),
            Self::Link(args) => done(link::run(args, context).await),
            Self::Network(args) => network::run(args, context).await,
            Self::Net(args) => done(net::run(args, context).await),
            Self::Secret(args) => done(secret::run(args, context).await),
            Self::Token(args) => done(token::run(args, context).await),
            Self::E2b(args) => done(e2b::run(&args, context).await),
            Self::Completion(args) => {
                completion::run(&args);
                Ok(0)
            }
        }
    }
}

fn done(result: Result<(), Failure>) -> Result<u8, Failure> {
    result.map(|()| 0)
}

/// Where exit codes are those of a process, failures of ramet get one of their own.
fn passed_on(result: Result<u8, Failure>) -> Result<u8, Failure> {
    result.map_err(|failure| match failure.exit {
        USAGE => failure,
        _ => failure.exit(OWN_FAILURE),
    })
}
