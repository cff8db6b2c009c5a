//! From an exec request to a running program.
//!
//! Refuses, before anything is started: an empty argv, NUL anywhere, names of variables with `=`,
//! users that do not exist. What only shows when it is tried (no such program, no such directory)
//! is reported the same way, before `Started`.
//!
//! A process gets: the base environment, the user's own variables, the machine's environment and
//! secrets (read from the identity's file at each start, so that a child machine never starts a
//! process with what its source had), then what the request adds; later ones win.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::pty::openpty;
use ramet_proto::agent::{Channel, Command, Exec, Reply};

use super::client::Manner;
use super::pump::{Feed, Pump, Stream};
use super::{enter, set_blocking, wake_event};
use crate::failure::{Outcome, bad_request, from_errno, from_io};
use crate::frame::Connection;
use crate::sys::kernel::resize_terminal;
use crate::sys::spawn::{Plan, Step, spawn};
use crate::users::{self, User};
use crate::{identity, network};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Longest tag.
const TAG_BYTES: usize = 256;
/// Most of a request that is remembered.
const COMMAND_BYTES: usize = 32 * 1024;

/// The agent's and the program's ends of the standard streams.
struct Streams {
    /// Program's ends, for standard input, output and error.
    theirs: [OwnedFd; 3],
    /// Where to write its input.
    feed: Feed,
    /// Where to read its output.
    outputs: Vec<Stream>,
}

/// Serve an exec session: start, then pump until the process has ended.
pub fn exec(connection: Connection, exec: &Exec) {
    match begin(exec) {
        Err(failure) => connection.refuse(failure),
        Ok(mut pump) => {
            let pid = pump.pid();
            // If the client is gone already, the process goes on without one.
            if connection.send(&Reply::Started { pid }).is_ok() {
                pump.take_client(connection, Manner::Hear);
            } else {
                pump.no_client(Manner::Hear);
            }
            pump.run();
        }
    }
}

fn begin(exec: &Exec) -> Outcome<Pump> {
    let user = users::find(exec.user.as_deref())?;
    let mut streams = match exec.terminal {
        Some(_) => on_terminal(exec)?,
        None => on_pipes(exec.stdin)?,
    };
    let group = super::limits::group().map_err(|error| from_io("limit of processes", &error))?;
    let mut plan = plan(exec, &user, &streams)?;
    plan.group = group.as_ref().map(AsRawFd::as_raw_fd);
    let entry = match enter(|| spawn(&plan), wake_event()?, command(exec)?) {
        Ok(entered) => entered?,
        Err((step, errno)) => return Err(explain(exec, &user, step, errno)),
    };
    drop(streams.theirs);
    for stream in &mut streams.outputs {
        set_blocking(&stream.file, false)
            .map_err(|error| from_io("output of the process", &error))?;
    }
    let timeout = exec.timeout_ms.map(Duration::from_millis);
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    Ok(Pump::new(Arc::clone(&entry), streams.feed, streams.outputs, deadline, exec.linger))
}

/// What is remembered of a request.
fn command(exec: &Exec) -> Outcome<Command> {
    if exec.tag.as_ref().is_some_and(|tag| tag.len() > TAG_BYTES) {
        return Err(bad_request(format!("tag: at most {TAG_BYTES} bytes")));
    }
    let command = Command {
        pid: 0,
        argv: exec.argv.clone(),
        env: exec.env.clone(),
        cwd: exec.cwd.clone(),
        tag: exec.tag.clone(),
        terminal: exec.terminal.is_some(),
        ended: false,
    };
    if serde_json::to_vec(&command).is_ok_and(|text| text.len() <= COMMAND_BYTES) {
        return Ok(command);
    }
    let argv = command.argv.into_iter().take(1).collect();
    Ok(Command { argv, env: BTreeMap::new(), cwd: None, ..command })
}

fn on_pipes(stdin: bool) -> Outcome<Streams> {
    let failed = |errno| from_errno("pipe for the process", errno);
    let (their_input, feed) = if stdin {
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        set_blocking(&writer, false).map_err(|error| from_io("pipe for the process", &error))?;
        (reader, Feed::Pipe(File::from(writer)))
    } else {
        let null = File::open("/dev/null").map_err(|error| from_io("/dev/null", &error))?;
        (OwnedFd::from(null), Feed::None)
    };
    let (output, their_output) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
    let (error, their_error) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
    Ok(Streams {
        theirs: [their_input, their_output, their_error],
        feed,
        outputs: vec![
            Stream::new(File::from(output), Channel::Stdout),
            Stream::new(File::from(error), Channel::Stderr),
        ],
    })
}

