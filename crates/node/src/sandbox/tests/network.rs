//! What sandboxes reach, and who reaches them.

use std::time::Duration;

use ramet_proto::api::network::{
    CreateLink, CreateToken, EdgeRequest, LayerSource, Limits, NetworkLogQuery, NetworkRequest,
    PutSecret,
};
use ramet_proto::api::{
    BuildTemplate, CreateCommit, CreateSandbox, ForkRequest, PauseRequest, PromoteRequest,
    TemplateQuery,
};

use super::{Bed, pairs};
use crate::auth::{self, Principal, Tokens};
use crate::sandbox::{Error, Settings};

fn asks(egress: Option<&str>, allow: &[&str]) -> NetworkRequest {
    NetworkRequest {
        egress: egress.map(str::to_owned),
        allow: allow.iter().map(|rule| rule.parse().unwrap()).collect(),
        ..NetworkRequest::default()
    }
}

fn edge(value: &str) -> EdgeRequest {
    let (host, header) = ("api.example.org".to_owned(), "Authorization".to_owned());
    EdgeRequest { host, header, value: value.to_owned() }
}

impl Bed {
    async fn create_with(&self, name: &str, network: NetworkRequest) -> Result<String, Error> {
        self.create_as(&self.me, name, Some(network)).await
    }

    async fn create_as(
        &self,
        who: &Principal,
        name: &str,
        network: Option<NetworkRequest>,
    ) -> Result<String, Error> {
        let name = Some(name.to_owned());
        let request = CreateSandbox { name, network, ..CreateSandbox::default() };
        Ok(self.service.create(who, request, None).await?.sandbox.id)
    }

    /// What the service is told of a sandbox's policies, as rules.
    fn policies(&self, id: &str) -> Vec<Vec<String>> {
        let port = self.network.port(id).unwrap_or_else(|| panic!("{id} has no port"));
        let rules = |policy: &ramet_proto::api::network::Policy| {
            policy.allow.iter().map(ToString::to_string).collect()
        };
        port.policies.iter().map(rules).collect()
    }

    async fn put_secret(&self, name: &str, value: &str) {
        let request = PutSecret { value: value.to_owned() };
        self.service.put_secret(&self.me, name, request).await.unwrap();
    }
}

#[tokio::test]
async fn a_sandbox_reaches_nothing_unless_it_is_said() {
    let bed = Bed::new().await;
    let closed = bed.create("closed").await.id;
    assert_eq!(bed.policies(&closed), [Vec::<String>::new()]);
    assert!(bed.engine.plugged("closed"));
    let open = bed.create_with("open", asks(Some("open"), &[])).await.unwrap();
    assert_eq!(bed.policies(&open), [["*"]]);
    let some = asks(Some("none"), &["a.org:443/tcp", "192.0.2.0/24"]);
    let some = bed.create_with("some", some).await.unwrap();
    assert_eq!(bed.policies(&some), [["a.org:443/tcp", "192.0.2.0/24"]]);
    let shown = bed.service.network(&bed.me, "some").await.unwrap();
    assert!(shown.connected && shown.stats.unwrap().refused == 3);
    assert_eq!(shown.layers[0].from, LayerSource::Own);
}

#[tokio::test]
async fn presets_and_rules_are_checked() {
    let packages = vec!["packages.example:443".parse().unwrap()];
    let presets = [("mirror".to_owned(), packages)].into();
    let bed = Bed::with(Settings { presets, ..Settings::default() }).await;
    let refused = |result: Result<String, Error>, said: &str| match result {
        Err(Error::Bad(text)) => assert!(text.contains(said), "{text}"),
        other => panic!("{other:?}"),
    };
    refused(bed.create_with("a", asks(Some("packages"), &[])).await, "--packages-host");
    refused(bed.create_with("a", asks(Some("all"), &[])).await, "mirror, none, open");
    let mut wrong = asks(None, &["a.org"]);
    wrong.allow[0].to = "http://a.org".to_owned();
    refused(bed.create_with("a", wrong).await, "http://a.org");
    assert_eq!(bed.machines(), 0, "nothing was begun");
    let fine = bed.create_with("a", asks(Some("mirror"), &["b.org"])).await.unwrap();
    assert_eq!(bed.policies(&fine), [["packages.example:443", "b.org"]]);
    assert_eq!(bed.service.node_network().presets, ["mirror", "none", "open"]);
}

