//! What outlives machines: sandboxes in the store, and commits.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ramet_client::api::{
    Code, Commit, CommitState, CommitsQuery, CreateCheckpoint, CreateCommit, CreateSandbox,
    DiffRequest, PauseRequest, PutRef, RefKind, RewindRequest, State,
};

use ramet_tests::linux;

use crate::bed::{Node, Sandbox, eventually, fresh, node, refusal, wait};
use crate::{Story, stories, truth};

pub const STORIES: &[Story] = stories![
    everything_goes_on_where_it_was,
    only_what_changed_is_written,
    a_cold_sandbox_runs_before_it_is_there,
    whoever_needs_it_wakes_it,
    commits_are_kept,
    a_commit_of_a_paused_sandbox,
    files_alone_are_booted_anew,
    checkpoints_go_to_the_store_when_memory_is_short,
    what_was_durable_outlives_the_node,
    a_damaged_state_is_refused,
];

/// A server that answers with how often it was asked, and a writer that never stops.
const BUSY: &str = r#"
import hashlib, socketserver, sqlite3, threading
blob = os.urandom(8 << 20)
asked = 0
class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        global asked
        asked += 1
        self.request.sendall(str(asked).encode())
server = socketserver.ThreadingTCPServer(('127.0.0.1', 7000), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
def write():
    base = sqlite3.connect('/root/numbers.db', isolation_level=None)
    base.execute('create table n (i integer primary key)')
    while True:
        base.execute('insert into n default values')
        time.sleep(0.02)
threading.Thread(target=write, daemon=True).start()
def ask():
    import socket
    with socket.create_connection(('127.0.0.1', 7000)) as stream: return stream.recv(9).decode()
def rows():
    base = sqlite3.connect('/root/numbers.db')
    assert base.execute('pragma integrity_check').fetchone() == ('ok',)
    return base.execute('select count(*) from n').fetchone()[0]
def digest(): return hashlib.sha256(blob).hexdigest()
"#;

/// Whether a sandbox has a monitor.
fn has_machine(sandbox: &Sandbox<'_>) -> bool {
    truth::machine_of(sandbox.node, &sandbox.id).is_some()
}

/// Removes what makes resumes warm.
fn chill(node: &Node) {
    for owner in fs::read_dir(node.home().join("states")).unwrap() {
        let owner = owner.unwrap().path();
        if owner.file_name().is_some_and(|name| name != ".new") {
            fs::remove_dir_all(owner).unwrap();
        }
    }
}

fn everything_goes_on_where_it_was() {
    let sandbox = fresh("durable");
    sandbox.py(BUSY);
    sandbox.sh("head -c 5000000 /dev/urandom > /root/file");
    let files = sandbox.sh("sha256sum < /root/file");
    let (digest, asked) = (sandbox.py("print(digest())"), sandbox.py("print(ask())"));
    let rows: u64 = sandbox.py("print(rows())").parse().expect("a number");
    let paused = sandbox.pause();
    assert_eq!(paused.state, State::Paused);
    let stored = paused.stored.expect("it is in the store");
    assert!(stored.warm && stored.logical_bytes > 16 << 20, "{stored:?}");
    assert!(!has_machine(&sandbox), "it costs nothing");
    assert_eq!(sandbox.resume().state, State::Running);
    assert!(has_machine(&sandbox));
    assert_eq!(sandbox.shown().stored, None);
    assert_eq!(sandbox.sh("sha256sum < /root/file"), files);
    assert_eq!(sandbox.py("print(digest())"), digest);
    let again: u64 = sandbox.py("print(ask())").parse().expect("a number");
    assert_eq!(again, asked.parse::<u64>().unwrap() + 1, "the server is the same");
    sandbox.py(&format!("while rows() <= {rows}: time.sleep(0.05)"));
    let random = sandbox.py("print(os.urandom(16).hex(), random.random())");
    sandbox.pause();
    sandbox.resume();
    assert_ne!(sandbox.py("print(os.urandom(16).hex(), random.random())"), random);
}

fn only_what_changed_is_written() {
    let sandbox = fresh("frugal");
    sandbox.py("blob = os.urandom(24 << 20)");
    let first = sandbox.pause().stored.expect("stored");
    assert!(first.written_bytes > 24 << 20, "{first:?}");
    sandbox.resume();
    sandbox.py("other = os.urandom(4 << 20)");
    let second = sandbox.pause().stored.expect("stored");
    assert!(second.written_bytes > 4 << 20, "{second:?}");
    // The guest's own doings are in it, but nothing of what was there before.
    assert!(second.written_bytes < 24 << 20, "{second:?} after {first:?}");
    assert!(second.logical_bytes > first.logical_bytes, "{second:?} after {first:?}");
    let usage = wait(node().client.store_usage()).unwrap();
    assert!(usage.paused >= 1 && usage.stored_bytes > 0, "{usage:?}");
    sandbox.resume();
    assert_eq!(sandbox.py("print(len(blob), len(other))"), format!("{} {}", 24 << 20, 4 << 20));
}

fn a_cold_sandbox_runs_before_it_is_there() {
    let sandbox = fresh("cold");
    sandbox.py("import hashlib\nblob = os.urandom(12 << 20)\ndef digest(): return hashlib.sha256(blob).hexdigest()");
    sandbox.sh("head -c 3000000 /dev/urandom > /root/file; sync");
    let (digest, file) = (sandbox.py("print(digest())"), sandbox.sh("sha256sum < /root/file"));
    for round in 0..2 {
        sandbox.pause();
        chill(node());
        let stored = sandbox.shown().stored.expect("stored");
        assert!(!stored.warm, "{stored:?}");
        sandbox.resume();
        assert_eq!(sandbox.sh("echo here"), "here", "round {round}");
        assert_eq!(sandbox.py("print(digest())"), digest, "round {round}");
        assert_eq!(sandbox.sh("echo 3 > /proc/sys/vm/drop_caches; sha256sum < /root/file"), file);
        sandbox.py(&format!("mark = {round}"));
    }
    // A fork waits until all is there.
    let child = sandbox.fork(1).remove(0);
    assert_eq!(child.py("print(mark, digest())"), format!("1 {digest}"));
    // A paused one is forked without being resumed, also when it is cold.
    sandbox.pause();
    chill(node());
    let children = sandbox.fork(2);
    assert_eq!(sandbox.shown().state, State::Paused);
    for child in &children {
        assert_eq!(child.py("print(digest())"), digest);
    }
}

fn whoever_needs_it_wakes_it() {
    let request = CreateSandbox { auto_resume: true, ..CreateSandbox::default() };
    let sandbox = node().create_as(request);
    sandbox.sh("echo kept > /root/note");
    sandbox.pause();
    assert_eq!(sandbox.get("/root/note"), "kept\n");
    assert_eq!(sandbox.shown().state, State::Running);
    let memory = PauseRequest { memory: true, disk: false };
    let paused = wait(node().client.pause(&sandbox.id, &memory)).unwrap();
    assert!(paused.stored.is_none() && has_machine(&sandbox), "{paused:?}");
    assert_eq!(sandbox.sh("cat /root/note"), "kept");
}

fn commit(sandbox: &Sandbox<'_>, message: &str, wait_for: bool) -> Commit {
    let request = CreateCommit {
        message: Some(message.to_owned()),
        branch: Some("story".to_owned()),
        wait: wait_for,
        ..CreateCommit::default()
    };
    wait(sandbox.node.client.commit(&sandbox.id, &request)).unwrap()
}

fn check_out<'n>(node: &'n Node, key: &str) -> Sandbox<'n> {
    node.create_as(CreateSandbox { commit: Some(key.to_owned()), ..CreateSandbox::default() })
}

