//! The API over HTTP, on an engine without machines: every route once as it should be, and with
//! hostile input.

mod code;
mod network;
mod reach;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tower::ServiceExt;

use super::{App, USUAL, router};
use crate::auth::{self, Tokens};
use crate::host::Host;
use crate::host::fake::Fake;
use crate::host::net::fake::FakeNet;
use crate::sandbox::{Service, Settings};
use crate::store::Store;

const TOKEN: &str = "ramet_0123456789abcdef";
const OTHER: &str = "ramet_fedcba9876543210";

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap()
    }

    /// It is a problem with this code.
    #[track_caller]
    fn refused(&self, status: u16, code: &str) {
        let text = String::from_utf8_lossy(&self.bytes);
        assert_eq!(self.status.as_u16(), status, "{text}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status);
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }

    #[track_caller]
    fn is(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        if self.bytes.is_empty() { Value::Null } else { self.json() }
    }
}

struct Bed {
    engine: Arc<Fake>,
    service: Service,
    routes: Router,
    _data: tempfile::TempDir,
}

impl Bed {
    async fn new() -> Self {
        let (engine, store) = (Fake::new(), Arc::new(Store::in_memory().unwrap()));
        let network = FakeNet::new();
        store.add_token(&auth::hash(TOKEN), "me", 1).unwrap();
        store.add_token(&auth::hash(OTHER), "you", 1).unwrap();
        let tokens = Tokens::load(&store).unwrap();
        let data = tempfile::tempdir().unwrap();
        let settings = Settings { data_dir: data.path().to_owned(), ..Settings::default() };
        let service = Service::new(Host::new(engine.clone(), network), store, settings);
        service.recover().await.unwrap();
        service.start_network().await;
        let routes = router(App::new(service.clone(), tokens, USUAL));
        Self { engine, service, routes, _data: data }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: parts.status, headers: parts.headers, bytes }
    }

    async fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = Request::builder().method(Method::try_from(method).unwrap()).uri(path);
        request = request.header("authorization", format!("Bearer {TOKEN}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body.to_vec())).unwrap()).await
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.raw(method, path, &[("content-type", "application/json")], &body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, Value::Null).await
    }

    async fn create(&self, name: &str) -> Value {
        self.call("POST", "/v1/sandboxes", json!({ "name": name })).await.is(201)["sandbox"].clone()
    }
}

#[tokio::test]
async fn tokens_are_asked_for_everywhere() {
    let bed = Bed::new().await;
    for path in [
        "/v1/sandboxes",
        "/v1/node",
        "/v1/ready",
        "/metrics",
        "/v1/tree",
        "/v1/events",
        "/v1/templates",
        "/v1/templates/x/log",
        "/v1/images/x",
        "/v1/sandboxes/x/exec/ws",
        "/v1/sandboxes/x/files?path=/",
    ] {
        for value in ["", "Bearer", "Bearer ", "Bearer wrong", "Basic abc", "Bearer \u{7f}"] {
            let request = Request::builder().uri(path).header("authorization", value.as_bytes());
            let Ok(request) = request.body(Body::empty()) else { continue };
            bed.send(request).await.refused(401, "unauthorized");
        }
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        bed.send(request).await.refused(401, "unauthorized");
    }
    for path in ["/v1/health", "/v1/openapi.json"] {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        assert_eq!(bed.send(request).await.status, 200);
    }
}

