//! Start a program: the child's steps between clone and exec.
//!
//! The child shares the agent's memory until it has become the program (as in `posix_spawn`), so
//! it costs no copy of page tables, and its failure is written straight into the [`Plan`]'s report.
//!
//! Invariant: between clone and exec the child allocates nothing, takes no lock and calls no libc
//! function that keeps state. The ids are changed by raw system calls, because glibc's functions would
//! change them for every thread it knows of, which are the agent's.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;

use nix::errno::Errno;

const STACK_BYTES: usize = 64 * 1024;

/// Everything about the program, prepared so that the child only makes system calls.
pub struct Plan {
    /// Paths to try, in order.
    pub programs: Vec<CString>,
    /// Arguments, the name first.
    pub argv: Vec<CString>,
    /// `KEY=value`.
    pub env: Vec<CString>,
    /// Working directory.
    pub cwd: CString,
    /// Go to `/` if `cwd` cannot be entered.
    pub cwd_optional: bool,
    /// Become this user; `None` leaves all ids as they are.
    pub ids: Option<Ids>,
    /// Become standard input, output and error. Each is 3 or more.
    pub stdio: [RawFd; 3],
    /// Standard input is a terminal and becomes the controlling one.
    pub terminal: bool,
    /// Join the group of processes whose list this is.
    pub group: Option<RawFd>,
    /// How many descriptors it may have: soft and hard limit.
    pub descriptors: (u64, u64),
}

/// Whom the program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What the child failed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Making the child.
    Clone,
    /// Group of processes.
    Group,
    /// Session, terminal or standard streams.
    Streams,
    /// User and groups.
    Ids,
    /// Working directory.
    Directory,
    /// The program itself.
    Program,
}

struct Child<'a> {
    plan: &'a Plan,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    failed: Option<(Step, Errno)>,
}

/// Start it. The pid is the leader of a new session and group.
pub fn spawn(plan: &Plan) -> Result<i32, (Step, Errno)> {
    let mut child =
        Child { plan, argv: pointers(&plan.argv), env: pointers(&plan.env), failed: None };
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is alive, aligned, and used by the child alone; with CLONE_VFORK this thread
    // sleeps until the child has exec'd or exited, so `child` and what it points to outlive their
    // use and are touched by one of the two at a time. `child_main` keeps this module's invariant.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len());
        libc::clone(child_main, top.cast(), flags, (&raw mut child).cast::<c_void>())
    };
    if pid < 0 {
        return Err((Step::Clone, Errno::last()));
    }
    // SAFETY: `child` is a live local; the volatile read sees what the child wrote through the
    // pointer, behind the compiler's back.
    match unsafe { ptr::read_volatile(&raw const child.failed) } {
        Some(failed) => Err(failed),
        None => Ok(pid),
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

extern "C" fn child_main(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its own `Child`, alive and not used by anyone else (see there).
    let child = unsafe { &mut *argument.cast::<Child<'_>>() };
    child.failed = Some(become_program(child));
    // SAFETY: leaves without running the parent's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Returns only on failure.
fn become_program(child: &Child<'_>) -> (Step, Errno) {
    let plan = child.plan;
    if let Some(group) = plan.group
        && let Err(errno) = join(group)
    {
        return (Step::Group, errno);
    }
    if let Err(errno) = take_streams(plan) {
        return (Step::Streams, errno);
    }
    reset_scores(plan.descriptors);
    if let Some(ids) = &plan.ids
        && let Err(errno) = take_ids(ids)
    {
        return (Step::Ids, errno);
    }
    if let Err(errno) = enter(&plan.cwd)
        && !(plan.cwd_optional && enter(c"/").is_ok())
    {
        return (Step::Directory, errno);
    }
    reset_signals();
    (Step::Program, execute(child))
}

fn check(result: c_int) -> Result<(), Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

fn check_long(result: libc::c_long) -> Result<(), Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

fn join(group: RawFd) -> Result<(), Errno> {
    // SAFETY: a static string of one byte; 0 is the writer itself.
    let written = unsafe { libc::write(group, c"0".as_ptr().cast(), 1) };
    if written < 0 { Err(Errno::last()) } else { Ok(()) }
}

fn take_streams(plan: &Plan) -> Result<(), Errno> {
    // SAFETY: plain system calls on numbers. The child has its own descriptor table.
    unsafe {
        check(libc::setsid())?;
        for (target, source) in (0..).zip(plan.stdio) {
            check(libc::dup2(source, target))?;
        }
        if plan.terminal {
            check(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
        }
        // The agent's own descriptors close by themselves; these are what it was started with.
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
        libc::umask(0o022);
    }
    Ok(())
}

/// The agent's own protection from the OOM killer and its many descriptors are not for programs.
fn reset_scores(descriptors: (u64, u64)) {
    let limit = libc::rlimit { rlim_cur: descriptors.0, rlim_max: descriptors.1 };
    // SAFETY: plain system calls on a live local and on static strings. A failure (no /proc) leaves it
    // as it is.
    unsafe {
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        let file =
            libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, c"0".as_ptr().cast(), 1);
            libc::close(file);
        }
    }
}

fn take_ids(ids: &Ids) -> Result<(), Errno> {
    // SAFETY: raw system calls (see the invariant); `groups` is alive and of the given length.
    unsafe {
        check_long(libc::syscall(libc::SYS_setgroups, ids.groups.len(), ids.groups.as_ptr()))?;
        check_long(libc::syscall(libc::SYS_setresgid, ids.gid, ids.gid, ids.gid))?;
        check_long(libc::syscall(libc::SYS_setresuid, ids.uid, ids.uid, ids.uid))
    }
}

fn enter(directory: &CStr) -> Result<(), Errno> {
    // SAFETY: a string that ends with NUL.
    check(unsafe { libc::chdir(directory.as_ptr()) })
}

/// Default dispositions and nothing blocked, whatever the agent and those before it had.
fn reset_signals() {
    /// The kernel's `sigaction`: handler, flags, restorer, mask.
    static DEFAULT: [u64; 4] = [0; 4];
    static EMPTY: u64 = 0;
    let old = ptr::null_mut::<u64>();
    // SAFETY: the child has its own table of dispositions (no CLONE_SIGHAND); both constants live for
    // ever and have the kernel's layout. Raw calls: glibc refuses the signals that it keeps for itself.
    // The two signals that cannot be changed are refused, which changes nothing.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const DEFAULT,
                old,
                size_of::<u64>(),
            );
        }
        let how = libc::SIG_SETMASK;
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const EMPTY, old, size_of::<u64>());
    }
}

/// As `execvp`: a program that is missing in one directory may be in the next, and a refusal is
/// reported only if none was found.
fn execute(child: &Child<'_>) -> Errno {
    let mut reason = Errno::ENOENT;
    for program in &child.plan.programs {
        // SAFETY: all three are alive; both arrays end with a null pointer.
        unsafe { libc::execve(program.as_ptr(), child.argv.as_ptr(), child.env.as_ptr()) };
        match Errno::last() {
            Errno::ENOENT | Errno::ENOTDIR => {}
            Errno::EACCES => reason = Errno::EACCES,
            errno => return errno,
        }
    }
    reason
}
