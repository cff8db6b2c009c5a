//! Report changes below a path.
//!
//! inotify, one instance per session. With `recursive`, directories that appear are watched as soon
//! as they are seen, and what they already contain then is reported as created; so a change is told
//! twice rather than not at all. What inotify itself drops is told as `Overflow`.
//!
//! Invariant: `paths` names what each watch is called now; a directory that moves within the tree
//! loses its watches and gets new ones under its new name.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use ramet_proto::agent::{Change, ChangeKind, Reply};

use super::checked_path;
use crate::failure::{Outcome, from_errno, from_io};
use crate::frame::Connection;

struct Watch<'a> {
    connection: &'a Connection,
    inotify: Inotify,
    root: PathBuf,
    recursive: bool,
    paths: HashMap<WatchDescriptor, PathBuf>,
}

/// Serve a watch session.
pub fn watch(connection: &Connection, path: &str, recursive: bool) {
    let mut watch = match begin(connection, path, recursive) {
        Ok(watch) => watch,
        Err(failure) => return connection.refuse(failure),
    };
    if connection.send(&Reply::Done {}).is_ok() {
        // It ends when the peer leaves.
        let _ = watch.run();
    }
}

fn begin<'a>(connection: &'a Connection, path: &str, recursive: bool) -> Outcome<Watch<'a>> {
    let root = checked_path(path)?;
    let metadata = fs::metadata(&root).map_err(|error| from_io(root.display(), &error))?;
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
        .map_err(|errno| from_errno("watch", errno))?;
    let recursive = recursive && metadata.is_dir();
    let mut watch = Watch { connection, inotify, root, recursive, paths: HashMap::new() };
    let root = watch.root.clone();
    watch.add(&root).map_err(|errno| from_errno(root.display(), errno))?;
    if recursive {
        watch.add_below(&root, &mut Vec::new());
    }
    Ok(watch)
}

impl Watch<'_> {
    fn add(&mut self, path: &Path) -> Result<(), Errno> {
        let mut flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_ATTRIB;
        if path != self.root {
            flags |= AddWatchFlags::IN_ONLYDIR | AddWatchFlags::IN_DONT_FOLLOW;
        }
        let descriptor = self.inotify.add_watch(path, flags)?;
        self.paths.insert(descriptor, path.to_owned());
        Ok(())
    }

    /// Watch all directories below, and collect everything that is there.
    fn add_below(&mut self, top: &Path, found: &mut Vec<PathBuf>) {
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            let Ok(entries) = fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries.filter_map(Result::ok) {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    match self.add(&path) {
                        Ok(()) => directories.push(path.clone()),
                        // Gone again, or replaced by something else.
                        Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                        Err(errno) => self.cannot_watch(&path, errno),
                    }
                }
                found.push(path);
            }
        }
    }

    /// Its changes will not be seen: say so.
    fn cannot_watch(&self, path: &Path, errno: Errno) {
        crate::log::line(format_args!("watching a directory: {errno}"));
        // A peer that left does not want it; the loop notices.
        let _ = self.tell(ChangeKind::Overflow, path);
    }

    fn forget_below(&mut self, top: &Path) {
        let gone: Vec<WatchDescriptor> = self
            .paths
            .iter()
            .filter(|(_, path)| path.starts_with(top))
            .map(|(descriptor, _)| *descriptor)
            .collect();
        for descriptor in gone {
            self.paths.remove(&descriptor);
            // It may be gone already, with its directory.
            let _ = self.inotify.rm_watch(descriptor);
        }
    }

    fn tell(&self, kind: ChangeKind, path: &Path) -> io::Result<()> {
        let path = path.to_string_lossy().into_owned();
        self.connection.send(&Reply::Changed(Change { kind, path }))
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            let mut fds = [
                PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.connection.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let (changed, spoken) = (fds[0].any().unwrap_or(true), fds[1].any().unwrap_or(true));
            if spoken {
                // Nothing may be sent on a watch: it is a hang-up, or treated as one.
                return Ok(());
            }
            if changed {
                match self.inotify.read_events() {
                    Ok(events) => events.iter().try_for_each(|event| self.handle(event))?,
                    Err(Errno::EAGAIN | Errno::EINTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
    }

    fn handle(&mut self, event: &InotifyEvent) -> io::Result<()> {
        let mask = event.mask;
        if mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return self.tell(ChangeKind::Overflow, &self.root.clone());
        }
        let Some(watched) = self.paths.get(&event.wd).cloned() else {
            return Ok(());
        };
        if mask.contains(AddWatchFlags::IN_IGNORED) {
            self.paths.remove(&event.wd);
            return Ok(());
        }
        match &event.name {
            Some(name) => self.handle_inside(&watched.join(name), mask),
            // A directory's own events come from its parent's watch as well, but for the root.
            None if watched == self.root => self.handle_root(mask),
            None => Ok(()),
        }
    }

    fn handle_root(&self, mask: AddWatchFlags) -> io::Result<()> {
        let kinds = [
            (AddWatchFlags::IN_DELETE_SELF, ChangeKind::Removed),
            (AddWatchFlags::IN_MOVE_SELF, ChangeKind::MovedFrom),
            (AddWatchFlags::IN_MODIFY, ChangeKind::Written),
            (AddWatchFlags::IN_ATTRIB, ChangeKind::Attributes),
        ];
        match kinds.iter().find(|(flag, _)| mask.contains(*flag)) {
            Some((_, kind)) => self.tell(*kind, &self.root),
            None => Ok(()),
        }
    }

    fn handle_inside(&mut self, path: &Path, mask: AddWatchFlags) -> io::Result<()> {
        let is_directory = mask.contains(AddWatchFlags::IN_ISDIR) && self.recursive;
        let kinds = [
            (AddWatchFlags::IN_CREATE, ChangeKind::Created),
            (AddWatchFlags::IN_MODIFY, ChangeKind::Written),
            (AddWatchFlags::IN_DELETE, ChangeKind::Removed),
            (AddWatchFlags::IN_MOVED_FROM, ChangeKind::MovedFrom),
            (AddWatchFlags::IN_MOVED_TO, ChangeKind::MovedTo),
            (AddWatchFlags::IN_ATTRIB, ChangeKind::Attributes),
        ];
        let Some((_, kind)) = kinds.iter().find(|(flag, _)| mask.contains(*flag)) else {
            return Ok(());
        };
        self.tell(*kind, path)?;
        if !is_directory {
            return Ok(());
        }
        match kind {
            ChangeKind::MovedFrom => self.forget_below(path),
            ChangeKind::Created | ChangeKind::MovedTo => {
                let mut found = Vec::new();
                match self.add(path) {
                    Ok(()) => self.add_below(path, &mut found),
                    Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                    Err(errno) => self.cannot_watch(path, errno),
                }
                // What came with a moved directory is not new.
                for path in found.iter().filter(|_| *kind == ChangeKind::Created) {
                    self.tell(ChangeKind::Created, path)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
