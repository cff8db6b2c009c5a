//! Templates and images: built from sandboxes and recipes, used, gone over a restart, replaced, deleted.
//!
//! The large images of the recipes that come with ramet are not made here; that their recipes read well is.

use std::fs;
use std::time::Duration;

use ramet_client::api::{BuildTemplate, Code, CreateSandbox, ListQuery, Template, TemplateState};
use ramet_client::{BuildNews, Error};
use ramet_image::Recipe;
use ramet_tests::linux;
use ramet_tests::patience::stretched;

use crate::bed::{Node, Sandbox, directory, eventually, node, refusal, wait};
use crate::{Story, stories, truth};

pub const STORIES: &[Story] = stories![
    the_recipes_that_come_with_ramet_read_well,
    a_recipe_becomes_a_template,
    a_build_that_fails_says_why,
    what_is_no_image_is_refused,
    a_template_outlives_its_node_and_its_sandbox,
];

/// How long a build may take in an emulated host.
const BUILD: Duration = Duration::from_secs(400);

fn build(node: &Node, request: &BuildTemplate) -> Template {
    let built: Result<Template, Error> = wait(async {
        let begun = node.client.build_template(request).await?;
        node.client.await_template(&begun.id, stretched(BUILD)).await
    });
    built.unwrap_or_else(|error| node.fail(&error))
}

fn from<'n>(node: &'n Node, template: &str) -> Sandbox<'n> {
    let template = Some(template.to_owned());
    node.create_as(CreateSandbox { template, ..CreateSandbox::default() })
}

fn the_recipes_that_come_with_ramet_read_well() {
    for (name, text) in ramet_image::recipe::SHIPPED {
        let recipe = Recipe::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(recipe.name, name);
        assert!(recipe.makes_image() || recipe.image.is_some(), "{name}");
    }
}

fn a_recipe_becomes_a_template() {
    let place = directory("recipe");
    let file = place.join("small.toml");
    fs::write(place.join("note.txt"), "from beside the recipe\n").unwrap();
    let recipe = "name = 'small'\nfiles = { '/srv/note' = 'note.txt' }\nrun = ['id -un > who; echo from the build']\n\
                  start = ['sleep 1000']\nready = 'pgrep -x sleep'\nuser = 'user'\nworkdir = '/workspace/small'\n\
                  env = { MODE = 'fast' }\nmemory = '256M'\ndisk = '1G'\n";
    fs::write(&file, recipe).unwrap();
    let path = file.to_str().unwrap();
    let built = node().ramet(&["template", "build", path]);
    assert!(built.err.contains("from the build"), "its log is shown: {built:?}");
    built.ok();
    let again = node().ramet(&["--json", "template", "build", path]).json();
    let first = node().ramet(&["--json", "template", "inspect", "small"]).json();
    assert_eq!((&again["id"], &again["state"]), (&first["id"], &"ready".into()), "built once");

    let small = from(node(), "small");
    let told = small.sh("id -un; pwd; cat who; cat /srv/note; echo $MODE; pgrep -cx sleep");
    assert_eq!(told, "user\n/workspace/small\nuser\nfrom beside the recipe\nfast\n1");
    let disk: u64 = small.sh("df -m --output=avail / | tail -1").trim().parse().unwrap();
    assert!((900..=1030).contains(&disk), "{disk} MiB");
    assert_eq!(small.shown().template, "small");
    let other = CreateSandbox {
        template: Some("small".to_owned()),
        memory_mib: Some(512),
        ..CreateSandbox::default()
    };
    assert_eq!(refusal(wait(node().client.create(&other))), Code::UnsupportedOption);

    fs::write(&file, recipe.replace("ready", "redy")).unwrap();
    let refused = node().ramet(&["template", "build", path]);
    assert!(refused.code == 2 && refused.err.contains("redy"), "{refused:?}");
    node().ramet(&["template", "rm", "small"]).ok();
    assert_eq!(small.sh("cat who"), "user", "its sandboxes go on");
    assert_eq!(refusal(wait(node().client.template("small"))), Code::NotFound);
}

