//! Files that arrive while the machine runs already.
//!
//! A thread of its own speaks with whoever brings them ([`ramet_proto::pager`]). It hears of the guest's first touch of each
//! page of memory, asks for the page if it has not arrived, and puts it in its place; nobody else puts pages
//! there. The driver asks for blocks of disks and waits. When all is there the rest of memory becomes a private map of its file, and
//! the thread ends. Until then the machine cannot be forked, since a child would have nobody who brings
//! its pages, and no other thread may run when fork(2) is called; tasks that need a fork wait.
//!
//! A connection that is lost is made anew. Nobody who waits goes on without the right bytes: if they do not come for
//! [`PATIENCE`], the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ramet_proto::pager::{Ask, GROUP, LINE_MAX, Tell};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::memory::{PAGE, Ram};
use crate::sys;
use crate::uffd::Uffd;
use crate::vcpu::Notices;

/// How long nobody may answer before the machine is given up.
const PATIENCE: Duration = Duration::from_secs(900);
/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(200);
/// A line that is begun, or a message to be sent, may take this long.
const LINE_TIME: Duration = Duration::from_secs(10);
/// Runs of at least so many pages become maps of the file; shorter ones are copied, so that there are few maps.
const MAP_MIN: usize = 16;

/// A set of pages.
struct Pages {
    bits: Vec<u64>,
    count: u64,
}

impl Pages {
    fn new(count: u64) -> Self {
        let words = usize::try_from(count.div_ceil(64)).unwrap_or(0);
        Self { bits: vec![0; words], count }
    }

    fn has(&self, page: u64) -> bool {
        let word = usize::try_from(page / 64).ok().and_then(|word| self.bits.get(word));
        word.is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Adds the pages of a run that exist.
    fn add(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count).min(self.count);
        for page in first..end {
            if let Some(word) = usize::try_from(page / 64).ok().and_then(|at| self.bits.get_mut(at))
            {
                *word |= 1 << (page % 64);
            }
        }
    }

    fn all(&self, first: u64, count: u64) -> bool {
        (first..first.saturating_add(count)).all(|page| self.has(page))
    }
}

/// Who waits for what; shared with the thread.
struct Shared {
    /// By name: what has arrived of each file.
    arrived: Mutex<BTreeMap<String, Pages>>,
    changed: Condvar,
    /// What the driver waits for.
    wants: Mutex<BTreeSet<(String, u64)>>,
    wake: EventFd,
    complete: AtomicBool,
}

