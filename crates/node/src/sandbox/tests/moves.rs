//! Commits and templates between two nodes, with machines that are not real and everything else that is.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ramet_proto::api::{
    BuildTemplate, CreateSandbox, GcRequest, Moved, PackQuery, PullRequest, PushRequest,
    TemplateQuery, TemplateState, UnpackQuery,
};
use ramet_proto::needs::Needs;
use ramet_store::{SigningKey, VerifyingKey};
use tokio::io::AsyncReadExt;

use super::Bed;
use crate::host::fake::Fake;
use crate::host::net::fake::FakeNet;
use crate::sandbox::durable::moves::What;
use crate::sandbox::{Error, Settings, tiny_image};
use crate::store::Store;

/// A node with a base image and an empty disk of its own.
async fn node(mark: u8, settings: Settings) -> Bed {
    let data = Arc::new(tempfile::tempdir().unwrap());
    let guest = data.path().join("guest");
    fs::create_dir(&guest).unwrap();
    fs::write(guest.join("base.erofs"), tiny_image(mark)).unwrap();
    let disk = data.path().join("disk");
    fs::write(&disk, vec![mark; 9000]).unwrap();
    let engine = Fake::new();
    engine.set_disk(disk);
    let remotes = vec!["file://".to_owned()];
    let settings = Settings { guest_dir: guest, remotes, ..settings };
    Bed::on(engine, FakeNet::new(), Arc::new(Store::in_memory().unwrap()), data, settings).await
}

fn place(directory: &Path, name: &str) -> String {
    format!("file://{}#{name}", directory.display())
}

fn commit(key: &str) -> What {
    What::Commit(key.to_owned())
}

impl Bed {
    async fn push(&self, what: What, remote: &str) -> Result<Moved, Error> {
        let request = PushRequest { remote: remote.to_owned() };
        self.service.push(&self.me, what, request).await?.done.await.unwrap()
    }

    async fn pull(&self, remote: &str, name: Option<&str>) -> Result<Moved, Error> {
        let (remote, name) = (remote.to_owned(), name.map(str::to_owned));
        self.service
            .pull(&self.me, PullRequest { remote, name, disk: false })
            .await?
            .done
            .await
            .unwrap()
    }

    async fn pack(&self, what: What, have: &[&str]) -> Vec<u8> {
        let query = PackQuery { have: Some(have.join(",")) };
        let mut pack = self.service.pack(&self.me, what, &query).await.unwrap();
        let mut bytes = Vec::new();
        pack.bytes.read_to_end(&mut bytes).await.unwrap();
        pack.done.await.unwrap().unwrap();
        bytes
    }

    async fn unpack(&self, bytes: Vec<u8>) -> Result<Moved, Error> {
        let stream = std::io::Cursor::new(bytes);
        self.service.unpack(&self.me, stream, UnpackQuery::default()).await
    }

