//! `ramet network`: sandboxes that see each other by name, and what is done with all of them at one instant.

use clap::Subcommand;
use ramet_client::api::PauseRequest;
use ramet_client::api::groups::{
    Between, CommitNetwork, CreateNetwork, ForkNetwork, ForkedNetwork, JoinNetwork, Network,
    PromoteNetwork, UpdateNetwork,
};
use serde_json::json;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Table};
use crate::values;

const HELP: &str = "\
Members of a network see each other by name (`db`, `db.ramet.internal`) and by an address that stays. Nothing crosses
networks. A fork of a network is cut at one instant: every copy is a network of its own with the same names and addresses, connections
between members live on in every copy, connections to the outside only in the source. Checkpoint, rewind, pause, promote and commit
follow the same rule.

`--between` says who may begin a connection with whom, as `app>db:5432` or `*>web:80,443`; without one, everybody with everybody.

Examples:
  ramet network create shop
  ramet network join shop database --as db
  ramet network join shop web --as app
  ramet exec web -- curl http://db:8000/
  ramet network fork shop 3
  ramet network promote shop shop-2
  ramet network checkpoint shop before-migration
  ramet network rewind shop before-migration
  ramet network commit shop -m 'all of it'
  ramet network create again --from grp-0123456789abcdef";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a network
    Create {
        /// Name
        name: String,
        /// Who may begin a connection with whom
        #[arg(long, value_name = "FROM>TO[:PORTS]", value_parser = between)]
        between: Vec<Between>,
        /// Check out the members of a group commit
        #[arg(long, value_name = "GROUP")]
        from: Option<String>,
    },
    /// List networks
    Ls,
    /// Show a network and its members
    Inspect {
        /// Network
        network: String,
    },
    /// Change who may begin a connection with whom
    Set {
        /// Network
        network: String,
        /// All of the rules; none is everybody with everybody
        #[arg(long, value_name = "FROM>TO[:PORTS]", value_parser = between)]
        between: Vec<Between>,
    },
    /// Remove networks
    Rm {
        /// Networks
        #[arg(required = true)]
        networks: Vec<String>,
        /// Delete their members, too
        #[arg(long)]
        members: bool,
    },
    /// A running sandbox becomes a member
    Join {
        /// Network
        network: String,
        /// Sandbox
        sandbox: String,
        /// Its name among the members; its own without it
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
    },
    /// A member leaves
    Leave {
        /// Network
        network: String,
        /// Member, or its sandbox
        member: String,
    },
    /// Copies of the whole network, all from one instant
    Fork(Fork),
    /// Pause all members at one instant
    Pause {
        /// Network
        network: String,
        /// Keep them in memory
        #[arg(long)]
        memory: bool,
    },
    /// Let all members go on
    Resume {
        /// Network
        network: String,
    },
    /// A checkpoint of each member, all from one instant
    Checkpoint {
        /// Network
        network: String,
        /// Name of the checkpoints
        name: String,
    },
    /// All members go back to the checkpoints of this name
    Rewind {
        /// Network
        network: String,
        /// Name of the checkpoints
        checkpoint: String,
    },
    /// The network goes on as one of its copies did
    Promote {
        /// Network
        network: String,
        /// The copy
        winner: String,
        #[command(flatten)]
        secrets: values::Secrets,
    },
    /// A commit of each member, all from one instant
    Commit {
        /// Network
        network: String,
        /// What it is, in words
        #[arg(long, short)]
        message: Option<String>,
        /// Members hold secrets, and what is kept of their memory has them
        #[arg(long)]
        inherit_secrets: bool,
    },
}

/// Arguments of a fork of a network.
#[derive(clap::Args)]
pub struct Fork {
    /// Network
    network: String,
    /// How many; 1, or as many as there are names
    count: Option<u32>,
    /// Name of a copy, one for each
    #[arg(long, short)]
    name: Vec<String>,
    #[command(flatten)]
    secrets: values::Secrets,
    /// Leave the random state of interpreters as it was
    #[arg(long)]
    deterministic: bool,
    /// The copies have the edge rules of the members, too
    #[arg(long)]
    keep_edge: bool,
}

