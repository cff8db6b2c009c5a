//! Who asks registries: names and passwords by host, in a file as `docker login` writes it.
//!
//! Programs that keep passwords elsewhere (`credsStore`, `credHelpers`) are not run; a registry whose password is kept
//! by one is refused instead of asked without.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::registry::Login;
use crate::remote::Repository;

/// Bytes of such a file, at most.
const FILE_MAX: u64 = 1 << 20;

#[derive(Deserialize, Default)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
struct Entry {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    registrytoken: Option<String>,
}

impl Login {
    /// The login for a repository in a file; anonymous if there is no file, or nothing for it in the file.
    pub fn find(file: &Path, repository: &Repository) -> Result<Self> {
        let length = match std::fs::metadata(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::Anonymous);
            }
            meta => meta.map_err(|error| Error::file("read", file, error))?.len(),
        };
        if length > FILE_MAX {
            return Err(Error::bad(format!("{} has more than {FILE_MAX} bytes", file.display())));
        }
        let text = std::fs::read(file).map_err(|error| Error::file("read", file, error))?;
        // What the text says is secret, so what is wrong with it is not told.
        let parsed: File = serde_json::from_slice(&text).map_err(|_| {
            Error::bad(format!("{} is no file with logins for registries", file.display()))
        })?;
        let host = repository.reference.split('/').next().unwrap_or("");
        parsed.login(host).map_err(|why| Error::bad(format!("{}: {why}", file.display())))
    }
}

impl File {
    fn login(&self, host: &str) -> std::result::Result<Login, String> {
        let bare = |key: &str| {
            let key = key.strip_prefix("https://").or(key.strip_prefix("http://")).unwrap_or(key);
            key.split('/').next().unwrap_or("") == host
        };
        let entry = self.auths.iter().find(|(key, _)| bare(key)).map(|(_, entry)| entry);
        let login = entry.map(Entry::login).transpose()?.flatten();
        let kept_elsewhere =
            self.helpers.contains_key(host) || (entry.is_some() && self.store.is_some());
        match login {
            Some(login) => Ok(login),
            None if kept_elsewhere => Err(format!(
                "the login for {host} is kept by another program; write it into `auths` of a file of its own"
            )),
            None => Ok(Login::Anonymous),
        }
    }
}

impl Entry {
    fn login(&self) -> std::result::Result<Option<Login>, String> {
        if let Some(token) = &self.registrytoken {
            return Ok(Some(Login::Bearer(token.clone())));
        }
        if let (Some(name), Some(password)) = (&self.username, &self.password) {
            return Ok(Some(Login::Basic(name.clone(), password.clone())));
        }
        let Some(auth) = self.auth.as_deref().filter(|auth| !auth.is_empty()) else {
            return Ok(None);
        };
        let bytes = STANDARD.decode(auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = bytes.as_deref().and_then(|text| text.split_once(':'));
        let (name, password) = pair.ok_or("an `auth` is not base64 of NAME:PASSWORD")?;
        Ok(Some(Login::Basic(name.to_owned(), password.trim_end_matches('\0').to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, reference: &str) -> Result<Login> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        std::fs::write(&file, text).unwrap();
        Login::find(&file, &Repository { reference: reference.into(), plain: false })
    }

    #[test]
    fn logins_are_found_by_host() {
        let basic = |name: &str, word: &str| Login::Basic(name.into(), word.into());
        let text = r#"{"auths": {"https://r.example/v1/": {"auth": "YW5uOnNlY3JldA=="},
            "127.0.0.1:5000": {"username": "bob", "password": "x:y"}, "t.example": {"registrytoken": "tok"}}}"#;
        assert_eq!(find(text, "r.example/a:v1").unwrap(), basic("ann", "secret"));
        assert_eq!(find(text, "127.0.0.1:5000/a:v1").unwrap(), basic("bob", "x:y"));
        assert_eq!(find(text, "t.example/a:v1").unwrap(), Login::Bearer("tok".into()));
        assert_eq!(find(text, "127.0.0.1:5001/a:v1").unwrap(), Login::Anonymous);
        assert_eq!(find("{}", "r.example/a:v1").unwrap(), Login::Anonymous);
        let none = Login::find(
            Path::new("/nowhere"),
            &Repository { reference: "h.x/a".into(), plain: false },
        );
        assert_eq!(none.unwrap(), Login::Anonymous);
        assert!(!format!("{:?}", basic("ann", "secret")).contains("secret"));
    }

    #[test]
    fn what_cannot_be_used_is_refused_and_not_told() {
        let bad = [
            "nonsense secret",
            r#"{"auths": {"r.example": {"auth": "secret!"}}}"#,
            r#"{"auths": {"r.example": {}}, "credsStore": "secretservice"}"#,
            r#"{"credHelpers": {"r.example": "secret"}}"#,
        ];
        for text in bad {
            let error = find(text, "r.example/a:v1").unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
