//! A client over a real socket, that does not keep to the rules.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::time::Duration;

use ramet_proto::control::Request;

use super::*;

fn pair() -> (Client, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (Client::new(ours).unwrap(), theirs)
}

fn status(id: u64) -> Vec<u8> {
    format!("{{\"id\":{id},\"request\":{{\"status\":{{}}}}}}\n").into_bytes()
}

/// The number of the next request, and how many descriptors came with it.
fn next(client: &mut Client) -> Option<(u64, usize)> {
    let received = client.receive().unwrap()?;
    let message = received.message.unwrap_or_else(|refused| panic!("{}", refused.failure.message));
    assert_eq!(message.request, Request::Status {});
    Some((message.id, received.descriptors.len()))
}

fn send(peer: &UnixStream, bytes: &[u8], descriptors: &[RawFd]) {
    assert_eq!(peer.send_with_fds(&[bytes], descriptors).unwrap(), bytes.len());
}

/// A descriptor to send, and its other end, which hears when every copy is closed.
fn tracer() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (ours, theirs)
}

fn assert_all_closed(mut tracer: UnixStream) {
    assert_eq!(tracer.read(&mut [0]).unwrap(), 0);
}

#[test]
fn lines_come_in_pieces() {
    let (mut client, mut peer) = pair();
    for byte in status(5) {
        assert!(client.receive().unwrap().is_none());
        peer.write_all(&[byte]).unwrap();
    }
    assert_eq!(next(&mut client), Some((5, 0)));
    assert_eq!(next(&mut client), None);
}

#[test]
fn lines_come_together() {
    let (mut client, mut peer) = pair();
    let all = [status(1), status(2), status(3), status(4)[..7].to_vec()].concat();
    peer.write_all(&all).unwrap();
    for id in 1..=3 {
        assert_eq!(next(&mut client), Some((id, 0)));
    }
    assert_eq!(next(&mut client), None);
    peer.write_all(&status(4)[7..]).unwrap();
    assert_eq!(next(&mut client), Some((4, 0)));
}

#[test]
fn lines_that_are_no_requests_are_refused_by_number() {
    let cases: [(&[u8], Option<u64>); 6] = [
        (b"\n", None),
        (b"nonsense\n", None),
        (b"\xff\xfe\n", None),
        (b"{\"id\":7,\"request\":{\"dance\":{}}}\n", Some(7)),
        (b"{\"id\":8,\"request\":{\"status\":{\"fast\":true}}}\n", Some(8)),
        (b"{\"id\":-1,\"request\":{\"status\":{}}}\n", None),
    ];
    for (line, id) in cases {
        let (mut client, mut peer) = pair();
        peer.write_all(line).unwrap();
        let received = client.receive().unwrap().unwrap();
        let refused = received.message.expect_err("it is no message");
        assert_eq!((refused.id, refused.failure.code), (id, Code::BadMessage));
        peer.write_all(&status(9)).unwrap();
        assert_eq!(next(&mut client), Some((9, 0)));
    }
}

/// Reads while another thread writes these bytes.
fn receive_all(bytes: Vec<u8>) -> (Result<usize, Gone>, UnixStream) {
    let (mut client, mut peer) = pair();
    let writer = std::thread::spawn(move || {
        // The client may hang up first.
        let _gone = peer.write_all(&bytes);
        peer
    });
    let result = loop {
        match client.receive() {
            Ok(Some(received)) => break Ok(usize::from(received.message.is_ok())),
            Ok(None) => std::thread::yield_now(),
            Err(gone) => break Err(gone),
        }
    };
    drop(client);
    (result, writer.join().unwrap())
}

#[test]
fn a_line_has_a_longest_length() {
    let mut line = status(1);
    let end = line.len() - 1;
    line.splice(end..end, std::iter::repeat_n(b' ', LINE_MAX - line.len()));
    assert_eq!(line.len(), LINE_MAX);
    assert_eq!(receive_all(line).0, Ok(1));
    let (result, mut peer) = receive_all(vec![b' '; 2 * LINE_MAX]);
    assert_eq!(result, Err(Gone));
    let mut answer = String::new();
    // What was not read when the client was dropped ends the stream with an error.
    let _reset = peer.read_to_string(&mut answer);
    assert!(answer.contains("longer than"), "{answer}");
}

#[test]
fn who_hangs_up_is_gone() {
    let (mut client, mut peer) = pair();
    peer.write_all(&[status(1), b"half".to_vec()].concat()).unwrap();
    drop(peer);
    assert_eq!(next(&mut client), Some((1, 0)));
    assert!(client.receive().is_err());
    assert!(client.done(1, Outcome::Nothing {}).is_err());
}

