//! `ramet image`: root filesystems, made of packages on this machine and handed to the node.

use std::path::Path;

use clap::Subcommand;
use ramet_client::Client;
use ramet_client::api::Image;
use ramet_image::{Recipe, cache};
use serde_json::json;
use tokio_util::io::InspectReader;

use crate::context::Context;
use crate::failure::Failure;
use crate::node::home::Home;
use crate::output::{self, Paint, Table};
use crate::progress::Progress;

const HELP: &str = "\
A recipe is a file, or the name of one that comes with ramet: python, devbox. Its `packages`, `pip` and `npm`
become the image, beside the packages of the base image; the rest of it is for `ramet template build`.
Making an image takes root, mmdebstrap and erofs-utils, and the network that this machine's apt, pip and npm use.

Examples:
  ramet image build python
  ramet image build ./mine.toml --rebuild
  ramet image ls
  ramet new box --image python
  ramet image rm python";

/// Arguments.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make an image of a recipe's packages and hand it to the node
    Build {
        /// File or name of a recipe
        recipe: String,
        /// Make it anew, with the newest packages
        #[arg(long)]
        rebuild: bool,
    },
    /// List images
    Ls,
    /// Show an image
    Inspect {
        /// Image
        image: String,
    },
    /// Delete images that no template is built on
    Rm {
        /// Images
        #[arg(required = true)]
        images: Vec<String>,
    },
}

/// Does it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Build { recipe, rebuild } => {
            let (recipe, _) = read(&recipe)?;
            if !recipe.makes_image() {
                return Err(Failure::usage(format!(
                    "the recipe {} names no packages",
                    recipe.name
                ))
                .next("add packages, pip or npm; a template needs no image of its own"));
            }
            let client = context.client().await?;
            let mut progress = Progress::new();
            let image = make(&client, &recipe, rebuild, &mut progress).await;
            progress.clear();
            context.show(&image?, |image| {
                let size = context.paint.dim(&output::bytes(image.size_bytes));
                format!("{}  {size}\n", context.paint.bold(&image.name))
            });
        }
        Action::Ls => {
            let list = context.client().await?.images().await?;
            context.show(&list, |list| draw(list, output::now_ms(), context.paint));
        }
        Action::Inspect { image } => {
            let image = context.client().await?.image(&image).await?;
            context.show(&image, |image| describe(image, output::now_ms()));
        }
        Action::Rm { images } => {
            let client = context.client().await?;
            for image in &images {
                client.delete_image(image).await?;
            }
            context.show(&json!({ "removed": images }), |_| String::new());
        }
    }
    Ok(())
}

/// The recipe that is meant, and the directory that its files are in.
pub fn read(what: &str) -> Result<(Recipe, std::path::PathBuf), Failure> {
    let path = Path::new(what);
    let is_file = path.is_file() || what.contains('/') || what.ends_with(".toml");
    let (text, place) = match Recipe::shipped(what).filter(|_| !is_file) {
        Some(text) => (text.to_owned(), Path::new(".")),
        None if is_file => {
            let text = std::fs::read_to_string(path);
            let text =
                text.map_err(|error| Failure::because(format!("cannot read {what}"), &error))?;
            (text, path.parent().unwrap_or(Path::new(".")))
        }
        None => {
            let names: Vec<&str> =
                ramet_image::recipe::SHIPPED.iter().map(|(name, _)| *name).collect();
            return Err(Failure::usage(format!("{what} is neither a file nor a recipe"))
                .next(format!("recipes that come with ramet: {}", names.join(", "))));
        }
    };
    let recipe =
        Recipe::parse(&text).map_err(|error| Failure::usage(format!("{what}: {error}")))?;
    Ok((recipe, place.to_owned()))
}

/// The image of a recipe, on the node: made and handed over unless it is there.
pub async fn make(
    client: &Client,
    recipe: &Recipe,
    rebuild: bool,
    progress: &mut Progress,
) -> Result<Image, Failure> {
    let name = &recipe.name;
    progress.show(&format!("making the image {name}"));
    let home = Home::find()?;
    home.make()?;
    let (own, directory, details) = (recipe.clone(), home.images_dir(), progress.details());
    let work = move || cache::image(&own, &directory, rebuild, &details);
    let made = tokio::task::spawn_blocking(work).await;
    let made = made.map_err(|error| Failure::because("the build broke off", &error))?;
    let made = made.map_err(|error| Failure::because(format!("no image {name}"), &error))?;
    let digest = &made.note.digest;
    let there = client.images().await?;
    if let Some(same) = there.iter().find(|one| one.name == *name && one.digest == *digest) {
        return Ok(same.clone());
    }
    if there.iter().any(|one| one.digest == *digest && !one.built_in) {
        return Ok(client.name_image(name, digest).await?);
    }
    progress.show(&format!("handing the image {name} to the node"));
    let file = tokio::fs::File::open(&made.path).await;
    let file = file.map_err(|error| Failure::because("cannot read the image", &error))?;
    let (size, details) = (made.note.size, progress.details());
    let mut sent = 0;
    let file = InspectReader::new(file, move |piece| {
        sent += piece.len() as u64;
        details(&format!("{} of {}", output::bytes(sent), output::bytes(size)));
    });
    Ok(client.put_image(name, digest, size, file).await?)
}

fn draw(list: &[Image], now_ms: u64, paint: Paint) -> String {
    let mut table = Table::new(&["NAME", "SIZE", "AGE", "DIGEST", "TEMPLATES"]);
    for image in list {
        table.row(vec![
            image.name.clone(),
            output::bytes(image.size_bytes),
            output::age(image.created_at_ms, now_ms),
            image.digest.chars().take(12).collect(),
            if image.templates.is_empty() { "-".to_owned() } else { image.templates.join(",") },
        ]);
    }
    table.draw(paint)
}

fn describe(image: &Image, now_ms: u64) -> String {
    format!(
        "name       {}\ndigest     {}\nsize       {}\nage        {}\ntemplates  {}\n",
        image.name,
        image.digest,
        output::bytes(image.size_bytes),
        output::age(image.created_at_ms, now_ms),
        if image.templates.is_empty() { "-".to_owned() } else { image.templates.join(", ") },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_a_file_or_a_name() {
        assert_eq!(read("python").unwrap().0.name, "python");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, "name = 'mine'\nrun = ['true']").unwrap();
        let (recipe, place) = read(path.to_str().unwrap()).unwrap();
        assert_eq!((recipe.name.as_str(), place.as_path()), ("mine", dir.path()));
        std::fs::write(&path, "name = 'mine'\nrum = ['true']").unwrap();
        let failure = read(path.to_str().unwrap()).unwrap_err();
        assert!(failure.to_string().contains("rum"), "{failure}");
        for wrong in ["perl", "./none.toml", "none.toml"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
