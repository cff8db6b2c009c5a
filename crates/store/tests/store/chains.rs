//! Random states and long chains: everything comes back, and costs what it changed.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ramet_store::{Collect, Depth, Hot};

use crate::common::*;
use crate::gc::now;

/// A file: its length, and pages by number with one of a few contents, 0 being zeros that are written.
fn any_file() -> impl Strategy<Value = (u64, BTreeMap<u64, u64>)> {
    let pages = prop::collection::btree_map(0u64..1400, 0u64..30, 0..120);
    let run = (0u64..900, 0u64..600, 100u64..105);
    (pages, run, 0u64..4096, any::<bool>()).prop_map(
        |(mut pages, (start, count, seed), cut, dense)| {
            if dense {
                pages.extend((start..start + count).map(|n| (n, seed * 1000 + n % 700)));
            }
            let end = pages.keys().next_back().map_or(0, |last| last + 1);
            ((end * PAGE as u64).saturating_sub(cut), pages)
        },
    )
}

fn any_files() -> impl Strategy<Value = Files> {
    let name = prop::sample::select(vec!["memory", "disk-0", "disk-1", "state"]);
    prop::collection::btree_map(name, any_file(), 0..4).prop_map(|files| {
        let content = |seed| if seed == 0 { vec![0; PAGE] } else { noise(seed) };
        let file = |(length, pages): (u64, BTreeMap<u64, u64>)| {
            let inside = pages.into_iter().filter(|(n, _)| n * (PAGE as u64) < length);
            (length, inside.map(|(n, seed)| (n, content(seed))).collect())
        };
        files.into_iter().map(|(name, pages)| (name.to_owned(), file(pages))).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_goes_in_comes_out(states in prop::collection::vec((any_files(), any::<bool>()), 1..4)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let place = Place::new();
            let store = place.store().await;
            let t = tenant("a");
            let mut published = Vec::new();
            for (number, (files, child)) in states.iter().enumerate() {
                let source = place.state(&format!("source-{number}"), files);
                let parent = published.last().copied().filter(|_| *child);
                let draft = store.put_state(&t, &source, parent, Hot::new()).await.unwrap();
                let cost = draft.cost;
                assert!(cost.written_bytes <= cost.new_pages * 4096 + cost.new_chunks * 200);
                let root = store.publish(draft, root(&format!("c{number}"))).await.unwrap();
                published.push(root.state);
            }
            for (number, state) in published.iter().enumerate() {
                let back = place.fresh(&format!("back-{number}"));
                store.fetch_state(&t, *state, &back, |_| ()).await.unwrap();
                assert!(read(&back) == read(&place.path(&format!("source-{number}"))));
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_a_hundred_costs_its_changes() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    let mut files = one("memory", (0..1024).map(|n| (n, noise(n))));
    let mut parent = None;
    let mut changed_bytes = 0;
    let mut written_bytes = 0;
    for number in 0..100u64 {
        for n in 0..8 {
            let page = (number * 131 + n * n * 17) % 1024;
            files.get_mut("memory").unwrap().1.insert(page, noise(10_000 + number * 10 + n));
        }
        let source = place.state(&format!("source-{number}"), &files);
        let draft = store.put_state(&t, &source, parent, Hot::new()).await.unwrap();
        if parent.is_some() {
            assert!(draft.cost.new_pages <= 8);
            changed_bytes += draft.cost.new_pages * 4096;
            written_bytes += draft.cost.written_bytes;
        }
        let root = store.publish(draft, root(&format!("c{number:03}"))).await.unwrap();
        parent = Some(root.state);
        if number % 33 != 0 {
            std::fs::remove_dir_all(&source).unwrap();
        }
    }
    assert!(written_bytes * 100 <= changed_bytes * 103, "{written_bytes} for {changed_bytes}");
    let usage = store.usage(&t).await.unwrap();
    assert_eq!((usage.roots, usage.logical_bytes), (100, 100 << 22));
    assert!(usage.stored_bytes < 12 << 20, "{usage:?}");
    // The middle goes; the ends stay whole.
    for number in (0..100).filter(|number| number % 33 != 0) {
        store.delete_root(&t, "commit", &format!("c{number:03}")).await.unwrap();
    }
    store.collect(None, &Collect { ..now() }).await.unwrap();
    let report = store.collect(None, &now()).await.unwrap();
    assert!(report.deleted_objects > 90, "{report:?}");
    for number in (0..100).step_by(33) {
        let root = store.root(&t, "commit", &format!("c{number:03}")).await.unwrap();
        let back = place.fresh(&format!("back-{number}"));
        store.fetch_state(&t, root.state, &back, |_| ()).await.unwrap();
        assert!(read(&back) == read(&place.path(&format!("source-{number}"))));
    }
    assert_eq!(store.check(None, Depth::Content, |_| ()).await.unwrap().damaged, 0);
}
