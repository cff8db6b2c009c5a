//! A port without an outside, for inputs of any kind: what fuzzing calls, and the test that repeats its corpus.
//!
//! The input is a row of frames, each after its length in two bytes, big-endian. The policy allows nothing; connections to the gateway's port for names
//! bring the whole of TCP into it.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};

use ramet_proto::api::network::Limits;
use ramet_proto::net::{Member, Port as Configuration};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::setup::Setup;
use super::{Port, Shared};
use crate::edge::Trust;
use crate::ranges::Kept;
use crate::resolver::Upstream;
use crate::switch::Switch;

/// Most frames of an input.
const FRAMES_MAX: usize = 64;

/// Gives frames to a new port. Nothing comes of it but that it returns.
pub fn exercise(input: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    runtime.block_on(async {
        let Some((mut port, monitor)) = port() else { return };
        let mut rest = input;
        for _ in 0..FRAMES_MAX {
            let Some((length, after)) = rest.split_first_chunk::<2>() else { break };
            let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
            port.tick();
            port.frame(&after[..length]);
            port.read_outside();
            while rustix::io::read(&monitor, &mut [0; 64]).is_ok_and(|length| length > 0) {}
            rest = &after[length..];
            tokio::task::yield_now().await;
            while let Ok(event) = port.events.try_recv() {
                port.event(event);
            }
        }
        port.time();
        port.drop_flows();
    });
}

/// With the other end of its link.
fn port() -> Option<(Port, OwnedFd)> {
    let shared = Shared {
        kept: RwLock::new(Arc::new(Kept::default())),
        upstream: Upstream::new(vec![([127, 0, 0, 1], 9).into()]),
        switch: Switch::default(),
        trust: Trust::default(),
    };
    let member = Member { network: "n".into(), name: "a".into(), number: 1, between: None };
    let configuration = Configuration {
        port: "exercise".into(),
        policies: Vec::new(),
        limits: Limits::default(),
        member: Some(member),
        edge: Vec::new(),
        authority: None,
    };
    let setup = Setup::parse(&configuration).ok()?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (link, monitor) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let port = Port::new(Arc::new(shared), setup, link, Arc::new(AtomicBool::new(true))).ok()?;
    Some((port, monitor))
}