#[tokio::test]
async fn a_sandbox_from_create_to_delete() {
    let bed = Bed::new().await;
    bed.get("/v1/ready").await.refused(503, "not_ready");
    let a = bed.create("a").await;
    bed.get("/v1/ready").await.is(200);
    assert_eq!(a["state"], "running");
    assert!(a.get("secrets").is_none());
    let forked = bed.call("POST", "/v1/sandboxes/a/fork", json!({"count": 2})).await.is(201);
    assert_eq!(forked["children"].as_array().unwrap().len(), 2);
    assert_eq!(forked["pause_us"], 5);
    bed.engine.fail_children(&[0]);
    let forked = bed.call("POST", "/v1/sandboxes/a/fork", json!({"count": 2})).await.is(207);
    assert_eq!(forked["children"][0]["error"]["code"], "guest_failed");
    let winner = forked["children"][1]["sandbox"]["id"].as_str().unwrap().to_owned();
    let patch = json!({"labels": {"k": "v"}, "timeout_s": 60});
    assert_eq!(bed.call("PATCH", "/v1/sandboxes/a", patch).await.is(200)["timeout_s"], 60);
    let listed = bed.get("/v1/sandboxes?label=k%3Dv").await.is(200);
    assert_eq!(listed["sandboxes"][0]["id"], a["id"]);
    let cut = bed.call("POST", "/v1/sandboxes/a/checkpoints", json!({"name": "cut"})).await.is(201);
    assert_eq!(bed.get("/v1/sandboxes/a/checkpoints").await.is(200)["checkpoints"][0], cut);
    bed.call("POST", "/v1/sandboxes/a/rewind", json!({"checkpoint": "cut"})).await.is(200);
    bed.call("DELETE", "/v1/sandboxes/a/checkpoints/cut", Value::Null).await.is(204);
    bed.call("POST", "/v1/sandboxes/a/pause", Value::Null).await.is(200);
    bed.call("POST", "/v1/sandboxes/a/exec", json!({"command": "x"}))
        .await
        .refused(409, "wrong_state");
    bed.call("POST", "/v1/sandboxes/a/resume", json!({})).await.is(200);
    bed.call("POST", "/v1/sandboxes/a/promote", json!({"winner": winner})).await.is(200);
    let gone = bed.get(&format!("/v1/sandboxes/{winner}")).await;
    gone.refused(410, "promoted");
    assert_eq!(gone.json()["promoted_to"], a["id"]);
    assert_eq!(bed.get("/v1/sandboxes/a/stats").await.is(200)["pss_kib"], 7);
    assert_eq!(bed.get("/v1/sandboxes/a/logs").await.is(200)["text"], "hello");
    assert!(bed.get("/v1/tree").await.is(200)["nodes"].as_array().unwrap().len() >= 4);
    assert_eq!(bed.get("/v1/node").await.is(200)["principal"], "me");
    let metrics = String::from_utf8(bed.get("/metrics").await.bytes).unwrap();
    assert!(metrics.contains("ramet_fork_pause_seconds_bucket"), "{metrics}");
    bed.call("DELETE", "/v1/sandboxes/a", Value::Null).await.is(204);
    bed.get(&format!("/v1/sandboxes/{}", a["id"].as_str().unwrap())).await.refused(410, "gone");
}

#[tokio::test]
async fn processes_are_run_and_told() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let exec = async |body: Value| bed.call("POST", "/v1/sandboxes/a/exec", body).await;
    let result = exec(json!({"argv": ["echo", "hello"]})).await.is(200);
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!("hello"), &json!("err")));
    assert_eq!((&result["exit_code"], &result["ok"]), (&json!(0), &json!(true)));
    assert_eq!(exec(json!({"command": "fail"})).await.is(200)["exit_code"], 3);
    let fed = exec(json!({"command": "cat", "stdin": "AP8=", "encoding": "base64"})).await.is(200);
    assert_eq!(fed["stdout"], "AP8=");
    let much = exec(json!({"command": format!("spam {}", (16 << 20) + 1)})).await.is(200);
    assert_eq!(much["truncated"], true);
    assert_eq!(much["stdout"].as_str().unwrap().len(), 16 << 20);
    exec(json!({"command": "missing"})).await.refused(404, "file_not_found");
    for bad in [
        json!({}),
        json!({"argv": []}),
        json!({"argv": [""]}),
        json!({"argv": ["a"], "command": "b"}),
        json!({"command": "a\0b"}),
        json!({"command": "a", "timeout_ms": 0}),
        json!({"command": "a", "timeout_ms": u64::MAX}),
        json!({"command": "a", "env": {"A=B": "x"}}),
        json!({"command": "a", "cwd": "relative"}),
        json!({"command": "a", "stdin": "%%", "encoding": "base64"}),
        json!({"command": 7}),
    ] {
        exec(bad).await.refused(400, "bad_request");
    }
    exec(json!({"command": "a", "tty": true})).await.refused(400, "unsupported_option");
    exec(json!({"command": "a", "encoding": "hex"})).await.refused(400, "unsupported_option");
    assert_eq!(bed.get("/v1/sandboxes/a/processes").await.is(200)["processes"][0]["pid"], 42);
    let signal = async |pid: &str, body| {
        bed.call("POST", &format!("/v1/sandboxes/a/processes/{pid}/signal"), body).await
    };
    signal("42", json!({"signal": 15})).await.is(204);
    signal("7", json!({"signal": 15})).await.refused(404, "no_such_process");
    for (pid, number) in [("-1", 9), ("0", 9), ("42", 0), ("42", 65), ("x", 9), ("99999999999", 9)]
    {
        signal(pid, json!({"signal": number})).await.refused(400, "bad_request");
    }
}

