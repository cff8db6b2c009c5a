//! What sandboxes reach, and who reaches them.
//!
//! What a sandbox may reach is a list of [`Layer`]s, all of which must allow it; a record keeps them resolved, so that a change of the
//! node's presets does not change what runs. [`ports`] brings machines to the network and keeps them there, [`edge`] checks rules with
//! secrets and makes authorities, [`secrets`] keeps the secrets, [`links`] are ways in that need no token.
//!
//! The network is never why an operation fails: a machine that cannot be connected reaches nothing, says so, and is tried again. What is
//! asked of it is checked before, like everything else.

mod edge;
mod links;
mod ports;
mod secrets;

use std::collections::BTreeMap;

use ramet_proto::api::network::{
    Allow, EdgeRequest, Layer, LayerSource, Limits, NetworkLog, NetworkLogQuery, NetworkRequest,
    NodeNetwork, Policy, SandboxNetwork,
};
use ramet_proto::api::{EventKind, ForkRequest};
use ramet_proto::net::{Authority, Member, Port, rule};
use serde::{Deserialize, Serialize};

use super::Service;
use super::error::Error;
use super::record::{Phase, Record};
use crate::auth::Principal;
use crate::host::net::State;
use crate::store::Change;
pub use links::Link;
pub use ports::Attached;
pub use secrets::Known as Secret;

/// The preset that allows nothing.
const NONE: &str = "none";
/// The preset that allows everything public.
const OPEN: &str = "open";
/// The preset that only configuration can fill.
const PACKAGES: &str = "packages";
/// Most layers of a sandbox.
const LAYERS_MAX: usize = 16;
/// Most bytes of all layers, as they are told to the service.
const LAYERS_BYTES_MAX: usize = 96 << 10;
/// Entries of a log that are told at once.
const LOG_MAX: u32 = 1000;
const LOG_USUAL: u32 = 100;

/// Presets of a node, besides those that every node has.
pub type Presets = BTreeMap<String, Vec<Allow>>;

/// The network of a sandbox, as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// Caps of tokens, and layers of the sandboxes that it was forked from. Those of templates are with its root.
    #[serde(default)]
    pub inherited: Vec<Layer>,
    /// What was asked for itself; a fork need not have any.
    #[serde(default)]
    pub own: Option<Layer>,
    /// Bounds.
    #[serde(default)]
    pub limits: Limits,
    /// Headers that are set on the way out.
    #[serde(default)]
    pub edge: Vec<EdgeRequest>,
    /// What the guest trusts for that. Made with the first rule, and kept.
    #[serde(default)]
    pub authority: Option<Authority>,
    /// Its place in a network of several.
    #[serde(default)]
    pub member: Option<Member>,
}

impl Net {
    /// Its number in a network of several.
    fn number(&self) -> Option<u8> {
        self.member.as_ref().map(|member| member.number)
    }
}

impl Record {
    /// All that must allow what it reaches.
    pub fn layers(&self) -> Vec<Layer> {
        let caps = self.network.inherited.iter().filter(|one| one.from == LayerSource::Token);
        let rest = self.network.inherited.iter().filter(|one| one.from != LayerSource::Token);
        caps.chain(&self.template_layers).chain(rest).chain(&self.network.own).cloned().collect()
    }

    /// Whether its guest knows secrets.
    pub fn holds_secrets(&self) -> bool {
        !self.secrets.is_empty()
    }
}

impl Principal {
    /// The cap of the token that was used, as a layer.
    pub(super) fn cap(&self) -> Option<Layer> {
        let cap = self.policy()?;
        Some(Layer { from: LayerSource::Token, egress: None, allow: cap.allow.clone() })
    }
}

/// A configuration with the policies of these layers.
fn port(name: &str, layers: Vec<Layer>, limits: Limits) -> Port {
    let policies = layers.into_iter().map(|layer| Policy { allow: layer.allow }).collect();
    Port {
        port: name.to_owned(),
        policies,
        limits,
        member: None,
        edge: Vec::new(),
        authority: None,
    }
}

/// Adds a layer that is not there yet.
fn add(layers: &mut Vec<Layer>, layer: Option<Layer>) {
    let same = |one: &Layer, other: &Layer| one.from == other.from && one.allow == other.allow;
    if let Some(layer) = layer.filter(|layer| !layers.iter().any(|one| same(one, layer))) {
        layers.push(layer);
    }
}

/// Layers that came from elsewhere.
pub(super) fn check_foreign(layers: &[Layer]) -> Result<(), Error> {
    check_layers(layers)?;
    let policies = layers.iter().map(|layer| Policy { allow: layer.allow.clone() });
    policies.into_iter().try_for_each(|policy| {
        rule::check(&policy).map_err(|error| Error::Bad(format!("layers: {error}")))
    })
}

