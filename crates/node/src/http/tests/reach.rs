//! What reaches inside: ports, raw streams, archives, watches; and events for who comes back. The ports of the
//! engine without machines are those of this machine, so the servers here are real.

use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::routing::{any, get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// A server on this machine; its port.
async fn server(routes: Router) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    port
}

/// Says what it was asked.
async fn mirror(request: Request<Body>) -> ([(&'static str, &'static str); 3], String) {
    let (parts, body) = request.into_parts();
    let headers: serde_json::Map<String, Value> = parts
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), json!(value.to_str().unwrap())))
        .collect();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let said = json!({
        "method": parts.method.as_str(), "uri": parts.uri.to_string(), "headers": headers,
        "length": body.len(),
    });
    let answer = [("x-own", "1"), ("connection", "x-hop"), ("x-hop", "1")];
    (answer, said.to_string())
}

async fn with_ports(routes: Router) -> (Bed, String) {
    let bed = Bed::new().await;
    bed.create("a").await;
    let at = format!("/v1/sandboxes/a/ports/{}", server(routes).await);
    (bed, at)
}

#[tokio::test]
async fn requests_reach_a_server_as_they_are() {
    let (bed, at) = with_ports(Router::new().fallback(any(mirror))).await;
    let port = at.rsplit('/').next().unwrap().to_owned();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"] {
        let headers = [
            ("host", "node:7878"),
            ("x-kept", "2"),
            ("connection", "keep-alive, x-secret"),
            ("x-secret", "3"),
            ("te", "trailers"),
            ("expect", "100-continue"),
        ];
        let path = format!("{at}/a%2Fb//c?q=%20&q");
        let answer = bed.raw(method, &path, &headers, &vec![7; 300_000]).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["x-own"], "1");
        assert!(
            answer.headers.get("x-hop").is_none() && answer.headers.get("connection").is_none()
        );
        let said = answer.json();
        assert_eq!((&said["method"], &said["uri"]), (&json!(method), &json!("/a%2Fb//c?q=%20&q")));
        assert_eq!(said["length"], 300_000);
        let headers = &said["headers"];
        assert_eq!(headers["host"], format!("localhost:{port}"));
        assert_eq!(headers["x-forwarded-host"], "node:7878");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-prefix"], at);
        assert_eq!((&headers["x-kept"], &headers["connection"]), (&json!("2"), &json!("close")));
        for gone in ["authorization", "x-secret", "te", "expect"] {
            assert!(headers.get(gone).is_none(), "{gone} was passed on");
        }
    }
    assert_eq!(bed.get(&at).await.json()["uri"], "/");
    assert_eq!(bed.get(&format!("{at}/")).await.json()["uri"], "/");
    assert_eq!(bed.get(&format!("{at}?x=1")).await.json()["uri"], "/?x=1");
}

#[tokio::test]
async fn answers_come_back_as_they_are() {
    let routes = Router::new()
        .route("/teapot", get(|| async { (StatusCode::IM_A_TEAPOT, "short and stout") }))
        .route("/empty", get(|| async { StatusCode::NO_CONTENT }));
    let (bed, at) = with_ports(routes).await;
    let answer = bed.get(&format!("{at}/teapot")).await;
    assert_eq!((answer.status.as_u16(), &answer.bytes[..]), (418, &b"short and stout"[..]));
    assert_eq!(answer.headers["content-length"], "15");
    let head = bed.raw("HEAD", &format!("{at}/teapot"), &[], b"").await;
    assert_eq!((head.status.as_u16(), head.bytes.len()), (418, 0));
    assert_eq!(bed.get(&format!("{at}/empty")).await.status, 204);
}

#[tokio::test]
async fn bodies_are_streamed_both_ways_at_once() {
    let echo = |request: Request<Body>| async move { request.into_body() };
    let (bed, at) = with_ports(Router::new().fallback(any(echo))).await;
    let (pieces, body) = tokio::sync::mpsc::channel::<Result<&'static str, std::io::Error>>(1);
    let body = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(body));
    let request = Request::builder().method("POST").uri(at);
    let request = request.header("authorization", format!("Bearer {TOKEN}")).body(body).unwrap();
    let first = tokio::spawn(async move {
        pieces.send(Ok("one")).await.unwrap();
        pieces
    });
    let response = bed.routes.clone().oneshot(request).await.unwrap();
    let mut data = response.into_body().into_data_stream();
    assert_eq!(data.next().await.unwrap().unwrap(), "one");
    let pieces = first.await.unwrap();
    pieces.send(Ok("two")).await.unwrap();
    assert_eq!(data.next().await.unwrap().unwrap(), "two");
    drop(pieces);
    assert!(data.next().await.is_none());
}