fn commits_are_kept() {
    let client = &node().client;
    let sandbox = fresh("committed");
    sandbox.py("value = 'first'");
    sandbox.sh("echo first > /root/note");
    let first = commit(&sandbox, "the first", false);
    assert_ne!(first.state, CommitState::Failed);
    sandbox.py("value = 'second'");
    sandbox.sh("echo second > /root/note");
    eventually("it is durable", || {
        wait(client.get_commit(&first.id)).unwrap().state == CommitState::Durable
    });
    let second = commit(&sandbox, "the second", true);
    assert_eq!((second.state, &second.ancestors), (CommitState::Durable, &vec![first.id.clone()]));
    let log = wait(
        client.commits(&CommitsQuery { of: Some("story".to_owned()), ..CommitsQuery::default() }),
    );
    let log: Vec<String> = log.unwrap().commits.into_iter().map(|one| one.id).collect();
    assert_eq!(log, [second.id.clone(), first.id.clone()]);
    let tag = PutRef { commit: first.id.clone(), kind: RefKind::Tag, force: false };
    wait(client.put_ref("v1", &tag)).unwrap();
    let elsewhere = PutRef { commit: second.id.clone(), ..tag };
    assert_eq!(refusal(wait(client.put_ref("v1", &elsewhere))), Code::AlreadyExists);
    let (old, new) = (check_out(node(), "v1"), check_out(node(), "story"));
    assert_eq!(old.py("print(value)"), "first");
    assert_eq!(new.py("print(value)"), "second");
    assert_eq!(old.sh("cat /root/note; cat /etc/hostname"), format!("first\n{}", old.id));
    let asked = DiffRequest {
        against: first.id.clone(),
        paths: Some(vec!["/root".to_owned()]),
        content: true,
        variables: None,
    };
    let diff = wait(client.diff(&second.id, &asked)).unwrap();
    assert_eq!(diff.files.len(), 1, "{diff:?}");
    assert!(diff.files[0].patch.as_ref().unwrap().contains("-first\n+second"), "{diff:?}");
    assert_eq!(refusal(wait(client.delete_commit(&first.id))), Code::InUse);
    wait(client.delete_ref("v1")).unwrap();
    wait(client.delete_commit(&first.id)).unwrap();
    assert_eq!(refusal(wait(client.get_commit(&first.id))), Code::NotFound);
    // What the later one shares with it stays, and it still names it.
    chill(node());
    let third = check_out(node(), &second.id[..9]);
    assert_eq!(third.py("print(value)"), "second");
    assert_eq!(wait(client.get_commit(&second.id)).unwrap().ancestors, [first.id]);
    wait(client.delete_ref("story")).unwrap();
}

