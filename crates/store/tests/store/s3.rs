//! The store on a real server that speaks S3, and behind a proxy that misbehaves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ramet_store::testing::{Act, Proxy, Server};
use ramet_store::{Collect, Config, Depth, Error, Hot, Limits, Location, Store};
use serde_json::json;
use tokio::sync::Mutex;

use crate::common::*;
use crate::gc::now;

/// One server for all tests that run at the same time. It ends with the last of them.
static SERVER: Mutex<Weak<Server>> = Mutex::const_new(Weak::new());

async fn server() -> Arc<Server> {
    let mut known = SERVER.lock().await;
    if let Some(running) = known.upgrade() {
        return running;
    }
    let started = tokio::task::spawn_blocking(Server::start).await.unwrap();
    let started = Arc::new(started.expect("these tests need the S3 server"));
    *known = Arc::downgrade(&started);
    started
}

fn limits() -> Limits {
    Limits {
        attempt: Duration::from_millis(1500),
        request: Duration::from_secs(4),
        retries: 4,
        ..Limits::default()
    }
}

async fn open(
    server: &Server,
    proxy: Option<&Proxy>,
    prefix: &str,
    place: &Place,
    scratch: &str,
) -> Store {
    let address = proxy.map_or(server.address(), Proxy::address);
    let config = Config {
        location: Location::S3(server.location(address, prefix)),
        scratch: place.path(scratch),
        scratch_bytes: 64 << 20,
        limits: limits(),
    };
    Store::open(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn states_roots_refs_and_collection() {
    let server = server().await;
    let place = Place::new();
    let t = tenant("a");
    let store = open(&server, None, "basic", &place, "scratch").await;
    let mut files = one("memory", (0..1500).filter(|n| n % 11 != 0).map(|n| (n, noise(n))));
    files.insert("state".into(), (77, [(0, noise(5))].into()));
    let first = place.state("first", &files);
    let draft = store.put_state(&t, &first, None, Hot::new()).await.unwrap();
    let parent = store.publish(draft, root("one")).await.unwrap();
    files.get_mut("memory").unwrap().1.insert(700, noise(7_000_000));
    let second = place.state("second", &files);
    let draft = store.put_state(&t, &second, Some(parent.state), Hot::new()).await.unwrap();
    assert_eq!(draft.cost.new_pages, 1);
    let child = store.publish(draft, root("two")).await.unwrap();
    let again = store.put_root(&t, child.state, root("two")).await;
    assert!(matches!(again, Err(Error::Exists { .. })));

    // Another machine: nothing in its cache.
    let other = open(&server, None, "basic", &place, "other").await;
    other.fetch_state(&t, child.state, &place.fresh("back"), |_| ()).await.unwrap();
    assert!(read(&place.path("back")) == read(&second));
    let manifest = other.manifest(&t, parent.state).await.unwrap();
    let reader = other.reader(&t, parent.state, manifest);
    assert_eq!(
        reader.read_pages("memory", 699, 2).await.unwrap(),
        [noise(699), noise(700)].concat()
    );
    assert_eq!(other.roots(&t, "commit", Some("one"), 5).await.unwrap().len(), 1);

    let tries = (0..6).map(|n| {
        let store = if n % 2 == 0 { store.clone() } else { other.clone() };
        let t = t.clone();
        tokio::spawn(
            async move { store.swap_reference(&t, "main", 0, Some(json!(n))).await.is_ok() },
        )
    });
    let mut won = 0;
    for attempt in tries.collect::<Vec<_>>() {
        won += u32::from(attempt.await.unwrap());
    }
    assert_eq!(won, 1);

    store.delete_root(&t, "commit", "one").await.unwrap();
    assert!(store.collect(None, &now()).await.unwrap().condemned_objects > 0);
    assert!(other.collect(None, &now()).await.unwrap().deleted_objects > 0);
    other.fetch_state(&t, child.state, &place.fresh("back2"), |_| ()).await.unwrap();
    assert!(read(&place.path("back2")) == read(&second));
    assert_eq!(store.check(None, Depth::Content, |_| ()).await.unwrap().damaged, 0);
    store.delete_root(&t, "commit", "two").await.unwrap();
    store.collect(None, &now()).await.unwrap();
    assert_eq!(store.collect(None, &now()).await.unwrap().kept_objects, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_and_a_collector_at_once() {
    let server = server().await;
    let place = Arc::new(Place::new());
    let t = tenant("a");
    let mut nodes = Vec::new();
    for node in 0..2u64 {
        let store = open(&server, None, "two", &place, &format!("node-{node}")).await;
        let (place, t) = (Arc::clone(&place), t.clone());
        nodes.push(tokio::spawn(async move {
            let mut parent = None;
            let mut kept = Vec::new();
            for number in 0..8u64 {
                // Both write much that is the same.
                let pages =
                    (0..300).map(|n| (n, noise(n % 200 + u64::from(n == number) * (1000 + node))));
                let source = place.state(&format!("source-{node}-{number}"), &one("memory", pages));
                let name = format!("n{node}-{number}");
                let published = loop {
                    let draft = store.put_state(&t, &source, parent, Hot::new()).await.unwrap();
                    match store.publish(draft, root(&name)).await {
                        Err(Error::Expired(_)) => continue,
                        other => break other.unwrap(),
                    }
                };
                parent = Some(published.state);
                match number % 2 {
                    0 => store.delete_root(&t, "commit", &name).await.unwrap(),
                    _ => kept.push((published.state, source)),
                }
            }
            kept
        }));
    }
    let collector = open(&server, None, "two", &place, "collector").await;
    // Half a second: far shorter than real, longer than a request.
    let quick = Collect {
        grace: Duration::from_millis(500),
        takeover: Duration::from_secs(30),
        dry_run: false,
    };
    let mut deleted = 0;
    while nodes.iter().any(|node| !node.is_finished()) {
        deleted += collector.collect(None, &quick).await.unwrap().deleted_objects;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(600)).await;
        deleted += collector.collect(None, &quick).await.unwrap().deleted_objects;
    }
    assert!(deleted > 0);
    let fresh = open(&server, None, "two", &place, "fresh").await;
    for (number, node) in nodes.into_iter().enumerate() {
        for (state, source) in node.await.unwrap() {
            let back = place.fresh(&format!("back-{number}-{state}"));
            fresh.fetch_state(&t, state, &back, |_| ()).await.unwrap();
            assert!(read(&back) == read(&source));
        }
    }
    assert_eq!(fresh.check(None, Depth::Content, |_| ()).await.unwrap().damaged, 0);
    let dry = Collect { dry_run: true, ..now() };
    assert_eq!(fresh.collect(None, &dry).await.unwrap().condemned_objects, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_misbehaves_now_and_then_is_endured() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let place = Place::new();
    let t = tenant("a");
    let source = place.state("source", &one("memory", (0..1200).map(|n| (n, noise(n)))));
    let acts = [
        Act::Answer(500),
        Act::Answer(503),
        Act::CutBefore,
        Act::CutAfter,
        Act::CutMiddle,
        Act::Delay(Duration::from_millis(30)),
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let store =
            open(&server, Some(&proxy), &format!("shaky-{number}"), &place, &format!("s{number}"))
                .await;
        let count = AtomicU64::new(0);
        proxy.rule(move |_| match count.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => act,
            _ => Act::Pass,
        });
        let draft = store.put_state(&t, &source, None, Hot::new()).await.unwrap();
        let published = store.publish(draft, root("one")).await.unwrap();
        store.swap_reference(&t, "main", 0, Some(json!(1))).await.unwrap();
        assert_eq!(store.reference(&t, "main").await.unwrap().sequence, 1, "{act:?}");
        let reading =
            open(&server, Some(&proxy), &format!("shaky-{number}"), &place, &format!("r{number}"))
                .await;
        let back = place.fresh(&format!("back-{number}"));
        reading.fetch_state(&t, published.state, &back, |_| ()).await.unwrap();
        assert!(read(&back) == read(&source), "{act:?}");
        proxy.rule(|_| Act::Pass);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_are_read_again_or_refused() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let place = Place::new();
    let t = tenant("a");
    let source = place.state("source", &one("memory", (0..300).map(|n| (n, noise(n)))));
    let store = open(&server, Some(&proxy), "flip", &place, "scratch").await;
    let draft = store.put_state(&t, &source, None, Hot::new()).await.unwrap();
    let published = store.publish(draft, root("one")).await.unwrap();
    let reading = open(&server, Some(&proxy), "flip", &place, "reading").await;
    let manifest = reading.manifest(&t, published.state).await.unwrap();
    let reader = reading.reader(&t, published.state, manifest);
    let mut left = 1;
    proxy.rule(move |request| match request.target.contains("/chunks/") && left > 0 {
        true => {
            left -= 1;
            Act::Flip
        }
        false => Act::Pass,
    });
    assert_eq!(reader.read_pages("memory", 17, 1).await.unwrap(), noise(17));
    proxy.rule(|request| match request.target.contains("/chunks/") {
        true => Act::Flip,
        false => Act::Pass,
    });
    let refused = reader.read_pages("memory", 100, 1).await.unwrap_err();
    assert!(matches!(refused, Error::Damaged(_)), "{refused}");
    assert!(refused.to_string().contains("memory"), "{refused}");
    proxy.rule(|_| Act::Pass);
    assert_eq!(reader.read_pages("memory", 100, 1).await.unwrap(), noise(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_is_an_error_in_time() {
    let server = server().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let place = Place::new();
    let t = tenant("a");
    let source = place.state("source", &one("memory", (0..300).map(|n| (n, noise(n)))));
    let store = open(&server, Some(&proxy), "gone", &place, "scratch").await;
    for act in [Act::Answer(500), Act::CutBefore, Act::Hang] {
        proxy.rule(move |_| act);
        let failed = store.put_state(&t, &source, None, Hot::new()).await.map(|_| ()).unwrap_err();
        assert!(matches!(failed, Error::Unavailable { .. }), "{act:?}: {failed}");
    }
    // It comes back, and everything goes on.
    proxy.rule(|_| Act::Pass);
    let draft = store.put_state(&t, &source, None, Hot::new()).await.unwrap();
    store.publish(draft, root("one")).await.unwrap();
    // Wrong keys are told apart from a server that is down.
    proxy.rule(|_| Act::Answer(403));
    let refused = store.root(&t, "commit", "one").await.unwrap_err();
    assert!(matches!(refused, Error::Denied { .. }), "{refused}");
}
