//! Network, volumes, secrets.

use serde_json::{Value, json};

use super::{Bed, OTHER};

async fn network(bed: &Bed, id: &str) -> Value {
    bed.get(&format!("/sandboxes/{id}")).await.is(200)
}

#[tokio::test]
async fn what_is_reached() {
    let bed = Bed::new().await;
    for (more, open, allow) in [
        (json!({}), true, json!([])),
        (json!({"allow_internet_access": false}), false, json!([])),
        (json!({"network": {"denyOut": ["0.0.0.0/0"]}}), false, json!([])),
        (
            json!({"network": {"denyOut": ["0.0.0.0/0", "192.0.2.1"], "allowOut": ["a.example", "*.b.example", "192.0.2.0/24"]}}),
            false,
            json!(["a.example", "*.b.example", "192.0.2.0/24"]),
        ),
        (json!({"network": {"denyOut": ["10.0.0.0/8", "169.254.169.254"]}}), true, json!([])),
    ] {
        let id = bed.create(more.clone()).await;
        let info = network(&bed, &id).await;
        assert_eq!(info["allowInternetAccess"], open, "{more}");
        assert_eq!(info["network"]["allowOut"], allow, "{more}");
    }
    for (network, status, says) in [
        (json!({"denyOut": ["192.0.2.0/24"]}), 501, "denyOut"),
        (json!({"denyOut": ["10.0.0.0/7"]}), 501, "denyOut"),
        (json!({"denyOut": ["a.example"]}), 400, "denyOut"),
        (json!({"allowOut": ["a b"]}), 400, "allowOut"),
        (json!({"allowOut": ["192.0.2.1/24"]}), 400, "allowOut"),
        (json!({"unknown": 1}), 400, "unknown"),
    ] {
        let body = json!({"templateID": "base", "network": network});
        bed.post("/v2/sandboxes", body).await.refused(status, says);
    }
}

#[tokio::test]
async fn it_is_replaced_and_a_fork_only_narrows() {
    let bed = Bed::new().await;
    let id =
        bed.create(json!({"network": {"allowOut": ["a.example"], "denyOut": ["0.0.0.0/0"]}})).await;
    let forked = bed.post(&format!("/sandboxes/{id}/fork"), json!({})).await.is(201);
    let child = forked[0]["sandbox"]["sandboxID"].as_str().unwrap().to_owned();
    let put = async |id: &str, body: Value| {
        bed.call("PUT", &format!("/sandboxes/{id}/network"), body).await
    };
    put(&id, json!({"allowOut": ["b.example"], "allow_internet_access": false})).await.is(204);
    assert_eq!(network(&bed, &id).await["network"]["allowOut"], json!(["b.example"]));
    put(&id, json!({})).await.is(204);
    assert_eq!(network(&bed, &id).await["allowInternetAccess"], true);
    put(&child, json!({})).await.refused(403, "fork");
    put(&child, json!({"allowOut": ["b.example"], "denyOut": ["0.0.0.0/0"]}))
        .await
        .refused(403, "b.example");
    put(&child, json!({"allowOut": ["a.example"], "denyOut": ["0.0.0.0/0"]})).await.is(204);
    put(&id, json!({"allowPublicTraffic": true})).await.refused(501, "allowPublicTraffic");
    let path = format!("/sandboxes/{id}/network");
    bed.call_as(OTHER, "PUT", &path, json!({})).await.refused(404, "");
}

#[tokio::test]
async fn headers_come_from_secrets() {
    let bed = Bed::new().await;
    let made = bed.post("/secrets", json!({"name": "API_KEY", "value": "s3cret"})).await.is(201);
    assert_eq!((&made["secretID"], &made["metadata"]), (&json!("api_key"), &json!({})));
    bed.post("/secrets", json!({"name": "api_key", "value": "x"})).await.refused(409, "already");
    bed.post("/secrets/API_KEY", json!({"value": "other"})).await.is(200);
    let rules = |value: &str| json!({"network": {"rules": {"a.example": [{"transform": {"headers": {"Authorization": value}}}]}}});
    let id = bed.create(rules("Bearer ${e2b.secrets.API_KEY}")).await;
    let shown = &network(&bed, &id).await["network"]["rules"]["a.example"][0];
    assert_eq!(shown["transform"]["headers"]["Authorization"], "Bearer ${e2b.secrets.api_key}");
    bed.call("DELETE", "/secrets/api_key", Value::Null).await.refused(409, "edge rules");
    for (value, status, says) in [
        ("Bearer literal", 501, "secrets.NAME"),
        ("${e2b.identity.tokens.x}", 501, "identity"),
        ("${e2b.secrets.gone}", 400, "gone"),
    ] {
        let mut body = rules(value);
        body["templateID"] = json!("base");
        let answer = bed.post("/v2/sandboxes", body).await;
        answer.refused(status, says);
        assert!(!String::from_utf8_lossy(&answer.bytes).contains("literal"));
    }
    assert_eq!(bed.get("/secrets?limit=1").await.is(200).as_array().unwrap().len(), 1);
    bed.call_as(OTHER, "GET", "/secrets/api_key", Value::Null).await.refused(404, "api_key");
    bed.call("DELETE", &format!("/sandboxes/{id}"), Value::Null).await.is(204);
    bed.call("DELETE", "/secrets/api_key", Value::Null).await.is(204);
}

#[tokio::test]
async fn volumes_are_mounted() {
    let bed = Bed::new().await;
    let made = bed.post("/volumes", json!({"name": "data"})).await.is(201);
    assert!(made["token"].is_string() && made["name"] == "data", "{made}");
    let volume = made["volumeID"].as_str().unwrap();
    assert_eq!(bed.get(&format!("/volumes/{volume}")).await.is(200), made);
    let list = bed.get("/volumes").await.is(200);
    assert_eq!(list, json!([{"volumeID": volume, "name": "data"}]));
    let id = bed.create(json!({"volumeMounts": [{"name": "data", "path": "/data"}]})).await;
    let info = network(&bed, &id).await;
    assert_eq!(info["volumeMounts"], json!([{"name": "data", "path": "/data"}]));
    let path = format!("/volumes/{volume}");
    bed.call("DELETE", &path, Value::Null).await.refused(409, "");
    bed.call_as(OTHER, "GET", &path, Value::Null).await.refused(404, "");
    bed.call("DELETE", &format!("/sandboxes/{id}"), Value::Null).await.is(204);
    bed.call("DELETE", &path, Value::Null).await.is(204);
}