impl Shared {
    fn arrived(&self) -> MutexGuard<'_, BTreeMap<String, Pages>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wants(&self) -> MutexGuard<'_, BTreeSet<(String, u64)>> {
        self.wants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has arrived of one file of a disk.
pub struct Arrivals {
    shared: Arc<Shared>,
    file: String,
}

impl Arrivals {
    /// Returns when these pages have arrived.
    pub fn wait(&self, first: u64, count: u64) {
        if self.shared.complete.load(Ordering::Acquire) {
            return;
        }
        let there = |arrived: &BTreeMap<String, Pages>| {
            arrived.get(&self.file).is_none_or(|pages| pages.all(first, count))
        };
        let mut arrived = self.shared.arrived();
        if there(&arrived) {
            return;
        }
        let groups = first / GROUP..=(first + count.saturating_sub(1)) / GROUP;
        self.shared.wants().extend(groups.map(|group| (self.file.clone(), group)));
        // The counter of an eventfd is full only if nobody has read it for a long time.
        let _full = self.shared.wake.write(1);
        while !there(&arrived) {
            arrived = self.shared.changed.wait(arrived).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What a pager needs to know.
pub struct Plan {
    /// Socket of whoever brings the files.
    pub socket: String,
    /// The machine's directory.
    pub directory: String,
    /// Names and lengths, in pages.
    pub files: Vec<(String, u64)>,
    /// Name of the memory file among them.
    pub memory: String,
}

/// Files on their way.
pub struct Pager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Pager {
    /// Begins, for memory that nobody has touched.
    pub fn start(plan: Plan, ram: Ram, notices: Arc<Notices>) -> io::Result<Self> {
        let uffd = Uffd::register(ram.base(), ram.size())?;
        let arrived = plan.files.iter().map(|(name, pages)| (name.clone(), Pages::new(*pages)));
        let shared = Arc::new(Shared {
            arrived: Mutex::new(arrived.collect()),
            changed: Condvar::new(),
            wants: Mutex::default(),
            wake: EventFd::new(EFD_NONBLOCK)?,
            complete: AtomicBool::new(false),
        });
        let worker = Worker {
            shared: Arc::clone(&shared),
            placed: Pages::new((ram.size() / PAGE) as u64),
            plan,
            uffd,
            ram,
            asked: BTreeSet::new(),
            waiting: BTreeSet::new(),
            line: None,
            heard: Instant::now(),
        };
        let work = move || {
            if let Err(error) = worker.run() {
                // Whoever waits for a page must not go on without it.
                eprintln!("ramet-vmm: what was missing of the machine did not come: {error}");
                crate::fork::exit(1);
            }
            notices.wake();
        };
        let thread = std::thread::Builder::new().name("pager".to_owned()).spawn(work)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// For a disk whose content is this file.
    pub fn arrivals(&self, file: &str) -> Arrivals {
        Arrivals { shared: Arc::clone(&self.shared), file: file.to_owned() }
    }

    /// Whether everything is there and the thread has ended; it waits for the last moments of it.
    pub fn finished(&mut self) -> bool {
        if !self.shared.complete.load(Ordering::Acquire) {
            return false;
        }
        if let Some(thread) = self.thread.take() {
            // A thread that panics has aborted the process.
            let _ended = thread.join();
        }
        true
    }
}

struct Worker {
    shared: Arc<Shared>,
    plan: Plan,
    uffd: Uffd,
    ram: Ram,
    /// Pages of memory that are in their place.
    placed: Pages,
    /// Groups that were asked for and have not arrived.
    asked: BTreeSet<(String, u64)>,
    /// Pages of memory that somebody waits for.
    waiting: BTreeSet<u64>,
    line: Option<BufReader<UnixStream>>,
    /// When somebody last answered.
    heard: Instant,
}

impl Worker {
    fn run(mut self) -> io::Result<()> {
        loop {
            if self.line.is_none() {
                self.connect();
            }
            let line = self.line.as_ref().map_or(-1, |line| line.get_ref().as_raw_fd());
            let ready =
                sys::poll_read([self.uffd.as_raw_fd(), self.shared.wake.as_raw_fd(), line], AGAIN)?;
            if ready[0] {
                self.heed_faults()?;
            }
            if ready[1] {
                // Somebody else has read it already.
                let _empty = self.shared.wake.read();
                let wants = std::mem::take(&mut *self.shared.wants());
                wants.into_iter().for_each(|(file, group)| self.want(file, group));
            }
            if ready[2] && self.heed_line()? {
                return self.finish();
            }
            if !self.asked.is_empty() && self.heard.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Connects, if somebody listens, and asks again for what has not come.
    fn connect(&mut self) {
        let Ok(stream) = UnixStream::connect(&self.plan.socket) else { return };
        let bounded = stream
            .set_read_timeout(Some(LINE_TIME))
            .and_then(|()| stream.set_write_timeout(Some(LINE_TIME)));
        if bounded.is_err() {
            return;
        }
        self.line = Some(BufReader::new(stream));
        self.say(&Ask::Hello { directory: self.plan.directory.clone() });
        for (file, group) in self.asked.clone() {
            self.say(&want(file, group));
        }
    }

    fn say(&mut self, ask: &Ask) {
        let Some(line) = &mut self.line else { return };
        let Ok(mut text) = serde_json::to_vec(ask) else { return };
        text.push(b'\n');
        if line.get_mut().write_all(&text).is_err() {
            self.line = None;
        }
    }

    fn want(&mut self, file: String, group: u64) {
        if self.asked.is_empty() {
            self.heard = Instant::now();
        }
        if self.asked.insert((file.clone(), group)) {
            self.say(&want(file, group));
        }
    }

    /// Puts what has arrived in its place, and asks for the rest.
    fn heed_faults(&mut self) -> io::Result<()> {
        for address in self.uffd.faults()? {
            let page = (address.saturating_sub(self.ram.base()) / PAGE) as u64;
            if self.placed.has(page) {
                self.uffd.wake(address & !(PAGE - 1), PAGE)?;
            } else if self.has_arrived(page) {
                self.place(page)?;
            } else {
                self.waiting.insert(page);
                self.want(self.plan.memory.clone(), page / GROUP);
            }
        }
        Ok(())
    }

    fn has_arrived(&self, page: u64) -> bool {
        self.shared.arrived().get(&self.plan.memory).is_some_and(|pages| pages.has(page))
    }

    /// Puts a page in its place, and its neighbours that have arrived.
    fn place(&mut self, page: u64) -> io::Result<()> {
        let group = page / GROUP * GROUP;
        let (first, count) = {
            let arrived = self.shared.arrived();
            let Some(there) = arrived.get(&self.plan.memory) else { return Ok(()) };
            let fits = |page: &u64| there.has(*page) && !self.placed.has(*page);
            let before = (group..page).rev().take_while(fits).count() as u64;
            let after = (page..group + GROUP).take_while(fits).count() as u64;
            (page - before, before + after)
        };
        self.put(first, count)
    }

    fn put(&mut self, first: u64, count: u64) -> io::Result<()> {
        let (at, length) = (offset(first)?, offset(count)?);
        let mut bytes = vec![0; length];
        self.file()?.read_exact_at(&mut bytes, at as u64)?;
        self.uffd.put(self.ram.base() + at, &bytes)?;
        self.placed.add(first, count);
        Ok(())
    }

    fn file(&self) -> io::Result<&File> {
        self.ram.file().ok_or_else(|| io::Error::other("memory without a file"))
    }

    /// Reads what the other side says. True when everything is there.
    fn heed_line(&mut self) -> io::Result<bool> {
        loop {
            let Some(line) = &mut self.line else { return Ok(false) };
            let mut text = Vec::new();
            let read = io::Read::take(&mut *line, LINE_MAX as u64).read_until(b'\n', &mut text);
            let tell = match read {
                Ok(count) if count > 0 => serde_json::from_slice(&text).ok(),
                _ => None,
            };
            let more = !line.buffer().is_empty();
            match tell {
                // It hung up, or speaks another language.
                None => {
                    self.line = None;
                    return Ok(false);
                }
                Some(Tell::Complete {}) => return Ok(true),
                Some(Tell::Arrived { file, runs }) => self.heed_arrival(&file, &runs)?,
            }
            if !more {
                return Ok(false);
            }
        }
    }

    fn heed_arrival(&mut self, file: &str, runs: &[(u64, u64)]) -> io::Result<()> {
        self.heard = Instant::now();
        {
            let mut arrived = self.shared.arrived();
            let Some(pages) = arrived.get_mut(file) else { return Ok(()) };
            runs.iter().for_each(|(first, count)| pages.add(*first, *count));
            let here = |(name, group): &(String, u64)| {
                let first = group * GROUP;
                name == file && pages.all(first, GROUP.min(pages.count.saturating_sub(first)))
            };
            self.asked.retain(|asked| !here(asked));
        }
        self.shared.changed.notify_all();
        if file == self.plan.memory {
            let waiting = std::mem::take(&mut self.waiting);
            for page in waiting {
                if self.placed.has(page) {
                    continue;
                }
                if self.has_arrived(page) {
                    self.place(page)?;
                } else {
                    self.waiting.insert(page);
                }
            }
        }
        Ok(())
    }

    /// Everything is in the files: the rest of memory shows its file.
    fn finish(mut self) -> io::Result<()> {
        let mut page = 0;
        while page < self.placed.count {
            if self.placed.has(page) {
                page += 1;
                continue;
            }
            let count =
                (page..self.placed.count).take_while(|page| !self.placed.has(*page)).count();
            if count >= MAP_MIN {
                self.ram.show_file(offset(page)?, count * PAGE)?;
                self.placed.add(page, count as u64);
            } else {
                self.put(page, count as u64)?;
            }
            page += count as u64;
        }
        self.uffd.wake(self.ram.base(), self.ram.size())?;
        {
            // Under the lock, so that nobody begins to wait after the last notice.
            let mut arrived = self.shared.arrived();
            for pages in arrived.values_mut() {
                let count = pages.count;
                pages.add(0, count);
            }
            self.shared.complete.store(true, Ordering::Release);
        }
        self.shared.changed.notify_all();
        Ok(())
    }
}

/// Where a page begins.
fn offset(page: u64) -> io::Result<usize> {
    let page = usize::try_from(page).map_err(io::Error::other)?;
    Ok(page * PAGE)
}

fn want(file: String, group: u64) -> Ask {
    Ask::Want { file, first: group * GROUP, count: GROUP }
}

#[cfg(test)]
mod tests;
