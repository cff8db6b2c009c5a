//! ioctls and system calls without a safe wrapper elsewhere.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_ulong};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::errno::Errno;
use ramet_proto::agent::Terminal;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Load the kernel module in this file.
pub fn load_module(file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: an open descriptor, an empty parameter string, no flags.
    let result =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes that could be read now.
pub fn readable_bytes(file: BorrowedFd<'_>) -> usize {
    let mut count: c_int = 0;
    // SAFETY: FIONREAD writes one int, to a live local.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    if result < 0 { 0 } else { usize::try_from(count).unwrap_or(0) }
}

/// Forget what is cached of a block device, after writing what must be written.
pub fn drop_cache(device: BorrowedFd<'_>) -> io::Result<()> {
    const BLKFLSBUF: c_ulong = 0x1261;
    // SAFETY: BLKFLSBUF takes no argument.
    check(unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF, 0) }).map(|_| ())
}

/// Whether a block device refuses to be written from now on.
pub fn set_read_only(device: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
    const BLKROSET: c_ulong = 0x125d;
    let value = c_int::from(read_only);
    // SAFETY: BLKROSET reads one int, a live local.
    check(unsafe { libc::ioctl(device.as_raw_fd(), BLKROSET, &raw const value) }).map(|_| ())
}

/// What names of programs' own attributes begin with.
const USER: &str = "user.";
/// Most bytes of a file's attributes that are told, names and values each.
const ATTRIBUTES_BYTES: usize = 4096;

/// Extended attributes of programs, without `user.`, as far as they are text and fit. A symlink has none.
pub fn attributes(path: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return found };
    let mut names = vec![0_u8; ATTRIBUTES_BYTES];
    // SAFETY: a string that ends with NUL, and a live buffer of the given length.
    let count = unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    names.truncate(usize::try_from(count).unwrap_or(0));
    let mut room = ATTRIBUTES_BYTES;
    for name in names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok()) {
        let Some(short) = name.strip_prefix(USER) else { continue };
        let Ok(full) = CString::new(name) else { continue };
        let mut value = vec![0_u8; room];
        // SAFETY: two strings that end with NUL, and a live buffer of the given length.
        let count = unsafe {
            libc::lgetxattr(path.as_ptr(), full.as_ptr(), value.as_mut_ptr().cast(), value.len())
        };
        let Ok(count) = usize::try_from(count) else { continue };
        value.truncate(count);
        if let Ok(text) = String::from_utf8(value) {
            room -= text.len();
            found.insert(short.to_owned(), text);
        }
    }
    found
}

/// Give a file attributes, below `user.`.
pub fn set_attributes(
    file: BorrowedFd<'_>,
    attributes: &BTreeMap<String, String>,
) -> io::Result<()> {
    for (name, value) in attributes {
        let name = CString::new(format!("{USER}{name}"))?;
        // SAFETY: an open descriptor, a string that ends with NUL, and a live buffer of the given length.
        check(unsafe {
            libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        })?;
    }
    Ok(())
}

/// Give a terminal its size; whoever runs on it gets SIGWINCH.
pub fn resize_terminal(terminal: BorrowedFd<'_>, size: Terminal) -> io::Result<()> {
    let size =
        libc::winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads one winsize, a live local.
    check(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })?;
    Ok(())
}

/// Mix bytes into the kernel's random generator, count them as entropy, and reseed it at once.
pub fn add_entropy(urandom: BorrowedFd<'_>, bytes: &[u8; 64]) -> io::Result<()> {
    const RNDADDENTROPY: c_ulong = 0x4008_5203;
    const RNDRESEEDCRNG: c_ulong = 0x5207;
    #[repr(C)]
    struct Pool {
        bits: c_int,
        bytes: c_int,
        content: [u8; 64],
    }
    let pool = Pool { bits: 512, bytes: 64, content: *bytes };
    // SAFETY: RNDADDENTROPY reads the header and as many bytes as it says, all in the live local;
    // RNDRESEEDCRNG takes no argument.
    unsafe {
        check(libc::ioctl(urandom.as_raw_fd(), RNDADDENTROPY, &raw const pool))?;
        check(libc::ioctl(urandom.as_raw_fd(), RNDRESEEDCRNG, 0))?;
    }
    Ok(())
}

