//! Networks of several, and what is done with all members at once.

use ramet_proto::api::groups::{
    Between, CommitNetwork, CreateNetwork, ForkNetwork, JoinNetwork, PromoteNetwork, UpdateNetwork,
};
use ramet_proto::api::{CommitState, PauseRequest, State};

use super::Bed;
use crate::auth::Principal;
use crate::http::problem_of;
use crate::sandbox::Error;

impl Bed {
    /// A network with these members, each a sandbox of that name.
    async fn network_of(&self, name: &str, members: &[&str]) {
        let request = CreateNetwork { name: name.to_owned(), ..CreateNetwork::default() };
        self.service.create_network(&self.me, request).await.unwrap();
        for member in members {
            self.create(member).await;
            self.join(name, member).await.unwrap();
        }
    }

    async fn join(&self, network: &str, sandbox: &str) -> Result<(), Error> {
        let request = JoinNetwork { sandbox: sandbox.to_owned(), name: None };
        self.service.join_network(&self.me, network, request).await.map(drop)
    }

    /// Members of a network, as `name number sandbox`.
    fn members(&self, network: &str) -> Vec<String> {
        let network = self.service.get_network(&self.me, network).unwrap();
        let shown = network.members.iter();
        shown.map(|one| format!("{} {} {}", one.name, one.number, one.sandbox_name)).collect()
    }

    /// What the service is told of a sandbox's place.
    fn place(&self, sandbox: &str) -> Option<(String, u8)> {
        let id = self.service.get(&self.me, sandbox).unwrap().id;
        let member = self.network.port(&id)?.member?;
        Some((member.network, member.number))
    }
}

#[tokio::test]
async fn members_have_a_name_and_a_number() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    assert_eq!(bed.members("shop"), ["db 1 db", "app 2 app"]);
    let shown = bed.service.get_network(&bed.me, "shop").unwrap();
    assert_eq!(shown.members[0].addresses, ["10.114.1.1", "fd72:616d:6574:1::1"]);
    assert_eq!(bed.place("db").unwrap().0, bed.place("app").unwrap().0);
    assert!(matches!(bed.join("shop", "db").await, Err(Error::InUse(_))));
    bed.create("other").await;
    let same = JoinNetwork { sandbox: "other".into(), name: Some("db".into()) };
    let taken = bed.service.join_network(&bed.me, "shop", same).await;
    assert!(matches!(taken, Err(Error::NameTaken(_))));
    let bad = JoinNetwork { sandbox: "other".into(), name: Some("D.B".into()) };
    assert!(matches!(bed.service.join_network(&bed.me, "shop", bad).await, Err(Error::Bad(_))));
    // The number of one that left is given again; a fork of a member is in no network.
    bed.service.leave_network(&bed.me, "shop", "db").await.unwrap();
    assert_eq!(bed.place("db"), None);
    bed.join("shop", "other").await.unwrap();
    assert_eq!(bed.members("shop"), ["other 1 other", "app 2 app"]);
    bed.fork("app", &["kid"]).await;
    assert_eq!(bed.place("kid"), None);
    let refused = bed.service.delete_network(&bed.me, "shop").await;
    assert!(matches!(refused, Err(Error::InUse(_))));
    bed.service.delete(&bed.me, "other").await.unwrap();
    bed.service.delete(&bed.me, "app").await.unwrap();
    bed.service.delete_network(&bed.me, "shop").await.unwrap();
    assert!(bed.service.networks(&bed.me).networks.is_empty());
}

#[tokio::test]
async fn networks_belong_to_their_owners() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db"]).await;
    let you = Principal::new("you");
    assert!(bed.service.networks(&you).networks.is_empty());
    assert!(matches!(bed.service.get_network(&you, "shop"), Err(Error::NotFound { .. })));
    let request = CreateNetwork { name: "shop".to_owned(), ..CreateNetwork::default() };
    bed.service.create_network(&you, request.clone()).await.unwrap();
    let again = bed.service.create_network(&you, request).await;
    assert!(matches!(again, Err(Error::NameTaken(_))));
    let theirs = JoinNetwork { sandbox: "db".into(), name: None };
    assert!(bed.service.join_network(&you, "shop", theirs).await.is_err());
}

