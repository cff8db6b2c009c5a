//! States move between stores and through files, signed, and only what is missing travels.

use ramet_store::{
    Config, Depth, Destination, Error, Hot, Meter, Pack, Packing, Root, RootMode, SigningKey,
    Store, Trust, Unpacking, VerifyingKey,
};

use crate::common::*;
use crate::gc::now;

pub async fn other_store(place: &Place, name: &str) -> Store {
    Store::open(Config::local(place.path(name), place.path(&format!("{name}-scratch"))))
        .await
        .unwrap()
}

fn taking(mode: RootMode, trust: Trust<'_>) -> Unpacking<'_> {
    Unpacking { mode, trust, meter: None }
}

async fn take(
    store: &Store,
    owner: &ramet_store::Tenant,
    pack: &[u8],
    taking: Unpacking<'_>,
) -> Result<Vec<Root>, Error> {
    store.unpack(owner, Pack::open(pack).await?, taking).await
}

/// A template and its child, published.
pub async fn family(place: &Place, store: &Store) -> [Root; 2] {
    let t = tenant("a");
    let mut files = one("memory", (0..1300).map(|n| (n, noise(n))));
    let first = place.state("first", &files);
    for n in 40..44 {
        files.get_mut("memory").unwrap().1.insert(n, noise(n + 80_000));
    }
    let second = place.state("second", &files);
    let draft = store.put_state(&t, &first, None, Hot::new()).await.unwrap();
    let parent = store.publish(draft, root("template")).await.unwrap();
    let draft = store.put_state(&t, &second, Some(parent.state), Hot::new()).await.unwrap();
    let child = store.publish(draft, root("child")).await.unwrap();
    [parent, child]
}

pub async fn same(store: &Store, owner: &str, root: &Root, source: &str, place: &Place) {
    let back = place.fresh(&format!("back-{owner}-{}-{}", root.name, root.state));
    store.fetch_state(&tenant(owner), root.state, &back, |_| ()).await.unwrap();
    assert!(read(&back) == read(&place.path(source)));
    std::fs::remove_dir_all(back).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_missing_chunks_travel() {
    let place = Place::new();
    let store = place.store().await;
    let [parent, child] = family(&place, &store).await;
    let to = other_store(&place, "to").await;
    let (t, b) = (tenant("a"), tenant("b"));
    let there =
        Destination { store: &to, tenant: &b, base: None, mode: RootMode::Create, meter: None };
    let copied = store.copy_state(&t, &parent, there, Trust::default()).await.unwrap();
    assert_eq!(copied.known_chunks, 0);
    assert!(copied.sent_bytes > 1300 * 4096);
    let copied = store.copy_state(&t, &child, there, Trust::default()).await.unwrap();
    assert_eq!(copied.sent_chunks, 1);
    assert!(copied.sent_bytes < 5 * 4096);
    same(&to, "b", &copied.root, "second", &place).await;
    let again = store.copy_state(&t, &child, there, Trust::default()).await;
    assert!(matches!(again, Err(Error::Exists { .. })));
    let there = Destination { mode: RootMode::Replace, ..there };
    let again = store.copy_state(&t, &child, there, Trust::default()).await.unwrap();
    assert_eq!(again.sent_chunks, 0);
    // With the other's lists open it is written anew, and comes out the same.
    to.delete_root(&b, "commit", "template").await.unwrap();
    to.delete_root(&b, "commit", "child").await.unwrap();
    to.collect(None, &now()).await.unwrap();
    let copied = store.copy_state(&t, &child, there, Trust::default()).await.unwrap();
    for _ in 0..3 {
        to.collect(None, &now()).await.unwrap();
    }
    same(&to, "b", &copied.root, "second", &place).await;
    assert_eq!(to.check(None, Depth::Content, |_| ()).await.unwrap().damaged, 0);
}

pub fn key() -> (SigningKey, VerifyingKey) {
    let (secret, public) = SigningKey::generate().unwrap();
    (SigningKey::parse(&secret, None).unwrap(), VerifyingKey::parse(&public).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn signatures_travel_and_are_asked_for() {
    let place = Place::new();
    let store = place.store().await;
    let [_, child] = family(&place, &store).await;
    let (signing, mine) = key();
    let (_, stranger) = key();
    let t = tenant("a");
    let registry = other_store(&place, "registry").await;
    let there = Destination {
        store: &registry,
        tenant: &t,
        base: None,
        mode: RootMode::Create,
        meter: None,
    };
    let sign = Trust { sign: Some(&signing), trusted: None };
    let pushed = store.copy_state(&t, &child, there, sign).await.unwrap().root;
    assert_eq!(pushed.signatures.len(), 1);
    // Read again from where it lies.
    let pushed = registry.root(&t, "commit", &pushed.name).await.unwrap();

    let to = other_store(&place, "to").await;
    let here =
        Destination { store: &to, tenant: &t, base: None, mode: RootMode::Create, meter: None };
    let ask = |keys| Trust { sign: None, trusted: Some(keys) };
    let trusted = [stranger.clone()];
    let refused = registry.copy_state(&t, &pushed, here, ask(&trusted)).await;
    assert!(matches!(refused, Err(Error::Untrusted(_))));
    let refused = store.copy_state(&t, &child, here, ask(&trusted)).await;
    assert!(matches!(refused, Err(Error::Untrusted(_))), "it is not signed at all");
    let mut changed = [pushed.clone(), pushed.clone(), pushed.clone()];
    changed[0].name = "other".into();
    changed[1].value = serde_json::json!({ "message": "lies" });
    changed[2].signatures = vec!["nonsense".into()];
    for changed in changed {
        let refused =
            registry.copy_state(&t, &changed, here, ask(std::slice::from_ref(&mine))).await;
        assert!(matches!(refused, Err(Error::Untrusted(_))));
    }
    assert_eq!(to.tenants().await.unwrap(), [], "nothing was stored");
    let trusted = [stranger, mine.clone()];
    let pulled = registry.copy_state(&t, &pushed, here, ask(&trusted)).await.unwrap();
    same(&to, "a", &pulled.root, "second", &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_holds_everything() {
    let place = Place::new();
    let store = place.store().await;
    let roots = family(&place, &store).await;
    let (signing, mine) = key();
    let t = tenant("a");
    let mut pack = Vec::new();
    let sign = Trust { sign: Some(&signing), trusted: None };
    let bytes = store
        .pack(&t, &roots, &mut pack, Packing { trust: sign, ..Packing::default() })
        .await
        .unwrap();
    assert_eq!(bytes, pack.len() as u64);
    let to = other_store(&place, "to").await;
    let trusted = [mine];
    let ask = Trust { sign: None, trusted: Some(&trusted) };
    let b = tenant("b");
    let unpacked = take(&to, &b, &pack, taking(RootMode::Create, ask)).await.unwrap();
    assert_eq!(unpacked.len(), 2);
    assert_eq!(unpacked[1].value, roots[1].value);
    same(&to, "b", &unpacked[0], "first", &place).await;
    same(&to, "b", &unpacked[1], "second", &place).await;
    let again = take(&to, &b, &pack, taking(RootMode::Create, ask)).await;
    assert!(matches!(again, Err(Error::Exists { .. })));
    take(&to, &b, &pack, taking(RootMode::Replace, ask)).await.unwrap();
    assert_eq!(to.check(None, Depth::Content, |_| ()).await.unwrap().damaged, 0);
    let dry = ramet_store::Collect { dry_run: true, ..now() };
    assert_eq!(to.collect(None, &dry).await.unwrap().condemned_objects, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_packs_are_refused_without_harm() {
    let place = Place::new();
    let store = place.store().await;
    let t = tenant("a");
    let source = place.state("source", &one("memory", (0..4).map(|n| (n, noise(n)))));
    let draft = store.put_state(&t, &source, None, Hot::new()).await.unwrap();
    let published = store.publish(draft, root("one")).await.unwrap();
    let mut pack = Vec::new();
    store.pack(&t, &[published], &mut pack, Packing::default()).await.unwrap();
    let to = other_store(&place, "to").await;
    let b = tenant("b");
    let refuse = async |pack: &[u8], what: &str| {
        let taken = take(&to, &b, pack, taking(RootMode::Create, Trust::default())).await;
        assert!(matches!(taken, Err(Error::Bad(_))), "{what}: {taken:?}");
        assert_eq!(to.roots(&b, "commit", None, 9).await.unwrap().len(), 0, "{what}");
    };
    for length in (0..pack.len()).step_by(37).chain(pack.len() - 40..pack.len()) {
        refuse(&pack[..length], &format!("cut at {length}")).await;
    }
    let mut seed = 7u64;
    for at in (0..1200).chain((1200..pack.len()).step_by(211)).chain(pack.len() - 80..pack.len()) {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        let mut bad = pack.clone();
        bad[at] ^= 1 << (seed >> 61);
        refuse(&bad, &format!("a bit of byte {at}")).await;
    }
    refuse(&[&pack[..], b"x"].concat(), "longer").await;
    // A length of many bytes takes no memory.
    let mut long = pack.clone();
    long[8 + 37..8 + 45].copy_from_slice(&u64::MAX.to_le_bytes());
    refuse(&long, "an endless entry").await;
    // Roots with names that lead elsewhere, sealed as they should be.
    for name in ["../../x", "a/b", "", "."] {
        refuse(&renamed(&pack, name), name).await;
    }
    // What was left of the attempts is collected.
    for _ in 0..3 {
        to.collect(None, &now()).await.unwrap();
    }
    let report = to.collect(None, &now()).await.unwrap();
    assert_eq!(report.kept_objects, 0);
    assert!(take(&to, &b, &pack, taking(RootMode::Create, Trust::default())).await.is_ok());
}

/// The pack with another name of its root, and a right hash at its end.
fn renamed(pack: &[u8], name: &str) -> Vec<u8> {
    let length = usize::try_from(u64::from_le_bytes(pack[45..53].try_into().unwrap())).unwrap();
    let mut root: serde_json::Value = serde_json::from_slice(&pack[53..53 + length]).unwrap();
    root["name"] = name.into();
    let json = serde_json::to_vec(&root).unwrap();
    let mut changed = pack[..45].to_vec();
    changed.extend_from_slice(&(json.len() as u64).to_le_bytes());
    changed.extend_from_slice(&json);
    changed.extend_from_slice(&pack[53 + length..pack.len() - 32 - 45]);
    let seal = *blake3::hash(&changed).as_bytes();
    changed.extend_from_slice(&pack[pack.len() - 32 - 45..pack.len() - 32]);
    changed.extend_from_slice(&seal);
    changed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_for_somebody_who_has_much_of_it_is_small() {
    let place = Place::new();
    let store = place.store().await;
    let [parent, child] = family(&place, &store).await;
    let t = tenant("a");
    let pack = async |root: &Root, have: &[ramet_store::StateId]| {
        let (mut pack, meter) = (Vec::new(), Meter::default());
        let packing = Packing { have, meter: Some(&meter), ..Packing::default() };
        store.pack(&t, std::slice::from_ref(root), &mut pack, packing).await.unwrap();
        let moved = meter.read();
        assert_eq!((moved.done, moved.moved), (moved.chunks, moved.chunks));
        pack
    };
    let (first, small) = (pack(&parent, &[]).await, pack(&child, &[parent.state]).await);
    assert!(first.len() > 1300 * 4096 && small.len() < 200_000, "{}", small.len());
    let (to, b) = (other_store(&place, "to").await, tenant("b"));
    let taking = taking(RootMode::Create, Trust::default());
    let refused = take(&to, &b, &small, taking).await;
    assert!(matches!(refused, Err(Error::Bad(_))), "nothing of it is here: {refused:?}");
    assert_eq!(to.roots(&b, "commit", None, 9).await.unwrap(), []);
    take(&to, &b, &first, taking).await.unwrap();
    let taken = take(&to, &b, &small, taking).await.unwrap();
    same(&to, "b", &taken[0], "second", &place).await;
    // A state that is not here leaves nothing out.
    assert_eq!(pack(&child, &[ramet_store::StateId([1; 32])]).await, pack(&child, &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_chosen_is_not_stored() {
    let place = Place::new();
    let store = place.store().await;
    let roots = family(&place, &store).await;
    let mut pack = Vec::new();
    store.pack(&tenant("a"), &roots, &mut pack, Packing::default()).await.unwrap();
    let (to, b) = (other_store(&place, "to").await, tenant("b"));
    assert_eq!(to.tenants().await.unwrap(), [], "nothing was stored");
    let mut chosen = Pack::open(pack.as_slice()).await.unwrap();
    chosen.parcel.retain(|root| root.name == "template");
    let taking = taking(RootMode::Create, Trust::default());
    let taken = to.unpack(&b, chosen, taking).await.unwrap();
    assert_eq!(taken.iter().map(|root| root.name.as_str()).collect::<Vec<_>>(), ["template"]);
    let dry = ramet_store::Collect { dry_run: true, ..now() };
    assert_eq!(to.collect(None, &dry).await.unwrap().condemned_objects, 0);
}