fn a_build_that_fails_says_why() {
    let wish = BuildTemplate {
        name: "broken".to_owned(),
        run: vec!["echo some words; exit 7".to_owned()],
        ..BuildTemplate::default()
    };
    let begun = wait(node().client.build_template(&wish)).unwrap();
    let mut log = String::new();
    let end = wait(async {
        let mut follower = node().client.follow_template(&begun.id).await?;
        while let Some(news) = follower.next().await? {
            match news {
                BuildNews::Log(piece) => log.push_str(&piece.text),
                BuildNews::End(template) => return Ok(Some(template)),
            }
        }
        Ok::<_, Error>(None)
    });
    let end = end.unwrap().expect("an end");
    assert_eq!(end.state, TemplateState::Failed);
    assert!(end.reason.unwrap().contains("code 7") && log.contains("some words"), "{log}");
    let made = wait(node().client.create(&CreateSandbox {
        template: Some("broken".to_owned()),
        ..CreateSandbox::default()
    }));
    assert_eq!(refusal(made), Code::WrongState);
    wait(node().client.delete_template("broken")).unwrap();
}

fn what_is_no_image_is_refused() {
    let client = &node().client;
    let bytes = vec![7; 8192];
    let digest = blake3::hash(&bytes).to_hex().to_string();
    let put = |digest: &str, bytes: Vec<u8>| {
        let length = bytes.len() as u64;
        wait(client.put_image("bad", digest, length, std::io::Cursor::new(bytes)))
    };
    assert_eq!(refusal(put(&digest, bytes.clone())), Code::BadRequest);
    assert_eq!(refusal(put(&"0".repeat(64), bytes)), Code::BadRequest);
    assert_eq!(refusal(wait(client.name_image("bad", &digest))), Code::BadRequest);
    assert_eq!(refusal(wait(client.delete_image("base"))), Code::BadRequest);
    let images = wait(client.images()).unwrap();
    assert!(images.iter().any(|image| image.name == "base" && image.built_in), "{images:?}");
    assert!(images.iter().all(|image| image.name != "bad"), "{images:?}");
}

fn a_template_outlives_its_node_and_its_sandbox() {
    let node = Node::new("templates", &[]);
    let source = node.create("source");
    source.sh("echo kept > /root/state; nohup sleep 1000 >/dev/null 2>&1 &");
    let wish = BuildTemplate {
        name: "warm".to_owned(),
        sandbox: Some("source".to_owned()),
        run: vec!["echo more >> /root/state".to_owned()],
        ..BuildTemplate::default()
    };
    let template = build(&node, &wish);
    assert_eq!(template.state, TemplateState::Ready, "{template:?}");
    assert_eq!(source.get("/root/state"), "kept\n", "the sandbox went on");
    source.delete();
    let check = |sandbox: &Sandbox<'_>| {
        assert_eq!(sandbox.get("/root/state"), "kept\nmore\n");
        assert_eq!(sandbox.sh("pgrep -cx sleep"), "1", "its processes go on");
        assert_ne!(sandbox.sh("hostname"), "source");
    };
    check(&from(&node, "warm"));

    // As after a kill -9 of the node alone, and then as after a reboot.
    node.restart();
    check(&from(&node, "warm"));
    node.kill();
    for pid in linux::processes_of(node.home()).unwrap() {
        let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    eventually("all are gone", || linux::processes_of(node.home()).unwrap().is_empty());
    node.start();
    let cold = wait(node.client.template("warm")).unwrap();
    assert_eq!((cold.state, cold.warm), (TemplateState::Ready, false), "made when it is needed");
    let last = from(&node, "warm");
    check(&last);
    assert!(wait(node.client.template("warm")).unwrap().warm);

    // A build that the node does not survive leaves nothing.
    let slow = BuildTemplate {
        name: "half".to_owned(),
        sandbox: Some(last.id.clone()),
        run: vec!["sleep 1000".to_owned()],
        ..BuildTemplate::default()
    };
    wait(node.client.build_template(&slow)).unwrap();
    node.restart();
    let half = wait(node.client.template("half")).unwrap();
    assert_eq!(half.state, TemplateState::Failed);
    let kept = fs::read_dir(node.home().join("templates")).unwrap().count();
    assert_eq!(kept, 1, "one template has files");

    wait(node.client.delete_template("warm")).unwrap();
    check(&last);
    assert_eq!(fs::read_dir(node.home().join("templates")).unwrap().count(), 0);
    // Its image stays as long as a sandbox is over it.
    let images = || fs::read_dir(node.home().join("images")).unwrap().count();
    assert_eq!(images(), 1);
    for sandbox in wait(node.client.list_all(&ListQuery::default())).unwrap() {
        wait(node.client.delete(&sandbox.id)).unwrap();
    }
    assert_eq!(images(), 0);
    truth::holds(&node);
}
