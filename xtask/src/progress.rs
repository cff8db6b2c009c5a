//! Progress of a task with several steps: a spinner per step on a terminal, plain lines otherwise.
//! Every step is reported with its time. Steps may run beside each other.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Spinners of all steps that are under way.
static SPINNERS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// What a step did, for its last line.
pub enum Outcome {
    /// It made something; the text describes it.
    Made(String),
    /// What was there is still good.
    Kept(String),
}

/// The step that is under way.
pub struct Status {
    bar: ProgressBar,
}

impl Status {
    /// Show what is going on right now. Without a terminal this is silent.
    pub fn detail(&self, text: &str) {
        let text: String = text.trim().chars().take(60).collect();
        self.bar.set_message(text);
    }
}

/// Run one step and report it.
pub fn step(name: &str, work: impl FnOnce(&Status) -> Result<Outcome>) -> Result<()> {
    let status = Status { bar: spinner(name) };
    let plain = status.bar.is_hidden();
    let started = Instant::now();
    let result = work(&status);
    status.bar.finish_and_clear();
    let time = seconds(started.elapsed());
    SPINNERS.suspend(|| match &result {
        Ok(Outcome::Made(what)) => eprintln!("made  {name:<20} {time:>8}  {what}"),
        Ok(Outcome::Kept(what)) => eprintln!("kept  {name:<20} {time:>8}  {what}"),
        Err(_) if plain => eprintln!("FAIL  {name:<20} {time:>8}"),
        Err(_) => eprintln!("\u{2717}     {name:<20} {time:>8}"),
    });
    result.map(|_| ())
}

fn spinner(name: &str) -> ProgressBar {
    let bar = SPINNERS.add(ProgressBar::new_spinner());
    if bar.is_hidden() {
        return bar;
    }
    let style =
        ProgressStyle::with_template("{spinner} {prefix:<22} {elapsed:>6}  {wide_msg:.dim}")
            .expect("the template is a constant");
    bar.set_style(style);
    bar.set_prefix(name.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A time as people read it.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A size as people read it.
pub fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} KiB", bytes.div_ceil(1 << 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(size(1), "1 KiB");
        assert_eq!(size(3 << 20), "3 MiB");
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
    }
}