#[tokio::test]
async fn children_only_narrow() {
    let bed = Bed::new().await;
    let limits = Some(Limits { connections: 10, ..Limits::default() });
    let wish = NetworkRequest { limits, ..asks(None, &["a.org", "b.org"]) };
    bed.create_with("root", wish).await.unwrap();
    let same = bed.fork("root", &["same"]).await.remove(0).id;
    assert_eq!(bed.policies(&same), [["a.org", "b.org"]]);
    let limits = Some(Limits { connections: 99, bytes_per_s: 5, ..Limits::default() });
    let network = Some(NetworkRequest { limits, ..asks(Some("open"), &[]) });
    let wish = ForkRequest { network, ..ForkRequest::default() };
    let wide = bed.fork_as("root", &["wide"], wish).await.remove(0).id;
    assert_eq!(bed.policies(&wide), [vec!["a.org", "b.org"], vec!["*"]]);
    let limits = bed.network.port(&wide).unwrap().limits;
    assert_eq!((limits.connections, limits.bytes_per_s), (10, 5));
    // What it asks for itself is all that it can change.
    bed.service.set_network(&bed.me, "wide", asks(None, &["a.org"])).await.unwrap();
    assert_eq!(bed.policies(&wide), [vec!["a.org", "b.org"], vec!["a.org"]]);
    let deep = bed.fork("wide", &["deep"]).await.remove(0).id;
    assert_eq!(bed.policies(&deep), [vec!["a.org", "b.org"], vec!["a.org"]]);
    let shown = bed.service.network(&bed.me, "deep").await.unwrap();
    assert!(shown.layers.iter().all(|layer| layer.from == LayerSource::Source));
    // The source may change its mind; its children are on their own.
    bed.service.set_network(&bed.me, "root", asks(Some("none"), &[])).await.unwrap();
    assert_eq!(bed.policies(&same), [["a.org", "b.org"]]);
}

#[tokio::test]
async fn a_token_can_have_a_cap() {
    let bed = Bed::new().await;
    let admin = Principal::new(auth::ADMIN);
    bed.store.add_token(&auth::hash("ramet_admin"), auth::ADMIN, 1).unwrap();
    let tokens = Tokens::load(&bed.store).unwrap();
    let wish = CreateToken {
        principal: "me".to_owned(),
        allow: vec!["a.org".parse().unwrap()],
        ..CreateToken::default()
    };
    let denied = bed.service.create_token(&bed.me, &tokens, wish.clone()).await;
    assert!(matches!(denied, Err(Error::Denied(_))));
    let made = bed.service.create_token(&admin, &tokens, wish).await.unwrap();
    let capped = tokens.principal(&made.token).unwrap();
    assert_eq!(capped.name(), "me");
    let open = Some(asks(Some("open"), &[]));
    let id = bed.create_as(&capped, "capped", open.clone()).await.unwrap();
    assert_eq!(bed.policies(&id), [["a.org"], ["*"]]);
    // With another token of the same principal: what is forked or changed with the capped one is capped.
    let id = bed.create_as(&bed.me, "free", open).await.unwrap();
    let wish = ForkRequest { names: Some(vec!["kid".into()]), ..ForkRequest::default() };
    let forked = bed.service.fork(&capped, "free", wish, None, crate::http::problem_of).await;
    let kid = forked.unwrap().children[0].sandbox.clone().unwrap().id;
    assert_eq!(bed.policies(&kid), [["a.org"], ["*"]]);
    bed.service.set_network(&capped, "free", asks(Some("open"), &[])).await.unwrap();
    assert_eq!(bed.policies(&id), [["a.org"], ["*"]]);
    bed.service.delete_token(&admin, &tokens, &made.about.id).await.unwrap();
    assert_eq!(tokens.principal(&made.token), None);
    let last = bed.service.tokens(&admin).unwrap().tokens.remove(0);
    let kept = bed.service.delete_token(&admin, &tokens, &last.id).await;
    assert!(matches!(kept, Err(Error::InUse(_))));
}

