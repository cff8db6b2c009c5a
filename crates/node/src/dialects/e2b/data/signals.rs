//! How a process ended, in the words that SDKs know.

use ramet_proto::agent::Exited;
use serde_json::{Value, json};

/// The last event of a process.
pub fn end(exited: &Exited) -> Value {
    match (exited.code, exited.signal) {
        (Some(code), _) => {
            let status = format!("exit status {code}");
            match code {
                0 => json!({ "exited": true, "status": status }),
                code => {
                    json!({ "exitCode": code, "exited": true, "status": status, "error": status })
                }
            }
        }
        (None, signal) => {
            let status = format!("signal: {}", name(signal.unwrap_or(0)));
            json!({ "exitCode": -1, "exited": false, "status": status, "error": status })
        }
    }
}

fn name(signal: i32) -> String {
    let known = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_as_sdks_know_them() {
        let of = |code, signal| end(&Exited { code, signal, timed_out: false, dropped_bytes: 0 });
        assert_eq!(of(Some(0), None), json!({ "exited": true, "status": "exit status 0" }));
        let three = of(Some(3), None);
        assert_eq!((&three["exitCode"], &three["error"]), (&json!(3), &json!("exit status 3")));
        let killed = of(None, Some(9));
        assert_eq!(killed["status"], "signal: killed");
        assert_eq!((&killed["exitCode"], &killed["exited"]), (&json!(-1), &json!(false)));
        assert_eq!(of(None, Some(48))["error"], "signal: signal 48");
    }
}
