//! TAP devices, which speak the same as links.
#![expect(unsafe_code, reason = "ioctls of TAP devices have no safe wrapper")]

use std::os::fd::{AsRawFd, OwnedFd};

mod ioctls {
    nix::ioctl_write_ptr_bad!(tun_set_iff, nix::request_code_write!(b'T', 202, 4), libc::ifreq);
    nix::ioctl_write_int_bad!(tun_set_offload, nix::request_code_write!(b'T', 208, 4));
    nix::ioctl_write_ptr_bad!(tun_set_header, nix::request_code_write!(b'T', 216, 4), libc::c_int);
}

/// Opens `tap0` of the current namespace, with the header of links, and checksums left to the device.
pub fn open() -> OwnedFd {
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: an ifreq is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"tap0") {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags.try_into().unwrap();
    // SAFETY: the descriptor is open, the pointers are to live values of the types that the kernel reads.
    unsafe {
        ioctls::tun_set_iff(file.as_raw_fd(), &raw const request).unwrap();
        ioctls::tun_set_header(file.as_raw_fd(), &raw const HEADER).unwrap();
        ioctls::tun_set_offload(file.as_raw_fd(), 1).unwrap();
    }
    file.into()
}

static HEADER: libc::c_int = 12;
