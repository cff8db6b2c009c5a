//! The client against a node that is none: refusals, streams, silence, and that nothing is sent twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use ramet_client::api::{
    ArchiveFormat, AttachVolume, ChangeKind, CheckRequest, Code, CommitState, CommitsQuery,
    CreateCommit, CreateSandbox, CreateVolume, EventsQuery, ForkRequest, GcRequest, ListQuery,
    PauseRequest, PutRef, ReadArchiveQuery, RefKind, StreamExec, WatchQuery, WriteArchiveQuery,
    WriteQuery,
};
use ramet_client::{Client, Error, Exited, Output};

type Count = Arc<AtomicU32>;

/// A client of a server with these routes.
async fn serve(router: Router) -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    Client::new(&url, "secret").unwrap()
}

fn json(status: StatusCode, kind: &str, body: impl Into<Body>) -> Response {
    (status, [(header::CONTENT_TYPE, kind.to_owned())], body.into()).into_response()
}

fn problem(status: u16, code: &str, more: &str) -> Response {
    let body = format!(
        r#"{{"type":"about:blank","title":"t","status":{status},"code":"{code}","detail":"why"{more}}}"#
    );
    json(StatusCode::from_u16(status).unwrap(), "application/problem+json", body)
}

const SANDBOX: &str = r#"{"id":"sbx-0123456789abcdef","name":"a","state":"running","owner":"o","labels":{},
    "template":"base","vcpus":1,"memory_mib":512,"env":{},"secret_names":[],"created_at_ms":1,
    "active_at_ms":1,"timeout_s":0,"idle_timeout_s":0,"on_timeout":"kill","cpu_weight":100,
    "cpu_quota_percent":0,"pids_max":0}"#;

#[tokio::test]
async fn the_token_goes_with_every_request() {
    let check = |headers: HeaderMap| async move {
        assert_eq!(headers["authorization"], "Bearer secret");
        json(StatusCode::OK, "application/json", SANDBOX)
    };
    let client = serve(Router::new().route("/v1/sandboxes/{id}", get(check))).await;
    assert_eq!(client.sandbox("a").await.unwrap().name, "a");
}

#[tokio::test]
async fn a_refusal_has_its_code() {
    let answer = |Path(id): Path<String>| async move {
        match id.as_str() {
            "promoted" => problem(410, "promoted", r#","promoted_to":"sbx-1""#),
            "newer" => problem(418, "of_a_newer_node", ""),
            _ => problem(404, "not_found", ""),
        }
    };
    let client = serve(Router::new().route("/v1/sandboxes/{id}", get(answer))).await;
    let error = client.sandbox("none").await.unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), (Some(Code::NotFound), "why"));
    let error = client.sandbox("promoted").await.unwrap_err();
    assert_eq!(error.problem().unwrap().promoted_to.as_deref(), Some("sbx-1"));
    assert_eq!(client.sandbox("newer").await.unwrap_err().code(), Some(Code::Unknown));
}

#[tokio::test]
async fn what_is_no_node_is_told_apart() {
    let page = || async { (StatusCode::NOT_FOUND, "<html>nginx</html>") };
    let wrong = || async { json(StatusCode::OK, "application/json", r#"{"cats":3}"#) };
    let router = Router::new().route("/v1/tree", get(wrong)).fallback(page);
    let client = serve(router).await;
    assert!(matches!(client.node().await, Err(Error::Protocol(text)) if text.contains("nginx")));
    assert!(matches!(client.tree().await, Err(Error::Protocol(_))));
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = Client::new(&format!("http://{address}"), "t").unwrap();
    assert!(matches!(client.health().await, Err(Error::Unreachable { .. })));
    let stream = client.exec_stream("a", StreamExec::default()).await;
    assert!(matches!(stream, Err(Error::Unreachable { .. })));
}

#[tokio::test]
async fn nothing_is_sent_twice() {
    async fn refuse(State(count): State<Count>) -> Response {
        count.fetch_add(1, Ordering::SeqCst);
        problem(503, "no_capacity", "")
    }
    let count = Count::default();
    let router = Router::new()
        .route("/v1/sandboxes", post(refuse))
        .route("/v1/sandboxes/{id}", delete(refuse))
        .with_state(count.clone());
    let client = serve(router).await;
    let error = client.create(&CreateSandbox::default()).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NoCapacity));
    assert!(client.delete("a").await.is_err());
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_connection_that_breaks_is_not_tried_again() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Count::default();
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            // Reads a little, then hangs up.
            stream.readable().await.unwrap();
            let _ = stream.try_read(&mut [0; 64]);
        }
    });
    let client = Client::new(&url, "t").unwrap();
    assert!(matches!(client.create(&CreateSandbox::default()).await, Err(Error::Broken(_))));
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_key_is_sent_and_a_fork_that_half_failed_is_an_answer() {
    let fork = |headers: HeaderMap| async move {
        assert_eq!(headers["idempotency-key"], "k");
        let failed = r#"{"error":{"type":"about:blank","title":"t","status":503,"code":"no_capacity","detail":"full"}}"#;
        let body = format!(
            r#"{{"rendezvous_us":1,"pause_us":2,"fork_us":3,"total_us":4,"children":[{{"sandbox":{SANDBOX},"ready_us":5}},{failed}]}}"#
        );
        json(StatusCode::MULTI_STATUS, "application/json", body)
    };
    let client = serve(Router::new().route("/v1/sandboxes/{id}/fork", post(fork))).await;
    let request = ForkRequest { count: Some(2), ..ForkRequest::default() };
    let forked = client.fork_with_key("a", &request, "k").await.unwrap();
    assert_eq!(forked.children[0].sandbox.as_ref().unwrap().name, "a");
    assert_eq!(forked.children[1].error.as_ref().unwrap().code, Code::NoCapacity);
}

