//! What changed within a text file, as a unified diff.

use std::time::Duration;

use ramet_proto::api::NoPatch;
use similar::TextDiff;

/// Most bytes of a file that is patched.
pub const FILE_MAX: usize = 1 << 20;
/// Most bytes of all patches of an answer.
pub const TOTAL_MAX: usize = 8 << 20;
/// Bytes that are looked at for NUL, which no text has.
const LOOK: usize = 8000;
/// Time for the best patch; afterwards a longer one does.
const TIME: Duration = Duration::from_millis(500);

/// The patch from one content to the other; nothing stands for no file. CPU work: for a blocking thread.
pub fn patch(path: &str, before: Option<&[u8]>, after: Option<&[u8]>) -> Result<String, NoPatch> {
    let (old, new) = (text(before.unwrap_or_default())?, text(after.unwrap_or_default())?);
    // A line end in a name would end the header.
    let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let name = |side: &str, content: Option<&[u8]>| match content {
        Some(_) => format!("{side}{path}"),
        None => "/dev/null".to_owned(),
    };
    let diff = TextDiff::configure().timeout(TIME).diff_lines(old, new);
    let (from, to) = (name("a", before), name("b", after));
    Ok(diff.unified_diff().context_radius(3).header(&from, &to).to_string())
}

fn text(bytes: &[u8]) -> Result<&str, NoPatch> {
    if bytes[..bytes.len().min(LOOK)].contains(&0) {
        return Err(NoPatch::Binary);
    }
    std::str::from_utf8(bytes).map_err(|_| NoPatch::Binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_unified_diffs() {
        let patch = patch("/home/f", Some(b"one\ntwo\nthree\n"), Some(b"one\n2\nthree")).unwrap();
        let expected = "--- a/home/f\n+++ b/home/f\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+three\n\
                        \\ No newline at end of file\n";
        assert_eq!(patch, expected);
    }

    #[test]
    fn what_is_not_there_is_dev_null() {
        let added = patch("/f", None, Some(b"x\n")).unwrap();
        assert_eq!(added, "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n");
        let removed = patch("/f\n/g", Some(b"x\n"), None).unwrap();
        assert!(removed.starts_with("--- a/f?/g\n+++ /dev/null\n"), "{removed}");
    }

    #[test]
    fn what_is_no_text_has_none() {
        assert_eq!(patch("/f", Some(b"a\0b"), Some(b"a")), Err(NoPatch::Binary));
        assert_eq!(patch("/f", Some(b"a"), Some(b"\xff\xfe")), Err(NoPatch::Binary));
    }

    #[test]
    fn the_worst_input_takes_its_time_and_no_longer() {
        let lines = |from: u32| (0..100_000).map(|n| format!("{}\n", from + n)).collect::<String>();
        let (old, new) = (lines(0), lines(1_000_000));
        let patch = patch("/f", Some(old.as_bytes()), Some(new.as_bytes())).unwrap();
        assert!(patch.lines().count() > 200_000);
    }
}
