//! Sandboxes as SDKs see them.

use ramet_proto::api::{OnTimeout, Sandbox, State, VolumeMode};
use serde_json::{Map, Value, json};

use super::{CLIENT_ID, Control, ENVD_VERSION, labels, time};
use crate::auth::Principal;
use crate::dialects::e2b::{Fault, inner_id, outer_id};

/// Shown as the end of what has none: the last second of the year 2999.
const NEVER_MS: u64 = 32_503_679_999_000;

/// The caller's sandbox with this id. Those that failed, or that a build needs, are not there.
pub fn find(control: &Control, who: &Principal, id: &str) -> Result<Sandbox, Fault> {
    let found = find_to_kill(control, who, id)?;
    shows(&found).then_some(found).ok_or_else(|| not_found(id))
}

/// Likewise, and those that failed: their owner gets rid of them.
pub fn find_to_kill(control: &Control, who: &Principal, id: &str) -> Result<Sandbox, Fault> {
    let inner = inner_id(id).ok_or_else(|| not_found(id))?;
    let found = control.service().get(who, &inner).map_err(Fault::from)?;
    // A beginning of an id is no id here.
    let fits = found.id == inner && !found.labels.contains_key(labels::BUILD);
    fits.then_some(found).ok_or_else(|| not_found(id))
}

fn not_found(id: &str) -> Fault {
    let text = format!("the sandbox {id:?} was not found");
    Fault::new(axum::http::StatusCode::NOT_FOUND, text)
}

/// Whether SDKs get to see it.
pub fn shows(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state, State::Running | State::Paused)
        && !sandbox.labels.contains_key(labels::BUILD)
}

/// Id of the template that it came from.
pub fn template_of(sandbox: &Sandbox) -> &str {
    sandbox.labels.get(labels::TEMPLATE).unwrap_or(&sandbox.template)
}

/// Name of the template that it came from.
pub fn alias_of(sandbox: &Sandbox) -> &str {
    sandbox.labels.get(labels::ALIAS).unwrap_or(&sandbox.template)
}

/// What happens when its time is over, as it was asked for.
pub fn on_timeout(sandbox: &Sandbox) -> OnTimeout {
    match sandbox.labels.contains_key(labels::ON_TIMEOUT) {
        true => OnTimeout::Kill,
        false => sandbox.on_timeout,
    }
}

/// `Sandbox`: what create, connect and fork answer.
pub fn sandbox(control: &Control, sandbox: &Sandbox) -> Value {
    let keys = &control.e2b.keys;
    let private = !labels::is_public(&sandbox.labels);
    json!({
        "templateID": template_of(sandbox),
        "alias": alias_of(sandbox),
        "sandboxID": outer_id(&sandbox.id),
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": keys.access_token(&sandbox.id),
        "trafficAccessToken": private.then(|| keys.traffic_token(&sandbox.id)),
        "domain": control.e2b.domain,
    })
}

/// `ListedSandbox`.
pub fn listed(sandbox: &Sandbox) -> Map<String, Value> {
    let paused = sandbox.state == State::Paused;
    let end = match sandbox.ends_at_ms {
        Some(end) => end,
        None if paused => sandbox.active_at_ms,
        None => NEVER_MS,
    };
    let own = sandbox.volumes.iter().filter(|volume| volume.mode != VolumeMode::Snapshot);
    let mounts: Vec<Value> =
        own.map(|volume| json!({"name": volume.volume, "path": volume.path})).collect();
    let shown = json!({
        "templateID": template_of(sandbox),
        "alias": alias_of(sandbox),
        "sandboxID": outer_id(&sandbox.id),
        "clientID": CLIENT_ID,
        "startedAt": time::of_ms(sandbox.created_at_ms),
        "endAt": time::of_ms(end),
        "cpuCount": sandbox.vcpus,
        "memoryMB": sandbox.memory_mib,
        "diskSizeMB": sandbox.disk_mib,
        "state": if paused { "paused" } else { "running" },
        "envdVersion": ENVD_VERSION,
        "metadata": labels::metadata(&sandbox.labels),
        "volumeMounts": mounts,
    });
    match shown {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
