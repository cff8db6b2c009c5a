//! Values of arguments: durations, sizes, pairs, paths in sandboxes, commands.

use std::collections::BTreeMap;
use std::time::Duration;

use ramet_client::api::AttachVolume;
use ramet_client::api::network::{Allow, EdgeRequest};

/// `90`, `90s`, `10m`, `2h`, `1d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write it like 90s, 10m, 2h or 1d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).map(Duration::from_secs).ok_or_else(wrong)
}

/// As [`duration`], or `off` for none.
pub fn duration_or_off(text: &str) -> Result<Duration, String> {
    if text == "off" { Ok(Duration::ZERO) } else { duration(text) }
}

/// A number, or `off` for 0.
pub fn number_or_off(text: &str) -> Result<u32, String> {
    if text == "off" {
        return Ok(0);
    }
    text.parse().map_err(|_| format!("{text:?} is neither a number nor off"))
}

/// MiB: `512`, `512M`, `2G`.
pub fn memory_mib(text: &str) -> Result<u32, String> {
    ramet_image::recipe::mib(text)
}

/// `KEY=VALUE`.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// `KEY=VALUE`, or `KEY` for the variable of this name in ramet's own environment.
pub fn pair_or_own(text: &str) -> Result<(String, String), String> {
    if text.contains('=') {
        return pair(text);
    }
    let value = std::env::var(text);
    value.map(|value| (text.to_owned(), value)).map_err(|_| format!("{text} is not set here"))
}

/// Pairs as a map; the last one counts.
pub fn map(pairs: &[(String, String)]) -> BTreeMap<String, String> {
    pairs.iter().cloned().collect()
}

/// A path in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePath {
    /// Name or id.
    pub sandbox: String,
    /// Absolute.
    pub path: String,
}

/// `SANDBOX:PATH`. A path that is not absolute counts from `/root`.
pub fn remote_path(text: &str) -> Result<RemotePath, String> {
    match text.split_once(':') {
        Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => {
            let path = match path {
                "" | "." => "/root".to_owned(),
                path if path.starts_with('/') => path.to_owned(),
                path => format!("/root/{path}"),
            };
            Ok(RemotePath { sandbox: sandbox.to_owned(), path })
        }
        _ => Err(format!("{text:?} is not SANDBOX:PATH")),
    }
}

/// `VOLUME:PATH`, `VOLUME:PATH:ro` or `VOLUME:PATH:rw`.
pub fn volume(text: &str) -> Result<AttachVolume, String> {
    let wrong = || format!("{text:?} is not VOLUME:PATH or VOLUME:PATH:ro");
    let (volume, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (path, read_only) = match rest.rsplit_once(':') {
        Some((path, "ro")) => (path, true),
        Some((path, "rw")) => (path, false),
        _ => (rest, false),
    };
    if volume.is_empty() || !path.starts_with('/') {
        return Err(wrong());
    }
    Ok(AttachVolume { volume: volume.to_owned(), path: path.to_owned(), read_only })
}

/// A rule of what may be reached.
pub fn rule(text: &str) -> Result<Allow, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// `HOST:HEADER=VALUE`.
pub fn edge(text: &str) -> Result<EdgeRequest, String> {
    let parts = text.split_once(':').and_then(|(host, rest)| Some((host, rest.split_once('=')?)));
    match parts {
        Some((host, (header, value))) if !host.is_empty() && !header.is_empty() => {
            let (host, header, value) = (host.to_owned(), header.to_owned(), value.to_owned());
            Ok(EdgeRequest { host, header, value })
        }
        // Not shown: it may be a secret.
        _ => Err("it is not HOST:HEADER=VALUE".to_owned()),
    }
}

/// Bytes: `1000`, `512K`, `10M`, `1G`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; write it like 512K, 10M or 1G");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// What becomes of the secrets of a source that holds some.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Secrets {
    /// Pass the secrets of a sandbox that holds some on
    #[arg(long, conflicts_with = "drop_secrets")]
    inherit_secrets: bool,
    /// Do not pass the secrets of a sandbox that holds some on
    #[arg(long)]
    drop_secrets: bool,
}

impl Secrets {
    /// As a request says it.
    pub fn said(self) -> Option<bool> {
        match (self.inherit_secrets, self.drop_secrets) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// What is run: a line for the shell, or a program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// For `/bin/sh -c`.
    Shell(String),
    /// Program and arguments.
    Words(Vec<String>),
}

impl Line {
    /// One word is a line for the shell, several are a program and its arguments.
    pub fn new(words: &[String]) -> Self {
        match words {
            [line] => Self::Shell(line.clone()),
            words => Self::Words(words.to_vec()),
        }
    }