fn on_terminal(exec: &Exec) -> Outcome<Streams> {
    let failed = |error: std::io::Error| from_io("terminal for the process", &error);
    let pty = openpty(None, None).map_err(|errno| failed(errno.into()))?;
    for side in [&pty.master, &pty.slave] {
        let flag = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC);
        nix::fcntl::fcntl(side, flag).map_err(|errno| failed(errno.into()))?;
    }
    if let Some(size) = exec.terminal {
        resize_terminal(pty.master.as_fd(), size).map_err(failed)?;
    }
    let master = File::from(pty.master);
    let feed = Feed::Terminal(master.try_clone().map_err(failed)?);
    Ok(Streams {
        theirs: [
            pty.slave.try_clone().map_err(failed)?,
            pty.slave.try_clone().map_err(failed)?,
            pty.slave,
        ],
        feed,
        outputs: vec![Stream::new(master, Channel::Stdout)],
    })
}

fn plan(exec: &Exec, user: &User, streams: &Streams) -> Outcome<Plan> {
    let Some(program) = exec.argv.first().filter(|program| !program.is_empty()) else {
        return Err(bad_request("argv: names no program"));
    };
    let env = environment(exec, user)?;
    let path = env.get("PATH").map_or(PATH, String::as_str);
    let programs: Vec<String> = match program.contains('/') {
        true => vec![program.clone()],
        false => path.split(':').map(|directory| format!("{directory}/{program}")).collect(),
    };
    let mut env: Vec<String> = env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    env.sort();
    let change =
        nix::unistd::geteuid().is_root() || user.ids.uid != nix::unistd::geteuid().as_raw();
    Ok(Plan {
        programs: strings("argv", &programs)?,
        argv: strings("argv", &exec.argv)?,
        env: strings("env", &env)?,
        cwd: string("cwd", exec.cwd.as_deref().unwrap_or(&user.home))?,
        cwd_optional: exec.cwd.is_none(),
        ids: change.then(|| user.ids.clone()),
        stdio: [0, 1, 2].map(|index: usize| streams.theirs[index].as_raw_fd()),
        terminal: exec.terminal.is_some(),
        group: None,
        descriptors: super::limits::for_programs(),
    })
}

fn environment(exec: &Exec, user: &User) -> Outcome<BTreeMap<String, String>> {
    let base = [
        ("PATH", PATH),
        ("LANG", "C.UTF-8"),
        ("HOME", &user.home),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("SHELL", &user.shell),
    ];
    let mut env: BTreeMap<String, String> =
        base.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    if exec.terminal.is_some() {
        env.insert("TERM".to_owned(), "xterm-256color".to_owned());
    }
    env.extend(network::environment().into_iter().map(|(key, value)| (key.to_owned(), value)));
    env.extend(identity::environment());
    for (key, value) in &exec.env {
        if key.is_empty() || key.contains('=') {
            return Err(bad_request(format!("env: {key:?} is no name of a variable")));
        }
        env.insert(key.clone(), value.clone());
    }
    Ok(env)
}

fn string(what: &str, text: &str) -> Outcome<CString> {
    CString::new(text).map_err(|_| bad_request(format!("{what}: contains NUL")))
}

fn strings(what: &str, texts: &[String]) -> Outcome<Vec<CString>> {
    texts.iter().map(|text| string(what, text)).collect()
}

fn explain(exec: &Exec, user: &User, step: Step, errno: Errno) -> ramet_proto::agent::Failure {
    match step {
        Step::Clone => from_errno("new process", errno),
        Step::Group => from_errno("limit of processes", errno),
        Step::Streams => from_errno("session of the process", errno),
        Step::Ids => from_errno(format_args!("become user {}", user.name), errno),
        Step::Directory => {
            let cwd = exec.cwd.as_deref().unwrap_or(&user.home);
            from_errno(format_args!("working directory {cwd}"), errno)
        }
        Step::Program => {
            let program = exec.argv.first().map_or("", String::as_str);
            from_errno(format_args!("program {program}"), errno)
        }
    }
}
