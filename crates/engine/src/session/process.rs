//! Processes in the guest: start, feed, read, join again.

use std::thread;
use std::time::Duration;

use ramet_proto::agent::{Attach, Channel, Exec, Exited, Input, Reply, Request, Terminal};

use super::{Agent, Error, Frame, FrameReader, FrameWriter, Session, Stream, unexpected};

/// Most output that is collected in memory, of both streams together.
pub const COLLECT_MAX: usize = 64 * 1024 * 1024;

/// What a process does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// It wrote to its standard output, or to its terminal.
    Stdout(Vec<u8>),
    /// It wrote to its standard error.
    Stderr(Vec<u8>),
    /// It has ended; nothing comes after this.
    Exited(Exited),
}

/// A process that has ended, with all it wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Standard output, or what it wrote to its terminal.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub exited: Exited,
}

impl Completed {
    /// It exited with code 0.
    pub fn ok(&self) -> bool {
        self.exited.code == Some(0)
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// A process that runs. Dropping it leaves the process running; [`Agent::attach`] joins it again.
pub struct Process {
    pid: i32,
    reader: FrameReader<Box<dyn Stream>>,
    input: ProcessInput,
}

/// The other direction: standard input, signals, the terminal's size. Separate, so that one thread
/// can write while another reads.
pub struct ProcessInput {
    writer: FrameWriter<Box<dyn Stream>>,
}

impl Agent {
    /// Starts a process.
    pub fn exec(&self, exec: &Exec) -> Result<Process, Error> {
        Process::begin(self.session(&Request::Exec(exec.clone()))?)
    }

    /// Joins a process that [`Self::exec`] started.
    pub fn attach(&self, pid: i32) -> Result<Process, Error> {
        Process::begin(self.session(&Request::Attach(Attach { pid }))?)
    }

    /// Runs a process to its end.
    pub fn run(&self, exec: &Exec) -> Result<Completed, Error> {
        self.exec(exec)?.collect()
    }

    /// Runs a shell command line as root.
    pub fn shell(&self, line: &str) -> Result<Completed, Error> {
        let argv = ["/bin/sh", "-c", line].map(str::to_owned).to_vec();
        self.run(&Exec { argv, ..Exec::default() })
    }

    /// Runs a process to its end with this on its standard input.
    pub fn run_with_input(&self, exec: &Exec, input: &[u8]) -> Result<Completed, Error> {
        let exec = Exec { stdin: true, ..exec.clone() };
        let (mut reader, mut writer) = self.exec(&exec)?.split();
        thread::scope(|scope| {
            // A process may end without reading all of it, so what the writer meets is no matter.
            scope.spawn(move || writer.write(input).and_then(|()| writer.end()));
            reader.collect()
        })
    }
}

impl Process {
    fn begin(mut session: Session) -> Result<Self, Error> {
        match session.reply()? {
            Reply::Started { pid } => {
                session.reader.get_ref().set_timeout(None)?;
                let Session { reader, writer } = session;
                Ok(Self { pid, reader, input: ProcessInput { writer } })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Its pid in the guest.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How long [`Self::next`] may wait from now on.
    pub fn set_timeout(&self, time: Option<Duration>) -> Result<(), Error> {
        Ok(self.reader.get_ref().set_timeout(time)?)
    }

    /// Waits for what comes next.
    #[expect(clippy::should_implement_trait, reason = "its end is a value, not the absence of one")]
    pub fn next(&mut self) -> Result<Output, Error> {
        next(&mut self.reader)
    }

    /// What is sent to it.
    pub fn input(&mut self) -> &mut ProcessInput {
        &mut self.input
    }

    /// One half to read, one to write.
    pub fn split(self) -> (ProcessOutput, ProcessInput) {
        (ProcessOutput { reader: self.reader }, self.input)
    }

    /// Reads to its end, handing each piece over as it comes.
    pub fn stream(mut self, mut each: impl FnMut(&Output)) -> Result<Exited, Error> {
        loop {
            let output = self.next()?;
            each(&output);
            if let Output::Exited(exited) = output {
                return Ok(exited);
            }
        }
    }

    /// Reads to its end.
    pub fn collect(self) -> Result<Completed, Error> {
        self.split().0.collect()
    }
}

/// The half of a process that is read.
pub struct ProcessOutput {
    reader: FrameReader<Box<dyn Stream>>,
}

impl ProcessOutput {
    /// Waits for what comes next.
    #[expect(clippy::should_implement_trait, reason = "its end is a value, not the absence of one")]
    pub fn next(&mut self) -> Result<Output, Error> {
        next(&mut self.reader)
    }

    /// Reads to its end.
    pub fn collect(&mut self) -> Result<Completed, Error> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.next()? {
                Output::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                Output::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                Output::Exited(exited) => {
                    return Ok(Completed { stdout, stderr, exited });
                }
            }
            if stdout.len() + stderr.len() > COLLECT_MAX {
                return Err(Error::TooMuch(COLLECT_MAX));
            }
        }
    }
}

fn next(reader: &mut FrameReader<Box<dyn Stream>>) -> Result<Output, Error> {
    match reader.next()? {
        Frame::Bytes(Channel::Stdout, bytes) => Ok(Output::Stdout(bytes)),
        Frame::Bytes(Channel::Stderr, bytes) => Ok(Output::Stderr(bytes)),
        Frame::Bytes(channel, _) => Err(Error::Protocol(format!("bytes on {channel:?}"))),
        Frame::Reply(Reply::Exited(exited)) => Ok(Output::Exited(exited)),
        Frame::Reply(Reply::Error(failure)) => Err(failure.into()),
        Frame::Reply(other) => Err(unexpected(&other)),
    }
}

impl ProcessInput {
    /// Writes to its standard input or terminal.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.writer.bytes(Channel::Stdin, bytes)
    }

    /// Closes its standard input.
    pub fn end(&mut self) -> Result<(), Error> {
        self.writer.message(&Input::End {})
    }

    /// Gives its terminal another size.
    pub fn resize(&mut self, terminal: Terminal) -> Result<(), Error> {
        self.writer.message(&Input::Resize(terminal))
    }

    /// Sends a signal to its group.
    pub fn signal(&mut self, signal: i32) -> Result<(), Error> {
        self.writer.message(&Input::Signal { signal })
    }
}
