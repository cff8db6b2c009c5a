//! Builds of templates, from their announcement to a sandbox.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::{Bed, OTHER};

/// Announces a build: ids of the template and of the build.
async fn announce(bed: &Bed, name: &str) -> (String, String) {
    let made = bed.post("/v3/templates", json!({"name": name, "cpuCount": 2})).await.is(202);
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (text("templateID"), text("buildID"))
}

/// Waits for the end of a build.
async fn end(bed: &Bed, template: &str, build: &str) -> Value {
    for _ in 0..500 {
        let path = format!("/templates/{template}/builds/{build}/status?logsOffset=0&limit=100");
        let status = bed.get(&path).await.is(200);
        if status["status"] == "ready" || status["status"] == "error" {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the build does not end");
}

async fn build(bed: &Bed, name: &str, recipe: Value) -> (String, Value) {
    let (template, build) = announce(bed, name).await;
    bed.post(&format!("/v2/templates/{template}/builds/{build}"), recipe).await.is(202);
    let status = end(bed, &template, &build).await;
    (template, status)
}

#[tokio::test]
async fn a_build_becomes_a_template() {
    let bed = Bed::new().await;
    let steps = json!([
        {"type": "ENV", "args": ["A", "1"]},
        {"type": "USER", "args": ["root"]},
        {"type": "WORKDIR", "args": ["app"]},
        {"type": "RUN", "args": ["place"]},
        {"type": "RUN", "args": ["place", "user"]},
    ]);
    let recipe = json!({
        "fromImage": "e2bdev/base:latest", "steps": steps, "startCmd": "serve", "readyCmd": "check",
        "force": false,
    });
    let (template, status) = build(&bed, "My-App:v1", recipe).await;
    assert_eq!(status["status"], "ready", "{status}");
    let said: Vec<&str> = status["logEntries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["message"].as_str().unwrap())
        .collect();
    assert!(said.contains(&r#"Some("root") Some("/home/user/app")"#), "{said:?}");
    assert!(said.contains(&r#"Some("user") Some("/home/user/app")"#), "{said:?}");
    for reference in ["my-app:v1", "me/my-app:v1", &format!("{template}:v1")] {
        let made = bed.post("/v2/sandboxes", json!({"templateID": reference})).await.is(201);
        assert_eq!((&made["templateID"], &made["alias"]), (&json!(template), &json!("my-app")));
    }
    bed.post("/v2/sandboxes", json!({"templateID": "my-app"})).await.refused(404, "default");
    // The sandbox of the build is gone, and was never seen.
    assert_eq!(bed.ids("/v2/sandboxes").await.len(), 3);
    let path = format!("/v2/sandboxes?template={template}");
    assert_eq!(bed.ids(&path).await.len(), 3);
    let one = bed.get(&format!("/templates/{template}")).await.is(200);
    assert_eq!((&one["buildStatus"], &one["cpuCount"]), (&json!("ready"), &json!(2)));
    assert_eq!(one["builds"].as_array().unwrap().len(), 1);
    bed.call_as(OTHER, "GET", &format!("/templates/{template}"), Value::Null)
        .await
        .refused(404, "not found");
    let other = bed.call_as(OTHER, "GET", "/templates", Value::Null).await.is(200);
    assert_eq!(other, json!([]));
    bed.call("DELETE", "/templates/my-app", Value::Null).await.is(204);
    bed.get("/templates/my-app").await.refused(404, "not found");
    bed.post("/v2/sandboxes", json!({"templateID": "my-app:v1"})).await.refused(404, "my-app");
}

#[tokio::test]
async fn what_goes_wrong_is_told() {
    let bed = Bed::new().await;
    let run = |line: &str| json!([{"type": "RUN", "args": ["put /a b"]}, {"type": "RUN", "args": [line]}]);
    let (template, status) = build(&bed, "bad", json!({"steps": run("fail")})).await;
    assert_eq!(status["status"], "error");
    assert_eq!(status["reason"], json!({"message": "it exited with 3", "step": "2"}));
    bed.post("/v2/sandboxes", json!({"templateID": "bad"})).await.refused(404, "no build");
    assert!(bed.ids("/v2/sandboxes").await.is_empty());
    let (_, status) = build(&bed, "bad", json!({"fromImage": "python:3.13", "steps": []})).await;
    let reason = status["reason"]["message"].as_str().unwrap();
    assert!(reason.contains("python:3.13") && reason.contains("ramet image build"), "{reason}");
    let (_, status) = build(&bed, "bad", json!({"fromTemplate": "gone"})).await;
    assert!(status["reason"]["message"].as_str().unwrap().contains("gone"), "{status}");
    let (_, next) = announce(&bed, "bad").await;
    let path = format!("/v2/templates/{template}/builds/{next}");
    for (recipe, status, says) in [
        (json!({"fromImageRegistry": {"type": "registry"}}), 501, "fromImageRegistry"),
        (json!({"fromImage": "a", "fromTemplate": "b"}), 400, "both"),
        (json!({"steps": [{"type": "EXPOSE", "args": ["80"]}]}), 501, "EXPOSE"),
        (json!({"steps": [{"type": "COPY", "args": ["a", "b"]}]}), 400, "filesHash"),
        (json!({"other": 1}), 400, "other"),
    ] {
        bed.post(&path, recipe).await.refused(status, says);
    }
    bed.post(&path, json!({})).await.is(202);
    bed.post(&path, json!({})).await.refused(409, "started before");
    end(&bed, &template, &next).await;
    bed.post(&format!("/v2/templates/{template}/builds/x"), json!({})).await.refused(404, "x");
    bed.call_as(OTHER, "POST", &path, json!({})).await.refused(404, "not found");
    bed.post("/templates", json!({})).await.refused(501, "v3");
}

#[tokio::test]
async fn files_are_uploaded_once() {
    let bed = Bed::new().await;
    let (template, build) = announce(&bed, "copies").await;
    let hash = "ab".repeat(32);
    let offer = format!("/templates/{template}/files/{hash}");
    let offered = bed.get(&offer).await.is(201);
    assert_eq!(offered["present"], false);
    let url = offered["url"].as_str().unwrap();
    let path = url.strip_prefix("http://node.example:1234").unwrap();
    let put = async |path: &str| {
        let request = Request::builder().method("PUT").uri(path);
        bed.send(request.body(Body::from("an archive")).unwrap()).await
    };
    put(&path.replace("owner=me", "owner=you")).await.refused(403, "uploads");
    put(&path.replace(&hash, &"cd".repeat(32))).await.refused(403, "uploads");
    assert_eq!(put(path).await.status, 200);
    assert_eq!(bed.get(&offer).await.is(201), json!({"present": true}));
    bed.get(&format!("/templates/{template}/files/..%2Fx")).await.refused(400, "SHA-256");
    let steps = json!([{"type": "COPY", "args": ["app", "/app", "", ""], "filesHash": hash}]);
    let start = format!("/v2/templates/{template}/builds/{build}");
    bed.post(&start, json!({"steps": steps})).await.is(202);
    let status = end(&bed, &template, &build).await;
    assert_eq!(status["status"], "ready", "{status}");
    let gone = json!([{"type": "COPY", "args": ["a", "/b"], "filesHash": "cd".repeat(32)}]);
    let (_, status) = self::build(&bed, "copies", json!({"steps": gone})).await;
    assert!(status["reason"]["message"].as_str().unwrap().contains("files"), "{status}");
}

#[tokio::test]
async fn tags_move_and_builds_go() {
    let bed = Bed::new().await;
    let (template, first) = build(&bed, "app", json!({})).await;
    let first = first["buildID"].clone();
    let assigned =
        bed.post("/templates/tags", json!({"target": "app", "tags": ["v1"]})).await.is(201);
    assert_eq!(assigned, json!({"tags": ["v1"], "buildID": first}));
    let (_, second) = build(&bed, "app", json!({"fromTemplate": "app:v1"})).await;
    assert_eq!(second["status"], "ready", "{second}");
    let tags = bed.get("/templates/app/tags").await.is(200);
    let of = |tag: &str| {
        let all = tags.as_array().unwrap();
        all.iter().find(|one| one["tag"] == tag).unwrap()["buildID"].clone()
    };
    assert_eq!((of("v1"), of("default")), (first, second["buildID"].clone()));
    let count = || bed.service.list_templates(&crate::auth::Principal::new("me")).templates;
    let built = || count().iter().filter(|one| !one.built_in).count();
    assert_eq!(built(), 2);
    let remove = json!({"name": "app", "tags": ["v1"]});
    bed.call("DELETE", "/templates/tags", remove.clone()).await.is(204);
    bed.call("DELETE", "/templates/tags", remove).await.refused(404, "v1");
    assert_eq!(built(), 1);
    let alias = bed.get("/templates/aliases/app").await.is(200);
    assert_eq!(alias, json!({"templateID": template, "public": false}));
    bed.get("/templates/aliases/none").await.refused(404, "none");
    bed.call("PATCH", "/v2/templates/app", json!({"public": true})).await.refused(501, "public");
    bed.call("PATCH", "/templates/app", json!({"public": false})).await.is(200);
    let list = bed.get("/v2/templates").await.is(200);
    assert_eq!(list[0]["names"], json!(["app"]));
    let id = bed.create(json!({})).await;
    let snapshot = bed.post(&format!("/sandboxes/{id}/snapshots"), json!({"name": "app"})).await;
    snapshot.refused(409, "template");
    // Everything is there after a restart of the node.
    let bed = bed.restart().await;
    bed.post("/v2/sandboxes", json!({"templateID": "app"})).await.is(201);
}

#[tokio::test]
async fn a_build_does_not_survive_the_node() {
    let bed = Bed::new().await;
    let (template, build) = announce(&bed, "app").await;
    let steps = json!([{"type": "RUN", "args": ["wait"]}]);
    bed.post(&format!("/v2/templates/{template}/builds/{build}"), json!({"steps": steps}))
        .await
        .is(202);
    let path = format!("/templates/{template}/builds/{build}/status");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(bed.get(&path).await.is(200)["status"], "building");
    let bed = bed.restart().await;
    let status = bed.get(&path).await.is(200);
    assert_eq!(status["status"], "error");
    assert!(status["reason"]["message"].as_str().unwrap().contains("restarted"), "{status}");
}

#[tokio::test]
async fn the_code_interpreter_has_a_stand_in() {
    let bed = Bed::new().await;
    let make = || bed.post("/v2/sandboxes", json!({"templateID": "code-interpreter-v1"}));
    let made = make().await.is(201);
    assert_eq!(made["templateID"], "code-interpreter-v1");
    let me = crate::auth::Principal::new("me");
    let id = made["sandboxID"].as_str().unwrap();
    assert_eq!(bed.service.get(&me, id).unwrap().template, "base");
    let wanted = ramet_proto::api::BuildTemplate {
        name: "code-interpreter-v1".to_owned(),
        ..ramet_proto::api::BuildTemplate::default()
    };
    bed.service.build_template(&me, wanted).await.unwrap();
    let wait = ramet_proto::api::TemplateQuery { wait_s: Some(30) };
    bed.service.get_template(&me, "code-interpreter-v1", &wait).await.unwrap();
    let made = make().await.is(201);
    let id = made["sandboxID"].as_str().unwrap();
    assert_eq!(bed.service.get(&me, id).unwrap().template, "code-interpreter-v1");
    let list = bed.get("/templates").await.is(200);
    assert_eq!(list[0]["templateID"], "code-interpreter-v1");
    assert_eq!(bed.get("/default-templates").await.is(200)[0]["names"], json!(["base"]));
}
