//! What a program has built up: every child goes on with it, each on its own.

use crate::bed::{Guest, guest};

pub fn arrays_in_a_session() {
    let mut source = guest("arrays");
    source.py("array = numpy.arange(1_000_000); total = 0");
    let mut expected = 499_999_500_000_u64;
    for round in 1..=4_u64 {
        let mut children = source.fork_all(&["arrays-1", "arrays-2"]);
        source.py("array[:] = 0");
        children[1].py("array *= 3");
        children[0].py("array += 1; total += 1");
        expected += 1_000_000;
        let told = children[0].py("print(array.sum(), total)");
        assert_eq!(told, format!("{expected} {round}"));
        assert_eq!(source.py("print(array.any())"), "False");
        source = children.swap_remove(0);
    }
}

/// A server that counts the lines of its one connection, and a client.
const CONNECTION: &str = "\
listener = socket.create_server(('127.0.0.1', 0))
def serve():
    connection, _ = listener.accept()
    for number, line in enumerate(connection.makefile('rb'), 1):
        connection.sendall(b'%d ' % number + line)
server = spawn(serve)
client = socket.create_connection(listener.getsockname())
answers = client.makefile('rb')
def ask(text):
    client.sendall(text.encode() + b'\\n')
    print(answers.readline().decode().strip())";

pub fn a_loopback_connection() {
    let source = guest("socket");
    source.py(CONNECTION);
    assert_eq!(source.py("ask('one')"), "1 one");
    let children = source.fork_all(&["socket-1", "socket-2"]);
    assert_eq!(children[0].py("ask('left')"), "2 left");
    assert_eq!(children[0].py("ask('again')"), "3 again");
    assert_eq!(children[1].py("ask('right')"), "2 right");
    assert_eq!(source.py("ask('on')"), "2 on");
    let grandchild = children[0].fork_as("socket-3");
    assert_eq!(grandchild.py("ask('deeper')"), "4 deeper");
    let ends = "print(client.getsockname(), client.getpeername(), server, os.getpid())";
    assert_eq!(grandchild.py(ends), source.py(ends));
}

/// Pids, parents and commands of what a test has started.
fn tree(guest: &Guest) -> Vec<(i32, i32, Vec<String>)> {
    let all = guest.agent().processes().unwrap();
    let ours = |command: &[String]| {
        command.iter().any(|word| word.contains("fifo") || word == "tr" || word == "session.py")
    };
    let kept = all.into_iter().filter(|process| ours(&process.command));
    kept.map(|process| (process.pid, process.parent, process.command)).collect()
}

pub fn a_process_tree_with_pipes() {
    let source = guest("tree");
    // The reader blocks on the fifo, tr on the reader, and the shell waits for both.
    source.sh("mkfifo /run/fifo; echo 'cat /run/fifo | tr a-z A-Z > /srv/out; \
               echo ended with $? >> /srv/out; mv /srv/out /srv/done' > /run/fifo.sh; \
               setsid sh /run/fifo.sh > /dev/null 2>&1 &");
    source.py_until(
        "any('tr' == open(f'/proc/{pid}/comm').read().strip() \
                     for pid in os.listdir('/proc') if pid.isdigit())",
    );
    let before = tree(&source);
    assert_eq!(before.len(), 3, "{before:?}");
    let children = source.fork_all(&["tree-1", "tree-2"]);
    for machine in children.iter().chain([&source]) {
        assert_eq!(tree(machine), before);
        machine.py("open('/run/fifo', 'w').write(name() + '\\n')");
        machine.py_until("os.path.exists('/srv/done')");
        let name = machine.name().to_uppercase();
        assert_eq!(machine.get("/srv/done"), format!("{name}\nended with 0"));
    }
}

/// A transaction that has outgrown its cache and is partly in the file already.
const TRANSACTION: &str = "\
base = sqlite3.connect('/srv/base', isolation_level=None)
base.execute('pragma synchronous = full')
base.execute('pragma cache_size = 10')
base.execute('create table t (n integer primary key, text blob)')
fill = lambda numbers: base.executemany('insert into t values (?, randomblob(500))', numbers)
base.execute('begin'); fill([(n,) for n in range(100)]); base.execute('commit')
base.execute('begin'); fill([(n,) for n in range(100, 300)])";

pub fn a_database_in_mid_transaction() {
    let source = guest("base");
    source.py(TRANSACTION);
    let children = source.fork_all(&["commits", "rolls-back"]);
    children[0].py("base.execute('commit')");
    children[1].py("base.execute('rollback'); fill([(1000,)])");
    let late = source.fork_as("late");
    source.py("fill([(2000,)]); base.execute('commit')");
    late.py("base.execute('delete from t'); base.execute('commit')");
    let expected = [(&children[0], 300), (&children[1], 101), (&source, 301), (&late, 0)];
    for (machine, rows) in expected {
        machine.py("base.close(); get('/srv/base')");
        let told = machine.py("base = sqlite3.connect('/srv/base')\n\
             print(*base.execute('pragma integrity_check').fetchone(), \
             *base.execute('select count(*) from t').fetchone())");
        assert_eq!(told, format!("ok {rows}"));
    }
}

pub fn pids_and_offsets() {
    let source = guest("offset");
    source.py(
        "open('/srv/text', 'w').write('0123456789' * 100)\n\
         file = os.open('/srv/text', os.O_RDWR)\n\
         read = lambda count: print(os.read(file, count).decode(), os.lseek(file, 0, os.SEEK_CUR))\n\
         read(13)",
    );
    let children = source.fork_all(&["offset-1", "offset-2"]);
    assert_eq!(children[0].py("read(4)"), "3456 17");
    assert_eq!(children[0].py("read(2)"), "78 19");
    assert_eq!(children[1].py("read(1)"), "3 14");
    assert_eq!(source.py("read(3)"), "345 16");
    let pids = "print(os.getpid(), os.getppid(), os.getsid(0))";
    let expected = source.py(pids);
    // New processes get the same numbers at first: they are counted in each machine by itself.
    let next = "pid = spawn(lambda: None); os.waitpid(pid, 0); print(pid)";
    for child in &children {
        assert_eq!(child.py(pids), expected);
        assert!(child.py(next).parse::<u32>().is_ok());
    }
}
