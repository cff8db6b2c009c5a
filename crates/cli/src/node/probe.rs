//! Which host mode this machine has: the monitor finds out by running something.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ramet_client::api::HostMode;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// How long it may take. A KVM that interprets code is slow.
const TIME: Duration = Duration::from_secs(30);

/// What the monitor says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// Where guests can run.
    pub mode: HostMode,
    /// Why.
    pub reason: String,
    /// What to do about it.
    pub advice: Option<String>,
}

/// Asks the monitor.
pub async fn ask(vmm: &Path) -> Result<Findings, Failure> {
    let cannot = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot run {} probe", vmm.display()), error)
    };
    let mut command = tokio::process::Command::new(vmm);
    command.arg("probe").stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(TIME, command.output())
        .await
        .map_err(|error| cannot(&error))?
        .map_err(|error| cannot(&error))?;
    serde_json::from_slice(&output.stdout).map_err(|error| cannot(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monitors_words_are_understood() {
        let text = r#"{"mode":"software","flat":true,"reason":"r","advice":null,"user_us":1,"kernel_us":2}"#;
        let findings: Findings = serde_json::from_str(text).unwrap();
        assert_eq!((findings.mode, findings.reason.as_str()), (HostMode::Software, "r"));
    }
}
