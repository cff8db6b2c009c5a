//! The empty disk: a sparse ext4 in which nothing is left for a guest to initialize.
//!
//! A new sparse file is all zeros, so inode tables and journal count as initialized: the guest's
//! kernel never writes them in the background, and every block a guest writes is its own.

use std::fs::File;
use std::process::Command;

use anyhow::Result;

use super::recipe::Data;
use super::store::{Inputs, Store, Versions};
use crate::command;

/// Room for inode tables, journal and bitmaps, per GiB of free space and once.
const OVERHEAD_PER_GIB_MIB: u64 = 17;
const OVERHEAD_MIB: u64 = 32;
/// Of its creation, so that the same recipe gives the same bytes.
const TIME: &str = "1750000000";
const UUID: &str = "72616d65-7400-4000-8000-000000000002";

/// Make `data.ext4`.
pub fn make(store: &mut Store, data: &Data) -> Result<()> {
    let size_mib = size_mib(data.free_mib);
    let mut arguments =
        vec!["-q", "-F", "-b", "4096", "-m", "0", "-J", "size=16", "-L", "ramet-data", "-U", UUID];
    let extended = format!(
        "lazy_itable_init=1,lazy_journal_init=1,assume_storage_prezeroed=1,nodiscard,root_owner=0:0,hash_seed={UUID}"
    );
    arguments.extend(["-E", &extended]);
    let inputs = Inputs::new("mkfs.ext4, fixed time")
        .with(arguments.join(" ").as_bytes())
        .with(&size_mib.to_le_bytes());
    store.make("data.ext4", &inputs, |status, path| {
        File::create(path)?.set_len(size_mib << 20)?;
        let mut format = Command::new("/sbin/mkfs.ext4");
        format.args(&arguments).arg(path).env("E2FSPROGS_FAKE_TIME", TIME);
        command::run(status, &mut format, "needs e2fsprogs 1.47 or newer")?;
        Ok(Versions::from([("free_mib".to_owned(), data.free_mib.to_string())]))
    })
}

fn size_mib(free_mib: u64) -> u64 {
    free_mib + OVERHEAD_MIB + free_mib.div_ceil(1024) * OVERHEAD_PER_GIB_MIB
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_larger_than_the_space_in_it() {
        assert_eq!(size_mib(4096), 4096 + 32 + 68);
    }
}