/// Run the calling thread before all ordinary ones. What it starts does not inherit that.
pub fn realtime_priority(priority: c_int) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: reads one sched_param, a live local; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) })?;
    Ok(())
}

/// Run the calling thread on this vCPU only.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu)?;
    Ok(nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?)
}

/// Sleep until woken, unless `word` is no longer `expected`. May return early.
pub fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the word is alive during the call; no timeout. Every result means: look again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Wake everyone who sleeps on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is only used as an address.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            c_int::MAX,
        );
    }
}

/// Hold back every signal that can be held back, for this thread and those it starts.
pub fn block_all_signals() -> io::Result<()> {
    let all = nix::sys::signal::SigSet::all();
    Ok(all.thread_block()?)
}

/// Is there a process that catches this signal? Reads its mask of caught signals.
pub fn mask_has(mask: u64, signal: c_int) -> bool {
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

/// Send any signal, including the real-time ones that `nix` has no names for. A negative `pid` is
/// a group.
pub fn kill(pid: i32, signal: c_int) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::kill(pid, signal) })?;
    Ok(())
}

/// The wall clock, in nanoseconds since 1970.
pub fn wall_clock() -> io::Result<Duration> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME)?;
    Ok(Duration::from(now))
}

fn interface(name: &str) -> libc::ifreq {
    // SAFETY: an ifreq of zeros is valid: an empty name and zeros in every member of the union.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from.cast_signed() as c_char;
    }
    request
}

fn internet_address(address: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = address.octets().map(|byte| byte.cast_signed() as c_char);
    libc::sockaddr {
        sa_family: u16::try_from(libc::AF_INET).unwrap_or(2),
        sa_data: [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0],
    }
}

/// Bring an interface up.
pub fn interface_up(socket: impl AsFd, name: &str) -> io::Result<()> {
    set_up(socket, name, true)
}

/// Take an interface down. One that is only another name of an address goes.
pub fn interface_down(socket: impl AsFd, name: &str) -> io::Result<()> {
    set_up(socket, name, false)
}

fn set_up(socket: impl AsFd, name: &str, wanted: bool) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let mut request = interface(name);
    let up = libc::c_short::try_from(libc::IFF_UP).unwrap_or(1);
    // SAFETY: both ioctls read the name and read or write the flags of the live local; after
    // SIOCGIFFLAGS the flags are the union's member in use.
    unsafe {
        check(libc::ioctl(socket, libc::SIOCGIFFLAGS, &raw mut request))?;
        let flags = request.ifr_ifru.ifru_flags;
        request.ifr_ifru.ifru_flags = if wanted { flags | up } else { flags & !up };
        check(libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request))?;
    }
    Ok(())
}

/// Give an interface its IPv4 address.
pub fn interface_address(
    socket: impl AsFd,
    name: &str,
    address: Ipv4Addr,
    mask: Ipv4Addr,
) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let mut request = interface(name);
    request.ifr_ifru.ifru_addr = internet_address(address);
    // SAFETY: reads the name and the address of the live local.
    check(unsafe { libc::ioctl(socket, libc::SIOCSIFADDR, &raw const request) })?;
    request.ifr_ifru.ifru_netmask = internet_address(mask);
    // SAFETY: as above.
    check(unsafe { libc::ioctl(socket, libc::SIOCSIFNETMASK, &raw const request) })?;
    Ok(())
}