    /// As the fields `argv` and `command` of a request.
    pub fn fields(self) -> (Option<Vec<String>>, Option<String>) {
        match self {
            Self::Shell(line) => (None, Some(line)),
            Self::Words(words) => (Some(words), None),
        }
    }

    /// With `{}` replaced. In a line for the shell the item stays one word, whatever is in it.
    pub fn substitute(&self, item: &str) -> Self {
        match self {
            Self::Shell(line) => Self::Shell(line.replace("{}", &quote(item))),
            Self::Words(words) => {
                Self::Words(words.iter().map(|word| word.replace("{}", item)).collect())
            }
        }
    }
}

/// One word for the shell.
fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("90").unwrap().as_secs(), 90);
        assert_eq!(duration("10m").unwrap().as_secs(), 600);
        assert_eq!(duration("1d").unwrap().as_secs(), 86400);
        assert_eq!((duration_or_off("off"), number_or_off("off")), (Ok(Duration::ZERO), Ok(0)));
        assert!(number_or_off("7") == Ok(7) && number_or_off("many").is_err());
        for wrong in ["", "m", "1w", "-1s", "1.5h", "99999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_name_their_sandbox() {
        let at = |sandbox: &str, path: &str| {
            Ok(RemotePath { sandbox: sandbox.to_owned(), path: path.to_owned() })
        };
        assert_eq!(remote_path("box:/etc/a:b"), at("box", "/etc/a:b"));
        assert_eq!(remote_path("box:a"), at("box", "/root/a"));
        assert_eq!(remote_path("box:"), at("box", "/root"));
        for wrong in ["a", "./a:b", "/a:b", ":/a"] {
            assert!(remote_path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn volumes_have_a_place() {
        let at = |path: &str, read_only| {
            Ok(AttachVolume { volume: "data".to_owned(), path: path.to_owned(), read_only })
        };
        assert_eq!(volume("data:/mnt/a"), at("/mnt/a", false));
        assert_eq!(volume("data:/mnt/a:ro"), at("/mnt/a", true));
        assert_eq!(volume("data:/mnt/a:rw"), at("/mnt/a", false));
        assert_eq!(volume("data:/mnt/a:b"), at("/mnt/a:b", false));
        for wrong in ["data", "data:", "data:mnt", ":/mnt", "data:ro"] {
            assert!(volume(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_sizes_and_headers() {
        assert_eq!(rule("a.org:443/tcp").unwrap().to, "a.org");
        assert!(rule("a b").unwrap_err().contains("a b"));
        assert_eq!((bytes("7"), bytes("2K"), bytes("1G")), (Ok(7), Ok(2048), Ok(1 << 30)));
        assert!(bytes("1T").is_err() && bytes("").is_err() && bytes("-1").is_err());
        let header = edge("a.org:X-Key=a=b:c").unwrap();
        assert_eq!((header.host.as_str(), header.header.as_str()), ("a.org", "X-Key"));
        assert_eq!(header.value, "a=b:c");
        assert!(!edge("s3cret").unwrap_err().contains("s3cret"));
    }

    #[test]
    fn pairs_need_a_key() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(pair("a="), Ok(("a".into(), String::new())));
        assert!(pair("=b").is_err() && pair("a").is_err());
        assert!(pair_or_own("RAMET_THIS_IS_NOT_SET").is_err());
    }

    #[test]
    fn an_item_stays_one_word_in_a_shell_line() {
        let line = Line::new(&["try {} && echo {}".to_owned()]);
        assert_eq!(line.substitute("7"), Line::Shell("try 7 && echo 7".into()));
        let expected = Line::Shell(r"try 'a'\''; b' && echo 'a'\''; b'".into());
        assert_eq!(line.substitute("a'; b"), expected);
        assert_eq!(Line::new(&["echo {}".into()]).substitute(""), Line::Shell("echo ''".into()));
    }

    #[test]
    fn words_are_replaced_as_they_are() {
        let line = Line::new(&["try".to_owned(), "--n={}".to_owned()]);
        assert_eq!(line.substitute("a b").fields().0, Some(vec!["try".into(), "--n=a b".into()]));
    }
}
