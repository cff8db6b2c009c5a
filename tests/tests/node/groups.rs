//! Networks of several sandboxes: they see each other by name, and are forked with their conversations.

use ramet_client::api::groups::{CreateNetwork, ForkNetwork, JoinNetwork};

use crate::bed::{Sandbox, eventually, node, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![
    members_see_each_other,
    a_connection_goes_on_in_every_copy,
    a_transaction_goes_on_in_every_copy,
];

fn network(name: &str) {
    let request = CreateNetwork { name: name.to_owned(), ..CreateNetwork::default() };
    wait(node().client.create_network(&request)).unwrap_or_else(|error| node().fail(&error));
}

fn join(network: &str, sandbox: &Sandbox<'_>, name: &str) {
    let request = JoinNetwork { sandbox: sandbox.id.clone(), name: Some(name.to_owned()) };
    wait(node().client.join_network(network, &request)).unwrap_or_else(|error| node().fail(&error));
}

/// Removes networks and whatever is in them.
fn remove(networks: &[&str]) {
    let arguments = [&["network", "rm", "--members"], networks].concat();
    node().ramet(&arguments).ok();
}

/// One line from a server in the sandbox, asked over the network.
fn ask(sandbox: &Sandbox<'_>, host: &str) -> Result<String, String> {
    let line = format!(
        "python3 -c \"import socket; print(socket.create_connection(('{host}', 7000), 20).recv(99).decode().strip())\""
    );
    let ran = sandbox.run(&line);
    if ran.exit_code == Some(0) { Ok(ran.stdout.trim().to_owned()) } else { Err(ran.stderr) }
}

/// Says its sandbox's host name to everybody.
const TELLER: &str = r#"
import socket
listener = socket.create_server(("", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    stream, _ = listener.accept()
    stream.sendall(socket.gethostname().encode() + b"\n")
    stream.close()
"#;

fn members_see_each_other() {
    network("pair");
    let (db, app) = (node().create("pair-db"), node().create("pair-app"));
    let stranger = node().create("pair-stranger");
    join("pair", &db, "db");
    join("pair", &app, "app");
    db.put("/tmp/teller.py", TELLER);
    db.sh("nohup python3 /tmp/teller.py >/dev/null 2>&1 &");
    eventually("the name is known", || ask(&app, "db").is_ok());
    assert_eq!(ask(&app, "db").as_deref(), Ok("pair-db"));
    assert_eq!(ask(&app, "db.ramet.internal").as_deref(), Ok("pair-db"));
    assert_eq!(ask(&app, "10.114.1.1").as_deref(), Ok("pair-db"));
    assert_eq!(ask(&app, "fd72:616d:6574:1::1").as_deref(), Ok("pair-db"));
    // Nobody else does.
    assert!(ask(&stranger, "db").is_err());
    assert!(ask(&stranger, "10.114.1.1").is_err());
    // Who may begin is said while they run.
    node().ramet(&["network", "set", "pair", "--between", "db>app"]).ok();
    assert!(ask(&app, "db").is_err());
    node().ramet(&["network", "set", "pair", "--between", "app>db:7000"]).ok();
    assert_eq!(ask(&app, "db").as_deref(), Ok("pair-db"));
    // A copy is a network of its own.
    let forked = node().ramet(&["fork", "--group", "pair", "2"]).ok();
    assert!(forked.contains("pair-1") && forked.contains("pair-2"), "{forked}");
    for copy in ["pair-1", "pair-2"] {
        let app = node().handle(format!("{copy}-app")).keep();
        let app = node().handle(app);
        assert_eq!(ask(&app, "db").as_deref(), Ok(format!("{copy}-db").as_str()));
        app.keep();
    }
    assert_eq!(ask(&app, "db").as_deref(), Ok("pair-db"));
    db.keep();
    app.keep();
    remove(&["pair", "pair-1", "pair-2"]);
}

const NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups env -C /tmp";
const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";

fn serve(db: &Sandbox<'_>) {
    db.sh("mkdir /tmp/pg && chown 65534:65534 /tmp/pg");
    db.sh(&format!(
        "{NOBODY} {PROGRAMS}/initdb -D /tmp/pg/data -U postgres -A trust --no-sync --locale=C >/tmp/initdb.log 2>&1 || (cat /tmp/initdb.log >&2; false)"
    ));
    db.sh("echo 'host all all all trust' >> /tmp/pg/data/pg_hba.conf");
    db.sh(&format!(
        "{NOBODY} {PROGRAMS}/pg_ctl -D /tmp/pg/data -w -t 300 -l /tmp/pg/log \
         -o \"-c listen_addresses='*' -c jit=off -c fsync=off -c unix_socket_directories=/tmp\" start >/dev/null || (cat /tmp/pg/log >&2; false)"
    ));
}

fn query(db: &Sandbox<'_>, sql: &str) -> String {
    db.sh(&format!("{PROGRAMS}/psql -h /tmp -U postgres -XAtc \"{sql}\""))
}

/// The client of the app reads commands from a pipe that stays open.
const APP: &str = "mkfifo /tmp/in && (nohup sleep 1000000 > /tmp/in 2>/dev/null &) && \
    (nohup /usr/lib/postgresql/15/bin/psql -h db -U postgres -Xa < /tmp/in > /tmp/out 2>&1 &)";

fn tell(app: &Sandbox<'_>, sql: &str) {
    app.sh(&format!("echo \"{sql}\" > /tmp/in"));
}

fn await_output(app: &Sandbox<'_>, text: &str) {
    eventually(text, || app.run(&format!("grep -q '{text}' /tmp/out")).exit_code == Some(0));
}

/// Says who it is to whatever it hears.
const ECHO: &str = "\
import socket, socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile: self.wfile.write(socket.gethostname().encode() + b' heard ' + line)
socketserver.ThreadingTCPServer(('', 7001), Echo).serve_forever()
";
/// Has one connection to it, for good, and passes on what is written into a pipe.
const TALKER: &str = "\
import os, socket, time
os.mkfifo('/tmp/in')
while True:
    try: wire = socket.create_connection(('db', 7001)).makefile('rw'); break
    except OSError: time.sleep(0.1)
out = open('/tmp/out', 'w')
while True:
    for line in open('/tmp/in'):
        wire.write(line); wire.flush()
        out.write(wire.readline()); out.flush()
";

fn said_over_the_connection(app: &Sandbox<'_>, word: &str) -> String {
    let line = format!(
        "until test -p /tmp/in; do sleep 0.1; done; echo {word} > /tmp/in; \
                        until grep {word} /tmp/out; do sleep 0.1; done"
    );
    app.sh(&format!("timeout 60 sh -c '{line}'"))
}

fn a_connection_goes_on_in_every_copy() {
    network("talk");
    let (db, app) = (node().create("talk-db"), node().create("talk-app"));
    join("talk", &db, "db");
    join("talk", &app, "app");
    db.put("/tmp/echo.py", ECHO);
    db.sh("nohup python3 /tmp/echo.py >/dev/null 2>&1 &");
    app.put("/tmp/talker.py", TALKER);
    app.sh("nohup python3 /tmp/talker.py >/dev/null 2>&1 &");
    assert_eq!(said_over_the_connection(&app, "one"), "talk-db heard one");
    node().ramet(&["fork", "--group", "talk", "2"]).ok();
    for copy in ["talk-1", "talk-2"] {
        let app = node().handle(format!("{copy}-app"));
        assert_eq!(said_over_the_connection(&app, copy), format!("{copy}-db heard {copy}"));
        app.keep();
    }
    assert_eq!(said_over_the_connection(&app, "three"), "talk-db heard three");
    db.keep();
    app.keep();
    remove(&["talk", "talk-1", "talk-2"]);
}

fn a_transaction_goes_on_in_every_copy() {
    network("shop");
    let (db, app) = (node().create("shop-db"), node().create("shop-app"));
    join("shop", &db, "db");
    join("shop", &app, "app");
    db.unpack("RAMET_POSTGRES");
    app.unpack("RAMET_POSTGRES");
    serve(&db);
    query(&db, "create table t (what text)");
    app.sh(APP);
    tell(&app, "begin;");
    tell(&app, "insert into t values ('of all');");
    await_output(&app, "INSERT 0 1");
    assert_eq!(query(&db, "select count(*) from t"), "0", "it is not committed");
    let request = ForkNetwork { count: Some(3), ..ForkNetwork::default() };
    let forked =
        wait(node().client.fork_network("shop", &request)).unwrap_or_else(|e| node().fail(&e));
    assert!(forked.copies.iter().all(|copy| copy.error.is_none()), "{forked:?}");
    for copy in ["shop-1", "shop-2", "shop-3"] {
        let app = node().handle(format!("{copy}-app"));
        tell(&app, &format!("insert into t values ('of {copy}');"));
        tell(&app, "commit;");
        await_output(&app, "^COMMIT");
        app.keep();
        let db = node().handle(format!("{copy}-db"));
        let rows = query(&db, "select string_agg(what, ',' order by what) from t");
        assert_eq!(rows, format!("of all,of {copy}"));
        db.keep();
    }
    // In the source it is open still, and can be taken back.
    tell(&app, "rollback;");
    await_output(&app, "^ROLLBACK");
    assert_eq!(query(&db, "select count(*) from t"), "0");
    // The network goes on as a copy did.
    node().ramet(&["network", "promote", "shop", "shop-2"]).ok();
    assert_eq!(query(&db, "select count(*) from t where what = 'of shop-2'"), "1");
    tell(&app, "insert into t values ('after'); select 'counted ' || count(*) from t;");
    await_output(&app, "counted 3");
    db.keep();
    app.keep();
    remove(&["shop", "shop-1", "shop-3"]);
}
