//! Where a machine's identity is kept, and what processes get of it.
//!
//! The identity's files are on a tmpfs and belong to [`RUN`]; [`crate::seize::apply`] writes them
//! while no process runs, everybody else only reads. `env.json` is replaced by rename, so a reader sees
//! one identity's environment, never a mixture.

use std::collections::BTreeMap;

/// The agent's directory in the guest.
pub const RUN: &str = "/run/ramet";
/// The agent's own binary, for the guest's users.
pub const BINARY: &str = "/run/ramet/ramet-agent";
/// Where processes in the guest reach the agent.
pub const SOCKET: &str = "/run/ramet/agent.sock";
/// The machine's environment and secrets together, as a JSON object.
pub const ENVIRONMENT: &str = "env.json";

/// What the machine's identity gives every process that is started.
pub fn environment() -> BTreeMap<String, String> {
    match std::fs::read(format!("{RUN}/{ENVIRONMENT}")) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            crate::log::line(format_args!("{RUN}/{ENVIRONMENT}: {error}"));
            BTreeMap::new()
        }),
        // No identity yet.
        Err(_) => BTreeMap::new(),
    }
}

/// The machine-id of an instance: 32 hex digits (FNV-1a), the same for the same name.
pub fn machine_id(instance: &str) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mix = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    format!("{:032x}", instance.bytes().fold(OFFSET, mix))
}

#[cfg(test)]
mod tests {
    use super::machine_id;

    #[test]
    fn machine_ids_are_well_formed_and_differ() {
        let (one, other) = (machine_id("sbx-1"), machine_id("sbx-2"));
        assert!(one != other && one.len() == 32 && other.len() == 32);
        assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        // A published test vector of the hash.
        assert_eq!(machine_id("a"), "d228cb696f1a8caf78912b704e4a8964");
    }
}
