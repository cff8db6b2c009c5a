//! Frames that are fine, frames that are not, and frames of noise.

use proptest::prelude::*;
use ramet_proto::net::{GATEWAY_V4, GUEST_V4, GUEST_V6};

use super::*;

fn message(kind: [u8; 2], packet: &[u8]) -> Vec<u8> {
    [&[0; HEADER][..], &GATEWAY_MAC, &GUEST_MAC, &kind, packet].concat()
}

fn syn() -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend(GUEST_V4.octets());
    packet.extend([192, 0, 2, 1]);
    packet.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    packet
}

#[test]
fn a_syn_is_read_and_reset() {
    let bytes = message([8, 0], &syn());
    let frame = parse(&bytes).unwrap();
    let Content::Ip(packet) = frame.content else { panic!("not IP") };
    assert_eq!(packet.source, GUEST_V4);
    let Transport::Tcp(segment) = &packet.transport else { panic!("not TCP") };
    assert!(segment.begins());
    let answer = reset(&packet, segment, GATEWAY_MAC).unwrap();
    assert_eq!(answer[0], NEEDS_CSUM);
    let tcp = TcpPacket::new_checked(&answer[PACKET + 20..]).unwrap();
    assert!(tcp.rst() && tcp.ack());
    assert_eq!(tcp.ack_number().0, 2);
    // Completing the sum as a device does gives a checksum that holds.
    let sum = crate::reply::checksum(&answer[PACKET + 20..], 0);
    let mut done = answer.clone();
    done[PACKET + 36..PACKET + 38].copy_from_slice(&sum.to_be_bytes());
    let tcp = TcpPacket::new_checked(&done[PACKET + 20..]).unwrap();
    assert!(tcp.verify_checksum(&Ipv4Addr::new(192, 0, 2, 1).into(), &GUEST_V4.into()));
}

#[test]
fn bad_frames_have_their_faults() {
    let fault = |bytes: &[u8]| parse(bytes).map(|_| ()).unwrap_err();
    assert_eq!(fault(&[]), Fault::Malformed);
    assert_eq!(fault(&[0; HEADER + 13]), Fault::Malformed);
    let mut other = message([8, 0], &syn());
    other[HEADER + 11] ^= 1;
    assert_eq!(fault(&other), Fault::Spoofed);
    let mut fragment = syn();
    fragment[6] = 0x20;
    assert_eq!(fault(&message([8, 0], &fragment)), Fault::Fragment);
    assert_eq!(fault(&message([8, 0], &syn()[..30])), Fault::Malformed);
    let mut short = syn();
    short[0] = 0x44;
    assert_eq!(fault(&message([8, 0], &short)), Fault::Malformed);
    assert_eq!(fault(&message([0x88, 0xcc], &[0; 40])), Fault::Unknown);
    assert_eq!(fault(&vec![0; MESSAGE_MAX + 1]), Fault::Malformed);
}

#[test]
fn datagrams_are_built_for_both_families() {
    let v4 = udp((GATEWAY_V4.into(), 53), (GUEST_V4.into(), 999), b"abc").unwrap();
    assert_eq!(v4.len(), PACKET + 20 + 8 + 3);
    let v6 = udp((GUEST_V6.into(), 53), (GUEST_V6.into(), 999), b"abc").unwrap();
    assert_eq!(v6[HEADER + 12..PACKET], [0x86, 0xdd]);
    assert!(udp((GATEWAY_V4.into(), 53), (GUEST_V6.into(), 999), b"abc").is_none());
}

#[test]
fn members_have_their_hardware_addresses() {
    assert_eq!(member_of_mac(member_mac(7)), Some(7));
    assert_eq!(member_of_mac(GUEST_MAC), None);
    assert_eq!(member_addresses(7).0, Ipv4Addr::new(10, 114, 1, 7));
}

proptest! {
    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn nothing_panics_behind_a_good_head(kind in prop_oneof![Just([8u8, 0]), Just([0x86, 0xdd]), Just([8, 6])], mut bytes in prop::collection::vec(any::<u8>(), 0..200), version: bool) {
        if let Some(first) = bytes.first_mut().filter(|_| version) {
            *first = if kind == [8, 0] { 0x45 } else { 0x60 };
        }
        let message = message(kind, &bytes);
        if let Ok(Frame { content: Content::Ip(packet), .. }) = parse(&message) {
            if let Transport::Tcp(segment) = &packet.transport {
                let _ = reset(&packet, segment, GATEWAY_MAC);
            }
            if let Transport::Icmp(bytes) = packet.transport {
                let _ = crate::reply::icmp(bytes, packet.source.is_ipv6());
            }
        }
    }
}
