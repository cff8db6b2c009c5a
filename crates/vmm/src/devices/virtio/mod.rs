//! virtio over memory-mapped registers (virtio 1.2, section 4.2), and the queues behind them.
//!
//! [`Transport`] is the part that every device shares: identification, feature negotiation, queue set-up,
//! status, interrupts. vCPU threads work on it through [`Transport::read`] and [`Transport::write`]; the main
//! thread takes the queues with [`Transport::queues`] when the guest kicked one. The guest is hostile:
//! registers are written only when the protocol allows it, and a queue is used only if it lies in RAM.

pub mod block;
pub mod net;
pub mod rng;
pub mod vsock;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED, VIRTIO_CONFIG_S_FEATURES_OK,
    VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio as register;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueState, QueueT};

use super::{copy, lock};
use crate::memory::Guest;

const MAGIC: u32 = 0x7472_6976;
const VENDOR: u32 = 0x4d41_5220;
const USED_BUFFER: u32 = 1;
const CONFIG_CHANGED: u32 = 2;
/// Most queues of a device; the bits of `Notices::kicked` know it, too.
pub const QUEUES_MAX: usize = 4;

/// Registers and queues of a device.
pub struct Transport {
    kind: u32,
    offered: u64,
    config: Mutex<Config>,
    inside: Mutex<Inside>,
    interrupt_status: AtomicU32,
}

/// What the device says of itself, and how often that changed.
struct Config {
    bytes: Vec<u8>,
    generation: u32,
}

/// What the guest negotiated.
pub struct Inside {
    features: u64,
    features_select: u32,
    driver_features_select: u32,
    queue_select: u32,
    status: u32,
    /// The queues; only to be used while [`Self::live`].
    pub queues: Vec<Queue>,
    /// Set when the guest reset the device; the back-end takes it.
    pub was_reset: bool,
    /// The back-end stopped early, so that others get their turn; it must be called again.
    pub unfinished: bool,
}

/// What must be saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransportState {
    kind: u32,
    features: u64,
    features_select: u32,
    driver_features_select: u32,
    queue_select: u32,
    status: u32,
    interrupt_status: u32,
    queues: Vec<QueueRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct QueueRecord {
    max_size: u16,
    next_avail: u16,
    next_used: u16,
    event_idx_enabled: bool,
    size: u16,
    ready: bool,
    desc_table: u64,
    avail_ring: u64,
    used_ring: u64,
}

impl Inside {
    /// The driver is up and may use the queues.
    pub fn live(&self) -> bool {
        let bad = VIRTIO_CONFIG_S_FAILED | VIRTIO_CONFIG_S_NEEDS_RESET;
        self.status & VIRTIO_CONFIG_S_DRIVER_OK != 0 && self.status & bad == 0
    }

    /// The guest broke the protocol: the device does nothing more until it is reset.
    pub fn condemn(&mut self) {
        self.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
    }

    /// Keeps what came of a queue's work. Whether the guest is to be interrupted.
    pub fn settle(&mut self, worked: Result<Progress, virtio_queue::Error>) -> bool {
        match worked {
            Ok(progress) => {
                self.unfinished |= progress.more;
                progress.interrupt || progress.more
            }
            Err(_) => {
                self.condemn();
                false
            }
        }
    }

    fn queue(&mut self) -> Option<&mut Queue> {
        let select = self.queue_select as usize;
        self.queues.get_mut(select)
    }
}

impl Transport {
    /// A device of this kind (virtio's number) with these queues, features and configuration.
    pub fn new(kind: u32, features: u64, queue_sizes: &[u16], config: Vec<u8>) -> Self {
        let offered = features | 1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX;
        assert!(queue_sizes.len() <= QUEUES_MAX);
        let queues =
            queue_sizes.iter().map(|size| Queue::new(*size).expect("a power of two")).collect();
        let inside = Inside {
            features: 0,
            features_select: 0,
            driver_features_select: 0,
            queue_select: 0,
            status: 0,
            queues,
            was_reset: false,
            unfinished: false,
        };
        Self {
            kind,
            offered,
            config: Mutex::new(Config { bytes: config, generation: 0 }),
            inside: Mutex::new(inside),
            interrupt_status: AtomicU32::new(0),
        }
    }