#[tokio::test]
async fn rules_between_members_reach_the_service() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    let rule = Between { from: "app".into(), to: "db".into(), ports: vec![5432] };
    let request = UpdateNetwork { between: Some(vec![rule.clone()]) };
    bed.service.update_network(&bed.me, "shop", request).await.unwrap();
    let id = bed.service.get(&bed.me, "db").unwrap().id;
    assert_eq!(bed.network.port(&id).unwrap().member.unwrap().between, Some(vec![rule]));
}

async fn fork(bed: &Bed, count: u32) -> ramet_proto::api::groups::ForkedNetwork {
    let request = ForkNetwork { count: Some(count), ..ForkNetwork::default() };
    bed.service.fork_network(&bed.me, "shop", request, problem_of).await.unwrap()
}

#[tokio::test]
async fn copies_are_networks_of_their_own() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    bed.write("db", "rows").await;
    let forked = fork(&bed, 2).await;
    assert!(forked.copies.iter().all(|copy| copy.error.is_none()));
    assert_eq!(bed.members("shop-1"), ["db 1 shop-1-db", "app 2 shop-1-app"]);
    assert_eq!(bed.members("shop-2"), ["db 1 shop-2-db", "app 2 shop-2-app"]);
    assert_eq!(bed.read("shop-2-db").await, "rows");
    let places: Vec<String> =
        ["db", "shop-1-db", "shop-2-db"].map(|name| bed.place(name).unwrap().0).into();
    assert!(places[0] != places[1] && places[1] != places[2] && places[0] != places[2]);
    assert_eq!(bed.place("shop-1-db").unwrap().0, bed.place("shop-1-app").unwrap().0);
    for name in ["db", "app", "shop-1-db", "shop-2-app"] {
        assert_eq!(bed.service.get(&bed.me, name).unwrap().state, State::Running, "{name}");
        assert!(bed.engine.runs(name), "{name}");
    }
    // The next ones have the next names.
    fork(&bed, 1).await;
    assert_eq!(bed.members("shop-3").len(), 2);
}

#[tokio::test]
async fn a_copy_is_whole_or_not_there() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    bed.engine.fail_children(&[1]);
    let forked = fork(&bed, 2).await;
    assert!(forked.copies[0].network.is_some() && forked.copies[0].error.is_none());
    assert!(forked.copies[1].network.is_none() && forked.copies[1].error.is_some());
    assert_eq!(bed.members("shop-1").len(), 2);
    assert!(bed.service.get_network(&bed.me, "shop-2").is_err());
    let names: Vec<String> =
        bed.service.networks(&bed.me).networks.into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["shop", "shop-1"]);
    assert_eq!(bed.machines(), 5, "two members, two children, one template");
    assert!(bed.engine.runs("db") && bed.engine.runs("app"));
}

#[tokio::test]
async fn a_network_goes_on_as_a_copy() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    fork(&bed, 2).await;
    bed.write("shop-2-db", "better").await;
    let before = bed.place("db").unwrap();
    let promote = |winner: &str| PromoteNetwork { winner: winner.into(), inherit_secrets: None };
    bed.service.promote_network(&bed.me, "shop", promote("shop-2")).await.unwrap();
    assert_eq!(bed.read("db").await, "better");
    assert_eq!(bed.members("shop"), ["db 1 db", "app 2 app"]);
    assert!(bed.service.get_network(&bed.me, "shop-2").is_err());
    // Nobody of the new moment hears one of the old.
    let (db, app) = (bed.place("db").unwrap(), bed.place("app").unwrap());
    assert!(db.0 != before.0 && db.0 == app.0 && db.1 == before.1);
    // Only a copy with the same members can be promoted.
    bed.service.delete(&bed.me, "shop-1-app").await.unwrap();
    let refused = bed.service.promote_network(&bed.me, "shop", promote("shop-1")).await;
    assert!(matches!(refused, Err(Error::WrongState(_))));
    let itself = bed.service.promote_network(&bed.me, "shop", promote("shop")).await;
    assert!(matches!(itself, Err(Error::Bad(_))));
}

