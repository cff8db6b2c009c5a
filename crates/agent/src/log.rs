//! What the agent has to say to whoever looks after the machine.
//!
//! As PID 1 a line goes to the kernel's log, and so to the console with all others; elsewhere it
//! goes to standard error. It never fails and never waits for a lock of another thread: the line is
//! one `write`. User data (arguments, environment, file content) is never logged.

use std::io::Write;
use std::sync::OnceLock;

static KMSG: OnceLock<std::fs::File> = OnceLock::new();

/// From now on, lines go to `/dev/kmsg`, if that can be opened.
pub fn to_kernel() {
    if let Ok(file) = std::fs::OpenOptions::new().write(true).open("/dev/kmsg") {
        // A second call changes nothing: the first file stays.
        let _ = KMSG.set(file);
    }
}

/// Log one line.
pub fn line(text: impl std::fmt::Display) {
    write(4, text);
}

/// Log one line that reaches the console of a quiet kernel, too: the machine will not go on.
pub fn alarm(text: impl std::fmt::Display) {
    write(2, text);
}

fn write(level: u8, text: impl std::fmt::Display) {
    let text = format!("ramet-agent: {text}\n");
    // There is nowhere to report that reporting failed.
    let _ = match KMSG.get() {
        Some(mut file) => file.write_all(format!("<{level}>{text}").as_bytes()),
        None => std::io::stderr().write_all(text.as_bytes()),
    };
}