#[tokio::test]
async fn files_travel_both_ways() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let path = "/v1/sandboxes/a/files?path=/dir/f";
    let long: Vec<u8> = (0..1_000_000u32).map(|number| number.to_le_bytes()[0]).collect();
    let written = bed.raw("PUT", &format!("{path}&mode=0600&owner=root"), &[], &long).await.is(201);
    assert_eq!(written["size"], 1_000_000);
    let read = bed.get(path).await;
    assert_eq!((read.status.as_u16(), read.bytes == long), (200, true));
    assert_eq!(read.headers["content-length"], "1000000");
    for (range, first, last) in [
        ("bytes=10-19", 10, 19),
        ("bytes=999990-", 999_990, 999_999),
        ("bytes=-5", 999_995, 999_999),
        ("bytes=999999-2000000", 999_999, 999_999),
    ] {
        let part = bed.raw("GET", path, &[("range", range)], b"").await;
        assert_eq!(part.status, 206, "{range}");
        assert_eq!(part.headers["content-range"], format!("bytes {first}-{last}/1000000"));
        assert_eq!(part.bytes, &long[first..=last], "{range}");
    }
    let beyond = bed.raw("GET", path, &[("range", "bytes=1000000-")], b"").await;
    beyond.refused(416, "bad_range");
    assert_eq!(bed.get("/v1/sandboxes/a/files/stat?path=/dir/f").await.is(200)["kind"], "file");
    let listed = bed.get("/v1/sandboxes/a/files/list?path=/dir&depth=2").await.is(200);
    assert_eq!(listed["entries"][0]["path"], "/dir/f");
    bed.call("POST", "/v1/sandboxes/a/files/mkdir", json!({"path": "/d", "mode": "755"}))
        .await
        .is(201);
    bed.call("POST", "/v1/sandboxes/a/files/move", json!({"from": "/dir/f", "to": "/g"}))
        .await
        .is(204);
    bed.get(path).await.refused(404, "file_not_found");
    bed.call("DELETE", "/v1/sandboxes/a/files?path=/g&recursive=true", Value::Null).await.is(204);
    bed.call("DELETE", "/v1/sandboxes/a/files?path=/g", Value::Null)
        .await
        .refused(404, "file_not_found");
    for query in ["", "?path=relative", "?path=", "?path=/a%00b", "?path=/x&path=/y"] {
        let path = format!("/v1/sandboxes/a/files{query}");
        bed.get(&path).await.refused(400, "bad_request");
        bed.raw("PUT", &path, &[], b"x").await.refused(400, "bad_request");
    }
    bed.get(&format!("{path}&follow=1")).await.refused(400, "unsupported_option");
    bed.raw("PUT", &format!("{path}&mode=999"), &[], b"").await.refused(400, "bad_request");
    bed.raw("PUT", &format!("{path}&symlink=/x"), &[], b"no").await.refused(400, "bad_request");
    for depth in ["0", "65", "-1", "x"] {
        let path = format!("/v1/sandboxes/a/files/list?path=/&depth={depth}");
        bed.get(&path).await.refused(400, "bad_request");
    }
}

