//! What the end-to-end tests and the benchmarks share.
//!
//! [`nano`] holds guests of a few instructions and talks to them through their memory; [`bare`] does
//! by hand, without a monitor, what a monitor must do at least: it tells whether `/dev/kvm` works
//! here, and gives benchmarks their floors; [`linux`] boots real guests; [`suite`] runs tests that share them,
//! and [`patience`] says how long they may wait.

pub mod bare;
pub mod linux;
pub mod nano;
pub mod patience;
pub mod suite;
