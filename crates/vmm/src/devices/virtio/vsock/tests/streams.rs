//! Streams that the host opens.

use std::io::Write;
use std::net::Shutdown;

use super::*;

#[test]
fn a_stream_carries_bytes_both_ways() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    client.write_all(b"to the guest").unwrap();
    let heard = bench.expect(key, OP_RW);
    assert_eq!(heard.data, b"to the guest");
    bench.say(&data(key, b"to the host"));
    assert_eq!(read(&mut client, 11), b"to the host");
    assert!(bench.device.deadline().is_none());
    bench.expect_silence();
}

#[test]
fn a_guest_that_refuses_is_reported() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.dial(1024);
    bench.say(&packet(key, OP_RST));
    assert_eq!(read_all(&mut client), b"sorry");
    bench.expect_silence();
}

#[test]
fn anything_but_an_answer_is_a_refusal() {
    for answer in [OP_RW, OP_SHUTDOWN, OP_REQUEST, 0, 99] {
        let mut bench = Bench::new();
        let (mut client, key) = bench.dial(1024);
        bench.say(&Packet { flags: 3, data: vec![1], ..packet(key, answer) });
        assert_eq!(read_all(&mut client), b"sorry", "{answer}");
        bench.expect(key, OP_RST);
    }
}

#[test]
fn a_guest_that_never_answers_is_given_up() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.dial(1024);
    let deadline = bench.device.deadline().unwrap();
    bench.device.expire(deadline - Duration::from_millis(1), &bench.poller);
    bench.expect_silence();
    bench.device.expire(deadline, &bench.poller);
    assert_eq!(read_all(&mut client), b"sorry");
    assert_eq!(bench.device.deadline(), None);
    bench.expect(key, OP_RST);
    bench.say(&packet(key, OP_RESPONSE));
    bench.expect(key, OP_RST);
}

#[test]
fn a_second_answer_ends_the_stream() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    bench.say(&packet(key, OP_RESPONSE));
    assert_eq!(read_all(&mut client), b"");
    bench.expect(key, OP_RST);
}

#[test]
fn the_guest_gets_no_more_than_it_has_room_for() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.dial(1024);
    bench.say(&Packet { window: 100, ..packet(key, OP_RESPONSE) });
    read(&mut client, 5);
    let sent = pattern(1000);
    client.write_all(&sent).unwrap();
    let mut got = Vec::new();
    while got.len() < sent.len() {
        let heard = bench.expect(key, OP_RW);
        assert!(heard.data.len() <= 100);
        got.extend(heard.data);
        if got.len() % 100 == 0 {
            bench.expect_silence();
            bench.say(&Packet {
                window: 100,
                taken: got.len() as u32,
                ..packet(key, OP_CREDIT_UPDATE)
            });
        }
    }
    assert_eq!(got, sent);
}

#[test]
fn a_window_may_shrink_and_grow_again() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    bench.expect_silence();
    let update = |window| Packet { window, ..packet(key, OP_CREDIT_UPDATE) };
    bench.say(&update(0));
    // Bytes for the host, while the host's bytes have to wait.
    bench.say(&Packet { window: 0, ..data(key, b"x") });
    assert_eq!(read(&mut client, 1), b"x");
    client.write_all(b"late").unwrap();
    bench.expect_silence();
    bench.say(&update(ROOM));
    assert_eq!(bench.expect(key, OP_RW).data, b"late");
    bench.say(&update(0));
    bench.expect_silence();
    bench.say(&update(ROOM));
    client.write_all(b"later").unwrap();
    assert_eq!(bench.expect(key, OP_RW).data, b"later");
}

#[test]
fn credit_that_makes_no_sense_is_no_credit() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    client.write_all(b"one").unwrap();
    bench.expect(key, OP_RW);
    bench.say(&Packet { taken: 1000, ..packet(key, OP_CREDIT_UPDATE) });
    client.write_all(b"two").unwrap();
    bench.expect_silence();
    bench.say(&Packet { taken: 3, window: u32::MAX, ..packet(key, OP_CREDIT_UPDATE) });
    assert_eq!(bench.expect(key, OP_RW).data, b"two");
}

