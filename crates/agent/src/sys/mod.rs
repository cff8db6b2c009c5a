//! System calls and instructions that the safe crates do not offer.
//!
//! The only place of the agent with `unsafe`: [`ports`] (instructions on I/O ports), [`spawn`]
//! (a child between clone and exec), and [`kernel`] (ioctls, module loading, scheduling). Each
//! function is safe to call with any argument; what the kernel refuses comes back as an error.
#![expect(unsafe_code, reason = "raw system calls, ioctls and port instructions have no safe form")]

pub mod kernel;
pub mod ports;
pub mod spawn;
