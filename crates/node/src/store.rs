//! What outlives the node: one SQLite database.
//!
//! The working state is in memory (`sandbox::registry`); every change of it is written here first, in
//! one transaction, so that what a client was told is still true after a crash. A connection behind a
//! mutex is enough: statements take microseconds, and nothing is awaited while it is held. The file holds
//! secrets of sandboxes, so only its owner may read it.
//!
//! # To change the schema
//! 1. Append a step to [`MIGRATIONS`]; never edit one. 2. Its place in the list is `user_version`.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ramet_proto::api::network::Policy;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::de::DeserializeOwned;

use crate::host::MachineId;
use crate::sandbox::boot::Booted;
use crate::sandbox::durable::commits::Commit;
use crate::sandbox::images::Image;
use crate::sandbox::network::{Link, Secret};
use crate::sandbox::networks::Network;
use crate::sandbox::record::{Checkpoint, Record};
use crate::sandbox::template::Template;
use crate::sandbox::volumes::Volume;

const MIGRATIONS: &[&str] = &["
    CREATE TABLE sandboxes (id TEXT PRIMARY KEY, owner TEXT NOT NULL, record TEXT NOT NULL) STRICT;
    CREATE TABLE checkpoints (id TEXT PRIMARY KEY, sandbox TEXT NOT NULL, record TEXT NOT NULL) STRICT;
    CREATE TABLE templates (vcpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL, machine TEXT NOT NULL,
        created_at_ms INTEGER NOT NULL, PRIMARY KEY (vcpus, memory_mib)) STRICT;
    CREATE TABLE tokens (hash TEXT PRIMARY KEY, principal TEXT NOT NULL, created_at_ms INTEGER NOT NULL) STRICT;
    CREATE TABLE operations (number INTEGER PRIMARY KEY, principal TEXT NOT NULL, kind TEXT NOT NULL,
        target TEXT NOT NULL, began_at_ms INTEGER NOT NULL, ended_at_ms INTEGER, outcome TEXT) STRICT;
    CREATE TABLE idempotency (owner TEXT NOT NULL, key TEXT NOT NULL, request TEXT NOT NULL,
        answer TEXT, made_at_ms INTEGER NOT NULL, PRIMARY KEY (owner, key)) STRICT;
", "
    DROP TABLE templates;
    CREATE TABLE boots (image TEXT NOT NULL, shape TEXT NOT NULL, machine TEXT NOT NULL,
        created_at_ms INTEGER NOT NULL, PRIMARY KEY (image, shape)) STRICT;
    CREATE TABLE templates (id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
    CREATE TABLE images (owner TEXT NOT NULL, name TEXT NOT NULL, record TEXT NOT NULL,
        PRIMARY KEY (owner, name)) STRICT;
", "
    CREATE TABLE commits (id TEXT PRIMARY KEY, owner TEXT NOT NULL, record TEXT NOT NULL) STRICT;
", "
    CREATE TABLE volumes (id TEXT PRIMARY KEY, owner TEXT NOT NULL, record TEXT NOT NULL) STRICT;
", "
    ALTER TABLE tokens ADD COLUMN cap TEXT;
    CREATE TABLE secrets (owner TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
        updated_at_ms INTEGER NOT NULL, PRIMARY KEY (owner, name)) STRICT;
    CREATE TABLE links (id TEXT PRIMARY KEY, sandbox TEXT NOT NULL, record TEXT NOT NULL) STRICT;
    CREATE TABLE networks (id TEXT PRIMARY KEY, owner TEXT NOT NULL, record TEXT NOT NULL) STRICT;
", "
    CREATE TABLE notes (owner TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL,
        PRIMARY KEY (owner, kind, name)) STRICT;
"];

/// Most operations that are remembered.
const OPERATIONS_MAX: i64 = 100_000;
/// Room beside the database that is given up when the disk is full, so that a removal, which makes room, can be
/// written down.
const RESERVE: usize = 1 << 20;
/// How long another process that looks into the database may hold it.
const BUSY: Duration = Duration::from_secs(5);

/// Why the database failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SQLite says no.
    #[error("the database failed")]
    Sql(#[from] rusqlite::Error),
    /// A row is not what it must be.
    #[error("the database holds a row that cannot be read")]
    Row(#[from] serde_json::Error),
    /// The file cannot be made.
    #[error("cannot make {}", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was written by a later version.
    #[error("the database has schema {found}; this version knows {known}")]
    Newer {
        /// Of the file.
        found: i64,
        /// Of this program.
        known: i64,
    },
}

impl Error {
    /// The disk has no room for what was to be written.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Sql(error) => error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            Self::File { source, .. } => is_full(source),
            _ => false,
        }
    }
}

/// The same of an error of the kernel.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A change of the working state: all of it is written, or nothing.
#[derive(Debug, Default)]
pub struct Change {
    /// Sandboxes that are new or differ.
    pub sandboxes: Vec<Record>,
    /// Sandboxes to forget.
    pub forget: Vec<String>,
    /// Checkpoints that are new.
    pub checkpoints: Vec<Checkpoint>,
    /// Checkpoints to forget.
    pub forget_checkpoints: Vec<String>,
    /// Commits that are new or differ.
    pub commits: Vec<Commit>,
    /// Commits to forget.
    pub forget_commits: Vec<String>,
    /// Volumes that are new.
    pub volumes: Vec<Volume>,
    /// Volumes to forget.
    pub forget_volumes: Vec<String>,
    /// Links that are new.
    pub links: Vec<Link>,
    /// Links to forget.
    pub forget_links: Vec<String>,
    /// Networks that are new or differ.
    pub networks: Vec<Network>,
    /// Networks to forget.
    pub forget_networks: Vec<String>,
}

/// A token that is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Of the token.
    pub hash: String,
    /// Whose it is.
    pub principal: String,
    /// What sandboxes that are made with it may reach, at most.
    pub cap: Option<Policy>,
    /// When it was made.
    pub created_at_ms: u64,
}