#[tokio::test]
async fn all_pages_are_read_and_an_endless_list_is_not() {
    use axum::extract::Query;
    use std::collections::HashMap;
    let pages = |Query(query): Query<HashMap<String, String>>| async move {
        let next = match query.get("cursor").map(String::as_str) {
            None => r#","next_cursor":"2""#,
            Some("2") if query.get("label").map(String::as_str) == Some("loop") => {
                r#","next_cursor":"2""#
            }
            _ => "",
        };
        json(StatusCode::OK, "application/json", format!(r#"{{"sandboxes":[{SANDBOX}]{next}}}"#))
    };
    let client = serve(Router::new().route("/v1/sandboxes", get(pages))).await;
    assert_eq!(client.list_all(&ListQuery::default()).await.unwrap().len(), 2);
    let endless = ListQuery { label: Some("loop".into()), ..ListQuery::default() };
    assert!(matches!(client.list_all(&endless).await, Err(Error::Protocol(_))));
}

#[tokio::test]
async fn files_of_any_size_go_both_ways() {
    const SIZE: usize = 5 << 20;
    let read = || async { vec![7_u8; SIZE] };
    let write = |body: axum::body::Bytes| async move {
        let size = body.len();
        let file = format!(
            r#"{{"path":"/a","kind":"file","size":{size},"mode":420,"uid":0,"gid":0,"modified_ns":0}}"#
        );
        json(StatusCode::CREATED, "application/json", file)
    };
    let router = Router::new()
        .route("/v1/sandboxes/{id}/files", put(write).get(read))
        .layer(axum::extract::DefaultBodyLimit::disable());
    let client = serve(router).await;
    let query = WriteQuery { path: "/a".into(), ..WriteQuery::default() };
    let content = std::io::Cursor::new(vec![1_u8; SIZE]);
    assert_eq!(client.upload("a", &query, content).await.unwrap().size, SIZE as u64);
    let mut reader = client.read_file("a", "/a").await.unwrap();
    let mut size = 0;
    while let Some(bytes) = reader.next().await.unwrap() {
        assert!(bytes.iter().all(|byte| *byte == 7));
        size += bytes.len();
    }
    assert_eq!(size, SIZE);
}

#[tokio::test]
async fn a_source_that_fails_is_named_as_the_cause() {
    struct Failing;
    impl tokio::io::AsyncRead for Failing {
        fn poll_read(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Err(std::io::Error::other("unplugged")))
        }
    }
    let write = |_: axum::body::Bytes| async { StatusCode::CREATED };
    let client = serve(Router::new().route("/v1/sandboxes/{id}/files", put(write))).await;
    let query = WriteQuery { path: "/a".into(), ..WriteQuery::default() };
    let error = client.upload("a", &query, Failing).await.unwrap_err();
    assert!(matches!(error, Error::Source(source) if source.to_string() == "unplugged"));
}

/// Echoes its input, then ends as the request asked: `argv[0]` is the exit code.
async fn process(mut socket: WebSocket) {
    let Some(Ok(Message::Text(first))) = socket.recv().await else { return };
    if first.contains("refuse") {
        let error = r#"{"error":{"type":"about:blank","title":"t","status":409,"code":"wrong_state","detail":"paused"}}"#;
        socket.send(Message::Text(error.into())).await.unwrap();
        return;
    }
    socket.send(Message::Text(r#"{"started":{"pid":42}}"#.into())).await.unwrap();
    while let Some(Ok(message)) = socket.recv().await {
        match message {
            Message::Binary(bytes) => {
                assert_eq!(bytes[0], 1);
                let echo = [&[2], &bytes[1..]].concat();
                socket.send(Message::Binary(echo.into())).await.unwrap();
            }
            Message::Text(text) if text.contains("end") => break,
            _ => {}
        }
    }
    if first.contains("hang up") {
        return;
    }
    socket.send(Message::Binary(vec![3, b'e'].into())).await.unwrap();
    let exited = r#"{"exited":{"exit_code":7,"signal":null,"timed_out":false,"dropped_bytes":0}}"#;
    socket.send(Message::Text(exited.into())).await.unwrap();
}

fn exec(word: &str) -> StreamExec {
    StreamExec { argv: Some(vec![word.to_owned()]), stdin: true, ..StreamExec::default() }
}

async fn streams() -> Client {
    let open = |Path(id): Path<String>, upgrade: Result<WebSocketUpgrade, _>| async move {
        if id == "none" {
            return problem(404, "not_found", "");
        }
        let upgrade: Result<
            WebSocketUpgrade,
            axum::extract::ws::rejection::WebSocketUpgradeRejection,
        > = upgrade;
        upgrade.unwrap().on_upgrade(process)
    };
    serve(Router::new().route("/v1/sandboxes/{id}/exec/ws", get(open))).await
}

#[tokio::test]
async fn a_process_is_fed_and_read() {
    let mut stream = streams().await.exec_stream("a", exec("cat")).await.unwrap();
    assert_eq!(stream.pid(), 42);
    stream.input().write(&vec![b'x'; 100_000]).await.unwrap();
    stream.input().end().await.unwrap();
    let (mut out, mut err) = (0, 0);
    let exited = loop {
        match stream.next().await.unwrap() {
            Output::Stdout(bytes) => out += bytes.len(),
            Output::Stderr(bytes) => err += bytes.len(),
            Output::Exited(exited) => break exited,
        }
    };
    assert_eq!((out, err), (100_000, 1));
    let expected = Exited { exit_code: Some(7), signal: None, timed_out: false, dropped_bytes: 0 };
    assert_eq!(exited, expected);
}

#[tokio::test]
async fn streams_are_refused_before_and_after_the_handshake() {
    let client = streams().await;
    let error = client.exec_stream("none", exec("cat")).await.err().unwrap();
    assert_eq!(error.code(), Some(Code::NotFound));
    let error = client.exec_stream("a", exec("refuse")).await.err().unwrap();
    assert_eq!(error.code(), Some(Code::WrongState));
}

#[tokio::test]
async fn a_refusal_whose_body_comes_late_is_asked_for() {
    let open = || async {
        let late = futures_util::stream::once(async {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            Ok::<_, std::io::Error>("{}")
        });
        json(StatusCode::NOT_FOUND, "application/problem+json", Body::from_stream(late))
    };
    let sandbox = || async { problem(404, "not_found", "") };
    let router = Router::new()
        .route("/v1/sandboxes/{id}/exec/ws", get(open))
        .route("/v1/sandboxes/{id}", get(sandbox));
    let error = serve(router).await.exec_stream("none", exec("cat")).await.err().unwrap();
    assert_eq!(error.code(), Some(Code::NotFound));
}

#[tokio::test]
async fn a_stream_that_breaks_is_an_error_and_no_end() {
    let mut stream = streams().await.exec_stream("a", exec("hang up")).await.unwrap();
    stream.input().end().await.unwrap();
    assert!(matches!(stream.next().await, Err(Error::Broken(_))));
}

#[tokio::test]
async fn events_come_one_by_one() {
    let events = || async {
        let text = ": hello\n\nevent: forked\ndata: {\"number\":1,\"at_ms\":2,\"kind\":\"forked\",\"sandbox\":\"sbx-2\",\"other\":\"sbx-1\"}\n\n";
        json(StatusCode::OK, "text/event-stream", text)
    };
    let client = serve(Router::new().route("/v1/events", get(events))).await;
    let mut events = client.events(&EventsQuery::default()).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().other.as_deref(), Some("sbx-1"));
    assert_eq!(events.next().await.unwrap(), None);
}

#[tokio::test]
async fn who_comes_back_says_what_it_has_seen() {
    let events = |headers: HeaderMap| async move {
        let id = headers.get("last-event-id").map_or("none", |id| id.to_str().unwrap()).to_owned();
        let event = r#"{"number":1,"at_ms":2,"kind":"forked","sandbox":"sbx-2"}"#;
        let text = format!("event: forked\nid: after-{id}\ndata: {event}\n\n");
        json(StatusCode::OK, "text/event-stream", text)
    };
    let client = serve(Router::new().route("/v1/events", get(events))).await;
    let mut events = client.events(&EventsQuery::default()).await.unwrap();
    assert_eq!(events.last_id(), None);
    events.next().await.unwrap().unwrap();
    assert_eq!(events.last_id(), Some("after-none"));
    let mut events = client.events_after(&EventsQuery::default(), "7-1").await.unwrap();
    assert_eq!(events.last_id(), Some("7-1"));
    events.next().await.unwrap().unwrap();
    assert_eq!(events.last_id(), Some("after-7-1"));
}

#[tokio::test]
async fn changes_come_one_by_one_and_an_end_has_a_reason() {
    let watch = || async {
        let change = r#"{"kind":"moved_to","path":"/a"}"#;
        let problem = r#"{"type":"about:blank","title":"t","status":502,"code":"guest_failed","detail":"gone"}"#;
        let text = format!("event: moved_to\ndata: {change}\n\nevent: error\ndata: {problem}\n\n");
        json(StatusCode::OK, "text/event-stream", text)
    };
    let client = serve(Router::new().route("/v1/sandboxes/{id}/files/watch", get(watch))).await;
    let query = WatchQuery { path: "/a".into(), recursive: true };
    let mut watch = client.watch_files("a", &query).await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().kind, ChangeKind::MovedTo);
    assert_eq!(watch.next().await.unwrap_err().code(), Some(Code::GuestFailed));
    assert_eq!(watch.next().await.unwrap(), None);
}

#[tokio::test]
async fn archives_of_any_size_go_both_ways() {
    const SIZE: usize = 5 << 20;
    let read = || async { vec![7_u8; SIZE] };
    let write = |uri: axum::http::Uri, body: axum::body::Bytes| async move {
        assert_eq!(uri.query(), Some("path=%2Fa&format=tar.gz&owner=root"));
        let text = format!(r#"{{"entries":1,"files":1,"bytes":{}}}"#, body.len());
        json(StatusCode::OK, "application/json", text)
    };
    let router = Router::new()
        .route("/v1/sandboxes/{id}/files/archive", put(write).get(read))
        .layer(axum::extract::DefaultBodyLimit::disable());
    let client = serve(router).await;
    let (path, format) = ("/a".to_owned(), ArchiveFormat::TarGz);
    let query = WriteArchiveQuery { path: path.clone(), format, owner: Some("root".into()) };
    let content = std::io::Cursor::new(vec![1_u8; SIZE]);
    let unpacked = client.write_archive("a", &query, content).await.unwrap();
    assert_eq!(unpacked.bytes, SIZE as u64);
    let mut reader = client.read_archive("a", &ReadArchiveQuery { path, format }).await.unwrap();
    let mut size = 0;
    while let Some(bytes) = reader.next().await.unwrap() {
        size += bytes.len();
    }
    assert_eq!(size, SIZE);
}

/// Takes one connection, answers with this head, then echoes to the end and says goodbye.
async fn upgrading(head: &'static str) -> Client {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(stream.read_u8().await.unwrap());
        }
        let asked = String::from_utf8(asked).unwrap().to_ascii_lowercase();
        assert!(asked.starts_with("get /v1/sandboxes/a/tcp/80 "), "{asked}");
        assert!(
            asked.contains("upgrade: tcp\r\n") && asked.contains("authorization: bearer t\r\n")
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.write_all(b", goodbye").await.unwrap();
    });
    Client::new(&url, "t").unwrap()
}

