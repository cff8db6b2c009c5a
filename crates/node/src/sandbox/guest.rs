//! What happens inside a sandbox: processes and files, through its agent.
//!
//! A request inside keeps the sandbox from being idle until it is over, streams included. Operations that a task
//! of the service carries out to the end (exec, small ones) survive a client that hangs up; streams
//! belong to their client.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ramet_proto::agent::{
    self as wire, Channel, Entry, Exec, Exited, Input, List, Mkdir, ReadFile, Reply, Request,
    Signal, WriteFile,
};
use ramet_proto::api::{self, Encoding, ExecRequest, ExecResult, StreamExec, StreamRequest};
use tokio::time::timeout;

use super::error::Error;
use super::record::Phase;
use super::registry::Life;
use super::{Service, check};
use crate::auth::Principal;
use crate::clock::{now_ms, since_us};
use crate::host::MachineId;
use crate::host::agent::{self, Frame, Listener, PATIENCE, Session, Speaker, unexpected};
use crate::metrics::seconds;

/// Time of a process whose caller says none.
const EXEC_TIME_MS: u64 = 600_000;
/// Most time of a process that somebody waits for.
const EXEC_TIME_MAX_MS: u64 = 24 * 3600 * 1000;
/// Most output that is collected, of both streams together.
const OUTPUT_MAX: usize = 16 << 20;
/// Most standard input of an exec that is no stream.
const STDIN_MAX: usize = 8 << 20;
/// Most entries of a list.
const ENTRIES_MAX: usize = 100_000;
/// Deepest list.
const DEPTH_MAX: u32 = 64;
/// Zeros that stand for a hole, at a time.
const ZEROS: usize = 64 << 10;

/// Keeps a sandbox from being idle.
pub struct Busy {
    service: Service,
    /// Which.
    pub(super) id: String,
    life: Arc<Life>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.life.busy.fetch_sub(1, Ordering::Relaxed);
        self.service.registry().touch(&self.id);
    }
}

/// A process that is streamed.
pub struct GuestStream {
    /// Its pid.
    pub pid: i32,
    /// What it says: bytes, then [`Reply::Exited`].
    pub listener: Listener,
    /// What it is told.
    pub speaker: Speaker,
    /// Until the stream ends.
    pub busy: Busy,
}

/// A part of a file, as a client asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// From a byte to another, or to the end.
    From(u64, Option<u64>),
    /// That many at the end.
    Last(u64),
}

/// A file, or an archive of a directory, that is being read.
pub struct FileSource {
    /// What it is.
    pub entry: Entry,
    /// First byte that comes.
    pub offset: u64,
    /// Bytes that come; unknown for files that do not tell their size.
    pub length: Option<u64>,
    listener: Listener,
    _speaker: Speaker,
    hole: u64,
    _busy: Busy,
}

impl FileSource {
    fn new(entry: Entry, offset: u64, length: Option<u64>, session: Session, busy: Busy) -> Self {
        let Session { listener, speaker } = session;
        Self { entry, offset, length, listener, _speaker: speaker, hole: 0, _busy: busy }
    }

    /// The next bytes; none at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        if self.hole == 0 {
            match self.listener.soon().await? {
                Frame::Bytes(Channel::Stdout, bytes) => return Ok(Some(bytes)),
                Frame::Reply(Reply::Hole { length }) => self.hole = length,
                Frame::Reply(Reply::Done {}) => return Ok(None),
                Frame::Reply(other) => return Err(unexpected(&other).into()),
                Frame::Bytes(channel, _) => {
                    return Err(agent::Error::Protocol(format!("bytes on {channel:?}")).into());
                }
            }
        }
        let length = usize::try_from(self.hole).unwrap_or(ZEROS).min(ZEROS);
        self.hole -= length as u64;
        Ok(Some(vec![0; length]))
    }
}

