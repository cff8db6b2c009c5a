//! What flows share of their port: the link, the counters, the limits, the time.
//!
//! [`Wire`] is also the device of smoltcp's interfaces. It is borrowed for one poll: a packet that came in goes up from where it lies, and one that goes down is
//! written where the link sends it from. There is no queue between.

use std::cell::RefCell;
use std::time::Instant;

use ramet_proto::api::network::NetStats;
use ramet_proto::net::{GATEWAY_MAC, MTU};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};

use crate::bucket::Bucket;
use crate::frame::{MESSAGE_MAX, PACKET, checksums, seal};
use crate::link::{Link, Sent};

thread_local! {
    /// Room for one message to a guest. No port needs it across a wait.
    static ROOM: RefCell<Vec<u8>> = RefCell::new(vec![0; MESSAGE_MAX]);
}

/// The shared things.
#[derive(Debug)]
pub struct Wire {
    /// To the guest.
    pub link: Link,
    /// Counters.
    pub stats: NetStats,
    /// Bytes to the outside.
    pub upward: Bucket,
    /// Bytes from the outside.
    pub downward: Bucket,
    /// Set before each event.
    pub now: Instant,
    /// What smoltcp's time counts from.
    pub epoch: Instant,
}

impl Wire {
    /// Sends a message to the guest.
    pub fn send(&mut self, message: &[u8]) {
        match self.link.send(message) {
            Sent::Yes => {
                self.stats.received_frames += 1;
                self.stats.received_bytes += message.len() as u64;
            }
            Sent::Dropped => self.stats.dropped += 1,
        }
    }

    /// The time as smoltcp counts it.
    #[must_use]
    pub fn smoltcp_now(&self) -> smoltcp::time::Instant {
        let passed = self.now.saturating_duration_since(self.epoch).as_micros();
        smoltcp::time::Instant::from_micros(i64::try_from(passed).unwrap_or(i64::MAX))
    }

    /// And back.
    #[must_use]
    pub fn std_time(&self, at: smoltcp::time::Instant) -> Instant {
        let micros = u64::try_from(at.total_micros()).unwrap_or_default();
        self.epoch + std::time::Duration::from_micros(micros)
    }
}

/// One poll's device.
pub struct Poll<'a> {
    /// Of the port.
    pub wire: &'a mut Wire,
    /// What came in.
    pub packet: Option<&'a [u8]>,
}

/// What every interface thinks it stands on.
#[must_use]
pub fn capabilities() -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = MTU.into();
    capabilities.checksum = checksums();
    capabilities
}

impl Device for Poll<'_> {
    type RxToken<'b>
        = Received<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Room<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received<'_>, Room<'_>)> {
        let packet = self.packet.take()?;
        Some((Received(packet), Room(self.wire)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Room<'_>> {
        self.wire.link.ready().then_some(Room(self.wire))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// A packet of the guest.
pub struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Room for a packet to the guest.
pub struct Room<'a>(&'a mut Wire);

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let fill = |room: &mut [u8]| {
            let result = f(&mut room[PACKET..]);
            seal(room, GATEWAY_MAC);
            self.0.send(room);
            result
        };
        // smoltcp asks for no more than the MTU.
        ROOM.with_borrow_mut(|room| match room.get_mut(..PACKET + length) {
            Some(room) => fill(room),
            None => fill(&mut vec![0; PACKET + length]),
        })
    }
}
