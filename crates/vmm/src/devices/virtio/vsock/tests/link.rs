//! The agent's link, which ends in the monitor and outlives its process.

use std::io::Write;

use ramet_proto::agent::Failure;

use super::*;

const LINK: Key = (LINK_PORT, 5000);
const HELLO: &[u8] = b"{\"hello\":{\"version\":1}}\n";

fn hello() -> Notice {
    Notice::Link(ToMonitor::Hello { version: 1 })
}

fn meeting(meeting: u64) -> ToAgent {
    ToAgent::Rendezvous { meeting, call: None }
}

fn line(message: &ToAgent) -> Vec<u8> {
    [serde_json::to_vec(message).unwrap(), b"\n".to_vec()].concat()
}

fn linked() -> Bench {
    let mut bench = Bench::new();
    bench.say(&packet(LINK, OP_REQUEST));
    bench.expect(LINK, OP_RESPONSE);
    assert_eq!(bench.device.take_notices(), [Notice::LinkUp]);
    bench
}

fn assert_link_works(bench: &mut Bench) {
    assert!(bench.device.tell(&meeting(7)));
    assert_eq!(bench.expect(LINK, OP_RW).data, line(&meeting(7)));
    bench.say(&data(LINK, HELLO));
    assert_eq!(bench.device.take_notices(), [hello()]);
}

fn assert_link_is_lost(bench: &mut Bench) {
    bench.expect(LINK, OP_RST);
    assert_eq!(bench.device.take_notices(), [Notice::LinkDown]);
    assert!(!bench.device.tell(&meeting(1)));
    bench.expect_silence();
}

#[test]
fn lines_go_both_ways() {
    let mut bench = linked();
    assert_link_works(&mut bench);
}

#[test]
fn without_a_link_nobody_is_told() {
    assert!(!Vsock::default().tell(&meeting(1)));
}

#[test]
fn lines_come_in_pieces_and_together() {
    let mut bench = linked();
    for byte in HELLO {
        bench.say(&data(LINK, &[*byte]));
    }
    assert_eq!(bench.device.take_notices(), [hello()]);
    let fork = b"{\"fork\":{\"call\":3,\"count\":2}}\n{\"hello\"";
    bench.say(&data(LINK, &[HELLO, fork].concat()));
    let call = Notice::Link(ToMonitor::Fork { call: 3, count: 2 });
    assert_eq!(bench.device.take_notices(), [hello(), call]);
    bench.say(&data(LINK, &HELLO[8..]));
    assert_eq!(bench.device.take_notices(), [hello()]);
}

#[test]
fn nonsense_ends_the_link() {
    for nonsense in [&b"\n"[..], b"{}\n", b"\xff\xfe\n", b"{\"hello\":{\"version\":1,\"x\":1}}\n"] {
        let mut bench = linked();
        bench.say(&data(LINK, nonsense));
        assert_link_is_lost(&mut bench);
    }
}

#[test]
fn a_line_that_does_not_end_ends_the_link() {
    let mut bench = linked();
    bench.say(&data(LINK, &[b' '; LINE_MAX]));
    assert_eq!(bench.device.take_notices(), []);
    bench.say(&data(LINK, b" "));
    assert_link_is_lost(&mut bench);
    assert!(bench.device.line.is_empty());
}

#[test]
fn too_much_at_once_ends_the_link() {
    let mut bench = linked();
    let lines = HELLO.repeat(2000);
    bench.say(&data(LINK, &lines));
    bench.say(&data(LINK, &lines));
    let notices = bench.device.take_notices();
    assert_eq!(notices.last(), Some(&Notice::LinkDown));
    assert!(notices.len() <= 2 * CONNECTIONS_MAX);
}

#[test]
fn an_agent_that_closes_is_gone_at_once() {
    for flags in [SHUT_SEND, SHUT_RECEIVE, SHUT_SEND | SHUT_RECEIVE] {
        let mut bench = linked();
        bench.say(&shutdown(LINK, flags));
        assert_link_is_lost(&mut bench);
    }
    let mut bench = linked();
    bench.say(&packet(LINK, OP_RST));
    assert_eq!(bench.device.take_notices(), [Notice::LinkDown]);
    bench.expect_silence();
}

#[test]
fn a_new_link_replaces_the_old_one() {
    let mut bench = linked();
    bench.say(&data(LINK, &HELLO[..5]));
    let next = (LINK_PORT, 5001);
    bench.say(&packet(next, OP_REQUEST));
    bench.expect(LINK, OP_RST);
    bench.expect(next, OP_RESPONSE);
    assert_eq!(bench.device.take_notices(), [Notice::LinkDown, Notice::LinkUp]);
    bench.say(&data(next, HELLO));
    assert_eq!(bench.device.take_notices(), [hello()]);
    assert!(bench.device.tell(&meeting(2)));
    bench.expect(next, OP_RW);
    bench.say(&data(LINK, b"ghost"));
    bench.expect(LINK, OP_RST);
}

