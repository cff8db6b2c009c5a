//! Damage of every kind to every file of a store is noticed, named, and repaired where a copy is.

use std::path::{Path, PathBuf};

use ramet_store::{Checked, Depth, Error, Hot, Store};
use serde_json::json;

use crate::common::*;
use crate::gc::now;

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

async fn deep(store: &Store) -> Result<Checked, Error> {
    store.check(None, Depth::Content, |_| ()).await
}

/// A store with everything in it: a chain, two tenants, refs, a list of the collector.
async fn full_store(place: &Place) -> Store {
    let store = place.store().await;
    let mut files = one("memory", (0..700).map(|n| (n, noise(n))));
    files.insert("state".into(), (300, [(0, vec![b'x'; 4096])].into()));
    let first = place.state("first", &files);
    files.get_mut("memory").unwrap().1.insert(3, noise(9999));
    let second = place.state("second", &files);
    for name in ["a", "b"] {
        let t = tenant(name);
        let draft = store.put_state(&t, &first, None, Hot::new()).await.unwrap();
        let parent = store.publish(draft, root("one")).await.unwrap();
        let draft = store.put_state(&t, &second, Some(parent.state), Hot::new()).await.unwrap();
        store.publish(draft, root("two")).await.unwrap();
        store.swap_reference(&t, "main", 0, Some(json!("two"))).await.unwrap();
        store.swap_reference(&t, "main", 1, Some(json!("one"))).await.unwrap();
    }
    let lost = place.state("lost", &one("memory", [(0, noise(77))]));
    store.put_state(&tenant("a"), &lost, None, Hot::new()).await.unwrap();
    store.collect(None, &now()).await.unwrap();
    store
}

/// Whether a file's content matters: not the clock's, nor what is condemned.
fn counts(path: &Path, condemned: &str) -> bool {
    let path = path.to_str().unwrap();
    !path.ends_with("clock") && !path.contains(condemned)
}

