//! What sandboxes reach, over HTTP: policies, secrets, tokens.

use super::*;

#[tokio::test]
async fn a_network_is_asked_for_changed_and_shown() {
    let bed = Bed::new().await;
    let wish = json!({ "name": "a", "network": { "egress": "none", "allow": [{ "to": "a.org", "ports": [{ "first": 443, "last": 443 }] }] } });
    bed.call("POST", "/v1/sandboxes", wish).await.is(201);
    let shown = bed.get("/v1/sandboxes/a/network").await.is(200);
    assert_eq!(shown["connected"], true);
    assert_eq!(shown["layers"][0]["from"], "own");
    assert_eq!(shown["layers"][0]["allow"][0]["to"], "a.org");
    assert_eq!(shown["stats"]["refused"], 3);
    let log = bed.get("/v1/sandboxes/a/network/log?after=0&limit=5").await.is(200);
    assert_eq!(log["entries"][0]["reason"], "not_allowed");
    let put = |body| bed.call("PUT", "/v1/sandboxes/a/network", body);
    let changed = put(json!({ "egress": "open", "limits": { "connections": 7 } })).await.is(200);
    assert_eq!(changed["layers"][0]["allow"][0]["to"], "*");
    assert_eq!(changed["limits"]["connections"], 7);
    put(json!({ "egress": "packages" })).await.refused(400, "bad_request");
    put(json!({ "allow": [{ "to": "a b" }] })).await.refused(400, "bad_request");
    put(json!({ "allow": [{ "to": "a.org", "protocols": ["sctp"] }] }))
        .await
        .refused(400, "unsupported_option");
    put(json!({ "deny": [] })).await.refused(400, "unsupported_option");
    put(json!({ "edge": [{ "host": "a.org", "header": "A", "value": "{secret:NO}" }] }))
        .await
        .refused(400, "bad_request");
    bed.get("/v1/sandboxes/a/network/log?limit=0").await.refused(400, "bad_request");
    bed.get("/v1/sandboxes/b/network").await.refused(404, "not_found");
    let node = bed.get("/v1/node").await.is(200);
    assert_eq!(node["network"], json!({ "up": true, "presets": ["none", "open"] }));
    assert_eq!(bed.get("/v1/ready").await.is(200)["network"], true);
    let figures = String::from_utf8(bed.get("/metrics").await.bytes).unwrap();
    assert!(figures.contains("ramet_network_refused_total 3"), "{figures}");
    assert!(figures.contains("ramet_network_up 1"));
}

#[tokio::test]
async fn secrets_are_written_and_never_read() {
    let bed = Bed::new().await;
    let put = |name: &str, value: &str| {
        let (path, body) = (format!("/v1/secrets/{name}"), json!({ "value": value }));
        let bed = &bed;
        async move { bed.call("PUT", &path, body).await }
    };
    let set = put("KEY", "s3cret").await.is(200);
    assert!(set.get("value").is_none() && set["name"] == "KEY");
    put("a%20b", "x").await.refused(400, "bad_request");
    let refused = put("KEY", "bad\nvalue").await;
    refused.refused(400, "bad_request");
    assert!(!String::from_utf8_lossy(&refused.bytes).contains("value\n"));
    let rule = json!({ "host": "api.example.org", "header": "Authorization", "value": "Bearer {secret:KEY}" });
    let wish = json!({ "name": "a", "network": { "edge": [rule] } });
    bed.call("POST", "/v1/sandboxes", wish).await.is(201);
    let list = bed.get("/v1/secrets").await.is(200);
    assert_eq!(list["secrets"][0]["used_by"].as_array().unwrap().len(), 1);
    let shown = bed.get("/v1/sandboxes/a/network").await.is(200);
    assert_eq!(shown["edge"][0]["value"], "Bearer {secret:KEY}");
    let said = format!("{list} {shown} {}", bed.get("/v1/sandboxes/a").await.is(200));
    assert!(!said.contains("s3cret"), "{said}");
    let delete = || bed.call("DELETE", "/v1/secrets/KEY", Value::Null);
    delete().await.refused(409, "in_use");
    bed.call("DELETE", "/v1/sandboxes/a", Value::Null).await.is(204);
    delete().await.is(204);
    delete().await.refused(404, "not_found");
}

#[tokio::test]
async fn tokens_are_the_administrators() {
    let bed = Bed::new().await;
    bed.get("/v1/tokens").await.refused(403, "permission_denied");
    let body = json!({ "principal": "ann" });
    bed.call("POST", "/v1/tokens", body).await.refused(403, "permission_denied");
    bed.call("DELETE", "/v1/tokens/x", Value::Null).await.refused(403, "permission_denied");
}

#[tokio::test]
async fn a_fork_says_what_becomes_of_secrets() {
    let bed = Bed::new().await;
    let wish = json!({ "name": "a", "secrets": { "KEY": "s3cret" } });
    let made = bed.call("POST", "/v1/sandboxes", wish).await.is(201);
    assert_eq!(made["sandbox"]["holds_secrets"], true);
    let fork = |body| bed.call("POST", "/v1/sandboxes/a/fork", body);
    let refused = fork(json!({})).await;
    refused.refused(409, "holds_secrets");
    assert!(refused.json()["detail"].as_str().unwrap().contains("inherit_secrets"));
    let forked = fork(json!({ "inherit_secrets": true })).await.is(201);
    assert_eq!(forked["children"][0]["sandbox"]["secret_names"], json!(["KEY"]));
}