fn a_commit_of_a_paused_sandbox() {
    let sandbox = fresh("still");
    sandbox.py("value = 7");
    sandbox.pause();
    let kept = wait(node().client.commit(&sandbox.id, &CreateCommit::default())).unwrap();
    assert_eq!(kept.state, CommitState::Durable, "{kept:?}");
    assert_eq!(kept.stored.unwrap().written_bytes, 0);
    assert_eq!(sandbox.shown().state, State::Paused);
    sandbox.delete();
    assert_eq!(check_out(node(), &kept.id).py("print(value)"), "7");
}

fn files_alone_are_booted_anew() {
    let client = &node().client;
    let sandbox = fresh("workspace");
    sandbox.sh("mkdir -p /workspace; head -c 3000000 /dev/urandom > /workspace/data");
    sandbox.sh("apt-config dump > /etc/story; rm /etc/motd; ln -s data /workspace/link");
    let files = sandbox.sh("sha256sum < /workspace/link; cat /proc/sys/kernel/random/boot_id");
    let (digest, boot) = files.split_once('\n').expect("two lines");
    // A whole commit has on its disk what the guest has written out by then; one of the files sees to it.
    sandbox.sh("sync");
    let whole = commit(&sandbox, "whole", true);
    sandbox.sh("echo late > /workspace/late");
    let request = CreateCommit { disk: true, wait: true, ..CreateCommit::default() };
    let kept = wait(client.commit(&sandbox.id, &request)).unwrap();
    assert!(kept.disk && !whole.disk);
    let (small, large) = (kept.stored.expect("stored"), whole.stored.expect("stored"));
    assert!(small.logical_bytes < large.logical_bytes / 2, "{small:?} of {large:?}");
    sandbox.sh("rm -r /workspace");
    chill(node());
    let only_disk = |commit: &str, disk| CreateSandbox {
        commit: Some(commit.to_owned()),
        disk,
        ..CreateSandbox::default()
    };
    for (commit, disk) in [(&kept.id, false), (&whole.id, true)] {
        let booted = node().create_as(only_disk(commit, disk));
        let again = booted.sh("sha256sum < /workspace/link; cat /proc/sys/kernel/random/boot_id");
        let (found, other) = again.split_once('\n').expect("two lines");
        assert_eq!(found, digest);
        assert_ne!(other, boot, "it has booted");
        assert_eq!(booted.sh("test -s /etc/story && ! test -e /etc/motd && hostname"), booted.id);
        // It is a sandbox like any other.
        let child = booted.fork(1).remove(0);
        assert_eq!(child.sh("ls /workspace | wc -l"), if disk { "2" } else { "3" });
    }
    let asked = DiffRequest {
        against: kept.id.clone(),
        paths: Some(vec!["/workspace".to_owned()]),
        content: false,
        variables: None,
    };
    let diff = wait(client.diff(&sandbox.id, &asked)).unwrap();
    assert!(!diff.files.is_empty(), "{diff:?}");
    // So is a pause of the files: the sandbox is the same, its machine is not.
    sandbox.sh("echo unwritten > /etc/last; echo memory > /dev/shm/lost");
    let files = PauseRequest { disk: true, ..PauseRequest::default() };
    let paused = wait(client.pause(&sandbox.id, &files)).unwrap();
    assert!(paused.stored.expect("it is in the store").disk);
    assert!(!has_machine(&sandbox));
    sandbox.resume();
    assert_eq!(
        sandbox.sh("cat /etc/last; test -e /dev/shm/lost || echo booted"),
        "unwritten\nbooted"
    );
    assert_ne!(sandbox.sh("cat /proc/sys/kernel/random/boot_id"), boot);
    assert_eq!(
        refusal(wait(client.create(&CreateSandbox { disk: true, ..CreateSandbox::default() }))),
        Code::BadRequest
    );
}