#[tokio::test]
async fn templates_have_a_layer() {
    let bed = Bed::new().await;
    let build = BuildTemplate {
        name: "tool".to_owned(),
        run: vec!["put /a b".to_owned()],
        network: Some(asks(None, &["a.org"])),
        ..BuildTemplate::default()
    };
    bed.service.build_template(&bed.me, build.clone()).await.unwrap();
    let query = TemplateQuery { wait_s: Some(30) };
    let built = bed.service.get_template(&bed.me, "tool", &query).await.unwrap();
    assert_eq!(built.state, ramet_proto::api::TemplateState::Ready, "{built:?}");
    assert!(bed.network.names().is_empty(), "the build's port is gone");
    let request = CreateSandbox {
        name: Some("of-tool".to_owned()),
        template: Some("tool".to_owned()),
        network: Some(asks(Some("open"), &[])),
        ..CreateSandbox::default()
    };
    let made = bed.service.create(&bed.me, request, None).await.unwrap().sandbox;
    assert_eq!(bed.policies(&made.id), [["a.org"], ["*"]]);
    // The line keeps it, whatever is made of it.
    let commit = CreateCommit { wait: true, ..CreateCommit::default() };
    let commit = bed.service.commit_sandbox(&bed.me, "of-tool", commit).await.unwrap().id;
    let network = Some(asks(Some("open"), &[]));
    let request = CreateSandbox { commit: Some(commit), network, ..CreateSandbox::default() };
    let again = bed.service.create(&bed.me, request, None).await.unwrap().sandbox.id;
    assert_eq!(bed.policies(&again), [["a.org"], ["*"]]);
    let secret = NetworkRequest { edge: vec![edge("{secret:K}")], ..asks(None, &[]) };
    let wrong = BuildTemplate { name: "x".into(), network: Some(secret), ..build };
    let wrong = bed.service.build_template(&bed.me, wrong).await;
    assert!(matches!(wrong, Err(Error::Unsupported(_))));
}

#[tokio::test]
async fn a_port_is_there_as_long_as_the_machine_runs() {
    let bed = Bed::new().await;
    let id = bed.create("a").await.id;
    let attached = |bed: &Bed| bed.network.counts().0;
    let before = attached(&bed);
    bed.service.pause(&bed.me, "a", PauseRequest { memory: true, disk: false }).await.unwrap();
    assert!(bed.network.names().is_empty());
    let shown = bed.service.network(&bed.me, "a").await.unwrap();
    assert_eq!((shown.connected, shown.reason.as_deref()), (false, Some("it does not run")));
    let log = bed.service.network_log(&bed.me, "a", &Default::default()).await;
    assert!(matches!(log, Err(Error::WrongState(_))), "the network is well: {log:?}");
    bed.service.resume(&bed.me, "a").await.unwrap();
    assert_eq!(bed.network.names(), std::slice::from_ref(&id));
    bed.service.pause(&bed.me, "a", PauseRequest::default()).await.unwrap();
    bed.service.resume(&bed.me, "a").await.unwrap();
    assert_eq!(attached(&bed), before + 2);
    bed.service.checkpoint(&bed.me, "a", Some("cut".into())).await.unwrap();
    bed.service.rewind(&bed.me, "a", "cut".to_owned()).await.unwrap();
    assert_eq!(attached(&bed), before + 3, "connections to the outside are reset");
    let kid = bed.fork("a", &["kid"]).await.remove(0).id;
    assert_eq!(bed.network.names().len(), 2);
    let winner = PromoteRequest { winner: kid, inherit_secrets: None };
    bed.service.promote(&bed.me, "a", &winner).await.unwrap();
    assert_eq!(bed.network.names(), std::slice::from_ref(&id));
    assert!(bed.service.network(&bed.me, "a").await.unwrap().connected);
    let machine = bed.service.find(&bed.me, "a").unwrap().machine.unwrap();
    bed.engine.crash(&machine);
    bed.eventually("the port of a failed sandbox goes", |bed| bed.network.names().is_empty()).await;
    bed.service.rewind(&bed.me, "a", "cut".to_owned()).await.unwrap();
    assert_eq!(bed.network.names(), [id]);
    bed.service.delete(&bed.me, "a").await.unwrap();
    assert!(bed.network.names().is_empty());
}

