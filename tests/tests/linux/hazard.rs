//! What is under way in a machine when it is forked: sessions, writes, waits, load, other forks.

use std::io::{Read, Write};
use std::thread;

use ramet_engine::session::{Output, Process};
use ramet_proto::agent::{Dial, Exec};
use ramet_tests::linux;

use crate::bed::{Guest, bed, command, guest, patience, try_fork};

/// Sends a line and gets it back.
fn echo(process: &mut Process, line: &str) {
    process.set_timeout(Some(patience())).unwrap();
    process.input().write(line.as_bytes()).unwrap();
    let mut seen = Vec::new();
    while seen.len() < line.len() {
        match process.next().unwrap() {
            Output::Stdout(bytes) => seen.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(String::from_utf8_lossy(&seen), line);
}

pub fn the_source_keeps_its_sessions() {
    let source = guest("talker");
    let exec = Exec { stdin: true, ..command(&["cat"]) };
    let mut session = source.agent().exec(&exec).unwrap();
    echo(&mut session, "before");
    let child = source.fork_as("heard");
    echo(&mut session, "after");
    // The child has the process, but not the session; it can be joined there, and is another one.
    let mut joined = child.agent().attach(session.pid()).unwrap();
    echo(&mut joined, "in the child");
    echo(&mut session, "in the source");
    joined.input().end().unwrap();
    assert!(joined.collect().unwrap().ok());
    echo(&mut session, "still");
}

/// A server of one connection that notes its end.
const SERVER: &str = "\
listener = socket.create_server(('127.0.0.1', 0))
ended = memory()
def serve():
    connection, _ = listener.accept()
    with contextlib.suppress(OSError):
        while data := connection.recv(100):
            connection.sendall(data)
    ended[0] = 1
spawn(serve)
print(listener.getsockname()[1])";

pub fn a_flow_stays_with_the_source() {
    let source = guest("flow");
    let port = source.py(SERVER).parse().unwrap();
    let mut flow = source.agent().dial(Dial::Tcp { port }).unwrap();
    flow.set_timeout(Some(patience())).unwrap();
    let mut bounce = |text: &[u8; 6]| {
        let mut back = [0; 6];
        flow.write_all(text).unwrap();
        flow.read_exact(&mut back).unwrap();
        assert_eq!(back, *text);
    };
    bounce(b"before");
    let child = source.fork_as("cut");
    bounce(b"after!");
    // Whoever is at the other end is the source's peer, and not the child's.
    child.py_until("ended[0]");
    bounce(b"still!");
    assert_eq!(source.py("print(ended[0])"), "0");
}

pub fn disks_are_separate() {
    let source = guest("disk");
    source.put("/srv/file", "old");
    source.put("/srv/kept", "kept");
    let children = source.fork_all(&["disk-1", "disk-2"]);
    let all = [&source, &children[0], &children[1]];
    for machine in all {
        machine.py("put('/srv/file', name()); put('/srv/of-' + name(), 'own'); os.sync()");
    }
    for machine in all {
        let name = machine.name();
        assert_eq!(
            (machine.get("/srv/file"), machine.get("/srv/kept")),
            (name.clone(), "kept".into())
        );
        let own =
            machine.py("print(*(file for file in os.listdir('/srv') if file.startswith('of-')))");
        assert_eq!(own, format!("of-{name}"));
    }
}

/// Fills file and memory with what belongs to a number.
fn fill(guest: &Guest, number: u32) {
    guest.py(&format!(
        "array = numpy.full(1 << 20, {number}, dtype=numpy.uint8)\n\
         open('/srv/blob', 'wb').write(bytes(array)); get('/srv/blob')"
    ));
}

/// Asserts that file and memory belong to this number alone.
fn assert_filled(guest: &Guest, number: u32) {
    let told = guest.py("stored = numpy.frombuffer(get('/srv/blob'), dtype=numpy.uint8)\n\
         print(len(stored), stored.min(), stored.max(), array.min(), array.max())");
    assert_eq!(told, format!("1048576 {number} {number} {number} {number}"));
}

pub fn a_second_fork_leaves_the_first_child_alone() {
    let source = guest("diverging");
    fill(&source, 1);
    let first = source.fork_as("first");
    fill(&source, 2);
    let second = source.fork_as("second");
    fill(&source, 3);
    assert_filled(&first, 1);
    fill(&first, 11);
    assert_filled(&second, 2);
    assert_filled(&source, 3);
    source.0.kill().unwrap();
    assert_filled(&first, 11);
    assert_filled(&second, 2);
}

pub fn forks_at_once_are_all_served() {
    let source = guest("busy");
    source.py("value = 41");
    let broods: Vec<Vec<Guest>> = thread::scope(|scope| {
        let forks: Vec<_> = (0..3)
            .map(|number| {
                let identities = (0..2).map(move |i| linux::identity(&format!("busy-{number}{i}")));
                let source = &source;
                scope.spawn(move || try_fork(source, identities.collect()).unwrap())
            })
            .collect();
        forks.into_iter().map(|fork| fork.join().unwrap()).collect()
    });
    for (number, brood) in broods.iter().enumerate() {
        for (i, child) in brood.iter().enumerate() {
            assert_eq!(child.name(), format!("busy-{number}{i}"));
            assert_eq!(child.py("value += 1; print(value)"), "42");
        }
    }
    assert_eq!(source.py("print(value)"), "41");
}

/// Writes files as fast as it can, and notes each one that has reached the disk.
const WRITER: &str = "\
import hashlib
def write():
    os.makedirs('/srv/heavy')
    with open('/srv/manifest', 'a') as manifest:
        number = 0
        while not os.path.exists('/run/enough'):
            content = os.urandom(4096) * 16
            with open(f'/srv/heavy/{number}', 'wb') as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            print(number, hashlib.sha256(content).hexdigest(), file=manifest, flush=True)
            os.fsync(manifest.fileno())
            number += 1
    os.rename('/srv/manifest', '/srv/complete')
spawn(write)
size = lambda: os.path.getsize('/srv/manifest')
until(lambda: os.path.exists('/srv/manifest') and size() > 200)";

/// Stops the writer, a few files later, and compares all files with what was noted.
const WRITTEN: &str = "\
written = size()
until(lambda: size() > written + 200)
put('/run/enough', '')
until(lambda: os.path.exists('/srv/complete'))
os.sync()
lines = [line.split() for line in get('/srv/complete').decode().splitlines()]
digest = lambda name: hashlib.sha256(get(f'/srv/heavy/{name}')).hexdigest()
print(len(lines) > 4, *[name for name, noted in lines if digest(name) != noted])
log = os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)
try:
    while record := os.read(log, 8192).lower():
        if b'i/o error' in record or b'ext4-fs error' in record or b'blk_update' in record:
            print(record)
except BlockingIOError:
    pass";

pub fn a_fork_during_heavy_writes() {
    let source = guest("heavy");
    source.py(WRITER);
    let children = source.fork_all(&["heavy-1", "heavy-2"]);
    for machine in children.iter().chain([&source]) {
        assert_eq!(machine.py(WRITTEN), "True", "no file differs, no error was logged");
    }
}

/// Waits in epoll_wait(2) itself, because Python's own poll hides an interruption. The process
/// takes no signal for new random numbers, so nothing has a reason to disturb it.
const WAITER: &str = "\
woken = memory()
reading, writing = os.pipe()
def wait():
    signal.signal(48, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True)
    poll = select.epoll()
    poll.register(reading, select.EPOLLIN)
    events = ctypes.create_string_buffer(12)
    woken[0] = 1
    count = libc.epoll_wait(poll.fileno(), events, 1, -1)
    woken[1] = ctypes.get_errno()
    woken[2] = count & 0xff
waiter = spawn(wait)
sleeping = lambda: open(f'/proc/{waiter}/stat').read().rsplit(')')[1].split()[0] == 'S'
until(lambda: woken[0] and sleeping())";

pub fn a_wait_in_epoll_is_not_disturbed() {
    let source = guest("waiting");
    source.py(WAITER);
    let children = source.fork_all(&["waiting-1", "waiting-2"]);
    for machine in children.iter().chain([&source]) {
        assert_eq!(machine.py("print(sleeping(), *woken[1:3])"), "True 0 0");
        machine.py("os.write(writing, b'x')");
        machine.py_until("woken[2]");
        assert_eq!(machine.py("print(*woken[1:3])"), "0 1", "errno and events");
    }
}

/// A process on each vCPU that counts twice, so that a cut in between is seen.
const COUNTERS: &str = "\
counts = memory()
table = numpy.frombuffer(counts, dtype=numpy.int64)
def count(vcpu):
    os.sched_setaffinity(0, [vcpu])
    while True:
        table[vcpu * 2] += 1
        table[vcpu * 2 + 1] += 1
counters = [spawn(count, vcpu) for vcpu in (0, 1)]
until(lambda: table[0] > 1000 and table[2] > 1000)";

/// Both vCPUs go on, and no count is cut in two.
const COUNTED: &str = "\
seen = list(table[:4])
until(lambda: table[0] > seen[0] + 100 and table[2] > seen[2] + 100)
for pid in counters: os.kill(pid, signal.SIGSTOP)
state = lambda pid: open(f'/proc/{pid}/stat').read().rsplit(')')[1].split()[0]
until(lambda: all(state(pid) == 'T' for pid in counters))
print(table[0] - table[1] in (0, 1), table[2] - table[3] in (0, 1))
for pid in counters: os.kill(pid, signal.SIGCONT)";

pub fn two_vcpus_under_load() {
    let mut source = bed().pair_seed().fork_as("load");
    source.py(COUNTERS);
    for _ in 0..2 {
        let mut children = source.fork_all(&["load-1", "load-2"]);
        // Machines end as soon as they are looked at: there are fewer processors than vCPUs.
        assert_eq!(children.pop().map(|child| child.py(COUNTED)).as_deref(), Some("True True"));
        assert_eq!(source.py(COUNTED), "True True");
        source = children.remove(0);
    }
    assert_eq!(source.py(COUNTED), "True True");
}
