//! Stories of a node: a real `rametd` with real guests, through the client and through the command line.
//!
//! `cargo xtask node-tests` runs this where guests can run: here if the processor runs guest kernels, otherwise in
//! the software host. Started by itself on a machine that cannot, it says so and does nothing.
//!
//! One file is one topic. To add a story, write a function; to add a topic, write a file with a list `STORIES` and name
//! it twice below. A story takes its sandboxes from [`bed::fresh`] or [`bed::node`], in whose node others live at
//! the same time: it looks only at its own. A story that harms a node starts one of its own ([`bed::Node::new`]),
//! which boots a template and is therefore slow.

mod access;
mod bed;
mod branches;
mod checkpoints;
mod clock;
mod command_line;
mod crash;
mod create;
mod crowd;
mod disk;
mod durable;
mod events;
mod exec;
mod files;
mod fork;
mod groups;
mod hostile;
mod leak;
mod limits;
mod moves;
mod network;
mod pause;
mod programs;
mod promote;
mod reach;
mod remote;
mod short;
mod templates;
mod truth;
mod volumes;

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::Trial;
use ramet_tests::suite::{self, Suite};

/// No story takes this long, even in an emulated host, and even if it is asked to do more.
const STORY_MAX: Duration = Duration::from_secs(900);

/// A story's name and what happens in it.
type Story = (&'static str, fn());

/// Stories of a module, by the names of their functions.
#[macro_export]
macro_rules! stories {
    ($($story:ident),+ $(,)?) => {
        &[$((concat!(module_path!(), "::", stringify!($story)), $story as fn())),+]
    };
}

/// Topics whose stories share a node.
const SHARED: &[&[Story]] = &[
    create::STORIES,
    exec::STORIES,
    files::STORIES,
    fork::STORIES,
    checkpoints::STORIES,
    promote::STORIES,
    branches::STORIES,
    pause::STORIES,
    durable::STORIES,
    volumes::STORIES,
    reach::STORIES,
    network::STORIES,
    groups::STORIES,
    templates::STORIES,
    limits::STORIES,
    events::STORIES,
    access::STORIES,
    command_line::STORIES,
    hostile::STORIES,
    crowd::STORIES,
    leak::STORIES,
    short::SHARED,
];

/// Topics whose stories start nodes of their own.
const OWN: &[&[Story]] = &[
    programs::STORIES,
    remote::STORIES,
    moves::STORIES,
    crash::STORIES,
    disk::STORIES,
    clock::STORIES,
    short::OWN,
];

/// What `cargo xtask test` runs: of each topic what a user would notice first.
const CORE: &[&str] = &[
    "fork::children_share_an_instant_and_diverge",
    "fork::nothing_of_the_identity_is_inherited",
    "fork::secrets_are_inherited_only_if_that_is_said",
    "checkpoints::a_sandbox_goes_back",
    "promote::the_winner_goes_on_as_its_parent",
    "branches::branches_are_told_apart",
    "volumes::forks_part_from_the_writer",
    "network::nothing_is_reached_without_permission",
    "groups::a_connection_goes_on_in_every_copy",
    "short::a_context_is_forked",
    "short::a_state_goes_through_a_bucket_to_another_node",
    "command_line::the_first_command_starts_a_node",
];

fn main() -> ExitCode {
    let suite = Suite {
        command: "cargo xtask node-tests",
        tests: topics().into_iter().flatten().map(trial).collect(),
        core: CORE,
        processes: bed::processes,
        end: bed::end,
    };
    suite.run()
}

/// All topics, or those that `RAMET_TEST_PART` names: two hosts beside each other run a part each.
fn topics() -> Vec<&'static [Story]> {
    match std::env::var("RAMET_TEST_PART").as_deref() {
        Ok("shared") => SHARED.to_vec(),
        Ok("own") => OWN.to_vec(),
        Ok("core") | Err(_) => [SHARED, OWN].concat(),
        Ok(other) => panic!("RAMET_TEST_PART is {other}; it may be `shared`, `own` or `core`"),
    }
}

fn trial((name, story): &Story) -> Trial {
    suite::long_trial(name.strip_prefix("node::").unwrap_or(name), STORY_MAX, *story)
}
