//! Pipes that outlive the process they were made for.
//!
//! A process may end and leave others behind that still write to its output (`server &`). Its
//! session is over then, but closing the pipe would kill them at their next write. One thread reads
//! such pipes and throws the bytes away until the last writer is gone.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::lock;

static TO_DRAIN: LazyLock<Mutex<Option<Sender<File>>>> = LazyLock::new(Mutex::default);

/// Read this until its writers are gone. It must not block.
pub fn drain(pipe: File) {
    let mut sender = lock(&TO_DRAIN);
    if sender.is_none() {
        let (to, from) = channel();
        let thread = std::thread::Builder::new().name("drain".into()).stack_size(128 * 1024);
        if thread.spawn(move || drain_forever(&from)).is_ok() {
            *sender = Some(to);
        }
    }
    if let Some(to) = &*sender {
        // The thread never ends, so neither does its channel.
        let _ = to.send(pipe);
    }
}

fn drain_forever(from: &Receiver<File>) {
    let mut pipes: Vec<File> = Vec::new();
    let mut waste = vec![0; 64 * 1024];
    loop {
        if pipes.is_empty() {
            match from.recv() {
                Ok(pipe) => pipes.push(pipe),
                Err(_) => return,
            }
        }
        pipes.extend(from.try_iter());
        let mut polled: Vec<PollFd<'_>> =
            pipes.iter().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)).collect();
        // The timeout bounds how long a pipe that arrives meanwhile is not read.
        if poll(&mut polled, PollTimeout::from(100_u8)).is_err() {
            continue;
        }
        let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let mut ready = ready.into_iter();
        pipes.retain_mut(|pipe| !ready.next().unwrap_or(false) || is_open(pipe, &mut waste));
    }
}

fn is_open(pipe: &mut File, waste: &mut [u8]) -> bool {
    match pipe.read(waste) {
        Ok(count) => count > 0,
        Err(error) => {
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
        }
    }
}