/// A server that says this, whatever it is asked.
async fn saying(words: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(words).await.unwrap();
        }
    });
    port
}

#[tokio::test]
async fn what_does_not_answer_is_told() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unused = listener.local_addr().unwrap().port();
    drop(listener);
    let answer = bed.get(&format!("/v1/sandboxes/a/ports/{unused}/x")).await;
    answer.refused(502, "connection_refused");
    assert!(answer.json()["detail"].as_str().unwrap().contains(&unused.to_string()));
    for words in [&b"SSH-2.0-OpenSSH\r\n"[..], b"", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
    {
        let port = saying(words).await;
        let answer = bed.get(&format!("/v1/sandboxes/a/ports/{port}/")).await;
        answer.refused(502, "guest_failed");
    }
    for port in ["0", "65536", "-1", "http"] {
        bed.get(&format!("/v1/sandboxes/a/ports/{port}/")).await.refused(400, "bad_request");
        bed.raw("GET", &format!("/v1/sandboxes/a/tcp/{port}"), UPGRADE, b"")
            .await
            .refused(400, "bad_request");
    }
    bed.get("/v1/sandboxes/nobody/ports/80/").await.refused(404, "not_found");
    let refused = bed.raw("GET", &format!("/v1/sandboxes/a/tcp/{unused}"), UPGRADE, b"").await;
    refused.refused(502, "connection_refused");
    bed.get(&format!("/v1/sandboxes/a/tcp/{unused}")).await.refused(400, "bad_request");
    bed.call("POST", "/v1/sandboxes/a/pause", Value::Null).await.is(200);
    bed.get(&format!("/v1/sandboxes/a/ports/{unused}/")).await.refused(409, "wrong_state");
}

const UPGRADE: &[(&str, &str)] = &[("connection", "upgrade"), ("upgrade", "tcp")];

#[tokio::test]
async fn ports_are_listed() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let ports = bed.get("/v1/sandboxes/a/ports").await.is(200);
    assert_eq!(ports["ports"][0], json!({"port": 8000, "protocol": "tcp", "address": "127.0.0.1"}));
    bed.call("POST", "/v1/sandboxes/a/ports", Value::Null).await.refused(405, "method_not_allowed");
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_websocket_goes_through() {
    let open = |upgrade: WebSocketUpgrade| async { upgrade.protocols(["chat"]).on_upgrade(echo) };
    let (bed, at) = with_ports(Router::new().route("/ws", get(open))).await;
    let address = bed.listen().await;
    let mut request = format!("ws://{address}{at}/ws").into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
    headers.insert("sec-websocket-protocol", "chat".parse().unwrap());
    let (mut socket, response) = tokio_tungstenite::connect_async(request).await.unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    let long = Message::Binary(vec![7; 500_000].into());
    for message in [Message::Text("hello".into()), long] {
        socket.send(message.clone()).await.unwrap();
        let heard = tokio::time::timeout(PATIENCE, socket.next()).await.expect("in time");
        assert_eq!(heard.unwrap().unwrap(), message);
    }
    // The node stops, and the stream with it.
    bed.service.stopping().cancel();
    let end = async { while let Some(Ok(_)) = socket.next().await {} };
    tokio::time::timeout(PATIENCE, end).await.expect("it ends");
}

