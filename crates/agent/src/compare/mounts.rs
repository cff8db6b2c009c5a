//! What is mounted where, as far as a comparison must know.

use std::fs;
use std::io;

use ramet_proto::agent::{path_order, path_within};

use super::as_path;
use crate::identity::RUN;

/// Filesystems without files of the user's.
const KERNEL: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// Mount points below the root.
#[derive(Debug, Default)]
pub struct Mounts {
    /// Where files are that the layer of the root does not hold, in order.
    foreign: Vec<Vec<u8>>,
    /// Where nothing is compared.
    skipped: Vec<Vec<u8>>,
}

impl Mounts {
    /// As they are now.
    pub fn read() -> io::Result<Self> {
        let table = fs::read("/proc/self/mountinfo")?;
        let is_directory =
            |path: &[u8]| fs::symlink_metadata(as_path(path)).is_ok_and(|found| found.is_dir());
        Ok(Self::of(&table, is_directory))
    }

    fn of(table: &[u8], is_directory: impl Fn(&[u8]) -> bool) -> Self {
        let mut mounts = Self { foreign: Vec::new(), skipped: vec![RUN.as_bytes().to_vec()] };
        for (point, kind) in table.split(|byte| *byte == b'\n').filter_map(parse) {
            if point == b"/" {
                continue;
            }
            let kernel = KERNEL.iter().any(|name| name.as_bytes() == kind);
            let list = if kernel || !is_directory(&point) {
                &mut mounts.skipped
            } else {
                &mut mounts.foreign
            };
            list.push(point);
        }
        mounts.foreign.sort_unstable_by(|a, b| path_order(a, b));
        mounts.foreign.dedup();
        mounts
    }

    /// Nothing is compared at this path; what lies deeper may be, if something is mounted there.
    pub fn is_skipped(&self, path: &[u8]) -> bool {
        self.skipped.iter().any(|point| point == path)
    }

    /// The path lies on a filesystem of its own, or on none that is compared.
    pub fn holder(&self, path: &[u8]) -> Holder {
        let length = |points: &[Vec<u8>]| {
            let within = points.iter().filter(|point| path_within(path, point));
            within.map(Vec::len).max().unwrap_or(0)
        };
        let (foreign, skipped) = (length(&self.foreign), length(&self.skipped));
        match () {
            () if skipped > foreign => Holder::Nobody,
            () if foreign > 0 => Holder::Another,
            () => Holder::Root,
        }
    }

    /// Filesystems that are mounted below a path, in order; those below another of them are not named.
    pub fn below(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        let below = |point: &&Vec<u8>| path_within(point, path) && point.as_slice() != path;
        for point in self.foreign.iter().filter(below) {
            if !found.last().is_some_and(|last| path_within(point, last)) {
                found.push(point.clone());
            }
        }
        found
    }
}

/// Which filesystem a path is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The root's.
    Root,
    /// One that is mounted below.
    Another,
    /// One that is not compared.
    Nobody,
}

/// Mount point and kind of a line.
fn parse(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = fields.nth(4)?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some((unescape(point), kind))
}

/// The kernel writes blanks, tabs, line ends and backslashes as `\` and three octal digits.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let byte = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[3..] } else { tail };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
21 1 0:20 / / rw,relatime - overlay overlay rw\n\
22 21 0:5 / /proc rw shared:1 - proc proc rw\n\
23 21 0:6 / /dev rw - devtmpfs devtmpfs rw\n\
24 23 0:7 / /dev/shm rw - tmpfs tmpfs rw\n\
25 21 0:8 / /run rw - tmpfs tmpfs rw\n\
26 25 0:9 / /run/lock rw - tmpfs tmpfs rw\n\
27 21 0:8 /ramet/hostname /etc/hostname rw - tmpfs tmpfs rw\n\
28 21 8:1 / /mnt/my\\040disk rw - ext4 /dev/vdc rw\n";

    #[test]
    fn what_is_mounted_is_told_apart() {
        let mounts = Mounts::of(TABLE, |path| path != b"/etc/hostname");
        let below: Vec<Vec<u8>> = mounts.below(b"/");
        assert_eq!(below, [&b"/dev/shm"[..], b"/mnt/my disk", b"/run"]);
        assert_eq!(mounts.below(b"/run"), [b"/run/lock"]);
        assert_eq!(mounts.below(b"/home"), [b""; 0]);
        assert_eq!(mounts.holder(b"/home/x"), Holder::Root);
        assert_eq!(mounts.holder(b"/dev/shm/x"), Holder::Another);
        assert_eq!(mounts.holder(b"/dev/null"), Holder::Nobody);
        assert_eq!(mounts.holder(b"/run/ramet/token"), Holder::Nobody);
        assert_eq!(mounts.holder(b"/etc/hostname"), Holder::Nobody);
        assert!(mounts.is_skipped(b"/proc") && !mounts.is_skipped(b"/proc2"));
    }

    #[test]
    fn names_are_unescaped() {
        assert_eq!(unescape(b"a\\040b\\134c\\"), b"a b\\c\\");
        assert_eq!(unescape(b"\\9zz"), b"\\9zz");
    }
}
