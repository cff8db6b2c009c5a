//! Registers and rings, against drivers that do it right and drivers that do not.
#![expect(clippy::cast_possible_truncation, reason = "RAM has 1 MiB")]

use proptest::prelude::*;
use virtio_bindings::virtio_config::VIRTIO_F_IN_ORDER;

use super::mock::*;
use super::*;

const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
const OK: u32 = VIRTIO_CONFIG_S_FEATURES_OK;
const RUN: u32 = VIRTIO_CONFIG_S_DRIVER_OK;

fn device() -> Transport {
    Transport::new(77, 1 << 5, &[8, 16], vec![1, 2, 3, 4, 5])
}

#[test]
fn a_device_introduces_itself() {
    let device = device();
    assert_eq!(get(&device, register::VIRTIO_MMIO_MAGIC_VALUE), MAGIC);
    assert_eq!(get(&device, register::VIRTIO_MMIO_VERSION), 2);
    assert_eq!(get(&device, register::VIRTIO_MMIO_DEVICE_ID), 77);
    assert_eq!(offered(&device), VERSION_1 | EVENT_IDX | 1 << 5);
    set(&device, register::VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
    assert_eq!(get(&device, register::VIRTIO_MMIO_DEVICE_FEATURES), 0);
    let sizes = [0, 1, 2, u32::MAX].map(|select| {
        set(&device, register::VIRTIO_MMIO_QUEUE_SEL, select);
        get(&device, register::VIRTIO_MMIO_QUEUE_NUM_MAX)
    });
    assert_eq!(sizes, [8, 16, 0, 0]);
}

#[test]
fn the_configuration_is_read_at_any_width() {
    let device = device();
    let read = |offset, width| {
        let mut data = vec![0xee; width];
        device.read(0x100 + offset, &mut data);
        data
    };
    assert_eq!(read(0, 1), [1]);
    assert_eq!(read(1, 2), [2, 3]);
    assert_eq!(read(0, 8), [1, 2, 3, 4, 5, 0xee, 0xee, 0xee]);
    assert_eq!(read(5, 4), [0xee; 4]);
    assert_eq!(read(u64::MAX - 0x100, 4), [0xee; 4]);
}

#[test]
fn every_offset_and_width_can_be_read_and_written() {
    let device = device();
    for offset in (0..0x210).chain([u64::from(u32::MAX), u64::MAX]) {
        for width in 0..=16 {
            device.read(offset, &mut vec![0; width]);
            for value in [0, 1, 7, 0xff] {
                let kick = device.write(offset, &vec![value; width]);
                assert!(kick.is_none_or(|queue| queue < QUEUES_MAX));
            }
        }
    }
    assert!(!device.queues().live(), "{:#x}", status(&device));
}

#[test]
fn notices_name_queues_that_can_exist() {
    let device = device();
    let notify = |queue| set(&device, register::VIRTIO_MMIO_QUEUE_NOTIFY, queue);
    assert_eq!(notify(0), Some(0));
    assert_eq!(notify(3), Some(3));
    assert_eq!(notify(4), None);
    assert_eq!(notify(7), None);
    assert_eq!(notify(u32::MAX), None);
    assert_eq!(device.write(u64::from(register::VIRTIO_MMIO_QUEUE_NOTIFY), &[0, 0]), None);
}

#[test]
fn impossible_queue_sizes_are_not_taken() {
    let device = device();
    for size in [0, 3, 16, 65535, 65536, u32::MAX] {
        set(&device, register::VIRTIO_MMIO_QUEUE_NUM, size);
        assert_eq!(device.queues().queues[0].size(), 8);
    }
    set(&device, register::VIRTIO_MMIO_QUEUE_NUM, 4);
    assert_eq!(device.queues().queues[0].size(), 4);
}

#[test]
fn features_that_were_not_offered_are_refused() {
    for features in [VERSION_1 | 1 << 6, VERSION_1 | 1 << VIRTIO_F_IN_ORDER, u64::MAX, 0, 1 << 5] {
        let device = device();
        accept(&device, features);
        assert_eq!(set_status(&device, 3 | OK), 3, "{features:#x}");
        assert_eq!(set_status(&device, 3 | OK | RUN), 3, "{features:#x}");
        assert!(!device.queues().live());
    }
}

#[test]
fn a_driver_that_agreed_to_nothing_does_not_run() {
    let device = device();
    accept(&device, VERSION_1);
    assert_eq!(set_status(&device, 3 | RUN), 3);
    assert!(!device.queues().live());
    assert_eq!(set_status(&device, 3 | OK), 3 | OK);
    assert_eq!(set_status(&device, 3 | OK | RUN), 3 | OK | RUN);
    assert!(device.queues().live());
}

#[test]
fn what_was_agreed_stays_until_a_reset() {
    let device = device();
    let memory = memory();
    let rings = bring_up(&device, VERSION_1 | EVENT_IDX, 2, 8);
    let before = device.state();
    accept(&device, VERSION_1);
    set(&device, register::VIRTIO_MMIO_QUEUE_SEL, before.queue_select);
    set(&device, register::VIRTIO_MMIO_QUEUE_NUM, 2);
    Ring { table: 0x8000, ..rings[1].clone() }.place(&device);
    set(&device, register::VIRTIO_MMIO_QUEUE_READY, 0);
    set(&device, register::VIRTIO_MMIO_DRIVER_FEATURES_SEL, before.driver_features_select);
    assert_eq!(device.state(), before);
    assert!(device.queues().queues[1].is_valid(&memory));
    assert!(device.queues().queues[1].event_idx_enabled());
    device.mark_used();
    set_status(&device, 0);
    assert!(device.queues().was_reset);
    let fresh = self::device().state();
    assert_eq!(device.state(), fresh);
}

#[test]
fn status_bits_only_go_away_by_a_reset() {
    let device = device();
    bring_up(&device, VERSION_1, 2, 8);
    assert_eq!(set_status(&device, 1), 15);
    set_status(&device, VIRTIO_CONFIG_S_FAILED);
    assert!(!device.queues().live());
    assert_eq!(set_status(&device, 15), 15 | VIRTIO_CONFIG_S_FAILED);
    bring_up(&device, VERSION_1, 2, 8);
    device.queues().condemn();
    assert_eq!(set_status(&device, 15), 15 | VIRTIO_CONFIG_S_NEEDS_RESET);
    assert!(!device.queues().live());
    bring_up(&device, VERSION_1, 2, 8);
    assert!(device.queues().live());
}

#[test]
fn interrupts_are_acknowledged_bit_by_bit() {
    let device = device();
    device.mark_used();
    set(&device, register::VIRTIO_MMIO_INTERRUPT_ACK, 2);
    assert_eq!(get(&device, register::VIRTIO_MMIO_INTERRUPT_STATUS), 1);
    set(&device, register::VIRTIO_MMIO_INTERRUPT_ACK, 1);
    assert_eq!(get(&device, register::VIRTIO_MMIO_INTERRUPT_STATUS), 0);
}

/// A queue that is ready, wherever it lies.
fn ring_at(table: u64, avail: u64, used: u64) -> (Transport, Ring) {
    let device = device();
    let ring = Ring { table, avail, used, ..Ring::new(0, 8) };
    accept(&device, VERSION_1);
    set_status(&device, 3 | OK);
    ring.register(&device);
    set_status(&device, 3 | OK | RUN);
    (device, ring)
}

#[test]
fn rings_outside_of_ram_are_not_used() {
    let memory = memory();
    let far = [RAM - 16, RAM, 1 << 40, u64::MAX - 15];
    let places = far
        .iter()
        .flat_map(|far| [(*far, 0x2000, 0x3000), (0x1000, *far, 0x3000), (0x1000, 0x2000, *far)]);
    for (table, avail, used) in places {
        let (device, _) = ring_at(table, avail, used);
        let worked = serve(&mut device.queues().queues[0], &memory, |_| unreachable!());
        assert_eq!(worked.unwrap(), Progress::default(), "{table:#x} {avail:#x} {used:#x}");
    }
    assert_eq!(snapshot(&memory), vec![0; RAM as usize]);
}

#[test]
fn rings_at_odd_addresses_stay_where_they_were() {
    let (device, _) = ring_at(0x1001, 0x2001, 0x3002);
    let queue = device.state().queues[0].clone();
    assert_eq!((queue.desc_table, queue.avail_ring, queue.used_ring), (0, 0, 0));
}

#[test]
fn a_ring_at_address_0_that_offers_something_is_broken() {
    let memory = memory();
    memory_index(&memory, 2, 1);
    let (device, _) = ring_at(0, 0, 0);
    let worked = serve(&mut device.queues().queues[0], &memory, |_| unreachable!());
    assert!(worked.is_err());
    assert!(!device.queues().settle(worked));
    assert!(condemned(&device));
}

fn memory_index(memory: &Guest, address: u64, index: u16) {
    use vm_memory::Bytes;
    memory.write_obj(index, vm_memory::GuestAddress(address)).unwrap();
}

#[test]
fn an_index_that_jumps_is_an_error() {
    for (index, broken) in [(8, false), (9, true), (0x8000, true), (0xffff, true)] {
        let memory = memory();
        let (device, ring) = ring_at(0x1000, 0x2000, 0x3000);
        ring.set_index(&memory, index);
        let mut taken = 0;
        let worked = serve(&mut device.queues().queues[0], &memory, |_| {
            taken += 1;
            0
        });
        assert_eq!(worked.is_err(), broken);
        assert_eq!(taken, if broken { 0 } else { 8 });
    }
}

#[test]
fn a_guest_that_refills_while_it_is_served_gets_one_queue_at_a_time() {
    bounded(|| {
        let memory = memory();
        let (device, mut ring) = ring_at(0x1000, 0x2000, 0x3000);
        ring.offer(&memory, 0);
        let mut taken = 0;
        let worked = serve(&mut device.queues().queues[0], &memory, |_| {
            taken += 1;
            ring.offer(&memory, 0);
            0
        });
        assert_eq!(worked.unwrap(), Progress { interrupt: true, more: true });
        assert_eq!(taken, 8);
    });
}

#[test]
fn what_is_left_is_served_after_a_kick_of_its_own() {
    let notices = std::sync::Arc::new(crate::vcpu::Notices::new().unwrap());
    let devices = vec![device(), device()];
    let bus = crate::devices::Bus::new(devices, std::sync::Arc::clone(&notices));
    bus.interrupt(1);
    assert_eq!(notices.kicked.load(Ordering::Acquire), 0);
    let more = Progress { interrupt: false, more: true };
    assert!(bus.virtio(1).queues().settle(Ok(more)));
    bus.interrupt(1);
    assert_eq!(notices.kicked.swap(0, Ordering::AcqRel), 1 << QUEUES_MAX);
    bus.interrupt(1);
    assert_eq!(notices.kicked.load(Ordering::Acquire), 0);
}

#[derive(Debug, Clone)]
enum Access {
    Status(u32),
    Features(u64),
    Register(u32, u32),
    Used,
    Served,
}

fn access() -> impl Strategy<Value = Access> {
    let bits = prop_oneof![Just(0), Just(3), Just(3 | OK), Just(3 | OK | RUN), any::<u32>()];
    let features = prop_oneof![Just(VERSION_1), Just(VERSION_1 | EVENT_IDX | 1 << 5), any::<u64>()];
    let value = prop_oneof![0..8u32, (0..16u32).prop_map(|n| n << 12), any::<u32>()];
    let registers = (0..0x40u32).prop_map(|n| n * 4);
    prop_oneof![
        2 => bits.prop_map(Access::Status),
        1 => features.prop_map(Access::Features),
        6 => (registers, value).prop_map(|(register, value)| Access::Register(register, value)),
        1 => Just(Access::Used),
        1 => Just(Access::Served),
    ]
}

fn perform(device: &Transport, memory: &Guest, access: &Access) {
    match access {
        Access::Status(bits) => drop(set(device, register::VIRTIO_MMIO_STATUS, *bits)),
        Access::Features(features) => accept(device, *features),
        Access::Register(register, value) => drop(set(device, *register, *value)),
        Access::Used => device.mark_used(),
        Access::Served => {
            let mut inside = device.queues();
            if inside.live() {
                let worked = serve(&mut inside.queues[0], memory, |_| 0);
                inside.settle(worked);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_was_negotiated_can_be_restored(
        accesses in prop::collection::vec(access(), 0..60),
        filling in any::<u8>(),
    ) {
        let memory = Guest::from_ranges(&[(vm_memory::GuestAddress(0), 0x1_0000)]).unwrap();
        memory_index(&memory, 2, filling.into());
        let before = device();
        accesses.iter().for_each(|access| perform(&before, &memory, access));
        let state = before.state();
        let stored = postcard::to_stdvec(&state).unwrap();
        let mut after = device();
        let restored = after.restore(&postcard::from_bytes(&stored).unwrap());
        prop_assert_eq!(restored, Ok(()));
        prop_assert_eq!(after.state(), state);
        prop_assert_eq!(after.queues().live(), before.queues().live());
    }
}

#[test]
fn a_state_of_another_device_is_refused() {
    let state = device().state();
    let refuses = |mut other: Transport, state: &TransportState| other.restore(state).is_err();
    assert!(refuses(Transport::new(78, 1 << 5, &[8, 16], Vec::new()), &state));
    assert!(refuses(Transport::new(77, 1 << 5, &[8], Vec::new()), &state));
    let broken = |change: &dyn Fn(&mut QueueRecord)| {
        let mut state = device().state();
        change(&mut state.queues[1]);
        refuses(device(), &state)
    };
    assert!(broken(&|queue| queue.max_size = 0));
    assert!(broken(&|queue| queue.size = 0));
    assert!(broken(&|queue| queue.size = 3));
    assert!(broken(&|queue| queue.size = 32));
    assert!(broken(&|queue| queue.desc_table = 1));
    assert!(broken(&|queue| queue.avail_ring = 1));
    assert!(broken(&|queue| queue.used_ring = 1));
    assert!(!broken(&|queue| queue.next_avail = 0xffff));
    let more = Transport::new(77, 1 << 6, &[8, 16], Vec::new());
    accept(&more, VERSION_1 | 1 << 6);
    assert!(!refuses(device(), &more.state()));
    set_status(&more, 3 | OK);
    assert!(refuses(device(), &more.state()));
}