/// Something that is being sent into a guest: a file, an archive. Dropped before its end, it is broken off there.
pub struct Upload {
    session: Session,
    kind: &'static str,
    /// Until it is noted how this ended.
    operation: Option<i64>,
    busy: Busy,
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.note(Some(&Error::Bad("the client broke off".to_owned())));
    }
}

impl Upload {
    /// The next bytes.
    pub async fn data(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let sent = timeout(PATIENCE, self.session.speaker.bytes(bytes)).await;
        match sent.unwrap_or(Err(agent::Error::Timeout)) {
            Ok(()) => Ok(()),
            // The agent says why before it hangs up.
            Err(error) => {
                let error = match self.session.listener.reply().await {
                    Err(failure @ agent::Error::Failure(_)) => failure.into(),
                    _ => error.into(),
                };
                self.note(Some(&error));
                Err(error)
            }
        }
    }

    /// A file is whole.
    pub async fn finish(self) -> Result<api::File, Error> {
        self.settle(|reply| expect_stat(reply).map(file)).await
    }

    /// An archive is whole.
    pub async fn finish_archive(self) -> Result<api::Unpacked, Error> {
        self.settle(|reply| match reply {
            Reply::Unpacked(wire::Unpacked { entries, files, bytes }) => {
                Ok(api::Unpacked { entries, files, bytes })
            }
            other => Err(unexpected(&other).into()),
        })
        .await
    }

    async fn settle<T>(
        mut self,
        convert: impl FnOnce(Reply) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let result = self.end().await.and_then(convert);
        self.note(result.as_ref().err());
        result
    }

    fn note(&mut self, error: Option<&Error>) {
        if let Some(number) = self.operation.take() {
            self.busy.service.note(number, self.kind, error);
        }
    }

    async fn end(&mut self) -> Result<Reply, Error> {
        self.session.speaker.input(&Input::End {}).await?;
        Ok(self.session.listener.reply().await?)
    }
}

impl Service {
    /// A session with the agent of a sandbox that runs.
    pub(super) async fn session(
        &self,
        who: &Principal,
        key: &str,
    ) -> Result<(Session, Busy), Error> {
        self.awake(who, key).await?;
        let (machine, busy) = self.enter(who, key)?;
        Ok((self.host.agent(&machine).await?, busy))
    }

    /// Resumes a sandbox that wants to be resumed by whoever needs it.
    async fn awake(&self, who: &Principal, key: &str) -> Result<(), Error> {
        let record = self.find(who, key)?;
        if record.auto_resume && record.phase == Phase::Paused {
            self.resume(who, &record.id).await?;
        }
        Ok(())
    }

    fn enter(&self, who: &Principal, key: &str) -> Result<(MachineId, Busy), Error> {
        let record = self.find(who, key)?;
        let machine = match (record.phase, record.machine) {
            (Phase::Running, Some(machine)) => machine,
            (Phase::Paused, _) => {
                let text = format!("the sandbox {} is paused; resume it first", record.id);
                return Err(Error::WrongState(text));
            }
            _ => {
                let text = format!("the sandbox {} has failed; rewind or delete it", record.id);
                return Err(Error::WrongState(text));
            }
        };
        let mut registry = self.registry();
        registry.touch(&record.id);
        let life = registry.life(&record.id);
        life.busy.fetch_add(1, Ordering::Relaxed);
        Ok((machine, Busy { service: self.clone(), id: record.id, life }))
    }

    /// Runs a process to its end.
    pub async fn exec(
        &self,
        who: &Principal,
        key: &str,
        request: ExecRequest,
    ) -> Result<ExecResult, Error> {
        let began = Instant::now();
        let (mut exec, stdin, encoding) = exec_of(request)?;
        self.usual_place(who, key, &mut exec)?;
        self.awake(who, key).await?;
        let (_, busy) = self.enter(who, key)?;
        let target = busy.id.clone();
        let (service, principal) = (self.clone(), who.clone());
        self.operate(who, "exec", &target, async move {
            service.before_exec(&principal, &busy.id, &exec.argv).await?;
            let (session, _busy) = service.session(&principal, &busy.id).await?;
            let mut result = run(session, &exec, stdin, encoding).await?;
            result.duration_us = since_us(began);
            service.metrics.exec.observe(seconds(result.duration_us));
            Ok(result)
        })
        .await
    }

