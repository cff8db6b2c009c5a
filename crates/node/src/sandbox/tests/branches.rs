//! Diff, automatic checkpoints, and forks from inside.

use ramet_proto::api::{
    AutoCheckpoints, Checkpoint, CreateSandbox, DiffAspect, DiffKind, DiffRequest, NoPatch,
    PauseRequest, UpdateSandbox,
};

use super::*;
use crate::clock::now_ms;
use crate::host::MachineId;

impl Bed {
    async fn write_at(&self, key: &str, path: &str, bytes: &[u8]) {
        let query = WriteQuery { path: path.to_owned(), ..WriteQuery::default() };
        let mut sink = self.service.write_file(&self.me, key, query).await.unwrap();
        sink.data(bytes).await.unwrap();
        sink.finish().await.unwrap();
    }

    async fn diff(&self, against: &str, key: &str) -> Result<Vec<(DiffKind, String)>, Error> {
        let request = DiffRequest { against: against.to_owned(), ..DiffRequest::default() };
        let diff = self.service.diff(&self.me, key, request).await?;
        Ok(diff.files.into_iter().map(|file| (file.change, file.path)).collect())
    }

    async fn create_with_undo(&self, name: &str, keep: u32, memory_mib: u64) -> Sandbox {
        let request = CreateSandbox {
            name: Some(name.to_owned()),
            auto_checkpoints: Some(AutoCheckpoints { keep, memory_mib }),
            ..CreateSandbox::default()
        };
        self.service.create(&self.me, request, None).await.unwrap().sandbox
    }

    fn checkpoints(&self, key: &str) -> Vec<Checkpoint> {
        self.service.checkpoints(&self.me, key).unwrap().checkpoints
    }

    fn commands(&self, key: &str) -> Vec<String> {
        self.checkpoints(key).into_iter().filter_map(|one| one.command).collect()
    }

    /// Runs a command, and waits until what is too much has gone.
    async fn step(&self, key: &str, command: &str) {
        self.run(key, command).await;
        let id = self.service.get(&self.me, key).unwrap().id;
        self.service.trim(&id).await.unwrap();
        // Moments are told apart by the millisecond.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }

    fn machine(&self, key: &str) -> MachineId {
        self.service.find(&self.me, key).unwrap().machine.unwrap()
    }
}

#[tokio::test]
async fn a_diff_tells_what_one_side_has_and_leaves_nothing_behind() {
    let bed = Bed::new().await;
    bed.create("source").await;
    bed.write_at("source", "/home/both", b"same").await;
    bed.write_at("source", "/home/changed", b"old!").await;
    bed.write_at("source", "/home/removed", b"x").await;
    bed.write_at("source", "/etc/outside", b"x").await;
    bed.fork("source", &["child"]).await;
    bed.write_at("child", "/home/changed", b"new!").await;
    bed.write_at("child", "/home/added", b"x").await;
    bed.write_at("child", "/etc/outside", b"y").await;
    let query = ramet_proto::api::RemoveQuery { path: "/home/removed".into(), recursive: false };
    bed.service.remove_file(&bed.me, "child", query).await.unwrap();
    let before = bed.machines();
    let expected = [
        (DiffKind::Added, "/home/added".to_owned()),
        (DiffKind::Changed, "/home/changed".to_owned()),
        (DiffKind::Removed, "/home/removed".to_owned()),
    ];
    assert_eq!(bed.diff("source", "child").await.unwrap(), expected);
    assert_eq!(bed.diff("source", "source").await.unwrap(), []);
    assert_eq!(bed.machines(), before, "both copies are gone");
    let backwards = bed.diff("child", "source").await.unwrap();
    assert_eq!(backwards[0], (DiffKind::Removed, "/home/added".to_owned()));
}

#[tokio::test]
async fn a_side_may_be_paused_a_checkpoint_or_a_template() {
    let bed = Bed::new().await;
    bed.create("box").await;
    let name = Some("before".to_owned());
    let checkpoint = bed.service.checkpoint(&bed.me, "box", name).await.unwrap();
    bed.write_at("box", "/home/f", b"x").await;
    bed.service.pause(&bed.me, "box", PauseRequest { memory: true, disk: false }).await.unwrap();
    let added = [(DiffKind::Added, "/home/f".to_owned())];
    for against in ["box@before", &checkpoint.id, &checkpoint.id[..9], "tmpl-base-1x512"] {
        assert_eq!(bed.diff(against, "box").await.unwrap(), added, "{against}");
    }
    assert_eq!(bed.diff("tmpl-base-1x512", "box@before").await.unwrap(), []);
    assert_eq!(bed.state("box"), State::Paused);
    for nobody in ["box@after", "cp-0000", "tmpl-base-8x8", "tmpl-", "nobody", "@", "cp-"] {
        let found = bed.diff(nobody, "box").await;
        assert!(matches!(found, Err(Error::NotFound { .. })), "{nobody}: {found:?}");
    }
    let you = Principal::new("you");
    let request = DiffRequest { against: checkpoint.id, ..DiffRequest::default() };
    let theirs = bed.service.diff(&you, "tmpl-base-1x512", request).await;
    assert!(matches!(theirs, Err(Error::NotFound { .. })), "what is mine is not found by others");
}

#[tokio::test]
async fn patches_are_made_on_request() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.write_at("a", "/home/text", b"one\ntwo\n").await;
    bed.write_at("a", "/home/data", b"\0\x01").await;
    bed.fork("a", &["b"]).await;
    bed.write_at("b", "/home/text", b"one\n2\n").await;
    bed.write_at("b", "/home/data", b"\0\x02").await;
    bed.write_at("b", "/home/large", &vec![b'x'; (1 << 20) + 1]).await;
    let request = DiffRequest { against: "a".into(), content: true, ..DiffRequest::default() };
    let diff = bed.service.diff(&bed.me, "b", request).await.unwrap();
    let found: Vec<_> = diff
        .files
        .iter()
        .map(|file| (file.path.as_str(), file.patch.is_some(), file.no_patch))
        .collect();
    let expected = [
        ("/home/data", false, Some(NoPatch::Binary)),
        ("/home/large", false, Some(NoPatch::TooLarge)),
        ("/home/text", true, None),
    ];
    assert_eq!(found, expected);
    assert!(diff.files[2].patch.as_ref().unwrap().contains("\n-two\n+2\n"));
    assert_eq!(diff.files[2].differs, [DiffAspect::Content]);
    assert!(diff.parted_at_ms.is_some_and(|at| at <= now_ms()));
}

