//! The empty disk, `data.ext4`.

use anyhow::Result;
use ramet_image::data;

use super::recipe::Data;
use super::store::{Inputs, Store, Versions};

/// Make `data.ext4`.
pub fn make(store: &mut Store, data: &Data) -> Result<()> {
    let inputs = Inputs::new("mkfs.ext4, fixed time")
        .with(data::arguments().join(" ").as_bytes())
        .with(&data::size_mib(data.free_mib).to_le_bytes());
    store.make("data.ext4", &inputs, |status, path| {
        data::make(&|line| status.detail(line), path, data.free_mib)?;
        Ok(Versions::from([("free_mib".to_owned(), data.free_mib.to_string())]))
    })
}