/// Send everything that is not local to this gateway.
pub fn default_route(socket: impl AsFd, gateway: Ipv4Addr) -> io::Result<()> {
    // SAFETY: a rtentry of zeros is valid: numbers, null pointers and zero addresses.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = internet_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = internet_address(Ipv4Addr::UNSPECIFIED);
    route.rt_gateway = internet_address(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: reads the live local; its device pointer is null, which means: by the gateway.
    check(unsafe { libc::ioctl(socket, libc::SIOCADDRT, &raw const route) })?;
    Ok(())
}

/// An address of an interface, as the kernel takes it.
#[repr(C)]
struct AddressV6 {
    address: [u8; 16],
    prefix: u32,
    interface: c_int,
}

fn change_address_v6(name: &str, address: Ipv6Addr, prefix: u8, what: c_ulong) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let interface = interface_number(name)?;
    let request = AddressV6 { address: address.octets(), prefix: prefix.into(), interface };
    // SAFETY: both ioctls read such a structure, the live local.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw const request) })?;
    Ok(())
}

fn interface_number(name: &str) -> io::Result<c_int> {
    let number = nix::net::if_::if_nametoindex(name)?;
    c_int::try_from(number).map_err(io::Error::other)
}

/// Give an interface one more IPv6 address. One that it has is no error.
pub fn interface_address_v6(name: &str, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
    match change_address_v6(name, address, prefix, libc::SIOCSIFADDR) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        result => result,
    }
}

/// Take an IPv6 address from an interface.
pub fn remove_address_v6(name: &str, address: Ipv6Addr, prefix: u8) -> io::Result<()> {
    change_address_v6(name, address, prefix, libc::SIOCDIFADDR)
}

/// Send everything of IPv6 that is not local to this gateway.
pub fn default_route_v6(name: &str, gateway: Ipv6Addr) -> io::Result<()> {
    /// `struct in6_rtmsg`.
    #[repr(C)]
    struct Route {
        destination: [u8; 16],
        source: [u8; 16],
        gateway: [u8; 16],
        kind: u32,
        destination_length: u16,
        source_length: u16,
        metric: u32,
        info: c_ulong,
        flags: u32,
        interface: c_int,
    }
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let route = Route {
        destination: [0; 16],
        source: [0; 16],
        gateway: gateway.octets(),
        kind: 0,
        destination_length: 0,
        source_length: 0,
        metric: 1024,
        info: 0,
        flags: u32::from(libc::RTF_UP | libc::RTF_GATEWAY),
        interface: interface_number(name)?,
    };
    // SAFETY: reads such a structure, the live local.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) })?;
    Ok(())
}

/// Whether a directory of an overlay's writable layer hides what lies below it.
pub fn is_opaque(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return false };
    let name = c"trusted.overlay.opaque";
    let mut value = [0u8; 4];
    // SAFETY: both strings end with NUL and live; at most the length of the live local is written.
    let length = unsafe {
        libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    length == 1 && value[0] == b'y'
}

/// The pid of a child that has ended and is not reaped yet, which it stays.
pub fn peek_ended() -> Option<i32> {
    let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    // SAFETY: a siginfo of zeros is valid; waitid writes it; si_pid is read from what waitid wrote,
    // or from the zeros if no child has ended.
    let pid = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        match libc::waitid(libc::P_ALL, 0, &raw mut info, flags) {
            0 => info.si_pid(),
            _ => 0,
        }
    };
    (pid > 0).then_some(pid)
}

/// How an ended child ended, as `waitpid` encodes it. Reaps it.
pub fn reap(pid: i32) -> Option<c_int> {
    let mut status = 0;
    // SAFETY: writes one int, to a live local.
    let reaped = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    (reaped == pid).then_some(status)
}

/// The next connection of a listener.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let fd =
        nix::sys::socket::accept4(listener.as_raw_fd(), nix::sys::socket::SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: the kernel has just made this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Few heaps that give memory back: the agent's pages are in every fork of its machine, and by default
/// glibc keeps a heap for every few threads and grows its thresholds with use.
pub fn thrifty_heap() {
    const HEAPS: c_int = 2;
    const TRIM_BYTES: c_int = 1 << 20;
    /// A session's buffers are mapped, not carved from a heap: untouched pages cost nothing, and all of
    /// them are given back with the session.
    const MAP_BYTES: c_int = 1 << 16;
    // SAFETY: numbers only; a setting that is refused stays as it was.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAP_BYTES);
    }
}
