//! The empty disk: a sparse ext4 in which nothing is left for a guest to initialize.
//!
//! A new sparse file is all zeros, so inode tables and journal count as initialized: the guest's
//! kernel never writes them in the background, and every block a guest writes is its own.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::{Error, Progress, command, io};

/// Room for inode tables, journal and bitmaps, per GiB of free space and once.
const OVERHEAD_PER_GIB_MIB: u64 = 17;
const OVERHEAD_MIB: u64 = 32;
/// Of its creation, so that the same size gives the same bytes.
const TIME: &str = "1750000000";
const UUID: &str = "72616d65-7400-4000-8000-000000000002";

/// How it is made, but for its size.
pub fn arguments() -> Vec<String> {
    let extended = format!(
        "lazy_itable_init=1,lazy_journal_init=1,assume_storage_prezeroed=1,nodiscard,root_owner=0:0,hash_seed={UUID}"
    );
    let words =
        ["-q", "-F", "-b", "4096", "-m", "0", "-J", "size=16", "-L", "ramet-data", "-U", UUID];
    let words = words.into_iter().chain(["-E", &extended]);
    words.map(str::to_owned).collect()
}

/// Size of a disk with this much free space.
pub fn size_mib(free_mib: u64) -> u64 {
    free_mib + OVERHEAD_MIB + free_mib.div_ceil(1024) * OVERHEAD_PER_GIB_MIB
}

/// Make one at this path.
pub fn make(progress: Progress<'_>, path: &Path, free_mib: u64) -> Result<(), Error> {
    let made = File::create(path).and_then(|file| file.set_len(size_mib(free_mib) << 20));
    made.map_err(io(format!("make {}", path.display())))?;
    let mut format = Command::new("/sbin/mkfs.ext4");
    format.args(arguments()).arg(path).env("E2FSPROGS_FAKE_TIME", TIME);
    command::run(progress, &mut format, "needs e2fsprogs 1.47 or newer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_disk_is_sparse_and_the_same_each_time() {
        assert_eq!(size_mib(4096), 4096 + 32 + 68);
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        for path in [&one, &two] {
            make(&|_| {}, path, 64).unwrap();
        }
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap());
        let file = std::fs::metadata(&one).unwrap();
        assert_eq!(file.len(), size_mib(64) << 20);
        assert!(file.blocks() * 512 < 8 << 20);
    }
}
