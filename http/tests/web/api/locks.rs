//! Locks and calls over HTTP.

use serde_json::json;

use crate::api::support::Site;

pub async fn lock_is_extended_and_released_only_by_its_owner(site: Site) {
    let hold = site.json("PUT", "/api/v1/locks/deploy", json!({"ttl_ms": 60_000, "note": "ada"})).await;
    assert_eq!(hold.status, 200, "{}", hold.text());
    let (owner, fence) = (hold.json()["owner"].as_str().expect("an owner").to_owned(), hold.json()["fence"].clone());
    let busy = site.json("PUT", "/api/v1/locks/deploy", json!({})).await;
    assert_eq!((busy.status, busy.code().as_str()), (409, "lock_busy"));
    let shown = site.get("/api/v1/locks/deploy").await.json();
    assert_eq!((&shown["locks"][0]["note"], &shown["locks"][0]["fence"]), (&json!("ada"), &fence));

    let stranger = "01890000-0000-7000-8000-000000000000";
    let extend = async |owner: &str| site.json("PATCH", "/api/v1/locks/deploy", json!({"owner": owner})).await.status;
    assert_eq!((extend(&owner).await, extend(stranger).await), (204, 409));
    let lost = site.json("PATCH", "/api/v1/locks/deploy", json!({"owner": stranger})).await;
    assert_eq!((lost.code().as_str(), &lost.json()["conflict"]), ("conflict", &json!("lock_lost")));
    let release =
        async |owner: &str| site.send("DELETE", &format!("/api/v1/locks/deploy?owner={owner}"), &[], b"").await.status;
    assert_eq!((release(stranger).await, release(&owner).await, release(&owner).await), (409, 204, 409));
    assert_eq!(site.get("/api/v1/locks").await.json()["locks"], json!([]));
}

pub async fn every_slot_of_a_lock_is_extended_and_released(site: Site) {
    let take = async || site.json("PUT", "/api/v1/locks/gpu", json!({"slots": 2, "ttl_ms": 60_000})).await;
    let (mut owners, mut slots) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let hold = take().await;
        assert_eq!(hold.status, 200, "{}", hold.text());
        owners.push(hold.json()["owner"].as_str().expect("an owner").to_owned());
        slots.push(hold.json()["slot"].as_u64().expect("a slot"));
    }
    slots.sort_unstable();
    assert_eq!((slots, take().await.status), (vec![1, 2], 409));
    let broken = site.post("/api/v1/locks/gpu/break", json!({"owner": owners[0]})).await;
    assert_eq!(broken.json()["broken"], 1, "only that hold: {}", broken.text());
    let recorded = site.duly.audit().list(None, 1).await.expect("reads").remove(0).entry;
    assert_eq!((recorded.target.as_deref(), recorded.filter), (Some("gpu"), Some(format!("owner={}", owners[0]))));
    let left = site.get("/api/v1/locks/gpu").await.json();
    assert_eq!((left["locks"].as_array().map(Vec::len), &left["locks"][0]["owner"]), (Some(1), &json!(owners[1])));
    owners[0] = take().await.json()["owner"].as_str().expect("an owner").to_owned();
    for owner in &owners {
        let extended = site.json("PATCH", "/api/v1/locks/gpu", json!({"owner": owner, "ttl_ms": 60_000})).await;
        assert_eq!(extended.status, 204, "{}", extended.text());
    }
    for owner in owners.iter().rev() {
        let released = site.send("DELETE", &format!("/api/v1/locks/gpu?owner={owner}"), &[], b"").await;
        assert_eq!(released.status, 204, "{}", released.text());
    }
    assert_eq!(site.get("/api/v1/locks").await.json()["locks"], json!([]));
}

pub async fn lock_waiter_gets_a_greater_fence(site: Site) {
    let first = site.json("PUT", "/api/v1/locks/a%2Fb", json!({"ttl_ms": 60_000})).await.json();
    let owner = first["owner"].as_str().expect("an owner");
    let waiting = site.json("PUT", "/api/v1/locks/a%2Fb", json!({"ttl_ms": 60_000, "wait_ms": 20_000}));
    let releasing = async {
        // Wait for the first waiter.
        while site.get("/api/v1/locks/a%2Fb").await.json()["locks"][0]["waiters"] != json!(1) {}
        site.send("DELETE", &format!("/api/v1/locks/a%2Fb?owner={owner}"), &[], b"").await.status
    };
    let (second, released) = tokio::join!(waiting, releasing);
    assert_eq!((second.status, released), (200, 204), "{}", second.text());
    assert!(second.json()["fence"].as_u64() > first["fence"].as_u64());
    let broken = site.post("/api/v1/locks/a%2Fb/break", json!({})).await;
    assert_eq!(broken.json()["broken"], 1);
}

pub async fn method_is_called(site: Site) {
    let double = async |n: u64, _| Ok::<_, std::io::Error>(n * 2);
    site.duly.on_call("double", double).await.expect("registers");
    let response = site.post("/api/v1/calls/double", json!({"args": 21})).await;
    assert_eq!(response.json()["replies"][0]["value"], 42, "{}", response.text());
    let nobody = site.post("/api/v1/calls/triple", json!({"args": 21})).await;
    assert_eq!((nobody.status, nobody.code().as_str()), (404, "not_found"));
}
