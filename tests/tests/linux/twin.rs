//! A fork must not be a twin: random numbers, clocks, names and secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ramet_proto::agent::Identity;
use ramet_tests::linux;

use crate::bed::{Guest, bed, fork_with, guest};

/// One draw from each source of random numbers that an interpreter has.
const DRAWS: &str = "\
print('getrandom', os.getrandom(16).hex())
print('urandom', open('/dev/urandom', 'rb').read(16).hex())
print('random', random.random())
print('numpy', numpy.random.random())
print('uuid4', uuid.uuid4())
print('kernel', open('/proc/sys/kernel/random/uuid').read().strip())";

/// The draws of a machine, by source.
fn draws(guest: &Guest) -> BTreeMap<String, String> {
    let text = guest.py(DRAWS);
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub fn random_numbers_differ() {
    let source = guest("dice");
    // A running interpreter whose generators have a known state.
    source.py("random.seed(1); numpy.random.seed(1)");
    let children = source.fork_all(&["dice-1", "dice-2"]);
    let all: Vec<_> = [&source, &children[0], &children[1]].map(draws).to_vec();
    assert_eq!(all[0].len(), 6, "{:?}", all[0]);
    let repeats = all[0].keys().filter(|name| {
        let values: BTreeSet<&str> = all.iter().map(|draws| draws[*name].as_str()).collect();
        values.len() < all.len()
    });
    assert_eq!(repeats.collect::<Vec<_>>(), [""; 0], "of {all:?}");
    // The source is what it was.
    assert_eq!(all[0]["random"], source.py("print(random.Random(1).random())"));
}

pub fn a_deterministic_fork_repeats() {
    let source = guest("loaded");
    source.py("random.seed(2); numpy.random.seed(2)");
    let identities = ["loaded-1", "loaded-2"]
        .map(|name| Identity { deterministic: true, ..linux::identity(name) });
    let children = fork_with(&source, identities.to_vec());
    let (one, other) = (draws(&children[0]), draws(&children[1]));
    assert_eq!((&one["random"], &one["numpy"]), (&other["random"], &other["numpy"]));
    // The kernel's numbers are never repeated.
    for name in ["getrandom", "urandom", "uuid4", "kernel"] {
        assert_ne!(one[name], other[name], "{name}");
    }
}

/// A process that does nothing but seed its generators, so that a fork mostly comes in the midst of that.
const SOWER: &str = "\
count = memory()
def sow():
    for number in range(1 << 60):
        numpy.random.seed(); random.seed()
        struct.pack_into('Q', count, 0, number)
spawn(sow)";
/// It goes on, and so does the session.
const SOWS: &str = "seen = count[:8]; until(lambda: count[:8] != seen); numpy.random.random()";

pub fn an_interpreter_is_forked_while_it_seeds() {
    let mut last = guest("sower");
    last.py(SOWER);
    for generation in 0..8 {
        // The next fork leaves no time to be done with the one before.
        let next = last.fork_as("sown").fork_as("sown");
        if generation % 4 == 1 {
            let directory = bed().directory.path().join(format!("sown-{generation}"));
            let saved = next.fork_as("sown");
            saved.save(&directory, true).unwrap();
            bed().restore(&directory, "sown").py(SOWS);
        }
        next.py(SOWS);
        last.py(SOWS);
        last = next;
    }
}

pub fn names_are_new() {
    let source = guest("mother");
    let names = "print(name())\n\
                 files = '/etc/hostname', '/run/ramet/instance', '/etc/machine-id', '/run/ramet/token'\n\
                 for file in files: print(open(file).read().strip())";
    let before = source.py(names);
    let children = source.fork_all(&["daughter", "son"]);
    let (daughter, son) = (children[0].py(names), children[1].py(names));
    assert!(daughter.starts_with("daughter\ndaughter\ndaughter-"), "{daughter}");
    assert!(son.starts_with("son\nson\nson-"), "{son}");
    let lines = [&before, &daughter, &son].into_iter().flat_map(|text| text.lines().skip(1));
    let distinct: BTreeSet<&str> = lines.collect();
    assert_eq!(distinct.len(), 12, "four names of three machines: {distinct:?}");
    assert_eq!(source.py(names), before);
}

fn with_secrets(hostname: &str, secrets: &[(&str, &str)]) -> Identity {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Identity {
        secrets: secrets.iter().map(own).collect(),
        env: BTreeMap::from([("WHERE".to_owned(), hostname.to_owned())]),
        ..linux::identity(hostname)
    }
}

pub fn secrets_are_not_inherited() {
    let holder = with_secrets("holder", &[("API_KEY", "k-1"), ("DB_PASS", "p-1")]);
    let source = fork_with(bed().seed(), vec![holder]).pop().unwrap();
    let heirs = vec![with_secrets("heir", &[("API_KEY", "k-2")]), with_secrets("other", &[])];
    let children = fork_with(&source, heirs);
    let told = "cd /run/ramet/secrets; for name in *; do test -f $name && cat $name && echo; done; \
                echo $WHERE $API_KEY $DB_PASS";
    assert_eq!(source.sh(told), "k-1\np-1\nholder k-1 p-1");
    assert_eq!(children[0].sh(told), "k-2\nheir k-2");
    assert_eq!(children[1].sh(told), "other");
    let files = "paths = [os.path.join(at, name) for at, _, names in os.walk('/run/ramet') for name in names]\n\
                 texts = [open(path, 'rb').read() for path in paths if os.path.isfile(path)]\n\
                 print(any(secret in text for text in texts for secret in (b'k-1', b'p-1')))";
    assert_eq!(source.py(files), "True");
    assert_eq!(children[1].py(files), "False");
}

/// Seconds that the guest's wall clock is away from this machine's.
pub fn clock_error(guest: &Guest) -> f64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let before = now();
    let there: f64 = guest.py("print(time.time())").parse().unwrap();
    let after = now();
    if there < before { before - there } else { (there - after).max(0.0) }
}

