//! What is in the store, with machines that are not real and a store that is.

use ramet_proto::api::{
    CommitState, CommitsQuery, CreateCommit, CreateSandbox, DiffRequest, ForkRequest, GcRequest,
    PauseRequest, PutRef, RefKind, State,
};

use super::{Bed, won};
use crate::sandbox::Error;

impl Bed {
    pub(super) async fn pause(&self, key: &str) -> ramet_proto::api::Sandbox {
        self.service.pause(&self.me, key, PauseRequest::default()).await.unwrap()
    }

    pub(super) async fn commit(&self, key: &str, message: &str) -> ramet_proto::api::Commit {
        let request = CreateCommit {
            message: Some(message.to_owned()),
            wait: true,
            ..CreateCommit::default()
        };
        self.service.commit_sandbox(&self.me, key, request).await.unwrap()
    }

    async fn checkpoint(&self, key: &str, name: &str) -> ramet_proto::api::Checkpoint {
        let name = Some(name.to_owned());
        self.service.checkpoint(&self.me, key, name).await.unwrap()
    }

    pub(super) async fn check_out(&self, commit: &str) -> Result<String, Error> {
        let commit = Some(commit.to_owned());
        let request = CreateSandbox { commit, ..CreateSandbox::default() };
        Ok(self.service.create(&self.me, request, None).await?.sandbox.id)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_in_the_store_has_no_machine() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write("a", "kept").await;
    let before = bed.machines();
    let paused = bed.pause("a").await;
    assert_eq!((paused.state, bed.machines()), (State::Paused, before - 1));
    assert!(paused.stored.is_some_and(|stored| stored.warm && stored.written_bytes > 0));
    assert_eq!(bed.pause("a").await.state, State::Paused, "once more changes nothing");
    let figures = bed.service.stats(&bed.me, "a").await.unwrap();
    assert_eq!((figures.pss_kib, figures.stored.is_some()), (0, true));
    // It is forked without being resumed, by a stand-in that goes again.
    let kids = bed.fork("a", &["one", "two"]).await;
    assert_eq!(bed.read("two").await, "kept");
    assert_eq!(bed.state("a"), State::Paused);
    assert_eq!(bed.machines(), before + 2, "two children and a stand-in");
    bed.service.end_stand_ins(u64::MAX).await;
    assert_eq!(bed.machines(), before + 1);
    bed.write("one", "other").await;
    bed.service.promote(&bed.me, "a", &won(&kids[0].id)).await.unwrap();
    assert_eq!((bed.state("a"), bed.read("a").await.as_str()), (State::Running, "other"));
    bed.pause("a").await;
    bed.service.resume(&bed.me, "a").await.unwrap();
    assert_eq!(bed.read("a").await, "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_the_store_outlives_the_node_and_all_machines() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write("a", "kept").await;
    bed.pause("a").await;
    let bed = bed.restart().await;
    assert_eq!(bed.state("a"), State::Paused);
    bed.service.resume(&bed.me, "a").await.unwrap();
    assert_eq!(bed.read("a").await, "kept");
    bed.service.delete(&bed.me, "a").await.unwrap();
    let usage = bed.service.store_usage(&bed.me).await.unwrap();
    assert_eq!((usage.paused, usage.logical_bytes, usage.cache_bytes), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_needs_it_resumes_it() {
    let bed = Bed::new().await;
    let name = Some("a".to_owned());
    let request = CreateSandbox { name, auto_resume: true, ..CreateSandbox::default() };
    bed.service.create(&bed.me, request, None).await.unwrap();
    bed.write("a", "kept").await;
    bed.pause("a").await;
    assert_eq!(bed.read("a").await, "kept");
    assert_eq!(bed.state("a"), State::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_fails_changes_nothing() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write("a", "kept").await;
    // A file where the states would be.
    std::fs::write(bed.data.path().join("states"), "").unwrap();
    let paused = bed.service.pause(&bed.me, "a", PauseRequest::default()).await;
    assert!(paused.is_err());
    assert_eq!((bed.state("a"), bed.read("a").await.as_str()), (State::Running, "kept"));
    std::fs::remove_file(bed.data.path().join("states")).unwrap();
    assert_eq!(bed.pause("a").await.state, State::Paused, "the store is tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_have_ancestors_and_names() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write("a", "one").await;
    let first = bed.commit("a", "first").await;
    assert_eq!((first.state, first.ancestors.len()), (CommitState::Durable, 0));
    bed.write("a", "two").await;
    let second = bed.commit("a", "second").await;
    assert_eq!(second.ancestors, std::slice::from_ref(&first.id));
    let of = |of: &str| CommitsQuery { of: Some(of.to_owned()), ..CommitsQuery::default() };
    let log = bed.service.commits(&bed.me, &of("a")).await.unwrap().commits;
    assert_eq!(log.iter().map(|one| &one.id).collect::<Vec<_>>(), [&second.id, &first.id]);
    let tag = |commit: &str, force| PutRef { commit: commit.to_owned(), kind: RefKind::Tag, force };
    bed.service.put_ref(&bed.me, "good", tag(&first.id, false)).await.unwrap();
    let taken = bed.service.put_ref(&bed.me, "good", tag(&second.id, false)).await;
    assert!(matches!(taken, Err(Error::Exists(_))), "{taken:?}");
    let old = bed.check_out("good").await.unwrap();
    assert_eq!(bed.read(&old).await, "one");
    assert_eq!(bed.service.get(&bed.me, &old).unwrap().commit, Some(first.id.clone()));
    let used = bed.service.delete_commit(&bed.me, &first.id).await;
    assert!(matches!(used, Err(Error::InUse(_))), "{used:?}");
    bed.service.put_ref(&bed.me, "good", tag(&second.id, true)).await.unwrap();
    bed.service.delete_commit(&bed.me, &first.id).await.unwrap();
    assert!(matches!(bed.check_out(&first.id).await, Err(Error::NotFound { .. })));
    // Its descendants still name it, and need nothing of it.
    let new = bed.check_out(&second.id[..8]).await.unwrap();
    assert_eq!(bed.read(&new).await, "two");
    assert_eq!(bed.commit(&new, "third").await.ancestors, [second.id, first.id]);
    let gone = bed.service.delete_ref(&bed.me, "nobody").await;
    assert!(matches!(gone, Err(Error::NotFound { .. })));
    let dry = GcRequest { dry_run: true, copies: false };
    assert!(bed.service.store_gc(&bed.me, dry).await.unwrap().kept > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_anothers_commits() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let commit = bed.commit("a", "mine").await;
    let you = crate::auth::Principal::new("you");
    let seen = bed.service.get_commit(&you, &commit.id).await;
    assert!(matches!(seen, Err(Error::NotFound { .. })));
    let list = bed.service.commits(&you, &CommitsQuery::default()).await.unwrap();
    assert!(list.commits.is_empty());
    let request = CreateSandbox { commit: Some(commit.id.clone()), ..CreateSandbox::default() };
    assert!(bed.service.create(&you, request, None).await.is_err());
    let request = DiffRequest { against: commit.id, ..DiffRequest::default() };
    assert!(bed.service.diff(&you, "a", request).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_with_the_same_store_learns_of_commits() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write("a", "shared").await;
    let commit = bed.commit("a", "for others").await;
    let other = Bed::new().await;
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([bed.data.path().join("store"), other.data.path().join("store")])
        .status();
    assert!(copied.unwrap().success());
    let seen = other.service.get_commit(&other.me, &commit.id).await.unwrap();
    assert_eq!((seen.message.as_deref(), seen.state), (Some("for others"), CommitState::Durable));
    let made = other.check_out(&commit.id).await;
    // The machines of the fake engine do not wait for their files; what is told of the commit is what counts.
    assert!(made.is_ok(), "{made:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_give_up_memory_and_come_back() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write("a", "first").await;
    let first = bed.checkpoint("a", "first").await;
    bed.write("a", "second").await;
    let second = bed.checkpoint("a", "second").await;
    let machines = bed.machines();
    bed.engine.set_available(1);
    let refused = bed.service.create(&bed.me, CreateSandbox::default(), None).await;
    assert!(matches!(refused, Err(Error::NoCapacity(_))), "{refused:?}");
    assert_eq!(bed.machines(), machines - 2, "both are in the store");
    bed.engine.set_available(1 << 20);
    let list = bed.service.checkpoints(&bed.me, "a").unwrap().checkpoints;
    assert!(list.iter().all(|one| !one.in_memory && one.stored.is_some()), "{list:?}");
    // Also for a node that was started again, whose machines are gone.
    let bed = bed.restart().await;
    bed.service.rewind(&bed.me, "a", first.id.clone()).await.unwrap();
    assert_eq!(bed.read("a").await, "first");
    let request = ForkRequest { checkpoint: Some(second.id.clone()), ..ForkRequest::default() };
    let problem = |error: &Error| panic!("{error:?}");
    let forked = bed.service.fork(&bed.me, "a", request, None, problem).await.unwrap();
    let child = forked.children[0].sandbox.as_ref().unwrap().id.clone();
    assert_eq!(bed.read(&child).await, "second");
    // They are in memory again, and written no second time when they go once more.
    let list = bed.service.checkpoints(&bed.me, "a").unwrap().checkpoints;
    assert!(list.iter().all(|one| one.in_memory), "{list:?}");
    bed.service.delete_checkpoint(&bed.me, "a", &first.id).await.unwrap();
    bed.service.delete(&bed.me, "a").await.unwrap();
    let usage = bed.service.store_usage(&bed.me).await.unwrap();
    assert_eq!(usage.logical_bytes, 0, "nothing keeps them: {usage:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_a_delete_did_not_reach_goes_later() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.create("b").await;
    let gone = bed.pause("a").await;
    bed.pause("b").await;
    // As if the store had not answered when it was deleted.
    let store = bed.data.path().join("store");
    let keep = bed.data.path().join("kept");
    let copied = |from: &std::path::Path, to: &std::path::Path| {
        let status = std::process::Command::new("cp").arg("-a").args([from, to]).status();
        assert!(status.unwrap().success());
    };
    copied(&store, &keep);
    bed.service.delete(&bed.me, "a").await.unwrap();
    std::fs::remove_dir_all(&store).unwrap();
    copied(&keep, &store);
    assert_eq!(bed.service.forget_strays().await.unwrap(), 1);
    assert_eq!(bed.service.forget_strays().await.unwrap(), 0);
    assert!(gone.stored.is_some());
    bed.service.resume(&bed.me, "b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_the_files_boots_anew() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write("a", "kept").await;
    let request = CreateCommit { disk: true, wait: true, ..CreateCommit::default() };
    let files = bed.service.commit_sandbox(&bed.me, "a", request.clone()).await.unwrap();
    assert!(files.disk && files.state == CommitState::Durable, "{files:?}");
    let boots = bed.engine.counts().1;
    let made = bed.check_out(&files.id).await.unwrap();
    assert_eq!((bed.read(&made).await.as_str(), bed.engine.counts().1), ("kept", boots + 1));
    // A whole commit has files as well, and nothing is fetched of its memory.
    let whole = bed.commit("a", "all of it").await;
    assert!(!whole.disk);
    bed.service.store_gc(&bed.me, GcRequest { dry_run: false, copies: true }).await.unwrap();
    let commit = Some(whole.id);
    let request_disk = CreateSandbox { commit, disk: true, ..CreateSandbox::default() };
    let made = bed.service.create(&bed.me, request_disk, None).await.unwrap().sandbox.id;
    assert_eq!((bed.read(&made).await.as_str(), bed.engine.counts().1), ("kept", boots + 2));
    // What is only in memory would be missing.
    bed.pause("a").await;
    let refused = bed.service.commit_sandbox(&bed.me, "a", request).await;
    assert!(matches!(refused, Err(Error::WrongState(_))), "{refused:?}");
    let alone = CreateSandbox { disk: true, ..CreateSandbox::default() };
    let refused = bed.service.create(&bed.me, alone, None).await;
    assert!(matches!(refused, Err(Error::Bad(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_of_the_files_boots_anew() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write("a", "kept").await;
    let files = PauseRequest { disk: true, ..PauseRequest::default() };
    let paused = bed.service.pause(&bed.me, "a", files.clone()).await.unwrap();
    assert!(paused.state == State::Paused && paused.stored.unwrap().disk);
    let bed = bed.restart().await;
    let boots = bed.engine.counts().1;
    // A commit of it is one of files; whatever goes on from it has booted.
    let commit = bed.commit("a", "files").await;
    assert!(commit.disk, "{commit:?}");
    bed.fork("a", &["b"]).await;
    assert_eq!((bed.read("b").await.as_str(), bed.engine.counts().1), ("kept", boots + 1));
    bed.service.end_stand_ins(u64::MAX).await;
    let resumed = bed.service.resume(&bed.me, "a").await.unwrap();
    assert_eq!((resumed.state, bed.engine.counts().1), (State::Running, boots + 2));
    assert_eq!(bed.read("a").await, "kept");
    // From then on it is like any other.
    let whole = bed.pause("a").await.stored.unwrap();
    assert!(!whole.disk);
    let refused = bed.service.pause(&bed.me, "a", files.clone()).await;
    assert!(matches!(refused, Err(Error::WrongState(_))), "{refused:?}");
    let both = PauseRequest { memory: true, ..files };
    let refused = bed.service.pause(&bed.me, "b", both).await;
    assert!(matches!(refused, Err(Error::Bad(_))), "{refused:?}");
    assert_eq!(bed.state("b"), State::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let long = CreateCommit { message: Some("x".repeat(5000)), ..CreateCommit::default() };
    assert!(matches!(bed.service.commit_sandbox(&bed.me, "a", long).await, Err(Error::Bad(_))));
    for name in ["", "UP", "a/b", "..", "cm-0123", "-x", &"x".repeat(64)] {
        let request = PutRef { commit: "x".to_owned(), kind: RefKind::Tag, force: false };
        let refused = bed.service.put_ref(&bed.me, name, request).await;
        assert!(matches!(refused, Err(Error::Bad(_))), "{name:?}: {refused:?}");
    }
    let commit = Some("nothing".to_owned());
    let template = Some("base".to_owned());
    let both = CreateSandbox { commit, template, ..CreateSandbox::default() };
    assert!(matches!(bed.service.create(&bed.me, both, None).await, Err(Error::Bad(_))));
    assert!(matches!(bed.check_out("nothing").await, Err(Error::NotFound { .. })));
}
