//! What SDKs send, on an engine without machines: where it goes, who may, and how answers are written.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ramet_proto::api::{CreateSandbox, PauseRequest};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use crate::auth::{Principal, Tokens};
use crate::clock::now_ms;
use crate::dialects::e2b::{E2b, Keys, outer_id, over};
use crate::host::Host;
use crate::host::fake::Fake;
use crate::host::net::fake::FakeNet;
use crate::http::{App, USUAL, bounded, routes};
use crate::sandbox::{Renewal, Service, Settings};
use crate::store::Store;

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap()
    }

    #[track_caller]
    fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.bytes));
        self
    }

    /// Messages of a stream, and its end.
    fn stream(&self) -> (Vec<Value>, Value) {
        assert_eq!(
            (self.status.as_u16(), &self.headers["content-type"]),
            (200, &"application/connect+json".parse().unwrap())
        );
        let (mut rest, mut messages) = (&self.bytes[..], Vec::new());
        loop {
            let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
            let message: Value = serde_json::from_slice(&rest[5..5 + length]).unwrap();
            match rest[0] {
                0 => messages.push(message),
                2 => {
                    assert_eq!(rest.len(), 5 + length, "nothing follows the end");
                    return (messages, message);
                }
                other => panic!("flags {other}"),
            }
            rest = &rest[5 + length..];
        }
    }
}

struct Bed {
    service: Service,
    e2b: E2b,
    routes: Router,
    _data: tempfile::TempDir,
}

impl Bed {
    async fn new() -> Self {
        let (engine, store) = (Fake::new(), Arc::new(Store::in_memory().unwrap()));
        let data = tempfile::tempdir().unwrap();
        let tokens = Tokens::load(&store).unwrap();
        let settings = Settings { data_dir: data.path().to_owned(), ..Settings::default() };
        let service = Service::new(Host::new(engine, FakeNet::new()), store, settings);
        service.recover().await.unwrap();
        let app = App::new(service.clone(), tokens, USUAL);
        let keys = Keys::load(&data.path().join("key")).unwrap();
        let e2b = E2b::new(app.clone(), keys, Some("sbx.test:8443".to_owned()));
        let routes = bounded(over(routes(app.clone()), e2b.clone()), app);
        Self { service, e2b, routes, _data: data }
    }

    async fn create(&self, request: CreateSandbox) -> String {
        let made = self.service.create(&me(), request, None).await.unwrap();
        made.sandbox.id
    }

    async fn plain(&self) -> String {
        self.create(CreateSandbox::default()).await
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: parts.status, headers: parts.headers, bytes }
    }

    fn request(
        &self,
        id: &str,
        port: u16,
        method: &str,
        path: &str,
    ) -> axum::http::request::Builder {
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
        request.header("E2b-Sandbox-Id", outer_id(id)).header("E2b-Sandbox-Port", port.to_string())
    }

    fn envd(&self, id: &str, method: &str, path: &str) -> axum::http::request::Builder {
        let token = self.e2b.keys.access_token(id);
        self.request(id, 49983, method, path).header("X-Access-Token", token)
    }

    async fn unary(&self, id: &str, call: &str, message: Value) -> Answer {
        let request = self.envd(id, "POST", call).header("content-type", "application/json");
        self.send(request.body(Body::from(message.to_string())).unwrap()).await
    }

    async fn stream(&self, id: &str, call: &str, messages: &[Value]) -> Answer {
        let request =
            self.envd(id, "POST", call).header("content-type", "application/connect+json");
        let mut body = Vec::new();
        for message in messages {
            let text = message.to_string();
            body.push(0);
            body.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            body.extend(text.as_bytes());
        }
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    async fn get(&self, id: &str, path: &str) -> Answer {
        self.send(self.envd(id, "GET", path).body(Body::empty()).unwrap()).await
    }
}

fn me() -> Principal {
    Principal::new("me")
}

fn signed(path: &str, operation: &str, token: &str, end: Option<u64>) -> String {
    let end = end.map(|end| end.to_string());
    let tail = end.as_ref().map(|end| format!(":{end}")).unwrap_or_default();
    let hash = STANDARD_NO_PAD.encode(Sha256::digest(format!("{path}:{operation}::{token}{tail}")));
    let hash = hash.replace('+', "%2B").replace('/', "%2F");
    let tail = end.map(|end| format!("&signature_expiration={end}")).unwrap_or_default();
    format!("/files?path={path}&signature=v1_{hash}{tail}")
}

