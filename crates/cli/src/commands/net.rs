//! `ramet net`: what a sandbox may reach, and what it was refused. Also the options of others that concern it.

use std::time::Duration;

use clap::Subcommand;
use ramet_client::Client;
use ramet_client::api::network::{
    Allow, EdgeRequest, LayerSource, Limits, LogEntry, NetworkLogQuery, NetworkRequest,
    SandboxNetwork, Verdict,
};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Sheet, Table};
use crate::values;

/// Between two looks at a log that is followed.
const PAUSE: Duration = Duration::from_secs(1);
/// Most entries at once.
const MOST: u32 = 1000;

const HELP: &str = "\
A sandbox reaches nothing unless it is said. A rule is TO[:PORTS][/PROTOCOLS]:

  example.org                      a name, all ports
  *.example.org:443/tcp            every name below it, not itself
  192.0.2.0/24:80,8000-8100        a range of addresses
  [2001:db8::/32]:53/tcp+udp       the same of version 6
  *                                every name and every public address

Private and link-local addresses, and those of the host, are only reached by a rule that names an
address or range there. Names are asked of the node, which remembers the answers: an address that
no allowed name gave is not reached by a rule with a name.

A sandbox has layers: the cap of the token that it was made with, its template's, those of the
sandboxes that it was forked from, its own. All of them must allow what is reached. `ramet net set`
replaces its own, its limits and its edge rules; what is not given is gone.

An edge rule sets a header on the way out, with a secret that the guest never sees: see
`ramet secret`.

Examples:
  ramet new box --egress packages --allow api.example.org:443/tcp
  ramet net set box --allow '*.example.org:443/tcp' --limit-rate 10M
  ramet net set box --egress none
  ramet net set box --allow api.example.org --edge 'api.example.org:Authorization=Bearer {secret:KEY}'
  ramet net show box
  ramet net log box --follow";

/// What may be reached; also of tokens and templates.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Egress {
    /// Preset of what may be reached: none, open, packages, or another of the node
    #[arg(long, value_name = "PRESET", help_heading = "Network")]
    pub egress: Option<String>,
    /// What may be reached besides: TO[:PORTS][/PROTOCOLS], like example.org:443/tcp; see `ramet net --help`
    #[arg(long, value_name = "RULE", value_parser = values::rule, help_heading = "Network")]
    pub allow: Vec<Allow>,
}

impl Egress {
    /// As a request; none if nothing was said.
    pub fn request(&self) -> Option<NetworkRequest> {
        let request = NetworkRequest {
            egress: self.egress.clone(),
            allow: self.allow.clone(),
            ..NetworkRequest::default()
        };
        Some(request).filter(|request| *request != NetworkRequest::default())
    }
}

/// What a sandbox's network is to be.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Network {
    #[command(flatten)]
    egress: Egress,
    /// Most bytes per second to the outside, each way, like 512K or 10M
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, help_heading = "Network")]
    limit_rate: Option<u64>,
    /// Most packets per second from the guest
    #[arg(long, value_name = "N", help_heading = "Network")]
    limit_packets: Option<u32>,
    /// Most connections at a time
    #[arg(long, value_name = "N", help_heading = "Network")]
    limit_connections: Option<u32>,
    /// Header that requests to a host get on the way out, with a secret: 'HOST:HEADER=Bearer {secret:NAME}'
    #[arg(long, value_name = "HOST:HEADER=VALUE", value_parser = values::edge, help_heading = "Network")]
    edge: Vec<EdgeRequest>,
}

impl Network {
    /// As a request; none if nothing was said.
    pub fn request(&self) -> Option<NetworkRequest> {
        let limits = Limits {
            bytes_per_s: self.limit_rate.unwrap_or(0),
            packets_per_s: self.limit_packets.unwrap_or(0),
            connections: self.limit_connections.unwrap_or(0),
        };
        let request = NetworkRequest {
            limits: Some(limits).filter(|limits| *limits != Limits::default()),
            edge: self.edge.clone(),
            ..self.egress.request().unwrap_or_default()
        };
        Some(request).filter(|request| *request != NetworkRequest::default())
    }
}

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show what a sandbox may reach, and how much it did
    Show {
        /// Sandbox
        sandbox: String,
    },
    /// Replace what a sandbox itself allows, its limits and its edge rules, while it runs
    Set {
        /// Sandbox
        sandbox: String,
        #[command(flatten)]
        network: Network,
    },
    /// Show what a sandbox was refused, and why
    Log {
        /// Sandbox
        sandbox: String,
        /// Only entries after this number
        #[arg(long, value_name = "NUMBER")]
        after: Option<u64>,
        /// At most so many, the newest
        #[arg(long, short = 'n', value_name = "N")]
        limit: Option<u32>,
        /// Go on until Ctrl-C
        #[arg(long, short)]
        follow: bool,
    },
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    match args.action {
        Action::Show { sandbox } => {
            let network = client.network(&sandbox).await?;
            context.show(&network, |network| describe(network, context.paint));
        }
        Action::Set { sandbox, network } => {
            let Some(request) = network.request() else {
                return Err(Failure::usage("say what it may reach")
                    .next("`--egress none` for nothing; `ramet net --help` explains rules"));
            };
            let network = client.set_network(&sandbox, &request).await?;
            context.show(&network, |network| describe(network, context.paint));
        }
        Action::Log { sandbox, after, limit, follow: more } => {
            let query = NetworkLogQuery { after, limit };
            let entries = client.network_log(&sandbox, &query).await?;
            context.show(&entries, |entries| draw(entries, true, context.paint));
            if more {
                let after = entries.last().map(|entry| entry.number).or(after);
                follow(&client, &sandbox, after, context).await?;
            }
        }
    }
    Ok(())
}

