//! The devices of a machine, as the guest's vCPUs reach them: by port and by memory address.
//!
//! vCPU threads come in through [`Bus`]; they touch registers only. Queues are worked on by the main
//! thread ([`crate::machine`]), which owns the back-ends. Every lock here is held for a few instructions or,
//! for a device's queues, while the main thread works on them; nobody holds two.
//!
//! | address | device |
//! |---|---|
//! | ports 0x70, 0x71 | CMOS clock |
//! | ports 0x3f8-0x3ff | console |
//! | port 0x505 | pvpanic |
//! | ports 0x604, 0x605, 0x606 | ACPI sleep control, reset, sleep status |
//! | ports 0x5240-0x524b | doorbell |
//! | 0xd0000000 + n × 4 KiB | virtio-mmio device n, interrupt 5 + n |
//! | 0xfec00000 | IOAPIC |

pub mod cmos;
pub mod console;
pub mod doorbell;
pub mod ioapic;
pub mod virtio;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvm_ioctls::VmFd;
use ramet_proto::control::Stop;
use ramet_proto::doorbell::{ACK_PORT, BELL_PORT, PAYLOAD_PORT};
use serde::{Deserialize, Serialize};

use crate::vcpu::Notices;
use cmos::Cmos;
use console::{Console, ConsoleState};
use doorbell::Doorbell;
use ioapic::IoApic;
use virtio::{Transport, TransportState};

/// Guest address of the IOAPIC.
pub const IOAPIC_ADDRESS: u64 = 0xfec0_0000;
/// Guest address of the first virtio device.
pub const VIRTIO_ADDRESS: u64 = 0xd000_0000;
/// Length of a virtio device's registers.
pub const VIRTIO_LENGTH: u64 = 0x1000;
/// Interrupt of the first virtio device.
pub const VIRTIO_PIN: u32 = 5;
/// ACPI sleep control register.
pub const SLEEP_PORT: u16 = 0x604;
/// ACPI reset register.
pub const RESET_PORT: u16 = 0x605;
/// Value that resets.
pub const RESET_VALUE: u8 = 1;
/// Sleep type of power off, as in the DSDT's `\_S5`.
pub const SLEEP_TYPE_OFF: u8 = 5;
/// ACPI sleep status register.
pub const SLEEP_STATUS_PORT: u16 = 0x606;
/// pvpanic.
pub const PANIC_PORT: u16 = 0x505;
const PANICKED: u8 = 1;
const SLEEP_ENABLE: u8 = 1 << 5;

/// The way of an interrupt from a device to a vCPU.
pub struct Interrupts {
    ioapic: Mutex<IoApic>,
    vm: Mutex<Option<VmFd>>,
}

impl Interrupts {
    /// Not connected to a VM yet; edges wait.
    pub fn new(ioapic: IoApic) -> Self {
        Self { ioapic: Mutex::new(ioapic), vm: Mutex::new(None) }
    }

    /// Edges reach this VM from now on. Gives the VM that they reached before.
    pub fn connect(&self, vm: Option<VmFd>) -> Option<VmFd> {
        std::mem::replace(&mut *lock(&self.vm), vm)
    }

    /// An edge on `pin`.
    pub fn raise(&self, pin: u32) {
        let message = lock(&self.ioapic).raise(pin);
        self.send(message);
    }

    /// KVM's clock, or 0 where it does not tell.
    pub fn clock_ns(&self) -> u64 {
        lock(&self.vm).as_ref().and_then(|vm| vm.get_clock().ok()).map_or(0, |clock| clock.clock)
    }

    fn send(&self, message: Option<kvm_bindings::kvm_msi>) {
        if let (Some(message), Some(vm)) = (message, &*lock(&self.vm)) {
            // KVM refuses what the guest programmed wrongly; that interrupt is the guest's loss.
            let _refused = vm.signal_msi(message);
        }
    }
}

/// What came of a port read.
#[derive(Debug, PartialEq, Eq)]
pub enum PortRead {
    /// The data was filled in.
    Done,
    /// The guest is at the doorbell, and must wait for its answer.
    Bell,
}

/// All devices.
pub struct Bus {
    /// Interrupts.
    pub interrupts: Arc<Interrupts>,
    /// Where the guest's identity is handed over.
    pub doorbell: Mutex<Doorbell>,
    console: Mutex<Console>,
    cmos: Mutex<Cmos>,
    virtio: Vec<Transport>,
    notices: Arc<Notices>,
}

/// State of the devices that have nothing but registers.
#[derive(Serialize, Deserialize)]
pub struct BusState {
    ioapic: IoApic,
    console: ConsoleState,
    cmos: Cmos,
    virtio: Vec<TransportState>,
}

impl Bus {
    /// Devices after power on.
    pub fn new(virtio: Vec<Transport>, notices: Arc<Notices>) -> Self {
        Self::with(IoApic::default(), Cmos::default(), virtio, notices)
    }

    fn with(ioapic: IoApic, cmos: Cmos, virtio: Vec<Transport>, notices: Arc<Notices>) -> Self {
        let interrupts = Arc::new(Interrupts::new(ioapic));
        Self {
            console: Mutex::new(Console::new(Arc::clone(&interrupts))),
            interrupts,
            doorbell: Mutex::new(Doorbell::default()),
            cmos: Mutex::new(cmos),
            virtio,
            notices,
        }
    }