#[tokio::test]
async fn sandboxes_that_are_not_there_are_told_in_the_words_of_the_proxy() {
    let bed = Bed::new().await;
    let id = bed.plain().await;
    let asked = |sandbox: &str| {
        let request = bed.request(sandbox, 49983, "GET", "/health");
        bed.send(request.body(Body::empty()).unwrap())
    };
    asked(&id).await.is(204);
    asked("NO-ID").await.is(400);
    let none = asked("abcdef").await;
    none.is(502);
    let body =
        json!({ "sandboxId": "abcdef", "message": "The sandbox was not found", "code": 502 });
    assert_eq!((none.json(), &none.headers["should-retry"]), (body, &"false".parse().unwrap()));
    bed.service.pause(&me(), &id, PauseRequest::default()).await.unwrap();
    let paused = asked(&id).await;
    assert!(paused.is(502).json()["message"].as_str().unwrap().contains("was not found"));
    bed.service.delete(&me(), &id).await.unwrap();
    asked(&id).await.is(502);
    let request = Request::builder().uri("/health").header("host", "3000-zzz.sbx.test:8443");
    bed.send(request.body(Body::empty()).unwrap()).await.is(502);
    let request = Request::builder().uri("/v1/health").header("host", "api.sbx.test");
    bed.send(request.body(Body::empty()).unwrap()).await.is(200);
}

#[tokio::test]
async fn traffic_wakes_a_sandbox_that_wants_it() {
    let bed = Bed::new().await;
    let request = CreateSandbox { auto_resume: true, ..CreateSandbox::default() };
    let id = bed.create(request).await;
    bed.service.renew(&me(), &id, Renewal::Set(5)).await.unwrap();
    bed.service.pause(&me(), &id, PauseRequest::default()).await.unwrap();
    let started = json!({ "process": { "cmd": "echo", "args": ["hostname"] } });
    bed.stream(&id, "/process.Process/Start", &[started]).await.is(200);
    bed.get(&id, "/health").await.is(204);
    let end = bed.service.get(&me(), &id).unwrap().ends_at_ms.unwrap();
    assert!(end > crate::clock::now_ms() + 250_000, "it has time to answer");
}

#[tokio::test]
async fn every_route_but_health_needs_the_token() {
    let bed = Bed::new().await;
    let (id, other) = (bed.plain().await, bed.plain().await);
    for (method, path) in [
        ("POST", "/process.Process/List"),
        ("GET", "/files?path=/x"),
        ("POST", "/files?path=/x"),
        ("GET", "/metrics"),
        ("GET", "/envs"),
        ("POST", "/init"),
        ("POST", "/health"),
    ] {
        for token in
            [None, Some(bed.e2b.keys.access_token(&other)), Some(bed.e2b.keys.traffic_token(&id))]
        {
            let mut request = bed.request(&id, 49983, method, path);
            if let Some(token) = token {
                request = request.header("X-Access-Token", token);
            }
            bed.send(request.body(Body::empty()).unwrap()).await.is(401);
        }
    }
    for internal in ["/init", "/freeze", "/unfreeze", "/fsfreeze", "/collapse"] {
        let request = bed.envd(&id, "POST", internal).body(Body::empty()).unwrap();
        bed.send(request).await.is(404);
    }
    assert!(bed.get(&id, "/metrics").await.is(200).json()["cpu_count"] == 1);
    assert_eq!(bed.get(&id, "/envs").await.is(200).json(), json!({}));
    bed.get(&id, "/nothing").await.is(404);
}

