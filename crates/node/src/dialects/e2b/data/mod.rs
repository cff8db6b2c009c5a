//! What SDKs say to a sandbox.
//!
//! | port | what is there |
//! |---|---|
//! | 49983 | `process.Process` and `filesystem.Filesystem` over Connect, files over HTTP: the agent, translated here |
//! | 49999 | the code interpreter, a server in the guest that is started by the first request |
//! | others | whatever listens in the guest |
//!
//! [`route`] says which sandbox a request is for, [`access`] whether it may. From there on it acts as the owner of the sandbox. The
//! tokens of the dialect never reach a guest. [`connect`] is the protocol of the two services, [`process`], [`filesystem`] and [`watch`]
//! are what they do; [`files`] is HTTP's way to files.

mod access;
mod body;
mod connect;
mod entry;
mod envd;
mod files;
mod filesystem;
mod interpreter;
mod multipart;
mod person;
mod process;
mod refused;
mod route;
mod signals;
#[cfg(test)]
mod tests;
mod traffic;
mod watch;

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};

use super::{E2b, Fault};
use crate::sandbox::record::Phase;
use crate::sandbox::{INTERPRETER_PORT, Live, Renewal};
use refused::Refused;

pub use route::Target;

/// Port of the agent, as E2B's SDKs know it.
const ENVD: u16 = 49983;

/// Seconds that a sandbox has which a request has resumed.
pub const TRAFFIC_S: u64 = 300;

/// What requests to sandboxes share.
#[derive(Clone, Default)]
pub struct Shared {
    watchers: Arc<watch::Watchers>,
}

/// Which sandbox a request is for, if it is for one.
pub fn target(e2b: &E2b, request: &Request) -> Option<Target> {
    route::target(e2b.domain.as_deref(), request)
}

/// Answers it.
pub async fn serve(e2b: &E2b, target: Target, request: Request) -> Response {
    match answer(e2b, target, request).await {
        Ok(response) => response,
        Err(refused) => refused.into_response(),
    }
}

async fn answer(e2b: &E2b, target: Target, request: Request) -> Result<Response, Refused> {
    let (sandbox, port) = match target {
        Target::Port { sandbox, port } => (sandbox, port),
        Target::Signed => {
            let sandbox = access::signed_for(e2b, &request)?;
            let live = access::admit(e2b, &sandbox)?;
            give_time(e2b, &live).await?;
            return Ok(envd::serve(e2b, live, request).await);
        }
        Target::Bad(reason) => return Err(Refused::bad(&reason)),
    };
    let live = access::admit(e2b, &sandbox)?;
    match port {
        ENVD => {
            access::check_envd(e2b, &live.id, &request)?;
            give_time(e2b, &live).await?;
            Ok(envd::serve(e2b, live, request).await)
        }
        port => {
            access::check_traffic(e2b, &live, &request)?;
            give_time(e2b, &live).await?;
            if port == INTERPRETER_PORT {
                interpreter::ensure(e2b, &live).await?;
            }
            traffic::pass(e2b, &live, port, request).await
        }
    }
}

/// A request to a paused sandbox resumes it, and gives it some time: what it had is over.
async fn give_time(e2b: &E2b, live: &Live) -> Result<(), Refused> {
    if live.phase != Phase::Paused {
        return Ok(());
    }
    let renewed = e2b.app.service.renew(&live.who, &live.id, Renewal::AtLeast(TRAFFIC_S)).await;
    renewed.map(drop).map_err(|error| {
        let fault = Fault::from(error);
        Refused::other(&live.id, fault.status, &fault.message)
    })
}