#[test]
fn a_link_that_is_asked_for_twice_is_lost() {
    let mut bench = linked();
    bench.say(&packet(LINK, OP_REQUEST));
    assert_link_is_lost(&mut bench);
    bench.say(&packet(LINK, OP_REQUEST));
    bench.expect(LINK, OP_RESPONSE);
    assert_eq!(bench.device.take_notices(), [Notice::LinkUp]);
    assert_link_works(&mut bench);
}

#[test]
fn the_agent_gets_its_credit_back() {
    let mut bench = linked();
    let (mut sent, mut taken) = (0, 0);
    let lines = HELLO.repeat(400);
    for _ in 0..200 {
        if sent - taken + lines.len() as u32 <= WINDOW {
            bench.say(&data(LINK, &lines));
            assert_eq!(bench.device.take_notices().len(), 400);
            sent += lines.len() as u32;
        }
        bench.turn();
        for packet in std::mem::take(&mut bench.heard) {
            taken = packet.taken;
        }
    }
    assert!(sent > 4 * WINDOW, "{sent}");
}

#[test]
fn an_agent_that_does_not_listen_loses_its_link() {
    let mut bench = Bench::new();
    bench.say(&Packet { window: 0, ..packet(LINK, OP_REQUEST) });
    bench.expect(LINK, OP_RESPONSE);
    bench.device.take_notices();
    let failure = Failure { code: "refused".into(), message: "no".repeat(500) };
    let refused = ToAgent::Refused { call: 1, failure };
    let told = (0..1000).take_while(|_| bench.device.tell(&refused)).count();
    assert!((100..500).contains(&told), "{told}");
    assert_link_is_lost(&mut bench);
    assert!(bench.device.connections.is_empty());
}

#[test]
fn what_is_told_waits_for_credit() {
    let mut bench = Bench::new();
    bench.say(&Packet { window: 10, ..packet(LINK, OP_REQUEST) });
    bench.expect(LINK, OP_RESPONSE);
    assert!(bench.device.tell(&meeting(12)));
    let first = bench.expect(LINK, OP_RW).data;
    assert_eq!(first.len(), 10);
    bench.expect_silence();
    bench.say(&packet(LINK, OP_CREDIT_UPDATE));
    let rest = bench.expect(LINK, OP_RW).data;
    assert_eq!([first, rest].concat(), line(&meeting(12)));
}

#[test]
fn a_child_keeps_the_link_and_nothing_else() {
    let mut bench = linked();
    let (mut open, first) = bench.stream(1);
    let (mut opening, second) = bench.dial(2);
    let mut unasked = bench.open(3);
    open.write_all(b"for the source only").unwrap();
    bench.device.disown_streams();
    let mut resets: Vec<Key> = (0..3).map(|_| bench.hear()).map(|packet| packet.key()).collect();
    resets.sort_unstable();
    assert_eq!(resets[..2], [first, second]);
    bench.expect_silence();
    assert_eq!(bench.device.connections.len(), 1);
    assert_link_works(&mut bench);
    // The source's sockets are still open, and untouched.
    for client in [&mut open, &mut opening, &mut unasked] {
        assert_eq!(read_some(client), b"");
        client.write_all(b"x").unwrap();
    }
}

/// Through the state file and back.
fn restored(device: &Vsock) -> Vsock {
    let bytes = postcard::to_stdvec(&device.state()).unwrap();
    Vsock::restored(postcard::from_bytes(&bytes).unwrap())
}

#[test]
fn a_saved_link_goes_on() {
    let mut bench = linked();
    assert_link_works(&mut bench);
    bench.say(&data(LINK, &HELLO[..9]));
    let (_client, key) = bench.stream(1);
    assert!(bench.device.tell(&meeting(8)));
    bench.device.disown_streams();
    bench.device = restored(&bench.device);
    bench.expect(key, OP_RST);
    assert_eq!(bench.expect(LINK, OP_RW).data, line(&meeting(8)));
    bench.say(&data(LINK, &HELLO[9..]));
    assert_eq!(bench.device.take_notices(), [hello()]);
    assert_link_works(&mut bench);
    let (_client, next) = bench.stream(1);
    assert_ne!(next, key, "a port is not used again at once");
}

#[test]
fn a_saved_device_without_a_link_is_a_device() {
    let mut bench = Bench::new();
    bench.device = restored(&bench.device);
    let (_client, key) = bench.stream(4);
    assert_eq!(key, (FIRST_PORT, 4));
    let state = VsockState { link: None, resets: Vec::new(), next_port: u32::MAX };
    bench.device = Vsock::restored(state);
    let ports = [bench.stream(5).1.0, bench.stream(5).1.0];
    assert_eq!(ports, [2 * FIRST_PORT - 1, FIRST_PORT]);
}

#[test]
fn a_reset_of_the_device_ends_the_link() {
    let mut bench = linked();
    bench.say(&data(LINK, &HELLO[..5]));
    bench.bring_up();
    assert_eq!(bench.device.take_notices(), [Notice::LinkDown]);
    assert!(!bench.device.tell(&meeting(1)));
    bench.give_buffers();
    bench.say(&packet(LINK, OP_REQUEST));
    bench.expect(LINK, OP_RESPONSE);
    assert_eq!(bench.device.take_notices(), [Notice::LinkUp]);
    assert_link_works(&mut bench);
}
