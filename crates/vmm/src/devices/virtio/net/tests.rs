//! Frames each way: whole, in order, at the pace of the slower side, and nothing after a reset.

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::{Bytes, GuestAddress};

use super::super::mock::*;
use super::*;

const SIZE: u16 = 16;

struct Bed {
    transport: Transport,
    memory: Guest,
    net: Net,
    poller: Poller,
    /// The other end of the link.
    far: UnixDatagram,
    receive: Ring,
    transmit: Ring,
}

fn bed(features: u64) -> Bed {
    let (transport, memory) = (transport(), memory());
    let mut rings = bring_up(&transport, 1 << VIRTIO_F_VERSION_1 | features, 2, SIZE);
    let (transmit, receive) = (rings.remove(1), rings.remove(0));
    let (near, far) = UnixDatagram::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let (mut net, poller) = (Net::default(), Poller::new().unwrap());
    net.plug(Some(near.into()), &poller, 7).unwrap();
    Bed { transport, memory, net, poller, far, receive, transmit }
}

fn spreading() -> Bed {
    bed(1 << VIRTIO_NET_F_MRG_RXBUF | 1 << VIRTIO_RING_F_EVENT_IDX)
}

/// Header and frame, each byte told by its place.
fn frame(length: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect();
    frame[..HEADER].fill(0);
    frame
}

impl Bed {
    fn serve(&mut self) -> bool {
        self.net.ready(true, true);
        self.net.serve(&self.transport, &self.memory, &self.poller, 7)
    }

    fn offer_room(&mut self, at: u64, length: u32) {
        self.receive.send(&self.memory, &[Part::Write(at, length)]);
    }

    fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    fn sent(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; MESSAGE_MAX + 1];
        let length = self.far.recv(&mut buffer).ok()?;
        buffer.truncate(length);
        Some(buffer)
    }
}

#[test]
fn a_frame_leaves_as_it_is() {
    let mut bed = spreading();
    let out = frame(1000);
    bed.memory.write_slice(&out, GuestAddress(BUFFERS)).unwrap();
    let parts = [Part::Read(BUFFERS, 5), Part::Read(BUFFERS + 5, 995)];
    bed.transmit.send(&bed.memory, &parts);
    assert!(bed.serve());
    assert_eq!(bed.sent().unwrap(), out);
    assert_eq!(bed.transmit.take_used(&bed.memory), Some((0, 0)));
    assert_eq!(bed.sent(), None);
}

#[test]
fn what_is_no_frame_is_given_back() {
    let mut bed = spreading();
    bed.transmit.send(&bed.memory, &[Part::Read(BUFFERS, 10)]);
    bed.transmit.send(&bed.memory, &[Part::Write(BUFFERS, 1000)]);
    let long = u32::try_from(MESSAGE_MAX + 1).unwrap();
    bed.transmit.send(&bed.memory, &[Part::Read(BUFFERS, long)]);
    bed.serve();
    assert_eq!(bed.sent(), None);
    assert_eq!((0..3).filter_map(|_| bed.transmit.take_used(&bed.memory)).count(), 3);
    assert!(!condemned(&bed.transport));
}

#[test]
fn a_full_link_loses_nothing() {
    let mut bed = spreading();
    let out = frame(60_000);
    bed.memory.write_slice(&out, GuestAddress(BUFFERS)).unwrap();
    for _ in 0..SIZE {
        bed.transmit.send(&bed.memory, &[Part::Read(BUFFERS, 60_000)]);
    }
    bed.serve();
    let mut came = 0;
    for _ in 0..100 {
        while let Some(message) = bed.sent() {
            assert_eq!(message, out);
            came += 1;
        }
        bed.serve();
    }
    assert_eq!(came, SIZE);
}