#[tokio::test]
async fn ports_outlive_the_node_and_are_made_again_when_the_service_ends() {
    let bed = Bed::new().await;
    let id = bed.create_with("a", asks(None, &["a.org"])).await.unwrap();
    let attached = bed.network.counts().0;
    let bed = bed.restart().await;
    assert_eq!(bed.network.counts(), (attached, 1), "the link is still there");
    assert!(bed.service.network(&bed.me, "a").await.unwrap().connected);
    bed.service.keep_network();
    bed.network.die();
    let back = |bed: &Bed| bed.network.names() == [id.clone()];
    bed.eventually("all are connected again", back).await;
    assert_eq!(bed.policies(&id), [["a.org"]]);
    assert_eq!(bed.network.counts(), (attached + 1, 2));
    // A link whose other end is gone is made anew, and a port that nobody has goes.
    let machine = bed.service.find(&bed.me, "a").unwrap().machine.unwrap();
    bed.service.host.call(move |engine| engine.plug(&machine, None)).await.unwrap();
    let again = |bed: &Bed| bed.network.counts().0 == attached + 2;
    bed.eventually("a lost link is seen", again).await;
}

#[tokio::test]
async fn without_a_network_everything_else_works() {
    let bed = Bed::new().await;
    bed.network.break_down(true);
    bed.network.die();
    bed.service.keep_network();
    let id = bed.create_with("a", asks(Some("open"), &[])).await.unwrap();
    assert_eq!(bed.run("a", "hostname").await, "a");
    bed.fork("a", &["kid"]).await;
    let shown = bed.service.network(&bed.me, "a").await.unwrap();
    assert!(!shown.connected && shown.reason.unwrap().contains("broken"));
    assert!(!bed.service.node_network().up);
    let log = bed.service.network_log(&bed.me, "a", &NetworkLogQuery::default()).await;
    assert!(matches!(log, Err(Error::NoNetwork(_))));
    // A change is kept, and holds when it is back.
    bed.service.set_network(&bed.me, "a", asks(None, &["a.org"])).await.unwrap();
    bed.network.break_down(false);
    bed.eventually("it is back", |bed| bed.network.names().len() == 2).await;
    assert_eq!(bed.policies(&id), [["a.org"]]);
}

#[tokio::test]
async fn a_machine_that_cannot_be_connected_says_so() {
    let bed = Bed::new().await;
    bed.engine.without_network();
    bed.create("a").await;
    let shown = bed.service.network(&bed.me, "a").await.unwrap();
    assert!(!shown.connected && shown.reason.unwrap().contains("no network device"));
    assert!(bed.network.names().is_empty());
}

#[tokio::test]
async fn secrets_stay_at_the_edge() {
    let bed = Bed::new().await;
    let wish = || NetworkRequest {
        edge: vec![edge("Bearer {secret:KEY}")],
        ..asks(None, &["api.example.org"])
    };
    let missing = bed.create_with("a", wish()).await;
    assert!(matches!(&missing, Err(Error::Bad(text)) if text.contains("ramet secret set KEY")));
    bed.put_secret("KEY", "s3cret").await;
    let id = bed.create_with("a", wish()).await.unwrap();
    let port = bed.network.port(&id).unwrap();
    assert_eq!(port.edge[0].value, "Bearer s3cret");
    let authority = port.authority.unwrap().certificate;
    assert_eq!(bed.engine.trusts("a"), Some(authority.clone()));
    // A new value is there at once.
    bed.put_secret("KEY", "changed").await;
    assert_eq!(bed.network.port(&id).unwrap().edge[0].value, "Bearer changed");
    let used = bed.service.delete_secret(&bed.me, "KEY").await;
    assert!(matches!(used, Err(Error::InUse(_))));
    // Forks have rules only if they are passed on.
    let without = bed.fork("a", &["without"]).await.remove(0).id;
    assert!(bed.network.port(&without).unwrap().edge.is_empty());
    assert_eq!(bed.engine.trusts("without"), None);
    let keep = ForkRequest { keep_edge: true, ..ForkRequest::default() };
    let with = bed.fork_as("a", &["with"], keep).await.remove(0).id;
    assert_eq!(bed.network.port(&with).unwrap().edge[0].value, "Bearer changed");
    assert_eq!(bed.engine.trusts("with"), Some(authority));
    let you = Principal::new("you");
    assert!(bed.service.secrets(&you).unwrap().secrets.is_empty());
    // Nobody is told the value.
    let shown = bed.service.network(&bed.me, "a").await.unwrap();
    let told = format!(
        "{shown:?} {:?} {:?} {:?}",
        bed.service.secrets(&bed.me).unwrap(),
        bed.store.operations(100).unwrap(),
        bed.service.find(&bed.me, "a").unwrap()
    );
    assert!(!told.contains("changed") && !told.contains("s3cret"), "{told}");
    bed.service.set_network(&bed.me, "a", asks(None, &[])).await.unwrap();
    bed.service.set_network(&bed.me, "with", asks(None, &[])).await.unwrap();
    assert!(bed.network.port(&id).unwrap().edge.is_empty());
    bed.service.delete_secret(&bed.me, "KEY").await.unwrap();
    for bad in ["", " x", "x\n", "ä", &"x".repeat(4097)] {
        let put = bed.service.put_secret(&bed.me, "KEY", PutSecret { value: bad.to_owned() }).await;
        assert!(matches!(put, Err(Error::Bad(_))), "{bad:?}");
    }
}

