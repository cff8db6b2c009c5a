//! Something that takes its time, as it goes on: a spinner on a terminal, elsewhere a line for each new
//! stage.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// Between two turns of the spinner.
const TICK: Duration = Duration::from_millis(100);
/// Most characters of what is shown beside a stage.
const DETAIL_MAX: usize = 70;

/// What goes on.
pub struct Progress {
    bar: ProgressBar,
    stage: String,
}

impl Progress {
    /// Nothing yet.
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        if std::io::stderr().is_terminal() {
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed:.dim}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
        }
        Self { bar, stage: String::new() }
    }

    /// A stage begins, unless it is the one that goes on.
    pub fn show(&mut self, stage: &str) {
        if stage == self.stage {
            return;
        }
        stage.clone_into(&mut self.stage);
        if self.bar.is_hidden() {
            eprintln!("{stage}");
        } else {
            self.bar.set_message(stage.to_owned());
        }
    }

    /// Shows what happens in the stage; for terminals only.
    pub fn details(&self) -> impl Fn(&str) + Send + use<> {
        let (bar, stage) = (self.bar.clone(), self.stage.clone());
        move |detail| bar.set_message(format!("{stage}: {}", output::shorten(detail, DETAIL_MAX)))
    }

    /// A line that stays, above the spinner.
    pub fn line(&self, line: &str) {
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// It is over.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
