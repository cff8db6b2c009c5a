//! virtio-rng: the host's random numbers. Stateless, so a fork inherits nothing from it.

use std::io::Write;

use virtio_queue::DescriptorChain;

use super::{Transport, serve};
use crate::memory::Guest;

const KIND: u32 = 4;
const QUEUE: u16 = 16;
/// Most that one request gets; the guest asks again if it wants more.
const BYTES_MAX: usize = 4096;

/// The device's registers.
pub fn transport() -> Transport {
    Transport::new(KIND, 0, &[QUEUE], Vec::new())
}

/// Answers what waits. Whether the guest is to be interrupted.
pub fn serve_kick(transport: &Transport, memory: &Guest) -> bool {
    let mut inside = transport.queues();
    inside.was_reset = false;
    if !inside.live() {
        return false;
    }
    let worked = serve(&mut inside.queues[0], memory, |chain| answer(chain, memory));
    inside.settle(worked)
}

fn answer(chain: DescriptorChain<&Guest>, memory: &Guest) -> u32 {
    let Ok(mut writer) = chain.writer::<()>(memory) else { return 0 };
    let mut bytes = [0; BYTES_MAX];
    let bytes = &mut bytes[..writer.available_bytes().min(BYTES_MAX)];
    if crate::sys::fill_random(bytes).is_err() {
        return 0;
    }
    writer.write(bytes).ok().and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