    /// The queues, for the back-end.
    pub fn queues(&self) -> MutexGuard<'_, Inside> {
        lock(&self.inside)
    }

    /// The guest will find that buffers were used.
    pub fn mark_used(&self) {
        self.interrupt_status.fetch_or(USED_BUFFER, Ordering::AcqRel);
    }

    /// The device says something else of itself from now on, and the guest will find that.
    pub fn configure(&self, bytes: Vec<u8>) {
        let mut config = lock(&self.config);
        config.bytes = bytes;
        config.generation = config.generation.wrapping_add(1);
        self.interrupt_status.fetch_or(CONFIG_CHANGED, Ordering::AcqRel);
    }

    /// A load from the registers.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        if let Some(at) = offset.checked_sub(u64::from(register::VIRTIO_MMIO_CONFIG)) {
            let config = &lock(&self.config).bytes;
            let from = usize::try_from(at).unwrap_or(usize::MAX).min(config.len());
            data.iter_mut().zip(&config[from..]).for_each(|(to, from)| *to = *from);
        } else if data.len() == 4 {
            let offset = u32::try_from(offset).unwrap_or(u32::MAX);
            copy(data, self.read_register(offset));
        }
    }

    fn read_register(&self, offset: u32) -> u32 {
        if offset == register::VIRTIO_MMIO_INTERRUPT_STATUS {
            return self.interrupt_status.load(Ordering::Acquire);
        }
        if offset == register::VIRTIO_MMIO_CONFIG_GENERATION {
            return lock(&self.config).generation;
        }
        let mut inside = lock(&self.inside);
        match offset {
            register::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            register::VIRTIO_MMIO_VERSION => 2,
            register::VIRTIO_MMIO_DEVICE_ID => self.kind,
            register::VIRTIO_MMIO_VENDOR_ID => VENDOR,
            register::VIRTIO_MMIO_DEVICE_FEATURES => half(self.offered, inside.features_select),
            register::VIRTIO_MMIO_QUEUE_NUM_MAX => {
                inside.queue().map_or(0, |queue| queue.max_size().into())
            }
            register::VIRTIO_MMIO_QUEUE_READY => {
                inside.queue().is_some_and(|queue| queue.ready()).into()
            }
            register::VIRTIO_MMIO_STATUS => inside.status,
            _ => 0,
        }
    }

    /// A store to the registers. The number of the queue, if it is a kick.
    pub fn write(&self, offset: u64, data: &[u8]) -> Option<usize> {
        let value = u32::from_le_bytes(data.try_into().ok()?);
        let offset = u32::try_from(offset).ok()?;
        match offset {
            register::VIRTIO_MMIO_QUEUE_NOTIFY => {
                return usize::try_from(value).ok().filter(|queue| *queue < QUEUES_MAX);
            }
            register::VIRTIO_MMIO_INTERRUPT_ACK => {
                self.interrupt_status.fetch_and(!value, Ordering::AcqRel);
            }
            register::VIRTIO_MMIO_STATUS => return self.write_status(value),
            _ => self.write_register(offset, value),
        }
        None
    }

    fn write_register(&self, offset: u32, value: u32) {
        let mut inside = lock(&self.inside);
        match offset {
            register::VIRTIO_MMIO_DEVICE_FEATURES_SEL => inside.features_select = value,
            register::VIRTIO_MMIO_DRIVER_FEATURES_SEL => inside.driver_features_select = value,
            register::VIRTIO_MMIO_QUEUE_SEL => inside.queue_select = value,
            register::VIRTIO_MMIO_DRIVER_FEATURES
                if inside.status & VIRTIO_CONFIG_S_FEATURES_OK == 0 =>
            {
                let (shift, keep) = match inside.driver_features_select {
                    0 => (0, 0xffff_ffff << 32),
                    1 => (32, 0xffff_ffff),
                    _ => return,
                };
                inside.features = inside.features & keep | u64::from(value) << shift;
            }
            _ if inside.status & VIRTIO_CONFIG_S_DRIVER_OK == 0 => {
                if let Some(queue) = inside.queue() {
                    set_up_queue(queue, offset, value);
                }
            }
            _ => {}
        }
    }

    /// Any queue's kick wakes the back-end after a reset or at the start.
    fn write_status(&self, value: u32) -> Option<usize> {
        let mut inside = lock(&self.inside);
        if value == 0 {
            inside.queues.iter_mut().for_each(QueueT::reset);
            (inside.features, inside.status, inside.queue_select) = (0, 0, 0);
            (inside.features_select, inside.driver_features_select) = (0, 0);
            inside.was_reset = true;
            self.interrupt_status.store(0, Ordering::Release);
            return Some(0);
        }
        let mut status = inside.status | value;
        let required = 1u64 << VIRTIO_F_VERSION_1;
        let acceptable = inside.features & !self.offered == 0 && inside.features & required != 0;
        if !acceptable {
            status &= !VIRTIO_CONFIG_S_FEATURES_OK;
        }
        if status & VIRTIO_CONFIG_S_FEATURES_OK == 0 {
            status &= !VIRTIO_CONFIG_S_DRIVER_OK;
        }
        inside.status = status;
        if status & VIRTIO_CONFIG_S_FEATURES_OK != 0 {
            let event_idx = inside.features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
            inside.queues.iter_mut().for_each(|queue| queue.set_event_idx(event_idx));
        }
        (status & VIRTIO_CONFIG_S_DRIVER_OK != 0).then_some(0)
    }

    /// What must be saved.
    pub fn state(&self) -> TransportState {
        let inside = lock(&self.inside);
        TransportState {
            kind: self.kind,
            features: inside.features,
            features_select: inside.features_select,
            driver_features_select: inside.driver_features_select,
            queue_select: inside.queue_select,
            status: inside.status,
            interrupt_status: self.interrupt_status.load(Ordering::Acquire),
            queues: inside.queues.iter().map(|queue| QueueRecord::from(queue.state())).collect(),
        }
    }

    /// Becomes what was saved.
    pub fn restore(&mut self, state: &TransportState) -> Result<(), &'static str> {
        let mut inside = lock(&self.inside);
        if state.kind != self.kind || state.queues.len() != inside.queues.len() {
            return Err("another kind of device");
        }
        let agreed = state.status & VIRTIO_CONFIG_S_FEATURES_OK != 0;
        if agreed && state.features & !self.offered != 0 {
            return Err("a device feature that is not there");
        }
        for (queue, record) in inside.queues.iter_mut().zip(&state.queues) {
            *queue = Queue::try_from(record.state()).map_err(|_| "an impossible queue")?;
        }
        inside.features = state.features;
        inside.features_select = state.features_select;
        inside.driver_features_select = state.driver_features_select;
        inside.queue_select = state.queue_select;
        inside.status = state.status;
        self.interrupt_status.store(state.interrupt_status, Ordering::Release);
        Ok(())
    }
}