    /// Where and as whom a process runs that does not say: as the sandbox's template says.
    fn usual_place(&self, who: &Principal, key: &str, exec: &mut Exec) -> Result<(), Error> {
        let registry = self.registry();
        let record = registry.find(who, key)?;
        exec.user = exec.user.take().or_else(|| record.user.clone());
        exec.cwd = exec.cwd.take().or_else(|| record.workdir.clone());
        Ok(())
    }

    /// Starts a process, or joins one, to be streamed.
    pub async fn stream(
        &self,
        who: &Principal,
        key: &str,
        request: StreamRequest,
    ) -> Result<GuestStream, Error> {
        match request {
            StreamRequest::Exec(exec) => self.start(who, key, stream_exec(exec)?).await,
            StreamRequest::Attach { pid } => {
                self.open(who, key, "attach", Request::Attach(wire::Attach { pid })).await
            }
        }
    }

    /// Starts a process that was checked.
    pub(super) async fn start(
        &self,
        who: &Principal,
        key: &str,
        mut exec: Exec,
    ) -> Result<GuestStream, Error> {
        self.usual_place(who, key, &mut exec)?;
        self.open(who, key, "exec_stream", Request::Exec(exec)).await
    }

    /// Begins what the agent answers with `Started`.
    pub(super) async fn open(
        &self,
        who: &Principal,
        key: &str,
        kind: &'static str,
        request: Request,
    ) -> Result<GuestStream, Error> {
        self.awake(who, key).await?;
        let (_, busy) = self.enter(who, key)?;
        let target = busy.id.clone();
        let (service, principal) = (self.clone(), who.clone());
        self.operate(who, kind, &target, async move {
            if let Request::Exec(exec) = &request {
                service.before_exec(&principal, &busy.id, &exec.argv).await?;
            }
            let (mut session, _busy) = service.session(&principal, &busy.id).await?;
            match session.ask(&request).await? {
                Reply::Started { pid } => {
                    let Session { listener, speaker } = session;
                    Ok(GuestStream { pid, listener, speaker, busy })
                }
                other => Err(unexpected(&other).into()),
            }
        })
        .await
    }

    /// Every process.
    pub async fn processes(&self, who: &Principal, key: &str) -> Result<api::ProcessList, Error> {
        let (mut session, _busy) = self.session(who, key).await?;
        match session.ask(&Request::Processes {}).await? {
            Reply::Processes { processes } => {
                Ok(api::ProcessList { processes: processes.into_iter().map(process).collect() })
            }
            other => Err(unexpected(&other).into()),
        }
    }

    /// Sends a signal.
    pub async fn signal(
        &self,
        who: &Principal,
        key: &str,
        pid: i32,
        request: api::SignalRequest,
    ) -> Result<(), Error> {
        if !(1..=64).contains(&request.signal) {
            return Err(Error::Bad(format!("signal: 1 to 64, not {}", request.signal)));
        }
        if pid < 1 {
            return Err(Error::Bad(format!("pid: a process, not {pid}")));
        }
        let signal = Signal { pid, signal: request.signal, group: request.group };
        self.small(who, key, "signal", Request::Signal(signal)).await
    }

    /// An operation that is done or not, noted.
    async fn small(
        &self,
        who: &Principal,
        key: &str,
        kind: &'static str,
        request: Request,
    ) -> Result<(), Error> {
        let (mut session, busy) = self.session(who, key).await?;
        let target = busy.id.clone();
        self.operate(who, kind, &target, async move {
            let _busy = busy;
            Ok(session.done(&request).await?)
        })
        .await
    }

