//! What must be so whenever nothing is under way: database, processes and files tell the same story.
//!
//! Every machine that the database names is a process that answers, and is in the state that the database says; there is no
//! other process and no other socket; nothing is half made; layers have no names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

use ramet_engine::control::Connection;
use ramet_node::sandbox::record::Phase;
use ramet_node::store::Store;
use ramet_proto::control::{Outcome, Request, State};
use ramet_tests::linux;

use crate::bed::{Node, patience};

/// Waits until everything fits together.
pub fn holds(node: &Node) {
    let end = Instant::now() + patience();
    loop {
        let differences = differences(node);
        if differences.is_empty() {
            return;
        }
        if Instant::now() > end {
            node.fail(&differences);
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// What does not fit together at this moment, in words.
pub fn differences(node: &Node) -> Vec<String> {
    let run = node.home().join("run");
    let mut wrong = Vec::new();
    let expected = expected(node, &mut wrong);
    let mut pids = BTreeSet::new();
    for (socket, state) in &expected {
        match status(&run.join(socket)) {
            Ok((pid, found)) => {
                pids.insert(pid);
                if found != *state {
                    wrong.push(format!("{socket} is {found:?}, not {state:?}"));
                }
            }
            Err(error) => wrong.push(format!("{socket}, which should be {state:?}: {error}")),
        }
    }
    let processes = linux::processes_of(node.home()).expect("/proc");
    let strangers = processes.difference(&pids);
    wrong.extend(strangers.map(|pid| format!("the monitor {pid} belongs to nobody")));
    let sockets = sockets(&run);
    let strangers = sockets.iter().filter(|socket| !expected.contains_key(*socket));
    wrong.extend(strangers.map(|socket| format!("{socket} belongs to nobody")));
    let layers = fs::read_dir(node.home().join("layers")).expect("layers");
    wrong.extend(layers.map(|entry| format!("a layer with a name: {entry:?}")));
    wrong
}

/// Machines by socket below the run directory, and what each should be doing.
fn expected(node: &Node, wrong: &mut Vec<String>) -> BTreeMap<String, State> {
    let store = Store::open(&node.home().join("ramet.db")).expect("the database opens");
    let (records, checkpoints) = store.load().expect("the database is read");
    let mut expected = BTreeMap::new();
    for record in records {
        match (record.phase, record.machine) {
            (Phase::Running, Some(machine)) => drop(expected.insert(machine.0, State::Running)),
            (Phase::Paused, Some(machine)) => {
                let state = if record.stand_in { State::Frozen } else { State::Paused };
                drop(expected.insert(machine.0, state));
            }
            (Phase::Paused, None) if record.stored.is_some() => {}
            (Phase::Failed | Phase::Gone, None) => {}
            (phase, machine) => {
                wrong.push(format!("{} is {phase:?} with {machine:?}", record.id));
            }
        }
    }
    let boots = store.boots().expect("the database is read");
    let templates = store.templates().expect("the database is read");
    let warm = templates.into_iter().filter_map(|template| Some(template.machine?.0));
    let commits = store.commits().expect("the database is read");
    let frozen = commits.into_iter().filter_map(|commit| Some(commit.machine?.0));
    let frozen =
        frozen.chain(checkpoints.into_iter().filter_map(|checkpoint| Some(checkpoint.machine?.0)));
    let frozen = frozen.chain(boots.into_iter().map(|(_, machine, _)| machine.0)).chain(warm);
    expected.extend(frozen.map(|machine| (machine, State::Frozen)));
    expected
}

/// The machine of a sandbox, if it has one.
pub fn machine_of(node: &Node, id: &str) -> Option<String> {
    let store = Store::open(&node.home().join("ramet.db")).expect("the database opens");
    let (records, _) = store.load().expect("the database is read");
    let record = records.into_iter().find(|record| record.id == id).expect("a sandbox");
    record.machine.map(|machine| machine.0)
}

/// The monitor of a sandbox.
pub fn monitor_of(node: &Node, id: &str) -> u32 {
    let store = Store::open(&node.home().join("ramet.db")).expect("the database opens");
    let (records, _) = store.load().expect("the database is read");
    let record = records.into_iter().find(|record| record.id == id).expect("a sandbox");
    let machine = record.machine.expect("a machine");
    status(&node.home().join("run").join(machine.0)).expect("it answers").0
}

fn status(socket: &Path) -> Result<(u32, State), String> {
    let mut connection = Connection::open(socket).map_err(|error| error.to_string())?;
    match connection.call(Request::Status {}, &[]) {
        Ok(Outcome::Status(status)) => Ok((status.pid, status.state)),
        other => Err(format!("{other:?}")),
    }
}

/// Sockets below the run directory, as `GENERATION/NUMBER.sock`.
fn sockets(run: &Path) -> BTreeSet<String> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let generations = entries(run).filter(|entry| entry.path().is_dir());
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    generations
        .flat_map(|generation| {
            let sockets: Vec<_> = entries(&generation.path()).collect();
            sockets
                .into_iter()
                .map(move |socket| format!("{}/{}", name(&generation), name(&socket)))
        })
        .collect()
}
