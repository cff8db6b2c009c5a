//! The rules of templates and images, on an engine without machines.

use std::sync::Arc;
use std::time::Duration;

use ramet_proto::api::{
    BuildTemplate, CreateSandbox, ExecRequest, PutImageQuery, Sandbox, Template, TemplateFile,
    TemplateQuery, TemplateState,
};

use crate::auth::Principal;
use crate::host::Host;
use crate::host::fake::Fake;
use crate::host::net::fake::FakeNet;
use crate::sandbox::{Error, Service, Settings, library};
use crate::store::Store;

struct Bed {
    engine: Arc<Fake>,
    store: Arc<Store>,
    service: Service,
    me: Principal,
    data: Arc<tempfile::TempDir>,
}

impl Bed {
    async fn new() -> Self {
        let data = Arc::new(tempfile::tempdir().unwrap());
        Self::on(Fake::new(), Arc::new(Store::in_memory().unwrap()), data).await
    }

    async fn on(engine: Arc<Fake>, store: Arc<Store>, data: Arc<tempfile::TempDir>) -> Self {
        let settings = Settings {
            data_dir: data.path().to_owned(),
            guest_dir: data.path().join("guest"),
            ..Settings::default()
        };
        std::fs::create_dir_all(&settings.guest_dir).unwrap();
        std::fs::write(settings.guest_dir.join("base.erofs"), library::tiny_image(0)).unwrap();
        let service =
            Service::new(Host::new(engine.clone(), FakeNet::new()), store.clone(), settings);
        service.recover().await.unwrap();
        Self { engine, store, service, me: Principal::new("me"), data }
    }

    /// As after a kill -9; the machines are gone too if the whole host went down.
    async fn restart(self, reboot: bool) -> Self {
        self.service.stop.cancel();
        let engine = if reboot { Fake::new() } else { self.engine };
        Self::on(engine, self.store, self.data).await
    }

    async fn build(&self, request: BuildTemplate) -> Template {
        let (template, _) = self.service.build_template(&self.me, request).await.unwrap();
        self.built(&template.id).await
    }

    async fn built(&self, key: &str) -> Template {
        let query = TemplateQuery { wait_s: Some(60) };
        self.service.get_template(&self.me, key, &query).await.unwrap()
    }

    async fn create(&self, request: CreateSandbox) -> Result<Sandbox, Error> {
        Ok(self.service.create(&self.me, request, None).await?.sandbox)
    }

    async fn from(&self, template: &str) -> Result<Sandbox, Error> {
        let template = Some(template.to_owned());
        self.create(CreateSandbox { template, ..CreateSandbox::default() }).await
    }

    async fn run(&self, key: &str, command: &str) -> String {
        let request = ExecRequest { command: Some(command.to_owned()), ..ExecRequest::default() };
        self.service.exec(&self.me, key, request).await.unwrap().stdout
    }

