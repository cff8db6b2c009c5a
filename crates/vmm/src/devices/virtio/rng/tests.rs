//! Random numbers, as much as asked for and no more.

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use vm_memory::{Bytes, GuestAddress};

use super::super::mock::*;
use super::*;

fn ask(parts: &[Part]) -> (u32, Vec<u8>) {
    let (transport, memory) = (transport(), memory());
    let mut ring = bring_up(&transport, 1 << VIRTIO_F_VERSION_1, 1, 16).remove(0);
    ring.send(&memory, parts);
    assert!(serve_kick(&transport, &memory));
    let (_, written) = ring.take_used(&memory).unwrap();
    let mut bytes = vec![0; 0x4000];
    memory.read_slice(&mut bytes, GuestAddress(BUFFERS)).unwrap();
    assert!(!serve_kick(&transport, &memory));
    (written, bytes)
}

#[test]
fn numbers_differ() {
    let (first, second) = (ask(&[Part::Write(BUFFERS, 32)]), ask(&[Part::Write(BUFFERS, 32)]));
    assert_eq!((first.0, second.0), (32, 32));
    assert_ne!(first.1, second.1);
    assert!(first.1[32..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_large_request_gets_a_part() {
    let (written, bytes) = ask(&[Part::Write(BUFFERS, 100), Part::Write(BUFFERS + 100, 0x3f00)]);
    assert_eq!(written, 4096);
    assert!(bytes[4096..].iter().all(|byte| *byte == 0));
    assert!(bytes[100..4096].iter().any(|byte| *byte != 0));
}

#[test]
fn what_may_only_be_read_is_not_written() {
    let (written, bytes) = ask(&[Part::Read(BUFFERS, 64)]);
    assert_eq!((written, bytes.iter().all(|byte| *byte == 0)), (0, true));
    let (written, bytes) = ask(&[Part::Read(BUFFERS, 64), Part::Write(BUFFERS + 64, 64)]);
    assert_eq!((written, bytes[..64].iter().all(|byte| *byte == 0)), (64, true));
}
