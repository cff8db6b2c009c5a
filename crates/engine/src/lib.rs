//! The host's side of the engine, as a blocking library.
//!
//! [`monitor`] starts `ramet-vmm` processes and gives a handle to each machine; [`control`] is the
//! conversation with one of them; [`session`] is the conversation with the agent inside a guest;
//! [`host`] is the emulated machine to run all this in where there is no usable KVM.
//!
//! Nothing here decides policy, keeps a registry or retries: a call does one thing and says how it
//! went. No async runtime; a caller that has one runs these calls on its blocking threads.

pub mod control;
pub mod host;
pub mod monitor;
pub mod session;
mod sys;
