//! Machines that run before all of their memory is there: its pages come when they are touched.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ramet_engine::monitor::Machine;
use ramet_proto::control::{Restore, Start};
use ramet_proto::pager::{Ask, PAGE, Tell};

use crate::bed::{Bed, assert_counts, fill, fork_one, guest_hash, pattern_hash};

/// A saved machine whose memory is somewhere else, and who brings it from there.
struct Away {
    whole: PathBuf,
    directory: PathBuf,
    socket: PathBuf,
    /// Pages that were asked for.
    brought: Arc<AtomicU64>,
    /// Bring everything.
    all: Arc<AtomicBool>,
    bringer: JoinHandle<()>,
}

impl Away {
    /// Of a machine that holds a pattern.
    fn new(bed: &Bed, seed: u64, connections: usize) -> Self {
        let machine = bed.boot(1);
        fill(&machine, seed);
        let run = bed.run.path();
        let (whole, directory) = (run.join("whole"), run.join("away"));
        machine.save(&whole, true).unwrap();
        std::fs::create_dir(&directory).unwrap();
        for name in ["state", "disks"] {
            std::fs::copy(whole.join(name), directory.join(name)).unwrap();
        }
        let length = std::fs::metadata(whole.join("memory")).unwrap().len();
        File::create(directory.join("memory")).unwrap().set_len(length).unwrap();
        let socket = run.join("pager.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (brought, all) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, signal, place) =
            (brought.clone(), all.clone(), (whole.clone(), directory.clone()));
        let bringer = thread::spawn(move || {
            for number in 1..=connections {
                // All but the last connection break after a few pages.
                let pages = if number < connections { 3 } else { u64::MAX };
                bring(&listener, &place.0, &place.1, &counter, &signal, pages);
            }
        });
        Self { whole, directory, socket, brought, all, bringer }
    }

    fn restore(&self, bed: &Bed) -> Machine {
        let machine = bed.start();
        let restore = Restore {
            directory: self.directory.to_str().unwrap().to_owned(),
            start: Start::Run,
            identity: None,
            layers: None,
            bases: Vec::new(),
            volumes: Vec::new(),
            verify: false,
            pager: Some(self.socket.to_str().unwrap().to_owned()),
        };
        machine.restore(restore).unwrap();
        machine
    }
}

/// Serves one connection: what is asked for, then, when told to, everything.
fn bring(
    listener: &UnixListener,
    whole: &Path,
    directory: &Path,
    brought: &AtomicU64,
    all: &AtomicBool,
    wants_max: u64,
) {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut lines = BufReader::new(stream);
    let source = File::open(whole.join("memory")).unwrap();
    let target = File::options().write(true).open(directory.join("memory")).unwrap();
    let copy = |first: u64, count: u64| {
        let mut bytes = vec![0; usize::try_from(count * PAGE).unwrap()];
        let length = source.metadata().unwrap().len();
        let end = (first + count) * PAGE;
        bytes.truncate(usize::try_from(end.min(length) - first * PAGE).unwrap());
        source.read_exact_at(&mut bytes, first * PAGE).unwrap();
        target.write_all_at(&bytes, first * PAGE).unwrap();
    };
    let (mut text, mut wants) = (String::new(), 0);
    while wants < wants_max {
        match lines.read_line(&mut text) {
            Ok(0) => return,
            Ok(_) => {}
            Err(_) if all.load(Ordering::Acquire) => {
                let pages = source.metadata().unwrap().len() / PAGE;
                copy(0, pages);
                let runs = vec![(0, pages)];
                let arrived = Tell::Arrived { file: "memory".to_owned(), runs };
                for tell in [arrived, Tell::Complete {}] {
                    let line = serde_json::to_string(&tell).unwrap() + "\n";
                    lines.get_mut().write_all(line.as_bytes()).unwrap();
                }
                return;
            }
            Err(_) => continue,
        }
        let ask: Ask = serde_json::from_str(&text).unwrap();
        text.clear();
        let Ask::Want { file, first, count } = ask else { continue };
        wants += 1;
        brought.fetch_add(count, Ordering::Relaxed);
        copy(first, count);
        let tell = Tell::Arrived { file, runs: vec![(first, count)] };
        let line = serde_json::to_string(&tell).unwrap() + "\n";
        lines.get_mut().write_all(line.as_bytes()).unwrap();
    }
}

#[test]
fn a_machine_runs_before_its_memory_is_there() {
    let Some(bed) = Bed::new() else { return };
    let away = Away::new(&bed, 21, 1);
    let machine = away.restore(&bed);
    assert_counts(&machine);
    let pages = std::fs::metadata(away.whole.join("memory")).unwrap().len() / PAGE;
    let brought = away.brought.load(Ordering::Relaxed);
    assert!(brought < pages / 4, "{brought} of {pages} pages");
    assert_eq!(guest_hash(&machine), pattern_hash(21));
    // It changes what it has; the rest comes later and does not undo it.
    fill(&machine, 22);
    away.all.store(true, Ordering::Release);
    away.bringer.join().unwrap();
    let child = fork_one(&machine);
    for machine in [&machine, &child] {
        assert_counts(machine);
        assert_eq!(guest_hash(machine), pattern_hash(22));
    }
}

#[test]
fn a_fork_waits_for_the_rest() {
    let Some(bed) = Bed::new() else { return };
    let away = Away::new(&bed, 23, 1);
    let machine = away.restore(&bed);
    let (told, heard) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| told.send(fork_one(&machine)).unwrap());
        assert!(
            heard.recv_timeout(Duration::from_millis(300)).is_err(),
            "it forked half a machine"
        );
        assert_counts(&machine);
        away.all.store(true, Ordering::Release);
        let child = heard.recv().unwrap();
        assert_eq!(guest_hash(&child), pattern_hash(23));
        assert_counts(&child);
    });
    // Saved again, it is the same.
    let directory = bed.run.path().join("again");
    machine.save(&directory, true).unwrap();
    let hot: Vec<(u64, u64)> =
        serde_json::from_slice(&std::fs::read(directory.join("hot")).unwrap()).unwrap();
    let touched: u64 = hot.iter().map(|(_, count)| count).sum();
    let pages = std::fs::metadata(away.whole.join("memory")).unwrap().len() / PAGE;
    assert!(touched > 0 && touched < pages, "{touched} of {pages} pages");
    away.bringer.join().unwrap();
}

#[test]
fn a_connection_that_breaks_stops_nothing_for_good() {
    let Some(bed) = Bed::new() else { return };
    let away = Away::new(&bed, 24, 5);
    let machine = away.restore(&bed);
    assert_counts(&machine);
    assert_eq!(guest_hash(&machine), pattern_hash(24));
    away.all.store(true, Ordering::Release);
    away.bringer.join().unwrap();
    assert_eq!(guest_hash(&fork_one(&machine)), pattern_hash(24));
}
