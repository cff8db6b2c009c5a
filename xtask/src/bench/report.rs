//! Figures as a table for people and as JSON for programs; the same for every benchmark.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a run found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Value,
    /// `native`, `hardware` or `software`.
    pub mode: &'static str,
    /// Figures.
    pub rows: Vec<Row>,
}

/// One figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub name: Cow<'static, str>,
    /// Under which conditions.
    pub params: BTreeMap<Cow<'static, str>, Value>,
    /// Of `p50`, `p95` and `floor_p50`.
    pub unit: Cow<'static, str>,
    /// Half of the samples were at most this.
    pub p50: f64,
    /// 19 of 20 samples were at most this.
    pub p95: f64,
    /// What it is compared with; METHOD.md says what that is.
    pub floor_p50: Option<f64>,
    /// `p50` divided by `floor_p50`.
    pub ratio: Option<f64>,
    /// What should be reached; only shown.
    #[serde(skip)]
    pub goal: Option<Goal>,
}

/// What should be reached.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// The ratio is at most this.
    RatioAtMost(f64),
    /// The ratio is at least this.
    RatioAtLeast(f64),
    /// The p50 is at most this.
    AtMost(f64),
}

impl Row {
    /// A figure from samples, of which there must be one at least.
    pub fn new(name: &'static str, unit: &'static str, samples: &[f64]) -> Self {
        let (p50, p95) = (percentile(samples, 50), percentile(samples, 95));
        let params = BTreeMap::new();
        let (name, unit) = (name.into(), unit.into());
        Self { name, params, unit, p50, p95, floor_p50: None, ratio: None, goal: None }
    }

    /// A condition.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// What it is compared with.
    pub fn against(mut self, floor_p50: f64) -> Self {
        self.floor_p50 = Some(round(floor_p50));
        self.ratio = Some(round(self.p50 / floor_p50));
        self
    }

    /// What should be reached.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    fn verdict(&self) -> String {
        let ratio = self.ratio.unwrap_or(f64::NAN);
        let (text, met) = match self.goal {
            None => return String::new(),
            Some(Goal::RatioAtMost(goal)) => (format!("ratio <= {goal}"), ratio <= goal),
            Some(Goal::RatioAtLeast(goal)) => (format!("ratio >= {goal}"), ratio >= goal),
            Some(Goal::AtMost(goal)) => (format!("p50 <= {goal}"), self.p50 <= goal),
        };
        format!("{text}: {}", if met { "met" } else { "MISSED" })
    }

    fn cells(&self) -> [String; 7] {
        let params: Vec<String> =
            self.params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let number =
            |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value}"));
        [
            format!("{} [{}]", self.name, self.unit),
            params.join(" "),
            number(Some(self.p50)),
            number(Some(self.p95)),
            number(self.floor_p50),
            number(self.ratio),
            self.verdict(),
        ]
    }
}

/// The sample that so many percent are not above.
pub fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    round(sorted.get(rank - 1).copied().unwrap_or(f64::NAN))
}

/// Two decimals are more than the noise allows.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Report {
    /// An empty report about this machine.
    pub fn new(mode: &'static str) -> Self {
        Self { machine: machine(), mode, rows: Vec::new() }
    }

    /// The table.
    pub fn table(&self) -> String {
        let head = ["figure", "conditions", "p50", "p95", "floor p50", "ratio", "goal"];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let widths: [usize; 7] = std::array::from_fn(width);
        let mut text = String::new();
        for line in &lines {
            for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
                let cell = match column {
                    2..=5 => format!("{cell:>width$}  "),
                    _ => format!("{cell:<width$}  "),
                };
                text.push_str(&cell);
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    /// Shows the figures with their goals, and writes them to a file if one is named.
    pub fn conclude(mut self, goal: fn(Row) -> Row, json: Option<&Path>) -> Result<ExitCode> {
        self.rows = self.rows.into_iter().map(goal).collect();
        println!("{}", self.table());
        json.map_or(Ok(()), |path| self.write(path))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// What a reader of the figures has to know about the machine.
fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    json!({
        "cpu": field(&cpuinfo, "model name"),
        "cores": cores,
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled").trim(),
        "virtual": field(&cpuinfo, "flags").is_some_and(|flags| flags.contains(" hypervisor ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((percentile(&samples, 50), percentile(&samples, 95)), (50.0, 95.0));
        assert_eq!((percentile(&[7.0], 50), percentile(&[7.0], 95)), (7.0, 7.0));
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 95), 3.0);
    }

    #[test]
    fn the_shape_of_the_json_is_kept() {
        let row = Row::new("pause", "us", &[3.0]).with("n", 1).against(2.0);
        let row = row.goal(Goal::RatioAtMost(2.0));
        let text = serde_json::to_value(&row).unwrap();
        let expected = json!({"name": "pause", "params": {"n": 1}, "unit": "us", "p50": 3.0,
            "p95": 3.0, "floor_p50": 2.0, "ratio": 1.5});
        assert_eq!(text, expected);
        let report = Report { machine: json!({}), mode: "native", rows: vec![row] };
        assert!(report.table().contains("ratio <= 2: met"), "{}", report.table());
    }
}
