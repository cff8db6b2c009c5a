//! The own node: where its state is, what it is made of, who keeps it running.
//!
//! ```text
//!   ramet up ── starts, waits ──▶ keeper (`ramet up --foreground`, own session, holds the lock)
//!                                   │
//!                      hardware ────┴──── software
//!                         │                  │
//!                      rametd          emulated host, and in it rametd
//! ```
//!
//! Invariants: one keeper for each state directory, known by the lock that it holds; `node.json` is
//! there only while a keeper is, and says where the node is now.

pub mod home;
pub mod keeper;
pub mod names;
pub mod probe;
pub mod programs;
pub mod start;
