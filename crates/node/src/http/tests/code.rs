//! Code in contexts, with an interpreter that is none: what the node asks of it, what it makes of the answers.

use axum::extract::Path;
use axum::routing::{delete, get, post};
use tokio::net::TcpListener;

use super::*;

/// An interpreter whose Python context has one variable; its port.
async fn interpreter(value: &'static str) -> u16 {
    let execute = |body: String| async move {
        let body: Value = serde_json::from_str(&body).unwrap();
        let code = body["code"].as_str().unwrap().to_owned();
        let (status, text) = match code.as_str() {
            "slow" => {
                let never = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
                return (StatusCode::OK, Body::from_stream(never));
            }
            "refused" => (StatusCode::NOT_IMPLEMENTED, "no kernel for cobol".to_owned()),
            "broken" => (StatusCode::OK, "no json\n".to_owned()),
            "cut" => (StatusCode::OK, "{\"type\":\"keepalive\"}\n".to_owned()),
            _ => {
                let events = [
                    json!({"type": "number_of_executions", "execution_count": 3}),
                    json!({"type": "of_the_future", "x": 1}),
                    json!({"type": "stdout", "text": body.to_string(), "timestamp": 5}),
                    json!({"type": "result", "is_main_result": true, "text": "2", "png": "AA==", "data": {"a": [1]}}),
                    json!({"type": "error", "name": "E", "value": "v", "traceback": "t"}),
                    json!({"type": "end_of_execution"}),
                ];
                let lines: Vec<String> = events.iter().map(|event| format!("{event}\n")).collect();
                (StatusCode::OK, lines.concat())
            }
        };
        (status, Body::from(text))
    };
    let context = json!({"id": "python", "language": "python", "cwd": "/home/user"});
    let (listed, made, again) = (json!([context]), context.clone(), context);
    let variables = json!({"variables": [
        {"name": "x", "type": "int", "kind": "value", "value": value},
        {"name": "same", "type": "int", "kind": "value", "value": "1"},
    ], "truncated": false});
    let routes = Router::new()
        .route("/execute", post(execute))
        .route(
            "/contexts",
            get(move || async move { listed.to_string() })
                .post(move || async move { made.to_string() }),
        )
        .route("/contexts/{id}", delete(gone))
        .route("/contexts/{id}/restart", post(move || async move { again.to_string() }))
        .route(
            "/contexts/{id}/interrupt",
            post(|| async { json!({"interrupted": true}).to_string() }),
        )
        .route("/contexts/{id}/variables", get(move || async move { variables.to_string() }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    port
}

async fn gone(Path(id): Path<String>) -> (StatusCode, String) {
    match id.as_str() {
        "python" => (StatusCode::NO_CONTENT, String::new()),
        _ => (StatusCode::NOT_FOUND, format!("there is no context {id}")),
    }
}

async fn with_interpreter() -> Bed {
    let bed = Bed::new().await;
    bed.create("a").await;
    bed.engine.interpret_at("a", interpreter("1").await);
    bed
}

fn lines(answer: &Answer) -> Vec<Value> {
    let text = String::from_utf8(answer.bytes.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn code_runs_and_what_comes_of_it_is_told() {
    let bed = with_interpreter().await;
    let body = json!({"code": "1 + 1", "language": "python", "env": {"K": "v"}});
    let answer = bed.call("POST", "/v1/sandboxes/a/code", body).await;
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let events = lines(&answer);
    assert_eq!(events[0], json!({"type": "started", "count": 3}));
    let asked: Value = serde_json::from_str(events[1]["text"].as_str().unwrap()).unwrap();
    let expected =
        json!({"code": "1 + 1", "context_id": null, "language": "python", "env_vars": {"K": "v"}});
    assert_eq!(asked, expected);
    assert_eq!(events[1]["timestamp_ns"], 5);
    let result =
        json!({"type": "result", "main": true, "text": "2", "png": "AA==", "data": {"a": [1]}});
    assert_eq!(events[2], result);
    assert_eq!(events[3], json!({"type": "error", "name": "E", "value": "v", "traceback": "t"}));
    assert_eq!(events[4..], [json!({"type": "end"})]);
}

#[tokio::test]
async fn what_the_interpreter_refuses_or_breaks_is_told() {
    let bed = with_interpreter().await;
    let run = async |body: Value| bed.call("POST", "/v1/sandboxes/a/code", body).await;
    run(json!({"code": "refused"})).await.refused(400, "unsupported_option");
    run(json!({"code": "1", "context": "a", "language": "b"})).await.refused(400, "bad_request");
    run(json!({"code": "1", "context": "../x"})).await.refused(404, "not_found");
    run(json!({"code": "1", "timeout_s": 0})).await.refused(400, "bad_request");
    run(json!({"code": "1", "nothing": 0})).await.refused(400, "unsupported_option");
    let events = lines(&run(json!({"code": "slow", "timeout_s": 1})).await);
    assert_eq!((&events[0]["name"], events.len()), (&json!("TimedOut"), 2));
    assert_eq!(events[1], json!({"type": "end"}));
    for (code, before) in [("broken", 0), ("cut", 1)] {
        let events = lines(&run(json!({"code": code})).await);
        assert_eq!(events.len(), before + 1, "{events:?}");
        assert_eq!(events[before]["type"], "failed");
        assert_eq!(events[before]["problem"]["code"], "guest_failed");
    }
}

#[tokio::test]
async fn contexts_live_and_end() {
    let bed = with_interpreter().await;
    let at = "/v1/sandboxes/a/contexts";
    assert_eq!(bed.get(at).await.is(200)["contexts"][0]["id"], "python");
    let made = bed.call("POST", at, json!({"language": "python"})).await;
    assert_eq!(made.is(201)["cwd"], "/home/user");
    bed.call("POST", at, json!({"cwd": "here"})).await.refused(400, "bad_request");
    assert_eq!(
        bed.call("POST", &format!("{at}/python/restart"), Value::Null).await.is(200)["id"],
        "python"
    );
    let interrupted = bed.call("POST", &format!("{at}/python/interrupt"), Value::Null).await;
    assert_eq!(interrupted.is(200), json!({"interrupted": true}));
    bed.call("DELETE", &format!("{at}/python"), Value::Null).await.is(204);
    let none = bed.call("DELETE", &format!("{at}/none"), Value::Null).await;
    none.refused(404, "not_found");
    assert_eq!(none.json()["detail"], "there is no context \"none\"");
}

#[tokio::test]
async fn a_guest_without_an_interpreter_says_so() {
    let bed = Bed::new().await;
    bed.create("a").await;
    // The engine without machines ends every program at once.
    let answer = bed.call("POST", "/v1/sandboxes/a/code", json!({"code": "1"})).await;
    answer.refused(400, "unsupported_option");
    assert!(answer.json()["detail"].as_str().unwrap().contains("interpreter"));
    assert_eq!(bed.get("/v1/sandboxes/a/contexts").await.is(200), json!({"contexts": []}));
}

#[tokio::test]
async fn a_diff_tells_variables_of_sandboxes_that_run() {
    let bed = with_interpreter().await;
    bed.create("b").await;
    bed.engine.interpret_at("b", interpreter("2").await);
    let diff = async |body: Value| bed.call("POST", "/v1/sandboxes/b/diff", body).await.is(200);
    let expected = json!([{
        "context": "python", "name": "x", "change": "changed",
        "before": {"type": "int", "value": "1"}, "after": {"type": "int", "value": "2"},
    }]);
    assert_eq!(diff(json!({"against": "a"})).await["variables"], expected);
    assert!(diff(json!({"against": "a", "variables": false})).await.get("variables").is_none());
    let told = diff(json!({"against": "tmpl-base-1x512", "variables": true})).await;
    assert!(told.get("variables").is_none());
    assert!(told["no_variables"].as_str().unwrap().contains("tmpl-base-1x512"));
}
