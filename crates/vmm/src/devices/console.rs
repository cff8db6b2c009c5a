//! The serial console: a 16550 whose output goes to a ring of bounded size.
//!
//! There is no input. The ring is part of the machine: a child starts with its parent's text. In files only the
//! registers are kept.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState};
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

/// Registers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConsoleState {
    baud_divisor: [u8; 2],
    interrupts: [u8; 2],
    line: [u8; 2],
    modem: [u8; 2],
    scratch: u8,
}

impl ConsoleState {
    fn of(state: &SerialState) -> Self {
        Self {
            baud_divisor: [state.baud_divisor_low, state.baud_divisor_high],
            interrupts: [state.interrupt_enable, state.interrupt_identification],
            line: [state.line_control, state.line_status],
            modem: [state.modem_control, state.modem_status],
            scratch: state.scratch,
        }
    }

    fn serial(&self) -> SerialState {
        SerialState {
            baud_divisor_low: self.baud_divisor[0],
            baud_divisor_high: self.baud_divisor[1],
            interrupt_enable: self.interrupts[0],
            interrupt_identification: self.interrupts[1],
            line_control: self.line[0],
            line_status: self.line[1],
            modem_control: self.modem[0],
            modem_status: self.modem[1],
            scratch: self.scratch,
            in_buffer: Vec::new(),
        }
    }
}

impl Console {
    /// A port as it was saved, with nothing written.
    pub fn restored(
        state: &ConsoleState,
        interrupts: Arc<Interrupts>,
    ) -> Result<Self, &'static str> {
        let pin = Pin(interrupts);
        Serial::from_state(&state.serial(), pin, NoEvents, Ring::default())
            .map(|serial| Self { serial })
            .map_err(|_| "an impossible console")
    }

    /// What must be saved.
    pub fn state(&self) -> ConsoleState {
        ConsoleState::of(&self.serial.state())
    }

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
