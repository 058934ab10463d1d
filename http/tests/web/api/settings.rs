//! Concurrent edits: the second one gets an error, and no change is lost.

use serde_json::json;

use crate::api::support::{Response, Site};

fn etag(response: &Response) -> String {
    response.header("etag").unwrap_or_else(|| panic!("no ETag: {}", response.head)).to_owned()
}

async fn change(site: &Site, method: &str, path: &str, tag: &str, body: serde_json::Value) -> Response {
    let headers = [("Content-Type", "application/json"), ("If-Match", tag)];
    site.send(method, path, &headers, body.to_string().as_bytes()).await
}

pub async fn rule_change_with_outdated_etag_is_rejected(site: Site) {
    let (path, rule) = ("/api/v1/cron/report", |pattern: &str| json!({"pattern": pattern, "kind": "report"}));
    assert_eq!(change(&site, "PUT", path, "*", rule("0 3 * * *")).await.status, 412, "there is none to change");
    let made = site.json("PUT", path, rule("0 3 * * *")).await;
    assert_eq!(made.status, 200, "{}", made.text());
    let tag = etag(&site.get(path).await);
    assert_eq!(etag(&made), tag);

    let changed = change(&site, "PUT", path, &tag, rule("0 4 * * *")).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_ne!(etag(&changed), tag);
    let late = change(&site, "PUT", path, &tag, rule("0 5 * * *")).await;
    assert_eq!((late.status, late.code().as_str()), (412, "changed"));
    assert_eq!(site.get(path).await.json()["pattern"], "0 4 * * *");
    site.post("/api/v1/cron/report/pause", json!({})).await;
    assert_eq!(change(&site, "PUT", path, &etag(&changed), rule("0 5 * * *")).await.status, 412, "paused meanwhile");
    assert_eq!(site.json("PUT", path, rule("0 6 * * *")).await.status, 200, "who does not ask is not held up");
}

pub async fn queue_change_with_outdated_etag_is_rejected(site: Site) {
    site.push("mail").await;
    let path = "/api/v1/queues/mail";
    let tag = etag(&site.get(path).await);
    site.push("mail").await;
    assert_eq!(etag(&site.get(path).await), tag, "how much is in it is no setting");
    let changed = change(&site, "PATCH", path, &tag, json!({"capacity_jobs": 10})).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(etag(&changed), etag(&site.get(path).await), "whoever goes on changing needs no look in between");
    let late = change(&site, "PATCH", path, &tag, json!({"capacity_jobs": 99})).await;
    assert_eq!((late.status, late.code().as_str()), (412, "changed"));
    assert_eq!(site.get(path).await.json()["capacity_jobs"], 10);
    let oldest = site.get(path).await.json();
    assert!(oldest["oldest_ms"].as_i64().is_some_and(|ms| ms > 1_700_000_000_000), "{oldest}");
}

/// Reading a rule and saving it again loses nothing.
pub async fn saved_rule_is_returned_with_all_settings(site: Site) {
    let rule = json!({"pattern": "0 3 * * *", "kind": "report", "keep_ms": 86_400_000, "timeout_ms": 5_000,
        "max_attempts": 3, "priority": "high", "tags": ["night"], "jitter_ms": 1_000, "overlap": "skip"});
    assert_eq!(site.json("PUT", "/api/v1/cron/report", rule.clone()).await.status, 200);
    let stored = site.get("/api/v1/cron/report").await.json();
    for (field, said) in rule.as_object().expect("an object") {
        assert_eq!(&stored[field], said, "{field}");
    }
    site.json("PUT", "/api/v1/cron/plain", json!({"pattern": "0 3 * * *", "kind": "report"})).await;
    assert!(site.get("/api/v1/cron/plain").await.json().get("keep_ms").is_none(), "as the store says");
}

pub async fn rule_triggered_twice_with_the_same_key_pushes_once(site: Site) {
    for name in ["report", "other"] {
        let rule = json!({"pattern": "0 3 1 1 *", "kind": "report"});
        assert_eq!(site.json("PUT", &format!("/api/v1/cron/{name}"), rule).await.status, 200);
    }
    let trigger = async |headers: &[(&str, &str)]| {
        let response = site.send("POST", "/api/v1/cron/report/trigger", headers, b"").await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    };
    let key = [("Idempotency-Key", "deploy-7")];
    let (first, second) = (trigger(&key).await, trigger(&key).await);
    assert_eq!((&first["pushed"], &second["pushed"]), (&json!("new"), &json!("existing")));
    assert_eq!(first["id"], second["id"]);
    let other = site.send("POST", "/api/v1/cron/other/trigger", &key, b"").await;
    assert_eq!((other.status, other.pointer().as_str()), (422, "Idempotency-Key"), "another rule");
    assert_ne!(trigger(&[("Idempotency-Key", "deploy-8")]).await["id"], first["id"]);
    assert_ne!(trigger(&[]).await["id"], trigger(&[]).await["id"], "without a key each is one");
}
