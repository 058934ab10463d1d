//! The audit log cannot be evaded or emptied, and says what was done to what.

use std::collections::BTreeSet;

use duly::JobId;
use duly::Push;
use duly::admin::{AuditEntry, AuditOutcome, Role};
use serde_json::{Value, json};
use test_support::until;

use crate::api::support::Site;

const FORM: [(&str, &str); 1] = [("Content-Type", "application/x-www-form-urlencoded")];

/// Returns the newest entries.
async fn entries(site: &Site, max: usize) -> Vec<AuditEntry> {
    let (mut all, mut before) = (Vec::new(), None);
    loop {
        let page = site.duly.audit().list(before, 200).await.expect("reads");
        if page.is_empty() || all.len() >= max {
            return all;
        }
        before = page.last().map(|record| record.number);
        all.extend(page.into_iter().map(|record| record.entry));
    }
}

/// Refused requests that are not recorded leave room for those that are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routine_refusals_do_not_hide_others() {
    let mut site = Site::in_memory().await;
    site.be(Role::Viewer).await;
    for _ in 0..30 {
        assert_eq!(site.post("/api/v1/nodes", json!({"queues": ["default"]})).await.status, 403);
    }
    assert_eq!(site.post("/api/v1/tokens", json!({"name": "x", "role": "admin"})).await.status, 403);
    let newest = &entries(&site, 1).await[0];
    assert_eq!((newest.action.as_str(), newest.outcome), ("tokens.create", AuditOutcome::Refused));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_says_what_was_changed() {
    let site = Site::in_memory().await;
    for _ in 0..3 {
        site.push("mail").await;
    }
    let newest = async || serde_json::to_value(&entries(&site, 1).await[0]).expect("JSON");
    let is = |entry: &Value, action: &str, fields: Value| {
        assert_eq!(entry["action"], action, "{entry}");
        for (field, value) in fields.as_object().expect("fields") {
            assert_eq!(&entry[field], value, "{field}: {entry}");
        }
    };
    let action = json!({"action": "reschedule", "filter": "queue:mail", "after_ms": 60_000});
    assert_eq!(site.post("/api/v1/jobs/actions", action).await.status, 202);
    until("the action ends", async || newest().await["outcome"] == "done").await;
    is(&newest().await, "jobs.reschedule", json!({"filter": "queue:mail", "count": 3, "actor": "local"}));
    let started = &entries(&site, 2).await[1];
    assert_eq!((started.outcome, started.action.as_str()), (AuditOutcome::Started, "jobs.reschedule"));
    let q = [("Content-Type", "application/x-www-form-urlencoded")];
    site.send("POST", "/jobs/actions", &q, b"do=retry-all&q=queue%3Amail&confirm=3").await;
    is(&newest().await, "jobs.retry", json!({"filter": "queue:mail", "count": 3, "outcome": "done"}));
    site.send("DELETE", "/api/v1/queues/mail/jobs?confirm=mail", &[], b"").await;
    is(&newest().await, "queues.clear", json!({"target": "mail", "count": 3}));
    site.send("POST", "/queues/mail/clear", &q, b"name=mail").await;
    is(&newest().await, "queues.clear", json!({"target": "mail", "count": 0}));
    let bulk: Vec<_> = entries(&site, 6).await.into_iter().take(6).map(|entry| entry.outcome).collect();
    assert_eq!(bulk, [AuditOutcome::Done, AuditOutcome::Started].repeat(3), "each start is recorded");
    site.post("/api/v1/tokens", json!({"name": "ci", "role": "viewer"})).await;
    is(&newest().await, "tokens.create", json!({"target": "ci"}));
}

#[tokio::test]
async fn every_id_of_a_selection_is_recorded() {
    let site = Site::in_memory().await;
    let ids: BTreeSet<String> = (0..40).map(|_| JobId::fresh().to_string()).collect();
    let pushes = ids.iter().map(|id| Push::new("work", "1").id(id.parse().expect("an id")));
    site.duly.push_all(pushes).await.expect("pushes");
    let fields: Vec<String> = ids.iter().map(|id| format!("id={id}")).collect();
    let form = format!("do=remove&confirm=1&{}", fields.join("&"));
    assert_eq!(site.send("POST", "/jobs/actions", &FORM, form.as_bytes()).await.status, 303);
    let recorded = entries(&site, usize::MAX).await;
    assert!(recorded.iter().all(|entry| entry.action == "jobs.remove" && entry.outcome == AuditOutcome::Done));
    assert_eq!(recorded.iter().filter_map(|entry| entry.count).sum::<u64>(), 40);
    let targets = recorded.iter().filter_map(|entry| entry.target.as_deref());
    assert_eq!(targets.flat_map(str::split_whitespace).map(str::to_owned).collect::<BTreeSet<_>>(), ids);
}

