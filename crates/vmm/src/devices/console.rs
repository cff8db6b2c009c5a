//! The serial console: a 16550 whose output goes to a ring of bounded size.
//!
//! There is no input. The ring is part of the machine: a child starts with its parent's text.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};

use super::Interrupts;

/// Bytes kept.
const KEPT: usize = 64 << 10;
/// Interrupt pin, as on every PC.
const PIN: u32 = 4;

/// The port.
pub struct Console {
    serial: Serial<Pin, NoEvents, Ring>,
}

/// The serial port's interrupt.
pub struct Pin(Arc<Interrupts>);

impl Trigger for Pin {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.raise(PIN);
        Ok(())
    }
}

/// The latest output.
#[derive(Default)]
pub struct Ring {
    bytes: VecDeque<u8>,
    written: u64,
}

impl io::Write for Ring {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written += bytes.len() as u64;
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(KEPT);
        self.bytes.drain(..excess);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Console {
    /// A port with nothing written.
    pub fn new(interrupts: Arc<Interrupts>) -> Self {
        Self { serial: Serial::new(Pin(interrupts), Ring::default()) }
    }

    /// The guest reads a register.
    pub fn read(&mut self, register: u8) -> u8 {
        self.serial.read(register)
    }

    /// The guest writes a register.
    pub fn write(&mut self, register: u8, value: u8) {
        // The ring takes everything; a full input FIFO in loopback mode is the guest's own doing.
        let _ignored = self.serial.write(register, value);
    }

    /// Bytes ever written, and the end of them.
    pub fn tail(&self) -> (u64, Vec<u8>) {
        let ring = self.serial.writer();
        (ring.written, ring.bytes.iter().copied().collect())
    }
}
