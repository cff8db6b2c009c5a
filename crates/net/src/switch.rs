//! Networks: which ports see each other, and the way of a frame from one member to another.
//!
//! Every member has a queue with a bound, which its own port empties. Who sends never waits: what does not fit is dropped, as a switch does. Ports are in the same
//! network if, and only if, the node gave them the same one.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ramet_proto::net::{Between, Member};
use tokio::sync::mpsc;

/// Most frames in a member's queue.
const FRAMES_MAX: usize = 512;
/// Most bytes in a member's queue.
const BYTES_MAX: usize = 4 << 20;

/// All networks.
#[derive(Debug, Clone, Default)]
pub struct Switch {
    networks: Arc<Mutex<HashMap<String, Seats>>>,
    places: Arc<AtomicU64>,
}

type Seats = BTreeMap<u8, Seat>;

#[derive(Debug)]
struct Seat {
    place: u64,
    name: String,
    inlet: Inlet,
}

/// Where frames for a port are put.
#[derive(Debug, Clone)]
pub struct Inlet {
    frames: mpsc::Sender<Vec<u8>>,
    bytes: Arc<AtomicUsize>,
}

/// Where the port takes them out.
#[derive(Debug)]
pub struct Outlet {
    frames: mpsc::Receiver<Vec<u8>>,
    bytes: Arc<AtomicUsize>,
}

/// A queue of frames for a port.
#[must_use]
pub fn queue() -> (Inlet, Outlet) {
    let (sender, frames) = mpsc::channel(FRAMES_MAX);
    let bytes = Arc::new(AtomicUsize::new(0));
    (Inlet { frames: sender, bytes: bytes.clone() }, Outlet { frames, bytes })
}

impl Inlet {
    /// Whether there was room.
    fn put(&self, frame: Vec<u8>) -> bool {
        let length = frame.len();
        if self.bytes.load(Ordering::Relaxed) + length > BYTES_MAX {
            return false;
        }
        self.bytes.fetch_add(length, Ordering::Relaxed);
        let put = self.frames.try_send(frame).is_ok();
        if !put {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
        }
        put
    }
}

impl Outlet {
    /// The next frame; waits for it.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.recv().await;
        self.taken(frame)
    }

    /// The next frame, if it is there.
    pub fn next_now(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.try_recv().ok();
        self.taken(frame)
    }

    fn taken(&self, frame: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let length = frame.as_ref().map_or(0, Vec::len);
        self.bytes.fetch_sub(length, Ordering::Relaxed);
        frame
    }
}

/// A port's seat in a network; dropping it leaves.
#[derive(Debug)]
pub struct Place {
    switch: Switch,
    place: u64,
    /// What the node said of it.
    pub member: Member,
}

impl Switch {
    /// Whether the member's number or name is another port's.
    #[must_use]
    pub fn is_taken(&self, member: &Member, own: Option<&Place>) -> bool {
        let networks = self.lock();
        let Some(seats) = networks.get(&member.network) else { return false };
        let own = own.map(|place| place.place);
        seats.iter().any(|(number, seat)| {
            (*number == member.number || seat.name == member.name) && Some(seat.place) != own
        })
    }

    /// Takes a seat, whoever has it.
    #[must_use]
    pub fn join(&self, member: Member, inlet: Inlet) -> Place {
        let place = self.places.fetch_add(1, Ordering::Relaxed);
        let seat = Seat { place, name: member.name.clone(), inlet };
        self.lock().entry(member.network.clone()).or_default().insert(member.number, seat);
        Place { switch: self.clone(), place, member }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Seats>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut networks = self.switch.lock();
        let Some(seats) = networks.get_mut(&self.member.network) else { return };
        if seats.get(&self.member.number).is_some_and(|seat| seat.place == self.place) {
            seats.remove(&self.member.number);
        }
        if seats.is_empty() {
            networks.remove(&self.member.network);
        }
    }
}

impl Place {
    /// Number of the member with this name.
    #[must_use]
    pub fn number_of(&self, name: &str) -> Option<u8> {
        let networks = self.switch.lock();
        let seats = networks.get(&self.member.network)?;
        seats.iter().find(|(_, seat)| seat.name == name).map(|(number, _)| *number)
    }

