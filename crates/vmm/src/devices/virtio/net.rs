//! virtio-net: frames between the guest's rings and a link, the socket of a network service.
//!
//! The device knows nothing of what it carries. A frame travels with its virtio header, one message each
//! ([`ramet_proto::net`]). Without a link, frames of the guest wait in its ring; frames that come while the guest has no room wait in
//! the socket, and whoever sends them finds it full. Nothing but the rings is state: a link belongs to one process, so a child
//! begins without one, and what was on the way then is the source's.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering;

use ramet_proto::net::{FRAME_MAX, GUEST_MAC, HEADER, MTU};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP,
};
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use super::{Progress, Transport, next_chain};
use crate::memory::Guest;
use crate::poller::{Interest, Poller};

const KIND: u32 = 1;
const QUEUE: u16 = 256;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const MESSAGE_MAX: usize = HEADER + FRAME_MAX;
/// Where the header says over how many buffers the frame is spread.
const NUM_BUFFERS: usize = 10;
/// Shortest Ethernet frame that means something.
const FRAME_MIN: usize = 14;
/// Frames moved each way before others get their turn.
const BUDGET: usize = 64;

/// The device's registers.
pub fn transport() -> Transport {
    let features = [
        VIRTIO_NET_F_CSUM,
        VIRTIO_NET_F_GUEST_CSUM,
        VIRTIO_NET_F_MTU,
        VIRTIO_NET_F_MAC,
        VIRTIO_NET_F_MRG_RXBUF,
        VIRTIO_NET_F_STATUS,
    ];
    let features = features.iter().fold(0, |all, bit| all | 1 << bit);
    let mut config = GUEST_MAC.to_vec();
    config.extend(u16::try_from(VIRTIO_NET_S_LINK_UP).unwrap_or(1).to_le_bytes());
    config.extend(1u16.to_le_bytes()); // pairs of queues
    config.extend(MTU.to_le_bytes());
    Transport::new(KIND, features, &[QUEUE, QUEUE], config)
}

/// The side of the host.
#[derive(Default)]
pub struct Net {
    link: Option<Link>,
    /// A frame on its way, or one that waits until the guest has more room.
    buffer: Vec<u8>,
    /// Bytes of `buffer` that wait for room.
    pending: usize,
}

struct Link {
    socket: UnixDatagram,
    /// A message may wait.
    readable: bool,
    /// There may be room.
    writable: bool,
}

/// What came of an attempt to use the link.
enum Sent {
    Done,
    Full,
    Gone,
}

/// What became of a frame for the guest.
enum Delivered {
    /// It lies in so many chains; in none if it can lie nowhere.
    Over(usize),
    /// It waits.
    NoRoom,
}

impl Net {
    /// Connected to this link from now on, or to none.
    pub fn plug(&mut self, link: Option<OwnedFd>, poller: &Poller, token: u64) -> io::Result<()> {
        let link = link.map(UnixDatagram::from);
        if let Some(socket) = &link {
            socket.set_nonblocking(true)?;
            poller.add(socket, token, interest(true, true))?;
        }
        self.unplug(poller);
        self.link = link.map(|socket| Link { socket, readable: true, writable: true });
        Ok(())
    }

    fn unplug(&mut self, poller: &Poller) {
        if let Some(link) = self.link.take() {
            poller.remove(&link.socket);
        }
        self.pending = 0;
        self.buffer = Vec::new();
    }

    /// In a child: the link is the source's.
    pub fn disown(&mut self) {
        std::mem::forget(self.link.take());
        self.pending = 0;
    }

    /// The poller says that the link may be used again.
    pub fn ready(&mut self, read: bool, write: bool) {
        if let Some(link) = &mut self.link {
            link.readable |= read;
            link.writable |= write;
        }
    }

