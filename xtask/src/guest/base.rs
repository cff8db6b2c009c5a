//! The base image, `base.erofs`: the recipe's packages and files, and nothing that pip or npm add.

use std::collections::BTreeMap;

use anyhow::Result;
use ramet_image::apt::Known;
use ramet_image::base::{self, Base};
use ramet_image::rootfs::{Build, REVISION};

use super::store::{Inputs, Store};

/// Make `base.erofs`.
pub fn make(store: &mut Store, base: &Base, known: &BTreeMap<String, Known>) -> Result<()> {
    let mut inputs = Inputs::new(REVISION).with(&serde_json::to_vec(base)?);
    for package in &base.packages {
        inputs = inputs.with(known[package].version.as_bytes());
    }
    for file in &base.files {
        inputs = inputs.with(base::file(&file.from)?);
    }
    let temporary = store.temporary();
    store.make("base.erofs", &inputs, |status, path| {
        let build = Build {
            base,
            packages: &base.packages,
            pip: &[],
            npm: &[],
            temporary: &temporary,
            progress: &|line| status.detail(line),
        };
        Ok(build.make(path)?)
    })
}
