//! As whom, and where: users of a guest, and paths as they mean them.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ramet_proto::agent::{Account, Accounts};

use super::connect::Failed;
use crate::dialects::e2b::E2b;
use crate::sandbox::Live;

/// Who SDKs are that do not say, in images that have it.
pub const USUAL: &str = "user";
/// Who they are in others.
pub const ROOT: &str = "root";

/// A sandbox, and who speaks to it.
#[derive(Clone)]
pub struct Guest {
    /// The dialect.
    pub e2b: E2b,
    /// The sandbox.
    pub live: Live,
    /// The user that the client names.
    pub named: Option<String>,
}

impl Guest {
    /// The user of a request, by what its headers or its query say, and those that the guest has.
    pub async fn person(&self) -> Result<(Account, Accounts), Failed> {
        let accounts = self.e2b.app.service.accounts(&self.live.who, &self.live.id).await?;
        let found = match (&self.named, &self.live.user) {
            (Some(name), _) => find(&accounts, name),
            (None, Some(name)) => find(&accounts, name.split(':').next().unwrap_or("")),
            (None, None) => find(&accounts, USUAL).or_else(|| Some(root(&accounts))),
        };
        let name = self.named.as_ref().or(self.live.user.as_ref());
        let account = found.ok_or_else(|| {
            let name = name.map_or("", String::as_str);
            Failed::new("unauthenticated", format!("invalid username: {name:?}"))
        })?;
        Ok((account, accounts))
    }

    /// An absolute path; the user is asked for only if it matters.
    pub async fn place(&self, path: &str) -> Result<String, Failed> {
        if path.starts_with('/') && self.named.is_none() {
            return Ok(clean(path));
        }
        let (account, _) = self.person().await?;
        resolve(path, &account.home)
    }
}

fn find(accounts: &Accounts, name: &str) -> Option<Account> {
    let same = |one: &&Account| one.name == name || name.parse() == Ok(one.uid);
    accounts.users.iter().find(same).cloned()
}

fn root(accounts: &Accounts) -> Account {
    let named = || Account { name: ROOT.to_owned(), uid: 0, home: "/root".to_owned() };
    find(accounts, ROOT).unwrap_or_else(named)
}

/// The user in `Authorization: Basic`.
pub fn named(headers: &HeaderMap) -> Result<Option<String>, Failed> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let name = value.to_str().ok().and_then(|value| {
        let (kind, text) = value.split_once(' ')?;
        let basic = kind.eq_ignore_ascii_case("basic").then_some(text.trim())?;
        let pair = String::from_utf8(STANDARD.decode(basic).ok()?).ok()?;
        Some(pair.split_once(':').map_or(pair.as_str(), |(name, _)| name).to_owned())
    });
    let wrong = || Failed::new("unauthenticated", "Authorization: not Basic with a user");
    name.ok_or_else(wrong).map(|name| Some(name).filter(|name| !name.is_empty()))
}

/// An absolute path, by what a user's home is.
pub fn resolve(path: &str, home: &str) -> Result<String, Failed> {
    if path.contains('\0') {
        return Err(Failed::invalid("a path has no NUL in it"));
    }
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            Ok(clean(&format!("{home}/{rest}")))
        }
        Some(_) => Err(Failed::invalid(format!("{path:?}: another user's home is not supported"))),
        None if path.starts_with('/') => Ok(clean(path)),
        None => Ok(clean(&format!("{home}/{path}"))),
    }
}

/// The shortest form of an absolute path, by its text alone.
fn clean(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// What a path is called.
pub fn name_of(path: &str) -> &str {
    match path.rsplit('/').next() {
        Some("") | None => "/",
        Some(name) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_against_the_home() {
        let of = |path| resolve(path, "/home/user");
        for (path, right) in [
            ("", "/home/user"),
            ("a/b", "/home/user/a/b"),
            ("~", "/home/user"),
            ("~/x/", "/home/user/x"),
            ("/a//b/./../c", "/a/c"),
            ("../../../../etc", "/etc"),
            ("/", "/"),
        ] {
            assert_eq!(of(path).unwrap(), right, "{path}");
        }
        assert!(of("~root/x").is_err() && of("a\0b").is_err());
        assert_eq!((name_of("/a/b"), name_of("/")), ("b", "/"));
    }

    #[test]
    fn users_are_named_by_basic_authorization() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            named(&headers)
        };
        assert_eq!(of("Basic dXNlcjo=").unwrap().as_deref(), Some("user"));
        assert_eq!(of("basic cm9vdA==").unwrap().as_deref(), Some("root"));
        assert_eq!(of("Basic Og==").unwrap(), None);
        for bad in ["Bearer x", "Basic", "Basic !!!", "Basic /w=="] {
            assert_eq!(of(bad).unwrap_err().code, "unauthenticated", "{bad}");
        }
        assert_eq!(named(&HeaderMap::new()).unwrap(), None);
    }
}
