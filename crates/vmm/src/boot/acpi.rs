//! ACPI tables: hardware-reduced, with just what the machine has.
//!
//! Processors and the IOAPIC are in the MADT; the console, the panic device and the virtio devices are in
//! the DSDT; power off and reset are registers named by the FADT.

use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Name, Package, ResourceTemplate, Scope,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};
use vm_memory::{Bytes, GuestAddress};

use crate::devices::{
    IOAPIC_ADDRESS, PANIC_PORT, RESET_PORT, RESET_VALUE, SLEEP_PORT, SLEEP_STATUS_PORT,
    SLEEP_TYPE_OFF, VIRTIO_ADDRESS, VIRTIO_LENGTH, VIRTIO_PIN,
};
use crate::memory::Guest;

/// Where the tables lie; the memory map leaves it out.
pub const TABLES: u64 = 0xe0000;
const LAPIC_ADDRESS: u32 = 0xfee0_0000;
const OEM: [u8; 6] = *b"RAMET ";
const TABLE: [u8; 8] = *b"RAMETVMM";

/// Writes the tables. The address of the first one.
pub fn write(
    memory: &Guest,
    vcpus: u8,
    virtio_count: usize,
) -> Result<u64, vm_memory::GuestMemoryError> {
    let mut next = TABLES + u64::try_from(Rsdp::len()).unwrap_or(0).next_multiple_of(16);
    let mut put = |bytes: &[u8]| {
        let at = next;
        next = (next + bytes.len() as u64).next_multiple_of(16);
        memory.write_slice(bytes, GuestAddress(at)).map(|()| at)
    };
    let dsdt = put(dsdt(virtio_count).as_slice())?;
    let fadt = put(&bytes(&fadt(dsdt)))?;
    let madt = put(&bytes(&madt(vcpus)))?;
    let mut xsdt = XSDT::new(OEM, TABLE, 1);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = put(&bytes(&xsdt))?;
    memory.write_slice(&bytes(&Rsdp::new(OEM, xsdt)), GuestAddress(TABLES))?;
    Ok(TABLES)
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

fn port(number: u16) -> GAS {
    GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, number.into())
}

fn fadt(dsdt: u64) -> impl Aml {
    let mut builder = FADTBuilder::new(OEM, TABLE, 1)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    builder.reset_reg = port(RESET_PORT);
    builder.reset_value = RESET_VALUE;
    builder.sleep_control_reg = port(SLEEP_PORT);
    builder.sleep_status_reg = port(SLEEP_STATUS_PORT);
    // No VGA to look for; no CMOS alarm. The clock itself is there.
    builder.iapc_boot_arch = (1 << 2).into();
    builder.finalize()
}

fn madt(vcpus: u8) -> impl Aml {
    let mut madt = MADT::new(OEM, TABLE, 1, LocalInterruptController::Address(LAPIC_ADDRESS));
    for index in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(index, index, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, u32::try_from(IOAPIC_ADDRESS).unwrap_or(0), 0));
    madt
}

fn dsdt(virtio_count: usize) -> Sdt {
    let mut dsdt = Sdt::new(*b"DSDT", 36, 2, OEM, TABLE, 1);
    let mut append = |part: &dyn Aml| dsdt.append_slice(&bytes(part));
    let off = SLEEP_TYPE_OFF;
    append(&Name::new("_S5_".into(), &Package::new(vec![&off, &off, &0u8, &0u8])));
    append(&Scope::new("_SB_".into(), vec![&console(), &panic()]));
    for index in 0..virtio_count {
        append(&Scope::new("_SB_".into(), vec![&Virtio(index)]));
    }
    dsdt
}

/// A device from its parts, as bytes, since the parts borrow from each other.
fn console() -> Raw {
    let irq = Interrupt::new(true, true, false, false, 4);
    let io = IO::new(0x3f8, 0x3f8, 1, 8);
    let resources = ResourceTemplate::new(vec![&irq, &io]);
    Raw(bytes(&Device::new(
        "COM1".into(),
        vec![
            &Name::new("_HID".into(), &EISAName::new("PNP0501")),
            &Name::new("_UID".into(), &aml::ZERO),
            &Name::new("_CRS".into(), &resources),
        ],
    )))
}

fn panic() -> Raw {
    let io = IO::new(PANIC_PORT, PANIC_PORT, 1, 1);
    Raw(bytes(&Device::new(
        "PEVT".into(),
        vec![
            &Name::new("_HID".into(), &"QEMU0001"),
            &Name::new("_UID".into(), &aml::ZERO),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&io])),
        ],
    )))
}

/// Bytes that are AML already.
struct Raw(Vec<u8>);

impl Aml for Raw {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        sink.vec(&self.0);
    }
}

/// A virtio-mmio device.
struct Virtio(usize);

impl Aml for Virtio {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        let number = u32::try_from(self.0).unwrap_or(0);
        let length = u32::try_from(VIRTIO_LENGTH).unwrap_or(0);
        let base = u32::try_from(VIRTIO_ADDRESS).unwrap_or(0) + number * length;
        let registers = Memory32Fixed::new(true, base, length);
        let irq = Interrupt::new(true, true, false, false, VIRTIO_PIN + number);
        let name = format!("V{number:03}");
        Device::new(
            name.as_str().into(),
            vec![
                &Name::new("_HID".into(), &"LNRO0005"),
                &Name::new("_UID".into(), &number),
                &Name::new("_CCA".into(), &aml::ONE),
                &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&registers, &irq])),
            ],
        )
        .to_aml_bytes(sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_sum_to_zero() {
        let memory = Guest::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap();
        let rsdp = write(&memory, 8, 7).unwrap();
        let read = |at: u64, length: usize| {
            let mut bytes = vec![0; length];
            memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
            bytes
        };
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!(sum(&read(rsdp, 36)), 0);
        let xsdt: u64 = memory.read_obj(GuestAddress(rsdp + 24)).unwrap();
        for table in [36, 44].map(|at| memory.read_obj(GuestAddress(xsdt + at)).unwrap()) {
            let length: u32 = memory.read_obj(GuestAddress(table + 4)).unwrap();
            assert_eq!(sum(&read(table, length as usize)), 0);
        }
        let fadt: u64 = memory.read_obj(GuestAddress(xsdt + 36)).unwrap();
        let dsdt: u64 = memory.read_obj(GuestAddress(fadt + 140)).unwrap();
        assert_eq!(read(dsdt, 4), b"DSDT");
    }
}
