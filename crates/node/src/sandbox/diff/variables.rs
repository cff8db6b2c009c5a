//! Variables of Python contexts that differ between two sandboxes.
//!
//! A copy in which nothing runs cannot be asked, so the sandboxes themselves are, a moment after the copies were made. Only
//! those that run are asked, and nothing is started or resumed for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ramet_proto::api::{DiffKind, DiffVariable, VariableState};
use tokio::time::timeout;

use super::super::Service;
use super::super::code::Variable;
use super::super::error::Error;
use super::super::record::Phase;
use super::{Of, Side};
use crate::auth::Principal;

/// Time for both sides.
const TIME: Duration = Duration::from_secs(20);
/// Most differences that are told.
const VARIABLES_MAX: usize = 5000;
/// Most contexts of a side that are asked.
const CONTEXTS_MAX: usize = 64;

/// Variables by context and name.
type Known = BTreeMap<(String, String), VariableState>;

/// What became of the question: the differences, or why there are none.
pub type Compared = Result<Vec<DiffVariable>, String>;

impl Service {
    /// What differs; none if it was not asked for and cannot be told.
    pub(super) async fn compare_variables(
        &self,
        who: &Principal,
        (before, after): (&Side, &Side),
        wanted: Option<bool>,
    ) -> Option<Compared> {
        if wanted == Some(false) {
            return None;
        }
        let still = [before, after].into_iter().find(|side| !runs(side));
        if let Some(side) = still {
            let text = format!("{} is no sandbox that runs", side.id);
            return Some(Err(text));
        }
        let both = async {
            tokio::try_join!(
                self.known_variables(who, &before.id),
                self.known_variables(who, &after.id)
            )
        };
        Some(match timeout(TIME, both).await {
            Ok(Ok((old, new))) => Ok(differing(&old, &new)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the interpreters did not answer in {TIME:?}")),
        })
    }

    async fn known_variables(&self, who: &Principal, id: &str) -> Result<Known, Error> {
        let mut known = Known::new();
        let contexts = self.contexts(who, id).await?.contexts;
        let python = contexts.into_iter().filter(|context| context.language == "python");
        for context in python.take(CONTEXTS_MAX) {
            for Variable { name, kind, value } in self.variables(who, id, &context.id).await? {
                known.insert((context.id.clone(), name), VariableState { kind, value });
            }
        }
        Ok(known)
    }
}

fn runs(side: &Side) -> bool {
    matches!(&side.of, Of::Sandbox(record) if record.phase == Phase::Running)
}

fn differing(old: &Known, new: &Known) -> Vec<DiffVariable> {
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let differ = keys.into_iter().filter_map(|key| {
        let (before, after) = (old.get(key).cloned(), new.get(key).cloned());
        let change = match (&before, &after) {
            (None, _) => DiffKind::Added,
            (_, None) => DiffKind::Removed,
            (before, after) if before == after => return None,
            _ => DiffKind::Changed,
        };
        let (context, name) = key.clone();
        Some(DiffVariable { context, name, change, before, after })
    });
    differ.take(VARIABLES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_matched_by_context_and_name() {
        let known = |all: &[(&str, &str, &str)]| -> Known {
            let state = |value: &str| VariableState { kind: "int".into(), value: value.into() };
            all.iter()
                .map(|(context, name, value)| (((*context).into(), (*name).into()), state(value)))
                .collect()
        };
        let old = known(&[("python", "a", "1"), ("python", "b", "2"), ("python", "c", "3")]);
        let new = known(&[("other", "a", "1"), ("python", "b", "2"), ("python", "c", "4")]);
        let found: Vec<_> = differing(&old, &new)
            .into_iter()
            .map(|variable| (variable.context, variable.name, variable.change))
            .collect();
        let expected = [
            ("other", "a", DiffKind::Added),
            ("python", "a", DiffKind::Removed),
            ("python", "c", DiffKind::Changed),
        ];
        let expected =
            expected.map(|(context, name, change)| (context.into(), name.into(), change));
        assert_eq!(found, expected);
    }
}