#[tokio::test]
async fn all_members_go_back_together() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    bed.write("db", "early").await;
    let moment = || "before".to_owned();
    let made = bed.service.checkpoint_network(&bed.me, "shop", moment()).await.unwrap();
    assert_eq!(made.checkpoints.len(), 2);
    assert!(bed.engine.runs("db") && bed.engine.runs("app"));
    let again = bed.service.checkpoint_network(&bed.me, "shop", moment()).await;
    assert!(matches!(again, Err(Error::NameTaken(_))));
    bed.write("db", "late").await;
    let before = bed.place("db").unwrap();
    bed.service.rewind_network(&bed.me, "shop", "before").await.unwrap();
    assert_eq!(bed.read("db").await, "early");
    let after = bed.place("db").unwrap();
    assert!(after.0 != before.0 && after.0 == bed.place("app").unwrap().0);
    assert!(bed.service.rewind_network(&bed.me, "shop", "never").await.is_err());
}

#[tokio::test]
async fn a_network_is_paused_and_goes_on() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    bed.write("db", "kept").await;
    let paused = bed.service.pause_network(&bed.me, "shop", PauseRequest::default()).await.unwrap();
    assert!(paused.sandboxes.iter().all(|one| one.state == State::Paused));
    assert_eq!(bed.place("db"), None, "no port while it is paused");
    // A copy of what is paused needs nobody to be resumed.
    let forked = fork(&bed, 1).await;
    assert!(forked.copies[0].error.is_none(), "{:?}", forked.copies[0].error);
    assert_eq!(bed.read("shop-1-db").await, "kept");
    assert_eq!(bed.service.get(&bed.me, "db").unwrap().state, State::Paused);
    bed.service.resume_network(&bed.me, "shop").await.unwrap();
    assert_eq!(bed.read("db").await, "kept");
    assert_eq!(bed.place("db").unwrap().0, bed.place("app").unwrap().0);
}

#[tokio::test]
async fn a_network_is_committed_and_checked_out() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    bed.write("db", "committed").await;
    let kept = bed.service.commit_network(&bed.me, "shop", CommitNetwork::default()).await.unwrap();
    assert!(bed.engine.runs("db") && bed.engine.runs("app"));
    for commit in &kept.commits {
        let mut state = commit.state;
        while state == CommitState::Writing {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            state = bed.service.get_commit(&bed.me, &commit.id).await.unwrap().state;
        }
        assert_eq!(state, CommitState::Durable);
    }
    let again = |group: &str| CreateNetwork {
        name: "again".to_owned(),
        group: Some(group.to_owned()),
        ..CreateNetwork::default()
    };
    let none = bed.service.create_network(&bed.me, again("grp-0")).await;
    assert!(matches!(none, Err(Error::NotFound { .. })));
    bed.service.create_network(&bed.me, again(&kept.group)).await.unwrap();
    assert_eq!(bed.members("again"), ["db 1 again-db", "app 2 again-app"]);
    assert_eq!(bed.read("again-db").await, "committed");
    assert_eq!(bed.place("again-db").unwrap().0, bed.place("again-app").unwrap().0);
}

#[tokio::test]
async fn networks_outlive_the_node() {
    let bed = Bed::new().await;
    bed.network_of("shop", &["db", "app"]).await;
    let bed = bed.restart().await;
    assert_eq!(bed.members("shop"), ["db 1 db", "app 2 app"]);
    let forked = fork(&bed, 1).await;
    assert!(forked.copies[0].error.is_none());
    let events = bed.service.networks(&bed.me);
    assert_eq!(events.networks.len(), 2);
}