#[tokio::test]
async fn processes_are_started_and_told_as_sdks_expect() {
    let bed = Bed::new().await;
    let id = bed.plain().await;
    let start =
        |line: &str| json!({ "process": { "cmd": "/bin/bash", "args": ["-l", "-c", line] } });
    let started = bed.stream(&id, "/process.Process/Start", &[start("fail")]).await;
    let (messages, end) = started.stream();
    assert_eq!(messages[0], json!({ "event": { "start": { "pid": 42 } } }));
    assert_eq!(messages[1], json!({ "event": { "data": { "stderr": STANDARD.encode("err") } } }));
    let last = json!({ "exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3" });
    assert_eq!(messages[2], json!({ "event": { "end": last } }));
    assert_eq!((messages.len(), end), (3, json!({})));
    let placed = bed.stream(&id, "/process.Process/Start", &[start("place")]).await;
    let text = STANDARD.encode("Some(\"user\") None");
    assert_eq!(placed.stream().0[1], json!({ "event": { "data": { "stdout": text } } }));
    let (messages, end) =
        bed.stream(&id, "/process.Process/Start", &[start("missing")]).await.stream();
    assert_eq!((messages.len(), &end["error"]["code"]), (0, &json!("invalid_argument")));
    let (_, end) = bed.stream(&id, "/process.Process/Start", &[]).await.stream();
    assert_eq!(end["error"]["code"], "invalid_argument");
    let request = bed
        .envd(&id, "POST", "/process.Process/Start")
        .header("content-type", "application/connect+proto");
    bed.send(request.body(Body::empty()).unwrap()).await.is(415);
}

#[tokio::test]
async fn the_user_is_the_one_that_is_named() {
    let bed = Bed::new().await;
    let id = bed.plain().await;
    let stat = |name: &str, path: &str| {
        let name = STANDARD.encode(format!("{name}:"));
        let request = bed.envd(&id, "POST", "/filesystem.Filesystem/MakeDir");
        let request = request
            .header("content-type", "application/json")
            .header("authorization", format!("Basic {name}"));
        bed.send(request.body(Body::from(json!({ "path": path }).to_string())).unwrap())
    };
    let refused = stat("nobody", "/x").await;
    assert_eq!(refused.is(401).json()["code"], "unauthenticated");
    stat("root", "/x").await.is(404);
}

#[tokio::test]
async fn a_process_is_found_heard_and_spoken_to() {
    let bed = Bed::new().await;
    let id = bed.plain().await;
    let listed = bed.unary(&id, "/process.Process/List", json!({})).await.is(200).json();
    let config = json!({ "cmd": "sleep", "args": ["9"], "envs": {}, "cwd": "/srv" });
    assert_eq!(listed, json!({ "processes": [{ "config": config, "pid": 42, "tag": "nap" }] }));
    for selector in [json!({ "pid": 42 }), json!({ "tag": "nap" })] {
        let joined =
            bed.stream(&id, "/process.Process/Connect", &[json!({ "process": selector })]).await;
        let (messages, _) = joined.stream();
        assert_eq!(messages[0]["event"]["start"]["pid"], 42);
        let last = json!({ "exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed" });
        assert_eq!(messages[2]["event"]["end"], last);
    }
    let (_, end) = bed
        .stream(&id, "/process.Process/Connect", &[json!({ "process": { "pid": 7 } })])
        .await
        .stream();
    assert_eq!(end["error"]["code"], "not_found");
    let process = json!({ "pid": 42 });
    let input = json!({ "process": process, "input": { "stdin": STANDARD.encode("one") } });
    bed.unary(&id, "/process.Process/SendInput", input).await.is(200);
    let streamed = [
        json!({ "start": { "process": process } }),
        json!({ "data": { "input": { "pty": STANDARD.encode("two") } } }),
        json!({ "keepalive": {} }),
    ];
    let (messages, end) = bed.stream(&id, "/process.Process/StreamInput", &streamed).await.stream();
    assert_eq!((messages, end), (vec![json!({})], json!({})));
    for (call, more) in [
        ("SendSignal", json!({ "process": process, "signal": "SIGNAL_SIGKILL" })),
        ("Update", json!({ "process": process, "pty": { "size": { "cols": 80, "rows": 24 } } })),
        ("CloseStdin", json!({ "process": process })),
    ] {
        bed.unary(&id, &format!("/process.Process/{call}"), more).await.is(200);
    }
    let fed = bed.get(&id, "/files?path=/fed").await;
    let told = r#"{"signal":{"signal":9}}{"resize":{"columns":80,"rows":24}}{"end":{}}"#;
    assert_eq!(String::from_utf8_lossy(&fed.is(200).bytes), format!("onetwo{told}"));
    let gone = json!({ "process": { "pid": 7 }, "signal": "SIGNAL_SIGTERM" });
    let refused = bed.unary(&id, "/process.Process/SendSignal", gone).await;
    assert_eq!(refused.is(404).json()["code"], "not_found");
    let odd = json!({ "process": process, "signal": "SIGNAL_SIGHUP" });
    bed.unary(&id, "/process.Process/SendSignal", odd).await.is(501);
    bed.unary(&id, "/process.Process/Nothing", json!({})).await.is(501);
}