#[test]
fn bytes_wait_for_buffers_of_the_guest() {
    let mut bench = Bench::without_buffers();
    let mut client = bench.open(1024);
    bench.expect_silence();
    bench.give_buffers();
    let key = bench.hear().key();
    bench.say(&packet(key, OP_RESPONSE));
    read(&mut client, 5);
    client.write_all(b"now").unwrap();
    assert_eq!(bench.expect(key, OP_RW).data, b"now");
}

#[test]
fn a_guest_that_ignores_the_window_loses_the_stream() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    let chunk = pattern(16 << 10);
    let mut sent = 0;
    let reset = (0..100).find(|_| {
        bench.say(&data(key, &chunk));
        sent += chunk.len();
        bench.heard.drain(..).any(|packet| packet.op == OP_RST)
    });
    assert!(reset.is_some());
    assert!(sent > WINDOW as usize && sent < 2 << 20, "{sent}");
    assert!(read_all(&mut client).len() < sent);
    assert!(bench.device.connections.is_empty());
}

#[test]
fn an_honest_guest_and_a_slow_reader_lose_nothing() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    let bytes = pattern(3 << 20);
    let (mut sent, mut taken, mut got) = (0, 0, Vec::new());
    for round in 0..20_000 {
        let room = WINDOW as usize - (sent - taken);
        let end = bytes.len().min(sent + room.min(20_000));
        if end > sent {
            bench.say(&data(key, &bytes[sent..end]));
            sent = end;
        }
        bench.turn();
        for packet in std::mem::take(&mut bench.heard) {
            assert_eq!(packet.op, OP_CREDIT_UPDATE);
            taken = packet.taken as usize;
        }
        if round % 3 == 0 {
            got.extend(read_some(&mut client));
        }
        if got.len() == bytes.len() {
            break;
        }
    }
    assert_eq!((sent, got.len()), (bytes.len(), bytes.len()));
    assert!(got == bytes);
}

#[test]
fn credit_is_told_when_asked_for() {
    let mut bench = Bench::new();
    let (_client, key) = bench.stream(1024);
    bench.say(&data(key, &[0; 100]));
    bench.expect_silence();
    bench.say(&packet(key, OP_CREDIT_REQUEST));
    let told = bench.expect(key, OP_CREDIT_UPDATE);
    assert_eq!((told.taken, told.window), (100, WINDOW));
}

#[test]
fn the_host_ends_its_half() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    client.write_all(b"last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(bench.expect(key, OP_RW).data, b"last words");
    assert_eq!(bench.expect(key, OP_SHUTDOWN).flags, SHUT_SEND);
    bench.say(&data(key, b"answer"));
    assert_eq!(read(&mut client, 6), b"answer");
    bench.say(&shutdown(key, SHUT_SEND));
    bench.expect(key, OP_RST);
    assert_eq!(read_all(&mut client), b"");
    assert!(bench.device.connections.is_empty());
}

#[test]
fn the_guest_ends_its_half() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    bench.say(&data(key, b"all"));
    bench.say(&shutdown(key, SHUT_SEND));
    assert_eq!(read_all(&mut client), b"all");
    client.write_all(b"still").unwrap();
    assert_eq!(bench.expect(key, OP_RW).data, b"still");
    drop(client);
    assert_eq!(bench.expect(key, OP_SHUTDOWN).flags & SHUT_SEND, SHUT_SEND);
    bench.expect(key, OP_RST);
    assert!(bench.device.connections.is_empty());
    let mut other = Bench::new();
    let (_client, key) = other.stream(1024);
    other.say(&shutdown(key, SHUT_SEND));
    other.say(&data(key, b"I said I was done"));
    other.expect(key, OP_RST);
}

#[test]
fn a_guest_that_reads_no_more_is_not_written_to() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    bench.say(&shutdown(key, SHUT_RECEIVE));
    assert_eq!(client.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    bench.say(&data(key, b"but it speaks"));
    assert_eq!(read(&mut client, 13), b"but it speaks");
    bench.expect_silence();
    bench.say(&shutdown(key, SHUT_SEND));
    bench.expect(key, OP_RST);
    assert_eq!(read_all(&mut client), b"");
}