fn set_up_queue(queue: &mut Queue, offset: u32, value: u32) {
    match offset {
        register::VIRTIO_MMIO_QUEUE_NUM => {
            // A size that is not possible leaves the old one, as the driver will read back.
            queue.set_size(u16::try_from(value).unwrap_or(0));
        }
        register::VIRTIO_MMIO_QUEUE_READY => queue.set_ready(value == 1),
        register::VIRTIO_MMIO_QUEUE_DESC_LOW => queue.set_desc_table_address(Some(value), None),
        register::VIRTIO_MMIO_QUEUE_DESC_HIGH => queue.set_desc_table_address(None, Some(value)),
        register::VIRTIO_MMIO_QUEUE_AVAIL_LOW => queue.set_avail_ring_address(Some(value), None),
        register::VIRTIO_MMIO_QUEUE_AVAIL_HIGH => queue.set_avail_ring_address(None, Some(value)),
        register::VIRTIO_MMIO_QUEUE_USED_LOW => queue.set_used_ring_address(Some(value), None),
        register::VIRTIO_MMIO_QUEUE_USED_HIGH => queue.set_used_ring_address(None, Some(value)),
        _ => {}
    }
}

/// How far a back-end came with a queue.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The guest wants to hear of used buffers.
    pub interrupt: bool,
    /// There may be more to do.
    pub more: bool,
}

