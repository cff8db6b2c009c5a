//! Things of a node, for tests of how they are shown.

use std::collections::BTreeMap;

use ramet_client::api::{Commit, CommitState, OnTimeout, Sandbox, State, StoredState};

/// A sandbox that runs.
pub fn sandbox(id: &str, name: &str, parent: Option<&str>) -> Sandbox {
    Sandbox {
        id: id.into(),
        name: name.into(),
        state: State::Running,
        owner: "admin".into(),
        labels: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
        template: "base".into(),
        vcpus: 1,
        memory_mib: 512,
        disk_mib: 4096,
        user: None,
        workdir: None,
        parent: parent.map(str::to_owned),
        env: BTreeMap::new(),
        secret_names: Vec::new(),
        holds_secrets: false,
        created_at_ms: 0,
        active_at_ms: 0,
        timeout_s: 0,
        idle_timeout_s: 0,
        ends_at_ms: None,
        on_timeout: OnTimeout::Kill,
        cpu_weight: 100,
        cpu_quota_percent: 0,
        pids_max: 0,
        auto_checkpoints: None,
        auto_resume: false,
        volumes: Vec::new(),
        commit: None,
        stored: None,
        failure: None,
    }
}

/// A state in the store.
pub fn stored() -> StoredState {
    StoredState {
        state: "00ff".into(),
        logical_bytes: 340 << 20,
        written_bytes: 12 << 20,
        stored_bytes: 40 << 20,
        stored_at_ms: 2500,
        warm: true,
        disk: false,
        needs: None,
    }
}

/// A commit that is durable.
pub fn commit(id: &str, message: Option<&str>, refs: &[&str]) -> Commit {
    Commit {
        id: id.into(),
        state: CommitState::Durable,
        failure: None,
        owner: "admin".into(),
        message: message.map(str::to_owned),
        author: "ann".into(),
        labels: BTreeMap::new(),
        ancestors: Vec::new(),
        sandbox: "sbx-1".into(),
        sandbox_name: "box".into(),
        template: "base".into(),
        vcpus: 1,
        memory_mib: 512,
        disk_mib: 4096,
        created_at_ms: 1000,
        kept_us: 1200,
        disk: false,
        stored: Some(stored()),
        refs: refs.iter().map(|name| (*name).to_owned()).collect(),
    }
}
