//! `ramet e2b`: the settings with which E2B's SDKs use the node.

use std::collections::BTreeMap;

use crate::context::Context;
use crate::failure::{Failure, UNREACHABLE};

const HELP: &str = "\
E2B's SDKs for Python and TypeScript take these from the environment, and then use this node. The
key is the node's token in the form that they accept: keep it as you keep the token.

Examples:
  eval \"$(ramet e2b)\" && python program.py
  ramet e2b --json";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {}

/// Does it.
pub async fn run(_: &Args, context: &Context) -> Result<(), Failure> {
    // One that has to be started is.
    context.client().await?;
    let (url, token) =
        context.address()?.ok_or_else(|| Failure::new("no node is running").exit(UNREACHABLE))?;
    context.show(&settings(&url, &token)?, draw);
    Ok(())
}

fn settings(url: &str, token: &str) -> Result<BTreeMap<&'static str, String>, Failure> {
    let digits = token.trim().strip_prefix("ramet_").filter(|digits| {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        !digits.is_empty() && digits.bytes().all(digit)
    });
    let Some(digits) = digits else {
        return Err(Failure::new(
            "the token is not of the form ramet_HEX, and E2B's SDKs take no other",
        )
        .next("`ramet token new --principal NAME` makes one of this form; set RAMET_TOKEN to it"));
    };
    let url = url.trim_end_matches('/').to_owned();
    Ok(BTreeMap::from([
        ("E2B_API_URL", url.clone()),
        ("E2B_SANDBOX_URL", url.clone()),
        ("E2B_VOLUME_API_URL", url),
        ("E2B_API_KEY", format!("e2b_{digits}")),
    ]))
}

fn draw(settings: &BTreeMap<&'static str, String>) -> String {
    settings.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect()
}

/// A word for the shell; most need no quotes.
fn quoted(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:".contains(&byte);
    match value.bytes().all(plain) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_for_the_shell() {
        let settings = settings("http://127.0.0.1:7300/", "ramet_00ff\n").unwrap();
        let lines = "export E2B_API_KEY=e2b_00ff\n\
                     export E2B_API_URL=http://127.0.0.1:7300\n\
                     export E2B_SANDBOX_URL=http://127.0.0.1:7300\n\
                     export E2B_VOLUME_API_URL=http://127.0.0.1:7300\n";
        assert_eq!(draw(&settings), lines);
        assert_eq!(quoted("http://[::1]:1"), "'http://[::1]:1'");
    }

    #[test]
    fn other_tokens_are_refused() {
        for token in ["", "ramet_", "ramet_XYZ", "secret", "ramet_00FF"] {
            assert!(super::settings("http://a", token).is_err(), "{token}");
        }
    }
}
