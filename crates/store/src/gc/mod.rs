//! Collection of what no root reaches, with writers at work on other machines.
//!
//! # Who does what
//!
//! A *collector* ([`Store::collect`](crate::Store::collect)) works in two steps, each of which may be another run or another machine:
//!
//! 1. *Condemn*: mark from the roots, and publish a list (`gc/TENANT/condemned/NUMBER`, created only if
//!    new) of objects that nothing reaches and that are older than the grace time. Numbers rise by one. Chunks
//!    are condemned only if no manifest reaches them but condemned ones.
//! 2. *Execute*, no earlier than the grace time after the list was published: claim the list (one collector at a
//!    time), mark again, delete what is on the list and still unreached, manifests before chunks; then
//!    empty the list. The newest list stays, emptied, to keep the count.
//!
//! A *writer* has a *session* ([`session`]): the number of the newest list, and everything on lists since the session
//! began. It
//!
//! 1. begins the session before it looks for anything to reuse,
//! 2. reuses a parent's chunks only if the parent's manifest is there and neither is condemned, and an existing
//!    chunk or manifest only if that is not condemned; whatever is condemned is written again under another name (a
//!    chunk's next generation, a manifest's next salt),
//! 3. renews the session, and repeats step 2 if a list was made; if a list came and went unseen, it looks
//!    whether everything it counts on is there,
//! 4. writes the manifest and the root,
//! 5. renews the session once more: if no list was made since step 3, the state is durable. Otherwise it goes back
//!    to step 2, and replaces its root.
//!
//! All ages are taken from the backend's clock (`gc/TENANT/clock` is written to read it), never from a machine's.
//!
//! # Why no durable state loses anything
//!
//! Let a writer report a state durable, and let x be an object it refers to. Suppose a collector deletes x
//! from list L while the root is there.
//!
//! - L was published after the writer's step 5. Then L's execution marks after the root was written, sees it, and
//!   keeps x. Contradiction.
//! - L was published during the session and before step 5. Steps 3 and 5 saw the same number, so it was
//!   before step 3, and the writer saw L itself (then x is not referred to: step 2), or saw that it came and went
//!   (then L was executed before, and x was there afterwards; one list is executed by one collector, which
//!   had finished).
//! - L was published before the session. If L was open then, the session knows x. If L was executed then, x was not
//!   deleted by it, or was written again later. If L was being executed, it was open: it is emptied
//!   last.
//!
//! This needs no clocks on the writer's side. Two things do need time, and a grace time (an hour by default) that
//! is far longer than a request's deadline (a minute):
//!
//! - A writer's root is visible between steps 4 and 5. If an entire list is made and executed between step 3 and
//!   step 4 of one writer, a second writer could take that root's state as its parent before the first one
//!   notices. So steps 3 and 4 are adjacent, and the grace time lies between publishing and executing.
//! - A collector that is silent for [`Collect::takeover`] counts as dead, and another claims its list. So a
//!   collector deletes nothing later than half of that time after its claim.
//!
//! `model.rs` walks through all orders of these steps; a test runs the real code in many orders of its requests.

pub(crate) mod collect;
#[cfg(test)]
mod model;
pub(crate) mod session;

pub use collect::{Collect, Collected};