    /// Figures, with what the guest says if it runs.
    pub async fn stats(&self, who: &Principal, key: &str) -> Result<api::Stats, Error> {
        let record = self.find(who, key)?;
        if record.is_stored() && record.machine.is_none() {
            let stored = self.with_warmth(record.shown()).stored;
            return Ok(api::Stats { stored, ..api::Stats::default() });
        }
        let machine = super::life::machine_of(&record, "be measured")?;
        let stats = self.host.call(move |engine| engine.stats(&machine)).await?;
        let guest = match record.phase {
            Phase::Running => self.usage(who, &record.id).await.ok(),
            _ => None,
        };
        let blocks = |count: fn(&ramet_proto::control::DiskStats) -> u64| {
            stats.disks.iter().map(count).sum::<u64>() * 4096
        };
        Ok(api::Stats {
            pss_kib: stats.pss_kib,
            private_kib: stats.private_kib,
            ram_present_kib: stats.ram_present_kib,
            ram_private_kib: stats.ram_private_kib,
            disk_changed_bytes: blocks(|disk| disk.changed_blocks),
            disk_own_bytes: blocks(|disk| disk.own_blocks),
            last_pause_us: stats.last_pause_us,
            guest,
            stored: None,
        })
    }

    async fn usage(&self, who: &Principal, id: &str) -> Result<api::GuestUsage, Error> {
        let usage = self.guest_usage(who, id).await?;
        Ok(api::GuestUsage {
            cpus: usage.cpus,
            cpu_busy_ms: usage.cpu_busy_ms,
            uptime_ms: usage.uptime_ms,
            memory_total_bytes: usage.memory_total_bytes,
            memory_available_bytes: usage.memory_available_bytes,
            disk_total_bytes: usage.disk_total_bytes,
            disk_free_bytes: usage.disk_free_bytes,
            processes: usage.processes,
        })
    }

    /// The console; of a failed sandbox what was kept of it.
    pub async fn logs(&self, who: &Principal, key: &str) -> Result<api::Logs, Error> {
        let record = self.find(who, key)?;
        if let Some(failure) = record.failure {
            let written = failure.console.len() as u64;
            return Ok(api::Logs { written, text: failure.console });
        }
        let machine = super::life::machine_of(&record, "show its console")?;
        let (written, text) = self.host.call(move |engine| engine.console(&machine)).await?;
        Ok(api::Logs { written, text })
    }

    /// Begins to read a file.
    pub async fn read_file(
        &self,
        who: &Principal,
        key: &str,
        path: &str,
        range: Option<ByteRange>,
    ) -> Result<FileSource, Error> {
        check::path("path", path)?;
        let (offset, wanted) = match range {
            None => (0, None),
            Some(ByteRange::From(first, last)) => {
                (first, last.map(|last| last.saturating_sub(first).saturating_add(1)))
            }
            Some(ByteRange::Last(count)) => {
                let size = self.size_of(who, key, path).await?;
                (size.saturating_sub(count), Some(count))
            }
        };
        let file = ReadFile { path: path.to_owned(), offset, length: wanted };
        let (mut session, busy) = self.session(who, key).await?;
        let entry = expect_stat(session.ask(&Request::ReadFile(file)).await?)?;
        if range.is_some() && offset >= entry.size {
            return Err(Error::BadRange { size: entry.size });
        }
        let rest = entry.size.saturating_sub(offset);
        // Files of the kernel say 0 and hold something.
        let length = (entry.size > 0).then(|| wanted.map_or(rest, |wanted| wanted.min(rest)));
        Ok(FileSource::new(entry, offset, length, session, busy))
    }

