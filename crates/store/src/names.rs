//! Where things lie below the store's prefix.
//!
//! | object | what |
//! |---|---|
//! | `format` | version of the layout |
//! | `chunks/TENANT/AA/ID.GENERATION` | a chunk; AA are the first digits of its id |
//! | `manifests/TENANT/ID` | a state's manifest |
//! | `roots/TENANT/KIND/NAME` | a root: what must not be collected |
//! | `refs/TENANT/NAME/SEQUENCE` | a value changed by compare and swap; the highest sequence counts |
//! | `gc/…` | lists of what will be collected |

use object_store::path::Path;

use crate::id::{ChunkId, StateId, Tenant};

/// A chunk's object.
pub(crate) fn chunk(tenant: &Tenant, id: ChunkId, generation: u32) -> Path {
    let id = id.to_string();
    Path::from_iter(["chunks", tenant.as_str(), &id[..2], &format!("{id}.{generation}")])
}

/// A state's manifest.
pub(crate) fn manifest(tenant: &Tenant, state: StateId) -> Path {
    Path::from_iter(["manifests", tenant.as_str(), &state.to_string()])
}

/// A root.
pub(crate) fn root(tenant: &Tenant, kind: &str, name: &str) -> Path {
    Path::from_iter(["roots", tenant.as_str(), kind, name])
}

/// One value of a ref. Sequences have a fixed width, so that they sort.
pub(crate) fn reference(tenant: &Tenant, name: &str, sequence: u64) -> Path {
    Path::from_iter(["refs", tenant.as_str(), name, &format!("{sequence:020}")])
}

/// Everything below some parts.
pub(crate) fn below(parts: &[&str]) -> Path {
    parts.iter().copied().collect()
}

/// The chunk that an object is.
pub(crate) fn parse_chunk(path: &Path) -> Option<(Tenant, ChunkId, u32)> {
    let parts: Vec<_> = path.parts().collect();
    let [top, tenant, _, name] = parts.as_slice() else { return None };
    let (id, generation) = name.as_ref().split_once('.')?;
    let tenant = Tenant::new(tenant.as_ref()).ok()?;
    (top.as_ref() == "chunks").then_some((tenant, id.parse().ok()?, generation.parse().ok()?))
}

/// The state whose manifest an object is.
pub(crate) fn parse_manifest(path: &Path) -> Option<(Tenant, StateId)> {
    let parts: Vec<_> = path.parts().collect();
    let [top, tenant, name] = parts.as_slice() else { return None };
    let tenant = Tenant::new(tenant.as_ref()).ok()?;
    (top.as_ref() == "manifests").then_some((tenant, name.as_ref().parse().ok()?))
}

/// Kind and name of a root.
pub(crate) fn parse_root(path: &Path) -> Option<(Tenant, String, String)> {
    let parts: Vec<_> = path.parts().collect();
    let [top, tenant, kind, name] = parts.as_slice() else { return None };
    let tenant = Tenant::new(tenant.as_ref()).ok()?;
    let found = (tenant, kind.as_ref().to_owned(), name.as_ref().to_owned());
    (top.as_ref() == "roots").then_some(found)
}

/// Sequence of a value of a ref.
pub(crate) fn parse_sequence(path: &Path) -> Option<u64> {
    path.filename()?.parse().ok()
}