#[tokio::test]
async fn what_a_guest_trusts_follows_its_record() {
    let bed = Bed::new().await;
    bed.put_secret("KEY", "s3cret").await;
    bed.create("a").await;
    bed.service.checkpoint(&bed.me, "a", Some("before".into())).await.unwrap();
    let wish = NetworkRequest { edge: vec![edge("{secret:KEY}")], ..asks(None, &[]) };
    bed.service.set_network(&bed.me, "a", wish).await.unwrap();
    let trusted = bed.engine.trusts("a");
    assert!(trusted.is_some());
    bed.service.rewind(&bed.me, "a", "before".to_owned()).await.unwrap();
    assert_eq!(bed.engine.trusts("a"), trusted, "although the moment is of before");
    let kid = bed.fork("a", &["kid"]).await.remove(0);
    assert_eq!(bed.engine.trusts("kid"), None);
    let promote = PromoteRequest { winner: kid.id, inherit_secrets: None };
    bed.service.promote(&bed.me, "a", &promote).await.unwrap();
    assert_eq!(bed.engine.trusts("a"), trusted);
    let template = BuildTemplate {
        name: "of-a".to_owned(),
        sandbox: Some("a".to_owned()),
        ..BuildTemplate::default()
    };
    bed.service.build_template(&bed.me, template).await.unwrap();
    bed.service.get_template(&bed.me, "of-a", &TemplateQuery { wait_s: Some(30) }).await.unwrap();
    let request = CreateSandbox {
        name: Some("new".to_owned()),
        template: Some("of-a".to_owned()),
        ..CreateSandbox::default()
    };
    bed.service.create(&bed.me, request, None).await.unwrap();
    assert_eq!(bed.engine.trusts("new"), None);
}

#[tokio::test]
async fn what_leaves_a_sandbox_that_holds_secrets_is_said() {
    let bed = Bed::new().await;
    let request = CreateSandbox {
        name: Some("a".to_owned()),
        secrets: pairs(&[("KEY", "s3cret")]),
        ..CreateSandbox::default()
    };
    bed.service.create(&bed.me, request, None).await.unwrap();
    let commit =
        |inherit_secrets, disk| CreateCommit { inherit_secrets, disk, ..CreateCommit::default() };
    let made = |commit| bed.service.commit_sandbox(&bed.me, "a", commit);
    assert!(matches!(made(commit(None, false)).await, Err(Error::HoldsSecrets(_))));
    assert!(matches!(made(commit(Some(false), false)).await, Err(Error::Unsupported(_))));
    made(commit(Some(true), false)).await.unwrap();
    made(commit(None, true)).await.unwrap();
    let template = |inherit_secrets| BuildTemplate {
        name: "t".to_owned(),
        sandbox: Some("a".to_owned()),
        inherit_secrets,
        ..BuildTemplate::default()
    };
    let built = |template| bed.service.build_template(&bed.me, template);
    assert!(matches!(built(template(None)).await, Err(Error::HoldsSecrets(_))));
    assert!(matches!(built(template(Some(true))).await, Err(Error::Unsupported(_))));
    built(template(Some(false))).await.unwrap();
    // Passed on and back again, it is no news; something else is.
    let heir = ForkRequest { inherit_secrets: Some(true), ..ForkRequest::default() };
    let heir = bed.fork_as("a", &["heir"], heir).await.remove(0).id;
    let promote = |winner: &str, inherit_secrets| PromoteRequest {
        winner: winner.to_owned(),
        inherit_secrets,
    };
    bed.service.promote(&bed.me, "a", &promote(&heir, None)).await.unwrap();
    let secrets = pairs(&[("OTHER", "x")]);
    let other = ForkRequest { inherit_secrets: Some(false), secrets, ..ForkRequest::default() };
    let other = bed.fork_as("a", &["other"], other).await.remove(0).id;
    let unsaid = bed.service.promote(&bed.me, "a", &promote(&other, None)).await;
    assert!(matches!(unsaid, Err(Error::HoldsSecrets(_))));
    bed.service.promote(&bed.me, "a", &promote(&other, Some(true))).await.unwrap();
    assert_eq!(bed.service.get(&bed.me, "a").unwrap().secret_names, ["KEY", "OTHER"]);
}