/// Sends as much as the socket and the window take.
fn fill_up(bench: &mut Bench, key: Key) -> Vec<u8> {
    let bytes = pattern(16 << 20);
    let mut sent = 0;
    loop {
        bench.turn();
        let flow = &bench.device.connections[&key].flow;
        let room = WINDOW - flow.received.wrapping_sub(flow.taken);
        if room == 0 {
            break;
        }
        let end = sent + (room as usize).min(60_000);
        bench.say(&data(key, &bytes[sent..end]));
        sent = end;
    }
    bench.heard.clear();
    bytes[..sent].to_vec()
}

fn assert_all_arrives(bench: &mut Bench, client: &mut UnixStream, sent: &[u8]) {
    bench.turn();
    assert_eq!(bench.heard, [], "there are bytes on their way");
    let mut got = Vec::new();
    while got.len() < sent.len() {
        let some = read_some(client);
        bench.turn();
        got.extend(some);
    }
    assert!(got == sent);
    assert_eq!(read_all(client), b"");
    let last = std::iter::from_fn(|| bench.heard.pop_front()).last().unwrap();
    assert_eq!(last.op, OP_RST);
    assert!(bench.device.connections.is_empty());
}

#[test]
fn a_guest_that_closes_is_heard_to_the_end() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    let sent = fill_up(&mut bench, key);
    bench.say(&shutdown(key, SHUT_SEND | SHUT_RECEIVE));
    assert_all_arrives(&mut bench, &mut client, &sent);
}

#[test]
fn an_answer_is_heard_to_the_end_after_the_question_ended() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    client.shutdown(Shutdown::Write).unwrap();
    bench.expect(key, OP_SHUTDOWN);
    let sent = fill_up(&mut bench, key);
    bench.say(&shutdown(key, SHUT_SEND));
    assert_all_arrives(&mut bench, &mut client, &sent);
}

#[test]
fn a_guest_that_resets_gets_no_answer() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    bench.say(&packet(key, OP_RST));
    assert_eq!(read_all(&mut client), b"");
    bench.expect_silence();
    bench.say(&data(key, b"?"));
    bench.expect(key, OP_RST);
}

#[test]
fn a_client_that_is_gone_ends_the_stream() {
    let mut bench = Bench::new();
    let (client, key) = bench.stream(1024);
    drop(client);
    assert_eq!(bench.expect(key, OP_SHUTDOWN).flags & SHUT_SEND, SHUT_SEND);
    bench.say(&data(key, b"anyone?"));
    bench.expect(key, OP_RST);
    assert!(bench.device.connections.is_empty());
}

#[test]
fn what_nobody_knows_is_reset() {
    let mut bench = Bench::new();
    for op in [OP_REQUEST, OP_RESPONSE, OP_RW, OP_SHUTDOWN, OP_CREDIT_REQUEST, OP_CREDIT_UPDATE, 77]
    {
        bench.say(&packet((2000, 3000), op));
        bench.expect((2000, 3000), OP_RST);
    }
    bench.say(&packet((2000, 3000), OP_RST));
    bench.expect_silence();
}

#[test]
fn packets_for_others_are_dropped() {
    let mut bench = Bench::new();
    let stray = packet((2000, 3000), OP_REQUEST);
    for cids in [(3, 1), (2, 3), (4, 2), (u64::MAX, 2), (3, u64::MAX)] {
        bench.say_raw(&stray.bytes(cids, STREAM));
    }
    bench.say_raw(&stray.bytes((GUEST_CID, HOST_CID), 2));
    bench.expect_silence();
}

#[test]
fn packets_longer_than_their_buffer_are_dropped() {
    let mut bench = Bench::new();
    let (mut client, key) = bench.stream(1024);
    let mut bytes = data(key, b"four").bytes((GUEST_CID, HOST_CID), STREAM);
    for length in [5u32, 4096, 65536, 65537, u32::MAX] {
        bytes[24..28].copy_from_slice(&length.to_le_bytes());
        bench.say_raw(&bytes);
    }
    bench.say(&data(key, b"good"));
    assert_eq!(read(&mut client, 4), b"good");
    bench.expect_silence();
}

