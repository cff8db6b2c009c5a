//! Forks that a process inside a sandbox calls for.
//!
//! They pass the same place as forks from outside: same owner, same admission, same records. Whatever speaks
//! against one is told inside. A guest may call as often as it likes, so what calls can make is
//! bounded for each owner, and one sandbox's calls are answered one after the other.

use futures_util::future::BoxFuture;
use ramet_proto::api::ForkRequest;
use ramet_proto::control::FORK_MAX;

use super::Service;
use super::error::Error;
use super::life::Manner;
use super::record::{Phase, Record};
use crate::auth::Principal;
use crate::host::{ForkCall, MachineId};

/// Longest name.
const NAME_MAX: usize = 63;

impl Service {
    /// Answers a call: with children, or with the reason why there are none. In a box, because children
    /// are watched and may call in their turn.
    pub(super) fn answer_call<'a>(
        &'a self,
        machine: &'a MachineId,
        call: ForkCall,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.answer(machine, call))
    }

    async fn answer(&self, machine: &MachineId, call: ForkCall) {
        let Err(error) = self.called(machine, call).await else { return };
        tracing::info!(%machine, %error, "a fork call from inside is refused");
        let message = match &error {
            Error::Store(_) | Error::Io(_) | Error::Internal(_) => "the node failed".to_owned(),
            other => other.to_string(),
        };
        let (source, name) = (machine.clone(), machine.clone());
        let refused = self.host.call(move |e| e.refuse_fork(&source, call.number, message)).await;
        if let Err(error) = refused {
            tracing::debug!(%name, ?error, "the refusal could not be told");
        }
    }

    async fn called(&self, machine: &MachineId, call: ForkCall) -> Result<(), Error> {
        let source = self.registry().holder(machine).cloned();
        let source = source.ok_or_else(|| {
            Error::WrongState("this machine belongs to no sandbox that could fork".to_owned())
        })?;
        let who = Principal::new(&source.owner);
        let (service, principal) = (self.clone(), who.clone());
        let id = source.id.clone();
        self.operate(&who, "fork_inside", &id, async move {
            let names = service.names_for(&source, call.count)?;
            // Nobody there can say that secrets are passed on, so they are not.
            let request = ForkRequest {
                count: Some(call.count),
                names,
                inherit_secrets: Some(false),
                ..ForkRequest::default()
            };
            let manner = Manner { call: Some(call.number), ..Manner::default() };
            let brood = service.fork_all(&principal, &source.id, request, manner).await?;
            for error in brood.children.iter().filter_map(|child| child.as_ref().err()) {
                tracing::warn!(id = source.id, %error, "a child called for from inside failed");
            }
            Ok(())
        })
        .await
    }

    /// Names of children, made from the source's, if there may be so many.
    fn names_for(&self, source: &Record, count: u32) -> Result<Option<Vec<String>>, Error> {
        let most = u32::try_from(FORK_MAX).unwrap_or(u32::MAX);
        if !(1..=most).contains(&count) {
            return Err(Error::Bad(format!("1 to {most} children, not {count}")));
        }
        let registry = self.registry();
        let mine = || registry.all().filter(|one| one.owner == source.owner);
        let live = || mine().filter(|one| one.phase != Phase::Gone);
        let called = live().filter(|one| one.called).count();
        let limit = self.settings.called_max;
        if called + usize::try_from(count).unwrap_or(usize::MAX) > limit {
            return Err(Error::NoCapacity(format!(
                "there are {called} sandboxes made from inside others, of at most {limit}"
            )));
        }
        if source.name == source.id {
            return Ok(None);
        }
        let taken: std::collections::BTreeSet<&str> = live().map(|one| one.name.as_str()).collect();
        let wanted = usize::try_from(count).unwrap_or(usize::MAX);
        let free = (1u32..).map(|number| child_name(&source.name, number));
        Ok(Some(free.filter(|name| !taken.contains(name.as_str())).take(wanted).collect()))
    }
}

/// The name with a number, cut so that it still is a name.
fn child_name(name: &str, number: u32) -> String {
    let number = number.to_string();
    let room = NAME_MAX - 1 - number.len();
    let stem = name.get(..room).unwrap_or(name).trim_end_matches('-');
    format!("{stem}-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_children_are_names() {
        assert_eq!(child_name("box", 1), "box-1");
        for (name, number) in [("x".repeat(63), 1), (format!("{}--x", "a".repeat(59)), 1234567)] {
            super::super::check::name(&child_name(&name, number)).unwrap();
        }
    }
}
