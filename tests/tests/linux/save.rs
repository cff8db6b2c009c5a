//! Machines in files: saved while they run, restored, made templates of, refused.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ramet_proto::control::{Code, Start, State};
use ramet_tests::linux;

use crate::bed::{bed, fork_with, guest, restore};
use crate::twin::clock_error;

/// Variables, an open file and a connection between two processes.
const STATE: &str = "\
values = numpy.arange(1000); note = 'from before'
file = open('/srv/open', 'w+'); file.write('0123456789'); file.flush(); file.seek(4)
listener = socket.create_server(('127.0.0.1', 0))
def serve():
    connection, _ = listener.accept()
    for line in connection.makefile('rb'):
        connection.sendall(b'heard ' + line)
server = spawn(serve)
client = socket.create_connection(listener.getsockname())
answers = client.makefile('rb')
def ask(text):
    client.sendall(text.encode() + b'\\n')
    print(answers.readline().decode().strip())
ask('first')";

pub fn a_running_machine_is_saved_and_restored() {
    let source = guest("saved");
    source.py(STATE);
    let directory = bed().directory.path().join("running.saved");
    let saved = source.save(&directory, true).unwrap();
    assert!(saved.memory_bytes > 1 << 20, "{saved:?}");
    source.py("note = 'changed'; file.seek(0)");
    // A moment that the files sleep through.
    thread::sleep(Duration::from_secs(3));

    let restored = bed().restore(&directory, "restored");
    let told = restored.py("print(values.sum(), note, file.read(), os.uname().nodename)");
    assert_eq!(told, "499500 from before 456789 restored");
    assert_eq!(restored.py("ask('second')"), "heard second");
    assert_eq!(
        (restored.get("/srv/open"), restored.sh("hostname")),
        ("0123456789".into(), "restored".into())
    );
    let error = clock_error(&restored);
    assert!(error < 1.0, "its wall clock is off by {error} s");
    // Both go on, and both can be forked.
    assert_eq!(source.py("ask('third'); print(note)"), "heard third\nchanged");
    let child = restored.fork_as("of-restored");
    assert_eq!(child.py("ask('fourth'); print(note)"), "heard fourth\nfrom before");
    let again = source.save(&directory, true).unwrap_err();
    assert_eq!(again.code(), Some(Code::BadFile), "{again}");
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(child.get("/srv/open"), "0123456789", "the files were in use, not the names");
}

pub fn a_template_is_forked_five_times() {
    let template = bed().start();
    template.restore(restore(bed().saved_seed(), Start::Frozen, None)).unwrap();
    assert_eq!(template.status().unwrap().state, State::Frozen);
    let mut children = Vec::new();
    for number in 1..=5 {
        let identity = linux::identity(&format!("copy-{number}"));
        let child = fork_with(&template, vec![identity]).pop().unwrap();
        child.py(&format!("mine = {number}"));
        child.py("put('/srv/mine', name())");
        children.push(child);
    }
    for (number, child) in (1..).zip(&children) {
        let name = format!("copy-{number}");
        assert_eq!((child.name(), child.get("/srv/mine")), (name.clone(), name));
        assert_eq!(child.py("print(mine)"), number.to_string());
    }
}

/// A copy of the saved seed that may be damaged.
fn copy(name: &str) -> PathBuf {
    let directory = bed().directory.path().join(name);
    fs::create_dir(&directory).unwrap();
    for entry in fs::read_dir(bed().saved_seed()).unwrap().flatten() {
        let target = directory.join(entry.file_name());
        // A copy of the memory would lose its holes; another name for it is enough.
        match entry.file_name() == "memory" {
            true => fs::hard_link(entry.path(), target).unwrap(),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
    directory
}

/// Why a directory is refused.
fn refusal(directory: &Path) -> Code {
    let machine = bed().start();
    let identity = Some(linux::identity("never"));
    let error = machine.restore(restore(directory, Start::Run, identity)).unwrap_err();
    assert_eq!(machine.status().unwrap().state, State::Empty, "{error}");
    error.code().unwrap_or_else(|| panic!("{error}"))
}

fn overwrite(directory: &Path, name: &str, bytes: &[u8], offset: u64) {
    let file = File::options().write(true).open(directory.join(name)).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

fn shorten(directory: &Path, name: &str) {
    let file = File::options().write(true).open(directory.join(name)).unwrap();
    file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
}

/// Puts a feature into the state that no emulated processor has, and makes its checksum right again.
fn give_avx512(directory: &Path) {
    let mut state = fs::read(directory.join("state")).unwrap();
    let body = 8 + 4 + 8 + 32;
    // CPUID leaf 7, subleaf 0: function, index, flags, eax, ebx.
    let leaf = [7_u32, 0, 1].map(u32::to_le_bytes).concat();
    let at: Vec<usize> =
        (body..state.len() - leaf.len()).filter(|at| state[*at..].starts_with(&leaf)).collect();
    assert!(!at.is_empty(), "no leaf 7");
    for at in at {
        // AVX512F is bit 16 of ebx.
        state[at + 16 + 2] |= 1;
    }
    let hash = *blake3::hash(&state[body..]).as_bytes();
    state[20..body].copy_from_slice(&hash);
    fs::write(directory.join("state"), state).unwrap();
}

pub fn what_was_saved_is_checked() {
    let other = copy("other-version");
    overwrite(&other, "state", &99_u32.to_le_bytes(), 8);
    assert_eq!(refusal(&other), Code::OtherVersion);

    let foreign = copy("other-cpu");
    give_avx512(&foreign);
    let known = fs::read_to_string("/proc/cpuinfo").unwrap().contains("avx512f");
    assert!(known || refusal(&foreign) == Code::OtherCpu);

    let altered = copy("altered-state");
    overwrite(&altered, "state", &[0xff; 16], 600);
    assert_eq!(refusal(&altered), Code::Damaged);

    let short = copy("short-state");
    shorten(&short, "state");
    assert_eq!(refusal(&short), Code::Damaged);

    let none = copy("no-state");
    overwrite(&none, "state", b"ELF", 0);
    assert_eq!(refusal(&none), Code::BadFile);
    assert_eq!(refusal(&bed().directory.path().join("nowhere")), Code::BadFile);
}

pub fn saved_memory_and_disks_are_checked() {
    let source = guest("damaged");
    source.put("/srv/file", "on disk");
    let directory = bed().directory.path().join("damaged.saved");
    source.save(&directory, true).unwrap();

    let disk = fs::metadata(directory.join("disk-1")).unwrap().len();
    let byte = &mut [0];
    let file = File::options().read(true).write(true).open(directory.join("disk-1")).unwrap();
    file.read_exact_at(byte, disk / 2).unwrap();
    file.write_all_at(&[byte[0] ^ 1], disk / 2).unwrap();
    assert_eq!(refusal(&directory), Code::Damaged);
    file.write_all_at(byte, disk / 2).unwrap();

    // The kernel is at 16 MiB.
    overwrite(&directory, "memory", b"altered", (16 << 20) + 5000);
    assert_eq!(refusal(&directory), Code::Damaged);
    shorten(&directory, "memory");
    assert_eq!(refusal(&directory), Code::Damaged);
    fs::remove_file(directory.join("memory")).unwrap();
    assert_eq!(refusal(&directory), Code::BadFile);
}
