//! `rametd`: the sandboxes of one machine, over HTTP.
//!
//! ```text
//!   dialects ──▶ http ──▶ sandbox ──▶ host ──▶ ramet-vmm processes, ramet-net
//!                            │
//!                            ▼
//!                          store (SQLite)
//! ```
//!
//! Arrows point one way. [`http`] checks, converts and delegates, and so do [`dialects`], in the words of others; [`sandbox`] holds the registry and is
//! the one place that every operation passes; [`host`] makes machines behind one narrow trait;
//! [`store`] is what survives. The node can be killed at any moment: machines are processes of
//! their own, and the next start takes hold of them again.

pub mod auth;
mod clock;
pub mod config;
pub mod dialects;
pub mod events;
pub mod host;
pub mod http;
pub mod metrics;
mod random;
pub mod sandbox;
pub mod store;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use config::Config;
use dialects::e2b;
use host::monitors::{Monitors, Places};
use host::{Host, net};
use sandbox::Service;
use store::Store;

/// How long operations may go on after the node was told to stop.
const SHUTDOWN: Duration = Duration::from_secs(20);

/// Why a node did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory or the listener cannot be made.
    #[error("cannot use {what}")]
    Io {
        /// What it was.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// Another node uses the directory.
    #[error("another rametd uses {}", .0.display())]
    Taken(PathBuf),
    /// A key that signs or verifies.
    #[error("{what}: {reason}")]
    Key {
        /// The option.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificates.
    #[error("there is no TLS")]
    Tls(#[from] http::tls::Error),
    /// The database.
    #[error("the database cannot be used")]
    Store(#[from] store::Error),
    /// The token file.
    #[error("there is no token")]
    Auth(#[from] auth::Error),
    /// The engine.
    #[error("the engine cannot be used")]
    Host(#[from] host::Error),
    /// What an earlier run has left.
    #[error("the sandboxes of the last run cannot be recovered")]
    Recover(#[source] sandbox::Error),
}

fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    |source| Error::Io { what, source }
}

/// Runs a node until it is told to stop. Sandboxes live on.
pub async fn run(
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let data = &config.data_dir;
    std::fs::create_dir_all(data).map_err(io(data.display().to_string()))?;
    let _lock = config::lock(data)?;
    let store = Arc::new(Store::open(&data.join("ramet.db"))?);
    let token_file = config.token_file.clone().unwrap_or_else(|| data.join("token"));
    auth::use_token_file(&token_file, &store, clock::now_ms())?;
    let tokens = auth::Tokens::load(&store)?;
    let run = config.run_dir.clone().unwrap_or_else(|| data.join("run"));
    let engine = Monitors::new(Places {
        program: config.vmm.clone(),
        run: run.clone(),
        layers: data.join("layers"),
        disks: data.join("disks"),
        guest: config.guest_dir.clone(),
    })?;
    let network = net::service::Service::new(net::service::Places {
        program: config.net.clone(),
        run,
        arguments: config.net_arguments(),
    });
    let host = Host::new(Arc::new(engine), Arc::new(network));
    let service = Service::new(host, store, config.settings()?);
    service.recover().await.map_err(Error::Recover)?;
    service.keep_network();
    let usual = config.usual();
    service.warm_up(usual);
    service.start_clock();
    let listener = TcpListener::bind(config.listen).await.map_err(io(config.listen.to_string()))?;
    let address = listener.local_addr().map_err(io("the listener"))?;
    tracing::info!(%address, token_file = %token_file.display(), "listening");
    let app = http::App::new(service.clone(), tokens, usual);
    let key_file = data.join("e2b.key");
    let keys = e2b::Keys::load(&key_file).map_err(io(key_file.display().to_string()))?;
    let dialect = e2b::E2b::new(app.clone(), keys, config.e2b_domain.clone());
    let routes = http::bounded(e2b::over(http::routes(app.clone()), dialect), app);
    let stopping = service.stopping();
    let secure = secure(&config, routes.clone(), stopping.clone()).await?;
    let plain = http::serve::serve(listener, routes, stopping.clone());
    let served = async { tokio::join!(plain, secure) };
    let told = async {
        stop.await;
        stopping.cancel();
        // Connections that stay open do not keep the node from ending.
        tokio::time::sleep(SHUTDOWN).await;
    };
    tokio::select! {
        ((), ()) = served => {}
        () = told => {}
    }
    service.shut_down(SHUTDOWN).await;
    Ok(())
}

/// Serves with TLS as well, if that is wanted.
async fn secure(
    config: &Config,
    routes: axum::Router,
    stopping: CancellationToken,
) -> Result<impl Future<Output = ()>, Error> {
    let wanted = match (&config.e2b_domain, config.e2b_listen) {
        (Some(domain), Some(address)) => {
            let (certificate, key) =
                (config.data_dir.join("e2b-ca.pem"), config.data_dir.join("e2b-ca.key"));
            let name = domain.split(':').next().unwrap_or(domain);
            let tls = http::tls::acceptor(&certificate, &key, name)?;
            let listener = TcpListener::bind(address).await.map_err(io(address.to_string()))?;
            let address = listener.local_addr().map_err(io("the listener"))?;
            let authority = certificate.display();
            tracing::info!(%address, domain, %authority, "listening with TLS");
            Some((listener, tls))
        }
        _ => None,
    };
    Ok(async move {
        if let Some((listener, tls)) = wanted {
            http::serve::serve_secure(listener, tls, routes, stopping).await;
        }
    })
}