    async fn size_of(&self, who: &Principal, key: &str, path: &str) -> Result<u64, Error> {
        let nothing = ReadFile { path: path.to_owned(), offset: 0, length: Some(0) };
        let (mut session, _busy) = self.session(who, key).await?;
        Ok(expect_stat(session.ask(&Request::ReadFile(nothing)).await?)?.size)
    }

    /// Begins to write a file as the agent is asked to.
    pub async fn write_entry(
        &self,
        who: &Principal,
        key: &str,
        file: WriteFile,
    ) -> Result<Upload, Error> {
        check::path("path", &file.path)?;
        self.upload(who, key, "file_write", Request::WriteFile(file)).await
    }

    /// Begins to write a file.
    pub async fn write_file(
        &self,
        who: &Principal,
        key: &str,
        query: api::WriteQuery,
    ) -> Result<Upload, Error> {
        check::path("path", &query.path)?;
        let mode = check::mode(query.mode.as_deref())?;
        let (path, owner, symlink) = (query.path, query.owner, query.symlink);
        self.write_entry(who, key, WriteFile { path, mode, owner, symlink, ..WriteFile::default() })
            .await
    }

    /// Begins to unpack an archive.
    pub async fn write_archive(
        &self,
        who: &Principal,
        key: &str,
        query: api::WriteArchiveQuery,
    ) -> Result<Upload, Error> {
        check::path("path", &query.path)?;
        let gzip = query.format == api::ArchiveFormat::TarGz;
        let archive = wire::WriteArchive { path: query.path, gzip, owner: query.owner };
        self.upload(who, key, "archive_write", Request::WriteArchive(archive)).await
    }

    async fn upload(
        &self,
        who: &Principal,
        key: &str,
        kind: &'static str,
        request: Request,
    ) -> Result<Upload, Error> {
        let (session, busy) = self.session(who, key).await?;
        let operation = self.store.begin_operation(who.name(), kind, &busy.id, now_ms())?;
        let mut upload = Upload { session, kind, operation: Some(operation), busy };
        upload.session.speaker.message(&request).await?;
        Ok(upload)
    }

    /// Begins to read a directory as an archive.
    pub async fn read_archive(
        &self,
        who: &Principal,
        key: &str,
        query: api::ReadArchiveQuery,
    ) -> Result<FileSource, Error> {
        check::path("path", &query.path)?;
        let gzip = query.format == api::ArchiveFormat::TarGz;
        let archive = wire::ReadArchive { path: query.path, gzip };
        let (mut session, busy) = self.session(who, key).await?;
        let entry = expect_stat(session.ask(&Request::ReadArchive(archive)).await?)?;
        Ok(FileSource::new(entry, 0, None, session, busy))
    }

