//! What dialects keep beside what the service knows: small texts, each under a kind and a name, of one owner.
//!
//! The service gives them no meaning. They are bounded, since whoever has a token can fill them.

use super::Service;
use super::error::Error;
use crate::auth::Principal;

/// Most notes of one owner and kind.
const NOTES_MAX: usize = 1000;
/// Longest note.
const NOTE_MAX: usize = 256 << 10;

impl Service {
    /// All notes of a kind, by name.
    pub fn notes(&self, who: &Principal, kind: &str) -> Result<Vec<(String, String)>, Error> {
        Ok(self.store.notes(who.name(), kind)?)
    }

    /// Writes a note, or another text in its place.
    pub fn put_note(
        &self,
        who: &Principal,
        kind: &str,
        name: &str,
        text: &str,
    ) -> Result<(), Error> {
        if text.len() > NOTE_MAX {
            return Err(Error::TooLarge(format!("a note has at most {NOTE_MAX} bytes")));
        }
        let known = self.store.notes(who.name(), kind)?;
        if known.len() >= NOTES_MAX && known.iter().all(|(known, _)| known != name) {
            return Err(Error::TooMany(format!("there are {NOTES_MAX} of them, the most")));
        }
        Ok(self.store.put_note(who.name(), kind, name, text)?)
    }

    /// Forgets a note; false if there was none.
    pub fn forget_note(&self, who: &Principal, kind: &str, name: &str) -> Result<bool, Error> {
        Ok(self.store.forget_note(who.name(), kind, name)?)
    }
}
