//! What the node tells: events, logs, figures, itself.

use ramet_client::api::{EventKind, EventsQuery, HostMode, PauseRequest, TemplateState, TreeKind};

use crate::bed::{fresh, node, patience, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] =
    stories![a_life_is_told_as_it_happens, a_sandbox_has_figures, a_node_tells_about_itself];

fn a_life_is_told_as_it_happens() {
    let sandbox = fresh("told");
    let query = EventsQuery { sandbox: Some(sandbox.id.clone()) };
    let mut events = wait(node().client.events(&query)).unwrap();
    let kept = sandbox.checkpoint("here");
    sandbox.pause();
    sandbox.resume();
    sandbox.rewind("here");
    let child = sandbox.fork(1).remove(0);
    sandbox.promote(&child);
    let (id, child) = (sandbox.id.clone(), child.keep());
    sandbox.delete();
    let told = wait(async {
        let mut told = Vec::new();
        while told.last().is_none_or(|(kind, _)| *kind != EventKind::Deleted) {
            let next = tokio::time::timeout(patience(), events.next()).await;
            let event = next.expect("an event in time").unwrap().expect("the stream goes on");
            assert_eq!(event.sandbox, id);
            told.push((event.kind, event.other));
        }
        told
    });
    let expected = [
        (EventKind::Checkpointed, Some(kept.id.clone())),
        (EventKind::Paused, None),
        (EventKind::Resumed, None),
        (EventKind::Rewound, Some(kept.id)),
        (EventKind::Promoted, Some(child)),
        (EventKind::Deleted, None),
    ];
    assert_eq!(told, expected, "of this sandbox and of no other");
}

fn a_sandbox_has_figures() {
    let sandbox = fresh("measured");
    sandbox.sh("dd if=/dev/urandom of=/srv/noise bs=1M count=8 conv=fsync 2>/dev/null");
    let stats = wait(node().client.stats(&sandbox.id)).unwrap();
    assert!(stats.pss_kib > 0 && stats.ram_present_kib > 0, "{stats:?}");
    assert!(stats.disk_own_bytes >= 8 << 20, "{stats:?}");
    let guest = stats.guest.expect("it runs");
    assert!(guest.processes > 1 && guest.memory_total_bytes > 300 << 20, "{guest:?}");
    sandbox.fork(1);
    let stats = wait(node().client.stats(&sandbox.id)).unwrap();
    assert!(stats.last_pause_us.is_some());
    let still = PauseRequest { memory: true, disk: false };
    wait(node().client.pause(&sandbox.id, &still)).unwrap();
    assert_eq!(wait(node().client.stats(&sandbox.id)).unwrap().guest, None);
    sandbox.resume();
    sandbox.sh("echo hello console > /dev/console");
    let logs = wait(node().client.logs(&sandbox.id)).unwrap();
    assert!(logs.text.contains("hello console"), "{logs:?}");
}

fn a_node_tells_about_itself() {
    let sandbox = fresh("counted");
    let shown = wait(node().client.node()).unwrap();
    assert_eq!((shown.principal.as_str(), shown.host_mode), ("admin", HostMode::Hardware));
    assert!(shown.running >= 2 && shown.memory_available_mib < shown.memory_total_mib);
    assert_eq!(shown.templates[0].state, TemplateState::Ready);
    assert!(wait(node().client.ready()).unwrap().ready);
    let tree = wait(node().client.tree()).unwrap();
    assert_eq!(tree.nodes[0].kind, TreeKind::Template);
    let (status, text) = node().page("/metrics");
    assert_eq!(status, 200);
    for line in ["ramet_fork_pause_seconds_count", "ramet_sandboxes{state=\"running\"}", "# EOF"] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let (status, text) = node().page("/v1/openapi.json");
    assert_eq!(status, 200);
    let description: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(description["paths"]["/v1/sandboxes/{id}/fork"]["post"].is_object());
    drop(sandbox);
}
