//! The code interpreter: a server that is in the image, and runs once somebody asks for it.
//!
//! Invariant: it is started by one request at a time for each sandbox, so it is started once. Children of a fork have it running already.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::http::StatusCode;
use ramet_proto::agent::Exec;
use ramet_proto::api::Code;
use ramet_proto::api::network::PortWaitQuery;

use super::INTERPRETER;
use super::refused::Refused;
use crate::dialects::e2b::E2b;
use crate::http::problem;
use crate::sandbox::{Error, Live};

/// The server, as images have it.
const SERVER: &str = "/usr/lib/ramet/interpreter/server.py";
/// How it is started.
const COMMAND: [&str; 3] = ["/usr/bin/python3", "-I", SERVER];
/// What it is called among the commands of a sandbox, where it is not shown.
pub const TAG: &str = "ramet.interpreter";
/// How long it may take to listen.
const START_S: u64 = 60;

/// Starts under way, by sandbox.
#[derive(Default)]
pub struct Starts(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Starts {
    fn turn(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut starts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        starts.retain(|_, turn| turn.strong_count() > 0);
        let known = starts.get(id).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let turn = Arc::default();
            starts.insert(id.to_owned(), Arc::downgrade(&turn));
            turn
        })
    }
}

/// Sees to it that it listens.
pub async fn ensure(e2b: &E2b, live: &Live) -> Result<(), Refused> {
    if listens(e2b, live).await? {
        return Ok(());
    }
    let turn = e2b.data.starts.turn(&live.id);
    let _turn = turn.lock().await;
    if listens(e2b, live).await? {
        return Ok(());
    }
    let service = &e2b.app.service;
    let there = service.entry(&live.who, &live.id, SERVER).await;
    there.map_err(|error| failed(live, &error))?;
    let exec = Exec {
        argv: COMMAND.map(str::to_owned).to_vec(),
        cwd: Some("/".to_owned()),
        user: Some("root".to_owned()),
        tag: Some(TAG.to_owned()),
        ..Exec::default()
    };
    // It goes on when nobody hears it.
    let started = service.start_command(&live.who, &live.id, exec).await;
    drop(started.map_err(|error| failed(live, &error))?);
    let wait = PortWaitQuery { timeout_s: Some(START_S), path: None };
    let ready = service.wait_port(&live.who, &live.id, INTERPRETER, &wait).await;
    ready.map(drop).map_err(|error| failed(live, &error))
}

async fn listens(e2b: &E2b, live: &Live) -> Result<bool, Refused> {
    let ports = e2b.app.service.ports(&live.who, &live.id).await;
    let ports = ports.map_err(|error| failed(live, &error))?.ports;
    Ok(ports.iter().any(|one| one.port == INTERPRETER && one.protocol == "tcp"))
}

fn failed(live: &Live, error: &Error) -> Refused {
    let problem = problem::of(error);
    match problem.code {
        Code::NotFound | Code::Gone | Code::Promoted => Refused::not_found(&live.id, None),
        Code::WrongState => Refused::not_found(&live.id, Some(&problem.detail)),
        Code::FileNotFound => {
            let text =
                "The sandbox's image has no code interpreter; create it from code-interpreter-v1";
            Refused::other(&live.id, StatusCode::BAD_GATEWAY, text)
        }
        _ => {
            let text = format!("The code interpreter did not start: {}", problem.detail);
            Refused::other(&live.id, StatusCode::BAD_GATEWAY, &text)
        }
    }
}
