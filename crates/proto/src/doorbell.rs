//! The doorbell: how the agent inside a guest and the monitor around it meet at one instruction.
//!
//! The doorbell is a handful of I/O ports. It exists so that a machine is only ever cut at a point
//! where no user process is running, and so that a child can be given its identity before one does:
//!
//! ```text
//!  monitor ── Link "rendezvous" ──▶ agent        (over vsock, the guest runs on)
//!                                   agent's highest-priority threads seize every vCPU
//!  monitor ◀── in eax, BELL ─────── agent        (the vCPU is held inside that instruction)
//!  monitor: stop, capture, fork(2)
//!  source:  eax = 0                 agent lets go of the vCPUs
//!  child i: eax = i                 agent reads its identity from PAYLOAD, applies it,
//!                                   writes ACK, lets go of the vCPUs
//! ```
//!
//! The same meeting precedes a pause, a checkpoint and a save, so whatever is resumed, rewound or
//! restored later wakes up inside the agent, too.

/// `in eax`: meet the monitor. Answers [`SOURCE`], [`NOT_EXPECTED`] or the child's index from 1.
pub const BELL_PORT: u16 = 0x5240;
/// `rep insb`: the identity, as `u32` length (little endian) and that many bytes of JSON
/// ([`crate::agent::Identity`]). Reads past the end give zeros; each `out BELL_PORT` rewinds it.
pub const PAYLOAD_PORT: u16 = 0x5244;
/// `out eax`: the agent applied the identity; the value is the index that it was given.
pub const ACK_PORT: u16 = 0x5248;

/// The machine goes on as what it was; there is nothing to read from [`PAYLOAD_PORT`].
pub const SOURCE: u32 = 0;
/// Nobody asked for a meeting, or it was called off; let go of the vCPUs and forget it.
pub const NOT_EXPECTED: u32 = u32::MAX;
/// The machine was woken (from a save or a checkpoint) without being anyone's child in a fork
/// call: it has an identity to read, and an index of its own is not told.
pub const WOKEN: u32 = u32::MAX - 1;

/// Largest identity that the monitor hands over, in bytes of JSON.
pub const PAYLOAD_MAX: usize = 64 * 1024;

/// vsock port, on the host's side (CID 2), that the agent connects to for its link.
pub const LINK_PORT: u32 = 1;
