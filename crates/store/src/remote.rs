//! Places outside that states are pushed to and pulled from.
//!
//! | address | what |
//! |---|---|
//! | `file:///DIRECTORY[#NAME]` | a store in a directory |
//! | `s3://BUCKET[/PREFIX][#NAME]` | a store in a bucket |
//! | `oci://HOST[:PORT]/REPOSITORY[:TAG]` | a registry; TLS, except on this very machine |
//! | `oci+http://…` | a registry without TLS |
//!
//! In a store others' states are told apart by a name, which is a ref there; in a registry by the tag.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Store;
use crate::backend::{Location, S3};
use crate::error::{Error, Result};
use crate::id::{Tenant, check_name};
use crate::parcel::ROOTS_MAX;
use crate::roots::Root;

/// Whose states are in stores that several use to exchange them.
const SHARED: &str = "shared";

/// A place outside.
#[derive(Debug, Clone)]
pub enum Remote {
    /// A store.
    Store {
        /// Where it is.
        location: Location,
        /// Which of the states there.
        name: Option<String>,
    },
    /// A repository of a registry.
    Registry(Repository),
}

/// A repository of a registry, and a tag or digest in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// `HOST[:PORT]/REPOSITORY[:TAG]`.
    pub reference: String,
    /// Whether it is talked to without TLS.
    pub plain: bool,
}

impl Remote {
    /// Reads an address. How S3 is reached is not in it, and is as `s3` says.
    pub fn parse(text: &str, s3: &S3) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| unknown(text))?;
        match scheme {
            "oci" => Ok(Self::Registry(repository(rest, is_here(rest))?)),
            "oci+http" => Ok(Self::Registry(repository(rest, true)?)),
            "file" | "s3" => {
                let (place, name) = match rest.split_once('#') {
                    Some((place, name)) => (place, Some(name.to_owned())),
                    None => (rest, None),
                };
                if let Some(name) = &name {
                    check_name("name", name)?;
                }
                let location = match scheme {
                    "file" => directory(place)?,
                    _ => bucket(place, s3)?,
                };
                Ok(Self::Store { location, name })
            }
            _ => Err(unknown(text)),
        }
    }

    /// Whose states are in a store that is a remote.
    pub fn tenant() -> Result<Tenant> {
        Tenant::new(SHARED)
    }
}

/// What a name in a shared store stands for.
#[derive(Serialize, Deserialize)]
struct Shared {
    /// Kinds and names of roots that came together; the last is what is named, the others are what it needs.
    roots: Vec<(String, String)>,
}

impl Store {
    /// In a store that is a remote: gives a name to roots that came together, besides the name of the last one.
    pub async fn share(&self, roots: &[Root], name: Option<&str>) -> Result<()> {
        let tenant = Remote::tenant()?;
        let Some(last) = roots.last() else { return Ok(()) };
        let named = roots.iter().map(|root| (root.kind.clone(), root.name.clone())).collect();
        let value = serde_json::to_value(Shared { roots: named })
            .map_err(|error| Error::bad(error.to_string()))?;
        for name in [Some(last.name.as_str()), name].into_iter().flatten() {
            self.move_name(&tenant, name, &value).await?;
        }
        Ok(())
    }

    async fn move_name(&self, tenant: &Tenant, name: &str, value: &Value) -> Result<()> {
        // Somebody else may move it at the same time; then it is looked at again.
        for _ in 0..16 {
            let now = self.reference(tenant, name).await?;
            if now.value.as_ref() == Some(value) {
                return Ok(());
            }
            match self.swap_reference(tenant, name, now.sequence, Some(value.clone())).await {
                Err(Error::Exists { .. }) => {}
                other => return other.map(drop),
            }
        }
        Err(Error::Unavailable {
            doing: format!("moving the name {name}"),
            reason: "others move it all the time".into(),
        })
    }

