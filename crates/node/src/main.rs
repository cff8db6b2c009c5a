//! The program: reads its options, runs the node until a signal.

use anyhow::{Context, Result};
use clap::Parser;
use ramet_node::config::Config;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> Result<()> {
    let config = Config::parse();
    let filter = EnvFilter::try_from_env("RAMET_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot hear signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot hear signals")?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("stopping; sandboxes live on");
        };
        ramet_node::run(config, stop).await.context("rametd cannot run")
    })
}