#[tokio::test]
async fn files_go_in_and_out() {
    let bed = Bed::new().await;
    let id = bed.plain().await;
    let post = |path: &str, kind: &str, body: Vec<u8>| {
        let request = bed.envd(&id, "POST", path).header("content-type", kind);
        bed.send(request.body(Body::from(body)).unwrap())
    };
    let written = post("/files?path=a.txt", "application/octet-stream", b"hello".to_vec()).await;
    let file = json!([{ "name": "a.txt", "type": "file", "path": "/home/user/a.txt" }]);
    assert_eq!(written.is(200).json(), file);
    assert_eq!(bed.get(&id, "/files?path=~/a.txt").await.is(200).bytes, b"hello");
    let part = bed.envd(&id, "GET", "/files?path=a.txt").header("range", "bytes=1-2");
    let part = bed.send(part.body(Body::empty()).unwrap()).await;
    assert_eq!(
        (&part.is(206).bytes[..], &part.headers["content-range"]),
        (&b"el"[..], &"bytes 1-2/5".parse().unwrap())
    );
    let packed = bed.envd(&id, "GET", "/files?path=a.txt").header("accept-encoding", "gzip");
    let packed = bed.send(packed.body(Body::empty()).unwrap()).await;
    assert_eq!(packed.is(200).headers["content-encoding"], "gzip");
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed.bytes[..]), &mut plain)
        .unwrap();
    assert_eq!(plain, b"hello");
    let form = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/x\"\r\n\r\n1\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"y\"\r\n\r\n\r\n--B--\r\n";
    let written = post("/files", "multipart/form-data; boundary=B", form.into()).await;
    assert_eq!(written.is(200).json()[1]["path"], "/home/user/y");
    let empty = bed.get(&id, "/files?path=y").await;
    assert_eq!(
        (&empty.is(200).headers["content-length"], empty.bytes.len()),
        (&"0".parse().unwrap(), 0)
    );
    post("/files", "multipart/form-data; boundary=B", form[..60].into()).await.is(400);
    post("/files?path=z", "text/plain", Vec::new()).await.is(400);
    post("/files", "application/octet-stream", Vec::new()).await.is(400);
    bed.get(&id, "/files?path=/none").await.is(404);
    bed.get(&id, "/files").await.is(400);
    bed.get(&id, "/files?path=/x&username=nobody").await.is(401);
    let stat = bed.unary(&id, "/filesystem.Filesystem/Stat", json!({ "path": "a.txt" })).await;
    let entry = stat.is(200).json()["entry"].clone();
    assert_eq!(
        (&entry["owner"], &entry["group"], &entry["size"]),
        (&json!("root"), &json!("wheel"), &json!("5"))
    );
    let none = bed.unary(&id, "/filesystem.Filesystem/Stat", json!({ "path": "/none" })).await;
    assert_eq!(none.is(404).json()["code"], "not_found");
    bed.unary(&id, "/filesystem.Filesystem/Remove", json!({ "path": "/none" })).await.is(200);
    let taken = bed.unary(&id, "/filesystem.Filesystem/MakeDir", json!({ "path": "/x" })).await;
    assert_eq!(taken.is(400).json()["code"], "invalid_argument");
}

