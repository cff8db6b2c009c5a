//! What nobody should send, sent to a node with real guests: each gets an answer or is hung up on, and the next one
//! is served. Every endpoint's own share of nonsense is in the program `schema`.

use std::time::Duration;

use ramet_client::api::{Code, ExecRequest, StreamExec, Terminal};

use crate::bed::{fresh, node, pairs, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] =
    stories![nonsense_is_answered, a_guest_that_misbehaves, odd_paths_and_words];

/// A node that waits for the rest of a request says nothing.
const SILENCE: Duration = Duration::from_secs(1);

fn nonsense_is_answered() {
    let sandbox = fresh("pelted");
    let path = format!("/v1/sandboxes/{}", sandbox.id);
    let auth = format!("Authorization: Bearer {}\r\n", node().token());
    let long = "x".repeat(1 << 20);
    let requests = [
        "\r\n\r\n\r\n".to_owned(),
        "GET".to_owned() + "\0\r\n\r\n",
        format!("GET /{long} HTTP/1.1\r\n\r\n"),
        format!("GET /v1/node HTTP/1.1\r\nX: {long}\r\n\r\n"),
        format!("GET /v1/node HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(10_000)),
        format!("POST {path}/exec HTTP/1.0\r\n{auth}Content-Length: 99999999999\r\n\r\n"),
        format!("POST {path}/exec HTTP/1.0\r\n{auth}Content-Length: -1\r\n\r\n"),
        format!("POST {path}/fork HTTP/1.1\r\n{auth}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        format!("PUT {path}/files?path=/%ff HTTP/1.0\r\n{auth}\r\n"),
        format!("GET {path}/files?path=/etc/hostname HTTP/1.0\r\n{auth}Range: bytes=-\r\n\r\n"),
        format!("GET {path}/exec/ws HTTP/1.0\r\n{auth}Upgrade: websocket\r\n\r\n"),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ];
    for request in requests {
        let answer = node().raw(request.as_bytes(), SILENCE);
        let line = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
        let fine = ["", "HTTP/1.1 4", "HTTP/1.0 4", "HTTP/1.0 200", "HTTP/1.1 200"];
        let shown: String = request.chars().take(60).collect();
        assert!(fine.iter().any(|start| line.starts_with(start)), "{shown:?}: {line}");
        assert!(!line.contains(" 500 "), "{shown:?}: {line}");
    }
    wait(node().client.health()).unwrap();
    assert_eq!(sandbox.py("print(1)"), "1");
}

fn a_guest_that_misbehaves() {
    let sandbox = fresh("wild");
    // The agent shares its machine with root, who may do anything but harm others.
    let result = sandbox.run("printf '\\x1b]0;title\\x07\\xff\\xfe'; head -c 17000000 /dev/zero");
    assert!(result.truncated && result.stdout.len() >= 16 << 20, "bounded");
    let fork_bomb = "for i in $(seq 20); do sleep 100 & done; echo started";
    assert_eq!(sandbox.sh(fork_bomb), "started");
    assert!(wait(node().client.processes(&sandbox.id)).unwrap().len() >= 20);
    sandbox.sh("rm -rf /run/ramet/secrets /run/ramet/token; kill -9 -1 || true");
    assert_eq!(node().create("calm").sh("echo fine"), "fine", "others do not notice");
    drop(wait(node().client.exec(
        &sandbox.id,
        &ExecRequest {
            command: Some("echo b > /proc/sysrq-trigger".to_owned()),
            timeout_ms: Some(5000),
            ..ExecRequest::default()
        },
    )));
    crate::bed::eventually("it has failed", || sandbox.shown().failure.is_some());
    let failure = sandbox.shown().failure.expect("a failure");
    assert!(!failure.reason.is_empty(), "{failure:?}");
    let command = Some("true".to_owned());
    let after = sandbox.exec(&ExecRequest { command, ..ExecRequest::default() });
    assert_eq!(refusal(after), Code::WrongState);
}

fn odd_paths_and_words() {
    let sandbox = fresh("odd");
    for name in
        ["/srv/ä ö", "/srv/a\nb", "/srv/%2e%2e", "/srv/..x", "/srv/\u{202e}rtl", "/srv/'\"`$"]
    {
        sandbox.put(name, name);
        assert_eq!(sandbox.get(name), name);
    }
    assert_eq!(refusal(sandbox.try_get("/srv/a\0b")), Code::BadRequest);
    assert_eq!(refusal(sandbox.try_get(&format!("/{}", "x".repeat(5000)))), Code::BadRequest);
    let long = refusal(sandbox.try_get(&format!("/srv/{}", "x".repeat(300))));
    assert!(matches!(long, Code::BadRequest | Code::GuestFailed | Code::FileNotFound), "{long:?}");
    let argv = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
    let exec =
        ExecRequest { argv: argv(&["printf", "%s|", "", "-n", "ä\n"]), ..Default::default() };
    assert_eq!(sandbox.exec(&exec).unwrap().stdout, "|-n|ä\n|");
    let env = ExecRequest {
        env: pairs(&[("A=B", "x")]),
        command: Some("true".into()),
        ..Default::default()
    };
    assert_eq!(refusal(sandbox.exec(&env)), Code::BadRequest);
    let terminal = Some(Terminal { columns: 0, rows: 0 });
    let exec = StreamExec { command: Some("true".into()), terminal, ..StreamExec::default() };
    // A terminal without a size is one all the same, or refused; the node lives.
    drop(wait(node().client.exec_stream(&sandbox.id, exec)));
    assert_eq!(sandbox.py("print(1)"), "1");
}
