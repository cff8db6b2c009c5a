//! How long tests wait: their limits are for a quiet development machine, and stretch with how slow this one is.
//!
//! The test command measures that once (`xtask/src/test/patience.rs`) and says it in `RAMET_TEST_PATIENCE`, which reaches
//! the software host, too.

use std::sync::LazyLock;
use std::time::Duration;

/// Variable that says how many times as slow as usual this machine is.
pub const VARIABLE: &str = "RAMET_TEST_PATIENCE";
/// More than this is not believed.
pub const FACTOR_MAX: f64 = 20.0;

static FACTOR: LazyLock<f64> = LazyLock::new(|| factor(std::env::var(VARIABLE).ok().as_deref()));

/// A limit as it is on this machine.
pub fn stretched(limit: Duration) -> Duration {
    limit.mul_f64(*FACTOR)
}

/// At least 1, whatever was said.
fn factor(said: Option<&str>) -> f64 {
    let number = said.and_then(|text| text.parse::<f64>().ok());
    number.filter(|factor| factor.is_finite()).unwrap_or(1.0).clamp(1.0, FACTOR_MAX)
}

#[cfg(test)]
mod tests {
    use super::factor;

    #[test]
    fn limits_only_get_longer() {
        assert_eq!(factor(Some("2.5")), 2.5);
        for odd in [None, Some(""), Some("0.1"), Some("-3"), Some("NaN"), Some("inf")] {
            assert_eq!(factor(odd), 1.0, "{odd:?}");
        }
        assert_eq!(factor(Some("1e9")), super::FACTOR_MAX);
    }
}
