//! The host's clock jumps: nobody's time is over before it is, and nobody lives for ever.
//!
//! The clock is everybody's, so this is done only in the software host, which is ours alone.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ramet_client::api::{Code, CreateSandbox, ExecRequest, State};

use crate::bed::{eventually, fresh, node, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![the_clock_jumps];

const DAY: i64 = 86400;

fn seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_secs()).expect("not that late")
}

/// Sets the clock right again when it goes.
struct Clock {
    began: Instant,
    right: i64,
}

impl Clock {
    fn new() -> Self {
        Self { began: Instant::now(), right: seconds() }
    }

    fn set(&self, ahead: i64) {
        let passed = i64::try_from(self.began.elapsed().as_secs()).expect("not that long");
        let time = format!("@{}", self.right + passed + ahead);
        let status = Command::new("date").args(["--utc", "--set", &time]).output();
        assert!(status.expect("date").status.success(), "the clock is not ours");
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.set(0);
    }
}

fn the_clock_jumps() {
    if std::env::var_os("RAMET_SOFTWARE_HOST").is_none() {
        eprintln!("SKIPPED  clock jumps: this machine's clock is not ours to set");
        return;
    }
    let clock = Clock::new();
    let limited = node().create_as(CreateSandbox {
        timeout_s: Some(3600),
        idle_timeout_s: Some(3600),
        ..CreateSandbox::default()
    });
    let source = fresh("jumping");
    clock.set(2 * DAY);
    // Long enough for the node to look at its clock.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(limited.shown().state, State::Running, "an hour has not passed");
    let child = source.fork(1).remove(0);
    let there: f64 = child.py("print(time.time())").parse().expect("a number");
    assert!((there - seconds() as f64).abs() < 60.0, "a child knows the new time: {there}");
    node().restart();
    node().await_ready();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(limited.shown().state, State::Running, "nor over a restart");
    clock.set(-DAY);
    let short = CreateSandbox { timeout_s: Some(3), ..CreateSandbox::default() };
    let short = node().create_as(short);
    clock.set(-3 * DAY);
    eventually("its end, though the clock went back", || {
        let asked = wait(node().client.sandbox(&short.id));
        asked.is_err_and(|error| error.code() == Some(Code::Gone))
    });
    let command = Some("sleep 99".to_owned());
    let timed = ExecRequest { command, timeout_ms: Some(1000), ..ExecRequest::default() };
    assert!(limited.exec(&timed).expect("it runs").timed_out);
}