    /// Nothing is known, and nothing is in the store.
    async fn is_empty(&self) -> bool {
        let roots = self.data.path().join("store/roots");
        let known = self.service.commits(&self.me, &Default::default()).await.unwrap();
        let kept = fs::read_dir(roots).is_ok_and(|mut entries| entries.next().is_some());
        known.commits.is_empty() && !kept
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_brings_what_it_is_over() {
    let (a, b) = (node(1, Settings::default()).await, node(2, Settings::default()).await);
    let remote = tempfile::tempdir().unwrap();
    a.create("box").await;
    a.write("box", "one").await;
    let first = a.commit("box", "first").await;
    let pushed = a.push(commit(&first.id), &place(remote.path(), "v1")).await.unwrap();
    assert!(pushed.progress.moved_chunks > 0 && !pushed.known, "{pushed:?}");
    let pulled = b.pull(&place(remote.path(), "v1"), Some("theirs")).await.unwrap();
    let seen = pulled.commit.unwrap();
    assert_eq!(
        (&seen.id, seen.owner.as_str(), seen.refs.as_slice()),
        (&first.id, "me", &["theirs".to_owned()][..])
    );
    let made = b.check_out("theirs").await.unwrap();
    assert_eq!(b.read(&made).await, "one");
    let origin = b.engine.restored().unwrap().origin;
    assert_eq!(fs::read(origin.root.unwrap()).unwrap(), tiny_image(1), "the image of its node");
    assert_eq!(fs::read(origin.data.unwrap()).unwrap(), vec![1; 9000], "the disk of its node");
    // What goes on from it is over the same, wherever it is made.
    b.write(&made, "two").await;
    let second = b.commit(&made, "second").await;
    assert_eq!(second.ancestors, std::slice::from_ref(&first.id));
    let again = b.push(commit(&second.id), &place(remote.path(), "v2")).await.unwrap();
    assert!(again.progress.moved_chunks < again.progress.chunks, "{again:?}");
    let back = a.pull(&place(remote.path(), "v2"), None).await.unwrap();
    assert_eq!(back.commit.unwrap().id, second.id);
    let made = a.check_out(&second.id).await.unwrap();
    assert_eq!(a.read(&made).await, "two");
    let origin = a.engine.restored().unwrap().origin;
    assert_eq!((origin.data, fs::read(origin.root.unwrap()).unwrap()), (None, tiny_image(1)));
    // What is here does not come again, whatever the remote has become.
    fs::remove_dir_all(remote.path().join("chunks")).unwrap();
    assert!(a.pull(&place(remote.path(), "v2"), None).await.unwrap().known);
    let restarted = b.restart().await;
    let made = restarted.check_out(&first.id).await.unwrap();
    assert_eq!(restarted.read(&made).await, "one", "what it is over outlives the node");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_leaves_out_what_the_receiver_has() {
    let (a, b) = (node(1, Settings::default()).await, node(2, Settings::default()).await);
    a.create("box").await;
    a.write("box", &"text ".repeat(10_000)).await;
    let first = a.commit("box", "first").await;
    let second = a.commit("box", "second").await;
    let whole = a.pack(commit(&first.id), &[]).await;
    let small = a.pack(commit(&second.id), &[&first.id, "cm-unknown"]).await;
    assert!(matches!(b.unpack(small.clone()).await, Err(Error::Bad(_))));
    assert!(b.is_empty().await, "nothing of it is kept");
    assert!(matches!(b.unpack(whole[..whole.len() / 2].to_vec()).await, Err(Error::Bad(_))));
    assert!(b.is_empty().await);
    assert_eq!(b.unpack(whole.clone()).await.unwrap().commit.unwrap().id, first.id);
    assert!(b.unpack(whole).await.unwrap().known);
    b.unpack(small).await.unwrap();
    let made = b.check_out(&second.id).await.unwrap();
    assert!(b.read(&made).await.starts_with("text text"));
}

fn keys() -> (Arc<SigningKey>, VerifyingKey) {
    let (secret, public) = SigningKey::generate().unwrap();
    let secret = SigningKey::parse(&secret, None).unwrap();
    (Arc::new(secret), VerifyingKey::parse(&public).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_signed_by_the_right_key_is_not_kept() {
    let ((secret, public), (_, stranger)) = (keys(), keys());
    let signing = Settings { sign: Some(secret), ..Settings::default() };
    let trusting =
        |key: VerifyingKey| Settings { trusted: Some(Arc::from([key])), ..Settings::default() };
    let (plain, signed) = (node(1, Settings::default()).await, node(1, signing).await);
    let remote = tempfile::tempdir().unwrap();
    for (bed, name) in [(&plain, "plain"), (&signed, "signed")] {
        bed.create("box").await;
        bed.write("box", name).await;
        let made = bed.commit("box", name).await;
        bed.push(commit(&made.id), &place(remote.path(), name)).await.unwrap();
        let pack = bed.pack(commit(&made.id), &[]).await;
        let wrong = node(2, trusting(stranger.clone())).await;
        let refused = wrong.pull(&place(remote.path(), name), None).await;
        assert!(matches!(refused, Err(Error::Untrusted(_))), "{refused:?}");
        assert!(matches!(wrong.unpack(pack.clone()).await, Err(Error::Untrusted(_))));
        assert!(wrong.is_empty().await);
        let right = node(2, trusting(public.clone())).await;
        let pulled = right.pull(&place(remote.path(), name), None).await;
        assert_eq!(pulled.is_ok(), name == "signed", "{pulled:?}");
        let right = node(2, trusting(public.clone())).await;
        assert_eq!(right.unpack(pack).await.is_ok(), name == "signed");
        // Who asks for no signature passes on what there is.
        let passing = node(2, Settings::default()).await;
        passing.pull(&place(remote.path(), name), None).await.unwrap();
        let passed = passing.pack(commit(&made.id), &[]).await;
        let right = node(2, trusting(public.clone())).await;
        assert_eq!(right.unpack(passed).await.is_ok(), name == "signed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_of_another_processor_is_refused_before_it_moves() {
    let (a, b) = (node(1, Settings::default()).await, node(2, Settings::default()).await);
    let mut needs = Needs { format: 2, agent: 1, ..Needs::default() };
    needs.processor.vendor = "GenuineIntel".to_owned();
    a.engine.set_needs(needs.clone());
    let remote = tempfile::tempdir().unwrap();
    a.create("box").await;
    let made = a.commit("box", "there").await;
    assert_eq!(made.stored.unwrap().needs, Some(needs.clone()));
    a.push(commit(&made.id), &place(remote.path(), "v1")).await.unwrap();
    needs.processor.vendor = "AuthenticAMD".to_owned();
    b.engine.set_needs(needs);
    let pack = a.pack(commit(&made.id), &[]).await;
    for refused in [b.pull(&place(remote.path(), "v1"), None).await, b.unpack(pack).await] {
        let Err(Error::Incompatible(text)) = refused else { panic!("{refused:?}") };
        assert!(text.contains("GenuineIntel") && text.contains("ramet checkout --disk"), "{text}");
    }
    assert!(b.is_empty().await);
    // For its files it is taken all the same.
    let (remote, name) = (place(remote.path(), "v1"), None);
    let request = PullRequest { remote, name, disk: true };
    b.service.pull(&b.me, request).await.unwrap().done.await.unwrap().unwrap();
    assert!(matches!(b.check_out(&made.id).await, Err(Error::Incompatible(_))));
    let commit = Some(made.id.clone());
    let request = CreateSandbox { commit, disk: true, ..CreateSandbox::default() };
    b.service.create(&b.me, request, None).await.unwrap();
    // The host itself may have changed as well.
    a.engine.set_needs(Needs { format: 3, ..Needs::default() });
    assert!(matches!(a.check_out(&made.id).await, Err(Error::Incompatible(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_moves_with_its_image() {
    let (a, b) = (node(1, Settings::default()).await, node(2, Settings::default()).await);
    let remote = tempfile::tempdir().unwrap();
    let recipe = BuildTemplate {
        name: "tool".to_owned(),
        run: vec!["put /v 1".to_owned()],
        ..BuildTemplate::default()
    };
    a.service.build_template(&a.me, recipe).await.unwrap();
    let wait = TemplateQuery { wait_s: Some(20) };
    let built = a.service.get_template(&a.me, "tool", &wait).await.unwrap();
    assert_eq!(built.state, TemplateState::Ready);
    let what = || What::Template("tool".to_owned());
    a.push(what(), &place(remote.path(), "tool")).await.unwrap();
    let pulled = b.pull(&place(remote.path(), "tool"), Some("theirs")).await.unwrap();
    let seen = pulled.template.unwrap();
    assert_eq!((seen.id.as_str(), seen.name.as_str()), (built.id.as_str(), "theirs"));
    let template = Some("theirs".to_owned());
    let made = b
        .service
        .create(&b.me, CreateSandbox { template, ..CreateSandbox::default() }, None)
        .await
        .unwrap()
        .sandbox;
    let origin = b.engine.restored().unwrap().origin;
    assert_eq!(fs::read(origin.root.unwrap()).unwrap(), tiny_image(1));
    assert_eq!(fs::read(origin.data.unwrap()).unwrap(), vec![1; 9000]);
    assert_eq!(b.commit(&made.id, "of a template").await.template, "theirs");
    assert!(b.pull(&place(remote.path(), "tool"), None).await.unwrap().known);
    let b = b.restart().await;
    assert_eq!(
        b.service.get_template(&b.me, "theirs", &wait).await.unwrap().state,
        TemplateState::Ready
    );
    let c = node(3, Settings::default()).await;
    let pack = b.pack(What::Template("theirs".to_owned()), &[]).await;
    assert_eq!(c.unpack(pack).await.unwrap().template.unwrap().name, "tool");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_makes_the_node_reach_where_it_should_not() {
    let a = node(1, Settings::default()).await;
    a.create("box").await;
    let made = a.commit("box", "x").await;
    let outside = tempfile::tempdir().unwrap();
    let own = format!("file://{}/store#x", a.data.path().display());
    let refused =
        ["oci://127.0.0.1:1/x", "s3://bucket/x", "http://127.0.0.1/", "", "file://x", &own];
    for remote in refused {
        let pushed = a.push(commit(&made.id), remote).await;
        assert!(matches!(pushed, Err(Error::Bad(_))), "{remote}: {pushed:?}");
        assert!(a.pull(remote, None).await.is_err(), "{remote}");
    }
    let nothing = a.pull(&place(outside.path(), "nothing"), None).await;
    assert!(matches!(nothing, Err(Error::NotFound { .. })), "{nothing:?}");
    let missing = a.push(commit("cm-0000"), &place(outside.path(), "x")).await;
    assert!(matches!(missing, Err(Error::NotFound { .. })));
    a.push(commit(&made.id), &place(outside.path(), "x")).await.unwrap();
    let b = node(2, Settings::default()).await;
    b.create("box").await;
    let other = b.commit("box", "y").await;
    let request = ramet_proto::api::PutRef {
        commit: other.id,
        kind: ramet_proto::api::RefKind::Tag,
        force: false,
    };
    b.service.put_ref(&b.me, "taken", request).await.unwrap();
    let taken = b.pull(&place(outside.path(), "x"), Some("taken")).await;
    assert!(matches!(taken, Err(Error::Exists(_))), "{taken:?}");
    assert!(b.service.get_commit(&b.me, &made.id).await.is_err(), "it did not come");
}

#[tokio::test(flavor = "multi_thread")]
async fn images_in_the_store_go_with_the_last_commit() {
    let a = node(1, Settings::default()).await;
    a.create("box").await;
    let made = a.commit("box", "x").await;
    a.pack(commit(&made.id), &[]).await;
    let images =
        || fs::read_dir(a.data.path().join("store/roots/me/image")).map_or(0, Iterator::count);
    let gc = async || a.service.store_gc(&a.me, GcRequest::default()).await.unwrap();
    gc().await;
    assert_eq!(images(), 1);
    a.service.delete_commit(&a.me, &made.id).await.unwrap();
    gc().await;
    assert_eq!(images(), 0);
}
