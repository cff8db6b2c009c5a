//! What the host says of this machine's network while it runs: a place among others, and an authority to trust.
//!
//! Addresses are the same in every machine ([`ramet_proto::net`]), so nothing of this changes in a fork. A member of a network has one
//! more address. An authority is trusted wherever programs of Debian look: the bundle, which is shown with one
//! certificate more, and the directory of hashed names. All of it is undone when the host says so.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use ramet_proto::agent::Network;
use ramet_proto::net::{AUTHORITY_HASH, MEMBERS_MAX, NETWORK_V4, NETWORK_V6};

use crate::boot::network::{ETHERNET, control};
use crate::failure::{Outcome, bad_request, failure, from_io};
use crate::identity::RUN;
use crate::sys::kernel;

/// The name under which the kernel keeps the address of a member.
const ALIAS: &str = "eth0:net";
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
const CERTIFICATES: &str = "/etc/ssl/certs";
/// Longest authority that is taken.
const AUTHORITY_MAX: usize = 16 << 10;

/// Be what is said, whatever was before.
pub fn set(request: &Network) -> Outcome<()> {
    if request.member.is_some_and(|number| !(1..=MEMBERS_MAX).contains(&number)) {
        return Err(bad_request(format!("a member's number is 1 to {MEMBERS_MAX}")));
    }
    if let Some(certificate) = &request.authority {
        check_authority(certificate)?;
    }
    if !Path::new("/sys/class/net").join(ETHERNET).exists() {
        return Err(failure("not_found", "this machine has no network device"));
    }
    take_place(request.member).map_err(failed("the address"))?;
    // What is as it should be is left alone: somebody may be using it.
    if fs::read_to_string(own_certificate()).ok() == request.authority {
        return Ok(());
    }
    distrust().map_err(failed(BUNDLE))?;
    match &request.authority {
        Some(certificate) => trust(certificate).map_err(failed(BUNDLE)),
        None => Ok(()),
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> ramet_proto::agent::Failure {
    move |error| from_io(what, &error)
}

fn check_authority(certificate: &str) -> Outcome<()> {
    let pem = certificate.starts_with("-----BEGIN CERTIFICATE-----\n");
    if pem && certificate.len() <= AUTHORITY_MAX && certificate.is_ascii() {
        return Ok(());
    }
    Err(bad_request(format!("the authority is no certificate of at most {AUTHORITY_MAX} bytes")))
}

/// The addresses of a member.
fn addresses(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    let [a, b, c, _] = NETWORK_V4.octets();
    let mut six = NETWORK_V6.segments();
    six[7] = u16::from(number);
    (Ipv4Addr::new(a, b, c, number), Ipv6Addr::from(six))
}

fn take_place(number: Option<u8>) -> io::Result<()> {
    let wanted: Vec<_> = number.map(|number| (addresses(number).1, 64)).into_iter().collect();
    if places()? == wanted {
        return Ok(());
    }
    leave()?;
    number.map_or(Ok(()), join)
}

fn join(number: u8) -> io::Result<()> {
    let (four, six) = addresses(number);
    let socket = control()?;
    kernel::interface_address(&socket, ALIAS, four, Ipv4Addr::new(255, 255, 255, 0))?;
    kernel::interface_address_v6(ETHERNET, six, 64)
}

/// Whatever number it had: the host may have forgotten it.
fn leave() -> io::Result<()> {
    // An alias that is not there is none to take down.
    let _absent = kernel::interface_down(control()?, ALIAS);
    for (address, prefix) in places()? {
        kernel::remove_address_v6(ETHERNET, address, prefix)?;
    }
    Ok(())
}

/// Addresses that it has as a member.
fn places() -> io::Result<Vec<(Ipv6Addr, u8)>> {
    let mut all = addresses_v6()?;
    all.retain(|(address, _)| address.segments()[..7] == NETWORK_V6.segments()[..7]);
    Ok(all)
}

/// The IPv6 addresses of eth0, from the kernel's own list.
fn addresses_v6() -> io::Result<Vec<(Ipv6Addr, u8)>> {
    let list = fs::read_to_string("/proc/net/if_inet6")?;
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        let prefix = u8::from_str_radix(words.nth(1)?, 16).ok()?;
        (words.nth(2)? == ETHERNET).then_some((Ipv6Addr::from(address), prefix))
    };
    Ok(list.lines().filter_map(parse).collect())
}

fn own_certificate() -> String {
    format!("{RUN}/authority.pem")
}

fn trust(certificate: &str) -> io::Result<()> {
    let (own, bundle) = (own_certificate(), format!("{RUN}/authorities.pem"));
    fs::write(&own, certificate)?;
    let known = match fs::read(BUNDLE) {
        Ok(known) => known,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(CERTIFICATES)?;
            fs::write(BUNDLE, b"")?;
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    fs::write(&bundle, [known.as_slice(), certificate.as_bytes()].concat())?;
    mount(Some(bundle.as_str()), BUNDLE, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    symlink(own, format!("{CERTIFICATES}/{AUTHORITY_HASH}.0"))
}

fn distrust() -> io::Result<()> {
    let bundle = format!("{RUN}/authorities.pem");
    if !Path::new(&bundle).exists() {
        return Ok(());
    }
    // One that is not mounted was never shown.
    let _absent = umount2(BUNDLE, MntFlags::MNT_DETACH);
    for path in [format!("{CERTIFICATES}/{AUTHORITY_HASH}.0"), own_certificate(), bundle] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Variables for programs that look elsewhere, while an authority is to be trusted.
pub fn environment() -> Vec<(&'static str, String)> {
    let bundle = format!("{RUN}/authorities.pem");
    if !Path::new(&bundle).exists() {
        return Vec::new();
    }
    let own = own_certificate();
    vec![
        ("REQUESTS_CA_BUNDLE", bundle.clone()),
        ("SSL_CERT_FILE", bundle),
        ("NODE_EXTRA_CA_CERTS", own),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_their_place() {
        let (four, six) = addresses(7);
        assert_eq!(four.to_string(), "10.114.1.7");
        assert_eq!(six.to_string(), "fd72:616d:6574:1::7");
    }

    #[test]
    fn only_a_certificate_is_taken() {
        assert!(check_authority("-----BEGIN CERTIFICATE-----\nAA\n").is_ok());
        assert!(check_authority("-----BEGIN PRIVATE KEY-----\nAA\n").is_err());
        let long = format!("-----BEGIN CERTIFICATE-----\n{}", "A".repeat(AUTHORITY_MAX));
        assert!(check_authority(&long).is_err());
    }
}
