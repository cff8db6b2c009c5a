//! Collection: what nothing reaches goes, and nothing else, whoever is at work meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use ramet_store::{Collect, Config, Depth, Error, Hot, Limits, Location, Store};
use tokio::sync::{Mutex, watch};

use crate::common::*;
use crate::hooked::{Fault, Hook, Hooked};

/// No waiting.
pub fn now() -> Collect {
    Collect { grace: Duration::ZERO, takeover: Duration::from_secs(60), dry_run: false }
}

/// A store on any objects, without a cache: what is read is in the store.
pub async fn store_on(objects: Arc<dyn ObjectStore>, place: &Place, scratch: &str) -> Store {
    let limits =
        Limits { request: Duration::from_secs(5), parallel: 4, threads: 2, ..Limits::default() };
    let config = Config {
        location: Location::Custom(objects),
        scratch: place.path(scratch),
        scratch_bytes: 0,
        limits,
    };
    Store::open(config).await.unwrap()
}

/// Names of all objects but the collector's.
pub async fn objects(store: &dyn ObjectStore) -> Vec<String> {
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    let names = listed.into_iter().map(|meta| meta.location.to_string());
    names.filter(|name| name.starts_with("chunks") || name.starts_with("manifests")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_reaches_goes_after_the_grace_time() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    let first = place.state("first", &one("memory", (0..600).map(|n| (n, noise(n)))));
    let second = place.state("second", &one("memory", (300..900).map(|n| (n, noise(n)))));
    let draft = store.put_state(&t, &first, None, Hot::new()).await.unwrap();
    let one = store.publish(draft, root("one")).await.unwrap();
    let draft = store.put_state(&t, &second, Some(one.state), Hot::new()).await.unwrap();
    let two = store.publish(draft, root("two")).await.unwrap();
    // Never published.
    let lost =
        place.state("lost", &crate::common::one("memory", (5000..5100).map(|n| (n, noise(n)))));
    let draft = store.put_state(&t, &lost, None, Hot::new()).await.unwrap();
    drop(draft);

    let patient = Collect { dry_run: false, ..Collect::default() };
    let report = store.collect(None, &patient).await.unwrap();
    assert_eq!((report.condemned_objects, report.deleted_objects), (0, 0), "all is young");
    let dry = store.collect(None, &Collect { dry_run: true, ..now() }).await.unwrap();
    assert_eq!(dry.condemned_objects, 1);
    let report = store.collect(None, &now()).await.unwrap();
    assert_eq!((report.condemned_objects, report.deleted_objects), (1, 0));
    let report = store.collect(None, &now()).await.unwrap();
    assert_eq!((report.condemned_objects, report.deleted_objects), (0, 1));

    let before = store.usage(&t).await.unwrap();
    assert_eq!((before.roots, before.states), (2, 2));
    assert_eq!(before.content_bytes, 1200 * 4096);
    assert!(before.stored_bytes < 1000 * 4096, "300 pages are shared");
    store.delete_root(&t, "commit", "one").await.unwrap();
    store.collect(None, &now()).await.unwrap();
    store.collect(None, &now()).await.unwrap();
    store.fetch_state(&t, two.state, &place.fresh("back"), |_| ()).await.unwrap();
    assert!(read(&place.path("back")) == read(&second));
    assert!(matches!(store.manifest(&t, one.state).await, Err(Error::NotFound { .. })));

    store.delete_root(&t, "commit", "two").await.unwrap();
    store.collect(Some(&t), &now()).await.unwrap();
    let report = store.collect(Some(&t), &now()).await.unwrap();
    assert!(report.deleted_objects > 0);
    assert_eq!(report.kept_objects, 0);
    assert_eq!(store.usage(&t).await.unwrap().stored_bytes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_outlives_lists_or_says_that_it_did_not() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    let source = place.state("source", &one("memory", (0..40).map(|n| (n, noise(n)))));
    // Condemned while it waits: written again.
    let draft = store.put_state(&t, &source, None, Hot::new()).await.unwrap();
    assert_eq!(store.collect(None, &now()).await.unwrap().condemned_objects, 1);
    let root_one = store.publish(draft, root("one")).await.unwrap();
    assert_eq!(store.collect(None, &now()).await.unwrap().deleted_objects, 1);
    store.fetch_state(&t, root_one.state, &place.fresh("back"), |_| ()).await.unwrap();
    assert!(read(&place.path("back")) == read(&source));
    // Condemned and deleted while it waits.
    let other = place.state("other", &one("memory", (100..140).map(|n| (n, noise(n)))));
    let draft = store.put_state(&t, &other, None, Hot::new()).await.unwrap();
    for _ in 0..3 {
        store.collect(None, &now()).await.unwrap();
    }
    assert!(matches!(store.publish(draft, root("two")).await, Err(Error::Expired(_))));
    let draft = store.put_state(&t, &other, None, Hot::new()).await.unwrap();
    store.publish(draft, root("two")).await.unwrap();
    // A root for a state whose manifest is condemned.
    store.delete_root(&t, "commit", "one").await.unwrap();
    store.collect(None, &now()).await.unwrap();
    let again = store.put_root(&t, root_one.state, root("again")).await.unwrap();
    assert_ne!(again.state, root_one.state);
    for _ in 0..3 {
        store.collect(None, &now()).await.unwrap();
    }
    store.fetch_state(&t, again.state, &place.fresh("back2"), |_| ()).await.unwrap();
    assert!(read(&place.path("back2")) == read(&source));
    assert_eq!(store.check(None, Depth::Content, |_| ()).await.unwrap().damaged, 0);
}

/// Who may make requests: which actor, and how many more.
#[derive(Debug, Clone)]
struct Turn {
    actor: usize,
    left: usize,
    then: Vec<usize>,
    ended: [bool; 2],
    made: [usize; 2],
}

impl Turn {
    /// The next one goes on, if it has not ended.
    fn pass(&mut self) {
        let other = 1 - self.actor;
        self.left = self.then.pop().unwrap_or(usize::MAX);
        if !self.ended[other] {
            self.actor = other;
        } else {
            self.left = usize::MAX;
        }
    }
}

fn gate(turn: &watch::Sender<Turn>, actor: usize) -> Hook {
    let turn = turn.clone();
    Arc::new(move |_, _| {
        let turn = turn.clone();
        Box::pin(async move {
            let mut seen = turn.subscribe();
            loop {
                let mut mine = false;
                turn.send_if_modified(|now| {
                    if now.left == 0 {
                        now.pass();
                    }
                    mine = now.actor == actor;
                    if mine {
                        now.left -= 1;
                        now.made[actor] += 1;
                    }
                    true
                });
                if mine {
                    return Fault::None;
                }
                // Whoever has the turn tells when it passes it on.
                if seen.changed().await.is_err() {
                    return Fault::None;
                }
            }
        })
    })
}

fn end(turn: &watch::Sender<Turn>, actor: usize) {
    turn.send_modify(|now| {
        now.ended[actor] = true;
        if now.actor == actor {
            now.pass();
        }
    });
}

/// What the writer does while the collector works.
#[derive(Debug, Clone, Copy)]
enum Writing {
    /// A child of a state whose root is deleted meanwhile.
    Child,
    /// The same files again, without a parent.
    Same,
    /// Another root for a state whose root is deleted meanwhile.
    Root,
}

/// One run: switches after `switches` requests of each in turn. Gives the requests each made.
async fn interleave(
    writing: Writing,
    switches: &[usize],
    place: &Place,
    fixture: &Fixture,
) -> [usize; 2] {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let t = tenant("a");
    let setup = store_on(Arc::clone(&objects), place, "setup").await;
    let draft = setup.put_state(&t, &fixture.first, None, Hot::new()).await.unwrap();
    let parent = setup.publish(draft, root("parent")).await.unwrap();

    let mut then: Vec<usize> = switches.iter().rev().copied().collect();
    let left = then.pop().unwrap_or(usize::MAX);
    let (turn, _) = watch::channel(Turn { actor: 0, left, then, ended: [false; 2], made: [0; 2] });
    let writer = Hooked::new(Arc::clone(&objects), gate(&turn, 0));
    let collector = Hooked::new(Arc::clone(&objects), gate(&turn, 1));
    // Opening is not part of it: the format is asked for.
    turn.send_modify(|now| (now.actor, now.left) = (0, 1));
    let writer = store_on(Arc::new(writer), place, "writer").await;
    turn.send_modify(|now| (now.actor, now.left) = (1, 1));
    let collector = store_on(Arc::new(collector), place, "collector").await;
    turn.send_modify(|now| (now.actor, now.left, now.made) = (0, left, [0; 2]));

    let write = async {
        let done = match writing {
            Writing::Root => writer.put_root(&t, parent.state, root("child")).await,
            Writing::Same | Writing::Child => {
                let (source, base) = match writing {
                    Writing::Same => (&fixture.first, None),
                    _ => (&fixture.second, Some(parent.state)),
                };
                match writer.put_state(&t, source, base, Hot::new()).await {
                    Ok(draft) => writer.publish(draft, root("child")).await,
                    Err(error) => Err(error),
                }
            }
        };
        end(&turn, 0);
        done
    };
    let collect = async {
        let mut done = collector.delete_root(&t, "commit", "parent").await;
        for _ in 0..3 {
            // A root that is replaced at this moment may name what is not there any more.
            done = done.and(collector.collect(None, &now()).await.map(|_| ()));
        }
        end(&turn, 1);
        done
    };
    let (written, _collected) = tokio::join!(write, collect);
    let made = turn.borrow().made;
    fixture.verify(&objects, writing, written, place, switches).await;
    made
}

struct Fixture {
    first: std::path::PathBuf,
    second: std::path::PathBuf,
    count: Mutex<u32>,
}

impl Fixture {
    async fn verify(
        &self,
        objects: &Arc<dyn ObjectStore>,
        writing: Writing,
        written: ramet_store::Result<ramet_store::Root>,
        place: &Place,
        switches: &[usize],
    ) {
        let t = tenant("a");
        let store = store_on(Arc::clone(objects), place, "verify").await;
        match written {
            Ok(root) => {
                for round in 0..3 {
                    let back = place.path("back");
                    std::fs::create_dir(&back).unwrap();
                    if let Err(error) = store.fetch_state(&t, root.state, &back, |_| ()).await {
                        panic!("{writing:?} {switches:?} round {round}: {error}");
                    }
                    let wanted = match writing {
                        Writing::Child => &self.second,
                        _ => &self.first,
                    };
                    assert!(read(&back) == read(wanted), "{writing:?} {switches:?}");
                    std::fs::remove_dir_all(&back).unwrap();
                    store.collect(None, &now()).await.unwrap();
                }
            }
            Err(Error::Expired(_) | Error::NotFound { .. }) => {}
            Err(error) => panic!("{writing:?} {switches:?}: {error}"),
        }
        match store.delete_root(&t, "commit", "child").await {
            Ok(()) | Err(Error::NotFound { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        for _ in 0..4 {
            store.collect(None, &now()).await.unwrap();
        }
        let left = crate::gc::objects(&**objects).await;
        assert!(left.is_empty(), "{writing:?} {switches:?}: leaked {left:?}");
        *self.count.lock().await += 1;
    }
}

/// The real writer and the real collector, their requests interleaved with up to three switches in every
/// position (every third for the second and third).
#[tokio::test]
async fn writer_and_collector_in_every_order() {
    let place = Place::new();
    let fixture = Fixture {
        first: place.state("first", &one("memory", (0..3).map(|n| (n, noise(n))))),
        second: place.state("second", &one("memory", (1..4).map(|n| (n, noise(n))))),
        count: Mutex::new(0),
    };
    let step: usize = std::env::var("RAMET_TEST_STEP").map_or(12, |step| step.parse().unwrap());
    for writing in [Writing::Child, Writing::Same, Writing::Root] {
        let [writes, collects] = interleave(writing, &[], &place, &fixture).await;
        for first in 0..=writes {
            for second in (1..collects).step_by(step.div_ceil(3)) {
                interleave(writing, &[first, second], &place, &fixture).await;
                for third in (1..writes.saturating_sub(first)).step_by(step.div_ceil(2)) {
                    let fourth = (first + second + third) % step + 1;
                    interleave(writing, &[first, second, third, fourth], &place, &fixture).await;
                }
            }
        }
    }
    println!("{} orders", fixture.count.lock().await);
}
