//! What sandboxes reach, in E2B's words.
//!
//! E2B allows everything unless it is denied, and what is allowed by name or range wins over what is denied. Ours allows nothing unless it is
//! said. So either everything public is allowed (the preset `open`), or everything is denied (`0.0.0.0/0`, or no access to the internet)
//! and `allowOut` says what is reached all the same. To deny single public ranges cannot be said, and is refused. Private
//! ranges are never reached unless `allowOut` names them, so to deny them changes nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ramet_proto::api::Sandbox;
use ramet_proto::api::network::{
    Allow, EdgeRequest, Layer, LayerSource, NetworkRequest, SandboxNetwork, Secret,
};
use ramet_proto::net::rule::{Range, Target};
use serde::Deserialize;
use serde_json::{Value, json};

use super::extract::{Caller, Json, Path};
use super::{Control, labels, shapes};
use crate::dialects::e2b::Fault;

/// The preset that allows everything public.
const OPEN: &str = "open";
const NONE: &str = "none";
/// Everything, as it is denied.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];
/// How a header's value names a secret, in E2B's words and in ours.
const THEIRS: &str = "${e2b.secrets.";
const IDENTITY: &str = "${e2b.identity.";
const OURS: &str = "{secret:";

/// `SandboxNetworkConfig` and its update.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    #[serde(rename = "allowOut")]
    allow_out: Option<Vec<String>>,
    #[serde(rename = "denyOut")]
    deny_out: Option<Vec<String>>,
    #[serde(rename = "dnsServers")]
    dns_servers: Option<Value>,
    #[serde(rename = "egressProxy")]
    egress_proxy: Option<Value>,
    #[serde(rename = "allowPublicTraffic")]
    allow_public_traffic: Option<bool>,
    #[serde(rename = "maskRequestHost")]
    mask_request_host: Option<String>,
    #[serde(rename = "httpsPorts")]
    https_ports: Option<Vec<u16>>,
    rules: Option<BTreeMap<String, Vec<Rule>>>,
    /// Only in an update.
    allow_internet_access: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    transform: Option<Transform>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Transform {
    headers: Option<BTreeMap<String, String>>,
}

impl Rules {
    /// Ports are only for who has the token.
    pub fn is_private(&self) -> bool {
        self.allow_public_traffic == Some(false)
    }

    /// What that is in our words. `internet` is said beside it.
    pub fn request(
        &self,
        internet: Option<bool>,
        secrets: &[Secret],
    ) -> Result<NetworkRequest, Fault> {
        self.refuse_unsupported()?;
        let deny = self.deny_out.as_deref().unwrap_or_default();
        let closed = internet.or(self.allow_internet_access) == Some(false)
            || deny.iter().any(|to| ALL.contains(&to.as_str()));
        let others = deny.iter().filter(|to| !ALL.contains(&to.as_str()));
        others.filter(|_| !closed).try_for_each(|to| check_denied(to))?;
        let allow = self.allow_out.iter().flatten().map(|to| allowed(to));
        Ok(NetworkRequest {
            egress: Some(if closed { NONE } else { OPEN }.to_owned()),
            allow: allow.collect::<Result<_, _>>()?,
            limits: None,
            edge: self.edge(secrets)?,
        })
    }

    fn refuse_unsupported(&self) -> Result<(), Fault> {
        let said = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if said(&self.dns_servers) {
            return Err(Fault::unsupported("network.dnsServers (the node answers names itself)"));
        }
        if said(&self.egress_proxy) {
            return Err(Fault::unsupported("network.egressProxy"));
        }
        if self.mask_request_host.is_some() {
            return Err(Fault::unsupported("network.maskRequestHost"));
        }
        if self.https_ports.as_ref().is_some_and(|ports| !ports.is_empty()) {
            return Err(Fault::unsupported("network.httpsPorts (TLS inside a sandbox)"));
        }
        Ok(())
    }

    fn edge(&self, secrets: &[Secret]) -> Result<Vec<EdgeRequest>, Fault> {
        let mut edge = Vec::new();
        for (host, rules) in self.rules.iter().flatten() {
            if host.contains('*') {
                let text = format!("network.rules: {host:?} (rules for all names below one)");
                return Err(Fault::unsupported(&text));
            }
            let transforms = rules.iter().filter_map(|rule| rule.transform.as_ref());
            let headers = transforms.filter_map(|transform| transform.headers.as_ref()).flatten();
            for (header, value) in headers {
                let (host, header) = (host.clone(), header.clone());
                let value = secret(&host, &header, value, secrets)?;
                edge.push(EdgeRequest { host, header, value });
            }
        }
        Ok(edge)
    }
}

/// A header's value in our words. It is not told: it may be a secret itself.
fn secret(host: &str, header: &str, value: &str, secrets: &[Secret]) -> Result<String, Fault> {
    let what = format!("network.rules: the header {header} for {host}");
    if value.contains(IDENTITY) {
        return Err(Fault::unsupported(&format!("{what} with a token of an identity")));
    }
    let parts = value.split_once(THEIRS).and_then(|(before, rest)| {
        let (name, after) = rest.split_once('}')?;
        (!after.contains(THEIRS)).then_some((before, name, after))
    });
    let Some((before, name, after)) = parts.filter(|_| !value.contains(OURS)) else {
        let text = format!("{what} without exactly one ${{e2b.secrets.NAME}}; make it a secret");
        return Err(Fault::unsupported(&text));
    };
    // Their names have no case.
    let known = secrets.iter().find(|secret| secret.name.eq_ignore_ascii_case(name));
    let known = known.ok_or_else(|| Fault::bad(format!("{what}: there is no secret {name:?}")))?;
    Ok(format!("{before}{OURS}{}}}{after}", known.name))
}