    /// Devices as they were saved. `virtio` are the same devices, fresh.
    pub fn restored(
        state: BusState,
        mut virtio: Vec<Transport>,
        notices: Arc<Notices>,
    ) -> Result<Self, &'static str> {
        if state.virtio.len() != virtio.len() {
            return Err("another number of devices");
        }
        for (transport, saved) in virtio.iter_mut().zip(&state.virtio) {
            transport.restore(saved)?;
        }
        let bus = Self::with(state.ioapic, state.cmos, virtio, notices);
        *lock(&bus.console) = Console::restored(&state.console, Arc::clone(&bus.interrupts))?;
        Ok(bus)
    }

    /// What must be saved.
    pub fn state(&self) -> BusState {
        BusState {
            ioapic: lock(&self.interrupts.ioapic).clone(),
            console: lock(&self.console).state(),
            cmos: lock(&self.cmos).clone(),
            virtio: self.virtio.iter().map(Transport::state).collect(),
        }
    }

    /// Virtio device number `index`.
    pub fn virtio(&self, index: usize) -> &Transport {
        &self.virtio[index]
    }

    /// Number of virtio devices.
    pub fn virtio_count(&self) -> usize {
        self.virtio.len()
    }

    /// Tells the guest that device `index` has used buffers, and the main thread if it left some there.
    pub fn interrupt(&self, index: usize) {
        self.virtio[index].mark_used();
        if std::mem::take(&mut self.virtio[index].queues().unfinished) {
            self.notices.kick(index, 0);
        }
        self.interrupts.raise(VIRTIO_PIN + u32::try_from(index).unwrap_or(0));
    }

    /// Device `index` says something else of itself, and the guest is told.
    pub fn configure(&self, index: usize, config: Vec<u8>) {
        self.virtio[index].configure(config);
        self.interrupts.raise(VIRTIO_PIN + u32::try_from(index).unwrap_or(0));
    }

    /// Bytes ever written to the console, and the end of them.
    pub fn console_tail(&self) -> (u64, Vec<u8>) {
        lock(&self.console).tail()
    }

    /// `in`
    pub fn read_port(&self, port: u16, data: &mut [u8]) -> PortRead {
        match port {
            BELL_PORT => return PortRead::Bell,
            PAYLOAD_PORT => lock(&self.doorbell).read(data),
            0x71 => data.fill(lock(&self.cmos).read()),
            0x3f8..=0x3ff => {
                let register = u8::try_from(port - 0x3f8).unwrap_or(0);
                data.fill(lock(&self.console).read(register));
            }
            PANIC_PORT => data.fill(PANICKED),
            SLEEP_STATUS_PORT => data.fill(0),
            _ => data.fill(0xff),
        }
        PortRead::Done
    }

    /// `out`. The reason, if the guest is over with it.
    pub fn write_port(&self, port: u16, data: &[u8]) -> Option<Stop> {
        let value = *data.first()?;
        match port {
            BELL_PORT => lock(&self.doorbell).rewind(),
            ACK_PORT => {
                self.notices.acknowledged.store(true, Ordering::Release);
                self.notices.wake();
            }
            0x70 | 0x71 => lock(&self.cmos).write(port, value),
            0x3f8..=0x3ff => {
                let register = u8::try_from(port - 0x3f8).unwrap_or(0);
                let mut console = lock(&self.console);
                data.iter().for_each(|byte| console.write(register, *byte));
            }
            PANIC_PORT if value & PANICKED != 0 => return Some(Stop::Panic),
            SLEEP_PORT if value == SLEEP_ENABLE | SLEEP_TYPE_OFF << 2 => {
                return Some(Stop::Shutdown);
            }
            RESET_PORT if value == RESET_VALUE => return Some(Stop::Reboot),
            _ => {}
        }
        None
    }

    /// A load from an address that is not RAM.
    pub fn read_memory(&self, address: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some((index, offset)) = self.virtio_at(address) {
            self.virtio[index].read(offset, data);
        } else if let Some(offset) = address.checked_sub(IOAPIC_ADDRESS).filter(|o| *o < 0x1000) {
            let value = lock(&self.interrupts.ioapic).read(offset);
            copy(data, value);
        }
    }

    /// A store to an address that is not RAM.
    pub fn write_memory(&self, address: u64, data: &[u8]) {
        if let Some((index, offset)) = self.virtio_at(address) {
            if let Some(queue) = self.virtio[index].write(offset, data) {
                self.notices.kick(index, queue);
            }
        } else if let Some(offset) = address.checked_sub(IOAPIC_ADDRESS).filter(|o| *o < 0x1000) {
            let mut value = [0; 4];
            value.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
            let message = lock(&self.interrupts.ioapic).write(offset, u32::from_le_bytes(value));
            self.interrupts.send(message);
        }
    }

    fn virtio_at(&self, address: u64) -> Option<(usize, u64)> {
        let offset = address.checked_sub(VIRTIO_ADDRESS)?;
        let index = usize::try_from(offset / VIRTIO_LENGTH).ok()?;
        (index < self.virtio.len()).then_some((index, offset % VIRTIO_LENGTH))
    }
}

/// As much of `value` as fits.
fn copy(data: &mut [u8], value: u32) {
    data.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
}

/// Locks are only ever held around code that does not panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
