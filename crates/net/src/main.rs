//! `ramet-net`: arguments, privileges, runtime. Everything else is in the library.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use anyhow::{Context, Result};
use clap::Parser;
use ramet_net::edge::Trust;
use ramet_net::port::Shared;
use ramet_net::ranges::{Kept, Range};
use ramet_net::resolver::{self, Upstream};
use ramet_net::service::{Service, look_at_host, own_addresses};
use ramet_net::switch::Switch;
use ramet_net::{control, harden, sys};
use tokio::signal::unix::{SignalKind, signal};

/// The network service of a node: the user-mode network of its sandboxes.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where the node connects (a Unix seqpacket socket, made with mode 0600).
    #[arg(long)]
    socket: PathBuf,
    /// A server that resolves names, as ADDR or ADDR:PORT; can be repeated. The host's own if there is none.
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = resolver::parse_server)]
    dns: Vec<SocketAddr>,
    /// A range that sandboxes reach only by a rule inside of it, beside private ranges and the host's own addresses; can be repeated.
    #[arg(long, value_name = "RANGE")]
    refuse: Vec<Range>,
    /// A file with authorities (PEM) that servers behind rules for headers may be certified by, beside the host's; can be repeated.
    #[arg(long, value_name = "FILE")]
    trust: Vec<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "ramet_net=info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    sys::large_buffers_from_the_kernel();
    harden::raise_descriptors();
    let trust = Trust::with(&arguments.trust).context("cannot read the authorities of --trust")?;
    let socket = control::listen(&arguments.socket)?;
    harden::harden()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(arguments, trust, socket))
}

async fn run(arguments: Arguments, trust: Trust, socket: std::os::fd::OwnedFd) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let more = [own_addresses(), arguments.refuse.clone()].concat();
    let shared = Arc::new(Shared {
        kept: RwLock::new(Arc::new(Kept { more })),
        upstream: Upstream::new(arguments.dns),
        switch: Switch::default(),
        trust,
    });
    let looking = tokio::spawn(look_at_host(shared.clone(), arguments.refuse));
    let mut service = Service::new(shared);
    tracing::info!(socket = %arguments.socket.display(), "ready");
    let served = tokio::select! {
        served = control::serve(socket, &mut service) => served,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    looking.abort();
    served
}
