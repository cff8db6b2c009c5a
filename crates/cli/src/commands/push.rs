//! `ramet push`: a commit or template to another place.

use ramet_client::api::{HostMode, Moved, PushRequest, UnpackQuery};

use crate::commands::pull::{self, Watcher};
use crate::context::Context;
use crate::failure::Failure;
use crate::transit::{self, What};

const HELP: &str = "\
Places:
  file:///DIRECTORY[#NAME]               a store in a directory, made if there is none
  s3://BUCKET/PREFIX[#NAME]              a store in a bucket; keys as in AWS_ACCESS_KEY_ID
  oci://HOST[:PORT]/REPOSITORY[:TAG]     a registry; oci+http:// without TLS
  http://HOST:PORT                       another node; its token in RAMET_REMOTE_TOKEN

Only what is missing there travels. The image below it goes along. A name or tag that is there
moves. The node signs what it gives away if it has a key: see `ramet key`.

Examples:
  ramet push good s3://team/states
  ramet push cm-0f3a oci://registry.example/team/box:v1
  ramet push --template python file:///mnt/share#python
  RAMET_REMOTE_TOKEN=… ramet push good http://10.0.0.7:7878";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Commit, tag or branch; with --template a template
    what: String,
    /// Where to
    remote: String,
    /// It is a template
    #[arg(long, short)]
    template: bool,
}

/// Does it.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let client = context.client().await?;
    let what = What::new(&args.what, args.template);
    let moved = match pull::node_at(&args.remote)? {
        Some((other, rest)) => {
            if !rest.is_empty() {
                return Err(Failure::usage(format!("{}: only HOST:PORT", args.remote)));
            }
            transit::between(&client, &other, &what, &UnpackQuery::default()).await?
        }
        None => to_remote(args, &what, &client).await?,
    };
    context.show(&moved, |moved| pull::draw("pushed", moved, context.paint));
    Ok(())
}

async fn to_remote(
    args: &Args,
    what: &What,
    client: &ramet_client::Client,
) -> Result<Moved, Failure> {
    let remote = transit::remote(&args.remote)?;
    let mut watcher = Watcher::new("pushing");
    if client.node().await?.host_mode == HostMode::Software {
        let meter = watcher.meter();
        // A name that is no id is a name there, too.
        let name = (args.template || !args.what.starts_with("cm-")).then_some(args.what.as_str());
        watcher.watch(transit::push(client, what, name, remote, &meter)).await?;
        let (mut commit, mut template) = (None, None);
        match what {
            What::Commit(key) => commit = Some(client.get_commit(key).await?),
            What::Template(key) => template = Some(client.template(key).await?),
        }
        let progress = transit::progress(&meter);
        return Ok(Moved { commit, template, known: false, progress });
    }
    let request = PushRequest { remote: args.remote.clone() };
    let follower = match what {
        What::Commit(key) => client.push_commit(key, &request).await?,
        What::Template(key) => client.push_template(key, &request).await?,
    };
    watcher.follow(follower).await
}
