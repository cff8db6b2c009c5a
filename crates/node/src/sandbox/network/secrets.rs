//! Secrets that edge rules name. Their values are in the database and with the network service, nowhere else: not in answers, events,
//! logs or what is noted of operations.

use ramet_proto::api::network::{PutSecret, Secret, SecretList};

use super::edge::secret_of;
use crate::auth::Principal;
use crate::clock::now_ms;
use crate::sandbox::Service;
use crate::sandbox::error::Error;
use crate::sandbox::record::{Phase, Record};

/// Most secrets of a principal.
const SECRETS_MAX: usize = 256;
/// Longest value. Rules and this are bounded so that every configuration fits into one message to the service.
const VALUE_MAX: usize = 4096;
/// Longest name.
const NAME_MAX: usize = 128;

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Name.
    pub name: String,
    /// When it was first set.
    pub created_at_ms: u64,
    /// When it was last set.
    pub updated_at_ms: u64,
}

fn check_name(name: &str) -> Result<(), Error> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(letter) {
        let text = format!("the name of a secret has 1 to {NAME_MAX} letters, digits, _ and -");
        return Err(Error::Bad(format!("{name:?}: {text}")));
    }
    Ok(())
}

fn check_value(value: &str) -> Result<(), Error> {
    let visible = value.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if value.is_empty() || value.len() > VALUE_MAX || !visible || value.trim() != value {
        return Err(Error::Bad(format!(
            "value: 1 to {VALUE_MAX} visible ASCII characters without space at either end, since it goes into a header"
        )));
    }
    Ok(())
}

impl Service {
    /// A principal's secrets.
    pub fn secrets(&self, who: &Principal) -> Result<SecretList, Error> {
        let secrets = self.store.secrets(who.name())?;
        let secrets = secrets.into_iter().map(|known| self.shown_secret(who, known)).collect();
        Ok(SecretList { secrets })
    }

    fn shown_secret(&self, who: &Principal, known: Known) -> Secret {
        let used_by = self.users_of(who, &known.name).into_iter().map(|record| record.id).collect();
        let Known { name, created_at_ms, updated_at_ms } = known;
        Secret { name, created_at_ms, updated_at_ms, used_by }
    }

    /// Sandboxes whose rules name a secret.
    fn users_of(&self, who: &Principal, name: &str) -> Vec<Record> {
        let registry = self.registry();
        let uses = |record: &&Record| {
            record.owner == who.name()
                && record.phase != Phase::Gone
                && record.network.edge.iter().any(|rule| secret_of(rule) == Some(name))
        };
        registry.all().filter(uses).cloned().collect()
    }

    /// Sets a secret; sandboxes that use it have the new value from now on.
    pub async fn put_secret(
        &self,
        who: &Principal,
        name: &str,
        request: PutSecret,
    ) -> Result<Secret, Error> {
        check_name(name)?;
        check_value(&request.value)?;
        let (service, principal, name) = (self.clone(), who.clone(), name.to_owned());
        let target = name.clone();
        self.operate(who, "secret_set", &target, async move {
            let known = service.store.secrets(principal.name())?;
            let new = known.iter().all(|one| one.name != name);
            if new && known.len() >= SECRETS_MAX {
                let text = format!("you have {SECRETS_MAX} secrets, the most; delete some");
                return Err(Error::TooMany(text));
            }
            service.store.put_secret(principal.name(), &name, &request.value, now_ms())?;
            for record in service.users_of(&principal, &name) {
                let _own = service.own(&record.id).await?;
                if let Ok(record) = service.find(&principal, &record.id) {
                    service.configure(&record).await;
                }
            }
            let set = service.store.secrets(principal.name())?;
            let set = set.into_iter().find(|one| one.name == name);
            let set = set.ok_or_else(|| Error::Internal("a secret is not there".to_owned()))?;
            Ok(service.shown_secret(&principal, set))
        })
        .await
    }

    /// Forgets a secret that no rule names.
    pub async fn delete_secret(&self, who: &Principal, name: &str) -> Result<(), Error> {
        let (service, principal, name) = (self.clone(), who.clone(), name.to_owned());
        let target = name.clone();
        self.operate(who, "secret_delete", &target, async move {
            let users = service.users_of(&principal, &name);
            if let Some(first) = users.first() {
                return Err(Error::InUse(format!(
                    "{} sandboxes have edge rules with the secret {name}, {} first; change those with `ramet net set`, or delete them",
                    users.len(),
                    first.name
                )));
            }
            match service.store.forget_secret(principal.name(), &name)? {
                true => Ok(()),
                false => Err(Error::NotFound { what: "secret", key: name }),
            }
        })
        .await
    }
}
