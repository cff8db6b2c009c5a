//! The state directory of the own node.
//!
//! The directory is its owner's alone (0700), and so are the files that tell the token or where it
//! is (0600). Files are replaced whole.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ramet_client::api::HostMode;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The authority's certificate, here and in rametd's own state.
pub const AUTHORITY: &str = "e2b-ca.pem";

/// The state directory.
#[derive(Debug, Clone)]
pub struct Home {
    root: PathBuf,
}

/// `node.json`: the node that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its address.
    pub url: String,
    /// File with its token.
    pub token_file: PathBuf,
    /// Where guests run.
    pub mode: HostMode,
    /// Process id of its keeper.
    pub pid: u32,
    /// When the keeper was started.
    pub started_at_ms: u64,
}

impl Record {
    /// The token.
    pub fn token(&self) -> Result<String, Failure> {
        let text = fs::read_to_string(&self.token_file);
        let cannot = format!("cannot read the token in {}", self.token_file.display());
        Ok(text.map_err(|error| Failure::because(cannot, &error))?.trim().to_owned())
    }
}

/// Held by the keeper for as long as it lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is held, not used")] File);

impl Home {
    /// `$RAMET_HOME`, `$XDG_STATE_HOME/ramet`, or `~/.local/state/ramet`.
    pub fn find() -> Result<Self, Failure> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let root = variable("RAMET_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&variable("XDG_STATE_HOME")?).join("ramet")))
            .or_else(|| Some(Path::new(&variable("HOME")?).join(".local/state/ramet")))
            .ok_or_else(|| {
                Failure::new("there is no HOME to keep state in").next("set RAMET_HOME")
            })?;
        let root = std::path::absolute(&root)
            .map_err(|error| Failure::because("cannot tell where the state is", &error))?;
        Ok(Self { root })
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes the directory if it is not there.
    pub fn make(&self) -> Result<(), Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
        made.map_err(|error| {
            Failure::because(format!("cannot make {}", self.root.display()), &error)
                .next("set RAMET_HOME to a directory that can be written")
        })
    }

    /// The node's token.
    pub fn token_file(&self) -> PathBuf {
        self.root.join("token")
    }

    /// Where the node is.
    fn record_file(&self) -> PathBuf {
        self.root.join("node.json")
    }

    /// The keeper's pid; it is also what the keeper locks.
    fn lock_file(&self) -> PathBuf {
        self.root.join("keeper.pid")
    }

    /// What the keeper is doing right now.
    fn stage_file(&self) -> PathBuf {
        self.root.join("stage")
    }

    /// Output of the keeper and of rametd.
    pub fn log_file(&self) -> PathBuf {
        self.root.join("node.log")
    }

    /// Begins the log anew. Whoever writes appends.
    pub fn empty_log(&self) {
        // An old log is better than no node.
        let _ = OpenOptions::new().write(true).truncate(true).open(self.log_file());
    }

    /// Certificate of the authority of sandboxes' names, while they have some.
    pub fn authority_file(&self) -> PathBuf {
        self.root.join(AUTHORITY)
    }

    /// State of rametd in hardware mode.
    pub fn node_dir(&self) -> PathBuf {
        self.root.join("node")
    }

    /// Things of the software host.
    pub fn host_dir(&self) -> PathBuf {
        self.root.join("host")
    }

    /// Files of the guest, if they were installed here.
    pub fn guest_dir(&self) -> PathBuf {
        self.root.join("guest")
    }

    /// Images that were made here.
    pub fn images_dir(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The node that runs. None while it is only being started.
    pub fn running(&self) -> Option<Record> {
        if !self.kept() {
            return None;
        }
        serde_json::from_slice(&fs::read(self.record_file()).ok()?).ok()
    }

    /// A keeper lives.
    pub fn kept(&self) -> bool {
        let Ok(file) = File::open(self.lock_file()) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Pid of the keeper that lives.
    pub fn keeper(&self) -> Option<i32> {
        if !self.kept() {
            return None;
        }
        fs::read_to_string(self.lock_file()).ok()?.trim().parse().ok()
    }

    /// Becomes the keeper; none if there is one.
    pub fn lock(&self) -> io::Result<Option<Lock>> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(self.lock_file())?;
        // Whoever only looks whether there is a keeper holds the lock for a moment.
        for _ in 0..50 {
            match file.try_lock() {
                Ok(()) => {
                    file.set_len(0)?;
                    writeln!(file, "{}", std::process::id())?;
                    return Ok(Some(Lock(file)));
                }
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Says where the node is.
    pub fn write_record(&self, record: &Record) -> io::Result<()> {
        replace(&self.record_file(), &serde_json::to_vec_pretty(record)?)
    }

    /// The node is nowhere.
    pub fn forget(&self) {
        // They may not be there, and no lock means the same.
        let _ = fs::remove_file(self.record_file());
        let _ = fs::remove_file(self.stage_file());
        let _ = fs::remove_file(self.authority_file());
    }

    /// Says what is being done.
    pub fn set_stage(&self, text: &str) {
        // It is for people who wait; nothing depends on it.
        let _ = replace(&self.stage_file(), text.as_bytes());
    }

    /// What is being done.
    pub fn stage(&self) -> Option<String> {
        fs::read_to_string(self.stage_file()).ok().filter(|text| !text.is_empty())
    }

    /// The token; made if there is none.
    pub fn token(&self) -> io::Result<String> {
        match fs::read_to_string(self.token_file()) {
            Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let token = new_token()?;
        replace(&self.token_file(), format!("{token}\n").as_bytes())?;
        Ok(token)
    }
}

/// 32 random bytes in hex.
fn new_token() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold("ramet_".to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

/// Writes a file whole, for its owner alone.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    let written = file.write_all(content).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // What is left over is in nobody's way; the error matters more.
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home { root: dir.path().join("state") };
        home.make().unwrap();
        (dir, home)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_token_is_made_once_and_for_its_owner_alone() {
        let (_dir, home) = home();
        let token = home.token().unwrap();
        assert_eq!(token.len(), "ramet_".len() + 64);
        assert_eq!(home.token().unwrap(), token);
        assert_eq!((mode(&home.token_file()), mode(home.root())), (0o600, 0o700));
    }

    #[test]
    fn a_record_counts_only_while_there_is_a_keeper() {
        let (_dir, home) = home();
        let record = Record {
            url: "http://127.0.0.1:1".into(),
            token_file: home.token_file(),
            mode: HostMode::Software,
            pid: 1,
            started_at_ms: 2,
        };
        home.write_record(&record).unwrap();
        assert_eq!(home.running(), None);
        let lock = home.lock().unwrap().unwrap();
        assert_eq!(home.running(), Some(record));
        assert_eq!(home.keeper(), Some(i32::try_from(std::process::id()).unwrap()));
        assert!(home.lock().unwrap().is_none());
        drop(lock);
        assert_eq!((home.running(), home.keeper()), (None, None));
    }
}
