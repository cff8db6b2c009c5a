//! Printing: colours on a terminal, tables, JSON, times and sizes.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ramet_client::api::{Sandbox, State};
use serde::Serialize;
use time::OffsetDateTime;
use unicode_width::UnicodeWidthStr;

/// Colours, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    colours: bool,
}

impl Paint {
    /// For standard output.
    pub fn stdout() -> Self {
        Self { colours: io::stdout().is_terminal() && wanted() }
    }

    /// For standard error.
    pub fn stderr() -> Self {
        Self { colours: io::stderr().is_terminal() && wanted() }
    }

    /// Without colours.
    #[cfg(test)]
    pub fn plain() -> Self {
        Self { colours: false }
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Bad.
    pub fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    /// Good.
    pub fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    /// Neither.
    pub fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    /// What matters.
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// What matters less.
    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// A state in its colour.
    pub fn state(self, state: State) -> String {
        match state {
            State::Running => self.green("running"),
            State::Paused => self.yellow("paused"),
            State::Failed => self.red("failed"),
            State::Gone => self.dim("gone"),
        }
    }
}

/// Where a paused sandbox is, and what it costs there; nothing if it is not paused.
pub fn place(sandbox: &Sandbox) -> Option<String> {
    if sandbox.state != State::Paused {
        return None;
    }
    Some(sandbox.stored.as_ref().map_or_else(
        || "in memory".to_owned(),
        |stored| format!("in store, {}, {}", warmth(stored.warm), bytes(stored.written_bytes)),
    ))
}

/// Whether a state can go on without being fetched.
pub fn warmth(warm: bool) -> &'static str {
    if warm { "warm" } else { "cold" }
}

fn wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Prints to standard output. Whoever has closed it does not want more, so that ends the program.
pub fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        std::process::exit(i32::from(error.kind() != io::ErrorKind::BrokenPipe));
    }
}

/// Prints a line.
pub fn line(text: &str) {
    print(&format!("{text}\n"));
}

/// Prints a value as JSON.
pub fn json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => line(&text),
        Err(error) => eprintln!("error: cannot write JSON: {error}"),
    }
}

/// Rows under a head, columns aligned.
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these columns.
    pub fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// One more row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// As text. Cells of the last column are not padded.
    pub fn draw(&self, paint: Paint) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|cell| cell.width()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(shown_width(cell));
            }
        }
        let head: Vec<String> = self.head.iter().map(|cell| (*cell).to_owned()).collect();
        let mut text = paint.bold(&draw_row(&head, &widths));
        text.push('\n');
        for row in &self.rows {
            text.push_str(&draw_row(row, &widths));
            text.push('\n');
        }
        text
    }
}

/// Lines of what something is, and the value.
#[derive(Default)]
pub struct Sheet {
    text: String,
}

impl Sheet {
    /// Columns of what it is.
    const WIDTH: usize = 16;

    /// One more line.
    pub fn line(&mut self, what: &str, value: impl AsRef<str>) {
        let line = format!("{what:<width$} {}", value.as_ref(), width = Self::WIDTH);
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// One more line, if there is a value.
    pub fn some(&mut self, what: &str, value: Option<impl AsRef<str>>) {
        if let Some(value) = value {
            self.line(what, value);
        }
    }

    /// All of it.
    pub fn finish(self) -> String {
        self.text
    }
}

fn draw_row(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        text.push_str(cell);
        text.extend(std::iter::repeat_n(' ', width.saturating_sub(shown_width(cell)) + 2));
    }
    text.trim_end().to_owned()
}

/// Columns that a text takes on a terminal, without its colours.
pub fn shown_width(text: &str) -> usize {
    let mut width = 0;
    for (index, part) in text.split('\x1b').enumerate() {
        let part =
            if index == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) };
        width += part.width();
    }
    width
}

/// At most this many characters on one line, control characters made harmless.
pub fn shorten(text: &str, most: usize) -> String {
    let text = clean(text.trim());
    if text.chars().count() <= most {
        return text;
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// With control characters made harmless.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `KEY=VALUE` of each, beside each other.
pub fn pairs(map: &BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
    clean(&pairs.join(","))
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// How long ago that was.
pub fn age(since_ms: u64, now_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(since_ms) / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// The day and the time of it, as in Greenwich.
pub fn date(at_ms: u64) -> String {
    let seconds = i64::try_from(at_ms / 1000).unwrap_or(i64::MAX);
    let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second) = at.to_hms();
    format!("{} {hour:02}:{minute:02}:{second:02} UTC", at.date())
}

/// A time that is measured.
pub fn micros(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        1000..1_000_000 => format!("{}.{} ms", us / 1000, us % 1000 / 100),
        _ => seconds(Duration::from_micros(us)),
    }
}

/// A time that is waited for.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A size.
pub fn bytes(size: u64) -> String {
    let tenths =
        |shift: u32| format!("{}.{}", size >> shift, ((size % (1 << shift)) * 10) >> shift);
    match size {
        0..1024 => format!("{size} B"),
        1024..1_048_576 => format!("{} KiB", size >> 10),
        1_048_576..10_485_760 => format!("{} MiB", tenths(20)),
        10_485_760..1_073_741_824 => format!("{} MiB", size >> 20),
        _ => format!("{} GiB", tenths(30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_whatever_its_colours() {
        let mut table = Table::new(&["NAME", "STATE", "N"]);
        let paint = Paint { colours: true };
        table.row(vec!["a".into(), paint.green("running"), "1".into()]);
        table.row(vec!["日本".into(), "x".into(), "22".into()]);
        let drawn = table.draw(Paint::plain());
        let expected = "NAME  STATE    N\na     \x1b[32mrunning\x1b[0m  1\n日本  x        22\n";
        assert_eq!(drawn, expected);
    }

    #[test]
    fn times_and_sizes_read_well() {
        assert_eq!(micros(999), "999 µs");
        assert_eq!(micros(1250), "1.2 ms");
        assert_eq!(micros(2_500_000), "2.5 s");
        assert_eq!(bytes(10), "10 B");
        assert_eq!(bytes(3_000_000), "2.8 MiB");
        assert_eq!(bytes(30 << 20), "30 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(age(0, 59_999), "59s");
        assert_eq!(age(0, 7_200_000), "2h");
        assert_eq!(age(5, 0), "0s");
    }

    #[test]
    fn days_have_dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_798_761_599_999), "2026-12-31 23:59:59 UTC");
        assert_eq!(date(4_107_542_400_000), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn a_sheet_is_aligned() {
        let mut sheet = Sheet::default();
        sheet.line("name", "box");
        sheet.some("parent", None::<String>);
        sheet.line("labels", "");
        assert_eq!(sheet.finish(), "name             box\nlabels\n");
    }

    #[test]
    fn long_text_is_shortened_and_made_harmless() {
        assert_eq!(shorten(" a\x1bb\n", 10), "a b");
        assert_eq!(shorten("abcdef", 4), "abc…");
    }
}