#[test]
fn without_a_link_frames_wait() {
    let mut bed = spreading();
    let (near, far) = UnixDatagram::pair().unwrap();
    bed.net.plug(None, &bed.poller, 7).unwrap();
    bed.transmit.send(&bed.memory, &[Part::Read(BUFFERS, 100)]);
    assert!(!bed.serve());
    assert_eq!(bed.transmit.take_used(&bed.memory), None);
    bed.net.plug(Some(near.into()), &bed.poller, 7).unwrap();
    assert!(bed.serve());
    assert_eq!(far.recv(&mut [0; 200]).unwrap(), 100);
}

#[test]
fn a_frame_is_spread_over_buffers_at_once() {
    let mut bed = spreading();
    let message = frame(2500);
    bed.far.send(&message).unwrap();
    bed.offer_room(BUFFERS, 1000);
    bed.offer_room(BUFFERS + 0x1000, 1000);
    bed.serve();
    assert_eq!(bed.receive.take_used(&bed.memory), None, "not in parts");
    bed.offer_room(BUFFERS + 0x2000, 1000);
    assert!(bed.serve());
    let used: Vec<_> = (0..3).filter_map(|_| bed.receive.take_used(&bed.memory)).collect();
    assert_eq!(used, [(0, 1000), (1, 1000), (2, 500)]);
    let mut whole = bed.bytes(BUFFERS, 1000);
    whole.extend(bed.bytes(BUFFERS + 0x1000, 1000));
    whole.extend(bed.bytes(BUFFERS + 0x2000, 500));
    assert_eq!(whole[NUM_BUFFERS..HEADER], [3, 0]);
    assert_eq!(whole[HEADER..], message[HEADER..]);
}

#[test]
fn the_guest_is_asked_for_room_beyond_what_it_has() {
    let mut bed = spreading();
    bed.far.send(&frame(2500)).unwrap();
    bed.offer_room(BUFFERS, 1000);
    bed.offer_room(BUFFERS + 0x1000, 1000);
    bed.serve();
    // The guest tells when it adds to two, and would never tell if it was asked at none.
    let event = bed.receive.used + 4 + 8 * u64::from(SIZE);
    let event: u16 = bed.memory.read_obj(GuestAddress(event)).unwrap();
    assert_eq!(event, 2);
}

#[test]
fn a_driver_that_takes_no_parts_loses_what_is_too_long() {
    let mut bed = bed(0);
    bed.far.send(&frame(2500)).unwrap();
    bed.far.send(&frame(500)).unwrap();
    for n in 0..3 {
        bed.offer_room(BUFFERS + 0x1000 * n, 1000);
    }
    assert!(bed.serve());
    assert_eq!(bed.receive.take_used(&bed.memory), Some((0, 500)));
    assert_eq!(bed.receive.take_used(&bed.memory), None);
    assert_eq!(bed.bytes(BUFFERS, HEADER)[NUM_BUFFERS..], [1, 0]);
}

#[test]
fn a_buffer_without_room_ends_the_device() {
    let mut bed = spreading();
    bed.far.send(&frame(100)).unwrap();
    bed.receive.send(&bed.memory, &[Part::Read(BUFFERS, 100)]);
    bed.serve();
    assert!(condemned(&bed.transport));
}

#[test]
fn a_link_that_ends_is_forgotten() {
    let mut bed = spreading();
    let (near, far) = UnixDatagram::pair().unwrap();
    bed.net.plug(Some(near.into()), &bed.poller, 7).unwrap();
    drop(far);
    bed.transmit.send(&bed.memory, &[Part::Read(BUFFERS, 100)]);
    bed.serve();
    assert_eq!(bed.transmit.take_used(&bed.memory), None, "it waits for the next link");
    assert!(bed.net.link.is_none());
}

#[test]
fn a_child_has_no_link() {
    let mut bed = spreading();
    let (near, far) = UnixDatagram::pair().unwrap();
    bed.net.plug(Some(near.into()), &bed.poller, 7).unwrap();
    far.send(&frame(100)).unwrap();
    bed.serve();
    bed.net.disown();
    bed.offer_room(BUFFERS, 1000);
    assert!(!bed.serve());
    assert_eq!(bed.receive.take_used(&bed.memory), None);
}
