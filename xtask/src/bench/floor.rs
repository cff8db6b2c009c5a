//! Floors, measured in a process of their own: one thread, and nothing in memory but the memory.
//!
//! The benchmark starts this program again as the hidden command `bench floor`, writes one line for
//! each sample it wants, and reads one line with microseconds. So floors and figures can be taken in
//! turns, and noise meets both alike.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use ramet_tests::bare::{self, Ram};

/// The process's arguments.
#[derive(Args)]
pub struct Arguments {
    /// Memory that it holds
    #[arg(long)]
    ram_mib: usize,
    /// Without huge pages
    #[arg(long)]
    small_pages: bool,
}

/// A sample to take.
#[derive(Debug, Clone, Copy)]
pub enum Floor {
    /// fork(2) of a process with all of its memory touched.
    Fork,
    /// As `Fork`, by a child that has rewritten so many MiB.
    Rewritten(u32),
    /// A bare KVM machine to its first exit.
    Kvm,
    /// Memory written to tmpfs and mapped back.
    File,
}

impl Floor {
    fn line(self) -> String {
        match self {
            Self::Fork => "fork 0\n".to_owned(),
            Self::Rewritten(mib) => format!("rewritten {mib}\n"),
            Self::Kvm => "kvm 0\n".to_owned(),
            Self::File => "file 0\n".to_owned(),
        }
    }
}

/// Answers samples until standard input ends.
pub fn serve(arguments: &Arguments) -> Result<ExitCode> {
    let ram = Ram::new(arguments.ram_mib << 20, !arguments.small_pages)?;
    for line in std::io::stdin().lines() {
        println!("{}", sample(&ram, &line?)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn sample(ram: &Ram, line: &str) -> Result<f64> {
    let (name, mib) = line.split_once(' ').context("a sample without a number")?;
    let mib: usize = mib.parse()?;
    ram.touch();
    let time = match name {
        "fork" => bare::fork()?,
        "rewritten" => bare::fork_rewritten(ram, mib << 20)?,
        "kvm" => bare::first_exit(ram)?.1,
        "file" => {
            let path = format!("/dev/shm/ramet-bench-{}", std::process::id());
            bare::write_and_map(ram, Path::new(&path))?
        }
        _ => bail!("unknown sample {name}"),
    };
    Ok(time.as_secs_f64() * 1e6)
}

/// The other side: a process that takes samples.
pub struct Floors {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Floors {
    /// Starts it, with so much memory.
    pub fn start(ram_mib: u32, huge_pages: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "floor", "--ram-mib", &ram_mib.to_string()]);
        if !huge_pages {
            command.arg("--small-pages");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, input, output })
    }

    /// Takes a sample, in microseconds.
    pub fn sample(&mut self, floor: Floor) -> Result<f64> {
        let input = self.input.as_mut().context("no standard input")?;
        input.write_all(floor.line().as_bytes())?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("no floor for {floor:?}"))
    }
}

impl Drop for Floors {
    fn drop(&mut self) {
        self.input = None;
        if let Err(error) = self.child.wait() {
            eprintln!("the process for floors: {error}");
        }
    }
}
