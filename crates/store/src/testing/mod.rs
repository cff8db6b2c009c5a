//! For tests, of this crate and of others: a real server that speaks S3, and a proxy that misbehaves.

mod proxy;
mod server;

pub use proxy::{Act, Proxy, Request};
pub use server::{Server, program};
