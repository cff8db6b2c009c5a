//! Frames of machines: they leave and arrive whole, the link stays with the source, and nothing is lost while there is none.
//!
//! The other end of a link is this test: [`Far`] sends UDP datagrams back to where they came from.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use ramet_engine::monitor::Machine;
use ramet_proto::agent::Network;
use ramet_proto::net::{FRAME_MAX, GATEWAY_MAC, GATEWAY_V4, HEADER, MTU};

use crate::bed::{Guest, bed, guest};

const ETHERNET: usize = 14;
const ADDRESSES: usize = HEADER + ETHERNET + 12;
const PORTS: usize = HEADER + ETHERNET + 20;
const PAYLOAD: usize = PORTS + 8;

/// The other end of a link: it sends back every UDP datagram, and keeps what was in it.
struct Far {
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Far {
    fn plug(machine: &Machine) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (near, far): (OwnedFd, OwnedFd) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("a link");
        machine.plug(Some(near.as_fd())).expect("plugged");
        let socket = UnixDatagram::from(far);
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let (seen, end) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), Arc::<AtomicBool>::default());
        let (seen_too, end_too) = (Arc::clone(&seen), Arc::clone(&end));
        let thread = std::thread::spawn(move || echo(&socket, &seen_too, &end_too));
        Self { seen, end, thread: Some(thread) }
    }

    fn seen(&self) -> Vec<Vec<u8>> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the far end");
        }
    }
}

fn echo(socket: &UnixDatagram, seen: &Mutex<Vec<Vec<u8>>>, end: &AtomicBool) {
    let mut buffer = vec![0; HEADER + FRAME_MAX];
    while !end.load(Ordering::Acquire) {
        let length = match socket.recv(&mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => panic!("the link: {error}"),
        };
        let frame = &mut buffer[..length];
        let udp = length > PAYLOAD
            && frame[HEADER + 12..HEADER + 14] == [8, 0]
            && frame[HEADER + ETHERNET + 9] == 17;
        if !udp {
            continue;
        }
        seen.lock().unwrap().push(frame[PAYLOAD..].to_vec());
        frame[..HEADER].fill(0);
        turn(&mut frame[HEADER..], 6);
        turn(&mut frame[ADDRESSES..], 4);
        turn(&mut frame[PORTS..], 2);
        frame[PORTS + 6..PORTS + 8].fill(0); // no checksum
        socket.send(frame).expect("sent back");
    }
}

/// Exchanges the first two fields of this length.
fn turn(bytes: &mut [u8], length: usize) {
    let (first, second) = bytes.split_at_mut(length);
    first.swap_with_slice(&mut second[..length]);
}

/// The guest knows where the gateway is, since nobody here answers ARP.
fn prepare(guest: &Guest) {
    let mac = GATEWAY_MAC.map(|byte| format!("{byte:02x}")).join(":");
    guest.sh(&format!("ip neigh replace {GATEWAY_V4} lladdr {mac} dev eth0"));
}

/// Sends `what` once and waits for it to come back.
fn ask(guest: &Guest, what: &str) -> String {
    let code = format!(
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(30); \
         m = {what}; s.sendto(m, ('{GATEWAY_V4}', 9)); r = s.recv(70000); print(r == m, len(r))"
    );
    guest.sh(&format!("python3 -c \"{code}\""))
}

pub fn frames_of_all_sizes_go_both_ways() {
    let guest = guest("frames");
    let far = Far::plug(&guest);
    prepare(&guest);
    assert!(guest.sh("ip link show eth0").contains(&format!("mtu {MTU}")));
    assert_eq!(ask(&guest, "b'hello'"), "True 5");
    assert_eq!(ask(&guest, "bytes(range(256)) * 5"), "True 1280");
    // Spread over many buffers of the guest.
    assert_eq!(ask(&guest, "bytes(range(250)) * 260"), "True 65000");
    assert_eq!(far.seen().len(), 3);
    let addresses = guest.sh("ip -o addr show eth0");
    for wanted in ["10.114.0.2/24", "fd72:616d:6574::2/64"] {
        assert!(addresses.contains(wanted), "{addresses}");
    }
}

pub fn a_link_stays_with_the_source() {
    let source = guest("source");
    let far = Far::plug(&source);
    prepare(&source);
    let child = source.fork_as("child");
    child.sh("python3 -c \"import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.sendto(b'of the child', ('10.114.0.1', 9))\"");
    assert_eq!(ask(&source, "b'of the source'"), "True 13");
    assert_eq!(far.seen(), [b"of the source"], "the child has no link");
    // What waited leaves with the link.
    let own = Far::plug(&child);
    assert_eq!(ask(&child, "b'later'"), "True 5");
    assert_eq!(own.seen(), [b"of the child".to_vec(), b"later".to_vec()]);
    assert_eq!(far.seen().len(), 1);
    // Another link takes the place of the first; without one, frames wait.
    let next = Far::plug(&source);
    assert_eq!(ask(&source, "b'again'"), "True 5");
    assert_eq!((far.seen().len(), next.seen().len()), (1, 1));
}

pub fn a_saved_machine_is_plugged_again() {
    let source = guest("saved");
    let _far = Far::plug(&source);
    prepare(&source);
    let directory = bed().directory.path().join("with-network");
    source.save(&directory, true).expect("saved");
    let restored = bed().restore(&directory, "restored");
    let far = Far::plug(&restored);
    assert_eq!(ask(&restored, "b'restored'"), "True 8");
    assert_eq!(far.seen().len(), 1);
}

pub fn a_member_has_one_more_address() {
    let guest = guest("member");
    let agent = guest.agent();
    let set = |member, authority| agent.network(Network { member, authority });
    set(Some(7), None).expect("a member");
    let addresses = || guest.sh("ip -o addr show eth0");
    assert!(addresses().contains("10.114.1.7/24") && addresses().contains("6574:1::7/64"));
    set(Some(9), None).expect("another place");
    assert!(addresses().contains("10.114.1.9/24") && addresses().contains("6574:1::9/64"));
    assert!(!addresses().contains("10.114.1.7") && !addresses().contains("6574:1::7"));
    set(None, None).expect("none");
    assert!(!addresses().contains("10.114.1.") && !addresses().contains("6574:1::"));
    assert!(addresses().contains("10.114.0.2/24"));
    assert!(set(Some(0), None).is_err() && set(Some(251), None).is_err());
    let certificate = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n";
    let before = guest.sh("sha256sum < /etc/ssl/certs/ca-certificates.crt");
    set(None, Some(certificate.to_owned())).expect("an authority");
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    assert_eq!(guest.sh(&format!("tail -n 3 {bundle}; echo $SSL_CERT_FILE")).lines().count(), 4);
    set(None, None).expect("none");
    assert_eq!(guest.sh("sha256sum < /etc/ssl/certs/ca-certificates.crt"), before);
    assert_eq!(
        guest.sh("echo $SSL_CERT_FILE; ls /etc/ssl/certs/*.0 | grep -c 3e1d7458 || true"),
        "\n0"
    );
    assert!(set(None, Some("nothing".to_owned())).is_err());
}