/// The chunk that no root reaches.
fn condemned_chunk(store: &Path) -> String {
    let list = files(&store.join("gc"))
        .into_iter()
        .find(|path| path.to_str().unwrap().contains("condemned"));
    let text = std::fs::read_to_string(list.unwrap()).unwrap();
    let start = text.find("chunks/").unwrap();
    text[start..].split('"').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn corruption_of_every_file_in_turn_is_noticed() {
    let place = Place::new();
    let store = full_store(&place).await;
    let report = deep(&store).await.unwrap();
    assert_eq!((report.damaged, report.roots, report.states), (0, 4, 4));
    let condemned = condemned_chunk(&place.store_path());
    let all: Vec<_> =
        files(&place.store_path()).into_iter().filter(|path| counts(path, &condemned)).collect();
    assert!(all.len() > 14, "{all:?}");
    let mut tried = 0;
    for (number, path) in all.iter().enumerate() {
        let good = std::fs::read(path).unwrap();
        let text = path.to_str().unwrap();
        let mut bad: Vec<(&str, Option<Vec<u8>>)> = Vec::new();
        for at in [0, 5, 9, good.len() / 3, good.len() / 2, good.len() - 1] {
            let mut flipped = good.clone();
            flipped[at.min(good.len() - 1)] ^= 1 << (number % 8);
            bad.push(("flip", Some(flipped)));
        }
        bad.push(("short", Some(good[..good.len() / 2].to_vec())));
        bad.push(("empty", Some(Vec::new())));
        bad.push(("long", Some([&good[..], b"\0"].concat())));
        // Which roots and refs there should be, only who made them knows; lists may go.
        if !["/roots/", "/refs/", "/gc/", "/format"].iter().any(|part| text.contains(part)) {
            bad.push(("removed", None));
        }
        // Another object of the same kind in its place.
        let kind = path.strip_prefix(place.store_path()).unwrap().components().next().unwrap();
        let there = place.store_path().join(kind);
        let same =
            |other: &&PathBuf| other.starts_with(&there) && std::fs::read(other).unwrap() != good;
        if let Some(other) = all.iter().find(same) {
            bad.push(("swapped", Some(std::fs::read(other).unwrap())));
        }
        for (how, content) in bad {
            match content {
                Some(content) => std::fs::write(path, content).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
            tried += 1;
            match deep(&store).await {
                Ok(report) => {
                    assert!(report.damaged > 0, "{how} of {text} goes unnoticed");
                    let relative = path.strip_prefix(place.store_path()).unwrap().to_str().unwrap();
                    assert!(report.damages.iter().any(|damage| damage.object == relative));
                }
                Err(Error::Bad(_)) => assert!(text.ends_with("format")),
                Err(error) => panic!("{how} of {text}: {error}"),
            }
            std::fs::write(path, &good).unwrap();
        }
    }
    assert_eq!(deep(&store).await.unwrap().damaged, 0);
    println!("{tried} corruptions of {} files", all.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_chunk_is_named_refused_and_repaired() {
    let place = Place::new();
    let store = full_store(&place).await;
    let t = tenant("a");
    let state = store.root(&t, "commit", "one").await.unwrap().state;
    let chunk = files(&place.store_path().join("chunks/a"));
    let largest = chunk.iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let good = std::fs::read(largest).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(largest, &bad).unwrap();

    let error = store.fetch_state(&t, state, &place.fresh("back"), |_| ()).await.unwrap_err();
    let Error::Damaged(damage) = &error else { panic!("{error}") };
    assert!(damage.hits.iter().any(|hit| hit.blob == "memory"), "{error}");
    assert!(error.to_string().contains("of memory in state"), "{error}");
    let report = deep(&store).await.unwrap();
    assert_eq!(report.damaged, 1);
    let roots: Vec<_> = report.damages[0].hits.iter().map(|hit| hit.state.as_str()).collect();
    assert!(roots.contains(&"commit one") && roots.contains(&"commit two"));

    // No copy anywhere: quarantine.
    let repaired = store.repair(None, None).await.unwrap();
    assert_eq!((repaired.repaired.len(), repaired.lost.len()), (0, 1));
    assert!(!largest.exists());
    let kept = files(&place.store_path().join("quarantine"));
    assert_eq!(std::fs::read(&kept[0]).unwrap(), bad);
    // The same content put again heals it.
    let draft = store.put_state(&t, &place.path("first"), None, Hot::new()).await.unwrap();
    assert_eq!(draft.cost.new_chunks, 1);
    assert_eq!(deep(&store).await.unwrap().damaged, 0);
    store.fetch_state(&t, state, &place.fresh("healed"), |_| ()).await.unwrap();
    assert!(read(&place.path("healed")) == read(&place.path("first")));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_store_repairs_chunks_manifests_and_roots() {
    let place = Place::new();
    let store = full_store(&place).await;
    let copy = place.path("copy");
    let status =
        std::process::Command::new("cp").arg("-r").arg(place.store_path()).arg(&copy).status();
    assert!(status.unwrap().success());
    let config = ramet_store::Config::local(&copy, place.path("copy-scratch"));
    let other = Store::open(config).await.unwrap();
    let condemned = condemned_chunk(&place.store_path());
    for path in files(&place.store_path()) {
        let text = path.to_str().unwrap();
        if !counts(&path, &condemned) || text.ends_with("format") || text.contains("/gc/") {
            continue;
        }
        match text.contains("/chunks/") {
            true => std::fs::remove_file(&path).unwrap(),
            false => std::fs::write(&path, "nonsense").unwrap(),
        }
    }
    assert!(deep(&store).await.unwrap().damaged > 0);
    let repaired = store.repair(None, Some(&other)).await.unwrap();
    assert_eq!(repaired.lost, []);
    assert!(repaired.repaired.len() > 10);
    assert_eq!(deep(&store).await.unwrap().damaged, 0);
    let t = tenant("b");
    let root = store.root(&t, "commit", "two").await.unwrap();
    store.fetch_state(&t, root.state, &place.fresh("back"), |_| ()).await.unwrap();
    assert!(read(&place.path("back")) == read(&place.path("second")));
}