/// Notes every step back of the monotonic clock.
const CLOCK_WATCHER: &str = "\
steps = memory()
def watch_clock():
    last, turns = time.monotonic_ns(), 0
    while True:
        now = time.monotonic_ns()
        back = struct.unpack_from('Q', steps, 8)[0] + (now < last)
        last, turns = now, turns + 1
        struct.pack_into('QQ', steps, 0, turns, back)
        time.sleep(0.002)
watcher = spawn(watch_clock)
turns = lambda: struct.unpack_from('Q', steps)[0]
until(turns)";

pub fn clocks_go_on() {
    let source = guest("clock");
    source.py(CLOCK_WATCHER);
    let children = source.fork_all(&["clock-1", "clock-2"]);
    let kept = source.checkpoint().unwrap();
    // A moment that the checkpoint sleeps through.
    thread::sleep(Duration::from_secs(3));
    let woken = fork_with(&kept, vec![linux::identity("clock-3")]).pop().unwrap();
    for machine in [&woken].into_iter().chain(&children).chain([&source]) {
        machine.py("turned = turns()");
        machine.py_until("turns() > turned");
        assert_eq!(machine.py("print(struct.unpack_from('Q', steps, 8)[0])"), "0");
        let error = clock_error(machine);
        assert!(error < 1.0, "{}: off by {error} s", machine.name());
        machine.py("os.kill(watcher, 9)");
    }
}

/// Two ways to wait for a while: a sleeping process, and a timer descriptor in epoll.
const TIMERS: &str = "\
fired = memory()
def sleeper():
    time.sleep(2)
    fired[0] = 1
def timer():
    libc = ctypes.CDLL(None)
    descriptor = libc.timerfd_create(1, 0)
    libc.timerfd_settime(descriptor, 0, struct.pack('4q', 0, 0, 2, 0), None)
    with select.epoll() as poll:
        poll.register(descriptor, select.EPOLLIN)
        fired[1] = len(poll.poll(60))
spawn(sleeper), spawn(timer)";

pub fn timers_fire_everywhere() {
    let source = guest("timer");
    source.py(TIMERS);
    let children = source.fork_all(&["timer-1", "timer-2"]);
    for machine in children.iter().chain([&source]) {
        machine.py_until("fired[0] and fired[1]");
    }
}

