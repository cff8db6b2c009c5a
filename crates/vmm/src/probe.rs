//! Whether KVM works here, found out by running something.
//!
//! The same loop is timed at privilege level 3 and at level 0. Where both run at about the same speed the processor
//! executes guest kernels itself and a Linux guest runs at full speed (`hardware`). Where level 0 is far slower, KVM
//! interprets kernel code and a Linux guest would crawl or die: such a machine needs the software host
//! (`software`), as does one without KVM. Level 3 alone is enough for flat payloads.
//!
//! Whatever else runs on the machine can only make a turn of the loop slower, so the quickest of several counts.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kvm_ioctls::{VcpuExit, VcpuFd, VmFd};
use serde::Serialize;
use vm_memory::{Bytes, GuestAddress};

use crate::boot::flat;
use crate::kvm::{Host, cpuid_for_vcpu};
use crate::memory::Ram;
use crate::saved;

/// Turns of the loop, two instructions each.
const TURNS: u32 = 20_000;
/// Kernel code that takes this much longer than user code is not run by the processor.
const SLOWER_MAX: u32 = 20;
/// Least time taken for user code, so that noise does not decide.
const TICK: Duration = Duration::from_micros(50);
/// Most times that the loops are run. A processor that runs both shows it the first time, unless it was taken away.
const ATTEMPTS: u32 = 5;
/// Where the guest says that it is done.
const DONE_PORT: u16 = 0x10;

/// What was found.
#[derive(Debug, Serialize)]
struct Findings {
    /// `hardware` or `software`.
    mode: &'static str,
    /// Flat payloads run here.
    flat: bool,
    /// Why, for people.
    reason: String,
    /// What to do about it, for people.
    advice: Option<&'static str>,
    /// Time of the loop at level 3.
    user_us: Option<u128>,
    /// Time of the loop at level 0.
    kernel_us: Option<u128>,
}

/// Prints the findings as JSON.
pub fn print() -> ExitCode {
    let findings = probe();
    println!("{}", serde_json::to_string_pretty(&findings).expect("plain strings and numbers"));
    ExitCode::SUCCESS
}

/// Prints what a machine that boots here will need.
pub fn print_needs() -> ExitCode {
    let host = match Host::open() {
        Ok(host) => host,
        Err(error) => {
            eprintln!("ramet-vmm: {}", unusable(&error).reason);
            return ExitCode::FAILURE;
        }
    };
    let needs = saved::needs(cpuid_for_vcpu(host.supported_cpuid(), 0, 1).as_slice());
    println!("{}", serde_json::to_string(&needs).expect("plain strings and numbers"));
    ExitCode::SUCCESS
}

fn probe() -> Findings {
    let host = match Host::open() {
        Ok(host) => host,
        Err(error) => return unusable(&error),
    };
    let (mut user, mut kernel) = (Loop::new(&host, Level::User), Loop::new(&host, Level::Kernel));
    quickest(|| timed(&mut user), || timed(&mut kernel))
}

/// The findings of the quickest turns. Those of user code are all taken: one that was held up would excuse a kernel loop
/// that KVM interprets. Those of kernel code end as soon as one is good enough.
fn quickest(
    mut user: impl FnMut() -> Result<Duration, String>,
    mut kernel: impl FnMut() -> Result<Duration, String>,
) -> Findings {
    let mut user_time = user();
    for _ in 1..ATTEMPTS {
        user_time = quicker(user_time, &mut user);
    }
    let mut kernel_time = kernel();
    for _ in 1..ATTEMPTS {
        match (&user_time, &kernel_time) {
            (Ok(user), Ok(kernel)) if !runs_both(*user, *kernel) => {}
            _ => break,
        }
        kernel_time = quicker(kernel_time, &mut kernel);
    }
    judge(user_time, kernel_time)
}

/// The shorter time of the best turn until now and one more. A failure of the first stays one.
fn quicker(
    best: Result<Duration, String>,
    turn: &mut impl FnMut() -> Result<Duration, String>,
) -> Result<Duration, String> {
    best.map(|best| turn().map_or(best, |time| time.min(best)))
}

fn runs_both(user: Duration, kernel: Duration) -> bool {
    kernel <= user.max(TICK) * SLOWER_MAX
}

fn unusable(error: &kvm_ioctls::Error) -> Findings {
    let (reason, advice) = match error.errno() {
        libc::ENOENT => (
            "there is no /dev/kvm".to_owned(),
            "enable virtualization in the firmware or nested virtualization in the cloud, and load \
             the module kvm-intel or kvm-amd",
        ),
        libc::EACCES | libc::EPERM => (
            "/dev/kvm may not be opened".to_owned(),
            "add the user to the group kvm, and log in again",
        ),
        _ => (format!("/dev/kvm does not work: {error}"), "see the kernel's log"),
    };
    let advice = Some(advice);
    Findings { mode: "software", flat: false, reason, advice, user_us: None, kernel_us: None }
}

