//! States go in and come out bit for bit, and cost what they changed.

use crate::common::*;
use std::time::{Duration, Instant};

use ramet_store::{Config, Error, Hot, Limits, RootMode, Run, Store};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_state_comes_back_and_its_child_costs_its_changes() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    let mut files = one("memory", (0..2000).filter(|n| n % 7 != 0).map(|n| (n, noise(n))));
    files.insert("state".into(), (5000, [(0, noise(1)), (1, noise(90_001))].into()));
    files.insert("empty".into(), (0, [].into()));
    files.insert("hole".into(), (123 << 20, [].into()));
    let first = place.state("first", &files);
    let draft = store.put_state(&t, &first, None, Hot::new()).await.unwrap();
    let new = draft.cost.new_pages;
    assert_eq!(draft.cost.known_pages, 1, "a page that memory has, too");
    let parent = store.publish(draft, root("one")).await.unwrap();

    store.fetch_state(&t, parent.state, &place.fresh("back"), |_| ()).await.unwrap();
    assert!(read(&place.path("back")) == read(&first));

    // Seven pages change, and everything moves by one page.
    let pages = files.get_mut("memory").unwrap();
    let moved = pages.1.iter().map(|(n, page)| (n + 1, page.clone())).collect();
    *pages = (pages.0 + 4096, moved);
    for n in 500..507 {
        pages.1.insert(n, noise(50_000 + n));
    }
    let second = place.state("second", &files);
    let draft = store.put_state(&t, &second, Some(parent.state), Hot::new()).await.unwrap();
    assert_eq!(draft.cost.new_pages, 7);
    assert!(draft.cost.known_pages >= new - 8);
    assert!(draft.cost.written_bytes < 8 * 4096);
    let child = store.publish(draft, root("two")).await.unwrap();
    store.fetch_state(&t, child.state, &place.fresh("back2"), |_| ()).await.unwrap();
    assert!(read(&place.path("back2")) == read(&second));

    // The same again, without a page table: it is rebuilt.
    let other = place.store_with_scratch("other").await;
    let draft = other.put_state(&t, &second, Some(child.state), Hot::new()).await.unwrap();
    assert_eq!((draft.cost.new_pages, draft.cost.written_bytes), (0, 0));
    // And without a parent: other chunks, but whole regions are the same.
    let draft = other.put_state(&t, &first, None, Hot::new()).await.unwrap();
    assert_eq!(draft.cost.written_bytes, 0);
    // Another tenant shares nothing.
    let draft = other.put_state(&tenant("b"), &first, None, Hot::new()).await.unwrap();
    assert_eq!(draft.cost.new_pages, new);
    assert!(draft.cost.new_chunks > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_can_be_read_one_by_one_and_hot_ones_come_first() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    let files = one("memory", (0..1500).filter(|n| n % 5 != 0).map(|n| (n, noise(n))));
    let source = place.state("source", &files);
    let hot = Hot::from([("memory".into(), vec![Run { first: 1001, count: 3 }])]);
    let draft = store.put_state(&t, &source, None, hot).await.unwrap();
    let root = store.publish(draft, root("one")).await.unwrap();
    let manifest = store.manifest(&t, root.state).await.unwrap();
    let reader = store.reader(&t, root.state, manifest);
    assert_eq!(reader.read_pages("memory", 1001, 1).await.unwrap(), noise(1001));
    let run = reader.read_pages("memory", 994, 3).await.unwrap();
    assert_eq!(run, [noise(994), vec![0; 4096], noise(996)].concat());
    assert!(matches!(reader.read_pages("memory", 1499, 2).await, Err(Error::Bad(_))));
    assert!(matches!(reader.read_pages("other", 0, 1).await, Err(Error::NotFound { .. })));
    let at = reader.locate(0, 1001).unwrap();
    let frame = reader.read_frame(at.chunk, at.frame).await.unwrap();
    for place in reader.frame_uses(at.chunk, at.frame) {
        for n in 0..place.count {
            let start = (place.page + n) * 4096;
            assert_eq!(frame[start..start + 4096], noise(place.first + n as u64));
        }
    }

    let steps = std::sync::Mutex::new(Vec::new());
    let keep = |progress| steps.lock().unwrap().push(progress);
    store.fetch_state(&t, root.state, &place.fresh("back"), keep).await.unwrap();
    let steps = steps.into_inner().unwrap();
    assert_eq!(steps[0].hot_left, 3 * 4096);
    let hot_done = steps.iter().position(|step| step.hot_left == 0).unwrap();
    assert!(hot_done < steps.len() - 1, "hot pages do not come last");
    assert_eq!(steps.last().unwrap().done, steps[0].total);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    let source = place.state("source", &one("memory", [(0, noise(1))]));
    let is_bad = |result| matches!(result, Err(Error::Bad(_)));
    std::os::unix::fs::symlink("/etc/passwd", source.join("link")).unwrap();
    assert!(is_bad(store.put_state(&t, &source, None, Hot::new()).await));
    std::fs::remove_file(source.join("link")).unwrap();
    std::fs::create_dir(source.join("directory")).unwrap();
    assert!(is_bad(store.put_state(&t, &source, None, Hot::new()).await));
    std::fs::remove_dir(source.join("directory")).unwrap();
    std::fs::write(source.join("..."), "x").unwrap();
    assert!(is_bad(store.put_state(&t, &source, None, Hot::new()).await));
    std::fs::remove_file(source.join("...")).unwrap();
    let hot = Hot::from([("memory".into(), vec![Run { first: 1, count: 1 }])]);
    assert!(is_bad(store.put_state(&t, &source, None, hot).await));
    let gone = store.put_state(&t, &place.path("nowhere"), None, Hot::new()).await;
    assert!(matches!(gone, Err(Error::File { .. })));
    for name in ["", ".", "..", "a/b", "a\\b", "\u{e9}", ".hidden"] {
        assert!(ramet_store::Tenant::new(name).is_err(), "{name:?}");
        assert!(matches!(store.root(&t, "commit", name).await, Err(Error::Bad(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roots_are_kept_listed_and_deleted() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    let source = place.state("source", &one("memory", [(0, noise(1))]));
    let draft = store.put_state(&t, &source, None, Hot::new()).await.unwrap();
    let first = store.publish(draft, root("c1")).await.unwrap();
    for name in ["c2", "c3", "c4"] {
        store.put_root(&t, first.state, root(name)).await.unwrap();
    }
    let again = store.put_root(&t, first.state, root("c2")).await;
    assert!(matches!(again, Err(Error::Exists { .. })));
    let mut replaced = root("c2");
    (replaced.mode, replaced.value) = (RootMode::Replace, json!(7));
    store.put_root(&t, first.state, replaced).await.unwrap();
    assert_eq!(store.root(&t, "commit", "c2").await.unwrap().value, json!(7));
    let page = store.roots(&t, "commit", None, 3).await.unwrap();
    let names: Vec<_> = page.iter().map(|root| root.name.as_str()).collect();
    assert_eq!(names, ["c1", "c2", "c3"]);
    let page = store.roots(&t, "commit", Some("c3"), 3).await.unwrap();
    assert_eq!(page.len(), 1);
    store.delete_root(&t, "commit", "c4").await.unwrap();
    assert!(matches!(store.root(&t, "commit", "c4").await, Err(Error::NotFound { .. })));
    assert!(matches!(store.delete_root(&t, "commit", "c4").await, Err(Error::NotFound { .. })));
    assert_eq!(store.roots(&tenant("b"), "commit", None, 9).await.unwrap().len(), 0);
    assert_eq!(store.tenants().await.unwrap(), [t]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_change_a_ref_one_wins() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    assert_eq!(store.reference(&t, "main").await.unwrap().sequence, 0);
    for round in 0..5 {
        let tries = (0..8).map(|n| {
            let (store, t) = (store.clone(), t.clone());
            tokio::spawn(
                async move { store.swap_reference(&t, "main", round, Some(json!(n))).await },
            )
        });
        let mut won = Vec::new();
        for attempt in tries.collect::<Vec<_>>() {
            match attempt.await.unwrap() {
                Ok(value) => won.push(value),
                Err(error) => assert!(matches!(error, Error::Exists { .. }), "{error}"),
            }
        }
        assert_eq!(won.len(), 1);
        let now = store.reference(&t, "main").await.unwrap();
        assert_eq!((now.sequence, &now.value), (round + 1, &won[0].value));
    }
    assert_eq!(store.references(&t).await.unwrap().len(), 1);
    store.swap_reference(&t, "main", 5, None).await.unwrap();
    assert_eq!(store.references(&t).await.unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_may_be_far_away() {
    let place = Place::new();
    let t = tenant("a");
    let limits = Limits { distance: Duration::from_millis(2), ..Limits::default() };
    let config = Config { limits, ..Config::local(place.store_path(), place.path("far")) };
    let store = Store::open(config).await.unwrap();
    let source = place.state("source", &one("memory", (0..50).map(|n| (n, noise(n)))));
    let began = Instant::now();
    let draft = store.put_state(&t, &source, None, Hot::new()).await.unwrap();
    let root = store.publish(draft, root("one")).await.unwrap();
    assert_eq!(store.roots(&t, "commit", None, 10).await.unwrap().len(), 1);
    store.fetch_state(&t, root.state, &place.fresh("back"), |_| ()).await.unwrap();
    assert!(read(&place.path("back")) == read(&source));
    assert!(began.elapsed() >= 4 * limits.distance, "no request has travelled");
}
