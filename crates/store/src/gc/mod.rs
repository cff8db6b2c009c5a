//! Collection of what no root reaches.

pub(crate) mod session;