#[tokio::test]
async fn signed_addresses_need_neither_id_nor_token() {
    let bed = Bed::new().await;
    let (_, id) = (bed.plain().await, bed.plain().await);
    let token = bed.e2b.keys.access_token(&id);
    let ask = |method: &str, path: &str, body: &'static str| {
        let request = Request::builder().method(method).uri(path).header("host", "127.0.0.1");
        let request = request.header("content-type", "application/octet-stream");
        bed.send(request.body(Body::from(body)).unwrap())
    };
    let soon = now_ms() / 1000 + 60;
    ask("POST", &signed("/s", "write", &token, Some(soon)), "secret").await.is(200);
    assert_eq!(ask("GET", &signed("/s", "read", &token, None), "").await.is(200).bytes, b"secret");
    ask("GET", &signed("/s", "write", &token, None), "").await.is(401);
    ask("GET", &signed("/s", "read", &token, Some(1)), "").await.is(401);
    ask("GET", &signed("/s", "read", "other", None), "").await.is(401);
    ask("GET", &signed("/s", "read", &token, None).replace("path=/s", "path=/t"), "").await.is(401);
    let host = format!("49983-{}.sbx.test:8443", outer_id(&id));
    let request = Request::builder().uri(signed("/s", "read", &token, None)).header("host", host);
    bed.send(request.body(Body::empty()).unwrap()).await.is(200);
}

#[tokio::test]
async fn changes_are_streamed_and_collected() {
    let bed = Bed::new().await;
    let id = bed.plain().await;
    bed.service
        .mkdir(&me(), &id, serde_json::from_value(json!({ "path": "/d" })).unwrap())
        .await
        .unwrap();
    // The engine of tests knows files only.
    let refused =
        bed.stream(&id, "/filesystem.Filesystem/WatchDir", &[json!({ "path": "/none" })]).await;
    assert_eq!(refused.stream().1["error"]["code"], "not_found");
    let none = json!({ "watcherId": "w0" });
    for call in ["GetWatcherEvents", "RemoveWatcher"] {
        let refused = bed.unary(&id, &format!("/filesystem.Filesystem/{call}"), none.clone()).await;
        assert_eq!(refused.is(404).json()["code"], "not_found");
    }
}

#[tokio::test]
async fn ports_are_public_unless_they_are_private_and_tokens_stay_here() {
    let bed = Bed::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                text.push(stream.read_u8().await.unwrap());
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
            stream.write_all(&[head.as_bytes(), &text].concat()).await.unwrap();
        }
    });
    let labelled = |labels: &[(&str, &str)]| {
        let pairs = labels.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        bed.create(CreateSandbox { labels: pairs.collect(), ..CreateSandbox::default() })
    };
    let private = labelled(&[("e2b.template", "base"), ("e2b.traffic", "private")]).await;
    let id = labelled(&[("e2b.template", "base")]).await;
    // Of one that the dialect has not made, nobody expects that its ports are public.
    let other = bed.plain().await;
    let get = |id: &str, token: Option<String>| {
        let mut request = bed.request(id, port, "GET", "/p?q=1").header("X-Access-Token", "secret");
        if let Some(token) = token {
            request = request.header("E2B-Traffic-Access-Token", token);
        }
        bed.send(request.body(Body::empty()).unwrap())
    };
    let seen = String::from_utf8(get(&id, None).await.is(200).bytes.clone()).unwrap();
    assert!(seen.starts_with("GET /p?q=1 HTTP/1.1"), "{seen}");
    get(&private, None).await.is(403);
    get(&other, None).await.is(403);
    get(&other, Some(bed.e2b.keys.traffic_token(&other))).await.is(200);
    get(&private, Some(bed.e2b.keys.traffic_token(&id))).await.is(403);
    let token = bed.e2b.keys.traffic_token(&private);
    let seen = String::from_utf8(get(&private, Some(token)).await.is(200).bytes.clone()).unwrap();
    assert!(!seen.to_lowercase().contains("token") && !seen.contains("e2b"), "{seen}");
    let closed = bed.request(&id, 1, "GET", "/").body(Body::empty()).unwrap();
    let closed = bed.send(closed).await;
    let body = json!({ "sandboxId": outer_id(&id), "message": "The sandbox is running but port is not open", "port": 1, "code": 502 });
    assert_eq!(closed.is(502).json(), body);
    let request = bed.request(&id, 49999, "POST", "/execute").body(Body::empty()).unwrap();
    let refused = bed.send(request).await;
    assert!(refused.is(502).json()["message"].as_str().unwrap().contains("no code interpreter"));
}
