//! `ramet template`: machines to create sandboxes from.

use std::path::Path;

use clap::Subcommand;
use ramet_client::api::{
    BASE_TEMPLATE, BuildTemplate, Encoding, Template, TemplateFile, TemplateState,
};
use ramet_client::{BuildNews, Client};
use ramet_image::Recipe;
use serde_json::json;

use crate::commands::image;
use crate::commands::net::Egress;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Paint, Sheet, Table};
use crate::progress::Progress;
use crate::values;

const HELP: &str = "\
A recipe is a file of some lines, or the name of one that comes with ramet: python, devbox.

  name = \"mine\"
  packages = [\"postgresql\"]             Debian's packages, beside those of the base image
  pip = [\"pandas\"]                      these make the image, on this machine; see `ramet image`
  files = { \"/srv/app.py\" = \"app.py\" }  path in the guest = file beside the recipe
  run = [\"createdb test\"]               in the guest, one after the other
  start = [\"python3 /srv/app.py\"]       in the guest, left running
  ready = \"curl -s localhost:8000\"      tried until it succeeds
  env = { LANG = \"C\" }                  also: npm, image, user, workdir, ready_timeout_s, timeout_s
  memory = \"1G\"                         also: vcpus, disk
  allow = [\"example.org:443/tcp\"]       what it reaches while it is built, and its sandboxes at most;
                                        also: egress

The same recipe is built once. A new one of the same name takes over when it is ready.

Examples:
  ramet template build python
  ramet template build ./mine.toml --rebuild
  ramet template build warm --from box
  ramet new box --template python
  ramet template ls
  ramet template rm python";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Build one from a recipe, or from a sandbox
    Build(Build),
    /// List templates
    Ls,
    /// Show a template, what it was built from, and the end of its log
    Inspect {
        /// Template
        template: String,
    },
    /// Delete templates; their sandboxes go on
    Rm {
        /// Templates
        #[arg(required = true)]
        templates: Vec<String>,
    },
}

#[derive(clap::Args)]
struct Build {
    /// File or name of a recipe; with --from the name of the template
    recipe: String,
    /// Sandbox to make it of; it goes on
    #[arg(long, value_name = "SANDBOX")]
    from: Option<String>,
    /// One of that sandbox's checkpoints
    #[arg(long, requires = "from")]
    checkpoint: Option<String>,
    /// Line for the shell that is run in it first
    #[arg(long, requires = "from", value_name = "LINE")]
    run: Vec<String>,
    /// Line for the shell that succeeds when it is ready
    #[arg(long, requires = "from", value_name = "LINE")]
    ready: Option<String>,
    /// Environment of processes in its sandboxes
    #[arg(long, short, requires = "from", value_name = "KEY=VALUE", value_parser = values::pair)]
    env: Vec<(String, String)>,
    /// Make it of a sandbox that holds secrets; the template keeps none
    #[arg(long, requires = "from")]
    drop_secrets: bool,
    #[command(flatten)]
    egress: Egress,
    /// Name, instead of the recipe's
    #[arg(long, conflicts_with = "from")]
    name: Option<String>,
    /// Build it even if it was built before; with packages, make its image anew
    #[arg(long)]
    rebuild: bool,
    /// Do not wait until it is ready
    #[arg(long)]
    detach: bool,
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Build(build) => run_build(build, context).await?,
        Action::Ls => {
            let list = context.client().await?.templates().await?;
            context.show(&list, |list| draw(list, output::now_ms(), context.paint));
        }
        Action::Inspect { template } => {
            let template = context.client().await?.template(&template).await?;
            context.show(&template, |template| describe(template, output::now_ms()));
        }
        Action::Rm { templates } => {
            let client = context.client().await?;
            for template in &templates {
                client.delete_template(template).await?;
            }
            context.show(&json!({ "removed": templates }), |_| String::new());
        }
    }
    Ok(())
}

async fn run_build(build: Build, context: &Context) -> Result<(), Failure> {
    let mut progress = Progress::new();
    let built = make(&build, context, &mut progress).await;
    progress.clear();
    let Some(template) = built? else {
        return Err(Failure::usage(format!("the template {BASE_TEMPLATE} is there in every node"))
            .next("`ramet new` creates from it; copy its recipe under another name to change it"));
    };
    if template.state == TemplateState::Failed {
        let reason = template.reason.clone().unwrap_or_default();
        return Err(Failure::new(format!("the template {} failed: {reason}", template.name))
            .next(format!("`ramet template inspect {}` shows its log", template.name)));
    }
    context.show(&template, |template| {
        let state = match template.state {
            TemplateState::Building => "is being built".to_owned(),
            _ => format!(
                "ready, {}, built in {}",
                output::bytes(template.size_bytes),
                output::micros(template.build_ms.saturating_mul(1000))
            ),
        };
        format!("{}  {}\n", context.paint.bold(&template.name), context.paint.dim(&state))
    });
    Ok(())
}

/// The template, when it is built; nothing if it is the node's own.
async fn make(
    build: &Build,
    context: &Context,
    progress: &mut Progress,
) -> Result<Option<Template>, Failure> {
    let request = match &build.from {
        Some(_) => (of_sandbox(build), None),
        None => {
            let (mut recipe, place) = image::read(&build.recipe)?;
            recipe.name = build.name.clone().unwrap_or(recipe.name);
            let mut request = of_recipe(&recipe, &place, build.rebuild)?;
            request.network = build.egress.request().or(request.network);
            (request, Some(recipe))
        }
    };
    let (mut request, recipe) = request;
    if request.name == BASE_TEMPLATE {
        return Ok(None);
    }
    let client = context.client().await?;
    if let Some(recipe) = recipe.filter(Recipe::makes_image) {
        let image = image::make(&client, &recipe, build.rebuild, progress).await?;
        request.image = Some(image.name);
    }
    progress.show(&format!("building the template {}", request.name));
    let template = client.build_template(&request).await?;
    if template.state != TemplateState::Building || build.detach {
        return Ok(Some(template));
    }
    follow(&client, &template.id, context, progress).await.map(Some)
}

/// Shows the log until the build is over.
async fn follow(
    client: &Client,
    id: &str,
    context: &Context,
    progress: &Progress,
) -> Result<Template, Failure> {
    let mut follower = client.follow_template(id).await?;
    let mut line = String::new();
    while let Some(news) = follower.next().await? {
        match news {
            BuildNews::End(template) => return Ok(*template),
            BuildNews::Log(_) if context.json => {}
            BuildNews::Log(log) => {
                line.push_str(&log.text);
                while let Some(end) = line.find('\n') {
                    let whole: String = line.drain(..=end).collect();
                    let shown = output::shorten(&whole, 200);
                    progress.line(&format!("  {}", Paint::stderr().dim(&shown)));
                }
            }
        }
    }
    Ok(client.template(id).await?)
}

fn of_sandbox(build: &Build) -> BuildTemplate {
    BuildTemplate {
        name: build.recipe.clone(),
        sandbox: build.from.clone(),
        checkpoint: build.checkpoint.clone(),
        run: build.run.clone(),
        ready: build.ready.clone(),
        env: values::map(&build.env),
        network: build.egress.request(),
        inherit_secrets: build.drop_secrets.then_some(false),
        rebuild: build.rebuild,
        ..BuildTemplate::default()
    }
}

fn of_recipe(recipe: &Recipe, place: &Path, rebuild: bool) -> Result<BuildTemplate, Failure> {
    let mut files = Vec::new();
    for (path, local) in &recipe.files {
        files.push(file(path, &place.join(local))?);
    }
    let recipe = recipe.clone();
    let allow = recipe.allow.iter().map(|rule| values::rule(rule)).collect::<Result<_, _>>();
    let allow = allow.map_err(|error| Failure::usage(format!("allow: {error}")))?;
    let egress = Egress { egress: recipe.egress, allow };
    Ok(BuildTemplate {
        name: recipe.name,
        image: recipe.image,
        sandbox: None,
        checkpoint: None,
        files,
        run: recipe.run,
        start: recipe.start,
        ready: recipe.ready,
        ready_timeout_s: recipe.ready_timeout_s,
        timeout_s: recipe.timeout_s,
        env: recipe.env,
        user: recipe.user,
        workdir: recipe.workdir,
        vcpus: recipe.vcpus,
        memory_mib: recipe.memory,
        disk_mib: recipe.disk,
        network: egress.request(),
        inherit_secrets: None,
        rebuild,
    })
}

fn file(path: &str, local: &Path) -> Result<TemplateFile, Failure> {
    use std::os::unix::fs::PermissionsExt;
    let cannot = |error: std::io::Error| {
        Failure::because(format!("cannot read {}", local.display()), &error)
    };
    let bytes = std::fs::read(local).map_err(cannot)?;
    let mode = std::fs::metadata(local).map_err(cannot)?.permissions().mode() & 0o777;
    let content = String::from_utf8(bytes).map_err(|_| {
        Failure::new(format!("{} is no text", local.display()))
            .next("put it into the image, or copy it into a sandbox and build --from that")
    })?;
    Ok(TemplateFile {
        path: path.to_owned(),
        content,
        encoding: Encoding::Text,
        mode: Some(format!("{mode:o}")),
    })
}

fn state(template: &Template, paint: Paint) -> String {
    match (template.state, template.warm) {
        (TemplateState::Building, _) => paint.yellow("building"),
        (TemplateState::Ready, true) => paint.green("warm"),
        (TemplateState::Ready, false) => paint.green("ready"),
        (TemplateState::Failed, _) => paint.red("failed"),
    }
}

fn shape(template: &Template) -> String {
    let disk = if template.disk_mib == 0 { 4096 } else { template.disk_mib };
    format!("{}x{}M+{}", template.vcpus, template.memory_mib, output::bytes(u64::from(disk) << 20))
}

fn draw(list: &[Template], now_ms: u64, paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "STATE", "SHAPE", "SIZE", "SANDBOXES", "AGE", "ID"]);
    for template in list {
        let size = match template.size_bytes {
            0 => "-".to_owned(),
            size => output::bytes(size),
        };
        let age = match template.created_at_ms {
            0 => "-".to_owned(),
            at => output::age(at, now_ms),
        };
        table.row(vec![
            template.name.clone(),
            state(template, paint),
            shape(template),
            size,
            template.sandboxes.to_string(),
            age,
            template.id.clone(),
        ]);
    }
    let mut text = table.draw(paint);
    for template in list {
        if let Some(reason) = &template.reason {
            text.push_str(&format!("{}: {}\n", template.name, output::shorten(reason, 200)));
        }
    }
    text
}

fn describe(template: &Template, now_ms: u64) -> String {
    let mut sheet = Sheet::default();
    sheet.line("name", &template.name);
    sheet.line("id", &template.id);
    sheet.line("state", state(template, Paint::stdout()));
    if let Some(reason) = &template.reason {
        sheet.line("reason", output::shorten(reason, 1000));
    }
    sheet.line("shape", shape(template));
    sheet.line("size", output::bytes(template.size_bytes));
    sheet.line("age", output::age(template.created_at_ms, now_ms));
    sheet.line("built in", output::micros(template.build_ms.saturating_mul(1000)));
    sheet.line("sandboxes", template.sandboxes.to_string());
    sheet.line("image", template.image_digest.clone().unwrap_or_default());
    for (key, value) in &template.env {
        sheet.line("env", output::shorten(&format!("{key}={value}"), 200));
    }
    if let Some(recipe) = &template.recipe {
        sheet.line(
            "from",
            recipe.sandbox.clone().or(recipe.image.clone()).unwrap_or("base".to_owned()),
        );
        for line in &recipe.run {
            sheet.line("run", output::shorten(line, 200));
        }
        for line in &recipe.start {
            sheet.line("start", output::shorten(line, 200));
        }
        if let Some(line) = &recipe.ready {
            sheet.line("ready", output::shorten(line, 200));
        }
    }
    let mut text = sheet.finish();
    if !template.log.is_empty() {
        text.push_str("log\n");
        for line in template.log.lines() {
            text.push_str(&format!("  {}\n", output::shorten(line, 400)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_becomes_a_request() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("app.py"), "print(1)").unwrap();
        let text = "name = 'a'\nfiles = { '/srv/app.py' = 'app.py' }\nrun = ['true']\nmemory = '1G'\ndisk = 8192";
        let recipe = Recipe::parse(text).unwrap();
        let request = of_recipe(&recipe, dir.path(), true).unwrap();
        assert_eq!((request.memory_mib, request.disk_mib), (Some(1024), Some(8192)));
        assert_eq!(request.files[0].content, "print(1)");
        assert!(request.rebuild && request.image.is_none());
        let missing = Recipe::parse("name = 'a'\nfiles = { '/x' = 'none' }").unwrap();
        assert!(of_recipe(&missing, dir.path(), false).is_err());
    }
}
