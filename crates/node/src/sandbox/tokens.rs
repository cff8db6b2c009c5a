//! Tokens that the administrator makes for others, or for themselves, with or without a cap on what sandboxes reach.

use ramet_proto::api::network::{
    CreateToken, CreatedToken, LayerSource, Policy, Token as Shown, TokenList,
};

use super::Service;
use super::error::Error;
use crate::auth::{self, Principal, Tokens};
use crate::clock::now_ms;
use crate::store::Token;

/// Most tokens of a node.
const TOKENS_MAX: usize = 1000;
/// Digits of a token's hash that name it.
const ID: usize = 16;
/// Longest name of a principal.
const NAME_MAX: usize = 63;

fn id(token: &Token) -> String {
    format!("tok-{}", token.hash.get(..ID).unwrap_or(&token.hash))
}

fn shown(token: Token) -> Shown {
    let id = id(&token);
    let Token { principal, cap, created_at_ms, .. } = token;
    Shown { id, principal, cap, created_at_ms }
}

fn check(who: &Principal) -> Result<(), Error> {
    match who.is_admin() {
        true => Ok(()),
        false => Err(Error::Denied("tokens are the administrator's business".to_owned())),
    }
}

fn check_principal(name: &str) -> Result<(), Error> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let edges = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    if name.len() > NAME_MAX || !edges || !name.bytes().all(letter) {
        let text = format!("1 to {NAME_MAX} letters, digits and any of -._ between them");
        return Err(Error::Bad(format!("principal: {text}, not {name:?}")));
    }
    // States of a principal are kept under its name.
    super::durable::vault::tenant(name).map(drop)
}

impl Service {
    /// Every token.
    pub fn tokens(&self, who: &Principal) -> Result<TokenList, Error> {
        check(who)?;
        Ok(TokenList { tokens: self.store.tokens()?.into_iter().map(shown).collect() })
    }

    /// Makes a token.
    pub async fn create_token(
        &self,
        who: &Principal,
        tokens: &Tokens,
        request: CreateToken,
    ) -> Result<CreatedToken, Error> {
        check(who)?;
        check_principal(&request.principal)?;
        let capped = request.egress.is_some() || !request.allow.is_empty();
        let egress = request.egress.as_deref();
        let cap = self.layer(LayerSource::Token, egress, &request.allow)?;
        let cap = capped.then_some(Policy { allow: cap.allow });
        let (service, tokens) = (self.clone(), tokens.clone());
        self.operate(who, "token_create", &request.principal.clone(), async move {
            if service.store.tokens()?.len() >= TOKENS_MAX {
                let text = format!("there are {TOKENS_MAX} tokens, the most; delete some");
                return Err(Error::TooMany(text));
            }
            let token = auth::generate()?;
            let hash = auth::hash(&token);
            let made = Token { hash, principal: request.principal, cap, created_at_ms: now_ms() };
            service.store.put_token(&made)?;
            tokens.reload(&service.store)?;
            Ok(CreatedToken { token, about: shown(made) })
        })
        .await
    }

    /// Accepts a token no more. Sandboxes that were made with it stay.
    pub async fn delete_token(
        &self,
        who: &Principal,
        tokens: &Tokens,
        key: &str,
    ) -> Result<(), Error> {
        check(who)?;
        let (service, tokens, key) = (self.clone(), tokens.clone(), key.to_owned());
        let target = key.clone();
        self.operate(who, "token_delete", &target, async move {
            let all = service.store.tokens()?;
            let meant = all.iter().find(|token| id(token) == key);
            let meant = meant.ok_or(Error::NotFound { what: "token", key })?;
            let admins = all.iter().filter(|one| one.principal == auth::ADMIN && one.cap.is_none());
            if admins.count() == 1 && meant.principal == auth::ADMIN && meant.cap.is_none() {
                let text = "it is the last token of the administrator; nobody could make another";
                return Err(Error::InUse(text.to_owned()));
            }
            service.store.forget_token(&meant.hash)?;
            Ok(tokens.reload(&service.store)?)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_principals() {
        for good in ["a", "team-a", "a.b_c", "Ann1"] {
            check_principal(good).unwrap();
        }
        for bad in ["", "-a", "a-", "a b", "ä", "a/b", "..", &"x".repeat(64)] {
            assert!(check_principal(bad).is_err(), "{bad}");
        }
    }
}