fn check_layers(layers: &[Layer]) -> Result<(), Error> {
    let bytes = serde_json::to_vec(layers).map_or(0, |text| text.len());
    if layers.len() > LAYERS_MAX || bytes > LAYERS_BYTES_MAX {
        return Err(Error::Bad(format!(
            "network: {} layers with {bytes} bytes; at most {LAYERS_MAX} with {LAYERS_BYTES_MAX}. Each fork that narrows adds one",
            layers.len()
        )));
    }
    Ok(())
}

/// Both bounds hold; 0 is none.
fn narrower(one: Limits, other: Limits) -> Limits {
    fn least<T: Ord + Default>(one: T, other: T) -> T {
        match (one == T::default(), other == T::default()) {
            (true, _) => other,
            (_, true) => one,
            _ => one.min(other),
        }
    }
    Limits {
        bytes_per_s: least(one.bytes_per_s, other.bytes_per_s),
        packets_per_s: least(one.packets_per_s, other.packets_per_s),
        connections: least(one.connections, other.connections),
    }
}

impl Service {
    /// Names of presets that can be used.
    fn preset_names(&self) -> Vec<String> {
        let mut names = vec![NONE.to_owned(), OPEN.to_owned()];
        names.extend(self.settings.presets.keys().cloned());
        names.sort();
        names
    }

    fn preset(&self, name: &str) -> Result<Vec<Allow>, Error> {
        if let Some(rules) = self.settings.presets.get(name) {
            return Ok(rules.clone());
        }
        match name {
            NONE => Ok(Vec::new()),
            OPEN => Ok(vec![Allow { to: "*".to_owned(), ports: Vec::new(), protocols: Vec::new() }]),
            PACKAGES => Err(Error::Bad(
                "egress: this node does not know which hosts packages come from; start rametd with `--packages-host NAME` for \
                 each, or name them in allow"
                    .to_owned(),
            )),
            _ => Err(Error::Bad(format!(
                "egress: there is no preset {name:?}; this node has {}",
                self.preset_names().join(", ")
            ))),
        }
    }

    /// A layer of what was asked for.
    pub(super) fn layer(
        &self,
        from: LayerSource,
        egress: Option<&str>,
        allow: &[Allow],
    ) -> Result<Layer, Error> {
        let mut rules = egress.map_or(Ok(Vec::new()), |name| self.preset(name))?;
        rules.extend(allow.iter().cloned());
        let policy = Policy { allow: rules };
        rule::check(&policy).map_err(|error| Error::Bad(format!("allow: {error}")))?;
        Ok(Layer { from, egress: egress.map(str::to_owned), allow: policy.allow })
    }

    fn own_layer(&self, request: &NetworkRequest) -> Result<Layer, Error> {
        self.layer(LayerSource::Own, request.egress.as_deref(), &request.allow)
    }

    /// The network of a sandbox to be. `layers` are those of its template.
    pub(super) fn network_of_new(
        &self,
        who: &Principal,
        request: Option<&NetworkRequest>,
        layers: &[Layer],
    ) -> Result<Net, Error> {
        let nothing = NetworkRequest::default();
        let request = request.unwrap_or(&nothing);
        let mut net = Net {
            inherited: who.cap().into_iter().collect(),
            own: Some(self.own_layer(request)?),
            limits: request.limits.unwrap_or_default(),
            ..Net::default()
        };
        self.set_edge(who, &mut net, request.edge.clone())?;
        let all: Vec<Layer> = net.inherited.iter().chain(layers).chain(&net.own).cloned().collect();
        check_layers(&all)?;
        Ok(net)
    }

    /// The network of children to be.
    pub(super) fn network_of_children(
        &self,
        who: &Principal,
        source: &Record,
        request: &ForkRequest,
    ) -> Result<Net, Error> {
        let mut inherited = Vec::new();
        add(&mut inherited, who.cap());
        for layer in source.network.inherited.iter().cloned() {
            add(&mut inherited, Some(layer));
        }
        let own = source.network.own.clone();
        add(&mut inherited, own.map(|own| Layer { from: LayerSource::Source, ..own }));
        let asked = request.network.as_ref();
        let limits = asked.and_then(|asked| asked.limits).unwrap_or_default();
        let mut net = Net {
            inherited,
            own: asked.map(|asked| self.own_layer(asked)).transpose()?,
            limits: narrower(source.network.limits, limits),
            ..Net::default()
        };
        let mut edge = asked.map(|asked| asked.edge.clone()).unwrap_or_default();
        if request.keep_edge {
            net.authority.clone_from(&source.network.authority);
            edge.splice(0..0, source.network.edge.iter().cloned());
        }
        self.set_edge(who, &mut net, edge)?;
        let all: Vec<Layer> =
            net.inherited.iter().chain(&source.template_layers).chain(&net.own).cloned().collect();
        check_layers(&all)?;
        Ok(net)
    }