#[tokio::test]
async fn a_copy_for_a_diff_is_no_sandbox_and_does_not_outlive_a_crash() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.fork("a", &["b"]).await;
    let before = bed.machines();
    bed.engine.slow_down(Duration::from_millis(50));
    let (service, me) = (bed.service.clone(), bed.me.clone());
    let request = DiffRequest { against: "a".into(), ..DiffRequest::default() };
    let asked = tokio::spawn(async move { service.diff(&me, "b", request).await });
    while bed.machines() == before && !asked.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let listed = bed.service.list(&bed.me, &ListQuery::default()).unwrap();
    assert_eq!(listed.sandboxes.len(), 2);
    asked.abort();
    // As if the node had been killed with copies around.
    bed.engine.orphan();
    let bed = bed.restart().await;
    assert_eq!(bed.machines(), before);
}

#[tokio::test]
async fn a_diff_without_memory_or_with_one_broken_side_is_refused_whole() {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.fork("a", &["b"]).await;
    let before = bed.machines();
    bed.engine.fail_children(&[0]);
    assert!(bed.diff("a", "b").await.is_err());
    tokio::time::timeout(Duration::from_secs(5), async {
        while bed.machines() != before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("the other side's copy is gone");
    bed.engine.set_available(20);
    assert!(matches!(bed.diff("a", "b").await, Err(Error::NoCapacity(_))));
}

#[tokio::test]
async fn the_last_commands_can_be_undone() {
    let bed = Bed::new().await;
    bed.create_with_undo("box", 3, 1024).await;
    bed.service.checkpoint(&bed.me, "box", Some("mine".to_owned())).await.unwrap();
    for command in ["one", "two", "three", "four"] {
        bed.write("box", command).await;
        bed.step("box", command).await;
    }
    assert_eq!(bed.commands("box"), ["two", "three", "four"]);
    assert_eq!(bed.checkpoints("box")[0].name, "mine", "what was asked for stays");
    assert_eq!(bed.machines(), 6, "template, sandbox, four checkpoints");
    let before_three = bed.checkpoints("box")[2].id.clone();
    bed.service.rewind(&bed.me, "box", before_three).await.unwrap();
    assert_eq!(bed.read("box").await, "three");
    assert_eq!(bed.commands("box"), ["two"], "commands that are undone cannot be undone again");
    assert_eq!(bed.machines(), 4);
    bed.service.rewind(&bed.me, "box", "mine".to_owned()).await.unwrap();
    assert_eq!(bed.commands("box"), [""; 0]);
    assert_eq!(bed.checkpoints("box").len(), 1);
}

#[tokio::test]
async fn automatic_checkpoints_are_bounded_by_memory_and_survive_a_restart() {
    let bed = Bed::new().await;
    bed.create_with_undo("box", 10, 10).await;
    bed.engine.set_pss(4 << 10);
    for command in ["one", "two", "three", "four"] {
        bed.step("box", command).await;
    }
    assert_eq!(bed.commands("box"), ["three", "four"], "4 MiB each, 10 MiB in all");
    let bed = bed.restart().await;
    assert_eq!(bed.commands("box"), ["three", "four"]);
    let off = UpdateSandbox {
        auto_checkpoints: Some(AutoCheckpoints { keep: 0, memory_mib: 1 }),
        ..UpdateSandbox::default()
    };
    let updated = bed.service.update(&bed.me, "box", off).await.unwrap();
    assert_eq!(updated.auto_checkpoints, None);
    bed.step("box", "five").await;
    assert_eq!(bed.commands("box"), [""; 0]);
    assert_eq!(bed.machines(), 2);
}

#[tokio::test]
async fn a_command_that_could_not_be_undone_is_refused() {
    let bed = Bed::new().await;
    bed.create_with_undo("box", 3, 1024).await;
    bed.step("box", "one").await;
    bed.engine.set_available(1);
    let request = ExecRequest { command: Some("two".to_owned()), ..ExecRequest::default() };
    match bed.service.exec(&bed.me, "box", request).await {
        Err(Error::NoCapacity(text)) => assert!(text.contains("auto_checkpoints"), "{text}"),
        other => panic!("{other:?}"),
    }
    let wrong = |keep, memory_mib| CreateSandbox {
        auto_checkpoints: Some(AutoCheckpoints { keep, memory_mib }),
        ..CreateSandbox::default()
    };
    for (keep, memory_mib) in [(65, 1), (1, 0)] {
        let refused = bed.service.create(&bed.me, wrong(keep, memory_mib), None).await;
        assert!(matches!(refused, Err(Error::Bad(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn children_called_for_from_inside_are_sandboxes() {
    let bed = Bed::new().await;
    let request = CreateSandbox {
        name: Some("box".to_owned()),
        labels: pairs(&[("team", "x")]),
        secrets: pairs(&[("KEY", "s3cret")]),
        ..CreateSandbox::default()
    };
    let source = bed.service.create(&bed.me, request, None).await.unwrap().sandbox;
    bed.create("box-2").await;
    bed.write("box", "state").await;
    assert_eq!(bed.engine.call(&bed.machine("box"), 1, 2).await, Ok(2));
    until(|| bed.service.get(&bed.me, "box-3").is_ok()).await;
    let child = bed.service.get(&bed.me, "box-1").unwrap();
    assert_eq!((child.parent, child.owner), (Some(source.id), source.owner));
    assert_eq!((child.labels, child.secret_names.len()), (pairs(&[("team", "x")]), 0));
    assert_eq!(bed.read("box-3").await, "state");
    assert_eq!(bed.run("box-3", "hostname").await, "box-3");
    assert_eq!(bed.engine.call(&bed.machine("box-1"), 2, 1).await, Ok(1), "children may call, too");
    until(|| bed.service.get(&bed.me, "box-1-1").is_ok()).await;
}

async fn until(mut done: impl FnMut() -> bool) {
    tokio::time::timeout(Duration::from_secs(5), async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_call_that_is_refused_learns_why() {
    let bed = Bed::new().await;
    bed.create("box").await;
    let machine = bed.machine("box");
    let told = bed.engine.call(&machine, 1, 0).await.unwrap_err();
    assert!(told.contains("1 to 256"), "{told}");
    let told = bed.engine.call(&machine, 2, 300).await.unwrap_err();
    assert!(told.contains("300"), "{told}");
    bed.engine.set_available(1);
    let told = bed.engine.call(&machine, 3, 1).await.unwrap_err();
    assert!(told.contains("MiB available"), "{told}");
    bed.engine.set_available(1 << 20);
    assert_eq!(bed.engine.call(&machine, 4, 250).await, Ok(250));
    until(|| bed.service.get(&bed.me, "box-250").is_ok()).await;
    let told = bed.engine.call(&machine, 5, 7).await.unwrap_err();
    assert!(told.contains("at most 256"), "{told}");
    assert_eq!(bed.service.list(&bed.me, &ListQuery::default()).unwrap().sandboxes.len(), 100);
}
