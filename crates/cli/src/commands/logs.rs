//! `ramet logs`: the console of a sandbox.

use std::time::Duration;

use crate::context::Context;
use crate::failure::Failure;
use crate::output;

const PAUSE: Duration = Duration::from_millis(500);

const HELP: &str = "\
The console is what the kernel and the agent say, not the output of commands.

Examples:
  ramet logs box
  ramet logs -f box      as it grows; Ctrl-C ends it";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Sandbox
    sandbox: String,
    /// Go on as it grows
    #[arg(long, short)]
    follow: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let logs = client.logs(&args.sandbox).await?;
    context.show(&logs, |logs| logs.text.clone());
    if !args.follow {
        return Ok(());
    }
    let mut written = logs.written;
    loop {
        tokio::time::sleep(PAUSE).await;
        let logs = client.logs(&args.sandbox).await?;
        let new = newest(&logs.text, logs.written.saturating_sub(written));
        if context.json && !new.is_empty() {
            output::json(&logs);
        } else {
            output::print(new);
        }
        written = logs.written;
    }
}

/// The last bytes of a text, from the next whole character on.
fn newest(text: &str, bytes: u64) -> &str {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let start = text.len().saturating_sub(bytes);
    let start = (start..=text.len()).find(|index| text.is_char_boundary(*index));
    &text[start.unwrap_or(text.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_shown() {
        assert_eq!(newest("abc", 0), "");
        assert_eq!(newest("abc", 2), "bc");
        assert_eq!(newest("abc", 9), "abc");
        assert_eq!(newest("aé", 1), "");
    }
}
