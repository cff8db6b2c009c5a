//! How machines end, and what does not end them.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount, umount};
use ramet_engine::control::Events;
use ramet_proto::control::{Code, Event, Start, State, Stop};
use ramet_tests::linux;

use crate::bed::{Guest, bed, eventually, fork_with, guest, patience, restore, shell, try_fork};

/// The reason that subscribers are told.
fn told(events: &mut Events) -> Stop {
    loop {
        if let Event::Stopped(stop) = events.next(patience()).unwrap() {
            return stop;
        }
    }
}

/// Does something that ends a guest, and gives the reason.
fn end_by(name: &str, act: impl FnOnce(&Guest)) -> Stop {
    let guest = guest(name);
    let mut events = guest.events().unwrap();
    act(&guest);
    let stop = told(&mut events);
    assert_eq!(guest.status().unwrap().state, State::Stopped(stop.clone()));
    let refused = try_fork(&guest, vec![linux::identity("late")]).err().unwrap();
    assert_eq!(refused.code(), Some(Code::WrongState), "{refused}");
    assert!(guest.stats().unwrap().ram_private_kib < 1024, "its memory is given back");
    stop
}

/// Starts a command and does not wait for it.
fn begin(guest: &Guest, line: &str) {
    drop(guest.agent().exec(&shell(line)));
}

pub fn it_powers_off() {
    let grace = Duration::from_millis(100);
    let stop = end_by("off", |guest| guest.agent().shutdown(false, grace).unwrap());
    assert_eq!(stop, Stop::Shutdown);
    let stop = end_by("off-hard", |guest| begin(guest, "echo o > /proc/sysrq-trigger"));
    assert_eq!(stop, Stop::Shutdown);
}

pub fn it_reboots() {
    let grace = Duration::from_millis(100);
    let stop = end_by("again", |guest| guest.agent().shutdown(true, grace).unwrap());
    assert_eq!(stop, Stop::Reboot);
    let stop = end_by("again-hard", |guest| begin(guest, "echo b > /proc/sysrq-trigger"));
    assert_eq!(stop, Stop::Reboot);
}

pub fn it_panics() {
    let stop = end_by("panic", |guest| begin(guest, "echo c > /proc/sysrq-trigger"));
    assert_eq!(stop, Stop::Panic);
}

pub fn a_fork_while_it_panics() {
    for delay_ms in [0, 20, 100] {
        let source = guest("panicking");
        let mut events = source.events().unwrap();
        begin(&source, "echo c > /proc/sysrq-trigger");
        thread::sleep(Duration::from_millis(delay_ms));
        match try_fork(&source, vec![linux::identity("heir-1"), linux::identity("heir-2")]) {
            // It was quicker than the panic, and so its children panic as well.
            Ok(children) => {
                for child in &children {
                    let over = || child.status().unwrap().state == State::Stopped(Stop::Panic);
                    eventually("an heir panics, too", over);
                }
            }
            Err(error) => {
                let code = error.code().unwrap_or_else(|| panic!("{error}"));
                let clear = [Code::WrongState, Code::GuestUnresponsive, Code::ChildDied];
                assert!(clear.contains(&code), "{error}");
            }
        }
        assert_eq!(told(&mut events), Stop::Panic);
    }
}

/// A process as urgent as the agent itself, which spins until it is told to end from outside.
const HOG: &str = "\
value = 5
flags = memory()
flags[:2] = bytes(2)
libc = ctypes.CDLL(None)
libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(flags))), 4096)
def hog():
    time.sleep(1)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))
    flags[0] = 1
    while not flags[1]:
        pass
spawn(hog)
print(physical(flags))";

pub fn a_guest_that_does_not_come() {
    let source = guest("hog");
    let flags = source.py(HOG).parse().unwrap();
    eventually("it spins", || source.read_memory(flags, 1).unwrap() == [1]);
    let error = try_fork(&source, vec![linux::identity("unborn")]).err().unwrap();
    assert_eq!(error.code(), Some(Code::GuestUnresponsive), "{error}");
    // The source is none the worse for it.
    source.write_memory(flags + 1, &[1]).unwrap();
    assert_eq!(source.py("print(value)"), "5");
    assert_eq!(source.fork_as("born").py("print(value)"), "5");
}

/// A filesystem that is soon full.
struct Small(PathBuf);

impl Small {
    fn mount() -> Self {
        let path = bed().directory.path().join("small");
        fs::create_dir(&path).unwrap();
        let options = Some("size=24m");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), options)
            .expect("mounting needs root");
        fs::write(path.join("ballast"), vec![1; 20 << 20]).unwrap();
        Self(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // The directory of the bed goes next, and says what is still mounted.
        let _ = umount(&self.0);
    }
}

pub fn a_full_disk_below_the_layers() {
    let small = Small::mount();
    let machine = bed().start();
    let mut request = restore(bed().saved_seed(), Start::Run, Some(linux::identity("full")));
    request.layers = Some(small.0.to_string_lossy().into_owned());
    machine.restore(request).unwrap();
    linux::await_ready(&machine, patience()).unwrap();
    let source = Guest(machine);
    let writer = source.fork_as("writer");
    let mut events = writer.events().unwrap();
    let write = "dd if=/dev/urandom of=/srv/large bs=1M count=12 conv=fsync 2>&1";
    let completed = writer.run(&shell(write));
    assert!(!completed.ok(), "{}", completed.text());
    match events.next(patience()).unwrap() {
        Event::DiskFailed { disk: 1, .. } => {}
        other => panic!("{other:?}"),
    }
    // Its monitor lives and says so; others do not even notice.
    assert_eq!(writer.status().unwrap().state, State::Running);
    assert!(writer.stats().unwrap().disks[1].errors > 0);
    assert_eq!(guest("elsewhere").sh("echo fine > /srv/file; sync; cat /srv/file"), "fine");

    drop(writer);
    fs::remove_file(small.0.join("ballast")).unwrap();
    let fresh = fork_with(&source, vec![linux::identity("fresh")]).pop().unwrap();
    fresh.sh("dd if=/dev/urandom of=/srv/large bs=1M count=8 conv=fsync 2>&1");
    assert_eq!(fresh.sh("stat -c %s /srv/large"), (8 << 20).to_string());
    drop((fresh, source));
}
