//! Names of commits, for `ramet tag` and `ramet branch`.

use ramet_client::Client;
use ramet_client::api::{Code, PutRef, Ref, RefKind};
use serde_json::json;

use crate::context::Context;
use crate::failure::{CONFLICT, Failure, NOT_FOUND};
use crate::output::{self, Paint, Table};

/// Arguments of both.
#[derive(Debug, clap::Args)]
pub struct Names {
    /// Name: lower-case letters, digits, hyphens and dots; lists them when absent
    #[arg(requires = "commit")]
    name: Option<String>,
    /// Commit that it names, by id, unique beginning of it, or another name
    commit: Option<String>,
    /// Move a name that points elsewhere
    #[arg(long, short, requires = "commit")]
    force: bool,
    /// Delete names; their commits stay
    #[arg(long, short, value_name = "NAME", num_args = 1.., conflicts_with = "name")]
    delete: Vec<String>,
}

/// Lists, makes or deletes names of this kind.
pub async fn run(args: &Names, kind: RefKind, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    match (&args.name, &args.commit) {
        (Some(name), Some(commit)) => {
            let request = PutRef { commit: commit.clone(), kind, force: args.force };
            let made = put(&client, name, &request).await?;
            context.show(&made, |made| {
                format!("{} {}\n", context.paint.bold(&made.name), made.commit)
            });
        }
        _ if args.delete.is_empty() => {
            let mut list = client.refs().await?;
            list.retain(|name| name.kind == kind);
            context.show(&list, |list| draw(list, kind, output::now_ms(), context.paint));
        }
        _ => {
            let list = client.refs().await?;
            // None is deleted unless all can be.
            args.delete.iter().try_for_each(|name| deletable(&list, name, kind))?;
            for name in &args.delete {
                client.delete_ref(name).await?;
            }
            context.show(&json!({ "removed": args.delete }), |_| String::new());
        }
    }
    Ok(())
}

async fn put(client: &Client, name: &str, request: &PutRef) -> Result<Ref, Failure> {
    client.put_ref(name, request).await.map_err(|error| match error.code() {
        Some(Code::AlreadyExists) => {
            Failure::from(error).next("--force moves it; or choose another name")
        }
        _ => error.into(),
    })
}

/// Only what is of this kind is deleted, so that `ramet tag --delete` never takes a branch.
fn deletable(list: &[Ref], name: &str, kind: RefKind) -> Result<(), Failure> {
    let word = word(kind);
    match list.iter().find(|other| other.name == name) {
        Some(found) if found.kind == kind => Ok(()),
        Some(found) => {
            let other = self::word(found.kind);
            Err(Failure::new(format!("{name} is a {other}, not a {word}"))
                .exit(CONFLICT)
                .next(format!("`ramet {other} --delete {name}` deletes it")))
        }
        None => Err(Failure::new(format!("there is no {word} {name}"))
            .exit(NOT_FOUND)
            .next(format!("`ramet {word}` lists them"))),
    }
}

fn word(kind: RefKind) -> &'static str {
    match kind {
        RefKind::Tag => "tag",
        RefKind::Branch => "branch",
    }
}

fn draw(list: &[Ref], kind: RefKind, now_ms: u64, paint: Paint) -> String {
    if list.is_empty() {
        return match kind {
            RefKind::Tag => "No tags. Try: ramet tag NAME COMMIT\n".to_owned(),
            RefKind::Branch => "No branches. Try: ramet commit SANDBOX --branch NAME\n".to_owned(),
        };
    }
    let mut table = Table::new(&["NAME", "COMMIT", "CHANGED"]);
    for name in list {
        let age = format!("{} ago", output::age(name.updated_at_ms, now_ms));
        table.row(vec![name.name.clone(), name.commit.clone(), age]);
    }
    table.draw(paint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};

    fn parsed(words: &[&str]) -> Result<Names, clap::Error> {
        let matches = Names::augment_args(clap::Command::new("tag"))
            .try_get_matches_from([&["tag"], words].concat())?;
        Names::from_arg_matches(&matches)
    }

    fn names() -> Vec<Ref> {
        let name = |name: &str, kind| Ref {
            name: name.into(),
            kind,
            commit: "cm-1".into(),
            updated_at_ms: 0,
        };
        vec![name("main", RefKind::Branch), name("v1", RefKind::Tag)]
    }

    #[test]
    fn a_name_needs_its_commit() {
        assert!(parsed(&[]).unwrap().name.is_none());
        assert!(parsed(&["v1"]).is_err());
        assert!(parsed(&["v1", "cm-1", "-f"]).unwrap().force);
        assert!(parsed(&["-f"]).is_err());
        assert_eq!(parsed(&["--delete", "v1", "v2"]).unwrap().delete, ["v1", "v2"]);
        assert!(parsed(&["v1", "cm-1", "--delete", "v2"]).is_err());
    }

    #[test]
    fn only_the_own_kind_is_deleted() {
        assert!(deletable(&names(), "v1", RefKind::Tag).is_ok());
        assert_eq!(deletable(&names(), "main", RefKind::Tag).unwrap_err().exit, CONFLICT);
        assert_eq!(deletable(&names(), "none", RefKind::Tag).unwrap_err().exit, NOT_FOUND);
    }

    #[test]
    fn names_are_listed() {
        let expected = "NAME  COMMIT  CHANGED\nmain  cm-1    1m ago\nv1    cm-1    1m ago\n";
        assert_eq!(draw(&names(), RefKind::Tag, 60_000, Paint::plain()), expected);
        assert!(draw(&[], RefKind::Branch, 0, Paint::plain()).contains("ramet commit"));
    }
}