#[tokio::test]
async fn a_link_needs_no_token() {
    let open = |upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(echo) };
    let (bed, at) = with_ports(Router::new().route("/ws", get(open)).fallback(any(mirror))).await;
    let port: u16 = at.rsplit('/').next().unwrap().parse().unwrap();
    let link = bed.call("POST", "/v1/sandboxes/a/links", json!({ "port": port })).await.is(201);
    let path = link["path"].as_str().unwrap().trim_end_matches('/').to_owned();
    let visit = |path: String, header: &'static str| {
        let request = Request::builder().uri(path).header("authorization", header);
        bed.send(request.body(Body::empty()).unwrap())
    };
    for (rest, seen) in [("", "/"), ("/", "/"), ("/a%2Fb//c?q=1", "/a%2Fb//c?q=1")] {
        let answer = visit(format!("{path}{rest}"), "Bearer of-the-server").await;
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
        let said = answer.json();
        assert_eq!(said["uri"], seen);
        assert_eq!(said["headers"]["authorization"], "Bearer of-the-server");
        assert_eq!(said["headers"]["x-forwarded-prefix"], path);
    }
    let said = visit(path.clone(), "Bearer ramet_0123456789abcdef").await.json();
    assert!(said["headers"].get("authorization").is_none(), "a token of the node was passed on");
    visit("/l/0000".to_owned(), "x").await.refused(404, "not_found");
    let address = bed.listen().await;
    let request = format!("ws://{address}{path}/ws").into_client_request().unwrap();
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    socket.send(Message::Text("hello".into())).await.unwrap();
    let heard = tokio::time::timeout(PATIENCE, socket.next()).await.expect("in time");
    assert_eq!(heard.unwrap().unwrap(), Message::Text("hello".into()));
    let listed = bed.get("/v1/sandboxes/a/links").await.is(200);
    assert!(listed["links"][0].get("path").is_none());
    let id = listed["links"][0]["id"].as_str().unwrap();
    bed.call("DELETE", &format!("/v1/sandboxes/a/links/{id}"), Value::Null).await.is(204);
    visit(path, "x").await.refused(404, "not_found");
    for wrong in [json!({}), json!({ "port": 0 }), json!({ "port": 1, "expires_s": 0 })] {
        let answer = bed.call("POST", "/v1/sandboxes/a/links", wrong).await;
        answer.refused(400, "bad_request");
    }
}

#[tokio::test]
async fn a_port_is_waited_for() {
    let (bed, at) = with_ports(Router::new().fallback(any(mirror))).await;
    let port = at.rsplit('/').next().unwrap().to_owned();
    let path = format!("/v1/sandboxes/a/tcp/{port}/wait?timeout_s=5&path=/x");
    assert_eq!(bed.get(&path).await.is(200)["status"], 200);
    let nobody = saying(b"").await;
    let path = format!("/v1/sandboxes/a/tcp/{nobody}/wait?timeout_s=0&path=/x");
    bed.get(&path).await.refused(504, "guest_unresponsive");
    bed.get("/v1/sandboxes/a/tcp/1/wait?timeout_s=601").await.refused(400, "bad_request");
}

/// A raw stream through the node, behind the answer's head.
async fn raw_stream(address: SocketAddr, port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /v1/sandboxes/a/tcp/{port} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\
         Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    stream
}

#[tokio::test]
async fn raw_streams_are_closed_one_side_at_a_time() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let address = bed.listen().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Speaks first, reads to the end, then says how much it was.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(b"welcome").await.unwrap();
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(all.len().to_string().as_bytes()).await.unwrap();
            });
        }
    });
    let one = async |size: usize| {
        let mut stream = raw_stream(address, port).await;
        let mut welcome = [0; 7];
        stream.read_exact(&mut welcome).await.unwrap();
        assert_eq!(&welcome, b"welcome");
        stream.write_all(&vec![1; size]).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, size.to_string());
    };
    let all = futures_util::future::join_all((0..20).map(|number| one(number * 100_000)));
    tokio::time::timeout(PATIENCE * 3, all).await.expect("all of them");
}