#[test]
fn descriptors_belong_to_the_line_that_they_came_with() {
    let (mut client, mut peer) = pair();
    let (tracer, other) = tracer();
    let fd = tracer.as_raw_fd();
    peer.write_all(&status(1)).unwrap();
    send(&peer, &status(2), &[fd, fd]);
    peer.write_all(&status(3)).unwrap();
    send(&peer, &status(4)[..1], &[fd]);
    send(&peer, &status(4)[1..2], &[fd, fd]);
    peer.write_all(&status(4)[2..]).unwrap();
    send(&peer, &status(5), &[fd]);
    for expected in [(1, 0), (2, 2), (3, 0), (4, 3), (5, 1)] {
        assert_eq!(next(&mut client), Some(expected));
    }
    drop(tracer);
    assert_all_closed(other);
}

#[test]
fn descriptors_of_a_long_line_wait_for_its_end() {
    let (mut client, mut peer) = pair();
    let (tracer, _other) = tracer();
    let mut long = status(1);
    let end = long.len() - 1;
    long.splice(end..end, std::iter::repeat_n(b' ', 3 * CHUNK));
    send(&peer, &long[..CHUNK + 5], &[tracer.as_raw_fd()]);
    assert_eq!(next(&mut client), None);
    peer.write_all(&[&long[CHUNK + 5..], &status(2)].concat()).unwrap();
    assert_eq!(next(&mut client), Some((1, 1)));
    assert_eq!(next(&mut client), Some((2, 0)));
}

#[test]
fn as_many_descriptors_as_the_kernel_passes() {
    let (mut client, peer) = pair();
    let (tracer, other) = tracer();
    send(&peer, &status(1), &[tracer.as_raw_fd(); DESCRIPTORS_AT_ONCE]);
    assert_eq!(next(&mut client), Some((1, DESCRIPTORS_AT_ONCE)));
    drop(tracer);
    assert_all_closed(other);
}

#[test]
fn too_many_descriptors_are_hung_up_on_and_closed() {
    let (mut client, peer) = pair();
    let (tracer, other) = tracer();
    let fds = [tracer.as_raw_fd(); 64];
    let sent = (0..100).take_while(|_| {
        send(&peer, b" ", &fds);
        client.receive().is_ok()
    });
    assert_eq!(sent.count(), DESCRIPTORS_MAX / 64);
    drop((client, tracer));
    assert_all_closed(other);
}

#[test]
fn descriptors_of_half_a_line_are_closed_with_the_client() {
    let (mut client, peer) = pair();
    let (tracer, other) = tracer();
    send(&peer, b"{", &[tracer.as_raw_fd(); 3]);
    assert_eq!(next(&mut client), None);
    drop((peer, tracer));
    assert!(client.receive().is_err());
    drop(client);
    assert_all_closed(other);
}

#[test]
fn a_client_that_does_not_read_is_hung_up_on() {
    let (mut client, mut peer) = pair();
    let text = "x".repeat(64 << 10);
    let console = || Outcome::Console { written: 0, text: text.clone() };
    let answered = (0..1000).take_while(|id| client.done(*id, console()).is_ok()).count();
    let most = 2 * BACKLOG_MAX / text.len();
    assert!((BACKLOG_MAX / text.len()..most).contains(&answered), "{answered}");
    drop(client);
    let mut got = Vec::new();
    peer.read_to_end(&mut got).unwrap();
    assert!(got.starts_with(b"{\"done\":{\"id\":0,"));
}

#[test]
fn a_slow_client_gets_everything_in_order() {
    let (mut client, mut peer) = pair();
    let text = "x".repeat(100 << 10);
    for id in 0..20 {
        let outcome = Outcome::Console { written: id, text: text.clone() };
        client.done(id, outcome).unwrap();
    }
    assert!(client.has_output());
    let mut got = Vec::new();
    peer.set_nonblocking(true).unwrap();
    while client.has_output() {
        let mut chunk = [0; 10_000];
        if let Ok(count) = peer.read(&mut chunk) {
            got.extend_from_slice(&chunk[..count]);
        }
        client.flush().unwrap();
    }
    drop(client);
    peer.set_nonblocking(false).unwrap();
    peer.read_to_end(&mut got).unwrap();
    let lines = got.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for (expected, line) in (0u64..).zip(lines) {
        let answer: Answer = serde_json::from_slice(line).unwrap();
        assert!(matches!(answer, Answer::Done { id, .. } if id == expected));
    }
}

#[test]
fn events_are_for_those_who_asked() {
    let (mut client, mut peer) = pair();
    client.event(&Event::Ready {}).unwrap();
    client.subscribed = true;
    client.event(&Event::Ready {}).unwrap();
    drop(client);
    let mut got = String::new();
    peer.read_to_string(&mut got).unwrap();
    assert_eq!(got, "{\"event\":{\"ready\":{}}}\n");
}

#[test]
fn a_connection_becomes_a_stream_only_between_lines() {
    let (mut client, mut peer) = pair();
    peer.write_all(&status(1)).unwrap();
    assert_eq!(next(&mut client), Some((1, 0)));
    assert!(client.into_stream().is_some());
    let (mut client, mut peer) = pair();
    peer.write_all(&[status(1), b"too early".to_vec()].concat()).unwrap();
    assert_eq!(next(&mut client), Some((1, 0)));
    assert!(client.into_stream().is_none());
}
