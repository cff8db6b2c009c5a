//! `ramet-net`: the user-mode network of all sandboxes of one node.
//!
//! A **port** is the network side of one machine. Its [`port::Port`] is owned by one task and shared with nobody: frames come in over the **link**,
//! are checked ([`frame`]), decided on ([`policy`]), and become connections of this process, so that nothing here needs a
//! privilege. What the guest says is data: malformed or spoofed frames are dropped and counted, never a reason to panic.
//!
//! ```text
//!   node ──control──▶ service ──▶ port task ◀──link──▶ monitor ◀──▶ guest
//!                        │           │ frame → policy → tcp / udp / icmp / dns
//!                        │           ├──▶ sockets to the outside (one epoll for each port)
//!                        └─ switch ──┴──▶ links of other members of the same network
//! ```
//!
//! Invariants: an address is reached only if every policy of the port allows it at that moment; a name rule allows only addresses that
//! this port's own lookups gave; nothing crosses from one network to another; every queue, map and buffer has a bound.

pub mod alarm;
pub mod bucket;
pub mod control;
pub mod dns;
pub mod edge;
pub mod frame;
pub mod harden;
pub mod journal;
pub mod link;
pub mod pins;
pub mod policy;
pub mod port;
pub mod ranges;
pub mod reply;
pub mod resolver;
pub mod service;
pub mod sniff;
pub mod switch;
pub mod sys;