#[tokio::test]
async fn confirmation_pages_and_dry_runs_are_not_recorded() {
    let site = Site::in_memory().await;
    let id = site.push("mail").await;
    site.duly.cron("nightly", "0 3 * * *").push(Push::new("a", "1")).await.expect("a rule");
    let node = site.post("/api/v1/nodes", json!({"queues": ["mail"]})).await.json()["id"].clone();
    let node = node.as_str().expect("an id");
    assert_eq!(site.json("PUT", "/api/v1/locks/deploy", json!({})).await.status, 200);
    for (path, body) in [
        (format!("/jobs/{id}/remove"), ""),
        (format!("/jobs/{id}/cancel"), ""),
        (format!("/nodes/{node}/stop"), ""),
        ("/cron/nightly/remove".to_owned(), ""),
        ("/locks/break".to_owned(), "name=deploy"),
        ("/jobs/actions".to_owned(), "do=remove-all&q=queue%3Amail"),
    ] {
        let page = site.send("POST", &path, &FORM, body.as_bytes()).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text());
    }
    let dry_run = json!({"action": "remove", "filter": "queue:mail", "dry_run": true});
    assert_eq!(site.post("/api/v1/jobs/actions", dry_run).await.status, 200);
    assert_eq!(entries(&site, 10).await, []);
}

#[tokio::test]
async fn pusher_displaces_only_its_own_entries() {
    let mut site = Site::in_memory().await;
    site.be(Role::Operator).await;
    assert_eq!(site.post("/api/v1/queues/mail/pause", json!({})).await.status, 200);
    let flood = |no: usize| AuditEntry::new("pusher", "calls.run", AuditOutcome::Done).target(no.to_string());
    for no in 0..1_500 {
        site.duly.audit().add(flood(no)).await.expect("adds");
    }
    let kept = entries(&site, usize::MAX).await;
    assert!(kept.iter().any(|entry| entry.action == "queues.pause" && entry.target.as_deref() == Some("mail")));
    assert_eq!(kept.len(), 1_001);
}

#[tokio::test]
async fn operators_who_act_for_others_and_sign_ins_are_recorded() {
    let mut site = Site::in_memory().await;
    site.be(Role::Pusher).await;
    let node = site.post("/api/v1/nodes", json!({"queues": ["mail"]})).await.json()["id"].clone();
    let node = node.as_str().expect("an id").to_owned();
    let hold = site.json("PUT", "/api/v1/locks/deploy", json!({"ttl_ms": 600_000})).await.json();
    let owner = hold["owner"].as_str().expect("an owner").to_owned();
    assert_eq!(site.post(&format!("/api/v1/nodes/{node}/heartbeat"), json!({})).await.status, 200);
    assert_eq!(site.json("PATCH", "/api/v1/locks/deploy", json!({"owner": owner})).await.status, 204);
    assert_eq!(entries(&site, 10).await, [], "routine requests of a program");
    site.be(Role::Operator).await;
    assert_eq!(site.post(&format!("/api/v1/nodes/{node}/claim"), json!({})).await.status, 200);
    assert_eq!(site.send("DELETE", &format!("/api/v1/nodes/{node}"), &[], b"").await.status, 204);
    for _ in 0..3 {
        assert_eq!(site.json("PATCH", "/api/v1/locks/deploy", json!({"owner": owner})).await.status, 204);
    }
    assert_eq!(site.send("DELETE", &format!("/api/v1/locks/deploy?owner={owner}"), &[], b"").await.status, 204);
    let own = site.json("PUT", "/api/v1/locks/own", json!({})).await.json()["owner"].as_str().expect("one").to_owned();
    assert_eq!(site.json("PATCH", "/api/v1/locks/own", json!({"owner": own})).await.status, 204);
    assert_eq!(site.send("DELETE", &format!("/api/v1/locks/own?owner={own}"), &[], b"").await.status, 204);
    let token = format!("token={}", site.token());
    site.be_nobody();
    let signed_in = site.send("POST", "/login", &FORM, token.as_bytes()).await;
    let cookie = signed_in.header("set-cookie").expect("a cookie").split(';').next().expect("a pair").to_owned();
    site.send("POST", "/logout", &[("Cookie", &cookie)], b"").await;
    let recorded = entries(&site, 10).await;
    let actions: Vec<(&str, Option<&str>)> =
        recorded.iter().rev().map(|entry| (entry.action.as_str(), entry.target.as_deref())).collect();
    let node = Some(node.as_str());
    let expected = [
        ("nodes.claim", node),
        ("nodes.leave", node),
        ("locks.extend", Some("deploy")),
        ("locks.release", Some("deploy")),
        ("sessions.create", None),
        ("sessions.remove", None),
    ];
    assert_eq!(actions, expected);
    assert!(recorded.iter().all(|entry| entry.actor.starts_with("operator-")), "{recorded:?}");
}