    /// The layers of a template to be, after those of the sandbox that it comes from.
    pub(super) fn layers_of_template(
        &self,
        mut layers: Vec<Layer>,
        request: Option<&NetworkRequest>,
    ) -> Result<Vec<Layer>, Error> {
        let Some(request) = request else { return Ok(layers) };
        if !request.edge.is_empty() {
            let text = "network.edge: a template has no secrets; give its sandboxes edge rules";
            return Err(Error::Unsupported(text.to_owned()));
        }
        let egress = request.egress.as_deref();
        add(&mut layers, Some(self.layer(LayerSource::Template, egress, &request.allow)?));
        check_layers(&layers)?;
        Ok(layers)
    }

    /// What a sandbox's network is.
    pub async fn network(&self, who: &Principal, key: &str) -> Result<SandboxNetwork, Error> {
        let record = self.find(who, key)?;
        Ok(self.shown_network(&record).await)
    }

    async fn shown_network(&self, record: &Record) -> SandboxNetwork {
        let attached = self.attached(record);
        let mut stats = None;
        if matches!(attached, Ok(())) {
            let name = record.id.clone();
            let asked = self.host.network_call(move |_, network| network.stats(&name)).await;
            stats = asked.ok().and_then(Result::ok);
        }
        SandboxNetwork {
            connected: attached.is_ok(),
            reason: attached.err(),
            layers: record.layers(),
            limits: record.network.limits,
            edge: record.network.edge.clone(),
            stats,
        }
    }

    /// Replaces a sandbox's own layer, limits and edge rules.
    pub async fn set_network(
        &self,
        who: &Principal,
        key: &str,
        request: NetworkRequest,
    ) -> Result<SandboxNetwork, Error> {
        let id = self.find(who, key)?.id;
        let (service, principal, target) = (self.clone(), who.clone(), id.clone());
        self.operate(who, "network_set", &target, async move {
            let _own = service.own(&id).await?;
            let mut record = service.find(&principal, &id)?;
            let trusted = record.network.authority.clone();
            add(&mut record.network.inherited, principal.cap());
            record.network.own = Some(service.own_layer(&request)?);
            record.network.limits = request.limits.unwrap_or_default();
            service.set_edge(&principal, &mut record.network, request.edge)?;
            check_layers(&record.layers())?;
            record.touch();
            let sandboxes = vec![record.clone()];
            service.commit(|_| Ok(Change { sandboxes, ..Change::default() }))?;
            service.configure(&record).await;
            if record.network.authority != trusted && record.phase == Phase::Running {
                service.tell_guest(&record).await?;
            }
            service.events.tell(&record.owner, EventKind::NetworkChanged, &id, None, None);
            Ok(service.shown_network(&record).await)
        })
        .await
    }

    /// What was refused, and why.
    pub async fn network_log(
        &self,
        who: &Principal,
        key: &str,
        query: &NetworkLogQuery,
    ) -> Result<NetworkLog, Error> {
        let limit = query.limit.unwrap_or(LOG_USUAL);
        if !(1..=LOG_MAX).contains(&limit) {
            return Err(Error::Bad(format!("limit: 1 to {LOG_MAX}, not {limit}")));
        }
        let record = self.find(who, key)?;
        if !ports::is_at_work(&record) {
            return Err(Error::WrongState(format!(
                "the sandbox {} does not run, and its log goes with its machine; resume it first",
                record.id
            )));
        }
        self.attached(&record).map_err(Error::NoNetwork)?;
        let after = query.after.unwrap_or(0);
        let log = self.host.network_call(move |_, network| network.log(&record.id, after, limit));
        let entries = log.await?.map_err(|error| Error::NoNetwork(error.to_string()))?;
        Ok(NetworkLog { entries })
    }

    /// Whether there is a network here.
    pub fn node_network(&self) -> NodeNetwork {
        let reason = match &*self.host.network().borrow() {
            State::Up => None,
            State::Down(reason) => Some(reason.clone()),
        };
        NodeNetwork { up: reason.is_none(), reason, presets: self.preset_names() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrower_bound_holds() {
        let limits =
            |bytes_per_s, connections| Limits { bytes_per_s, connections, packets_per_s: 0 };
        assert_eq!(narrower(limits(0, 7), limits(5, 9)), limits(5, 7));
        assert_eq!(narrower(limits(4, 0), limits(5, 0)), limits(4, 0));
    }

    #[test]
    fn equal_layers_count_once() {
        let layer = |from, to: &str| Layer { from, egress: None, allow: vec![to.parse().unwrap()] };
        let mut layers = Vec::new();
        for one in [
            layer(LayerSource::Source, "a.org"),
            layer(LayerSource::Source, "a.org"),
            layer(LayerSource::Token, "a.org"),
            layer(LayerSource::Source, "b.org"),
        ] {
            add(&mut layers, Some(one));
        }
        assert_eq!(layers.len(), 3);
        assert!(check_layers(&vec![layers[0].clone(); LAYERS_MAX + 1]).is_err());
    }
}