/// A range that is denied beside what is open: fine if it is not reached anyway.
fn check_denied(to: &str) -> Result<(), Fault> {
    let range = match to.parse() {
        Ok(Target::Range(range)) => range,
        Ok(_) => return Err(Fault::bad(format!("denyOut: {to:?} is no address or range"))),
        Err(error) => return Err(Fault::bad(format!("denyOut: {error}"))),
    };
    if is_kept(&range) {
        return Ok(());
    }
    Err(Fault::unsupported(&format!(
        "denyOut: {to:?} beside an open internet; deny \"0.0.0.0/0\" and name in allowOut what is reached"
    )))
}

/// Whether everything in it is never reached by what is public.
fn is_kept(range: &Range) -> bool {
    let least = match range.first {
        IpAddr::V4(four) => match four.octets() {
            [10 | 127, ..] => 8,
            [172, 16..=31, ..] => 12,
            [192, 168, ..] | [169, 254, ..] => 16,
            [100, 64..=127, ..] => 10,
            _ => return false,
        },
        IpAddr::V6(six) if six.is_unique_local() => 7,
        IpAddr::V6(six) if six.is_unicast_link_local() => 10,
        IpAddr::V6(_) => return false,
    };
    range.prefix >= least
}

fn allowed(to: &str) -> Result<Allow, Fault> {
    let to = if ALL.contains(&to) { "*" } else { to };
    let rule = Allow { to: to.to_owned(), ports: Vec::new(), protocols: Vec::new() };
    rule.check().map_err(|error| Fault::bad(format!("allowOut: {error}")))?;
    Ok(rule)
}

/// `PUT /sandboxes/{id}/network`: replaces all of it.
pub async fn set(
    State(control): State<Control>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(rules): Json<Rules>,
) -> Result<Response, Fault> {
    if rules.allow_public_traffic.is_some() {
        let text = "network.allowPublicTraffic of a sandbox that is there; say it at its creation";
        return Err(Fault::unsupported(text));
    }
    let sandbox = shapes::find(&control, &who, &id)?;
    let service = control.service();
    let request = rules.request(None, &service.secrets(&who)?.secrets)?;
    let now = service.network(&who, &sandbox.id).await?;
    check_inherited(&request, &now)?;
    let request = NetworkRequest { limits: Some(now.limits), ..request };
    service.set_network(&who, &sandbox.id, request).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// What a fork has from its source, and a sandbox from its template, it can only narrow.
fn check_inherited(request: &NetworkRequest, now: &SandboxNetwork) -> Result<(), Fault> {
    let open = request.egress.as_deref() == Some(OPEN);
    let wanted = request.allow.iter().map(|rule| rule.to.as_str()).chain(open.then_some("*"));
    let inherited: Vec<&Layer> = now
        .layers
        .iter()
        .filter(|layer| matches!(layer.from, LayerSource::Source | LayerSource::Template))
        .collect();
    for to in wanted {
        let has = |layer: &&Layer| layer.allow.iter().any(|rule| rule.to == "*" || rule.to == to);
        if !inherited.iter().all(&has) {
            let text = format!(
                "{to:?} is not reached by what this sandbox was forked from, and a fork reaches no more than its source"
            );
            return Err(Fault::new(StatusCode::FORBIDDEN, text));
        }
    }
    Ok(())
}

/// The layer that says most of what was asked for: its own, or that of the source.
fn own(network: &SandboxNetwork) -> Option<&Layer> {
    let asked = |layer: &&Layer| matches!(layer.from, LayerSource::Own | LayerSource::Source);
    network.layers.iter().rev().find(asked)
}

/// Whether everything public is allowed.
pub fn is_open(network: &SandboxNetwork) -> bool {
    own(network).is_some_and(|layer| layer.allow.iter().any(|rule| rule.to == "*"))
}

/// `SandboxNetworkConfig` of what there is.
pub fn shown(network: &SandboxNetwork, sandbox: &Sandbox) -> Value {
    let rules = own(network).map(|layer| layer.allow.as_slice()).unwrap_or_default();
    let allow: Vec<&str> =
        rules.iter().map(|rule| rule.to.as_str()).filter(|to| *to != "*").collect();
    let deny: &[&str] = if is_open(network) { &[] } else { &ALL[..1] };
    let mut edge: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for rule in &network.edge {
        let value = rule.value.replace(OURS, THEIRS);
        let header = json!({"transform": {"headers": {rule.header.clone(): value}}});
        edge.entry(&rule.host).or_default().push(header);
    }
    json!({
        "allowOut": allow,
        "denyOut": deny,
        "rules": edge,
        "allowPublicTraffic": labels::is_public(&sandbox.labels),
    })
}
