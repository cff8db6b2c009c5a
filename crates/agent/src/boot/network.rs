//! Static addresses: loopback always; eth0 as the machine was told to, or as every guest that has one.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use ramet_proto::net::{DOMAIN, GATEWAY_V4, GATEWAY_V6, GUEST_V4, GUEST_V6};

use super::BootError;
use super::ready;
use crate::sys::kernel;

/// What QEMU's user network gives its only guest.
pub const SOFTWARE_HOST: &str = "10.0.2.15/24,10.0.2.2";
const INTERFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// The only interface to the outside.
pub const ETHERNET: &str = "eth0";

/// `ADDRESS/PREFIX,GATEWAY`.
#[derive(Debug, PartialEq, Eq)]
struct Network {
    address: Ipv4Addr,
    mask: Ipv4Addr,
    gateway: Ipv4Addr,
}

/// A socket for settings.
pub fn control() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
}

fn settings() -> Result<UdpSocket, BootError> {
    control().map_err(|error| BootError::new("socket for the network's settings", error))
}

/// Bring `lo` up; the kernel gives it 127.0.0.1 and ::1 then, or is told to.
pub fn loopback() -> Result<(), BootError> {
    let socket = settings()?;
    let mask = Ipv4Addr::new(255, 0, 0, 0);
    kernel::interface_address(&socket, "lo", Ipv4Addr::LOCALHOST, mask)
        .and_then(|()| kernel::interface_up(&socket, "lo"))
        .map_err(|error| BootError::new("interface lo", error))
}

/// Give eth0 its address and the machine its gateway.
pub fn ethernet(text: &str) -> Result<(), BootError> {
    let network = parse(text).ok_or_else(|| {
        let cause = std::io::Error::other("it is not ADDRESS/PREFIX,GATEWAY");
        BootError::new(format!("ramet.net={text}"), cause)
    })?;
    let deadline = Instant::now() + INTERFACE_TIMEOUT;
    while !Path::new("/sys/class/net").join(ETHERNET).exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let socket = settings()?;
    kernel::interface_address(&socket, ETHERNET, network.address, network.mask)
        .and_then(|()| kernel::interface_up(&socket, ETHERNET))
        .and_then(|()| kernel::default_route(&socket, network.gateway))
        .map_err(|error| BootError::new(format!("interface {ETHERNET} as {text}"), error))
}

/// In a guest that has a network device: the addresses that all of them have. Its driver is loaded, so the device is there by now.
pub fn guest() -> Result<(), BootError> {
    let conf = Path::new("/proc/sys/net/ipv6/conf").join(ETHERNET);
    if !Path::new("/sys/class/net").join(ETHERNET).exists() {
        return Ok(());
    }
    // The addresses are right as they are: no waiting for others that claim them, no advice from routers. Without IPv6 there is none of it.
    for setting in ["accept_dad", "accept_ra", "autoconf"] {
        let _absent = std::fs::write(conf.join(setting), "0");
    }
    let socket = settings()?;
    kernel::interface_address(&socket, ETHERNET, GUEST_V4, Ipv4Addr::new(255, 255, 255, 0))
        .and_then(|()| kernel::interface_up(&socket, ETHERNET))
        .and_then(|()| kernel::default_route(&socket, GATEWAY_V4))
        .map_err(|error| BootError::new(format!("interface {ETHERNET}"), error))?;
    if conf.exists() {
        kernel::interface_address_v6(ETHERNET, GUEST_V6, 64)
            .and_then(|()| kernel::default_route_v6(ETHERNET, GATEWAY_V6))
            .map_err(|error| BootError::new(format!("IPv6 of {ETHERNET}"), error))?;
    }
    let names = format!("nameserver {GATEWAY_V4}\nsearch {DOMAIN}\noptions timeout:3 attempts:2\n");
    ready::over(&format!("{}/resolv.conf", crate::identity::RUN), "/etc/resolv.conf", &names)
}

fn parse(text: &str) -> Option<Network> {
    let (address, gateway) = text.split_once(',')?;
    let (address, prefix) = address.split_once('/')?;
    let prefix: u32 = prefix.parse().ok().filter(|prefix| (1..=32).contains(prefix))?;
    Some(Network {
        address: address.parse().ok()?,
        mask: Ipv4Addr::from(u32::MAX << (32 - prefix)),
        gateway: gateway.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_networks() {
        let network = parse(SOFTWARE_HOST).expect("well formed");
        assert_eq!(network.mask, Ipv4Addr::new(255, 255, 255, 0));
        assert_eq!(network.gateway, Ipv4Addr::new(10, 0, 2, 2));
        for bad in ["", "10.0.0.1", "10.0.0.1/24", "10.0.0.1/0,10.0.0.2", "10.0.0.1/33,10.0.0.2"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
