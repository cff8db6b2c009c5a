//! Who may have which volume, on an engine without machines.

use ramet_proto::api::{
    AttachVolume, BuildTemplate, CreateCommit, CreateSandbox, CreateVolume, ForkRequest,
    PauseRequest, State, Volume,
    VolumeMode::{self, ReadOnly, ReadWrite, Snapshot},
};

use super::{Bed, won};
use crate::auth::Principal;
use crate::http::problem_of;
use crate::sandbox::Error;
use crate::store::Change;

fn at(volume: &str, path: &str, read_only: bool) -> AttachVolume {
    AttachVolume { volume: volume.to_owned(), path: path.to_owned(), read_only }
}

impl Bed {
    async fn volume(&self, name: &str) -> Volume {
        let request = CreateVolume { name: name.to_owned(), size_mib: None };
        self.service.create_volume(&self.me, request).await.unwrap()
    }

    async fn attach(&self, key: &str, volume: &str, read_only: bool) -> Result<(), Error> {
        let request = at(volume, &format!("/mnt/{volume}"), read_only);
        self.service.attach_volume(&self.me, key, request).await.map(drop)
    }

    async fn detach(&self, key: &str, volume: &str) -> Result<(), Error> {
        self.service.detach_volume(&self.me, key, volume).await.map(drop)
    }

    /// Names and modes of a sandbox's volumes.
    fn has(&self, key: &str) -> Vec<(String, VolumeMode)> {
        let volumes = self.service.get(&self.me, key).unwrap().volumes.into_iter();
        volumes.map(|one| (one.volume, one.mode)).collect()
    }

    async fn users(&self, volume: &str) -> Vec<String> {
        let volume = self.service.get_volume(&self.me, volume).await.unwrap();
        volume.used_by.into_iter().map(|user| user.sandbox_name).collect()
    }
}

fn data(mode: VolumeMode) -> Vec<(String, VolumeMode)> {
    vec![("data".to_owned(), mode)]
}