#[tokio::test]
async fn a_raw_stream_is_closed_one_side_at_a_time() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: tcp\r\n\r\n";
    let mut stream = upgrading(head).await.tcp("a", 80).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "hello, goodbye");
    let plain = upgrading("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.tcp("a", 80).await;
    assert!(matches!(plain.err(), Some(Error::Protocol(_))));
    let refuse = || async { problem(502, "connection_refused", "") };
    let client = serve(Router::new().route("/v1/sandboxes/{id}/tcp/{port}", get(refuse))).await;
    let refused = client.tcp("a", 80).await.err().unwrap();
    assert_eq!(refused.code(), Some(Code::ConnectionRefused));
}

#[tokio::test]
async fn requests_to_a_port_carry_the_token_to_the_node() {
    let answer = |headers: HeaderMap, uri: axum::http::Uri| async move {
        assert_eq!(headers["authorization"], "Bearer secret");
        uri.to_string()
    };
    let client = serve(Router::new().fallback(answer)).await;
    for path in ["x/y?z=1", "/x/y?z=1"] {
        let request = client.port_request(ramet_client::reqwest::Method::POST, "a b", 80, path);
        let text = request.unwrap().send().await.unwrap().text().await.unwrap();
        assert_eq!(text, "/v1/sandboxes/a%20b/ports/80/x/y?z=1");
    }
}