#[tokio::test]
async fn links_lead_to_ports_until_they_are_over() {
    let bed = Bed::new().await;
    let id = bed.create("a").await.id;
    let make = |expires_s, public| {
        bed.service.create_link(&bed.me, "a", CreateLink { port: 80, expires_s, public })
    };
    let link = make(None, false).await.unwrap();
    let secret =
        link.path.as_deref().unwrap().trim_matches('/').strip_prefix("l/").unwrap().to_owned();
    let (who, found, port) = bed.service.follow_link(&secret).unwrap();
    assert_eq!((who.name(), found, port), ("me", id, 80));
    let stored = format!("{:?}", bed.store.links().unwrap());
    assert!(
        !stored.contains(&secret)
            && bed.service.links(&bed.me, "a").unwrap().links[0].path.is_none()
    );
    let bed = bed.restart().await;
    bed.service.follow_link(&secret).unwrap();
    assert!(bed.service.follow_link("ffff").is_err());
    bed.service.delete_link(&bed.me, "a", &link.id[..8]).await.unwrap();
    assert!(bed.service.follow_link(&secret).is_err());
    let make = |expires_s, public| {
        bed.service.create_link(&bed.me, "a", CreateLink { port: 80, expires_s, public })
    };
    let of = |link: &ramet_proto::api::network::Link| link.path.as_ref().unwrap()[3..67].to_owned();
    let short = of(&make(Some(1), false).await.unwrap());
    let public = make(None, true).await.unwrap();
    assert_eq!(public.expires_at_ms, None);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(bed.service.follow_link(&short).is_err());
    bed.service.follow_link(&of(&public)).unwrap();
    assert_eq!(bed.service.links(&bed.me, "a").unwrap().links.len(), 1);
    bed.service.delete(&bed.me, "a").await.unwrap();
    assert!(bed.service.follow_link(&of(&public)).is_err());
    assert!(bed.store.links().unwrap().iter().all(|one| one.id != public.id));
}

#[tokio::test]
async fn a_port_can_be_waited_for() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let query = |path: Option<&str>, timeout_s| ramet_proto::api::network::PortWaitQuery {
        path: path.map(str::to_owned),
        timeout_s: Some(timeout_s),
    };
    let ready = bed.service.wait_port(&bed.me, "a", port, &query(None, 5)).await.unwrap();
    assert_eq!((ready.port, ready.status), (port, None));
    // It does not speak yet, then it fails, then it is there.
    std::thread::spawn(move || {
        for status in
            ["no HTTP at all", "HTTP/1.1 503 No\r\n\r\n", "HTTP/1.1 404 Not Found\r\n\r\n"]
        {
            let (mut stream, _) = socket.accept().unwrap();
            use std::io::{Read, Write};
            assert!(stream.read(&mut [0; 1024]).is_ok());
            stream.write_all(status.as_bytes()).unwrap();
        }
        drop(socket.accept());
    });
    // The first connection was the one above.
    drop(bed.service.wait_port(&bed.me, "a", port, &query(None, 5)).await);
    let ready = bed.service.wait_port(&bed.me, "a", port, &query(Some("/"), 20)).await.unwrap();
    assert_eq!(ready.status, Some(404));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let late = bed.service.wait_port(&bed.me, "a", free, &query(None, 0)).await;
    assert!(matches!(late, Err(Error::NotInTime(_))), "{late:?}");
    let wrong = bed.service.wait_port(&bed.me, "a", free, &query(Some("x"), 0)).await;
    assert!(matches!(wrong, Err(Error::Bad(_))));
}