/// What is known of an idempotency key.
#[derive(Debug, PartialEq, Eq)]
pub enum Known {
    /// It is new, and now taken.
    New,
    /// The first request is under way.
    Pending,
    /// The first answer.
    Answered(String),
    /// It was another request.
    Mismatch,
}

/// The database.
pub struct Store {
    connection: Mutex<Connection>,
    reserve: Option<PathBuf>,
}

impl Store {
    /// Opens it, or makes it, and brings it up to date.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        made.map_err(|source| Error::File { path: path.to_owned(), source })?;
        let mut store = Self::prepare(Connection::open(path)?)?;
        store.reserve = Some(path.with_extension("reserve"));
        store.take_reserve();
        Ok(store)
    }

    /// Takes room for bad times, if there is any to take.
    pub fn take_reserve(&self) {
        let Some(path) = &self.reserve else { return };
        let taken = |found: fs::Metadata| found.len() == RESERVE as u64;
        if fs::metadata(path).is_ok_and(taken) {
            return;
        }
        if fs::write(path, vec![0; RESERVE]).is_err() {
            self.give_reserve();
        }
    }

    /// Gives that room up; false if there was none.
    pub fn give_reserve(&self) -> bool {
        self.reserve.as_ref().is_some_and(|path| fs::remove_file(path).is_ok())
    }

    /// One that is gone with the process.
    pub fn in_memory() -> Result<Self, Error> {
        Self::prepare(Connection::open_in_memory()?)
    }

    fn prepare(mut connection: Connection) -> Result<Self, Error> {
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
        if found > known {
            return Err(Error::Newer { found, known });
        }
        for (number, step) in (1..).zip(MIGRATIONS).skip(usize::try_from(found).unwrap_or(0)) {
            let transaction = connection.transaction()?;
            transaction.execute_batch(step)?;
            transaction.pragma_update(None, "user_version", number)?;
            transaction.commit()?;
        }
        Ok(Self { connection: Mutex::new(connection), reserve: None })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a change.
    pub fn apply(&self, change: &Change) -> Result<(), Error> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        write(&transaction, change)?;
        Ok(transaction.commit()?)
    }

    /// Every sandbox and checkpoint.
    pub fn load(&self) -> Result<(Vec<Record>, Vec<Checkpoint>), Error> {
        let connection = self.lock();
        let rows = |sql: &str| -> Result<Vec<String>, Error> {
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        };
        let sandboxes = rows("SELECT record FROM sandboxes")?;
        let sandboxes = sandboxes.iter().map(|row| serde_json::from_str(row));
        let checkpoints = rows("SELECT record FROM checkpoints")?;
        let checkpoints = checkpoints.iter().map(|row| serde_json::from_str(row));
        Ok((sandboxes.collect::<Result<_, _>>()?, checkpoints.collect::<Result<_, _>>()?))
    }

    /// Every commit.
    pub fn commits(&self) -> Result<Vec<Commit>, Error> {
        self.records("SELECT record FROM commits")
    }

    /// Every volume.
    pub fn networks(&self) -> Result<Vec<Network>, Error> {
        self.records("SELECT record FROM networks")
    }

    /// All volumes.
    pub fn volumes(&self) -> Result<Vec<Volume>, Error> {
        self.records("SELECT record FROM volumes")
    }

    /// Every link.
    pub fn links(&self) -> Result<Vec<Link>, Error> {
        self.records("SELECT record FROM links")
    }

    /// The value of an owner's secret.
    pub fn secret(&self, owner: &str, name: &str) -> Result<Option<String>, Error> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT value FROM secrets WHERE owner = ?1 AND name = ?2")?;
        Ok(statement.query_row([owner, name], |row| row.get(0)).optional()?)
    }

    /// An owner's secrets, without their values, by name.
    pub fn secrets(&self, owner: &str) -> Result<Vec<Secret>, Error> {
        let connection = self.lock();
        let mut statement = connection.prepare(
            "SELECT name, created_at_ms, updated_at_ms FROM secrets WHERE owner = ?1 ORDER BY name",
        )?;
        let rows = statement.query_map([owner], |row| {
            let (created, updated): (i64, i64) = (row.get(1)?, row.get(2)?);
            Ok(Secret {
                name: row.get(0)?,
                created_at_ms: u64::try_from(created).unwrap_or(0),
                updated_at_ms: u64::try_from(updated).unwrap_or(0),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Sets a secret.
    pub fn put_secret(&self, owner: &str, name: &str, value: &str, now: u64) -> Result<(), Error> {
        self.lock().execute(
            "INSERT INTO secrets VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT (owner, name) DO UPDATE SET value = excluded.value, \
             updated_at_ms = excluded.updated_at_ms",
            params![owner, name, value, sql(now)],
        )?;
        Ok(())
    }

    /// Forgets a secret; false if there was none.
    pub fn forget_secret(&self, owner: &str, name: &str) -> Result<bool, Error> {
        let count = self
            .lock()
            .execute("DELETE FROM secrets WHERE owner = ?1 AND name = ?2", [owner, name])?;
        Ok(count > 0)
    }

    /// An owner's notes of a kind, with their texts, by name.
    pub fn notes(&self, owner: &str, kind: &str) -> Result<Vec<(String, String)>, Error> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT name, text FROM notes WHERE owner = ?1 AND kind = ?2 ORDER BY name",
        )?;
        let rows = statement.query_map([owner, kind], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Writes a note.
    pub fn put_note(&self, owner: &str, kind: &str, name: &str, text: &str) -> Result<(), Error> {
        let sql = "INSERT OR REPLACE INTO notes VALUES (?1, ?2, ?3, ?4)";
        self.lock().execute(sql, [owner, kind, name, text])?;
        Ok(())
    }

    /// Forgets a note; false if there was none.
    pub fn forget_note(&self, owner: &str, kind: &str, name: &str) -> Result<bool, Error> {
        let sql = "DELETE FROM notes WHERE owner = ?1 AND kind = ?2 AND name = ?3";
        Ok(self.lock().execute(sql, [owner, kind, name])? > 0)
    }

    /// Remembers a machine that was booted from an image.
    pub fn add_boot(&self, booted: &Booted, machine: &MachineId, now: u64) -> Result<(), Error> {
        let shape = serde_json::to_string(&booted.shape)?;
        self.lock().execute(
            "INSERT OR REPLACE INTO boots VALUES (?1, ?2, ?3, ?4)",
            params![booted.image, shape, machine.0, sql(now)],
        )?;
        Ok(())
    }

    /// Forgets one.
    pub fn remove_boot(&self, booted: &Booted) -> Result<(), Error> {
        let shape = serde_json::to_string(&booted.shape)?;
        self.lock().execute(
            "DELETE FROM boots WHERE image = ?1 AND shape = ?2",
            params![booted.image, shape],
        )?;
        Ok(())
    }

    /// All of them, and when they were made.
    pub fn boots(&self) -> Result<Vec<(Booted, MachineId, u64)>, Error> {
        let connection = self.lock();
        let mut statement =
            connection.prepare("SELECT image, shape, machine, created_at_ms FROM boots")?;
        let rows = statement.query_map([], |row| {
            let made: i64 = row.get(3)?;
            Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?, made))
        })?;
        let booted = |row: Result<(String, String, String, i64), rusqlite::Error>| {
            let (image, shape, machine, made) = row?;
            let booted = Booted { image, shape: serde_json::from_str(&shape)? };
            Ok((booted, MachineId(machine), u64::try_from(made).unwrap_or(0)))
        };
        rows.map(booted).collect()
    }

    /// Writes a template, and forgets others in the same step.
    pub fn put_template(&self, template: &Template, forget: &[String]) -> Result<(), Error> {
        let text = serde_json::to_string(template)?;
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        transaction.execute(
            "INSERT OR REPLACE INTO templates VALUES (?1, ?2)",
            params![template.id, text],
        )?;
        for id in forget {
            transaction.execute("DELETE FROM templates WHERE id = ?1", [id])?;
        }
        Ok(transaction.commit()?)
    }

    /// Forgets a template.
    pub fn forget_template(&self, id: &str) -> Result<(), Error> {
        self.lock().execute("DELETE FROM templates WHERE id = ?1", [id])?;
        Ok(())
    }

    /// Every template.
    pub fn templates(&self) -> Result<Vec<Template>, Error> {
        self.records("SELECT record FROM templates")
    }

    /// Writes an image.
    pub fn put_image(&self, image: &Image) -> Result<(), Error> {
        let text = serde_json::to_string(image)?;
        self.lock().execute(
            "INSERT OR REPLACE INTO images VALUES (?1, ?2, ?3)",
            [&image.owner, &image.name, &text],
        )?;
        Ok(())
    }

    /// Forgets an image.
    pub fn forget_image(&self, image: &Image) -> Result<(), Error> {
        self.lock().execute(
            "DELETE FROM images WHERE owner = ?1 AND name = ?2",
            [&image.owner, &image.name],
        )?;
        Ok(())
    }

    /// Every image.
    pub fn images(&self) -> Result<Vec<Image>, Error> {
        self.records("SELECT record FROM images")
    }

    fn records<T: DeserializeOwned>(&self, sql: &str) -> Result<Vec<T>, Error> {
        let connection = self.lock();
        let mut statement = connection.prepare(sql)?;
        let rows = statement.query_map([], |row| row.get(0))?;
        let rows = rows.collect::<Result<Vec<String>, _>>()?;
        rows.iter().map(|row| Ok(serde_json::from_str(row)?)).collect()
    }

    /// Accepts the token with this hash for a principal, without a cap.
    pub fn add_token(&self, hash: &str, principal: &str, now: u64) -> Result<(), Error> {
        let (hash, principal) = (hash.to_owned(), principal.to_owned());
        self.put_token(&Token { hash, principal, cap: None, created_at_ms: now })
    }

    /// Accepts a token.
    pub fn put_token(&self, token: &Token) -> Result<(), Error> {
        let cap = token.cap.as_ref().map(serde_json::to_string).transpose()?;
        self.lock().execute(
            "INSERT OR REPLACE INTO tokens VALUES (?1, ?2, ?3, ?4)",
            params![token.hash, token.principal, sql(token.created_at_ms), cap],
        )?;
        Ok(())
    }

    /// Accepts a token no more.
    pub fn forget_token(&self, hash: &str) -> Result<(), Error> {
        self.lock().execute("DELETE FROM tokens WHERE hash = ?1", [hash])?;
        Ok(())
    }

    /// Every token, oldest first.
    pub fn tokens(&self) -> Result<Vec<Token>, Error> {
        let connection = self.lock();
        let mut statement = connection.prepare(
            "SELECT hash, principal, created_at_ms, cap FROM tokens ORDER BY created_at_ms, hash",
        )?;
        let rows = statement.query_map([], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?, row.get::<_, Option<String>>(3)?))
        })?;
        let token = |row: Result<(String, String, i64, Option<String>), rusqlite::Error>| {
            let (hash, principal, made, cap) = row?;
            let cap = cap.map(|cap| serde_json::from_str(&cap)).transpose()?;
            let created_at_ms = u64::try_from(made).unwrap_or(0);
            Ok(Token { hash, principal, cap, created_at_ms })
        };
        rows.map(token).collect()
    }

    /// Notes that an operation begins. The number is for [`Self::end_operation`].
    pub fn begin_operation(
        &self,
        principal: &str,
        kind: &str,
        target: &str,
        now: u64,
    ) -> Result<i64, Error> {
        let connection = self.lock();
        connection
            .prepare_cached(
                "INSERT INTO operations (principal, kind, target, began_at_ms) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![principal, kind, target, sql(now)])?;
        Ok(connection.last_insert_rowid())
    }

    /// Notes what came of it.
    pub fn end_operation(&self, number: i64, outcome: &str, now: u64) -> Result<(), Error> {
        self.lock()
            .prepare_cached(
                "UPDATE operations SET ended_at_ms = ?2, outcome = ?3 WHERE number = ?1",
            )?
            .execute(params![number, sql(now), outcome])?;
        Ok(())
    }

    /// The last operations, latest first: principal, kind, target, outcome.
    pub fn operations(&self, count: u32) -> Result<Vec<[String; 4]>, Error> {
        let connection = self.lock();
        let mut statement = connection.prepare(
            "SELECT principal, kind, target, coalesce(outcome, '') FROM operations \
             ORDER BY number DESC LIMIT ?1",
        )?;
        let rows = statement
            .query_map([count], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Owners and keys of requests that were not answered.
    pub fn pending_keys(&self) -> Result<BTreeSet<(String, String)>, Error> {
        let connection = self.lock();
        let mut statement =
            connection.prepare("SELECT owner, key FROM idempotency WHERE answer IS NULL")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// After a crash: nothing is under way any more.
    pub fn settle(&self, now: u64) -> Result<usize, Error> {
        let connection = self.lock();
        connection.execute("DELETE FROM idempotency WHERE answer IS NULL", [])?;
        Ok(connection.execute(
            "UPDATE operations SET ended_at_ms = ?1, outcome = 'interrupted' WHERE outcome IS NULL",
            [sql(now)],
        )?)
    }

    /// Forgets old operations, and keys that were made before.
    pub fn prune(&self, keys_before_ms: u64) -> Result<(), Error> {
        let connection = self.lock();
        connection.execute(
            "DELETE FROM operations WHERE number <= (SELECT max(number) FROM operations) - ?1",
            [OPERATIONS_MAX],
        )?;
        connection
            .execute("DELETE FROM idempotency WHERE made_at_ms < ?1", [sql(keys_before_ms)])?;
        Ok(())
    }

    /// Takes a key for a request, if it is new.
    pub fn take_key(
        &self,
        owner: &str,
        key: &str,
        request: &str,
        now: u64,
    ) -> Result<Known, Error> {
        let mut connection = self.lock();
        let transaction = connection.transaction()?;
        let row: Option<(String, Option<String>)> = transaction
            .query_row(
                "SELECT request, answer FROM idempotency WHERE owner = ?1 AND key = ?2",
                [owner, key],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        let known = match row {
            Some((first, _)) if first != request => Known::Mismatch,
            Some((_, Some(answer))) => Known::Answered(answer),
            Some((_, None)) => Known::Pending,
            None => {
                transaction.execute(
                    "INSERT INTO idempotency VALUES (?1, ?2, ?3, NULL, ?4)",
                    params![owner, key, request, sql(now)],
                )?;
                Known::New
            }
        };
        transaction.commit()?;
        Ok(known)
    }

    /// Keeps the answer to the request of a key; without one, frees the key.
    pub fn settle_key(&self, owner: &str, key: &str, answer: Option<&str>) -> Result<(), Error> {
        let connection = self.lock();
        match answer {
            Some(answer) => connection.execute(
                "UPDATE idempotency SET answer = ?3 WHERE owner = ?1 AND key = ?2",
                [owner, key, answer],
            )?,
            None => connection
                .execute("DELETE FROM idempotency WHERE owner = ?1 AND key = ?2", [owner, key])?,
        };
        Ok(())
    }
}

fn write(transaction: &Transaction<'_>, change: &Change) -> Result<(), Error> {
    for record in &change.sandboxes {
        let text = serde_json::to_string(record)?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO sandboxes VALUES (?1, ?2, ?3)")?
            .execute([&record.id, &record.owner, &text])?;
    }
    for id in &change.forget {
        transaction.execute("DELETE FROM sandboxes WHERE id = ?1", [id])?;
    }
    for checkpoint in &change.checkpoints {
        let text = serde_json::to_string(checkpoint)?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3)")?
            .execute([&checkpoint.id, &checkpoint.sandbox, &text])?;
    }
    for id in &change.forget_checkpoints {
        transaction.execute("DELETE FROM checkpoints WHERE id = ?1", [id])?;
    }
    for commit in &change.commits {
        let text = serde_json::to_string(commit)?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO commits VALUES (?1, ?2, ?3)")?
            .execute([&commit.id, &commit.owner, &text])?;
    }
    for id in &change.forget_commits {
        transaction.execute("DELETE FROM commits WHERE id = ?1", [id])?;
    }
    for volume in &change.volumes {
        let text = serde_json::to_string(volume)?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO volumes VALUES (?1, ?2, ?3)")?
            .execute([&volume.id, &volume.owner, &text])?;
    }
    for id in &change.forget_volumes {
        transaction.execute("DELETE FROM volumes WHERE id = ?1", [id])?;
    }
    for network in &change.networks {
        let text = serde_json::to_string(network)?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO networks VALUES (?1, ?2, ?3)")?
            .execute([&network.id, &network.owner, &text])?;
    }
    for id in &change.forget_networks {
        transaction.execute("DELETE FROM networks WHERE id = ?1", [id])?;
    }
    for link in &change.links {
        let text = serde_json::to_string(link)?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO links VALUES (?1, ?2, ?3)")?
            .execute([&link.id, &link.sandbox, &text])?;
    }
    for id in &change.forget_links {
        transaction.execute("DELETE FROM links WHERE id = ?1", [id])?;
    }
    Ok(())
}

/// SQLite's integers are signed; times fit.
fn sql(time_ms: u64) -> i64 {
    i64::try_from(time_ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_once() {
        let store = Store::in_memory().unwrap();
        assert_eq!(store.take_key("a", "k", "r", 1).unwrap(), Known::New);
        assert_eq!(store.take_key("a", "k", "r", 1).unwrap(), Known::Pending);
        assert_eq!(store.take_key("a", "k", "other", 1).unwrap(), Known::Mismatch);
        assert_eq!(store.take_key("b", "k", "other", 1).unwrap(), Known::New);
        store.settle_key("a", "k", Some("answer")).unwrap();
        assert_eq!(store.take_key("a", "k", "r", 1).unwrap(), Known::Answered("answer".into()));
        store.settle(2).unwrap();
        assert_eq!(store.take_key("b", "k", "new", 1).unwrap(), Known::New);
        store.prune(2).unwrap();
        assert_eq!(store.take_key("a", "k", "r2", 1).unwrap(), Known::New);
    }

    #[test]
    fn a_file_is_private_and_of_no_later_version() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("db");
        drop(Store::open(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(Store::open(&path).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(Store::open(&path), Err(Error::Newer { found: 99, .. })));
    }

    #[test]
    fn notes_are_their_owners() {
        let store = Store::in_memory().unwrap();
        store.put_note("a", "k", "n", "1").unwrap();
        store.put_note("a", "k", "n", "2").unwrap();
        assert_eq!(store.notes("a", "k").unwrap(), [("n".to_owned(), "2".to_owned())]);
        assert!(store.notes("b", "k").unwrap().is_empty());
        assert!(store.notes("a", "other").unwrap().is_empty());
        assert!(!store.forget_note("b", "k", "n").unwrap());
        assert!(store.forget_note("a", "k", "n").unwrap());
    }

    #[test]
    fn operations_that_broke_off_are_settled() {
        let store = Store::in_memory().unwrap();
        let number = store.begin_operation("me", "fork", "sbx-1", 1).unwrap();
        store.end_operation(number, "ok", 2).unwrap();
        store.begin_operation("me", "delete", "sbx-2", 3).unwrap();
        assert_eq!(store.settle(9).unwrap(), 1);
        let outcomes: Vec<_> =
            store.operations(9).unwrap().into_iter().map(|row| row[3].clone()).collect();
        assert_eq!(outcomes, ["interrupted", "ok"]);
    }

    #[test]
    fn a_reserve_is_taken_and_given() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(&root.path().join("ramet.db")).unwrap();
        let reserve = root.path().join("ramet.reserve");
        assert_eq!(std::fs::metadata(&reserve).unwrap().len(), RESERVE as u64);
        assert!(store.give_reserve() && !store.give_reserve() && !reserve.exists());
        store.take_reserve();
        assert!(reserve.exists());
        assert!(!Store::in_memory().unwrap().give_reserve());
    }
}
