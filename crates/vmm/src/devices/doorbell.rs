//! The doorbell's payload: an identity, read byte by byte by the agent (see [`ramet_proto::doorbell`]).

use ramet_proto::agent::Identity;
use ramet_proto::doorbell::PAYLOAD_MAX;

/// What the payload port gives.
#[derive(Default)]
pub struct Doorbell {
    payload: Vec<u8>,
    position: usize,
}

impl Doorbell {
    /// Puts an identity there. False if it is too long.
    #[must_use]
    pub fn load(&mut self, identity: &Identity) -> bool {
        let Ok(json) = serde_json::to_vec(identity) else { return false };
        let Ok(length) = u32::try_from(json.len()) else { return false };
        self.payload = [length.to_le_bytes().as_slice(), &json].concat();
        self.position = 0;
        json.len() <= PAYLOAD_MAX
    }

    /// Reads on; zeros after the end.
    pub fn read(&mut self, data: &mut [u8]) {
        for byte in data {
            *byte = self.payload.get(self.position).copied().unwrap_or(0);
            self.position = self.position.saturating_add(1);
        }
    }

    /// Back to the start.
    pub fn rewind(&mut self) {
        self.position = 0;
    }

    /// Forgets the payload, which may hold secrets.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_past_the_end_give_zeros() {
        let mut bell = Doorbell::default();
        assert!(bell.load(&Identity { hostname: "a".into(), ..Identity::default() }));
        let mut length = [0; 4];
        bell.read(&mut length);
        let mut json = vec![1; u32::from_le_bytes(length) as usize + 3];
        bell.read(&mut json);
        assert!(json.ends_with(b"}\0\0\0"));
        bell.rewind();
        let mut again = [0; 4];
        bell.read(&mut again);
        assert_eq!(again, length);
    }

    #[test]
    fn an_identity_that_is_too_long_is_refused() {
        let long = Identity { hostname: "a".repeat(PAYLOAD_MAX), ..Identity::default() };
        assert!(!Doorbell::default().load(&long));
    }
}