    async fn read(&self, key: &str, path: &str) -> String {
        let mut source = self.service.read_file(&self.me, key, path, None).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = source.next().await.unwrap() {
            text.extend(piece);
        }
        String::from_utf8(text).unwrap()
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Result<ramet_proto::api::Image, Error> {
        let digest = blake3::hash(bytes).to_hex().to_string();
        let query = PutImageQuery { digest };
        let length = Some(bytes.len() as u64);
        let mut sink = self.service.put_image(&self.me, name, query, length).await?;
        for piece in bytes.chunks(1000) {
            sink.data(piece.to_vec()).await?;
        }
        sink.finish().await
    }

    /// Waits until something is so, which happens in the background.
    async fn eventually(&self, so: impl Fn(&Self) -> bool) {
        for _ in 0..1000 {
            if so(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it did not become so");
    }

    fn files(&self, directory: &str) -> usize {
        std::fs::read_dir(self.data.path().join(directory)).map_or(0, Iterator::count)
    }

    fn machines(&self) -> usize {
        self.engine.counts().0
    }
}

fn recipe(name: &str, run: &[&str]) -> BuildTemplate {
    BuildTemplate {
        name: name.to_owned(),
        run: run.iter().map(|&line| line.to_owned()).collect(),
        ..BuildTemplate::default()
    }
}

#[tokio::test]
async fn a_template_is_built_once_and_survives_everything() {
    let bed = Bed::new().await;
    let mut wish = recipe("tool", &["put /a one", "put /b two"]);
    wish.files = vec![TemplateFile {
        path: "/c".to_owned(),
        content: "three".to_owned(),
        ..TemplateFile::default()
    }];
    wish.env.insert("MODE".to_owned(), "fast".to_owned());
    wish.user = Some("user".to_owned());
    wish.workdir = Some("/workspace".to_owned());
    wish.ready = Some("true".to_owned());
    let template = bed.build(wish.clone()).await;
    assert_eq!(template.state, TemplateState::Ready, "{template:?}");
    assert!(template.warm && template.log.contains("$ put /a one") && template.size_bytes > 0);
    assert_eq!(template.recipe.as_ref().unwrap().files[0].content, "");
    assert_eq!((bed.files("templates"), bed.files("images")), (1, 1));
    // The base image, the template, and nothing of the build.
    assert_eq!(bed.machines(), 2);

    let box1 = bed.from("tool").await.unwrap();
    assert_eq!((box1.template.as_str(), box1.user.as_deref()), ("tool", Some("user")));
    assert_eq!(bed.read(&box1.id, "/b").await, "two");
    assert_eq!(bed.read(&box1.id, "/c").await, "three");
    assert_eq!(bed.run(&box1.id, "env MODE").await, "fast");
    assert_eq!(bed.run(&box1.id, "place").await, r#"Some("user") Some("/workspace")"#);
    assert_eq!(bed.built("tool").await.sandboxes, 1);

    let (again, new) = bed.service.build_template(&bed.me, wish.clone()).await.unwrap();
    assert!(!new && again.id == template.id, "the same recipe takes no time");
    let bed = bed.restart(false).await;
    assert_eq!(bed.machines(), 3, "its machine is taken hold of again");
    assert!(bed.built("tool").await.warm);
    let bed = bed.restart(true).await;
    assert!(!bed.built("tool").await.warm, "made when it is needed");
    assert_eq!(bed.machines(), 0);
    let box2 = bed.from("tool").await.unwrap();
    assert_eq!(bed.read(&box2.id, "/a").await, "one");
    assert!(bed.built("tool").await.warm);
}

#[tokio::test]
async fn a_template_of_a_sandbox_has_its_state_and_not_its_secrets() {
    let bed = Bed::new().await;
    let mut wish = CreateSandbox { name: Some("box".to_owned()), ..CreateSandbox::default() };
    wish.secrets.insert("KEY".to_owned(), "s3cret".to_owned());
    wish.env.insert("A".to_owned(), "1".to_owned());
    wish.memory_mib = Some(256);
    bed.create(wish).await.unwrap();
    bed.run("box", "put /state kept").await;
    let sandbox = Some("box".to_owned());
    let inherit_secrets = Some(false);
    let wish = BuildTemplate { sandbox, inherit_secrets, ..recipe("of-box", &[]) };
    let template = bed.build(wish).await;
    assert_eq!((template.state, template.memory_mib), (TemplateState::Ready, 256), "{template:?}");
    bed.run("box", "put /state changed").await;
    let made = bed.from("of-box").await.unwrap();
    assert_eq!((made.memory_mib, made.parent.clone()), (256, None));
    assert_eq!(bed.read(&made.id, "/state").await, "kept");
    assert_eq!(bed.run(&made.id, "env A").await, "1");
    assert_eq!(bed.run(&made.id, "env KEY").await, "");

    let checkpoint = bed.service.checkpoint(&bed.me, "box", Some("then".to_owned())).await.unwrap();
    bed.run("box", "put /state later").await;
    let sandbox = Some("box".to_owned());
    let checkpoint = Some(checkpoint.name);
    let wish = BuildTemplate { sandbox, checkpoint, inherit_secrets, ..recipe("of-then", &[]) };
    assert_eq!(bed.build(wish).await.state, TemplateState::Ready);
    let made = bed.from("of-then").await.unwrap();
    assert_eq!(bed.read(&made.id, "/state").await, "changed");
}

#[tokio::test]
async fn a_build_that_fails_says_why_and_leaves_nothing() {
    let bed = Bed::new().await;
    let template = bed.build(recipe("bad", &["put /a b", "fail"])).await;
    assert_eq!(template.state, TemplateState::Failed);
    let reason = template.reason.unwrap();
    assert!(reason.contains("run[1]") && reason.contains("code 3"), "{reason}");
    assert!(template.log.contains("failed"));
    assert_eq!((bed.files("templates"), bed.files("images"), bed.machines()), (0, 0, 1));
    assert!(matches!(bed.from("bad").await, Err(Error::WrongState(_))));
    let mut never = recipe("never", &[]);
    (never.ready, never.ready_timeout_s) = (Some("fail".to_owned()), Some(1));
    let reason = bed.build(never).await.reason.unwrap();
    assert!(reason.contains("not ready within 1 s"), "{reason}");
    // The next attempt takes its place.
    assert_eq!(bed.build(recipe("bad", &["put /a b"])).await.state, TemplateState::Ready);
    let names: Vec<String> =
        bed.service.list_templates(&bed.me).templates.into_iter().map(|t| t.name).collect();
    assert_eq!(names, ["base", "never", "bad"]);
}

#[tokio::test]
async fn a_build_that_is_cut_short_is_cleaned_up() {
    let bed = Bed::new().await;
    let (slow, new) = bed.service.build_template(&bed.me, recipe("slow", &["wait"])).await.unwrap();
    assert!(new && slow.state == TemplateState::Building);
    assert!(matches!(bed.from("slow").await, Err(Error::NotReady(_))));
    let (same, new) = bed.service.build_template(&bed.me, recipe("slow", &["wait"])).await.unwrap();
    assert!(!new && same.id == slow.id);
    let other = bed.service.build_template(&bed.me, recipe("slow", &["put /a b"])).await;
    assert!(matches!(other, Err(Error::WrongState(_))));
    bed.service.delete_template(&bed.me, "slow").await.unwrap();
    assert!(matches!(bed.from("slow").await, Err(Error::NotFound { .. })));
    bed.eventually(|bed| (bed.machines(), bed.files("templates")) == (1, 0)).await;

    // As if the node was killed in the middle.
    bed.service.build_template(&bed.me, recipe("half", &["wait"])).await.unwrap();
    let mut rows = bed.store.templates().unwrap();
    let row = rows.pop().unwrap();
    std::fs::create_dir_all(bed.data.path().join("templates").join(&row.id)).unwrap();
    std::fs::create_dir_all(bed.data.path().join(format!("templates/.{}.7", row.id))).unwrap();
    let store = Arc::new(Store::in_memory().unwrap());
    store.put_template(&row, &[]).unwrap();
    let bed = Bed::on(Fake::new(), store, bed.data).await;
    let half = bed.built("half").await;
    assert_eq!(half.state, TemplateState::Failed);
    assert!(half.reason.unwrap().contains("ended"));
    assert_eq!(bed.files("templates"), 0);
}

#[tokio::test]
async fn a_name_goes_over_when_the_new_one_is_ready() {
    let bed = Bed::new().await;
    let first = bed.build(recipe("tool", &["put /v 1"])).await;
    let old = bed.from("tool").await.unwrap();
    assert_eq!(bed.build(recipe("tool", &["fail"])).await.state, TemplateState::Failed);
    let still = bed.from("tool").await.unwrap();
    assert_eq!(bed.read(&still.id, "/v").await, "1", "a failed attempt changes nothing");
    let second = bed.build(recipe("tool", &["put /v 2"])).await;
    assert_ne!(first.id, second.id);
    bed.eventually(|bed| bed.files("templates") == 1).await;
    let new = bed.from("tool").await.unwrap();
    assert_eq!(
        (bed.read(&new.id, "/v").await, bed.read(&old.id, "/v").await),
        ("2".into(), "1".into())
    );
    bed.service.delete_template(&bed.me, "tool").await.unwrap();
    assert_eq!((bed.files("templates"), bed.files("images")), (0, 1), "sandboxes need the image");
    assert_eq!(bed.run(&new.id, "hostname").await, new.name, "its sandboxes go on");
    assert!(matches!(bed.from("tool").await, Err(Error::NotFound { .. })));
    let rebuilt = bed.build(BuildTemplate { rebuild: true, ..recipe("tool", &["put /v 2"]) }).await;
    assert_eq!(rebuilt.state, TemplateState::Ready);
    let again = bed.build(BuildTemplate { rebuild: true, ..recipe("tool", &["put /v 2"]) }).await;
    assert_ne!(rebuilt.id, again.id);
}

#[tokio::test]
async fn damaged_files_are_told_and_a_lost_machine_is_made_again() {
    let bed = Bed::new().await;
    let template = bed.build(recipe("tool", &["put /v 1"])).await;
    let machine = bed.store.templates().unwrap()[0].machine.clone().unwrap();
    bed.engine.crash(&machine);
    bed.eventually(|bed| bed.store.templates().unwrap()[0].machine.is_none()).await;
    assert!(bed.from("tool").await.is_ok());
    let bed = bed.restart(true).await;
    std::fs::write(bed.data.path().join(format!("templates/{}/state", template.id)), "x").unwrap();
    assert!(
        matches!(bed.from("tool").await, Err(Error::WrongState(text)) if text.contains("damaged"))
    );
    assert_eq!(bed.built("tool").await.state, TemplateState::Failed);
    let (again, new) =
        bed.service.build_template(&bed.me, recipe("tool", &["put /v 1"])).await.unwrap();
    assert!(new && bed.built(&again.id).await.state == TemplateState::Ready);
}

#[tokio::test]
async fn images_are_kept_once_and_as_long_as_they_are_needed() {
    let bed = Bed::new().await;
    let one = library::tiny_image(1);
    let image = bed.put("py", &one).await.unwrap();
    assert_eq!((image.size_bytes, bed.files("images")), (8192, 1));
    bed.put("same", &one).await.unwrap();
    assert_eq!(bed.files("images"), 1);
    let linked = PutImageQuery { digest: image.digest.clone() };
    let sink = bed.service.put_image(&bed.me, "linked", linked.clone(), Some(0)).await.unwrap();
    assert_eq!(sink.finish().await.unwrap().size_bytes, 8192);
    let stranger = Principal::new("you");
    let sink = bed.service.put_image(&stranger, "x", linked, Some(0)).await.unwrap();
    assert!(
        matches!(sink.finish().await, Err(Error::Bad(_))),
        "a digest alone gives nobody an image"
    );
    assert!(bed.service.get_image(&stranger, "py").is_err());

    let image = Some("py".to_owned());
    let booted = CreateSandbox { image: image.clone(), ..CreateSandbox::default() };
    let booted = bed.create(booted).await.unwrap();
    assert_eq!(booted.template, "image:py");
    let template = bed.build(BuildTemplate { image, ..recipe("tool", &[]) }).await;
    assert_eq!(template.state, TemplateState::Ready);
    for name in ["py", "same", "linked"] {
        assert!(matches!(bed.service.delete_image(&bed.me, name).await, Err(Error::InUse(_))));
    }
    // Another image of the name leaves the template what it has.
    bed.put("py", &library::tiny_image(2)).await.unwrap();
    assert_eq!(bed.files("images"), 2);
    bed.service.delete_template(&bed.me, "tool").await.unwrap();
    for name in ["py", "same", "linked"] {
        bed.service.delete_image(&bed.me, name).await.unwrap();
    }
    assert_eq!(bed.files("images"), 1, "a sandbox that is paused goes on from it");
    assert_eq!(bed.machines(), 1, "only the sandbox is left");
    bed.service.delete(&bed.me, &booted.id).await.unwrap();
    assert_eq!(bed.files("images"), 0);
    assert!(bed.service.delete_image(&bed.me, "py").await.is_err());
}

#[tokio::test]
async fn wishes_that_cannot_be_met_are_refused() {
    let bed = Bed::new().await;
    bed.build(recipe("tool", &[])).await;
    let with = |change: fn(&mut BuildTemplate)| {
        let mut wish = recipe("x", &[]);
        change(&mut wish);
        wish
    };
    let wishes = [
        with(|wish| wish.name = "base".to_owned()),
        with(|wish| wish.name = "A b".to_owned()),
        with(|wish| wish.name = "tmpl-1".to_owned()),
        with(|wish| wish.image = Some("none".to_owned())),
        with(|wish| wish.sandbox = Some("none".to_owned())),
        with(|wish| wish.checkpoint = Some("none".to_owned())),
        with(|wish| wish.run = vec![String::new()]),
        with(|wish| wish.run = vec!["true".to_owned(); 257]),
        with(|wish| wish.ready = Some("a\0".to_owned())),
        with(|wish| wish.timeout_s = Some(0)),
        with(|wish| wish.workdir = Some("x".to_owned())),
        with(|wish| wish.vcpus = Some(9)),
        with(|wish| wish.disk_mib = Some(1)),
        with(|wish| {
            let path = "relative".to_owned();
            wish.files = vec![TemplateFile { path, ..TemplateFile::default() }];
        }),
    ];
    for wish in wishes {
        let refused = bed.service.build_template(&bed.me, wish.clone()).await;
        assert!(refused.is_err(), "{wish:?}");
    }
    let other_shape = CreateSandbox {
        template: Some("tool".to_owned()),
        memory_mib: Some(1024),
        ..CreateSandbox::default()
    };
    assert!(matches!(bed.create(other_shape).await, Err(Error::Unsupported(_))));
    let both = CreateSandbox {
        template: Some("tool".to_owned()),
        image: Some("base".to_owned()),
        ..CreateSandbox::default()
    };
    assert!(matches!(bed.create(both).await, Err(Error::Bad(_))));
    assert!(matches!(bed.service.delete_template(&bed.me, "base").await, Err(Error::Bad(_))));
    assert!(matches!(bed.service.delete_image(&bed.me, "base").await, Err(Error::Bad(_))));
    let stranger = Principal::new("you");
    let query = TemplateQuery::default();
    assert!(bed.service.get_template(&stranger, "tool", &query).await.is_err());
    assert!(bed.service.delete_template(&stranger, "tool").await.is_err());
    assert!(matches!(bed.put("bad", b"no image").await, Err(Error::Bad(_))));
    assert!(bed.put("base", &library::tiny_image(1)).await.is_err());
}