    /// Name of the member with this number.
    #[must_use]
    pub fn name_of(&self, number: u8) -> Option<String> {
        let networks = self.switch.lock();
        Some(networks.get(&self.member.network)?.get(&number)?.name.clone())
    }

    /// Sends a frame to a member. False if it was dropped.
    #[must_use]
    pub fn send(&self, number: u8, frame: Vec<u8>) -> bool {
        let networks = self.switch.lock();
        let seat = networks.get(&self.member.network).and_then(|seats| seats.get(&number));
        seat.is_some_and(|seat| seat.inlet.put(frame))
    }

    /// Sends a frame to all others that may have it.
    pub fn flood(&self, frame: &[u8], may: impl Fn(&str) -> bool) {
        let networks = self.switch.lock();
        let Some(seats) = networks.get(&self.member.network) else { return };
        for (_, seat) in seats.iter().filter(|(number, _)| **number != self.member.number) {
            if may(&seat.name) {
                seat.inlet.put(frame.to_vec());
            }
        }
    }

    /// Whether a member may begin a connection with another. No port: any will do.
    #[must_use]
    pub fn may_begin(&self, from: &str, to: &str, port: Option<u16>) -> bool {
        let Some(between) = &self.member.between else { return true };
        between.iter().any(|rule| fits(rule, from, to, port))
    }
}

fn fits(rule: &Between, from: &str, to: &str, port: Option<u16>) -> bool {
    let names = |rule: &str, name: &str| rule == "*" || rule == name;
    let ports = |port: &u16| rule.ports.is_empty() || rule.ports.contains(port);
    names(&rule.from, from) && names(&rule.to, to) && port.as_ref().is_none_or(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(network: &str, name: &str, number: u8) -> Member {
        Member { network: network.into(), name: name.into(), number, between: None }
    }

    #[test]
    fn members_of_one_network_see_each_other_only() {
        let switch = Switch::default();
        let (a_in, mut a_out) = queue();
        let (b_in, mut b_out) = queue();
        let (c_in, mut c_out) = queue();
        let a = switch.join(member("one", "a", 1), a_in);
        let b = switch.join(member("one", "b", 2), b_in);
        let c = switch.join(member("two", "c", 2), c_in);
        assert_eq!((a.number_of("b"), a.number_of("c")), (Some(2), None));
        assert!(a.send(2, vec![1]));
        assert_eq!(b_out.next_now(), Some(vec![1]));
        a.flood(&[2], |_| true);
        assert_eq!(
            (a_out.next_now(), b_out.next_now(), c_out.next_now()),
            (None, Some(vec![2]), None)
        );
        assert!(!c.send(1, vec![3]));
        assert!(switch.is_taken(&member("one", "x", 2), Some(&a)));
        assert!(!switch.is_taken(&member("one", "b", 2), Some(&b)));
        drop(b);
        assert!(!a.send(2, vec![4]));
    }

    #[test]
    fn a_full_queue_drops() {
        let switch = Switch::default();
        let (inlet, mut outlet) = queue();
        let (other, _other) = queue();
        let a = switch.join(member("n", "a", 1), other);
        let _b = switch.join(member("n", "b", 2), inlet);
        let sent = (0..1000).filter(|_| a.send(2, vec![0; 60_000])).count();
        assert_eq!(sent, BYTES_MAX / 60_000);
        while outlet.next_now().is_some() {}
        assert!(a.send(2, vec![0; 60_000]));
        let small = (0..1000).filter(|_| a.send(2, vec![0])).count();
        assert_eq!(small, FRAMES_MAX - 1);
    }

    #[test]
    fn rules_between_members() {
        let rule = |from: &str, to: &str, ports: &[u16]| Between {
            from: from.into(),
            to: to.into(),
            ports: ports.to_vec(),
        };
        let mut own = member("n", "a", 1);
        own.between = Some(vec![rule("a", "db", &[5432]), rule("*", "log", &[])]);
        let place = Switch::default().join(own, queue().0);
        assert!(place.may_begin("a", "db", Some(5432)) && !place.may_begin("a", "db", Some(22)));
        assert!(!place.may_begin("db", "a", Some(5432)) && place.may_begin("db", "log", Some(1)));
        assert!(place.may_begin("a", "db", None) && !place.may_begin("db", "a", None));
    }
}