    /// Moves frames both ways. Whether the guest is to be interrupted.
    pub fn serve(
        &mut self,
        transport: &Transport,
        memory: &Guest,
        poller: &Poller,
        token: u64,
    ) -> bool {
        let mut inside = transport.queues();
        if std::mem::take(&mut inside.was_reset) {
            self.pending = 0;
        }
        if !inside.live() || self.link.is_none() {
            return false;
        }
        self.buffer.resize(MESSAGE_MAX, 0);
        let sent = self.transmit(&mut inside.queues[TRANSMIT], memory);
        let mut interrupt = inside.settle(sent);
        let spreads = inside.features & 1 << VIRTIO_NET_F_MRG_RXBUF != 0;
        let received = self.receive(&mut inside.queues[RECEIVE], spreads, memory);
        interrupt |= inside.settle(received);
        drop(inside);
        self.listen(poller, token);
        interrupt
    }

    /// Waits for what the link could not do.
    fn listen(&mut self, poller: &Poller, token: u64) {
        let Some(link) = &self.link else { return };
        let wanted = interest(!link.readable, !link.writable);
        let failed =
            (wanted.read || wanted.write) && poller.modify(&link.socket, token, wanted).is_err();
        if failed {
            self.unplug(poller);
        }
        if self.pending == 0 && self.link.as_ref().is_some_and(|link| !link.readable) {
            self.buffer = Vec::new(); // an idle machine has no use for it
        }
    }

    /// From the guest to the link.
    fn transmit(&mut self, queue: &mut Queue, memory: &Guest) -> Result<Progress, Error> {
        if !queue.ready() || !queue.is_valid(memory) {
            return Ok(Progress::default());
        }
        let mut used = 0;
        loop {
            queue.disable_notification(memory)?;
            while used < BUDGET
                && self.link.as_ref().is_some_and(|link| link.writable)
                && let Some(chain) = next_chain(queue, memory)?
            {
                let head = chain.head_index();
                let length = gather(chain, memory, &mut self.buffer);
                let known = length.is_some_and(|length| length >= HEADER + FRAME_MIN);
                match length.filter(|_| known).map(|length| self.send(length)) {
                    Some(Sent::Full | Sent::Gone) => {
                        queue.go_to_previous_position();
                        break;
                    }
                    Some(Sent::Done) | None => {}
                }
                queue.add_used(memory, head, 0)?;
                used += 1;
            }
            let blocked = self.link.as_ref().is_none_or(|link| !link.writable);
            if used >= BUDGET || blocked || !queue.enable_notification(memory)? {
                break;
            }
        }
        let interrupt = used > 0 && queue.needs_notification(memory)?;
        Ok(Progress { interrupt, more: used >= BUDGET })
    }

    fn send(&mut self, length: usize) -> Sent {
        let Some(link) = &mut self.link else { return Sent::Gone };
        match link.socket.send(&self.buffer[..length]) {
            Ok(_) => Sent::Done,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Sent::Full,
            Err(error) if would_block(&error) => {
                link.writable = false;
                Sent::Full
            }
            Err(_) => {
                self.link = None; // closing it ends its being watched
                Sent::Gone
            }
        }
    }

    /// From the link to the guest.
    fn receive(
        &mut self,
        queue: &mut Queue,
        spreads: bool,
        memory: &Guest,
    ) -> Result<Progress, Error> {
        if !queue.ready() || !queue.is_valid(memory) {
            return Ok(Progress::default());
        }
        let (mut moved, mut interrupt, mut asked) = (0, false, false);
        while moved < BUDGET && (self.pending > 0 || self.fetch()) {
            match self.deliver(queue, spreads, memory)? {
                Delivered::Over(chains) => {
                    // Only the last of several is counted by the queue.
                    interrupt |= chains > 1;
                    (self.pending, asked) = (0, false);
                    moved += 1;
                }
                Delivered::NoRoom if asked || !ask_for_room(queue, memory)? => break,
                Delivered::NoRoom => asked = true,
            }
        }
        interrupt |= moved > 0 && queue.needs_notification(memory)?;
        Ok(Progress { interrupt, more: moved >= BUDGET })
    }