#[tokio::test]
async fn nonsense_is_refused_on_every_route() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let bodies: [&[u8]; 7] =
        [b"{", b"[]", b"\"x\"", b"null", b"{\"a\":1,}", &[0xff, 0xfe], b"{\"name\":{}}"];
    let routes = [
        ("POST", "/v1/sandboxes"),
        ("PATCH", "/v1/sandboxes/a"),
        ("POST", "/v1/sandboxes/a/fork"),
        ("POST", "/v1/sandboxes/a/pause"),
        ("POST", "/v1/sandboxes/a/checkpoints"),
        ("POST", "/v1/sandboxes/a/rewind"),
        ("POST", "/v1/sandboxes/a/promote"),
        ("POST", "/v1/sandboxes/a/exec"),
        ("POST", "/v1/sandboxes/a/processes/1/signal"),
        ("POST", "/v1/sandboxes/a/files/mkdir"),
        ("POST", "/v1/sandboxes/a/files/move"),
    ];
    for (method, path) in routes {
        for body in bodies {
            let answer = bed.raw(method, path, &[("content-type", "application/json")], body).await;
            assert_eq!(answer.status, 400, "{method} {path} {body:?}");
        }
        let unknown = bed.call(method, path, json!({"no_such_option": 1})).await;
        unknown.refused(400, "unsupported_option");
        let form = bed.raw(method, path, &[("content-type", "text/plain")], b"{\"x\":1}").await;
        assert_eq!(form.status, 400);
        let deep = "[".repeat(100_000);
        let answer = bed.raw(method, path, &[], deep.as_bytes()).await;
        assert_eq!(answer.status, 400);
        let long = vec![b' '; 13 << 20];
        bed.raw(method, path, &[], &long).await.refused(413, "too_large");
        let wrong = path.replace("/a", "/no-such-sandbox");
        if wrong != path && !path.contains("/fork") && !path.ends_with("pause") {
            let answer = bed.call(method, &wrong, Value::Null).await;
            assert!([400, 404].contains(&answer.status.as_u16()), "{wrong} {}", answer.status);
        }
    }
    bed.get("/v1/nothing").await.refused(404, "not_found");
    bed.call("PUT", "/v1/sandboxes", Value::Null).await.refused(405, "method_not_allowed");
    bed.get("/v1/sandboxes/a/exec/ws").await.refused(400, "bad_request");
    for id in ["%00", "%FF", "..", "a%2Fb", &"x".repeat(5000), "%F0%9F%A6%80"] {
        let answer = bed.get(&format!("/v1/sandboxes/{id}")).await;
        assert!([400, 404].contains(&answer.status.as_u16()), "{id} {}", answer.status);
    }
    for query in ["limit=0", "limit=1001", "limit=x", "cursor=x", "cursor=-1"] {
        bed.get(&format!("/v1/sandboxes?{query}")).await.refused(400, "bad_request");
    }
    bed.get("/v1/sandboxes?state=flying").await.refused(400, "unsupported_option");
    bed.get("/v1/sandboxes?colour=red").await.refused(400, "unsupported_option");
}

#[tokio::test]
async fn wishes_that_cannot_be_met_are_refused() {
    let bed = Bed::new().await;
    for (body, code) in [
        (json!({"rootfs": "debian"}), "unsupported_option"),
        (json!({"template": "base", "image": "base"}), "bad_request"),
        (json!({"disk_mib": 1}), "bad_request"),
        (json!({"on_timeout": "explode"}), "unsupported_option"),
        (json!({"vcpus": 0}), "bad_request"),
        (json!({"vcpus": 300}), "bad_request"),
        (json!({"memory_mib": 127}), "bad_request"),
        (json!({"memory_mib": -1}), "bad_request"),
        (json!({"name": "No Good"}), "bad_request"),
        (json!({"name": ""}), "bad_request"),
        (json!({"env": {"": "x"}}), "bad_request"),
        (json!({"secrets": {"../../etc/passwd": "x"}}), "bad_request"),
        (json!({"labels": {"a b": "x"}}), "bad_request"),
        (json!({"timeout_s": u64::MAX}), "bad_request"),
    ] {
        bed.call("POST", "/v1/sandboxes", body).await.refused(400, code);
    }
    for body in [json!({"template": "python"}), json!({"image": "debian"})] {
        bed.call("POST", "/v1/sandboxes", body).await.refused(404, "not_found");
    }
    bed.create("a").await;
    for body in [
        json!({"count": 0}),
        json!({"count": 257}),
        json!({"count": 2, "names": ["x"]}),
        json!({"names": ["-"]}),
        json!({"env": {"A": "x".repeat(20_000)}, "count": 256}),
    ] {
        bed.call("POST", "/v1/sandboxes/a/fork", body).await.refused(400, "bad_request");
    }
    bed.call("POST", "/v1/sandboxes/a/fork", json!({"names": ["a"]}))
        .await
        .refused(409, "name_taken");
    let key = "k".repeat(300);
    let answer = bed.raw("POST", "/v1/sandboxes", &[("idempotency-key", &key)], b"").await;
    answer.refused(400, "bad_request");
    bed.engine.set_available(1);
    bed.call("POST", "/v1/sandboxes", Value::Null).await.refused(503, "no_capacity");
}

