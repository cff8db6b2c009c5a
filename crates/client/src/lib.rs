//! Typed client of a ramet node: the HTTP API of [`api`], one method for each route.
//!
//! ```no_run
//! # async fn example() -> Result<(), ramet_client::Error> {
//! use ramet_client::{Client, api::{CreateSandbox, ExecRequest, ForkRequest}};
//!
//! let client = Client::new("http://127.0.0.1:7878", "token")?;
//! let base = client.create(&CreateSandbox::default()).await?.sandbox;
//! let forked = client.fork(&base.id, &ForkRequest { count: Some(4), ..Default::default() }).await?;
//! for child in forked.children.iter().filter_map(|child| child.sandbox.as_ref()) {
//!     let command = Some("echo $HOSTNAME".to_owned());
//!     let result = client.exec(&child.id, &ExecRequest { command, ..Default::default() }).await?;
//!     println!("{}", result.stdout);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Sandboxes and commits are named by id, a unique beginning of it, or name; the node resolves them.
//!
//! What it refuses to do: send anything twice. A request that failed may have been carried out, and
//! only the caller knows whether that matters; [`Client::create_with_key`] and
//! [`Client::fork_with_key`] make one repeatable.
//!
//! Invariant: every wait has a deadline. Requests have one as a whole; file contents and events
//! have one for each piece; the stream of a process or a port, which may be silent for as long as it
//! likes, ends when the connection is dead.

mod code;
mod durable;
mod error;
mod events;
mod exec;
mod files;
mod moves;
mod network;
mod networks;
mod ports;
mod sandboxes;
mod sse;
mod templates;
mod transport;
mod volumes;

pub use code::CodeEvents;
pub use error::Error;
pub use events::Events;
pub use exec::{ExecInput, ExecOutput, ExecStream, Exited, Output};
pub use files::{FileReader, Watch};
pub use moves::{MoveFollower, MoveNews};
pub use ports::PortStream;
pub use ramet_proto::api;
pub use reqwest;
pub use templates::{BuildFollower, BuildNews};
pub use transport::Client;