    /// Everything below a directory.
    pub async fn list_files(
        &self,
        who: &Principal,
        key: &str,
        query: &api::ListFilesQuery,
    ) -> Result<api::FileList, Error> {
        check::path("path", &query.path)?;
        let depth = query.depth.unwrap_or(1);
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(Error::Bad(format!("depth: 1 to {DEPTH_MAX}, not {depth}")));
        }
        let (mut session, _busy) = self.session(who, key).await?;
        let list = List { path: query.path.clone(), depth };
        session.speaker.message(&Request::List(list)).await?;
        let mut entries = Vec::new();
        loop {
            match session.listener.reply().await? {
                Reply::Entries { entries: more } => entries.extend(more.into_iter().map(file)),
                Reply::Done {} => return Ok(api::FileList { entries }),
                other => return Err(unexpected(&other).into()),
            }
            if entries.len() > ENTRIES_MAX {
                return Err(Error::TooMany(format!("more than {ENTRIES_MAX} entries; list less")));
            }
        }
    }

    /// What is at a path.
    pub async fn stat(&self, who: &Principal, key: &str, path: &str) -> Result<api::File, Error> {
        check::path("path", path)?;
        let (mut session, _busy) = self.session(who, key).await?;
        let request = Request::Stat { path: path.to_owned() };
        Ok(file(expect_stat(session.ask(&request).await?)?))
    }

    /// Makes a directory.
    pub async fn mkdir(
        &self,
        who: &Principal,
        key: &str,
        request: api::MkdirRequest,
    ) -> Result<api::File, Error> {
        check::path("path", &request.path)?;
        let mode = check::mode(request.mode.as_deref())?;
        let mkdir = Request::Mkdir(Mkdir { path: request.path, mode, owner: request.owner });
        let (mut session, busy) = self.session(who, key).await?;
        let target = busy.id.clone();
        self.operate(who, "file_mkdir", &target, async move {
            let _busy = busy;
            Ok(file(expect_stat(session.ask(&mkdir).await?)?))
        })
        .await
    }

    /// Renames.
    pub async fn move_file(
        &self,
        who: &Principal,
        key: &str,
        request: api::MoveRequest,
    ) -> Result<(), Error> {
        check::path("from", &request.from)?;
        check::path("to", &request.to)?;
        let request = Request::Move { from: request.from, to: request.to };
        self.small(who, key, "file_move", request).await
    }

    /// Removes.
    pub async fn remove_file(
        &self,
        who: &Principal,
        key: &str,
        query: api::RemoveQuery,
    ) -> Result<(), Error> {
        check::path("path", &query.path)?;
        let request = Request::Remove { path: query.path, recursive: query.recursive };
        self.small(who, key, "file_remove", request).await
    }
}

fn argv(argv: Option<Vec<String>>, command: Option<String>) -> Result<Vec<String>, Error> {
    let argv = match (argv, command) {
        (Some(argv), None) => argv,
        (None, Some(command)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), command],
        _ => return Err(Error::Bad("either argv or command, not both".to_owned())),
    };
    if argv.first().is_none_or(String::is_empty) {
        return Err(Error::Bad("argv: names no program".to_owned()));
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err(Error::Bad("argv or command: has NUL in it".to_owned()));
    }
    Ok(argv)
}

fn time_ms(timeout_ms: u64) -> Result<u64, Error> {
    if !(1..=EXEC_TIME_MAX_MS).contains(&timeout_ms) {
        return Err(Error::Bad(format!("timeout_ms: 1 to {EXEC_TIME_MAX_MS}, not {timeout_ms}")));
    }
    Ok(timeout_ms)
}

fn exec_of(request: ExecRequest) -> Result<(Exec, Option<Vec<u8>>, Encoding), Error> {
    check::env(&request.env)?;
    request.cwd.as_deref().map_or(Ok(()), |cwd| check::path("cwd", cwd))?;
    let stdin = match (request.stdin, request.encoding) {
        (Some(text), Encoding::Base64) => Some(
            STANDARD
                .decode(text)
                .map_err(|error| Error::Bad(format!("stdin: not base64 with padding: {error}")))?,
        ),
        (text, _) => text.map(String::into_bytes),
    };
    if stdin.as_ref().is_some_and(|stdin| stdin.len() > STDIN_MAX) {
        return Err(Error::Bad(format!("stdin: at most {STDIN_MAX} bytes; stream what is longer")));
    }
    let exec = Exec {
        argv: argv(request.argv, request.command)?,
        env: request.env,
        cwd: request.cwd,
        user: request.user,
        stdin: stdin.is_some(),
        timeout_ms: Some(time_ms(request.timeout_ms.unwrap_or(EXEC_TIME_MS))?),
        ..Exec::default()
    };
    Ok((exec, stdin, request.encoding))
}

fn stream_exec(request: StreamExec) -> Result<Exec, Error> {
    check::env(&request.env)?;
    request.cwd.as_deref().map_or(Ok(()), |cwd| check::path("cwd", cwd))?;
    let terminal = request.terminal;
    Ok(Exec {
        argv: argv(request.argv, request.command)?,
        env: request.env,
        cwd: request.cwd,
        user: request.user,
        stdin: request.stdin,
        terminal: terminal.map(|size| wire::Terminal { columns: size.columns, rows: size.rows }),
        timeout_ms: request.timeout_ms.map(time_ms).transpose()?,
        ..Exec::default()
    })
}