#[tokio::test]
async fn archives_travel_both_ways() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let at = "/v1/sandboxes/a/files/archive?path=/d";
    let long = vec![b'x'; 3_000_000];
    let unpacked = bed.raw("PUT", &format!("{at}&owner=root&format=tar.gz"), &[], &long).await;
    assert_eq!(unpacked.is(200), json!({"entries": 1, "files": 1, "bytes": 3_000_000}));
    let plain = bed.get(at).await;
    assert_eq!((plain.status.as_u16(), plain.bytes == long), (200, true));
    assert_eq!(plain.headers["content-type"], "application/x-tar");
    let zipped = bed.get(&format!("{at}&format=tar.gz")).await;
    assert_eq!(zipped.headers["content-type"], "application/gzip");
    bed.raw("PUT", at, &[], b"bad").await.refused(400, "bad_request");
    bed.get("/v1/sandboxes/a/files/archive?path=/none").await.refused(404, "file_not_found");
    bed.get(&format!("{at}&format=zip")).await.refused(400, "unsupported_option");
    bed.get(&format!("{at}&owner=root")).await.refused(400, "unsupported_option");
    for query in ["", "?path=relative", "?path=/a%00b"] {
        let path = format!("/v1/sandboxes/a/files/archive{query}");
        bed.get(&path).await.refused(400, "bad_request");
        bed.raw("PUT", &path, &[], b"x").await.refused(400, "bad_request");
    }
}

/// An answer as it comes.
struct Heard {
    data: axum::body::BodyDataStream,
    text: String,
}

impl Heard {
    async fn new(bed: &Bed, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut request = Request::builder().uri(path);
        request = request.header("authorization", format!("Bearer {TOKEN}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = bed.routes.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { data: response.into_body().into_data_stream(), text: String::new() }
    }

    /// Everything up to an event of this kind.
    async fn until(&mut self, kind: &str) -> &str {
        let end = format!("event: {kind}\n");
        while !self.text.split("\n\n").any(|event| event.contains(&end) && event.contains("data")) {
            let piece = tokio::time::timeout(PATIENCE, self.data.next()).await.expect("in time");
            self.text += std::str::from_utf8(&piece.expect("more").unwrap()).unwrap();
        }
        &self.text
    }

    fn fields(&self, name: &str) -> Vec<&str> {
        let name = format!("{name}: ");
        self.text.lines().filter_map(|line| line.strip_prefix(name.as_str())).collect()
    }
}

#[tokio::test]
async fn changes_are_told_until_the_machine_is_gone() {
    let bed = Bed::new().await;
    bed.create("a").await;
    let path = "/v1/sandboxes/a/files/watch?path=/d&recursive=true";
    let mut heard = Heard::new(&bed, path, &[]).await;
    heard.until("overflow").await;
    assert_eq!(heard.fields("event"), ["created", "overflow"]);
    assert_eq!(heard.fields("data")[0], r#"{"kind":"created","path":"/d/f"}"#);
    bed.service.stopping().cancel();
    assert!(heard.data.next().await.is_none(), "it ends with the node");
    let bed = Bed::new().await;
    bed.create("a").await;
    let mut heard = Heard::new(&bed, "/v1/sandboxes/a/files/watch?path=/gone", &[]).await;
    assert!(heard.until("error").await.contains("guest_failed"));
    assert!(heard.data.next().await.is_none(), "nothing comes after an error");
    for query in ["", "?path=x", "?path=/x&recursive=maybe"] {
        let path = format!("/v1/sandboxes/a/files/watch{query}");
        bed.get(&path).await.refused(400, "bad_request");
    }
}

#[tokio::test]
async fn who_comes_back_hears_what_it_missed() {
    let bed = Bed::new().await;
    let mut heard = Heard::new(&bed, "/v1/events", &[]).await;
    bed.create("a").await;
    heard.until("created").await;
    let id = heard.fields("id")[0].to_owned();
    drop(heard);
    bed.create("b").await;
    bed.call("DELETE", "/v1/sandboxes/a", Value::Null).await.is(204);
    let mut heard = Heard::new(&bed, "/v1/events", &[("last-event-id", &id)]).await;
    heard.until("deleted").await;
    assert_eq!(heard.fields("event"), ["created", "deleted"]);
    bed.create("c").await;
    heard.text.clear();
    heard.until("created").await;
    assert_eq!(heard.fields("event"), ["created"], "once, and only what is new");
    for unknown in ["1-1", "nonsense", ""] {
        let mut heard = Heard::new(&bed, "/v1/events", &[("last-event-id", unknown)]).await;
        heard.until("gap").await;
        assert!(heard.fields("id").is_empty(), "a gap has no id");
    }
}
