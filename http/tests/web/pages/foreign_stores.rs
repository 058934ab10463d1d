//! The dashboard and the API on the keys of other systems: what such a store lacks is not offered.

use duly::{Duly, JobId, Push};
use serde_json::{Value, json};
use std::time::Duration;

use crate::fixture::{self, Fixture};
use crate::pages::client::get;

/// Starts a server on Sidekiq's keys, which no other test uses.
async fn on_sidekiq() -> Fixture {
    let server = crate::servers::redis().url().replacen("redis", "sidekiq", 1);
    fixture::at(&format!("{server}?namespace={}", JobId::fresh())).await
}

/// Returns the paths of the navigation.
async fn links(site: &Fixture) -> Vec<String> {
    let home = get(&site.url, "/").await;
    assert_eq!(home.status, 200, "{}", home.body);
    let navigation = home.body.split("<nav").nth(1).and_then(|rest| rest.split("</nav>").next()).expect("a navigation");
    navigation.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
}

async fn api(site: &Fixture, path: &str) -> Value {
    let reply = get(&site.url, path).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    serde_json::from_str(&reply.body).expect("is JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_link_on_sidekiq_keys_leads_to_a_page() {
    let site = on_sidekiq().await;
    site.duly.push(Push::new("Echo", "[1]")).await.expect("pushes");
    let links = links(&site).await;
    assert!(links.iter().any(|path| path == "/jobs") && links.len() > 6, "{links:?}");
    for missing in ["/dead", "/cron"] {
        assert!(!links.iter().any(|path| path == missing), "{links:?}");
        assert_eq!(get(&site.url, missing).await.status, 501);
    }
    for path in &links {
        assert_eq!(get(&site.url, path).await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_on_sidekiq_keys_offer_only_supported_changes() {
    let site = on_sidekiq().await;
    let id = site.duly.push(Push::new("Echo", "[1]").after(Duration::from_secs(3_600))).await.expect("pushes").id();
    let page = get(&site.url, &format!("/jobs/{id}")).await;
    let offers = |action: &str| page.body.contains(&format!("/jobs/{id}/{action}\""));
    assert_eq!(["edit", "cancel", "retry", "remove"].map(offers), [false, false, true, true], "{}", page.body);
    let queue = get(&site.url, "/queues/default").await;
    assert_eq!(queue.status, 200);
    assert!(!queue.body.contains("/capacity") && queue.body.contains("/clear"), "{}", queue.body);
    assert!(!queue.body.contains("no worker"), "Ruby processes may work on it: {}", queue.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_is_found_by_the_jid_of_ruby() {
    const JID: &str = "0123456789abcdef01234567";
    let site = on_sidekiq().await;
    let id = site.duly.jobs().parse_id(JID).expect("a jid");
    site.duly.push(Push::new("Echo", "[1]").id(id)).await.expect("pushes");
    assert_eq!(api(&site, &format!("/api/v1/jobs/{JID}")).await["id"], json!(id));
    assert_eq!(api(&site, &format!("/api/v1/jobs/{JID}/why")).await["why"], "no_node");
    assert_eq!(get(&site.url, &format!("/jobs/{JID}")).await.status, 200);
    let other = fixture::empty().await;
    assert_eq!(get(&other.url, &format!("/api/v1/jobs/{JID}")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_of_actionhero_has_no_known_start() {
    let (server, name) = (crate::servers::redis(), JobId::fresh().to_string());
    let url = server.url().replacen("redis", "actionhero", 1);
    let duly = Duly::open(format!("{url}?lock_prefix={name}:")).await.expect("opens");
    server.send_command(&["SET", &format!("{name}:deploy"), "node-7", "PX", "60000"]);
    let site = fixture::open_to_all(duly).await;
    let lock = &api(&site, "/api/v1/locks").await["locks"][0];
    assert_eq!((&lock["name"], &lock["since"], &lock["since_ms"]), (&json!("deploy"), &Value::Null, &Value::Null));
    assert!(lock["expires_ms"].as_i64() > Some(1_600_000_000_000), "{lock}");
    let page = get(&site.url, "/locks").await;
    assert!(page.body.contains("ActionHero: node-7") && page.body.contains("unknown"), "{}", page.body);
    assert!(!page.body.contains("1970"), "{}", page.body);
}
