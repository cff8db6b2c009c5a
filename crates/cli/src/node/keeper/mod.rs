//! The keeper: holds the lock, runs rametd, starts it again when it dies, stops it on SIGTERM.
//!
//! One loop receives everything that can happen ([`Event`]). It blocks; what takes long is done by
//! threads that report to it, so that a signal is heeded at any time.
//!
//! ```text
//!   starting ──▶ running ──▶ rametd ended ──▶ starting (after a pause that grows)
//!       │           │
//!       └───────────┴── SIGTERM, SIGINT ──▶ stopping ──▶ gone
//! ```

mod gate;
mod hardware;
mod software;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ramet_client::api::HostMode;

use crate::failure::Failure;
use crate::node::home::{Home, Record, replace};
use crate::node::names::is_certificate;
use crate::node::{probe, programs, start};
use crate::output::now_ms;

/// Port of the API, where it can be chosen.
pub const PORT: u16 = 7878;
/// A node that ran for this long was fine, and whatever ended it was something new.
const FINE: Duration = Duration::from_secs(60);
/// Failures in a row after which the keeper gives up.
const FAILURES_MAX: u32 = 5;
/// How long rametd may take to end after SIGTERM; it gives operations 20 s to finish.
const END_TIME: Duration = Duration::from_secs(30);

/// Between two looks for the authority of names, and how many there are.
const AUTHORITY_PAUSE: Duration = Duration::from_millis(200);
const AUTHORITY_LOOKS: u32 = 600;

/// What a node is made of.
pub struct Plan {
    home: Home,
    vmm: PathBuf,
    /// Without it sandboxes have no network.
    net: Option<PathBuf>,
    rametd: PathBuf,
    guest: PathBuf,
    mode: HostMode,
    options: start::Options,
}

/// Everything that can happen.
enum Event {
    /// SIGTERM or SIGINT.
    Stop,
    /// rametd has ended, or was lost; the text says how.
    Ended(String),
    /// The software host is up, or not.
    Host(Box<Result<ramet_engine::host::SoftwareHost, String>>),
}

/// Why the loop ended.
enum Verdict {
    /// As asked.
    Stopped,
    /// rametd ended, and should be started again.
    Again(String),
}

impl Plan {
    /// Finds everything that is needed.
    pub async fn make(home: Home, options: start::Options) -> Result<Self, Failure> {
        home.set_stage("looking at this machine");
        let (vmm, rametd) = (programs::vmm()?, programs::rametd()?);
        let guest = programs::guest_dir(&home)?;
        let mode = probe::ask(&vmm).await?.mode;
        if mode == HostMode::Software && options.store.store.is_some() {
            return Err(Failure::usage(
                "the software host has a disk of its own and no way to a store elsewhere",
            )
            .next(
                "leave --store and RAMET_STORE out; `ramet doctor` says what hardware mode needs",
            ));
        }
        let net = programs::net();
        if let Err(failure) = &net {
            eprintln!("keeper: sandboxes have no network: {failure}");
        }
        Ok(Self { home, vmm, net: net.ok(), rametd, guest, mode, options })
    }

    /// Says where the node is from now on.
    fn publish(&self, url: String) -> Result<(), Failure> {
        let record = Record {
            url,
            token_file: self.home.token_file(),
            mode: self.mode,
            pid: std::process::id(),
            started_at_ms: now_ms(),
        };
        let written = self.home.write_record(&record);
        written.map_err(|error| Failure::because("cannot say where the node is", &error))
    }
}

/// Keeps a node until it is told to stop. The caller holds the lock.
pub fn keep(plan: &Plan) -> Result<(), Failure> {
    let cannot = |error: &dyn std::error::Error| Failure::because("cannot keep a node", error);
    let token = plan.home.token().map_err(|error| cannot(&error))?;
    let (sender, events) = channel();
    watch_signals(sender.clone()).map_err(|error| cannot(&error))?;
    let result = keep_trying(plan, &token, &sender, &events);
    plan.home.forget();
    result
}

fn keep_trying(
    plan: &Plan,
    token: &str,
    sender: &Sender<Event>,
    events: &Receiver<Event>,
) -> Result<(), Failure> {
    let mut failures = 0;
    loop {
        let began = Instant::now();
        let verdict = match plan.mode {
            HostMode::Hardware => hardware::run(plan, sender, events)?,
            HostMode::Software => software::run(plan, token, sender, events)?,
        };
        let Verdict::Again(reason) = verdict else { return Ok(()) };
        failures = if began.elapsed() >= FINE { 1 } else { failures + 1 };
        eprintln!("keeper: {reason}");
        if failures >= FAILURES_MAX {
            let text = format!("the node ended {failures} times in a row, at last: {reason}");
            return Err(Failure::new(text));
        }
        plan.home.set_stage("starting the node again");
        match events.recv_timeout(Duration::from_secs(1 << failures)) {
            Ok(Event::Stop) => return Ok(()),
            // What else comes belongs to the run that is over.
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// The next event. Where names are wished for, their authority is looked for until it was found.
fn next_event(
    plan: &Plan,
    events: &Receiver<Event>,
    mut authority: impl FnMut() -> Option<Vec<u8>>,
) -> Result<Event, RecvError> {
    let looks = if plan.options.names.e2b_domain.is_some() { AUTHORITY_LOOKS } else { 0 };
    for _ in 0..looks {
        match events.recv_timeout(AUTHORITY_PAUSE) {
            Ok(event) => return Ok(event),
            Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let Some(text) = authority().filter(|text| is_certificate(text)) else { continue };
        if let Err(error) = replace(&plan.home.authority_file(), &text) {
            eprintln!("keeper: cannot keep the authority of names: {error}");
        }
        break;
    }
    events.recv()
}

/// Reports the signals that end a keeper. A second one ends it on the spot.
fn watch_signals(sender: Sender<Event>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut term, mut int) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let work = move || {
        for count in 0_u32.. {
            runtime.block_on(async {
                tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            });
            eprintln!("keeper: told to stop");
            if count > 0 || sender.send(Event::Stop).is_err() {
                std::process::exit(1);
            }
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(work).map(drop)
}
