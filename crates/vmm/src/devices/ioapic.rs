//! The IOAPIC of the split interrupt controller: 24 edge-triggered pins that become messages.
//!
//! ramet's devices raise edges only, so there is no remote IRR to wait for and no end-of-interrupt to
//! listen to. An edge on a masked pin is kept and delivered when the guest unmasks it. Whatever the guest
//! writes is stored and read back masked to the bits that exist; nothing here can fail.

use kvm_bindings::kvm_msi;
use serde::{Deserialize, Serialize};

use crate::kvm::IOAPIC_PINS;

const ID: u32 = 0x00;
const VERSION: u32 = 0x01;
const ARBITRATION: u32 = 0x02;
const REDIRECTION: u32 = 0x10;
const MASKED: u64 = 1 << 16;
/// Delivery status and remote IRR are the device's, the rest is the guest's.
const WRITABLE: u64 = !(1 << 12 | 1 << 14) & 0xff00_0000_0001_ffff;

/// Registers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IoApic {
    select: u32,
    id: u32,
    pins: [u64; IOAPIC_PINS],
    /// Edges that came while the pin was masked.
    waiting: u32,
}

impl Default for IoApic {
    fn default() -> Self {
        Self { select: 0, id: 0, pins: [MASKED; IOAPIC_PINS], waiting: 0 }
    }
}

impl IoApic {
    /// Reads a register window.
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            0x00 => self.select,
            0x10 => self.read_selected(),
            _ => 0,
        }
    }

    /// Writes a register window. A message, if that releases an edge that was waiting.
    pub fn write(&mut self, offset: u64, value: u32) -> Option<kvm_msi> {
        match offset {
            0x00 => {
                self.select = value & 0xff;
                None
            }
            0x10 => self.write_selected(value),
            _ => None,
        }
    }

    /// An edge on `pin`. The message to send, unless the pin is masked.
    pub fn raise(&mut self, pin: u32) -> Option<kvm_msi> {
        let entry = *self.pins.get(pin as usize)?;
        if entry & MASKED != 0 {
            self.waiting |= 1 << pin;
            return None;
        }
        Some(message(entry))
    }

    fn read_selected(&self) -> u32 {
        match self.select {
            ID | ARBITRATION => self.id,
            VERSION => 0x20 | u32::try_from(IOAPIC_PINS - 1).unwrap_or(0) << 16,
            select => match self.pin(select) {
                Some((pin, high)) => half(self.pins[pin], high),
                None => 0,
            },
        }
    }

    fn write_selected(&mut self, value: u32) -> Option<kvm_msi> {
        if self.select == ID {
            self.id = value & 0x0f00_0000;
            return None;
        }
        let (pin, high) = self.pin(self.select)?;
        let (shift, keep) = if high { (32, 0xffff_ffff) } else { (0, 0xffff_ffff << 32) };
        let entry = &mut self.pins[pin];
        *entry = (*entry & keep | u64::from(value) << shift) & WRITABLE;
        let released = *entry & MASKED == 0 && self.waiting & 1 << pin != 0;
        self.waiting &= if released { !(1 << pin) } else { !0 };
        released.then(|| message(self.pins[pin]))
    }

    /// Which pin a register number belongs to, and whether it is the upper half.
    fn pin(&self, select: u32) -> Option<(usize, bool)> {
        let number = select.checked_sub(REDIRECTION)?;
        let pin = (number / 2) as usize;
        (pin < IOAPIC_PINS).then_some((pin, number % 2 == 1))
    }
}

fn half(entry: u64, high: bool) -> u32 {
    let shift = if high { 32 } else { 0 };
    u32::try_from(entry >> shift & 0xffff_ffff).unwrap_or(0)
}

/// The message that a redirection entry stands for.
fn message(entry: u64) -> kvm_msi {
    let destination = half(entry, true) >> 24;
    let logical = half(entry, false) >> 11 & 1;
    let delivery = half(entry, false) >> 8 & 7;
    let vector = half(entry, false) & 0xff;
    kvm_msi {
        address_lo: 0xfee0_0000 | destination << 12 | logical << 2,
        data: vector | delivery << 8,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(apic: &mut IoApic, register: u32, value: u32) -> Option<kvm_msi> {
        assert!(apic.write(0, register).is_none());
        apic.write(0x10, value)
    }

    #[test]
    fn an_edge_on_a_masked_pin_waits() {
        let mut apic = IoApic::default();
        assert!(apic.raise(5).is_none());
        program(&mut apic, 0x10 + 11, 3 << 24);
        let msi = program(&mut apic, 0x10 + 10, 0x31).expect("released");
        assert_eq!((msi.data & 0xff, msi.address_lo), (0x31, 0xfee0_0000 | 3 << 12));
        assert!(program(&mut apic, 0x10 + 10, 0x31).is_none(), "delivered once");
        assert!(apic.raise(5).is_some());
    }

    #[test]
    fn nonsense_is_harmless() {
        let mut apic = IoApic::default();
        assert!(apic.raise(24).is_none());
        assert!(apic.raise(u32::MAX).is_none());
        for register in 0..=0xff {
            program(&mut apic, register, 0xffff_ffff);
            apic.read(0x10);
        }
        assert_eq!(apic.read(0x44), 0);
    }
}