fn judge(user: Result<Duration, String>, kernel: Result<Duration, String>) -> Findings {
    let micros = |time: &Result<Duration, String>| time.as_ref().ok().map(Duration::as_micros);
    let (user_us, kernel_us) = (micros(&user), micros(&kernel));
    let flat = user.is_ok();
    let (mode, reason) = match (user, kernel) {
        (Ok(user), Ok(kernel)) if runs_both(user, kernel) => {
            ("hardware", "KVM runs guest kernels on the processor".to_owned())
        }
        (Ok(user), Ok(kernel)) => {
            let times = kernel.as_micros() / user.as_micros().max(1);
            ("software", format!("KVM interprets guest kernels here, {times} times slower"))
        }
        (Err(error), _) | (_, Err(error)) => ("software", format!("KVM does not run: {error}")),
    };
    let advice = (mode == "software").then_some(
        "nothing has to be done: guests run in the software host, complete but slower; for full \
         speed use a machine with VT-x or AMD-V",
    );
    Findings { mode, flat, reason, advice, user_us, kernel_us }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    User,
    Kernel,
}

/// A machine that runs the loop.
struct Loop {
    vcpu: VcpuFd,
    // The processor is of this machine; nothing more is asked of it.
    _vm: VmFd,
    ram: Ram,
}

impl Loop {
    /// A machine that has run the loop once, which brings everything into place.
    fn new(host: &Host, level: Level) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let ram = Ram::anonymous(4 << 20, false).map_err(|error| text(&error))?;
        let vm = host.build_vm(&ram).map_err(|error| text(&error))?;
        let vcpu = vm.create_vcpu(0).map_err(|error| text(&error))?;
        vcpu.set_cpuid2(&cpuid_for_vcpu(host.supported_cpuid(), 0, 1)).map_err(|e| text(&e))?;
        flat::write_all(&ram, &code()).map_err(|error| text(&error))?;
        flat::set_registers(&vcpu, &ram, 0).map_err(|error| text(&error))?;
        if level == Level::Kernel {
            lower(&vcpu).map_err(|error| text(&error))?;
        }
        let mut one = Self { vcpu, _vm: vm, ram };
        one.turn()?;
        Ok(one)
    }

    /// How long the loop takes.
    fn turn(&mut self) -> Result<Duration, String> {
        let before = self.count()?;
        let began = Instant::now();
        until_port(&mut self.vcpu)?;
        let time = began.elapsed();
        match self.count()? == before {
            true => Err("the guest did not do its work".into()),
            false => Ok(time),
        }
    }

    fn count(&self) -> Result<u32, String> {
        self.ram.guest().read_obj(GuestAddress(COUNTER)).map_err(|error| error.to_string())
    }
}

fn timed(one: &mut Result<Loop, String>) -> Result<Duration, String> {
    one.as_mut().map_err(|error| error.clone())?.turn()
}

const COUNTER: u64 = 0x0020_0000;

/// `start: mov ecx, TURNS; dec ecx; jnz -4; inc dword [COUNTER]; out DONE_PORT, al; jmp start`
fn code() -> Vec<u8> {
    let mut code = vec![0xb9];
    code.extend(TURNS.to_le_bytes());
    code.extend([0xff, 0xc9, 0x75, 0xfc]);
    code.extend([0xff, 0x04, 0x25]);
    code.extend(u32::try_from(COUNTER).unwrap_or(0).to_le_bytes());
    code.extend([0xe6, u8::try_from(DONE_PORT).unwrap_or(0)]);
    let back = i8::try_from(code.len() + 2).unwrap_or(0);
    code.extend([0xeb, back.wrapping_neg().cast_unsigned()]);
    code
}

/// Privilege level 0 instead of 3.
fn lower(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut sregs = vcpu.get_sregs()?;
    let segments =
        [&mut sregs.cs, &mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss];
    for segment in segments {
        (segment.dpl, segment.selector) = (0, segment.selector & !3);
    }
    vcpu.set_sregs(&sregs)
}

fn until_port(vcpu: &mut VcpuFd) -> Result<(), String> {
    match vcpu.run() {
        Ok(VcpuExit::IoOut(DONE_PORT, _)) => Ok(()),
        Ok(exit) => Err(format!("unexpected exit {exit:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Result<Duration, String> = Ok(Duration::from_micros(20));

    #[test]
    fn both_fast_is_hardware() {
        assert_eq!(judge(FAST, Ok(Duration::from_micros(40))).mode, "hardware");
    }

    #[test]
    fn an_interpreted_kernel_is_software() {
        let findings = judge(FAST, Ok(Duration::from_millis(40)));
        assert_eq!((findings.mode, findings.flat), ("software", true));
    }

    #[test]
    fn a_processor_that_was_busy_elsewhere_is_asked_again() {
        let taken_away = Duration::from_millis(40);
        let mut times = [taken_away, taken_away, Duration::from_micros(40)].into_iter();
        let findings = quickest(|| FAST, || times.next().ok_or_else(String::new));
        assert_eq!((findings.mode, findings.kernel_us), ("hardware", Some(40)));
        assert_eq!(quickest(|| FAST, || Ok(taken_away)).mode, "software");
        let mut times = [taken_away, Duration::from_micros(40)].into_iter();
        let user = || times.next().map_or(FAST, Ok);
        assert_eq!(
            quickest(user, || Ok(taken_away)).mode,
            "software",
            "user code was held up once"
        );
    }

    #[test]
    fn a_failing_kvm_is_software() {
        let findings = judge(Err("no".into()), Err("no".into()));
        assert_eq!((findings.mode, findings.flat), ("software", false));
        assert!(findings.advice.is_some());
    }
}
