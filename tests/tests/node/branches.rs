//! What branches differ in, commands that are undone, and guests that fork themselves.

use std::collections::BTreeMap;

use ramet_client::api::{
    AutoCheckpoints, Code, CreateSandbox, Diff, DiffAspect, DiffKind, DiffRequest, State,
};

use crate::bed::{Sandbox, eventually, fresh, node, refusal, wait};
use crate::{Story, stories};

pub const STORIES: &[Story] = stories![
    branches_are_told_apart,
    what_stands_still_is_compared_too,
    only_what_changed_is_read,
    a_tick_is_not_enough,
    commands_are_undone,
    a_guest_forks_itself,
];

fn diff(against: &str, sandbox: &str, paths: &[&str], content: bool) -> Diff {
    let paths = Some(paths.iter().map(|&path| path.to_owned()).collect());
    let request = DiffRequest { against: against.to_owned(), paths, content, variables: None };
    wait(node().client.diff(sandbox, &request)).unwrap()
}

fn files(diff: &Diff) -> BTreeMap<&str, (DiffKind, Vec<DiffAspect>)> {
    let told = diff.files.iter();
    told.map(|file| (file.path.as_str(), (file.change, file.differs.clone()))).collect()
}

fn branches_are_told_apart() {
    use DiffAspect::{Content, Mode, Owner, Target};
    use DiffKind::{Added, Changed, Removed};
    let source = fresh("compared");
    source.sh(
        "mkdir -p /workspace/old /workspace/x && cd /workspace && echo aaaa > same && echo x > mode && \
         echo x > own && ln -s a link && echo moved > before && echo in > old/inner && \
         printf 'one\\ntwo\\n' > text && echo gone > gone && echo bbbb > touched && echo x > kept && touch x/y",
    );
    let branch = source.fork(1).remove(0);
    branch.sh(
        "cd /workspace && echo AAAA > same && chmod 600 mode && chown 7:8 own && ln -sfn b link && mv before after && \
         mv old new && rm gone && printf 'one\\n2\\n' > text && echo BBBB > t && touch -r touched t && \
         mv t touched && mkfifo fifo && rm -r x && echo now > x && touch kept && \
         printf b > \"$(printf 'bad\\377')\" && rm -rf /root/.bashrc",
    );
    let told = diff(&source.id, &branch.id, &["/workspace", "/root"], true);
    let changed = |aspects: &[DiffAspect]| (Changed, aspects.to_vec());
    let expected = BTreeMap::from([
        ("/root/.bashrc", (Removed, vec![])),
        ("/workspace/after", (Added, vec![])),
        ("/workspace/bad\u{fffd}", (Added, vec![])),
        ("/workspace/before", (Removed, vec![])),
        ("/workspace/fifo", (Added, vec![])),
        ("/workspace/gone", (Removed, vec![])),
        ("/workspace/link", changed(&[Target])),
        ("/workspace/mode", changed(&[Mode])),
        ("/workspace/new", (Added, vec![])),
        ("/workspace/new/inner", (Added, vec![])),
        ("/workspace/old", (Removed, vec![])),
        ("/workspace/old/inner", (Removed, vec![])),
        ("/workspace/own", changed(&[Owner])),
        ("/workspace/same", changed(&[Content])),
        ("/workspace/text", changed(&[Content])),
        ("/workspace/touched", changed(&[Content])),
        ("/workspace/x", changed(&[DiffAspect::Type])),
        ("/workspace/x/y", (Removed, vec![])),
    ]);
    assert_eq!(files(&told), expected);
    let text = told.files.iter().find(|file| file.path == "/workspace/text").unwrap();
    assert!(text.patch.as_ref().unwrap().contains("\n one\n-two\n+2\n"), "{:?}", text.patch);
    branch.sh("(setsid sleep 4242 > /dev/null 2>&1 &); sleep 0.2");
    let told = diff(&source.id, &branch.id, &["/srv"], false);
    assert!(told.files.is_empty(), "{:?}", told.files);
    assert!(told.processes.iter().any(|one| one.command == ["sleep", "4242"]), "{told:?}");
    let asked = DiffRequest { against: source.id.clone(), ..DiffRequest::default() };
    let wrong = |paths: &[&str]| {
        let paths = Some(paths.iter().map(|&path| path.to_owned()).collect());
        refusal(wait(node().client.diff(&branch.id, &DiffRequest { paths, ..asked.clone() })))
    };
    for paths in [&["relative"][..], &[], &["/a/../b"], &["/proc/1"]] {
        assert_eq!(wrong(paths), Code::BadRequest, "{paths:?}");
    }
}

