//! Bytes as text.

/// Two digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

/// The bytes, unless there is something else in the text.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let digits = (0..text.len()).step_by(2).map(|at| &text[at..at + 2]);
    digits.map(|digits| u8::from_str_radix(digits, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn round_trip() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(super::decode(&super::encode(&bytes)), Some(bytes));
        assert_eq!(super::decode("0"), None);
        assert_eq!(super::decode("zz"), None);
        assert_eq!(super::decode("é"), None);
    }
}
