//! The wire: dialled streams, malformed frames, the command line.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixListener;
use std::process::Command;

use common::Agent;
use ramet_proto::agent::{Channel, Dial, FRAME_MAX, Reply, Request};

/// A listener that answers, after the end of what it reads, with its length.
fn count_and_answer(mut stream: impl Read + Write) {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("the end");
    stream.write_all(format!("{} bytes", all.len()).as_bytes()).expect("answered");
}

fn dial_and_count(agent: &Agent, dial: Dial) -> String {
    let mut session = agent.ask(&Request::Dial(dial));
    assert_eq!(session.reply(), Reply::Done {});
    session.stream.write_all(&vec![7; 1_000_000]).expect("sent");
    session.stream.shutdown(Shutdown::Write).expect("half closed");
    let mut answer = String::new();
    session.stream.read_to_string(&mut answer).expect("the answer");
    answer
}

#[test]
fn dialled_streams_close_one_side_at_a_time() {
    let agent = Agent::start();
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = tcp.local_addr().expect("its address").port();
    let path = agent.path("listener.sock");
    let unix = UnixListener::bind(&path).expect("a listener");
    let first = std::thread::spawn(move || count_and_answer(tcp.accept().expect("dialled").0));
    let second = std::thread::spawn(move || count_and_answer(unix.accept().expect("dialled").0));
    assert_eq!(dial_and_count(&agent, Dial::Tcp { port }), "1000000 bytes");
    assert_eq!(dial_and_count(&agent, Dial::Unix { path }), "1000000 bytes");
    first.join().expect("no panic");
    second.join().expect("no panic");
}

#[test]
fn bytes_sent_before_the_answer_belong_to_the_stream() {
    let agent = Agent::start();
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = tcp.local_addr().expect("its address").port();
    let mut session = agent.connect();
    let request = serde_json::to_vec(&Request::Dial(Dial::Tcp { port })).expect("JSON");
    let length = u32::try_from(request.len()).expect("short").to_le_bytes();
    let all = [&length[..], &[Channel::Message as u8], &request, b"early"].concat();
    session.stream.write_all(&all).expect("sent at once");
    let (mut stream, _) = tcp.accept().expect("dialled");
    let mut early = [0; 5];
    stream.read_exact(&mut early).expect("the early bytes");
    assert_eq!(&early, b"early");
}

#[test]
fn a_dialler_that_leaves_is_noticed_by_the_listener() {
    let agent = Agent::start();
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = tcp.local_addr().expect("its address").port();
    let mut session = agent.ask(&Request::Dial(Dial::Tcp { port }));
    assert_eq!(session.reply(), Reply::Done {});
    let (mut stream, _) = tcp.accept().expect("dialled");
    drop(session);
    stream.set_read_timeout(Some(common::PATIENCE)).expect("a timeout");
    assert_eq!(stream.read(&mut [0; 1]).expect("an end"), 0);
}

#[test]
fn ipv6_listeners_are_dialled_too() {
    let agent = Agent::start();
    let Ok(tcp) = TcpListener::bind("[::1]:0") else {
        return eprintln!("skipped: this machine has no IPv6");
    };
    let port = tcp.local_addr().expect("its address").port();
    let mut session = agent.ask(&Request::Dial(Dial::Tcp { port }));
    assert_eq!(session.reply(), Reply::Done {});
    assert!(tcp.accept().is_ok());
}

#[test]
fn listeners_are_listed() {
    let agent = Agent::start();
    let first = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let second = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let (tcp, udp) = (first.local_addr().expect("one"), second.local_addr().expect("one"));
    let Reply::Listeners { listeners } = agent.answer(&Request::Listeners {}) else {
        panic!("another reply")
    };
    let has = |protocol: &str, address: &str, port: u16| {
        listeners.iter().any(|listener| {
            listener.protocol == protocol && listener.address == address && listener.port == port
        })
    };
    assert!(has("tcp", "127.0.0.1", tcp.port()) && has("udp", "0.0.0.0", udp.port()));
    assert!(!has("udp", "0.0.0.0", tcp.port()));
}