#[tokio::test]
async fn keys_are_each_callers_own() {
    let bed = Bed::new().await;
    let create = async |token: &str, body: &'static str| {
        let request = Request::builder().method("POST").uri("/v1/sandboxes");
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = request.header("idempotency-key", "k").body(Body::from(body)).unwrap();
        bed.send(request).await
    };
    let (first, again) = (create(TOKEN, "{}").await.is(201), create(TOKEN, "").await.is(201));
    assert_eq!(first, again);
    create(TOKEN, "{\"vcpus\":2}").await.refused(422, "idempotency_mismatch");
    let other = create(OTHER, "{\"vcpus\":2}").await.is(201);
    let path = format!("/v1/sandboxes/{}", other["sandbox"]["id"].as_str().unwrap());
    bed.get(&path).await.refused(404, "not_found");
}

impl Bed {
    async fn listen(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = self.routes.clone();
        tokio::spawn(super::serve::serve(listener, routes, self.service.stopping()));
        address
    }

    /// Everything that a stream gives to these frames.
    async fn stream(&self, address: SocketAddr, frames: Vec<Message>) -> Vec<Message> {
        let url = format!("ws://{address}/v1/sandboxes/a/exec/ws");
        let mut request = url.into_client_request().unwrap();
        let value = format!("Bearer {TOKEN}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
        let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
        for frame in frames {
            socket.send(frame).await.unwrap();
        }
        let mut heard = Vec::new();
        let all = async {
            while let Some(Ok(message)) = socket.next().await {
                heard.push(message);
            }
        };
        tokio::time::timeout(Duration::from_secs(10), all).await.expect("the stream ends");
        heard
    }
}

fn text(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

#[tokio::test]
async fn a_process_is_streamed() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let address = bed.listen().await;
    let frames = vec![
        text(&json!({"exec": {"command": "cat", "stdin": true}})),
        Message::Binary(b"\x01hello ".to_vec().into()),
        Message::Binary(b"\x01world".to_vec().into()),
        text(&json!({"end": {}})),
    ];
    let heard = bed.stream(address, frames).await;
    assert_eq!(heard[0], text(&json!({"started": {"pid": 42}})));
    assert_eq!(heard[1], Message::Binary(b"\x02hello world".to_vec().into()));
    assert_eq!(heard[2], Message::Binary(b"\x03err".to_vec().into()));
    let Message::Text(last) = &heard[3] else { panic!("{heard:?}") };
    assert_eq!(serde_json::from_str::<Value>(last).unwrap()["exited"]["exit_code"], 0);
}

#[tokio::test]
async fn a_stream_that_breaks_the_rules_is_closed() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let address = bed.listen().await;
    for (first, code) in [
        (text(&json!({"attach": {"pid": 1}})), "no_such_process"),
        (text(&json!({"exec": {}})), "bad_request"),
        (text(&json!({"exec": {"command": "x", "colour": 1}})), "unsupported_option"),
        (text(&json!("nonsense")), "bad_request"),
        (Message::Binary(b"x".to_vec().into()), "bad_request"),
    ] {
        let heard = bed.stream(address, vec![first]).await;
        let Message::Text(error) = &heard[0] else { panic!("{heard:?}") };
        let error: Value = serde_json::from_str(error).unwrap();
        assert_eq!(error["error"]["code"], code, "{error}");
    }
    let wait = text(&json!({"exec": {"command": "wait", "stdin": true}}));
    for bad in [
        Message::Binary(b"\x09x".to_vec().into()),
        Message::Binary(Vec::new().into()),
        text(&json!({"fly": {}})),
        Message::Text("{".into()),
    ] {
        let heard = bed.stream(address, vec![wait.clone(), bad]).await;
        assert_eq!(heard[0], text(&json!({"started": {"pid": 42}})));
    }
}

