//! What a wish may hold. Each function says what is wrong, with what, and what would be right.

use std::collections::BTreeMap;

use super::error::Error;
use crate::host::{Cpu, Shape};

/// Least memory that the base image boots in.
pub const MEMORY_MIB_MIN: u32 = 128;
/// Most memory of a machine.
pub const MEMORY_MIB_MAX: u32 = 16384;
/// Most vCPUs of a machine.
pub const VCPUS_MAX: u8 = 8;
/// Fewest processes that a guest can be limited to: a shell with a few commands.
const PIDS_MIN: u32 = 8;
/// As many as a kernel has numbers for.
const PIDS_MAX: u32 = 4 << 20;
/// Least disk of a machine.
pub const DISK_MIB_MIN: u32 = 64;
/// Most disk of a machine. Only what is written takes space.
pub const DISK_MIB_MAX: u32 = 1 << 20;
/// Most labels, variables or secrets.
const PAIRS_MAX: usize = 256;
/// Most bytes of labels, variables and secrets of one sandbox, each.
const PAIRS_BYTES_MAX: usize = 128 << 10;
/// Longest time limit: ten years.
const TIME_MAX_S: u64 = 10 * 366 * 86400;

/// A name, which is also a host name. What looks like an id is none.
pub fn name(name: &str) -> Result<(), Error> {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fine = (1..=63).contains(&name.len())
        && name.bytes().all(letter)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if !fine {
        let text = "a name has 1 to 63 lower-case letters, digits and hyphens, and neither begins nor ends with a hyphen";
        return Err(Error::Bad(format!("name {name:?}: {text}")));
    }
    if name.starts_with("sbx-") || name.starts_with("cp-") || name.starts_with("tmpl-") {
        return Err(Error::Bad(format!("name {name:?}: it looks like an id; choose another")));
    }
    Ok(())
}

/// A shape that machines can have.
pub fn shape(
    vcpus: Option<u8>,
    memory_mib: Option<u32>,
    disk_mib: Option<u32>,
) -> Result<Shape, Error> {
    let usual = Shape::default();
    let shape = Shape {
        vcpus: vcpus.unwrap_or(usual.vcpus),
        memory_mib: memory_mib.unwrap_or(usual.memory_mib),
        disk_mib: disk_mib.unwrap_or(usual.disk_mib),
    };
    if !(1..=VCPUS_MAX).contains(&shape.vcpus) {
        return Err(Error::Bad(format!("vcpus: 1 to {VCPUS_MAX}, not {}", shape.vcpus)));
    }
    let range = MEMORY_MIB_MIN..=MEMORY_MIB_MAX;
    if !range.contains(&shape.memory_mib) || !shape.memory_mib.is_multiple_of(2) {
        let text = format!("{MEMORY_MIB_MIN} to {MEMORY_MIB_MAX}, even, not {}", shape.memory_mib);
        return Err(Error::Bad(format!("memory_mib: {text}")));
    }
    if !(DISK_MIB_MIN..=DISK_MIB_MAX).contains(&shape.disk_mib) {
        let text = format!("{DISK_MIB_MIN} to {DISK_MIB_MAX}, not {}", shape.disk_mib);
        return Err(Error::Bad(format!("disk_mib: {text}")));
    }
    Ok(shape)
}

/// A share of the processors.
pub fn cpu(cpu: Cpu) -> Result<Cpu, Error> {
    if !(1..=10_000).contains(&cpu.weight) {
        return Err(Error::Bad(format!("cpu_weight: 1 to 10000, not {}", cpu.weight)));
    }
    let most = u32::from(VCPUS_MAX) * 100;
    if cpu.quota_percent > most {
        let text = format!("0 (none) to {most}, not {}", cpu.quota_percent);
        return Err(Error::Bad(format!("cpu_quota_percent: {text}")));
    }
    Ok(cpu)
}

/// Most processes of a guest.
pub fn pids(pids_max: u32) -> Result<u32, Error> {
    if pids_max == 0 || (PIDS_MIN..=PIDS_MAX).contains(&pids_max) {
        return Ok(pids_max);
    }
    Err(Error::Bad(format!("pids_max: 0 (none), or {PIDS_MIN} to {PIDS_MAX}, not {pids_max}")))
}

