//! Every message that crosses a process boundary.
//!
//! [`api`] is spoken between clients and the node, [`control`] between the host and a monitor,
//! [`agent`] between the host and the guest's agent, [`doorbell`] between the agent and the monitor
//! it runs under, [`pager`] between a monitor and who brings its files, [`net`] between the node and the network service;
//! [`needs`] is what a saved machine asks of a host. The types are serde only: no I/O, no behaviour beyond what keeps a value well
//! formed. Unknown fields of requests are refused everywhere, so an option that a peer does not know
//! is an error and never silently ignored.

pub mod agent;
pub mod api;
pub mod control;
pub mod doorbell;
pub mod needs;
pub mod net;
pub mod pager;

/// Version of all messages of this crate. Peers of different versions refuse each other.
pub const VERSION: u32 = 1;
