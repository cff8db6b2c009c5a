//! A writer that is killed at any moment leaves what it reported, and nothing that a collection does not find.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use ramet_store::{Depth, Hot};

use crate::common::*;
use crate::gc::now;

/// Files of the nth state of a chain.
fn files(number: u64) -> Files {
    let changed = |n: u64| (number / 4 + 1) * 1000 + n % 7 * u64::from(n % 50 == number % 50);
    one("memory", (0..900).filter(|n| n % 9 != 0).map(|n| (n, noise(changed(n) * 2000 + n))))
}

/// The writer: this test's own program, started by the test below.
#[tokio::test(flavor = "multi_thread")]
async fn writer() {
    let Ok(place) = std::env::var("RAMET_TEST_WRITER") else { return };
    let place = std::path::Path::new(&place);
    let round = std::env::var("RAMET_TEST_ROUND").unwrap();
    let config = ramet_store::Config::local(place.join("store"), place.join("scratch"));
    let store = ramet_store::Store::open(config).await.unwrap();
    let mut parent = None;
    for number in 0..200 {
        let source = place.join(format!("source-{round}-{number}"));
        std::fs::create_dir(&source).unwrap();
        write(&source, &files(number));
        let draft = store.put_state(&tenant("a"), &source, parent, Hot::new()).await.unwrap();
        std::fs::remove_dir_all(&source).unwrap();
        let root = store.publish(draft, root(&format!("r{round}-{number}"))).await.unwrap();
        parent = Some(root.state);
        println!("\ndurable {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_writer_leaves_what_it_reported() {
    let place = Place::new();
    let rounds: u64 = std::env::var("RAMET_TEST_KILLS").map_or(6, |rounds| rounds.parse().unwrap());
    let mut durable = Vec::new();
    for round in 0..rounds {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["kill::writer", "--exact", "--nocapture"])
            .env("RAMET_TEST_WRITER", place.directory.path())
            .env("RAMET_TEST_ROUND", round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(150 + 67 * round));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let numbers = lines.filter_map(|line| line.unwrap().strip_prefix("durable ")?.parse().ok());
        durable.extend(numbers.map(|number: u64| (round, number)));

        let store = place.store_with_scratch("verify").await;
        let report = store.check(None, Depth::Content, |_| ()).await.unwrap();
        assert_eq!(report.damages, []);
        for _ in 0..2 {
            store.collect(None, &now()).await.unwrap();
        }
    }
    println!("{} durable states", durable.len());
    assert!(durable.len() > 3, "the writer came too slowly to anything");
    let store = place.store_with_scratch("verify").await;
    for (round, number) in durable {
        let root = store.root(&tenant("a"), "commit", &format!("r{round}-{number}")).await.unwrap();
        let back = place.fresh(&format!("back-{round}-{number}"));
        store.fetch_state(&tenant("a"), root.state, &back, |_| ()).await.unwrap();
        let wanted = place.state(&format!("wanted-{round}-{number}"), &files(number));
        assert!(read(&back) == read(&wanted));
        std::fs::remove_dir_all(back).unwrap();
        std::fs::remove_dir_all(wanted).unwrap();
    }
    let dry = ramet_store::Collect { dry_run: true, ..now() };
    let report = store.collect(None, &dry).await.unwrap();
    assert_eq!((report.condemned_objects, report.waiting_objects), (0, 0));
    let staged =
        Command::new("find").arg(place.store_path()).args(["-name", "*#*"]).output().unwrap();
    assert_eq!(String::from_utf8(staged.stdout).unwrap(), "");
}
