//! Pause, checkpoint, rewind; deep and wide trees.

use std::thread;
use std::time::Duration;

use ramet_proto::agent::Exec;
use ramet_proto::control::{Code, State};
use ramet_tests::linux;

use crate::bed::{Guest, eventually, fork_with, guest};

/// A process that counts in memory whose place in the machine is known.
const COUNTER: &str = "\
area = memory()
place = ctypes.c_uint64.from_buffer(area)
place.value = 0
libc = ctypes.CDLL(None)
libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area))), 4096)
def count():
    number = 0
    while True:
        number += 1
        place.value = number
counter = spawn(count)
until(lambda: area[1])
print(physical(area))";

/// What the counter shows, read from outside.
fn shown(guest: &Guest, address: u64) -> u64 {
    let bytes = guest.read_memory(address, 8).unwrap();
    u64::from_le_bytes(bytes.try_into().unwrap())
}

pub fn a_paused_machine_stands_still() {
    let guest = guest("pause");
    let address: u64 = guest.py(COUNTER).parse().unwrap();
    let before = shown(&guest, address);
    assert!(before > 0);
    eventually("it counts", || shown(&guest, address) > before);

    guest.pause().unwrap();
    assert_eq!(guest.status().unwrap().state, State::Paused);
    let paused = shown(&guest, address);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(shown(&guest, address), paused);
    let refused = guest.connect().unwrap().connect(1024).unwrap_err();
    assert_eq!(refused.code(), Some(Code::WrongState));
    guest.pause().expect("once more changes nothing");

    guest.resume().unwrap();
    eventually("it goes on counting", || shown(&guest, address) > paused);
    assert_eq!(guest.name(), "pause");
}

pub fn a_paused_machine_is_forked() {
    let source = guest("resting");
    source.py("value = 1");
    source.pause().unwrap();
    let mut children = source.fork_all(&["awake-1", "awake-2"]);
    children.extend(source.fork_all(&["awake-3"]));
    assert_eq!(source.status().unwrap().state, State::Paused);
    for (number, child) in (1..).zip(&children) {
        assert_eq!(child.name(), format!("awake-{number}"));
        assert_eq!(child.py(&format!("value += {number}; print(value)")), (1 + number).to_string());
    }
    source.resume().unwrap();
    assert_eq!((source.name(), source.py("print(value)")), ("resting".into(), "1".into()));
}

/// Sessions that end while the machine is paused must not touch its memory: the interrupt that goes with it would
/// reach the source and no child.
pub fn what_ends_during_a_pause_ends_after_it() {
    let source = guest("interrupted");
    let argv = ["sleep", "1000"].map(str::to_owned).to_vec();
    let exec = Exec { argv, ..Exec::default() };
    let sessions: Vec<_> = (0..4).map(|_| source.agent().exec(&exec).expect("started")).collect();
    source.pause().unwrap();
    drop(sessions);
    for _ in 0..10 {
        // Each round trip is one more turn of the monitor.
        source.status().unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    for child in source.fork_all(&["child-1", "child-2"]) {
        assert!(child.name().starts_with("child-"));
        assert_eq!(child.sh("pgrep -c sleep"), "4");
    }
    source.resume().unwrap();
    assert_eq!(source.sh("pgrep -c sleep"), "4");
}

pub fn a_checkpoint_is_gone_back_to() {
    let source = guest("present");
    source.py("value = 'then'");
    source.put("/srv/file", "then");
    let kept = source.checkpoint().unwrap();
    assert_eq!(kept.status().unwrap().state, State::Frozen);
    assert_eq!(kept.resume().unwrap_err().code(), Some(Code::WrongState));
    assert_eq!(kept.pause().unwrap_err().code(), Some(Code::WrongState));
    for name in ["past-1", "past-2"] {
        source.py("value = 'now'");
        source.put("/srv/file", "now");
        let past = fork_with(&kept, vec![linux::identity(name)]).pop().unwrap();
        assert_eq!(past.py("print(value)"), "then");
        assert_eq!((past.name().as_str(), past.get("/srv/file").as_str()), (name, "then"));
        past.py("value = 'elsewhere'");
        past.put("/srv/file", "elsewhere");
    }
    assert_eq!(source.py("print(value)"), "now");
    kept.kill().unwrap();
    assert_eq!(source.get("/srv/file"), "now");
}

pub fn ten_generations() {
    let mut machine = guest("generation-0");
    let born = machine.status().unwrap().generation;
    machine.py("line = ['generation-0']");
    machine.py("open('/srv/line', 'a').write(name() + '\\n')");
    for generation in 1..=10 {
        // The parent ends here: a child needs nothing of it.
        machine = machine.fork_as(&format!("generation-{generation}"));
        machine.py("line.append(name()); open('/srv/line', 'a').write(name() + '\\n')");
        assert_eq!(machine.status().unwrap().generation, born + generation);
    }
    let expected: Vec<String> = (0..=10).map(|number| format!("generation-{number}")).collect();
    assert_eq!(machine.get("/srv/line").trim_end(), expected.join("\n"));
    assert_eq!(machine.sh("hostname"), "generation-10");
    assert_eq!(machine.py("print(*line, sep='\\n')"), expected.join("\n"));
}

pub fn sixteen_children() {
    let source = guest("wide");
    source.py("value = 'inherited'");
    let names: Vec<String> = (1..=16).map(|number| format!("wide-{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let children = source.fork_all(&names);
    for (child, name) in children.iter().zip(&names) {
        assert_eq!(child.sh("hostname"), *name);
        assert_eq!(child.py("print(value)"), "inherited");
    }
    assert_eq!(source.name(), "wide");
}
