//! `ramet bench --store`: what it takes to keep states and to go on from them.
//!
//! A sandbox fills memory with pages that all differ and do not compress. Then moments of it are kept, it is paused, and it goes
//! on: warm, from this host's copy, and cold, after copies and cache are gone. A resume ends with the first command
//! answered. The floor of a commit is the engine's pause for a fork of the same sandbox; that of a warm resume is a
//! fork of it to the first command answered; that of what is written is what was changed.

use std::time::{Duration, Instant};

use ramet_client::Client;
use ramet_client::api::{
    Code, Commit, CommitState, CreateCommit, CreateSandbox, ExecRequest, ForkRequest, GcRequest,
    PauseRequest, Sandbox,
};

use super::{Bench, ask, labels, millis};
use crate::commands::new;
use crate::failure::Failure;

/// MiB that change between two commits.
const CHANGED: u32 = 16;
/// Commits, and pauses of each kind. Each writes or compares all of the memory, which takes an emulated host minutes.
const COMMITS: usize = 5;
const PAUSES: usize = 2;
/// The rest of a machine comes within this time, also to a slow host.
const ARRIVAL: Duration = Duration::from_secs(900);
/// MiB of memory beside what is filled.
const BESIDE: u32 = 512;

/// Fills a file system in memory; no page is like another.
const FILL: &str = r#"
import os, sys
page = os.urandom(1 << 20)
with open('/mnt/fill/data', 'wb') as file:
    for number in range(int(sys.argv[1])):
        head = number.to_bytes(8, 'little')
        file.write(b''.join(head + page[at + 8:at + 4096] for at in range(0, 1 << 20, 4096)))
"#;

impl Bench {
    /// Everything, of a sandbox with this many MiB in use.
    pub(super) async fn states(&mut self, used: u32) -> Result<(), Failure> {
        eprintln!("bench: {used} MiB in use");
        let source = self.filled(used).await?;
        let (pauses, answered) = self.floors(&source).await?;
        if !self.resumes_only {
            self.commits(&source, used, &pauses).await?;
        }
        self.pauses(&source, used, &answered).await
    }

    async fn filled(&self, used: u32) -> Result<Sandbox, Failure> {
        let memory_mib = Some(used + BESIDE);
        let request = CreateSandbox { labels: labels(), memory_mib, ..CreateSandbox::default() };
        let made = new::create(&self.client, &request).await?.sandbox;
        let mount = format!(
            "mkdir -p /mnt/fill && mount -t tmpfs -o size={}M fill /mnt/fill && head -c {}M /dev/zero > /mnt/fill/change",
            used + 2 * CHANGED,
            CHANGED
        );
        sh(&self.client, &made.id, &mount).await?;
        let argv = ["python3", "-c", FILL, &(used - CHANGED).to_string()];
        run(&self.client, &made.id, argv.map(str::to_owned).to_vec()).await?;
        change(&self.client, &made.id).await?;
        Ok(made)
    }

    /// Forks: the engine's pause, and the time to the first command answered.
    async fn floors(&self, source: &Sandbox) -> Result<(Vec<f64>, Vec<f64>), Failure> {
        let (mut pauses, mut answered) = (Vec::new(), Vec::new());
        for _ in 0..self.samples {
            let began = Instant::now();
            let forked = self.client.fork(&source.id, &ForkRequest::default()).await?;
            let child = forked.children.into_iter().find_map(|child| child.sandbox);
            let child = child.ok_or_else(|| Failure::new("a fork without a child"))?;
            ask(&self.client, &child.id).await?;
            answered.push(millis(began));
            pauses.push(forked.pause_us as f64 / 1000.0);
            self.client.delete(&child.id).await?;
        }
        Ok((pauses, answered))
    }

    async fn commits(
        &mut self,
        source: &Sandbox,
        used: u32,
        pauses: &[f64],
    ) -> Result<(), Failure> {
        // The first writes everything; what is measured comes after it.
        self.durable(source, false).await?;
        let (mut returned, mut durable, mut written) = (Vec::new(), Vec::new(), Vec::new());
        for number in 1..=self.samples.min(COMMITS) {
            eprintln!("bench: commit {number}");
            change(&self.client, &source.id).await?;
            let (commit, back, done) = self.durable(source, false).await?;
            let bytes = commit.stored.map_or(0, |stored| stored.written_bytes);
            returned.push(back);
            durable.push(done);
            written.push(bytes as f64 / f64::from(1 << 20));
        }
        self.add("commit_returned", "ms", &returned).against(pauses).with("mib", used);
        self.add("commit_durable", "ms", &durable).with("mib", used);
        let changed = [f64::from(CHANGED)];
        self.add("commit_written", "MiB", &written).against(&changed).with("mib", used);
        let (commit, back, done) = self.durable(source, true).await?;
        let bytes = commit.stored.map_or(0, |stored| stored.written_bytes);
        self.add("disk_commit_returned", "ms", &[back]).with("mib", used);
        self.add("disk_commit_durable", "ms", &[done]).with("mib", used);
        self.add("disk_commit_written", "MiB", &[bytes as f64 / f64::from(1 << 20)])
            .with("mib", used);
        Ok(())
    }

