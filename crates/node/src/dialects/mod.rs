//! APIs of others over the same service, so that their clients run unchanged.
//!
//! A dialect is a translation: it checks and converts as [`crate::http`] does, calls [`crate::sandbox`], and keeps nothing of its own that the
//! service could keep. What it cannot do it refuses in its clients' own words; it never accepts an option and drops it.

pub mod e2b;