#[test]
fn what_cannot_be_dialled_says_why() {
    let agent = Agent::start();
    let unused = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = unused.local_addr().expect("its address").port();
    drop(unused);
    let refused = |dial| agent.failure(&Request::Dial(dial)).code;
    assert_eq!(refused(Dial::Tcp { port }), "connection_refused");
    assert_eq!(refused(Dial::Tcp { port: 0 }), "bad_request");
    assert_eq!(refused(Dial::Unix { path: "/no/such".into() }), "not_found");
    assert_eq!(refused(Dial::Unix { path: "relative".into() }), "bad_request");
}

fn refused_with(agent: &Agent, bytes: &[u8]) -> String {
    let mut session = agent.connect();
    session.stream.write_all(bytes).expect("sent");
    let message = match session.reply() {
        Reply::Error(failure) if failure.code == "bad_request" => failure.message,
        other => panic!("{other:?}"),
    };
    assert!(session.frame().is_none(), "the agent closes");
    message
}

fn message(json: &str) -> Vec<u8> {
    let length = u32::try_from(json.len()).expect("short").to_le_bytes();
    [&length[..], &[0], json.as_bytes()].concat()
}

#[test]
fn malformed_frames_are_refused_and_harm_no_one() {
    let agent = Agent::start();
    let long = u32::try_from(FRAME_MAX).expect("fits") + 1;
    let text = refused_with(&agent, &[&long.to_le_bytes()[..], &[0]].concat());
    assert!(text.contains("262145"), "{text}");
    assert!(refused_with(&agent, &[0, 0, 0, 0, 9]).contains("channel 9"));
    assert!(refused_with(&agent, &[0xff; 5]).contains("channel 255"));
    assert!(refused_with(&agent, &[1, 0, 0, 0, 1, 65]).contains("not a message"));
    assert!(refused_with(&agent, &message("")).contains("not a request"));
    assert!(refused_with(&agent, &message("{}")).contains("not a request"));
    assert!(refused_with(&agent, &message("{\"fly\":{}}")).contains("fly"));
    assert!(refused_with(&agent, &message(&"[".repeat(100_000))).contains("not a request"));
    // One that is cut off is no request at all.
    let mut session = agent.connect();
    session.stream.write_all(&[5, 0, 0, 0, 0, b'{']).expect("sent");
    session.stream.shutdown(Shutdown::Write).expect("closed");
    assert!(session.frame().is_none());
    assert!(matches!(agent.answer(&Request::Usage {}), Reply::Usage(_)));
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let agent = Agent::start();
    for json in [
        r#"{"exec":{"argv":["true"],"nice":5}}"#,
        r#"{"usage":{"nice":5}}"#,
        r#"{"read_file":{"path":"/etc/passwd","nice":true}}"#,
        r#"{"stat":{"path":"/","nice":0}}"#,
    ] {
        let text = refused_with(&agent, &message(json));
        assert!(text.contains("nice"), "{json}: {text}");
    }
}

#[test]
fn a_malformed_input_ends_the_session_not_the_process() {
    let agent = Agent::start();
    for (channel, bytes) in [
        (Channel::Message, &b"{\"end\":{\"now\":1}}"[..]),
        (Channel::Message, b"{\"hole\":{\"length\":1}}"),
        (Channel::Message, b"{\"resize\":{\"columns\":1,\"rows\":1}}"),
        (Channel::Message, b"{\"signal\":{\"signal\":999}}"),
        (Channel::Stdout, b"x"),
    ] {
        let mut session = agent.exec(&common::shell("exec sleep 100"));
        let pid = session.started();
        session.bytes(channel, bytes);
        assert!(matches!(session.reply(), Reply::Error(e) if e.code == "bad_request"));
        assert!(session.frame().is_none());
        assert!(common::is_alive(&pid.to_string()));
    }
}

fn command(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ramet-agent")).args(arguments).output();
    let output = output.expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_line_helps_and_refuses() {
    let (code, help, _) = command(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(["fork [N]", "serve --unix PATH", "ramet.root"].iter().all(|text| help.contains(text)));
    for wrong in
        [&["fly"][..], &[], &["fork", "0"], &["fork", "x"], &["fork", "1", "2"], &["serve"]]
    {
        let (code, _, error) = command(wrong);
        assert!(code == Some(2) && error.contains("--help"), "{wrong:?}: {error}");
    }
    let (code, _, error) = command(&["fork"]);
    assert!(code == Some(1) && error.contains("agent.sock"), "{error}");
}