/// `FROM>TO[:PORT,PORT]`.
fn between(text: &str) -> Result<Between, String> {
    let wrong = || format!("{text:?} is not FROM>TO or FROM>TO:PORT,PORT");
    let (from, to) = text.split_once('>').ok_or_else(wrong)?;
    let (to, ports) = to.split_once(':').map_or((to, None), |(to, ports)| (to, Some(ports)));
    let ports = match ports {
        None => Vec::new(),
        Some(ports) => ports
            .split(',')
            .map(|port| port.parse().map_err(|_| wrong()))
            .collect::<Result<_, _>>()?,
    };
    if from.is_empty() || to.is_empty() {
        return Err(wrong());
    }
    Ok(Between { from: from.to_owned(), to: to.to_owned(), ports })
}

/// Copies of a network, told.
pub async fn fork(network: &str, request: &ForkNetwork, context: &Context) -> Result<u8, Failure> {
    let forked = context.client().await?.fork_network(network, request).await?;
    context.show(&forked, |forked| drawn_fork(forked, context.paint));
    Ok(u8::from(forked.copies.iter().any(|copy| copy.error.is_some())))
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<u8, Failure> {
    let client = context.client().await?;
    match args.action {
        Action::Create { name, between, from } => {
            let between = Some(between).filter(|rules| !rules.is_empty());
            let request = CreateNetwork { name, between, group: from };
            show(&client.create_network(&request).await?, context);
        }
        Action::Ls => {
            let list = client.networks().await?;
            context.show(&list, |list| drawn_list(list, output::now_ms(), context.paint));
        }
        Action::Inspect { network } => show(&client.network_of_several(&network).await?, context),
        Action::Set { network, between } => {
            let between = Some(between).filter(|rules| !rules.is_empty());
            show(&client.update_network(&network, &UpdateNetwork { between }).await?, context);
        }
        Action::Rm { networks, members } => {
            for network in &networks {
                if members {
                    for member in client.network_of_several(network).await?.members {
                        client.delete(&member.sandbox).await?;
                    }
                }
                client.delete_network(network).await?;
            }
            context.show(&json!({ "removed": networks }), |_| String::new());
        }
        Action::Join { network, sandbox, name } => {
            let request = JoinNetwork { sandbox, name };
            show(&client.join_network(&network, &request).await?, context);
        }
        Action::Leave { network, member } => {
            client.leave_network(&network, &member).await?;
            context.show(&json!({ "left": member }), |_| String::new());
        }
        Action::Fork(args) => {
            let request = ForkNetwork {
                count: args.count,
                names: Some(args.name).filter(|names| !names.is_empty()),
                inherit_secrets: args.secrets.said(),
                keep_edge: args.keep_edge,
                deterministic: args.deterministic,
            };
            return fork(&args.network, &request, context).await;
        }
        other => moments(other, context).await?,
    }
    Ok(0)
}

async fn moments(action: Action, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    match action {
        Action::Pause { network, memory } => {
            let paused =
                client.pause_network(&network, &PauseRequest { memory, disk: false }).await?;
            context.show(&paused, |paused| names(paused.sandboxes.iter().map(|one| &one.name)));
        }
        Action::Resume { network } => {
            let resumed = client.resume_network(&network).await?;
            context.show(&resumed, |resumed| names(resumed.sandboxes.iter().map(|one| &one.name)));
        }
        Action::Checkpoint { network, name } => {
            let made = client.checkpoint_network(&network, &name).await?;
            context.show(&made, |made| names(made.checkpoints.iter().map(|one| &one.id)));
        }
        Action::Rewind { network, checkpoint } => {
            show(&client.rewind_network(&network, &checkpoint).await?, context);
        }
        Action::Promote { network, winner, secrets } => {
            let request = PromoteNetwork { winner, inherit_secrets: secrets.said() };
            show(&client.promote_network(&network, &request).await?, context);
        }
        Action::Commit { network, message, inherit_secrets } => {
            let inherit_secrets = inherit_secrets.then_some(true);
            let request = CommitNetwork { message, author: None, inherit_secrets };
            let kept = client.commit_network(&network, &request).await?;
            context.show(&kept, |kept| {
                let commits = names(kept.commits.iter().map(|one| &one.id));
                format!("{}\n{commits}", context.paint.bold(&kept.group))
            });
        }
        _ => {}
    }
    Ok(())
}

fn names<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(|name| format!("{name}\n")).collect()
}

