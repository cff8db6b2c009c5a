//! Figures for Prometheus.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use ramet_proto::api::network::NetStats;
use ramet_store::Traffic;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// All figures of a node.
pub struct Metrics {
    registry: Registry,
    /// What a source loses by a fork.
    pub pause: Histogram,
    /// From a fork's cut to a child that is ready.
    pub ready: Histogram,
    /// A create, from request to answer.
    pub create: Histogram,
    /// A fork, from request to answer.
    pub fork: Histogram,
    /// An exec, from request to answer.
    pub exec: Histogram,
    /// A machine, from running to the store.
    pub stored: Histogram,
    traffic: Mutex<Traffic>,
    read: Counter,
    written: Counter,
    network: Mutex<BTreeMap<String, NetStats>>,
    network_up: Gauge,
    network_sent: Counter,
    network_received: Counter,
    network_refused: Counter,
    network_dropped: Counter,
    network_connections: Counter,
    network_connections_now: Gauge,
    operations: Family<OperationLabels, Counter>,
    sandboxes: Family<StateLabels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ramet");
        let mut histogram = |name: &str, help: &str| {
            // 100 us to 26 s.
            let histogram = Histogram::new(exponential_buckets(0.0001, 2.0, 19));
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
            histogram
        };
        let pause = histogram("fork_pause", "Time that the source of a fork stood still");
        let ready = histogram("fork_ready", "Time from the cut until a child was ready");
        let create = histogram("create", "Time of a create in the node");
        let fork = histogram("fork", "Time of a fork in the node");
        let exec = histogram("exec", "Time of an exec in the node");
        let stored =
            histogram("store", "Time from a machine that stood still to its state in the store");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register_with_unit(name, help, Unit::Bytes, counter.clone());
            counter
        };
        let read = counter("store_read", "Bytes of objects that were read from the store");
        let written = counter("store_written", "Bytes of objects that were written to the store");
        let network_sent = counter("network_sent", "Bytes of frames from guests");
        let network_received = counter("network_received", "Bytes of frames to guests");
        let mut count = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let network_refused = count("network_refused", "What policies refused");
        let network_dropped =
            count("network_dropped", "Frames that were malformed, spoofed or over a limit");
        let network_connections =
            count("network_connections", "Connections to the outside that were made");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let network_up = gauge("network_up", "Whether the network service runs");
        let network_connections_now =
            gauge("network_connections_open", "Connections to the outside that are there");
        let (operations, sandboxes) = (Family::default(), Family::default());
        registry.register("operations", "Operations by kind and outcome", operations.clone());
        registry.register("sandboxes", "Live sandboxes by state", sandboxes.clone());
        Self {
            registry,
            pause,
            ready,
            create,
            fork,
            exec,
            stored,
            traffic: Mutex::default(),
            read,
            written,
            network: Mutex::default(),
            network_up,
            network_sent,
            network_received,
            network_refused,
            network_dropped,
            network_connections,
            network_connections_now,
            operations,
            sandboxes,
        }
    }
}

impl Metrics {
    /// An operation has ended.
    pub fn operation(&self, kind: &'static str, outcome: &'static str) {
        self.operations.get_or_create(&OperationLabels { kind, outcome }).inc();
    }

    /// What went to the store and came from it, since the start.
    pub fn traffic(&self, now: Traffic) {
        let mut before = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        self.read.inc_by(now.read_bytes.saturating_sub(before.read_bytes));
        self.written.inc_by(now.written_bytes.saturating_sub(before.written_bytes));
        *before = now;
    }

    /// The network service, and the figures of its ports.
    pub fn network(&self, up: bool, ports: Vec<(String, NetStats)>) {
        self.network_up.set(i64::from(up));
        let mut before = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = 0;
        for (port, now) in &ports {
            let was = before.get(port).cloned().unwrap_or_default();
            // A port that was made anew counts anew.
            let more = |now: u64, was: u64| if now >= was { now - was } else { now };
            self.network_sent.inc_by(more(now.sent_bytes, was.sent_bytes));
            self.network_received.inc_by(more(now.received_bytes, was.received_bytes));
            self.network_refused.inc_by(more(now.refused, was.refused));
            self.network_dropped.inc_by(more(now.dropped, was.dropped));
            self.network_connections.inc_by(more(now.connections, was.connections));
            open += now.connections_now;
        }
        self.network_connections_now.set(i64::try_from(open).unwrap_or(i64::MAX));
        *before = ports.into_iter().collect();
    }

    /// How many sandboxes are in a state.
    pub fn sandboxes(&self, state: &'static str, count: u32) {
        self.sandboxes.get_or_create(&StateLabels { state }).set(i64::from(count));
    }

    /// All of them as text.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// For histograms.
pub fn seconds(us: u64) -> f64 {
    std::time::Duration::from_micros(us).as_secs_f64()
}