/// CPU time of each vCPU's thread, in clock ticks.
fn vcpu_ticks(pid: u32) -> Vec<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let stats = tasks.map(|task| fs::read_to_string(task.path().join("stat")).unwrap());
    let vcpus = stats.filter(|stat| stat.contains("(vcpu"));
    let ticks = vcpus.map(|stat| {
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    });
    ticks.collect()
}

pub fn an_idle_vcpu_stays_idle() {
    let source = bed().pair_seed();
    let child = source.fork_as("idle");
    assert_eq!(child.py("print(os.cpu_count())"), "2");
    // Whoever spins uses all of the time; whoever is halted next to none.
    let quiet = || {
        let before = vcpu_ticks(child.pid());
        thread::sleep(Duration::from_secs(2));
        let after = vcpu_ticks(child.pid());
        assert_eq!(after.len(), 2);
        after.iter().zip(&before).all(|(after, before)| after - before < 100)
    };
    // Work that was under way at the fork may still have to end.
    assert!((0..5).any(|_| quiet()), "a vCPU of an idle guest does not halt");
}

/// Notes when it is, who it is and a random number, as fast as it can; in memory, because every call
/// of the kernel makes it slower.
const RECORDER: &str = "\
turns, enough = memory(), memory()
turned = lambda: struct.unpack_from('Q', turns)[0]
def record():
    log, clock, who, draw = [], time.monotonic_ns, os.uname, os.urandom
    while not enough[0]:
        log.append((clock(), who().nodename, draw(8)))
        struct.pack_into('Q', turns, 0, len(log))
    with open('/run/recording', 'w') as file:
        for begun, name, drawn in log:
            print(begun, name, drawn.hex(), file=file)
    os.rename('/run/recording', '/run/recorded')
spawn(record)
until(lambda: turned() > 500)";

/// Stops the recorder a little later.
const RECORDED: &str = "\
seen = turned()
until(lambda: turned() > seen + 100)
enough[0] = 1
until(lambda: os.path.exists('/run/recorded'))
print(open('/run/recorded').read())";

/// A moment of a machine, as the recorder saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Moment {
    begun: u64,
    name: String,
    drawn: String,
}

/// Everything that the recorder of a machine has seen.
fn moments(guest: &Guest) -> Vec<Moment> {
    let text = guest.py(RECORDED);
    let moment = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [begun, name, drawn] => {
            Moment { begun: begun.parse().unwrap(), name: name.to_owned(), drawn: drawn.to_owned() }
        }
        _ => panic!("{line:?} of {} bytes", text.len()),
    };
    text.lines().map(moment).collect()
}

/// A process that never stops cannot see itself being forked. But the logs of all machines are the
/// same up to the fork, times included, and whatever was begun after it must know the new name.
pub fn nothing_runs_before_the_identity() {
    let source = guest("before");
    source.py(RECORDER);
    let children = source.fork_all(&["after-1", "after-2"]);
    let logs: Vec<_> = [&source, &children[0], &children[1]].map(moments).to_vec();
    let common = (0..logs[0].len()).take_while(|at| {
        let begun = logs[0][*at].begun;
        logs.iter().all(|log| log.get(*at).is_some_and(|moment| moment.begun == begun))
    });
    let fork = common.count();
    assert!(fork > 400, "only {fork} moments before the fork");
    for (log, name) in logs.iter().zip(["before", "after-1", "after-2"]) {
        let (past, future) = log.split_at(fork);
        // The last of the past may have been under way when the machine was cut.
        assert!(past[..fork - 1].iter().all(|moment| moment.name == "before"));
        let strange = future.iter().find(|moment| moment.name != name);
        assert_eq!(strange, None, "in {name}, of {} after the fork", future.len());
        assert!(!future.is_empty());
    }
    let drawn = |log: &Vec<Moment>| -> BTreeSet<String> {
        log[fork..].iter().map(|moment| moment.drawn.clone()).collect()
    };
    assert!(drawn(&logs[0]).is_disjoint(&drawn(&logs[1])));
    assert!(drawn(&logs[1]).is_disjoint(&drawn(&logs[2])));
}