    /// Takes a frame from the link.
    fn fetch(&mut self) -> bool {
        while let Some(link) = self.link.as_mut().filter(|link| link.readable) {
            match link.socket.recv(&mut self.buffer) {
                Ok(0) => self.link = None,
                Ok(length) if length >= HEADER + FRAME_MIN => {
                    self.pending = length;
                    return true;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if would_block(&error) => link.readable = false,
                Err(_) => self.link = None,
            }
        }
        false
    }

    /// Spreads the frame over buffers of the guest, which gets all of them at once, or none.
    fn deliver(
        &mut self,
        queue: &mut Queue,
        spreads: bool,
        memory: &Guest,
    ) -> Result<Delivered, Error> {
        let before = queue.next_avail();
        let mut places = Vec::new();
        let mut room = 0;
        while room < self.pending {
            let Some(chain) = next_chain(queue, memory)? else {
                queue.set_next_avail(before);
                return Ok(Delivered::NoRoom);
            };
            let head = chain.head_index();
            let writer = chain.writer::<()>(memory).map_err(|_| Error::InvalidDescriptorIndex)?;
            if writer.available_bytes() == 0 || places.len() >= usize::from(queue.size()) {
                return Err(Error::InvalidDescriptorIndex);
            }
            room += writer.available_bytes();
            places.push((head, writer));
        }
        if places.len() > 1 && !spreads {
            queue.set_next_avail(before);
            return Ok(Delivered::Over(0)); // it never fits: lost
        }
        let chains = places.len();
        let count = u16::try_from(chains).unwrap_or(u16::MAX);
        self.buffer[NUM_BUFFERS..HEADER].copy_from_slice(&count.to_le_bytes());
        let mut rest = &self.buffer[..self.pending];
        let mut used = Vec::with_capacity(chains);
        for (head, mut writer) in places {
            let (part, after) = rest.split_at(writer.available_bytes().min(rest.len()));
            writer.write_all(part).map_err(|_| Error::InvalidDescriptorIndex)?;
            used.push((head, u32::try_from(part.len()).unwrap_or(0)));
            rest = after;
        }
        publish(queue, memory, &used)?;
        Ok(Delivered::Over(chains))
    }
}

/// Asks the guest to tell when it has made more room than there is. Whether it just did.
fn ask_for_room(queue: &mut Queue, memory: &Guest) -> Result<bool, Error> {
    let next = queue.next_avail();
    queue.set_next_avail(queue.avail_idx(memory, Ordering::Acquire)?.0);
    let more = queue.enable_notification(memory);
    queue.set_next_avail(next);
    more
}

/// Copies a chain that the guest wrote. Nothing if it cannot be a frame.
fn gather(chain: DescriptorChain<&Guest>, memory: &Guest, buffer: &mut [u8]) -> Option<usize> {
    let mut reader = chain.reader::<()>(memory).ok()?;
    let length = reader.available_bytes();
    reader.read_exact(buffer.get_mut(..length)?).ok()?;
    Some(length)
}

/// Gives back several chains in one step: the guest must not see some of a frame's buffers without the others.
fn publish(queue: &mut Queue, memory: &Guest, spread: &[(u16, u32)]) -> Result<(), Error> {
    let Some(((last, length), before)) = spread.split_last() else { return Ok(()) };
    let mut next = queue.next_used();
    for (head, length) in before {
        let slot = u64::from(next % queue.size());
        let at = queue.used_ring().checked_add(4 + slot * 8).ok_or(Error::AddressOverflow)?;
        let mut element = [0; 8];
        element[..4].copy_from_slice(&u32::from(*head).to_le_bytes());
        element[4..].copy_from_slice(&length.to_le_bytes());
        memory.write_slice(&element, GuestAddress(at)).map_err(Error::GuestMemory)?;
        next = next.wrapping_add(1);
    }
    queue.set_next_used(next);
    queue.add_used(memory, *last, *length)
}

fn interest(read: bool, write: bool) -> Interest {
    Interest { read, write, once: true }
}

fn would_block(error: &io::Error) -> bool {
    // A full queue of a Unix datagram socket may say so, too.
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
mod tests;