/// Shows what comes, until that fails.
async fn follow(
    client: &Client,
    sandbox: &str,
    mut after: Option<u64>,
    context: &Context,
) -> Result<(), Failure> {
    loop {
        tokio::time::sleep(PAUSE).await;
        let query = NetworkLogQuery { after, limit: Some(MOST) };
        let entries = client.network_log(sandbox, &query).await?;
        if let Some(entry) = entries.last() {
            after = Some(entry.number);
            context.show(&entries, |entries| draw(entries, false, context.paint));
        }
    }
}

fn from(source: LayerSource) -> &'static str {
    match source {
        LayerSource::Token => "token",
        LayerSource::Template => "template",
        LayerSource::Source => "source",
        LayerSource::Own => "own",
        LayerSource::Unknown => "?",
    }
}

fn limit(value: u64, shown: impl FnOnce(u64) -> String) -> String {
    if value == 0 { "the node's".to_owned() } else { shown(value) }
}

fn describe(network: &SandboxNetwork, paint: Paint) -> String {
    let mut sheet = Sheet::default();
    let connected = match &network.reason {
        None => paint.green("yes"),
        Some(reason) => format!("{}: {}", paint.yellow("no"), output::shorten(reason, 200)),
    };
    sheet.line("connected", connected);
    sheet.line("bytes per s", limit(network.limits.bytes_per_s, output::bytes));
    sheet.line("packets per s", limit(network.limits.packets_per_s.into(), |n| n.to_string()));
    sheet.line("connections", limit(network.limits.connections.into(), |n| n.to_string()));
    for rule in &network.edge {
        let text = format!("{}: {}: {}", rule.host, rule.header, rule.value);
        sheet.line("edge", output::shorten(&text, 200));
    }
    if let Some(stats) = &network.stats {
        let (sent, received) =
            (output::bytes(stats.sent_bytes), output::bytes(stats.received_bytes));
        sheet.line("traffic", format!("{sent} sent, {received} received"));
        let (all, now) = (stats.connections, stats.connections_now);
        sheet.line("made", format!("{all} connections, {now} open"));
        sheet.line("refused", format!("{}, {} frames dropped", stats.refused, stats.dropped));
    }
    let mut table = Table::new(&["LAYER", "PRESET", "ALLOWS"]);
    for layer in &network.layers {
        let mut rules: Vec<String> = layer.allow.iter().map(Allow::to_string).collect();
        if rules.is_empty() {
            rules.push("nothing".to_owned());
        }
        for (place, rule) in rules.into_iter().enumerate() {
            let (layer, preset) = match place {
                0 => (from(layer.from), layer.egress.as_deref().unwrap_or("-")),
                _ => ("", ""),
            };
            table.row(vec![layer.to_owned(), preset.to_owned(), output::shorten(&rule, 120)]);
        }
    }
    format!("{}{}", sheet.finish(), table.draw(paint))
}

fn draw(entries: &[LogEntry], head: bool, paint: Paint) -> String {
    let mut table =
        Table::new(&["NUMBER", "TIME", "VERDICT", "KIND", "TO", "NAME", "REASON", "COUNT"]);
    for entry in entries {
        let verdict = match entry.verdict {
            Verdict::Allowed => paint.green("allowed"),
            Verdict::Refused => paint.red("refused"),
        };
        // What a guest asked for is its own words.
        table.row(vec![
            entry.number.to_string(),
            output::date(entry.at_ms),
            verdict,
            output::shorten(&entry.kind, 8),
            output::shorten(&entry.to, 60),
            output::shorten(entry.name.as_deref().unwrap_or("-"), 60),
            output::shorten(&entry.reason, 40),
            entry.count.to_string(),
        ]);
    }
    let text = table.draw(paint);
    if head {
        text
    } else {
        text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramet_client::api::network::Layer;

    #[test]
    fn nothing_said_is_no_request() {
        assert_eq!(Network::default().request(), None);
        let egress = Egress { egress: Some("none".into()), allow: Vec::new() };
        let network = Network { egress, ..Network::default() };
        assert_eq!(network.request().unwrap().egress.as_deref(), Some("none"));
    }

    #[test]
    fn layers_are_shown_rule_by_rule() {
        let layer = |from, allow: &[&str]| Layer {
            from,
            egress: None,
            allow: allow.iter().map(|rule| rule.parse().unwrap()).collect(),
        };
        let network = SandboxNetwork {
            connected: true,
            reason: None,
            layers: vec![
                layer(LayerSource::Token, &["a.org", "b.org:443/tcp"]),
                layer(LayerSource::Own, &[]),
            ],
            limits: Limits::default(),
            edge: Vec::new(),
            stats: None,
        };
        let text = describe(&network, Paint::plain());
        assert!(text.contains("b.org:443/tcp") && text.contains("nothing"), "{text}");
    }
}
