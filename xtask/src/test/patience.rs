//! How slow this machine is just now, beside a quiet development machine: a fixed piece of emulated work is timed.
//!
//! All limits of tests and programs stretch with it, so a machine that is slow, or busy with other things, is not
//! «hanging». The work is a loop of a few instructions that the emulator runs as its firmware, with nothing else in the
//! machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ramet_tests::patience::FACTOR_MAX;

/// What the work takes on a quiet development machine.
const USUAL: Duration = Duration::from_millis(280);
/// Turns of the loop.
const TURNS: u32 = 100_000_000;
/// It is done so many times, and the one in the middle counts.
const TIMES: usize = 3;
/// Firmware is a whole segment, of which the processor starts at `RESET`.
const SEGMENT: usize = 0x1_0000;
const RESET: usize = 0xfff0;
/// How the emulator ends when 0x10 is written to its exit port.
const DONE: i32 = 0x10 << 1 | 1;

/// How many times as slow as usual; at least 1.
pub fn measure() -> Result<f64> {
    let directory = tempfile::tempdir()?;
    let firmware = directory.path().join("loop");
    fs::write(&firmware, code())?;
    let mut times = (0..TIMES).map(|_| run(&firmware)).collect::<Result<Vec<_>>>()?;
    times.sort_unstable();
    let factor = times[TIMES / 2].as_secs_f64() / USUAL.as_secs_f64();
    Ok(factor.clamp(1.0, FACTOR_MAX))
}

fn run(firmware: &Path) -> Result<Duration> {
    let mut emulator = Command::new("qemu-system-x86_64");
    emulator.args(
        "-no-user-config -nodefaults -display none -no-reboot -M q35 -accel tcg -m 16".split(' '),
    );
    emulator.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-bios"]).arg(firmware);
    let began = Instant::now();
    let status = emulator.stdin(Stdio::null()).status().context("cannot start the emulator")?;
    if status.code() != Some(DONE) {
        bail!("the emulator ended with {status} instead of doing a loop");
    }
    Ok(began.elapsed())
}

/// A segment of code for a processor that has just been switched on.
fn code() -> Vec<u8> {
    let mut code = vec![0xfa, 0x31, 0xc0, 0x8e, 0xd8]; // cli; xor ax, ax; mov ds, ax
    code.extend([0x66, 0xb9]); // mov ecx, TURNS
    code.extend(TURNS.to_le_bytes());
    code.extend([0xfe, 0x06, 0x00, 0x20]); // turn: inc byte [0x2000]
    code.extend([0x67, 0xe2, 0xf9]); // loop turn
    code.extend([0xb0, 0x10, 0xe6, 0xf4, 0xf4]); // mov al, 0x10; out 0xf4, al; hlt
    code.resize(SEGMENT, 0);
    code[RESET..RESET + 5].copy_from_slice(&[0xea, 0, 0, 0, 0xf0]); // jmp 0xf000:0
    code
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loop_ends() {
        let factor = super::measure().expect("a measurement");
        assert!((1.0..=ramet_tests::patience::FACTOR_MAX).contains(&factor), "{factor}");
    }
}