/// Takes chains from a queue until there are none, giving each to `handle`, which answers how many bytes
/// it wrote. An error means that the guest broke the ring.
///
/// A guest can refill the ring as fast as it is emptied, so no more chains are taken at once than the
/// queue is long.
pub fn serve(
    queue: &mut Queue,
    memory: &Guest,
    mut handle: impl FnMut(virtio_queue::DescriptorChain<&Guest>) -> u32,
) -> Result<Progress, virtio_queue::Error> {
    if !queue.ready() || !queue.is_valid(memory) {
        return Ok(Progress::default());
    }
    let mut used = 0;
    let mut more = true;
    for _ in 0..queue.size() {
        queue.disable_notification(memory)?;
        while used < queue.size()
            && let Some(chain) = next_chain(queue, memory)?
        {
            let head = chain.head_index();
            let written = handle(chain);
            queue.add_used(memory, head, written)?;
            used += 1;
        }
        if used == queue.size() {
            break;
        }
        if !queue.enable_notification(memory)? {
            more = false;
            break;
        }
    }
    let interrupt = used > 0 && queue.needs_notification(memory)?;
    Ok(Progress { interrupt, more })
}

/// The next chain that the guest offers. An index that the ring cannot have is an error, and so is a ring
/// that cannot be read although it offers something (virtio-queue takes none at address 0).
pub fn next_chain<'m>(
    queue: &mut Queue,
    memory: &'m Guest,
) -> Result<Option<virtio_queue::DescriptorChain<&'m Guest>>, virtio_queue::Error> {
    let offered = queue.avail_idx(memory, Ordering::Acquire)?.0.wrapping_sub(queue.next_avail());
    if offered > queue.size() {
        return Err(virtio_queue::Error::InvalidAvailRingIndex);
    }
    match queue.pop_descriptor_chain(memory) {
        None if offered > 0 => Err(virtio_queue::Error::InvalidAvailRingIndex),
        chain => Ok(chain),
    }
}

fn half(value: u64, select: u32) -> u32 {
    match select {
        0 => u32::try_from(value & 0xffff_ffff).unwrap_or(0),
        1 => u32::try_from(value >> 32).unwrap_or(0),
        _ => 0,
    }
}

impl From<QueueState> for QueueRecord {
    fn from(state: QueueState) -> Self {
        Self {
            max_size: state.max_size,
            next_avail: state.next_avail,
            next_used: state.next_used,
            event_idx_enabled: state.event_idx_enabled,
            size: state.size,
            ready: state.ready,
            desc_table: state.desc_table,
            avail_ring: state.avail_ring,
            used_ring: state.used_ring,
        }
    }
}

impl QueueRecord {
    fn state(&self) -> QueueState {
        QueueState {
            max_size: self.max_size,
            next_avail: self.next_avail,
            next_used: self.next_used,
            event_idx_enabled: self.event_idx_enabled,
            size: self.size,
            ready: self.ready,
            desc_table: self.desc_table,
            avail_ring: self.avail_ring,
            used_ring: self.used_ring,
        }
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod mock;
#[cfg(test)]
mod tests;