/// Labels.
pub fn labels(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    bounds("labels", labels)?;
    for key in labels.keys() {
        let letter = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if key.is_empty() || key.len() > 128 || !key.chars().all(letter) {
            let text = "a key has 1 to 128 letters, digits and any of ._-/";
            return Err(Error::Bad(format!("labels: {key:?}: {text}")));
        }
    }
    Ok(())
}

/// Environment variables.
pub fn env(env: &BTreeMap<String, String>) -> Result<(), Error> {
    bounds("env", env)?;
    match env.iter().find(|(key, value)| bad_variable(key) || value.contains('\0')) {
        Some((key, _)) => Err(Error::Bad(format!(
            "env: {key:?}: a name is not empty, and neither it nor its value has = or NUL where it must not"
        ))),
        None => Ok(()),
    }
}

fn bad_variable(key: &str) -> bool {
    key.is_empty() || key.contains(['=', '\0'])
}

/// Secrets, which are variables and files.
pub fn secrets(secrets: &BTreeMap<String, String>) -> Result<(), Error> {
    bounds("secrets", secrets)?;
    for (key, value) in secrets {
        let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if key.is_empty() || key.len() > 128 || !key.chars().all(letter) || value.contains('\0') {
            let text = "a name has 1 to 128 letters, digits and _, and the value no NUL";
            return Err(Error::Bad(format!("secrets: {key:?}: {text}")));
        }
    }
    Ok(())
}

fn bounds(what: &str, pairs: &BTreeMap<String, String>) -> Result<(), Error> {
    let bytes: usize = pairs.iter().map(|(key, value)| key.len() + value.len()).sum();
    if pairs.len() > PAIRS_MAX || bytes > PAIRS_BYTES_MAX {
        let text = format!("at most {PAIRS_MAX} with {PAIRS_BYTES_MAX} bytes in all");
        return Err(Error::Bad(format!("{what}: {text}")));
    }
    Ok(())
}

/// A time limit.
pub fn seconds(what: &str, seconds: u64) -> Result<u64, Error> {
    if seconds > TIME_MAX_S {
        return Err(Error::Bad(format!("{what}: at most {TIME_MAX_S} seconds")));
    }
    Ok(seconds)
}

/// A path in the guest.
pub fn path(what: &str, path: &str) -> Result<(), Error> {
    if !path.starts_with('/') || path.contains('\0') || path.len() > 4096 {
        return Err(Error::Bad(format!(
            "{what}: an absolute path of at most 4096 bytes, not {path:?}"
        )));
    }
    Ok(())
}

/// Permission bits in octal.
pub fn mode(mode: Option<&str>) -> Result<Option<u32>, Error> {
    let Some(text) = mode else { return Ok(None) };
    match u32::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o7777 && !text.starts_with('+') => Ok(Some(bits)),
        _ => Err(Error::Bad(format!("mode: permission bits in octal, not {text:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "web-1", &"x".repeat(63)] {
            name(good).unwrap();
        }
        for bad in ["", "-a", "a-", "A", "a b", "ä", "a.b", "sbx-1", "cp-1", &"x".repeat(64)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shapes_and_modes() {
        assert_eq!(shape(None, None, None).unwrap(), Shape::default());
        for (vcpus, memory) in [(0, 512), (9, 512), (1, 126), (1, 129), (1, 16386)] {
            assert!(shape(Some(vcpus), Some(memory), None).is_err());
        }
        for disk in [0, 63, (1 << 20) + 1] {
            assert!(shape(None, None, Some(disk)).is_err());
        }
        assert_eq!(mode(Some("0755")).unwrap(), Some(0o755));
        for bad in ["", "8", "10000", "+7", "-1", "rwx"] {
            assert!(mode(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn pairs() {
        let one = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        env(&one("A", "b=c")).unwrap();
        for (key, value) in [("", "x"), ("A=", "x"), ("A\0", "x"), ("A", "x\0")] {
            assert!(env(&one(key, value)).is_err());
        }
        for key in ["", "../x", "a/b", "a.b", ".."] {
            assert!(secrets(&one(key, "x")).is_err());
        }
        assert!(labels(&one("a", &"x".repeat(PAIRS_BYTES_MAX + 1))).is_err());
        assert!(labels(&one("a b", "x")).is_err());
    }
}