fn what_stands_still_is_compared_too() {
    let sandbox = fresh("still");
    let empty = sandbox.checkpoint("empty");
    sandbox.sh("mkdir /workspace/d && echo x > /workspace/d/f && echo y > /home/g");
    sandbox.checkpoint("full");
    sandbox.sh("rm -r /workspace/d; echo z > /home/g");
    sandbox.pause();
    let at = |checkpoint: &str| format!("{}@{checkpoint}", sandbox.id);
    let paths = ["/workspace", "/home"];
    let told = diff(&empty.id, &at("full"), &paths, false);
    let added = (DiffKind::Added, vec![]);
    let expected = ["/home/g", "/workspace/d", "/workspace/d/f"].map(|path| (path, added.clone()));
    assert_eq!(files(&told), BTreeMap::from(expected));
    let told = diff(&at("full"), &sandbox.id, &paths, false);
    let kinds: Vec<_> = told.files.iter().map(|file| (file.path.as_str(), file.change)).collect();
    let expected = [
        ("/home/g", DiffKind::Changed),
        ("/workspace/d", DiffKind::Removed),
        ("/workspace/d/f", DiffKind::Removed),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(sandbox.shown().state, State::Paused);
    let template = wait(node().client.tree()).unwrap().nodes.into_iter().next().unwrap();
    let told = diff(&template.id, &empty.id, &paths, false);
    assert!(told.files.is_empty(), "{:?}", told.files);
}

fn only_what_changed_is_read() {
    let source = fresh("large");
    // What was written shortly before a fork is read, too: its clock may be a little off. This was written long before.
    source.sh("date -s '-100 seconds'");
    source.py("import os, time\n\
         for d in range(20):\n \
         os.makedirs(f'/workspace/{d}')\n \
         for f in range(50):\n  \
         open(f'/workspace/{d}/{f}', 'w').write(f'{d} {f}')\n  \
         os.utime(f'/workspace/{d}/{f}')");
    source.sh("date -s '+100 seconds'");
    let branch = source.fork(1).remove(0);
    branch.sh("echo '3 4' > /workspace/3/4; echo other > /workspace/5/6");
    let told = diff(&source.id, &branch.id, &["/workspace"], false);
    let paths: Vec<_> = told.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["/workspace/3/4", "/workspace/5/6"]);
    assert!(told.cost.layered > 2000, "both layers are listed: {:?}", told.cost);
    assert!(told.cost.looked_at < 20 && told.cost.digested < 10, "{:?}", told.cost);
}

/// Two branches run on from the same instant and write the same number of bytes to the same file,
/// perhaps at the same tick of the same clock.
fn a_tick_is_not_enough() {
    let source = fresh("tick");
    source.sh("mkdir -p /workspace; echo 00 > /workspace/f");
    for _ in 0..5 {
        let line = "i=$(ramet-agent fork 2); echo 1$i > /workspace/f; hostname > /srv/done; sync";
        source.sh(&format!("rm -f /srv/done; {line}"));
        let children = called(&source, 2);
        for child in &children {
            eventually("the child has written", || child.try_get("/srv/done").is_ok());
        }
        let told = diff(&children[0].id, &children[1].id, &["/workspace"], false);
        let paths: Vec<_> = told.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["/workspace/f"]);
    }
}

/// Children of a sandbox that it made by itself, once there are so many.
fn called(source: &Sandbox<'_>, count: usize) -> Vec<Sandbox<'static>> {
    let list = || {
        let all = wait(node().client.list_all(&Default::default())).unwrap();
        let child = |one: &ramet_client::api::Sandbox| one.parent.as_ref() == Some(&source.id);
        all.into_iter().filter(child).map(|one| one.id).collect::<Vec<String>>()
    };
    eventually("the children are there", || list().len() >= count);
    list().into_iter().map(|id| node().handle(id)).collect()
}

fn commands_are_undone() {
    let sandbox = node().create_as(CreateSandbox {
        name: Some("undo".to_owned()),
        auto_checkpoints: Some(AutoCheckpoints { keep: 2, memory_mib: 4096 }),
        ..CreateSandbox::default()
    });
    sandbox.checkpoint("mine");
    for step in ["one", "two", "three"] {
        sandbox.sh(&format!("echo {step} >> /srv/steps"));
    }
    let kept = || wait(node().client.checkpoints(&sandbox.id)).unwrap();
    let automatic =
        || -> Vec<String> { kept().into_iter().filter_map(|one| one.command).collect() };
    eventually("the oldest is gone", || automatic().len() == 2);
    assert_eq!(automatic(), ["echo two >> /srv/steps", "echo three >> /srv/steps"]);
    assert_eq!(kept()[0].name, "mine");
    sandbox.rewind(&kept()[2].id);
    assert_eq!(sandbox.get("/srv/steps"), "one\ntwo\n");
    assert_eq!(automatic(), ["echo two >> /srv/steps"]);
    sandbox.rewind(&kept()[1].id);
    assert_eq!(sandbox.get("/srv/steps"), "one\n");
    assert_eq!(kept().len(), 1);
}

fn a_guest_forks_itself() {
    let source = fresh("cell");
    source.sh("ramet-agent fork 3 > /srv/index; hostname > /srv/name");
    let children = called(&source, 3);
    assert_eq!(children.len(), 3);
    assert_eq!(source.get("/srv/index"), "0\n");
    for (number, child) in (1..).zip(&children) {
        eventually("the child has written", || {
            child.try_get("/srv/name").is_ok_and(|name| !name.is_empty())
        });
        assert_eq!(child.get("/srv/index"), format!("{number}\n"));
        let shown = child.shown();
        assert_eq!(child.get("/srv/name").trim(), shown.name);
        assert_eq!(shown.labels, source.shown().labels);
    }
    let refused = source.run("ramet-agent fork 1000");
    assert_eq!(refused.exit_code, Some(1));
    assert!(refused.stderr.contains("1 to 256"), "{}", refused.stderr);
}