/// Runs a process and collects what it says.
async fn run(
    session: Session,
    exec: &Exec,
    stdin: Option<Vec<u8>>,
    encoding: Encoding,
) -> Result<ExecResult, Error> {
    let mut session = session;
    let pid = match session.ask(&Request::Exec(exec.clone())).await? {
        Reply::Started { pid } => pid,
        other => return Err(unexpected(&other).into()),
    };
    let Session { mut listener, mut speaker } = session;
    let feed = async {
        if let Some(stdin) = stdin {
            // A process may end without reading all of it, so what this meets is no matter.
            let fed = async {
                speaker.bytes(&stdin).await?;
                speaker.input(&Input::End {}).await
            };
            drop(fed.await);
        }
        std::future::pending::<()>().await;
    };
    let limit = Duration::from_millis(exec.timeout_ms.unwrap_or(EXEC_TIME_MS)) + PATIENCE;
    let collected = tokio::select! {
        collected = timeout(limit, collect(&mut listener)) => collected,
        () = feed => return Err(Error::Internal("fed for ever".to_owned())),
    };
    let (output, exited) = collected.unwrap_or(Err(agent::Error::Timeout))?;
    Ok(ExecResult {
        pid,
        stdout: written(&output.stdout, encoding),
        stderr: written(&output.stderr, encoding),
        exit_code: exited.code,
        signal: exited.signal,
        ok: exited.code == Some(0),
        timed_out: exited.timed_out,
        truncated: output.truncated,
        duration_us: 0,
    })
}

#[derive(Default)]
struct Collected {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
}

async fn collect(listener: &mut Listener) -> Result<(Collected, Exited), agent::Error> {
    let mut output = Collected::default();
    loop {
        let (channel, bytes) = match listener.next().await? {
            Frame::Bytes(channel, bytes) => (channel, bytes),
            Frame::Reply(Reply::Exited(exited)) => return Ok((output, exited)),
            Frame::Reply(other) => return Err(unexpected(&other)),
        };
        let room = OUTPUT_MAX.saturating_sub(output.stdout.len() + output.stderr.len());
        output.truncated |= bytes.len() > room;
        let bytes = &bytes[..bytes.len().min(room)];
        match channel {
            Channel::Stderr => output.stderr.extend_from_slice(bytes),
            _ => output.stdout.extend_from_slice(bytes),
        }
    }
}

fn written(bytes: &[u8], encoding: Encoding) -> String {
    match encoding {
        Encoding::Text => String::from_utf8_lossy(bytes).into_owned(),
        Encoding::Base64 => STANDARD.encode(bytes),
    }
}

pub(super) fn expect_stat(reply: Reply) -> Result<Entry, Error> {
    match reply {
        Reply::Stat(entry) => Ok(entry),
        other => Err(unexpected(&other).into()),
    }
}

fn file(entry: Entry) -> api::File {
    api::File {
        path: entry.path,
        kind: match entry.kind {
            wire::FileKind::File => api::FileKind::File,
            wire::FileKind::Directory => api::FileKind::Directory,
            wire::FileKind::Symlink => api::FileKind::Symlink,
            wire::FileKind::Other => api::FileKind::Other,
        },
        size: entry.size,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        modified_ns: entry.modified_ns,
        target: entry.target,
    }
}

fn process(process: wire::Process) -> api::Process {
    api::Process {
        pid: process.pid,
        parent: process.parent,
        group: process.group,
        uid: process.uid,
        state: process.state,
        command: process.command,
        cpu_ms: process.cpu_ms,
        rss_bytes: process.rss_bytes,
        started_here: process.started_here,
    }
}
