//! With real memory and real faults; the other side is this test.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use vm_memory::{Bytes, GuestAddress};

use super::*;

const PAGES: usize = 1024;

/// What page `n` holds; every fifth is zero.
fn content(n: usize) -> Vec<u8> {
    let byte = if n.is_multiple_of(5) { 0 } else { u8::try_from(n % 251).unwrap() | 1 };
    vec![byte; PAGE]
}

/// A machine's directory that is empty yet, and who fills it.
struct Bed {
    directory: tempfile::TempDir,
    ram: Ram,
    pager: Pager,
    listener: UnixListener,
}

fn bed() -> Bed {
    let directory = tempfile::tempdir().unwrap();
    for (name, pages) in [("memory", PAGES), ("disk-1", 64)] {
        File::create(directory.path().join(name)).unwrap().set_len((pages * PAGE) as u64).unwrap();
    }
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let memory = File::open(directory.path().join("memory")).unwrap();
    let ram = Ram::awaited(memory, PAGES * PAGE).unwrap();
    let plan = Plan {
        socket: socket.to_string_lossy().into_owned(),
        directory: "here".to_owned(),
        files: vec![("memory".to_owned(), PAGES as u64), ("disk-1".to_owned(), 64)],
        memory: "memory".to_owned(),
    };
    let pager = Pager::start(plan, ram.clone(), Arc::new(Notices::new().unwrap())).unwrap();
    Bed { directory, ram, pager, listener }
}

/// Who brings the files, over one connection.
struct Bringer {
    lines: BufReader<UnixStream>,
    directory: std::path::PathBuf,
}

impl Bringer {
    fn accept(listener: &UnixListener, directory: &Path) -> Self {
        let (stream, _) = listener.accept().unwrap();
        let mut bringer = Self { lines: BufReader::new(stream), directory: directory.to_owned() };
        assert_eq!(bringer.hear(), Ask::Hello { directory: "here".to_owned() });
        bringer
    }

    fn hear(&mut self) -> Ask {
        let mut text = String::new();
        self.lines.read_line(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn tell(&mut self, tell: &Tell) {
        let text = serde_json::to_string(tell).unwrap() + "\n";
        self.lines.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn bring(&mut self, file: &str, first: u64, count: u64) {
        let path = self.directory.join(file);
        let target = File::options().write(true).open(path).unwrap();
        for page in first..first + count {
            let at = page * PAGE as u64;
            target.write_all_at(&content(usize::try_from(page).unwrap()), at).unwrap();
        }
        self.tell(&Tell::Arrived { file: file.to_owned(), runs: vec![(first, count)] });
    }

    /// Brings what is asked for, as often as said.
    fn serve(&mut self, times: usize) {
        for _ in 0..times {
            let Ask::Want { file, first, count } = self.hear() else { panic!("not a want") };
            self.bring(&file, first, count);
        }
    }
}

/// Reads pages as the guest would, on a thread of its own.
fn read(ram: &Ram, pages: Vec<usize>) -> Receiver<(usize, Vec<u8>)> {
    let (told, heard) = channel();
    let ram = ram.clone();
    thread::spawn(move || {
        for page in pages {
            let mut bytes = vec![0; PAGE];
            ram.guest().read_slice(&mut bytes, GuestAddress((page * PAGE) as u64)).unwrap();
            told.send((page, bytes)).unwrap();
        }
    });
    heard
}

fn finish(mut bringer: Bringer, pager: &mut Pager) {
    bringer.bring("memory", 0, PAGES as u64);
    bringer.bring("disk-1", 0, 64);
    bringer.tell(&Tell::Complete {});
    while !pager.finished() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pages_come_when_they_are_touched_and_the_rest_at_the_end() {
    let Bed { directory, ram, mut pager, listener } = bed();
    let mut bringer = Bringer::accept(&listener, directory.path());
    let touched = vec![700, 3, 4, 40, 701];
    let seen = read(&ram, touched.clone());
    bringer.serve(3); // the groups of 700, of 3 and 4, of 40
    for page in touched {
        assert_eq!(seen.recv().unwrap(), (page, content(page)));
    }
    assert!(!pager.finished());
    // What the machine writes is its own, before and after the end.
    ram.guest().write_slice(&[7; 8], GuestAddress(3 * PAGE as u64)).unwrap();
    finish(bringer, &mut pager);
    ram.guest().write_slice(&[8; 8], GuestAddress(900 * PAGE as u64)).unwrap();
    let seen = read(&ram, (0..PAGES).collect());
    for page in 0..PAGES {
        let (_, bytes) = seen.recv().unwrap();
        let mut expected = content(page);
        match page {
            3 => expected[..8].fill(7),
            900 => expected[..8].fill(8),
            _ => {}
        }
        assert!(bytes == expected, "page {page}");
    }
    let mut file = vec![0; PAGE];
    ram.file().unwrap().read_exact_at(&mut file, 900 * PAGE as u64).unwrap();
    assert_eq!(file, content(900));
}

#[test]
fn a_lost_connection_is_made_anew_and_asked_again() {
    let Bed { directory, ram, mut pager, listener } = bed();
    let mut bringer = Bringer::accept(&listener, directory.path());
    let seen = read(&ram, vec![17]);
    let asked = bringer.hear();
    drop(bringer);
    let mut bringer = Bringer::accept(&listener, directory.path());
    // Words that make no sense end the connection as well, and nothing else.
    assert_eq!(bringer.hear(), asked);
    bringer.lines.get_mut().write_all(b"{\"what\":1}\n").unwrap();
    let mut bringer = Bringer::accept(&listener, directory.path());
    bringer.serve(1);
    assert_eq!(seen.recv().unwrap(), (17, content(17)));
    finish(bringer, &mut pager);
}

#[test]
fn arrivals_that_are_not_there_are_ignored() {
    let Bed { directory, ram, mut pager, listener } = bed();
    let mut bringer = Bringer::accept(&listener, directory.path());
    let absurd = vec![(u64::MAX, u64::MAX), (PAGES as u64 - 1, u64::MAX - 5), (9999, 1)];
    bringer.tell(&Tell::Arrived { file: "memory".to_owned(), runs: absurd });
    bringer.tell(&Tell::Arrived { file: "nobody".to_owned(), runs: vec![(0, 1)] });
    let seen = read(&ram, vec![1]);
    bringer.serve(1);
    assert_eq!(seen.recv().unwrap(), (1, content(1)));
    finish(bringer, &mut pager);
}

#[test]
fn a_disk_waits_for_its_blocks() {
    let Bed { directory, ram: _ram, mut pager, listener } = bed();
    let mut bringer = Bringer::accept(&listener, directory.path());
    let arrivals = pager.arrivals("disk-1");
    let path = directory.path().join("disk-1");
    let reader = thread::spawn(move || {
        arrivals.wait(15, 2);
        let mut bytes = vec![0; 2 * PAGE];
        File::open(path).unwrap().read_exact_at(&mut bytes, 15 * PAGE as u64).unwrap();
        arrivals.wait(60, 4);
        bytes
    });
    bringer.serve(2); // two groups
    bringer.serve(1);
    assert_eq!(reader.join().unwrap(), [content(15), content(16)].concat());
    finish(bringer, &mut pager);
}
