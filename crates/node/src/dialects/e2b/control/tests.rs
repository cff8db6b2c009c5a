//! E2B's REST API on an engine without machines: what SDKs send, and what they get.

mod builds;
mod reach;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use ramet_proto::api::{CreateSandbox, EventKind};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::time;
use crate::auth::{self, Tokens};
use crate::clock::now_ms;
use crate::dialects::e2b::{E2b, Keys, inner_id, outer_id, over};
use crate::host::Host;
use crate::host::fake::Fake;
use crate::host::net::fake::FakeNet;
use crate::http::{self, App, USUAL};
use crate::sandbox::{Service, Settings};
use crate::store::Store;

const KEY: &str = "e2b_0123456789abcdef";
const OTHER: &str = "e2b_fedcba9876543210";

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Answer {
    #[track_caller]
    fn is(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        if self.bytes.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&self.bytes).unwrap()
    }

    /// It is an error in E2B's shape that says this.
    #[track_caller]
    fn refused(&self, status: u16, says: &str) {
        let error = self.is(status);
        assert_eq!(error["code"], status, "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    }

    fn next(&self) -> Option<&str> {
        self.headers.get("x-next-token").map(|value| value.to_str().unwrap())
    }
}

struct Bed {
    engine: Arc<Fake>,
    service: Service,
    store: Arc<Store>,
    routes: Router,
    data: Arc<tempfile::TempDir>,
}

impl Bed {
    async fn new() -> Self {
        let store = Arc::new(Store::in_memory().unwrap());
        for (key, name) in [(KEY, "me"), (OTHER, "you")] {
            let token = key.replace("e2b_", "ramet_");
            store.add_token(&auth::hash(&token), name, 1).unwrap();
        }
        Self::on(Fake::new(), store, Arc::new(tempfile::tempdir().unwrap())).await
    }

    async fn on(engine: Arc<Fake>, store: Arc<Store>, data: Arc<tempfile::TempDir>) -> Self {
        let tokens = Tokens::load(&store).unwrap();
        let settings = Settings { data_dir: data.path().to_owned(), ..Settings::default() };
        let host = Host::new(engine.clone(), FakeNet::new());
        let service = Service::new(host, store.clone(), settings);
        service.recover().await.unwrap();
        service.start_network().await;
        let app = App::new(service.clone(), tokens, USUAL);
        let keys = Keys::load(&data.path().join("e2b.key")).unwrap();
        let domain = Some("box.example".to_owned());
        let routes =
            over(http::routes(app.clone()), E2b { app, keys, domain, data: Default::default() });
        Self { engine, service, store, routes, data }
    }

    /// As after a kill -9 of the node.
    async fn restart(self) -> Self {
        self.service.stopping().cancel();
        Self::on(self.engine, self.store, self.data).await
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: parts.status, headers: parts.headers, bytes }
    }

    async fn call_as(&self, key: &str, method: &str, path: &str, body: Value) -> Answer {
        let request = Request::builder().method(method).uri(path).header("x-api-key", key);
        let request = request.header("host", "node.example:1234");
        let request = request.header("content-type", "application/json");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.send(request.body(body).unwrap()).await
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        self.call_as(KEY, method, path, body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, body).await
    }

    /// A sandbox, by its id.
    async fn create(&self, more: Value) -> String {
        let mut body = json!({"templateID": "base"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = self.post("/v2/sandboxes", body).await.is(201);
        made["sandboxID"].as_str().unwrap().to_owned()
    }

    /// Seconds until the end of a sandbox.
    async fn left(&self, id: &str) -> i64 {
        let info = self.get(&format!("/sandboxes/{id}")).await.is(200);
        let end = time::parse(info["endAt"].as_str().unwrap()).unwrap();
        let left = i128::from(end) - i128::from(now_ms());
        i64::try_from((left + 500).div_euclid(1000)).unwrap()
    }

    async fn ids(&self, path: &str) -> Vec<String> {
        let list = self.get(path).await.is(200);
        let id = |one: &Value| one["sandboxID"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(id).collect()
    }
}

#[tokio::test]
async fn keys_are_asked_for_everywhere() {
    let bed = Bed::new().await;
    for path in ["/sandboxes", "/v2/sandboxes", "/templates", "/volumes", "/secrets", "/snapshots"]
    {
        for key in ["", "e2b_00", "ramet_00"] {
            bed.call_as(key, "GET", path, Value::Null).await.refused(401, "X-API-KEY");
        }
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        bed.send(request).await.refused(401, "X-API-KEY");
        for token in [KEY, "ramet_0123456789abcdef"] {
            let request = Request::builder().uri(path);
            let request = request.header("authorization", format!("Bearer {token}"));
            bed.send(request.body(Body::empty()).unwrap()).await.is(200);
        }
    }
    bed.get("/sandboxes/x/nothing").await.refused(404, "no route");
    bed.get("/v2/nothing").await.refused(404, "no route");
    bed.call("PUT", "/v2/sandboxes", Value::Null).await.refused(405, "PUT");
    bed.get("/volumecontent/vol-1/file").await.refused(501, "volumes");
}

#[tokio::test]
async fn a_sandbox_as_sdks_make_it() {
    let bed = Bed::new().await;
    let body = json!({
        "templateID": "base", "timeout": 60, "secure": true, "autoPause": true,
        "autoResume": {"enabled": true}, "allow_internet_access": true,
        "metadata": {"user": "ann", "a b": "ü"}, "envVars": {"A": "1"},
        "network": {"allowPublicTraffic": false}, "mcp": null,
    });
    let made = bed.post("/sandboxes", body).await.is(201);
    let id = made["sandboxID"].as_str().unwrap();
    assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    assert_eq!(made["templateID"], "base");
    assert_eq!(made["clientID"], "ramet");
    assert_eq!(made["envdVersion"], "0.6.13");
    assert_eq!(made["domain"], "box.example");
    let tokens = (made["envdAccessToken"].as_str(), made["trafficAccessToken"].as_str());
    assert!(tokens.0.is_some() && tokens.1.is_some() && tokens.0 != tokens.1);
    let info = bed.get(&format!("/sandboxes/{id}")).await.is(200);
    assert_eq!(info["metadata"], json!({"user": "ann", "a b": "ü"}));
    assert_eq!(info["state"], "running");
    assert_eq!(info["lifecycle"], json!({"autoResume": true, "onTimeout": "pause"}));
    assert_eq!(info["allowInternetAccess"], true);
    assert_eq!(info["network"]["allowPublicTraffic"], false);
    assert_eq!(info["envdAccessToken"], made["envdAccessToken"]);
    assert_eq!(bed.left(id).await, 60);
    let record = bed.service.get(&auth::Principal::new("me"), id).unwrap();
    assert_eq!(record.env["A"], "1");
    assert_eq!(record.labels["e2b.traffic"], "private");
    // Nobody else sees it.
    let path = format!("/sandboxes/{id}");
    bed.call_as(OTHER, "GET", &path, Value::Null).await.refused(404, "no sandbox");
    bed.call_as(OTHER, "DELETE", &path, Value::Null).await.refused(404, "no sandbox");
    assert_eq!(bed.call_as(OTHER, "GET", "/sandboxes", Value::Null).await.is(200), json!([]));
    bed.get(&format!("/sandboxes/{}", &id[..8])).await.refused(404, "not found");
    bed.call("DELETE", &path, Value::Null).await.is(204);
    bed.call("DELETE", &path, Value::Null).await.refused(404, "");
    bed.get(&path).await.refused(404, "");
}

#[tokio::test]
async fn a_sandbox_that_failed_can_be_killed() {
    let bed = Bed::new().await;
    let id = bed.create(json!({})).await;
    let me = auth::Principal::new("me");
    let mut events = bed.service.events.listen();
    bed.engine.crash(&bed.engine.machine_of(&inner_id(&id).unwrap()));
    assert_eq!(events.recv().await.unwrap().event.kind, EventKind::Failed);
    let path = format!("/sandboxes/{id}");
    bed.get(&path).await.refused(404, "not found");
    bed.call_as(OTHER, "DELETE", &path, Value::Null).await.refused(404, "no sandbox");
    bed.call("DELETE", &path, Value::Null).await.is(204);
    assert!(bed.service.get(&me, &id).is_err());
}

#[tokio::test]
async fn ports_of_a_sandbox_that_was_made_otherwise_have_a_token() {
    let bed = Bed::new().await;
    let me = auth::Principal::new("me");
    let made = bed.service.create(&me, CreateSandbox::default(), None).await.unwrap();
    let path = format!("/sandboxes/{}/connect", outer_id(&made.sandbox.id));
    let seen = bed.post(&path, json!({"timeout": 60})).await.is(200);
    assert!(seen["trafficAccessToken"].is_string(), "{seen}");
    let own = bed.post("/sandboxes", json!({"templateID": "base"})).await.is(201);
    assert!(own["trafficAccessToken"].is_null(), "{own}");
}

#[tokio::test]
async fn what_is_not_supported_is_named() {
    let bed = Bed::new().await;
    for (more, status, says) in [
        (json!({"mcp": {"x": {}}}), 501, "mcp"),
        (json!({"iam": {"tokens": {}}}), 501, "iam"),
        (json!({"nonsense": 1}), 400, "nonsense"),
        (json!({"timeout": 0}), 400, "timeout"),
        (json!({"autoPauseMemory": false, "autoResume": {"enabled": true}}), 400, "autoResume"),
        (json!({"autoPauseMemory": false, "autoPause": true}), 501, "autoPauseMemory"),
        (json!({"templateID": "nothing"}), 404, "nothing"),
        (json!({"templateID": "you/base"}), 404, "namespace"),
        (json!({"volumeMounts": [{"name": "gone", "path": "/x"}]}), 404, "gone"),
        (json!({"network": {"dnsServers": ["192.0.2.1"]}}), 501, "dnsServers"),
        (json!({"network": {"egressProxy": {"address": "a"}}}), 501, "egressProxy"),
        (json!({"network": {"maskRequestHost": "a"}}), 501, "maskRequestHost"),
        (json!({"network": {"httpsPorts": [8443]}}), 501, "httpsPorts"),
    ] {
        let mut body = json!({"templateID": "base"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        bed.post("/v2/sandboxes", body).await.refused(status, says);
    }
    let id = bed.create(json!({})).await;
    bed.post(&format!("/sandboxes/{id}/timeout"), json!({})).await.refused(400, "timeout");
    bed.post("/secrets", json!({"name": "a", "value": "b", "metadata": {"k": "v"}}))
        .await
        .refused(501, "metadata");
}

#[tokio::test]
async fn time_is_counted_from_now() {
    let bed = Bed::new().await;
    let id = bed.create(json!({})).await;
    assert_eq!(bed.left(&id).await, 300);
    let first = bed.post("/sandboxes", json!({"templateID": "base"})).await.is(201);
    assert_eq!(bed.left(first["sandboxID"].as_str().unwrap()).await, 15);
    let at = |what: &str| format!("/sandboxes/{id}/{what}");
    bed.post(&at("timeout"), json!({"timeout": 100})).await.is(204);
    assert_eq!(bed.left(&id).await, 100);
    bed.post(&at("refreshes"), json!({"duration": 50})).await.is(204);
    assert_eq!(bed.left(&id).await, 100);
    bed.post(&at("refreshes"), json!({"duration": 200})).await.is(204);
    assert_eq!(bed.left(&id).await, 200);
    // Connect only ever extends.
    let connected = bed.post(&at("connect"), json!({"timeout": 20})).await.is(200);
    assert_eq!(connected["sandboxID"], json!(id));
    assert_eq!(bed.left(&id).await, 200);
    bed.post(&format!("/v2/sandboxes/{id}/connect"), Value::Null).await.is(200);
    assert_eq!(bed.left(&id).await, 300);
    bed.post(&at("timeout"), json!({"timeout": 0})).await.is(204);
    bed.get(&format!("/sandboxes/{id}")).await.refused(404, "");
}

#[tokio::test]
async fn a_pause_outlives_the_time() {
    let bed = Bed::new().await;
    let id = bed.create(json!({"timeout": 30, "metadata": {"k": "v"}})).await;
    let at = |what: &str| format!("/sandboxes/{id}/{what}");
    bed.post(&at("resume"), json!({})).await.refused(409, "running");
    bed.post(&at("pause"), json!({"requireHealthyGuest": true})).await.is(204);
    bed.post(&at("pause"), json!({})).await.refused(409, "paused");
    bed.post(&at("timeout"), json!({"timeout": 9})).await.refused(409, "paused");
    let info = bed.get(&format!("/sandboxes/{id}")).await.is(200);
    assert_eq!((&info["state"], &info["pauseMode"]), (&json!("paused"), &json!("full")));
    assert_eq!(info["lifecycle"]["onTimeout"], "kill");
    assert_eq!(info["metadata"], json!({"k": "v"}));
    assert_eq!(bed.get(&at("metrics")).await.is(200), json!([]));
    assert_eq!(bed.get(&format!("/v2/sandboxes/{id}/logs")).await.is(200)["logs"], json!([]));
    let record = bed.service.get(&auth::Principal::new("me"), &id).unwrap();
    assert_eq!(record.ends_at_ms, None);
    bed.post(&at("connect"), json!({"timeout": 5, "memory": false})).await.refused(501, "memory");
    bed.post(&at("connect"), json!({"timeout": 5})).await.is(201);
    assert_eq!(bed.left(&id).await, 5);
    let record = bed.service.get(&auth::Principal::new("me"), &id).unwrap();
    assert_eq!(record.on_timeout, ramet_proto::api::OnTimeout::Kill);
    assert!(!record.labels.contains_key("e2b.on-timeout"));
    bed.post(&at("pause"), Value::Null).await.is(204);
    bed.post(&at("resume"), json!({"autoPause": true})).await.is(201);
    assert_eq!(bed.left(&id).await, 15);
    let info = bed.get(&format!("/sandboxes/{id}")).await.is(200);
    assert_eq!(info["lifecycle"]["onTimeout"], "pause");
    bed.post(&at("pause"), json!({"memory": false})).await.is(204);
    let info = bed.get(&format!("/sandboxes/{id}")).await.is(200);
    assert_eq!((&info["state"], &info["pauseMode"]), (&json!("paused"), &json!("filesystem")));
    bed.post(&at("connect"), json!({"timeout": 5, "memory": false})).await.is(201);
}

#[tokio::test]
async fn forks_of_what_runs_and_of_what_is_paused() {
    let bed = Bed::new().await;
    let metadata = json!({"k": "v"});
    let network = json!({"allowPublicTraffic": false});
    let id = bed.create(json!({"timeout": 30, "metadata": metadata, "network": network})).await;
    let path = format!("/sandboxes/{id}/fork");
    for count in [0, 101] {
        bed.post(&path, json!({"count": count})).await.refused(400, "count");
    }
    let mut seen = vec![id.clone()];
    for paused in [false, true] {
        if paused {
            bed.post(&format!("/sandboxes/{id}/pause"), json!({})).await.is(204);
        }
        let forked = bed.post(&path, json!({"count": 2, "timeout": 77})).await.is(201);
        for child in forked.as_array().unwrap() {
            let child = &child["sandbox"];
            let own = child["sandboxID"].as_str().unwrap().to_owned();
            assert!(child["trafficAccessToken"].is_string(), "{child}");
            assert_eq!(bed.left(&own).await, 77);
            let info = bed.get(&format!("/sandboxes/{own}")).await.is(200);
            assert_eq!((&info["state"], &info["metadata"]), (&json!("running"), &metadata));
            assert_eq!(info["lifecycle"]["onTimeout"], "kill");
            seen.push(own);
        }
    }
    let one = bed.post(&path, Value::Null).await.is(201);
    let own = one[0]["sandbox"]["sandboxID"].as_str().unwrap();
    assert_eq!(bed.left(own).await, 15);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5);
    let source = bed.create(json!({})).await;
    bed.engine.fail_children(&[0]);
    let forked = bed.post(&format!("/sandboxes/{source}/fork"), json!({"count": 2})).await.is(201);
    assert!(forked[0]["error"]["code"].is_u64() && forked[1]["sandbox"].is_object(), "{forked}");
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let bed = Bed::new().await;
    let mut all = Vec::new();
    for number in 0..5 {
        let k = if number % 2 == 0 { "v a" } else { "other" };
        all.push(bed.create(json!({"metadata": {"k": k, "n": number.to_string()}})).await);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    bed.post(&format!("/sandboxes/{}/pause", all[4]), json!({})).await.is(204);
    let newest: Vec<String> = all.iter().rev().cloned().collect();
    assert_eq!(bed.ids("/v2/sandboxes").await, newest);
    assert_eq!(bed.ids("/v2/sandboxes?order=asc").await, all);
    assert_eq!(bed.ids("/v2/sandboxes?state=paused").await, [all[4].clone()]);
    assert_eq!(bed.ids("/v2/sandboxes?state=running%2Cpaused").await.len(), 5);
    let filtered = "/v2/sandboxes?order=asc&metadata=k%3Dv%252520a";
    assert_eq!(bed.ids(filtered).await, [&all[0], &all[2], &all[4]].map(String::clone));
    assert_eq!(bed.ids("/sandboxes?metadata=k%3Dv%252520a").await.len(), 2);
    assert_eq!(bed.ids("/v2/sandboxes?template=base").await.len(), 5);
    assert!(bed.ids("/v2/sandboxes?template=other").await.is_empty());
    let info = bed.get(&format!("/sandboxes/{}", all[1])).await.is(200);
    let after = info["startedAt"].as_str().unwrap();
    assert_eq!(bed.ids(&format!("/v2/sandboxes?startedAfter={after}")).await.len(), 3);
    let (mut path, mut seen) = ("/v2/sandboxes?limit=2".to_owned(), Vec::new());
    loop {
        let answer = bed.get(&path).await;
        assert_eq!(answer.headers["x-total-running"], "4");
        let page = answer.is(200);
        seen.extend(page.as_array().unwrap().iter().map(|one| one["sandboxID"].clone()));
        let Some(next) = answer.next() else { break };
        path = format!("/v2/sandboxes?limit=2&nextToken={next}");
    }
    assert_eq!(Value::Array(seen), json!(newest));
    for bad in ["limit=0", "limit=101", "state=gone", "startedAfter=x", "what=1", "nextToken=x"] {
        bed.get(&format!("/v2/sandboxes?{bad}")).await.refused(400, "");
    }
}

#[tokio::test]
async fn snapshots_by_name_and_by_id() {
    let bed = Bed::new().await;
    let id = bed.create(json!({})).await;
    let path = format!("/sandboxes/{id}/snapshots");
    let plain = bed.post(&path, json!({})).await.is(201)["snapshotID"].as_str().unwrap().to_owned();
    assert!(plain.ends_with(":default"), "{plain}");
    let named = bed.post(&path, json!({"name": "my-state"})).await.is(201);
    assert_eq!(named, json!({"snapshotID": "my-state:default", "names": ["my-state:default"]}));
    bed.post(&path, json!({"name": "my-state:v2"})).await.is(201);
    bed.post(&path, json!({"name": "a b"})).await.refused(400, "a b");
    let bare = plain.strip_suffix(":default").unwrap();
    for reference in [&plain, bare, "my-state", "my-state:default", "me/my-state:v2"] {
        let made = bed.post("/v2/sandboxes", json!({"templateID": reference})).await.is(201);
        assert!(made["templateID"].is_string());
        let own = made["sandboxID"].as_str().unwrap();
        bed.call("DELETE", &format!("/sandboxes/{own}"), Value::Null).await.is(204);
    }
    bed.post("/v2/sandboxes", json!({"templateID": "my-state:v3"})).await.refused(404, "v3");
    let count = async |query: &str| {
        bed.get(&format!("/snapshots{query}")).await.is(200).as_array().unwrap().len()
    };
    assert_eq!(count("").await, 3);
    assert_eq!(count(&format!("?sandboxID={id}")).await, 3);
    assert_eq!(count("?sandboxID=other").await, 0);
    assert_eq!(count("?name=my-state").await, 1);
    let page = bed.get("/snapshots?limit=2").await;
    let next = page.next().unwrap().to_owned();
    assert_eq!(count(&format!("?limit=2&nextToken={next}")).await, 1);
    let none = bed.call_as(OTHER, "GET", "/snapshots", Value::Null).await.is(200);
    assert_eq!(none, json!([]));
    for gone in ["my-state", "my-state%3Av2", &plain.replace(':', "%3A")] {
        let path = format!("/templates/{gone}");
        bed.call_as(OTHER, "DELETE", &path, Value::Null).await.refused(404, "not found");
        bed.call("DELETE", &path, Value::Null).await.is(204);
        bed.call("DELETE", &path, Value::Null).await.refused(404, "not found");
    }
    assert_eq!(count("").await, 0);
}

#[tokio::test]
async fn figures_and_lines() {
    let bed = Bed::new().await;
    let id = bed.create(json!({})).await;
    let metrics = bed.get(&format!("/sandboxes/{id}/metrics")).await.is(200);
    for field in ["cpuUsedPct", "memTotal", "memUsed", "memCache", "diskTotal", "timestampUnix"] {
        assert!(metrics[0][field].is_number(), "{metrics}");
    }
    assert_eq!(bed.get(&format!("/sandboxes/{id}/metrics?end=1")).await.is(200), json!([]));
    let many = bed.get(&format!("/sandboxes/metrics?sandbox_ids={id},gone")).await.is(200);
    assert_eq!(many["sandboxes"].as_object().unwrap().len(), 1);
    let logs = async |query: &str| {
        let answer = bed.get(&format!("/v2/sandboxes/{id}/logs{query}")).await.is(200);
        answer["logs"].as_array().unwrap().clone()
    };
    assert_eq!(logs("").await[0]["message"], "hello");
    assert_eq!(logs("?search=ell&direction=backward&level=info&limit=5").await.len(), 1);
    assert!(logs("?search=nothing").await.is_empty() && logs("?level=error").await.is_empty());
    let legacy = bed.get(&format!("/sandboxes/{id}/logs?limit=1")).await.is(200);
    assert_eq!(legacy["logs"][0]["line"], "hello");
}
