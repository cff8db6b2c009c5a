//! Random names and tokens, from the kernel.

use std::fs::File;
use std::io::{self, Read};

/// That many random bytes, in hex.
pub fn hex(count: usize) -> io::Result<String> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn differs() {
        let (one, other) = (super::hex(8).unwrap(), super::hex(8).unwrap());
        assert!(one.len() == 16 && one != other);
    }
}