fn show(network: &Network, context: &Context) {
    context.show(network, |network| drawn(network, context.paint));
}

fn drawn(network: &Network, paint: Paint) -> String {
    let mut text = format!("{}  {}\n", paint.bold(&network.name), paint.dim(&network.id));
    for rule in network.between.iter().flatten() {
        let ports: Vec<String> = rule.ports.iter().map(u16::to_string).collect();
        let ports = if ports.is_empty() { String::new() } else { format!(":{}", ports.join(",")) };
        text.push_str(&format!("{}>{}{ports}\n", rule.from, rule.to));
    }
    if network.members.is_empty() {
        return text;
    }
    let mut table = Table::new(&["MEMBER", "ADDRESS", "SANDBOX", "STATE"]);
    for member in &network.members {
        table.row(vec![
            member.name.clone(),
            member.addresses.first().cloned().unwrap_or_default(),
            member.sandbox_name.clone(),
            paint.state(member.state),
        ]);
    }
    text + &table.draw(paint)
}

fn drawn_list(list: &[Network], now_ms: u64, paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "ID", "AGE", "COPY OF", "MEMBERS"]);
    for network in list {
        let members: Vec<&str> = network.members.iter().map(|one| one.name.as_str()).collect();
        let named = |id: &String| list.iter().find(|one| one.id == *id).map(|one| one.name.clone());
        table.row(vec![
            network.name.clone(),
            network.id.clone(),
            output::age(network.created_at_ms, now_ms),
            network.parent.as_ref().map_or("-".to_owned(), |id| named(id).unwrap_or(id.clone())),
            if members.is_empty() { "-".to_owned() } else { members.join(", ") },
        ]);
    }
    table.draw(paint)
}

fn drawn_fork(forked: &ForkedNetwork, paint: Paint) -> String {
    let mut table = Table::new(&["COPY", "ID", "MEMBERS"]);
    for copy in &forked.copies {
        match (&copy.network, &copy.error) {
            (Some(network), _) => {
                let names: Vec<&str> =
                    network.members.iter().map(|one| one.sandbox_name.as_str()).collect();
                table.row(vec![network.name.clone(), network.id.clone(), names.join(", ")]);
            }
            (None, error) => table.row(vec![
                paint.red("failed"),
                "-".into(),
                error.as_ref().map_or("-".into(), |error| output::shorten(&error.detail, 100)),
            ]),
        }
    }
    let times = format!(
        "all stood still after {}; a member lost {} more; all of it took {}",
        output::micros(forked.hold_us),
        output::micros(forked.pause_us),
        output::micros(forked.total_us)
    );
    format!("{}{}\n", table.draw(paint), paint.dim(&times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        let rule = between("app>db:5432,5433").unwrap();
        assert_eq!((&*rule.from, &*rule.to, rule.ports), ("app", "db", vec![5432, 5433]));
        assert_eq!(between("*>web").unwrap().ports, [0; 0]);
        for bad in ["app", "app>", ">db", "a>b:", "a>b:x", "a>b:99999"] {
            assert!(between(bad).is_err(), "{bad}");
        }
    }
}