#[tokio::test]
async fn events_are_heard_by_their_owner() {
    let bed = Bed::new().await;
    let request = Request::builder().uri("/v1/events");
    let request = request.header("authorization", format!("Bearer {TOKEN}")).body(Body::empty());
    let response = bed.routes.clone().oneshot(request.unwrap()).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let other = Request::builder().method("POST").uri("/v1/sandboxes");
    let other = other.header("authorization", format!("Bearer {OTHER}")).body(Body::empty());
    bed.send(other.unwrap()).await.is(201);
    bed.create("a").await;
    bed.call("DELETE", "/v1/sandboxes/a", Value::Null).await.is(204);
    let mut data = response.into_body().into_data_stream();
    let mut text = String::new();
    while !text.contains("event: deleted") {
        let piece = tokio::time::timeout(Duration::from_secs(10), data.next()).await;
        text += std::str::from_utf8(&piece.expect("an event in time").unwrap().unwrap()).unwrap();
    }
    let kinds: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(kinds, ["created", "deleted"], "the other one's are not heard");
    bed.service.stopping().cancel();
    while let Some(piece) = data.next().await {
        piece.unwrap();
    }
    bed.get("/v1/events?sandbox=nobody").await.refused(404, "not_found");
}

#[tokio::test]
async fn a_template_from_image_to_sandbox() {
    let bed = Bed::new().await;
    let image = crate::sandbox::tiny_image(7);
    let digest = blake3::hash(&image).to_hex().to_string();
    let path = format!("/v1/images/py?digest={digest}");
    bed.raw("PUT", "/v1/images/py", &[], &image).await.refused(400, "bad_request");
    bed.raw("PUT", "/v1/images/py?digest=abc", &[], &image).await.refused(400, "bad_request");
    bed.raw("PUT", &path, &[], &image[1..]).await.refused(400, "bad_request");
    bed.raw("PUT", &path, &[("content-length", "99999999999999")], &image)
        .await
        .refused(413, "too_large");
    let made = bed.raw("PUT", &path, &[], &image).await.is(201);
    assert_eq!((&made["name"], &made["size_bytes"]), (&json!("py"), &json!(8192)));
    assert_eq!(bed.get("/v1/images").await.is(200)["images"][0]["digest"], digest);

    let recipe = json!({"name": "tool", "image": "py", "run": ["put /a 1"], "ready": "true"});
    let building = bed.call("POST", "/v1/templates", recipe.clone()).await.is(202);
    assert_eq!(building["state"], "building");
    let log = bed.get("/v1/templates/tool/log").await;
    let log = String::from_utf8(log.bytes).unwrap();
    assert!(log.contains("event: log") && log.contains("$ put /a 1"), "{log}");
    assert!(log.contains("event: end") && log.contains(r#""state":"ready""#), "{log}");
    let ready = bed.get("/v1/templates/tool?wait_s=60").await.is(200);
    assert_eq!((&ready["state"], &ready["warm"]), (&json!("ready"), &json!(true)));
    bed.call("POST", "/v1/templates", recipe).await.is(200);
    let made = bed.call("POST", "/v1/sandboxes", json!({"name": "a", "template": "tool"})).await;
    assert_eq!(made.is(201)["sandbox"]["template"], "tool");
    let other = json!({"template": "tool", "vcpus": 2});
    bed.call("POST", "/v1/sandboxes", other).await.refused(400, "unsupported_option");
    let tree = bed.get("/v1/tree").await.is(200);
    assert!(tree["nodes"].as_array().unwrap().iter().any(|node| node["id"] == ready["id"]));

    bed.call("DELETE", "/v1/images/py", Value::Null).await.refused(409, "in_use");
    bed.call("DELETE", "/v1/templates/tool", Value::Null).await.is(204);
    bed.call("DELETE", "/v1/templates/tool", Value::Null).await.refused(404, "not_found");
    bed.call("DELETE", "/v1/images/py", Value::Null).await.is(204);
    bed.get("/v1/templates/tool/log").await.refused(404, "not_found");
    bed.get("/v1/templates/base?wait_s=601").await.refused(400, "bad_request");
    let unknown = json!({"name": "x", "packages": ["vim"]});
    bed.call("POST", "/v1/templates", unknown).await.refused(400, "unsupported_option");
    bed.call("POST", "/v1/templates", json!({})).await.refused(400, "bad_request");
}