    /// In a store that is a remote: the roots that a name stands for, what is named last. Without a name, the only ones
    /// that are there.
    pub async fn shared(&self, name: Option<&str>) -> Result<Vec<Root>> {
        let tenant = Remote::tenant()?;
        let read = |value: Option<Value>| -> Option<Shared> {
            let shared: Shared = serde_json::from_value(value?).ok()?;
            (1..=ROOTS_MAX).contains(&shared.roots.len()).then_some(shared)
        };
        let found = match name {
            Some(name) => read(self.reference(&tenant, name).await?.value),
            None => {
                let all = self.references(&tenant).await?;
                let mut all: BTreeMap<_, Shared> = all
                    .into_iter()
                    .filter_map(|(_, one)| read(one.value))
                    .map(|one| (one.roots.last().cloned(), one))
                    .collect();
                let only = all.pop_last().map(|(_, one)| one);
                if !all.is_empty() {
                    let text = "the remote holds several states; say which, as in …#NAME";
                    return Err(Error::bad(text));
                }
                only
            }
        };
        let what =
            || name.map_or("anything that was pushed".to_owned(), |name| format!("{name:?}"));
        let found = found.ok_or_else(|| Error::NotFound { what: what() })?;
        let mut roots = Vec::new();
        for (kind, name) in &found.roots {
            check_name("kind", kind)?;
            check_name("root", name)?;
            roots.push(self.root(&tenant, kind, name).await?);
        }
        Ok(roots)
    }
}

fn unknown(text: &str) -> Error {
    Error::bad(format!(
        "{text:?} is no place to move states to or from: file:///DIRECTORY, s3://BUCKET/PREFIX, oci://HOST/REPOSITORY:TAG"
    ))
}

fn directory(path: &str) -> Result<Location> {
    let path = PathBuf::from(path);
    let plain = path.components().all(|part| {
        matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_))
    });
    if !path.is_absolute() || !plain || path.parent().is_none() {
        return Err(Error::bad(format!("file://{}: an absolute path without ..", path.display())));
    }
    Ok(Location::Local(path))
}

fn bucket(place: &str, s3: &S3) -> Result<Location> {
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err(Error::bad("s3://BUCKET/PREFIX: it names no bucket"));
    }
    let (bucket, prefix) = (bucket.to_owned(), prefix.trim_matches('/').to_owned());
    Ok(Location::S3(S3 { bucket, prefix, ..s3.clone() }))
}

fn repository(reference: &str, plain: bool) -> Result<Repository> {
    let bad = |reason: String| Error::bad(format!("oci://{reference}: {reason}"));
    // Without a host it would be somebody's hub that is meant by nobody here.
    let host = reference.split_once('/').map(|(host, _)| host);
    if !host.is_some_and(|host| host.contains(['.', ':']) || host == "localhost") {
        return Err(bad("it names no host, as in HOST:PORT/REPOSITORY:TAG".into()));
    }
    let parsed: oci_client::Reference =
        reference.parse().map_err(|error: oci_client::ParseError| bad(error.to_string()))?;
    Ok(Repository { reference: parsed.whole(), plain })
}

/// Whether a registry is on this very machine.
fn is_here(reference: &str) -> bool {
    let host = reference.split('/').next().unwrap_or("");
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = name.trim_matches(['[', ']']).parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Remote> {
        let endpoint = Some("http://s:1".to_owned());
        Remote::parse(text, &S3 { endpoint, allow_http: true, ..S3::default() })
    }

    #[test]
    fn places_are_told_apart() {
        let Remote::Store { location: Location::Local(path), name } =
            parse("file:///a/b#v1").unwrap()
        else {
            panic!("no directory")
        };
        assert_eq!((path.to_str(), name.as_deref()), (Some("/a/b"), Some("v1")));
        let Remote::Store { location: Location::S3(s3), name: None } =
            parse("s3://b/c/d/").unwrap()
        else {
            panic!("no bucket")
        };
        assert_eq!((s3.bucket.as_str(), s3.prefix.as_str(), s3.allow_http), ("b", "c/d", true));
        let plain = |text: &str| match parse(text).unwrap() {
            Remote::Registry(repository) => (repository.reference, repository.plain),
            other => panic!("{other:?}"),
        };
        assert_eq!(plain("oci://r.example/a/b:v1"), ("r.example/a/b:v1".into(), false));
        assert_eq!(plain("oci://127.0.0.1:5000/a"), ("127.0.0.1:5000/a:latest".into(), true));
        assert!(plain("oci://localhost:5000/a").1 && plain("oci+http://r.example/a").1);
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for bad in [
            "",
            "x",
            "/a",
            "file://a",
            "file:///",
            "file:///a/../b",
            "file:///a#",
            "file:///a#x/y",
            "s3://",
            "s3:///x",
            "oci://",
            "oci://a",
            "oci://library/a",
            "oci://h:1/UPPER",
            "oci://h:1/a:b:c",
            "http://a",
            "docker://a.b/c",
        ] {
            assert!(matches!(parse(bad), Err(Error::Bad(_))), "{bad}");
        }
    }
}