fn checkpoints_go_to_the_store_when_memory_is_short() {
    let node = Node::new("short", &[]);
    let sandbox = node.create("kept");
    sandbox.sh("head -c 4000000 /dev/urandom > /dev/shm/blob");
    let digest = sandbox.sh("sha256sum < /dev/shm/blob");
    let name = Some("first".to_owned());
    wait(node.client.checkpoint(&sandbox.id, &CreateCheckpoint { name })).unwrap();
    sandbox.sh("rm /dev/shm/blob");
    node.kill();
    // From now on everything is too much.
    node.start_with(&["--reserve", "100000000"]);
    let here = || wait(node.client.checkpoints(&sandbox.id)).unwrap().remove(0);
    eventually("it is in the store", || !here().in_memory);
    assert!(here().stored.is_some());
    node.restart();
    let request = RewindRequest { checkpoint: "first".to_owned() };
    wait(node.client.rewind(&sandbox.id, &request)).unwrap();
    assert_eq!(sandbox.sh("sha256sum < /dev/shm/blob"), digest);
    assert!(here().in_memory, "it stays for the next rewind");
}

fn what_was_durable_outlives_the_node() {
    let node = Node::new("durable", &[]);
    let sandbox = node.create("survivor");
    sandbox.sh("echo paused > /root/note");
    let early = node.create("early");
    early.sh("echo early > /root/note");
    sandbox.pause();
    // Killed while it is written: its moment is still there, and the next start goes on.
    let kept = wait(node.client.commit(&early.id, &CreateCommit::default())).unwrap();
    node.kill();
    node.start();
    node.await_ready();
    eventually("it is durable", || {
        wait(node.client.get_commit(&kept.id)).unwrap().state == CommitState::Durable
    });
    assert_eq!(sandbox.shown().state, State::Paused);
    // Every machine of the host is gone: what is in the store is not.
    for pid in linux::processes_of(node.home()).expect("/proc") {
        // One that has ended with another needs no signal.
        let _ended = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    eventually("it has failed", || early.shown().state == State::Failed);
    assert_eq!(sandbox.resume().state, State::Running);
    assert_eq!(sandbox.sh("cat /root/note"), "paused");
    assert_eq!(check_out(&node, &kept.id).sh("cat /root/note"), "early");
}

/// Alters a byte in the middle of every file below.
fn alter(path: &Path) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| alter(&entry.unwrap().path()));
        return;
    }
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs::write(path, bytes).unwrap();
}

fn a_damaged_state_is_refused() {
    let node = Node::new("damaged", &[]);
    let sandbox = node.create("hurt");
    sandbox.sh("echo fine > /root/note");
    sandbox.pause();
    let (store, copy) = (node.home().join("store/chunks"), node.home().join("chunks"));
    fs::rename(&store, &copy).unwrap();
    chill(&node);
    fs::remove_dir_all(node.home().join("scratch")).unwrap();
    assert_eq!(refusal(wait(node.client.resume(&sandbox.id))), Code::Damaged, "nothing is there");
    let shell = format!("cp -a {} {}", copy.display(), store.display());
    assert!(std::process::Command::new("sh").args(["-c", &shell]).status().unwrap().success());
    alter(&store);
    assert_eq!(refusal(wait(node.client.resume(&sandbox.id))), Code::Damaged, "it was altered");
    assert_eq!(sandbox.shown().state, State::Paused);
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&copy, &store).unwrap();
    sandbox.resume();
    assert_eq!(sandbox.sh("cat /root/note"), "fine");
}
