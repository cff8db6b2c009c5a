//! States in a real registry, and behind a proxy that misbehaves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ramet_store::testing::{Act, LOGIN, OciServer, Proxy};
use ramet_store::{
    Depth, Error, Login, Meter, Moved, Registry, Remote, Root, RootMode, S3, Store, Trust,
    Unpacking,
};
use tokio::sync::Mutex;

use crate::common::*;
use crate::moves::{family, key, other_store, same};

/// One registry for all tests that run at the same time. It ends with the last of them.
static SERVER: Mutex<Weak<OciServer>> = Mutex::const_new(Weak::new());

async fn server() -> Arc<OciServer> {
    let mut known = SERVER.lock().await;
    if let Some(running) = known.upgrade() {
        return running;
    }
    let started = tokio::task::spawn_blocking(OciServer::start).await.unwrap();
    let started = Arc::new(started.expect("these tests need the registry"));
    *known = Arc::downgrade(&started);
    started
}

fn registry(address: std::net::SocketAddr, name: &str, login: Login) -> Registry {
    match Remote::parse(&format!("oci://{address}/{name}"), &S3::default()).unwrap() {
        Remote::Registry(repository) => Registry::new(&repository, login).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn open_to_all(server: &OciServer, name: &str) -> Registry {
    registry(server.address(), name, Login::Anonymous)
}

async fn push(store: &Store, root: &Root, to: &Registry) -> Result<Moved, Error> {
    let meter = Meter::default();
    store
        .push(&tenant("a"), std::slice::from_ref(root), to, Trust::default(), &meter)
        .await
        .map(|()| meter.read())
}

async fn pull(
    store: &Store,
    from: Registry,
    trust: Trust<'_>,
) -> Result<(Vec<Root>, Moved), Error> {
    let meter = Meter::default();
    let taking = Unpacking { mode: RootMode::Create, trust, meter: Some(&meter) };
    let roots = store.pull(&tenant("b"), from.open().await?, taking).await?;
    Ok((roots, meter.read()))
}

#[tokio::test(flavor = "multi_thread")]
async fn only_missing_chunks_travel_both_ways() {
    let (server, place) = (server().await, Place::new());
    let store = place.store().await;
    let [parent, child] = family(&place, &store).await;
    let first = push(&store, &parent, &open_to_all(&server, "team/both:v1")).await.unwrap();
    assert!(first.moved == first.chunks && first.bytes > 1300 * 4096, "{first:?}");
    // What the client says travelled is what the server got.
    let proxy = Proxy::start(server.address()).await.unwrap();
    let (uploads, reads) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (put, got) = (uploads.clone(), reads.clone());
    proxy.rule(move |request| {
        let blob = request.target.contains("/blobs/");
        if blob && request.method == "PUT" {
            put.fetch_add(1, Ordering::Relaxed);
        }
        if blob && request.method == "GET" {
            got.fetch_add(1, Ordering::Relaxed);
        }
        Act::Pass
    });
    let through =
        |tag: &str| registry(proxy.address(), &format!("team/both:{tag}"), Login::Anonymous);
    let second = push(&store, &child, &through("v2")).await.unwrap();
    assert_eq!(second.moved, 1, "{second:?}");
    assert_eq!(uploads.load(Ordering::Relaxed), 3, "a chunk, a manifest and the roots");
    let again = push(&store, &child, &through("v2")).await.unwrap();
    assert_eq!((again.moved, again.done), (0, again.chunks));

    let to = other_store(&place, "to").await;
    let (roots, moved) = pull(&to, through("v1"), Trust::default()).await.unwrap();
    assert_eq!(moved.moved, moved.chunks);
    same(&to, "b", &roots[0], "first", &place).await;
    let before = reads.load(Ordering::Relaxed);
    let (roots, moved) = pull(&to, through("v2"), Trust::default()).await.unwrap();
    assert_eq!((moved.moved, moved.done), (1, moved.chunks));
    assert_eq!(reads.load(Ordering::Relaxed) - before, 3, "a chunk, a manifest and the roots");
    same(&to, "b", &roots[0], "second", &place).await;
    assert_eq!(to.check(None, Depth::Content, |_| ()).await.unwrap().damaged, 0);
    let nothing = pull(&to, through("v3"), Trust::default()).await;
    assert!(matches!(nothing, Err(Error::NotFound { .. })), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_layers_than_a_manifest_takes_become_an_index() {
    let (server, place) = (server().await, Place::new());
    let store = place.store().await;
    let [parent, _] = family(&place, &store).await;
    let small = || open_to_all(&server, "team/parts:v1").with_part(2);
    let moved = push(&store, &parent, &small()).await.unwrap();
    assert!(moved.chunks >= 3, "{moved:?}");
    let to = other_store(&place, "to").await;
    let (roots, _) = pull(&to, small(), Trust::default()).await.unwrap();
    same(&to, "b", &roots[0], "first", &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signatures_travel_in_artifacts() {
    let (server, place) = (server().await, Place::new());
    let store = place.store().await;
    let [parent, child] = family(&place, &store).await;
    let ((signing, mine), (_, stranger)) = (key(), key());
    let sign = Trust { sign: Some(&signing), trusted: None };
    let (t, meter) = (tenant("a"), Meter::default());
    let signed = open_to_all(&server, "team/signed:v1");
    store.push(&t, &[parent], &signed, sign, &meter).await.unwrap();
    push(&store, &child, &open_to_all(&server, "team/unsigned:v1")).await.unwrap();
    let to = other_store(&place, "to").await;
    let ask = |keys| Trust { sign: None, trusted: Some(keys) };
    let (strangers, mine) = ([stranger], [mine]);
    for (name, keys) in [("team/signed:v1", &strangers), ("team/unsigned:v1", &mine)] {
        let refused = pull(&to, open_to_all(&server, name), ask(keys)).await;
        assert!(matches!(refused, Err(Error::Untrusted(_))), "{refused:?}");
    }
    assert_eq!(to.tenants().await.unwrap(), [], "nothing was stored");
    let (roots, _) = pull(&to, signed, ask(&mine)).await.unwrap();
    assert_eq!(roots[0].signatures.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_registry_says_is_believed() {
    // One of its own, since it is damaged.
    let server = tokio::task::spawn_blocking(OciServer::start).await.unwrap().unwrap();
    let place = Place::new();
    let store = place.store().await;
    let [parent, _] = family(&place, &store).await;
    let to = other_store(&place, "to").await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let name = "team/lies:v1";
    push(&store, &parent, &open_to_all(&server, name)).await.unwrap();
    let through = || registry(proxy.address(), name, Login::Anonymous);
    // Every answer with a blob has a wrong bit.
    proxy.rule(|request| {
        let flip = request.method == "GET" && request.target.contains("/blobs/");
        if flip { Act::Flip } else { Act::Pass }
    });
    let refused = pull(&to, through(), Trust::default()).await;
    assert!(matches!(refused, Err(Error::Bad(_))), "{refused:?}");
    // What lies there has a wrong bit.
    let all = blobs(&server.files());
    let alter = || {
        for blob in &all {
            let mut bytes = std::fs::read(blob).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(blob, bytes).unwrap();
        }
    };
    alter();
    let refused = pull(&to, open_to_all(&server, name), Trust::default()).await;
    assert!(refused.is_err(), "what lies there is damaged");
    assert!(to.roots(&tenant("b"), "commit", None, 9).await.unwrap().is_empty());
    alter();
    pull(&to, open_to_all(&server, name), Trust::default()).await.unwrap();
}

/// The files of all blobs.
fn blobs(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(blobs(&path)),
            false if path.ends_with("data") && path.metadata().unwrap().len() > 0 => {
                found.push(path);
            }
            false => {}
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_was_interrupted_goes_on() {
    let (server, place) = (server().await, Place::new());
    let store = place.store().await;
    let [parent, _] = family(&place, &store).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let name = "team/broken:v1";
    let through = || registry(proxy.address(), name, Login::Anonymous);
    let count = Arc::new(AtomicUsize::new(0));
    let uploads = count.clone();
    // The third upload and all after it are cut.
    proxy.rule(move |request| {
        let upload = request.method == "PUT" && request.target.contains("/blobs/");
        if upload && uploads.fetch_add(1, Ordering::Relaxed) >= 2 {
            Act::CutBefore
        } else {
            Act::Pass
        }
    });
    let broken = push(&store, &parent, &through()).await;
    assert!(matches!(broken, Err(Error::Unavailable { .. })), "{broken:?}");
    let to = other_store(&place, "to").await;
    let nothing = pull(&to, open_to_all(&server, name), Trust::default()).await;
    assert!(matches!(nothing, Err(Error::NotFound { .. })), "there is no tag: {nothing:?}");
    // Some answers are lost or refused, and asked for again.
    let count = Arc::new(AtomicUsize::new(0));
    proxy.rule(move |_| match count.fetch_add(1, Ordering::Relaxed) % 7 {
        2 => Act::CutAfter,
        4 => Act::Answer(503),
        6 => Act::CutMiddle,
        _ => Act::Pass,
    });
    let moved = push(&store, &parent, &through()).await.unwrap();
    assert!(moved.moved < moved.chunks, "some were there: {moved:?}");
    let (roots, _) = pull(&to, through(), Trust::default()).await.unwrap();
    same(&to, "b", &roots[0], "first", &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_asks_for_a_login() {
    let server = tokio::task::spawn_blocking(OciServer::closed).await.unwrap().unwrap();
    let place = Place::new();
    let store = place.store().await;
    let [parent, _] = family(&place, &store).await;
    let login = |word: &str| Login::Basic(LOGIN.0.into(), word.into());
    let with = |login| registry(server.address(), "team/closed:v1", login);
    for wrong in [Login::Anonymous, login("wrong")] {
        let refused = push(&store, &parent, &with(wrong)).await;
        assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    }
    push(&store, &parent, &with(login(LOGIN.1))).await.unwrap();
    let to = other_store(&place, "to").await;
    let refused = pull(&to, with(Login::Anonymous), Trust::default()).await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    pull(&to, with(login(LOGIN.1)), Trust::default()).await.unwrap();
}