    /// Commits, and says after how many milliseconds that returned and was durable.
    async fn durable(&self, source: &Sandbox, disk: bool) -> Result<(Commit, f64, f64), Failure> {
        let began = Instant::now();
        let request = CreateCommit { labels: labels(), disk, ..CreateCommit::default() };
        let mut commit = self.client.commit(&source.id, &request).await?;
        let returned = millis(began);
        while commit.state == CommitState::Writing {
            tokio::time::sleep(Duration::from_millis(20)).await;
            commit = self.client.get_commit(&commit.id).await?;
        }
        match commit.failure {
            Some(failure) => Err(Failure::new(format!("a commit failed: {failure}"))),
            None => Ok((commit, returned, millis(began))),
        }
    }

    async fn pauses(&mut self, source: &Sandbox, used: u32, forks: &[f64]) -> Result<(), Failure> {
        let (mut paused, mut warm, mut cold) = (Vec::new(), Vec::new(), Vec::new());
        let (mut read, mut share) = (Vec::new(), Vec::new());
        for number in 1..=self.samples.min(PAUSES) {
            for is_cold in [false, true] {
                eprintln!(
                    "bench: pause {number}, resume {}",
                    if is_cold { "cold" } else { "warm" }
                );
                let began = Instant::now();
                let state = self.client.pause(&source.id, &PauseRequest::default()).await?.stored;
                paused.push(millis(began));
                if is_cold {
                    let copies = GcRequest { copies: true, ..GcRequest::default() };
                    self.client.store_gc(&copies).await?;
                }
                let before = self.bytes_read().await?;
                let began = Instant::now();
                self.client.resume(&source.id).await?;
                ask(&self.client, &source.id).await?;
                match is_cold {
                    false => warm.push(millis(began)),
                    true => {
                        cold.push(millis(began));
                        let bytes = self.bytes_read().await? - before;
                        let all = state.map_or(0, |state| state.stored_bytes).max(1) as f64;
                        read.push(bytes / f64::from(1 << 20));
                        share.push(100.0 * bytes / all);
                    }
                }
                self.arrived(source).await?;
            }
        }
        self.add("pause", "ms", &paused).with("mib", used);
        self.add("resume_warm", "ms", &warm).against(forks).with("mib", used);
        self.add("resume_cold", "ms", &cold).with("mib", used);
        self.add("cold_read", "MiB", &read).with("mib", used);
        self.add("cold_read_share", "%", &share).with("mib", used);
        Ok(())
    }

    /// Waits until all of a machine is there, as its fork does: what is measured next waits for nothing that is on its way.
    async fn arrived(&self, source: &Sandbox) -> Result<(), Failure> {
        let end = Instant::now() + ARRIVAL;
        let forked = loop {
            match self.client.fork(&source.id, &ForkRequest::default()).await {
                Err(error) if error.code() == Some(Code::TooMany) && Instant::now() < end => {}
                forked => break forked?,
            }
        };
        for child in forked.children.into_iter().filter_map(|child| child.sandbox) {
            self.client.delete(&child.id).await?;
        }
        Ok(())
    }

    /// Bytes that the node has read from its store.
    async fn bytes_read(&self) -> Result<f64, Failure> {
        let text = self.client.metrics().await?;
        let line = text.lines().find_map(|line| line.strip_prefix("ramet_store_read_bytes_total "));
        let number = line.and_then(|number| number.trim().parse().ok());
        number.ok_or_else(|| Failure::new("the node does not tell what it has read"))
    }
}

/// Changes all of what is there to be changed.
async fn change(client: &Client, id: &str) -> Result<(), Failure> {
    let command = format!(
        "dd if=/dev/urandom of=/mnt/fill/change bs=64k count={} conv=notrunc",
        CHANGED * 16
    );
    sh(client, id, &command).await
}

async fn sh(client: &Client, id: &str, command: &str) -> Result<(), Failure> {
    run(client, id, ["sh", "-c", command].map(str::to_owned).to_vec()).await
}

async fn run(client: &Client, id: &str, argv: Vec<String>) -> Result<(), Failure> {
    let request =
        ExecRequest { argv: Some(argv), timeout_ms: Some(600_000), ..ExecRequest::default() };
    let done = client.exec(id, &request).await?;
    match done.exit_code {
        Some(0) => Ok(()),
        _ => Err(Failure::new(format!("a command in the sandbox failed: {}", done.stderr))),
    }
}
