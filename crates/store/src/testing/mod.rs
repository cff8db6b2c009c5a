//! For tests, of this crate and of others: a real server that speaks S3, a real registry, and a proxy that misbehaves.

mod proxy;
mod registry;
mod server;

pub use proxy::{Act, Proxy, Request};
pub use registry::{LOGIN, OciServer};
pub use server::{Server, program};