#[test]
fn a_flood_of_strangers_is_answered_within_bounds() {
    let mut bench = Bench::without_buffers();
    for port in 0..2 * RESETS_MAX as u32 {
        bench.say_raw(&packet((2000, port), OP_RW).bytes((GUEST_CID, HOST_CID), STREAM));
    }
    assert_eq!(bench.device.resets.len(), RESETS_MAX);
    bench.give_buffers();
    for port in 0..RESETS_MAX as u32 {
        bench.expect((2000, port), OP_RST);
    }
    bench.expect_silence();
}

#[test]
fn two_busy_streams_take_turns() {
    let mut bench = Bench::new();
    let (mut one, first) = bench.stream(1);
    let (mut two, second) = bench.stream(2);
    one.write_all(&[1; 60_000]).unwrap();
    two.write_all(&[2; 60_000]).unwrap();
    let packets: Vec<Packet> = (0..16).map(|_| bench.hear()).collect();
    for key in [first, second] {
        let of_key = packets.iter().filter(|packet| packet.key() == key).count();
        assert!(of_key >= 7, "{of_key} of 16");
    }
}

#[test]
fn a_stream_without_credit_does_not_hold_up_another() {
    let mut bench = Bench::new();
    let (mut stuck, key) = bench.stream(1);
    bench.say(&Packet { window: 0, ..packet(key, OP_CREDIT_UPDATE) });
    stuck.write_all(&[1; 10_000]).unwrap();
    let (mut free, key) = bench.stream(2);
    free.write_all(b"free").unwrap();
    assert_eq!(bench.expect(key, OP_RW).data, b"free");
}

/// As many as there can be descriptors for, twice as many being needed.
fn many() -> u32 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let files: u32 = files.split_whitespace().nth(3).unwrap().parse().unwrap_or(u32::MAX);
    (files.saturating_sub(300) / 2).min(1000)
}

#[test]
fn a_thousand_streams_work_at_once() {
    let mut bench = Bench::new();
    let mut clients: Vec<_> = (0..many()).map(|port| bench.stream(port)).collect();
    for (client, key) in &mut clients {
        client.write_all(&key.0.to_le_bytes()).unwrap();
    }
    let mut answered = 0;
    while answered < clients.len() {
        let heard = bench.hear();
        assert_eq!(heard.data, heard.host.to_le_bytes());
        bench.say(&data(heard.key(), &heard.data));
        answered += 1;
    }
    for (client, key) in &mut clients {
        assert_eq!(read(client, 4), key.0.to_le_bytes());
    }
    assert!(bench.device.has_room());
    drop(clients);
    for _ in 0..many() {
        assert_eq!(bench.hear().op, OP_SHUTDOWN);
    }
}

#[test]
fn a_reset_of_the_device_ends_all_streams() {
    let mut bench = Bench::new();
    let (mut open, _) = bench.stream(1);
    let (mut opening, _) = bench.dial(2);
    bench.bring_up();
    assert!(read_all(&mut opening) == b"sorry" && read_all(&mut open).is_empty());
    bench.give_buffers();
    bench.expect_silence();
    let (mut client, key) = bench.stream(1);
    client.write_all(b"again").unwrap();
    assert_eq!(bench.expect(key, OP_RW).data, b"again");
}

#[test]
fn one_turn_is_bounded_by_the_queue() {
    let mut bench = Bench::new();
    bench.say(&packet((2000, 1), OP_RW));
    bench.expect((2000, 1), OP_RST);
    bench.device.resets.extend((0..1000).map(|port| (2000, port)));
    // Buffers that are of no use, as many as the ring takes.
    for _ in 0..128 - RX_COUNT {
        bench.rings[RX].send(&bench.memory, &[Part::Write(TX_BUFFER, 1)]);
    }
    bench.serve();
    assert!(bench.transport.queues().unfinished);
    assert_eq!(bench.device.resets.len(), 1000 - usize::from(RX_COUNT));
}