const COMMIT: &str = r#"{"id":"cm-0123456789abcdef","state":"writing","owner":"o","author":"a","labels":{},
    "ancestors":["cm-1"],"sandbox":"sbx-1","sandbox_name":"box","template":"base","vcpus":1,
    "memory_mib":512,"disk_mib":4096,"created_at_ms":1,"kept_us":2,"refs":["main"]}"#;

/// A node that gets exactly this request, and answers with this.
async fn expecting(request: &'static str, status: u16, body: &'static str) -> Client {
    let answer = move |asked: axum::extract::Request| async move {
        let (head, content) = asked.into_parts();
        let content = axum::body::to_bytes(content, 1 << 20).await.unwrap();
        let content = String::from_utf8(content.to_vec()).unwrap();
        let asked = format!("{} {} {content}", head.method, head.uri);
        if asked.trim_end() != request {
            return (StatusCode::IM_A_TEAPOT, asked).into_response();
        }
        json(StatusCode::from_u16(status).unwrap(), "application/json", body)
    };
    serve(Router::new().fallback(answer)).await
}

#[tokio::test]
async fn a_sandbox_is_paused_where_it_is_asked_for() {
    let pause = r#"POST /v1/sandboxes/a/pause {"memory":false}"#;
    let stored = r#""stored":{"state":"00ff","logical_bytes":9,"written_bytes":3,"stored_at_ms":4,"warm":true}"#;
    let paused = SANDBOX.replace(r#""pids_max":0"#, &format!(r#""pids_max":0,{stored}"#));
    let client = expecting(pause, 200, paused.leak()).await;
    let stored = client.pause("a", &PauseRequest::default()).await.unwrap().stored.unwrap();
    assert_eq!((stored.written_bytes, stored.warm), (3, true));
    let pause = r#"POST /v1/sandboxes/a/pause {"memory":true}"#;
    let client = expecting(pause, 200, SANDBOX).await;
    assert_eq!(
        client.pause("a", &PauseRequest { memory: true, disk: false }).await.unwrap().stored,
        None
    );
    let client = expecting("POST /v1/sandboxes/a/resume", 200, SANDBOX).await;
    assert_eq!(client.resume("a").await.unwrap().name, "a");
}

#[tokio::test]
async fn a_commit_is_made_looked_at_and_deleted() {
    let make = r#"POST /v1/sandboxes/a/commits {"message":"m","branch":"main","wait":false}"#;
    let request = CreateCommit {
        message: Some("m".into()),
        branch: Some("main".into()),
        ..CreateCommit::default()
    };
    let made = expecting(make, 202, COMMIT).await.commit("a", &request).await.unwrap();
    assert_eq!((made.state, made.stored), (CommitState::Writing, None));
    let client = expecting("GET /v1/commits/v1.0", 200, COMMIT).await;
    assert_eq!(client.get_commit("v1.0").await.unwrap().ancestors, ["cm-1"]);
    let client = expecting("DELETE /v1/commits/cm-0123", 204, "").await;
    client.delete_commit("cm-0123").await.unwrap();
    assert!(matches!(client.delete_commit("cm-9").await, Err(Error::Protocol(_))));
}

#[tokio::test]
async fn all_pages_of_commits_are_read() {
    use axum::extract::Query;
    use std::collections::HashMap;
    let pages = |Query(query): Query<HashMap<String, String>>| async move {
        assert_eq!((query["of"].as_str(), query["limit"].as_str()), ("box", "1000"));
        let next = match query.get("cursor").map(String::as_str) {
            None => r#","next_cursor":"2""#,
            Some("2") => r#","next_cursor":"3""#,
            _ => "",
        };
        json(StatusCode::OK, "application/json", format!(r#"{{"commits":[{COMMIT}]{next}}}"#))
    };
    let client = serve(Router::new().route("/v1/commits", get(pages))).await;
    let query = CommitsQuery { of: Some("box".into()), limit: Some(3), ..CommitsQuery::default() };
    assert_eq!(client.commits_all(&query).await.unwrap().len(), 3);
    let client = expecting("GET /v1/commits?label=a%3Db&limit=3", 200, r#"{"commits":[]}"#).await;
    let query =
        CommitsQuery { label: Some("a=b".into()), limit: Some(3), ..CommitsQuery::default() };
    assert_eq!(client.commits(&query).await.unwrap().next_cursor, None);
}

#[tokio::test]
async fn names_of_commits_are_listed_made_and_deleted() {
    let name = r#"{"name":"v1","kind":"branch","commit":"cm-1","updated_at_ms":5}"#;
    let list: &str = format!(r#"{{"refs":[{name}]}}"#).leak();
    let refs = expecting("GET /v1/refs", 200, list).await.refs().await.unwrap();
    assert_eq!((refs[0].name.as_str(), refs[0].kind), ("v1", RefKind::Branch));
    let put = r#"PUT /v1/refs/v1 {"commit":"cm-1","kind":"branch","force":true}"#;
    let request = PutRef { commit: "cm-1".into(), kind: RefKind::Branch, force: true };
    let made = expecting(put, 200, name).await.put_ref("v1", &request).await.unwrap();
    assert_eq!(made, refs[0]);
    expecting("DELETE /v1/refs/v1", 204, "").await.delete_ref("v1").await.unwrap();
}

#[tokio::test]
async fn the_store_is_counted_cleaned_and_checked() {
    let usage = r#"{"location":"file:///s","commits":1,"paused":2,"logical_bytes":30,"stored_bytes":10,"cache_bytes":5}"#;
    let usage = expecting("GET /v1/store", 200, usage).await.store_usage().await.unwrap();
    assert_eq!((usage.commits, usage.stored_bytes), (1, 10));
    let report = r#"{"kept":1,"condemned":2,"removed":3,"removed_bytes":4}"#;
    let client = expecting(r#"POST /v1/store/gc {"dry_run":true}"#, 200, report).await;
    assert_eq!(
        client.store_gc(&GcRequest { dry_run: true, copies: false }).await.unwrap().removed_bytes,
        4
    );
    let report = r#"{"checked":9,"damage":["chunk 00ff is missing"],"repaired":1}"#;
    let client =
        expecting(r#"POST /v1/store/check {"deep":true,"repair":false}"#, 200, report).await;
    let request = CheckRequest { deep: true, repair: false };
    assert_eq!(client.store_check(&request).await.unwrap().damage.len(), 1);
}

const VOLUME: &str = r#"{"id":"vol-0123456789abcdef","name":"data","owner":"o","size_mib":64,"stored_bytes":1,
    "created_at_ms":1,"used_by":[]}"#;

#[tokio::test]
async fn volumes_have_routes() {
    let make = r#"POST /v1/volumes {"name":"data"}"#;
    let client = expecting(make, 201, VOLUME).await;
    let request = CreateVolume { name: "data".to_owned(), size_mib: None };
    assert_eq!(client.create_volume(&request).await.unwrap().size_mib, 64);
    let client = expecting("GET /v1/volumes/data", 200, VOLUME).await;
    assert_eq!(client.volume("data").await.unwrap().name, "data");
    let client = expecting("GET /v1/volumes", 200, r#"{"volumes":[]}"#).await;
    assert!(client.volumes().await.unwrap().is_empty());
    let client = expecting("DELETE /v1/volumes/data", 204, "").await;
    client.delete_volume("data").await.unwrap();
    let give = r#"POST /v1/sandboxes/a/volumes {"volume":"data","path":"/mnt","read_only":false}"#;
    let client = expecting(give, 200, SANDBOX).await;
    let (volume, path) = ("data".to_owned(), "/mnt".to_owned());
    client.attach_volume("a", &AttachVolume { volume, path, read_only: false }).await.unwrap();
    let client = expecting("DELETE /v1/sandboxes/a/volumes/%2Fmnt", 200, SANDBOX).await;
    client.detach_volume("a", "/mnt").await.unwrap();
}