fn in_use(result: Result<(), Error>, who: &str) {
    match result {
        Err(Error::InUse(text)) => assert!(text.contains(who), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn volumes_are_made_listed_and_removed() {
    let bed = Bed::new().await;
    let made = bed.volume("data").await;
    assert_eq!((made.size_mib, made.used_by.len()), (1024, 0));
    let again = CreateVolume { name: "data".to_owned(), size_mib: None };
    let taken = bed.service.create_volume(&bed.me, again).await;
    assert!(matches!(taken, Err(Error::Exists(_))), "{taken:?}");
    for (name, size_mib) in [("Data", 64), ("small", 1), ("large", u32::MAX)] {
        let request = CreateVolume { name: name.to_owned(), size_mib: Some(size_mib) };
        let refused = bed.service.create_volume(&bed.me, request).await;
        assert!(matches!(refused, Err(Error::Bad(_))), "{refused:?}");
    }
    let other = Principal::new("other");
    let foreign = bed.service.get_volume(&other, "data").await;
    assert!(matches!(foreign, Err(Error::NotFound { .. })), "{foreign:?}");
    bed.volume("another").await;
    let list = bed.service.list_volumes(&bed.me).await.unwrap().volumes;
    let names: Vec<&str> = list.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["another", "data"]);
    let bed = bed.restart().await;
    assert_eq!(bed.service.get_volume(&bed.me, &made.id).await.unwrap(), made);
    let directory = bed.data.path().join("volumes").join(&made.id);
    assert!(directory.is_dir());
    bed.service.delete_volume(&bed.me, "data").await.unwrap();
    assert!(!directory.exists());
}

#[tokio::test]
async fn many_read_or_one_writes() {
    let bed = Bed::new().await;
    for name in ["a", "b", "c"] {
        bed.create(name).await;
    }
    let id = bed.volume("data").await.id;
    bed.attach("a", "data", false).await.unwrap();
    assert_eq!(bed.engine.media("a"), [(id.clone(), true)]);
    in_use(bed.attach("b", "data", false).await, "a (sbx-");
    in_use(bed.attach("b", "data", true).await, "writes");
    in_use(bed.service.delete_volume(&bed.me, "data").await, "/mnt/data");
    bed.detach("a", "data").await.unwrap();
    assert!(bed.engine.media("a").is_empty() && bed.has("a").is_empty());
    for name in ["a", "b"] {
        bed.attach(name, "data", true).await.unwrap();
        assert_eq!(bed.has(name), data(ReadOnly));
    }
    in_use(bed.attach("c", "data", false).await, "reads");
    assert_eq!(bed.users("data").await, ["a", "b"]);
    bed.service.delete(&bed.me, "a").await.unwrap();
    bed.service.delete(&bed.me, "b").await.unwrap();
    bed.attach("c", "data", false).await.unwrap();
    let missing = bed.detach("c", "other").await;
    assert!(matches!(missing, Err(Error::NotFound { .. })), "{missing:?}");
    bed.service.delete(&bed.me, "c").await.unwrap();
    bed.service.delete_volume(&bed.me, "data").await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_mounted_is_as_it_was() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.volume("data").await;
    let refused = bed.service.attach_volume(&bed.me, "a", at("data", "/refused", false)).await;
    assert!(matches!(refused, Err(Error::Guest(_))), "{refused:?}");
    assert!(bed.engine.media("a").is_empty() && bed.has("a").is_empty());
    assert!(bed.users("data").await.is_empty());
    for path in ["mnt", "/", "/mnt/../x", "/a\0b", ""] {
        let refused = bed.service.attach_volume(&bed.me, "a", at("data", path, false)).await;
        assert!(matches!(refused, Err(Error::Bad(_))), "{path:?}: {refused:?}");
    }
    let refused = bed.service.attach_volume(&bed.me, "a", at("none", "/mnt", false)).await;
    assert!(matches!(refused, Err(Error::NotFound { what: "volume", .. })), "{refused:?}");
    bed.attach("a", "data", false).await.unwrap();
    for name in ["one", "two", "three", "four"] {
        bed.volume(name).await;
    }
    let same_path = bed.service.attach_volume(&bed.me, "a", at("one", "/mnt/data/", false)).await;
    assert!(matches!(same_path, Err(Error::Exists(_))), "{same_path:?}");
    let twice = bed.service.attach_volume(&bed.me, "a", at("data", "/mnt/x", true)).await;
    assert!(matches!(twice, Err(Error::Exists(_))), "{twice:?}");
    for name in ["one", "two", "three"] {
        bed.attach("a", name, true).await.unwrap();
    }
    let full = bed.attach("a", "four", true).await;
    assert!(matches!(full, Err(Error::TooMany(_))), "{full:?}");
    bed.detach("a", "/mnt/two").await.unwrap();
    bed.attach("a", "four", true).await.unwrap();
}

#[tokio::test]
async fn what_is_in_use_inside_stays() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.volume("data").await;
    bed.attach("a", "data", false).await.unwrap();
    bed.run("a", "put /busy x").await;
    in_use(bed.detach("a", "data").await, "/mnt/data");
    assert_eq!(bed.has("a"), data(ReadWrite));
    // Its end releases it all the same.
    bed.service.delete(&bed.me, "a").await.unwrap();
    assert!(bed.users("data").await.is_empty());
}

#[tokio::test]
async fn a_new_sandbox_has_all_of_its_volumes_or_is_not_made() {
    let bed = Bed::new().await;
    bed.volume("data").await;
    bed.volume("models").await;
    let wish = |name: &str, volumes: &[AttachVolume]| CreateSandbox {
        name: Some(name.to_owned()),
        volumes: volumes.to_vec(),
        ..CreateSandbox::default()
    };
    let volumes = [at("data", "/data", false), at("models", "/models", true)];
    let made = bed.service.create(&bed.me, wish("a", &volumes), None).await.unwrap();
    assert_eq!(made.sandbox.volumes.len(), 2);
    let before = bed.machines();
    for wrong in [
        vec![at("models", "/models", true), at("data", "/data", true)],
        vec![at("models", "/refused", true)],
        vec![at("models", "/a", true), at("models", "/b", true)],
        vec![at("none", "/a", true)],
    ] {
        let refused = bed.service.create(&bed.me, wish("b", &wrong), None).await;
        assert!(refused.is_err(), "{wrong:?}");
        assert_eq!(bed.machines(), before, "{wrong:?}");
        assert_eq!(bed.users("models").await, ["a"]);
    }
    bed.service.create(&bed.me, wish("b", &[at("models", "/m", true)]), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_share_what_is_read_and_copy_what_is_written() {
    let bed = Bed::new().await;
    bed.create("reader").await;
    bed.create("writer").await;
    bed.volume("data").await;
    bed.volume("own").await;
    bed.attach("reader", "data", true).await.unwrap();
    bed.attach("writer", "own", false).await.unwrap();
    let children = [bed.fork("reader", &["r"]).await, bed.fork("writer", &["w"]).await].concat();
    assert_eq!(children[0].volumes[0].mode, ReadOnly);
    assert_eq!(children[1].volumes[0].mode, Snapshot);
    assert_eq!((bed.users("data").await.len(), bed.users("own").await.len()), (2, 1));
    assert_eq!(bed.fork("w", &["ww"]).await[0].volumes[0].mode, Snapshot);
    // The reader is gone, its child still reads.
    bed.service.delete(&bed.me, "reader").await.unwrap();
    in_use(bed.attach("writer", "data", false).await, "r (sbx-");
    // What is no volume any more can be given back, and the volume got beside it.
    bed.detach("w", "own").await.unwrap();
    assert!(bed.has("w").is_empty());
    // Checkpoints and stored sandboxes claim nothing for their children.
    bed.service.checkpoint(&bed.me, "r", Some("moment".to_owned())).await.unwrap();
    let checkpoint = Some("moment".to_owned());
    let request = ForkRequest { checkpoint, ..ForkRequest::default() };
    let forked = bed.service.fork(&bed.me, "r", request, None, problem_of).await.unwrap();
    assert_eq!(forked.children[0].sandbox.as_ref().unwrap().volumes[0].mode, Snapshot);
    bed.service.pause(&bed.me, "r", PauseRequest::default()).await.unwrap();
    assert_eq!(bed.fork("r", &["rr"]).await[0].volumes[0].mode, Snapshot);
    assert_eq!(bed.users("data").await, ["r"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_is_neither_rewound_nor_promoted() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.volume("data").await;
    let before = bed.service.checkpoint(&bed.me, "a", None).await.unwrap().id;
    bed.attach("a", "data", false).await.unwrap();
    let after = bed.service.checkpoint(&bed.me, "a", None).await.unwrap().id;
    let kids = bed.fork("a", &["kid"]).await;
    let refused = bed.service.rewind(&bed.me, "a", before.clone()).await;
    assert!(
        matches!(&refused, Err(Error::WrongState(text)) if text.contains("detach")),
        "{refused:?}"
    );
    let refused = bed.service.promote(&bed.me, "a", &won(&kids[0].id)).await;
    assert!(matches!(&refused, Err(Error::WrongState(_))), "{refused:?}");
    let template = BuildTemplate {
        name: "t".to_owned(),
        sandbox: Some("a".to_owned()),
        ..BuildTemplate::default()
    };
    let refused = bed.service.build_template(&bed.me, template).await;
    assert!(matches!(&refused, Err(Error::WrongState(_))), "{refused:?}");
    bed.detach("a", "data").await.unwrap();
    let rewound = bed.service.rewind(&bed.me, "a", after).await.unwrap().sandbox;
    assert_eq!(rewound.volumes[0].mode, Snapshot);
    assert!(bed.users("data").await.is_empty());
    let rewound = bed.service.rewind(&bed.me, "a", before).await.unwrap().sandbox;
    assert!(rewound.volumes.is_empty());
    let promoted = bed.service.promote(&bed.me, "a", &won(&kids[0].id)).await.unwrap().sandbox;
    assert_eq!(promoted.volumes[0].mode, Snapshot);
    // What is read stays so, as long as it is the same.
    bed.create("b").await;
    bed.attach("b", "data", true).await.unwrap();
    let reading = bed.service.checkpoint(&bed.me, "b", None).await.unwrap().id;
    let rewound = bed.service.rewind(&bed.me, "b", reading.clone()).await.unwrap().sandbox;
    assert_eq!(rewound.volumes[0].mode, ReadOnly);
    bed.detach("b", "data").await.unwrap();
    let rewound = bed.service.rewind(&bed.me, "b", reading).await.unwrap().sandbox;
    assert_eq!(rewound.volumes[0].mode, Snapshot);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_writer_goes_on_writing() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.create("b").await;
    let id = bed.volume("data").await.id;
    bed.attach("a", "data", false).await.unwrap();
    bed.service.pause(&bed.me, "a", PauseRequest::default()).await.unwrap();
    let refused = bed.detach("a", "data").await;
    assert!(matches!(refused, Err(Error::WrongState(_))), "{refused:?}");
    let bed = bed.restart().await;
    in_use(bed.attach("b", "data", true).await, "writes");
    // A fork makes a stand-in, which is not what goes on.
    assert_eq!(bed.fork("a", &["copy"]).await[0].volumes[0].mode, Snapshot);
    bed.service.resume(&bed.me, "a").await.unwrap();
    assert_eq!(bed.engine.media("a"), [(id.clone(), true)]);
    assert_eq!(bed.has("a"), data(ReadWrite));
    let commit = CreateCommit { wait: true, ..CreateCommit::default() };
    let commit = bed.service.commit_sandbox(&bed.me, "a", commit).await.unwrap().id;
    let request = CreateSandbox { commit: Some(commit), ..CreateSandbox::default() };
    let checked_out = bed.service.create(&bed.me, request, None).await.unwrap().sandbox;
    assert_eq!(checked_out.volumes[0].mode, Snapshot);
    // A volume that was written behind its back is free, and the sandbox has a copy of what it knew.
    bed.service.pause(&bed.me, "a", PauseRequest::default()).await.unwrap();
    bed.engine.change(bed.data.path().join("volumes").join(&id));
    bed.service.resume(&bed.me, "a").await.unwrap();
    assert_eq!((bed.state("a"), bed.has("a")), (State::Running, data(Snapshot)));
    bed.attach("b", "data", false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_lets_go() {
    let bed = Bed::new().await;
    let id = bed.create("a").await.id;
    bed.create("b").await;
    bed.volume("data").await;
    bed.attach("a", "data", false).await.unwrap();
    let machine = bed.service.registry().get(&id).unwrap().machine.clone().unwrap();
    bed.engine.crash(&machine);
    bed.eventually("it has failed", |bed| bed.state("a") == State::Failed).await;
    assert!(bed.has("a").is_empty());
    bed.attach("b", "data", false).await.unwrap();
    // So does what vanished while the node was away.
    let record = bed.service.find(&bed.me, "b").unwrap();
    bed.engine.vanish(&record.machine.unwrap());
    let bed = bed.restart().await;
    assert_eq!(bed.state("b"), State::Failed);
    assert!(bed.users("data").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_half_done_is_undone() {
    let bed = Bed::new().await;
    let id = bed.create("a").await.id;
    bed.volume("data").await;
    bed.attach("a", "data", false).await.unwrap();
    // As if the node had been killed on the way.
    let mut record = bed.service.registry().get(&id).unwrap().clone();
    record.volumes[0].changing = true;
    bed.service.commit(|_| Ok(Change { sandboxes: vec![record], ..Change::default() })).unwrap();
    let stray = bed.data.path().join("volumes/vol-half");
    std::fs::create_dir(&stray).unwrap();
    std::fs::write(stray.join("base"), "half").unwrap();
    let bed = bed.restart().await;
    bed.eventually("it is taken out", |bed| bed.engine.media("a").is_empty()).await;
    bed.eventually("it is free", |bed| bed.service.registry().get(&id).unwrap().volumes.is_empty())
        .await;
    assert!(!stray.exists());
    bed.attach("a", "data", false).await.unwrap();
}
