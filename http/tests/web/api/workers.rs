//! Workers in any language: leases, fences and failover as for workers in Rust.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use duly::admin::Role;
use duly::store::SETTLE_MAX;

use crate::api::support::{LONG, Site};

struct Worker<'s> {
    site: &'s Site,
    id: String,
}

impl<'s> Worker<'s> {
    async fn join(site: &'s Site, lease_ms: u64, kinds: &[&str]) -> Self {
        let body = json!({"queues": ["default"], "kinds": kinds, "lease_ms": lease_ms});
        let joined = site.post("/api/v1/nodes", body).await;
        assert_eq!(joined.status, 201, "{}", joined.text());
        Worker { site, id: joined.json()["id"].as_str().expect("an id").to_owned() }
    }

    fn path(&self, what: &str) -> String {
        format!("/api/v1/nodes/{}/{what}", self.id)
    }

    async fn claim(&self, max: usize, wait_ms: u64) -> Vec<Value> {
        let response = self.site.post(&self.path("claim"), json!({"max": max, "wait_ms": wait_ms})).await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()["jobs"].as_array().expect("jobs").clone()
    }

    /// Claims until a job arrives.
    async fn one(&self) -> Value {
        for _ in 0..10 {
            if let Some(job) = self.claim(1, 5_000).await.pop() {
                return job;
            }
        }
        panic!("no job came");
    }

    async fn heartbeat(&self, held: &[&Value]) -> Value {
        let held: Vec<&Value> = held.iter().map(|job| &job["id"]).collect();
        let response = self.site.post(&self.path("heartbeat"), json!({"held": held})).await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    async fn settle(&self, job: &Value, outcome: Value) -> Value {
        let mut end = json!({"id": job["id"], "fence": job["fence"]});
        end.as_object_mut().expect("an object").extend(outcome.as_object().expect("an object").clone());
        let response = self.site.post(&self.path("settle"), json!({"outcomes": [end]})).await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()["lost"].clone()
    }
}

async fn state(site: &Site, job: &Value) -> String {
    let id = job["id"].as_str().expect("an id").parse().expect("an id");
    site.duly.jobs().get(id).await.expect("reads").map_or("gone".to_owned(), |record| record.state.to_string())
}

pub async fn worker_claims_runs_and_settles(site: Site) {
    let worker = Worker::join(&site, 30_000, &[]).await;
    site.push("default").await;
    let job = worker.one().await;
    assert_eq!((&job["kind"], &job["args"]["n"], &job["attempt"]), (&json!("work"), &json!(1), &json!(1)));
    assert_eq!(state(&site, &job).await, "running");
    assert_eq!(worker.heartbeat(&[&job]).await["lost"], json!([]));
    assert_eq!(worker.settle(&job, json!({"outcome": "retry", "error": "not yet", "after_ms": 0})).await, json!([]));
    let again = worker.one().await;
    assert_eq!(again["attempt"], 2);
    assert!(again["fence"].as_u64() > job["fence"].as_u64());
    assert_eq!(worker.settle(&again, json!({"outcome": "ack"})).await, json!([]));
    assert_eq!(worker.settle(&again, json!({"outcome": "ack"})).await, json!([]), "said again: it is recorded");
    let other = json!({"id": again["id"], "fence": again["fence"].as_u64().expect("a fence") + 1});
    assert_eq!(worker.settle(&other, json!({"outcome": "ack"})).await, json!([again["id"]]), "another claim");
    assert_eq!(worker.heartbeat(&[&again]).await["lost"], json!([]), "a heartbeat that was under way");
    assert_eq!(state(&site, &job).await, "done");
    assert_eq!(site.send("DELETE", &format!("/api/v1/nodes/{}", worker.id), &[], b"").await.status, 204);
    assert_eq!(site.post(&worker.path("claim"), json!({})).await.status, 404, "join again");
}

pub async fn claimed_jobs_are_in_claim_order(site: Site) {
    let worker = Worker::join(&site, 30_000, &[]).await;
    site.duly.push_all((0..40).map(|n| duly::Push::new("work", format!("{n}")))).await.expect("pushes");
    let mut came = Vec::new();
    while came.len() < 40 {
        came.extend(worker.claim(15, 1_000).await.iter().map(|job| job["args"].as_u64().expect("a number")));
    }
    assert_eq!(came, (0..40).collect::<Vec<_>>());
}

/// More jobs than one settle can contain.
pub async fn jobs_missing_from_heartbeats_are_all_released(site: Site) {
    const JOBS: usize = SETTLE_MAX + 200;
    let worker = Worker::join(&site, 30_000, &[]).await;
    site.duly.push_all((0..JOBS).map(|n| duly::Push::new("work", format!("{n}")))).await.expect("pushes");
    let mut claimed = 0;
    while claimed < JOBS {
        claimed += worker.claim(1_000, 1_000).await.len();
    }
    worker.heartbeat(&[]).await;
    worker.heartbeat(&[]).await;
    let counts = site.duly.queues().counts().await.expect("counts");
    assert_eq!(counts.iter().map(|queue| (queue.ready, queue.running)).collect::<Vec<_>>(), [(JOBS as u64, 0)]);
}

pub async fn waiting_claim_is_woken_by_a_push(site: Site) {
    let worker = Worker::join(&site, 60_000, &[]).await;
    let began = std::time::Instant::now();
    let (jobs, ()) = tokio::join!(worker.claim(1, 30_000), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        site.push("default").await;
    });
    assert_eq!(jobs.len(), 1);
    assert!(began.elapsed() < Duration::from_secs(10), "woken, and not found at the end of its wait");
    assert_eq!(worker.claim(1, 0).await.len(), 0, "nothing more, and nobody waits");
}

pub async fn jobs_of_a_silent_worker_move_on_and_its_settle_is_rejected(site: Site) {
    let (silent, other) = (Worker::join(&site, 1_000, &[]).await, Worker::join(&site, 5_000, &[]).await);
    site.push("default").await;
    let lost = silent.one().await;
    let taken = async {
        loop {
            other.heartbeat(&[]).await;
            if let Some(job) = other.claim(1, 500).await.pop() {
                return job;
            }
        }
    };
    let job = tokio::time::timeout(LONG, taken).await.expect("in time");
    assert_eq!((&job["id"], &job["crashes"]), (&lost["id"], &json!(1)), "a death is counted");
    assert!(job["fence"].as_u64() > lost["fence"].as_u64());
    let late = json!({"outcomes": [{"id": lost["id"], "fence": lost["fence"], "outcome": "ack"}]});
    let refused = site.post(&silent.path("settle"), late).await;
    assert!(refused.status == 404 || refused.json()["lost"] == json!([lost["id"]]), "{}", refused.text());
    assert_eq!(other.settle(&job, json!({"outcome": "ack"})).await, json!([]));
}

pub async fn interrupted_claim_loses_no_job(site: Site) {
    let worker = Worker::join(&site, 30_000, &[]).await;
    let body = json!({"max": 1, "wait_ms": 20_000}).to_string();
    let request = site.request("POST", &worker.path("claim"), &[("Content-Type", "application/json")], body.as_bytes());
    let mut stream = tokio::net::TcpStream::connect(site.address).await.expect("connects");
    stream.write_all(&request).await.expect("sends");
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(stream);
    site.push("default").await;
    assert_eq!(worker.one().await["attempt"], 1);
}

pub async fn undelivered_job_is_released(site: Site) {
    let worker = Worker::join(&site, 30_000, &[]).await;
    site.push("default").await;
    let unheard = worker.one().await;
    // As if the response had been lost: the heartbeats do not name the job.
    worker.heartbeat(&[]).await;
    assert_eq!(state(&site, &unheard).await, "running", "it may be on its way");
    worker.heartbeat(&[]).await;
    let again = worker.one().await;
    assert_eq!((&again["id"], &again["attempt"], &again["crashes"]), (&unheard["id"], &json!(1), &json!(0)));
}

pub async fn jobs_without_a_handler_are_deferred(site: Site) {
    let worker = Worker::join(&site, 30_000, &["other"]).await;
    let id = site.push("default").await;
    site.post("/api/v1/jobs", json!({"kind": "other"})).await;
    assert_eq!(worker.one().await["kind"], "other");
    let job = site.get(&format!("/api/v1/jobs/{id}")).await.json();
    assert!(job["state"] != "running" && job["attempts"] == 0, "{job}");
}

/// Both workers wait. A worker without a handler defers a job, and the other one gets it before it is due.
pub async fn workers_with_different_kinds_share_a_queue(site: Site) {
    const EACH: usize = 20;
    let (one, other) =
        (Worker::join(&site, 30_000, &["one"]).await, Worker::join(&site, 30_000, &["other", "other"]).await);
    let work = async |worker: &Worker<'_>, kind: &str| {
        for _ in 0..EACH {
            let job = worker.one().await;
            assert_eq!(job["kind"], kind);
            assert_eq!(worker.settle(&job, json!({"outcome": "ack"})).await, json!([]));
        }
    };
    let push = async {
        for _ in 0..EACH {
            for kind in ["one", "other"] {
                site.post("/api/v1/jobs", json!({"kind": kind})).await;
            }
        }
    };
    let all = async { tokio::join!(work(&one, "one"), work(&other, "other"), push) };
    tokio::time::timeout(LONG, all).await.expect("nobody starves");
}

/// A worker that takes every kind sees no job that runs a program.
pub async fn command_jobs_are_left_to_other_workers(mut site: Site) {
    site.duly.push(duly::Push::new("command", r#"{"argv":["true"]}"#)).await.expect("pushes");
    site.push("default").await;
    site.be(Role::Pusher).await;
    let joined = site.post("/api/v1/nodes", json!({"queues": ["default"], "kinds": ["work", "command"]})).await;
    assert_eq!((joined.status, joined.code().as_str()), (403, "forbidden"));
    let worker = Worker::join(&site, 30_000, &[]).await;
    assert_eq!(worker.one().await["kind"], "work");
    assert_eq!(worker.claim(9, 0).await.len(), 0, "the other job is not for it");
    let stop = duly::CancellationToken::new();
    let (ran, stops) = (std::sync::Arc::new(tokio::sync::Notify::new()), stop.clone());
    let run = ran.clone();
    let handle = move |ctx: duly::Ctx| {
        let (ran, attempt) = (run.clone(), ctx.attempt());
        async move {
            assert_eq!(attempt, 1, "no attempt was counted");
            ran.notify_one();
            Ok::<_, std::io::Error>(())
        }
    };
    let local = tokio::spawn(site.duly.worker().on_kind("command", handle).run_until(stops));
    tokio::time::timeout(LONG, ran.notified()).await.expect("another worker gets it early");
    stop.cancel();
    local.await.expect("no panic").expect("ran");
}

#[tokio::test]
async fn command_jobs_are_delivered_if_the_server_allows_it() {
    let site = Site::with_commands().await;
    site.duly.push(duly::Push::new("command", r#"{"argv":["true"]}"#)).await.expect("pushes");
    assert_eq!(Worker::join(&site, 30_000, &["command"]).await.one().await["kind"], "command");
}

pub async fn last_failed_attempt_buries(site: Site) {
    let worker = Worker::join(&site, 30_000, &[]).await;
    site.post("/api/v1/jobs", json!({"kind": "work", "max_attempts": 1})).await;
    let job = worker.one().await;
    let report = json!({"id": job["id"], "fence": job["fence"], "lines": ["step 1", "step 2"]});
    site.post(&format!("/api/v1/nodes/{}/progress", worker.id), report).await;
    worker.settle(&job, json!({"outcome": "retry", "error": "it broke"})).await;
    let shown = site.get(&format!("/api/v1/jobs/{}", job["id"].as_str().expect("an id"))).await.json();
    assert_eq!((&shown["state"], &shown["failures"][0]["error"]), (&json!("dead"), &json!("it broke")));
    let run = &shown["runs"][0];
    assert_eq!((&run["outcome"], &run["output"]), (&json!("bury"), &json!("step 1\nstep 2")));
    assert!(run["duration_ms"].is_number() && run["started_ms"].as_i64() <= run["ended_ms"].as_i64(), "{run}");
}

pub async fn cancelled_job_ends_with_its_attempt(site: Site) {
    let worker = Worker::join(&site, 30_000, &[]).await;
    site.push("default").await;
    let job = worker.one().await;
    let id = job["id"].as_str().expect("an id");
    let reply = site.post(&format!("/api/v1/jobs/{id}/cancel"), json!({})).await;
    assert_eq!((reply.status, &reply.json()["state"]), (202, &json!("running")));
    let shown = site.get(&format!("/api/v1/jobs/{id}")).await.json();
    assert_eq!((&shown["state"], &shown["cancelling"]), (&json!("running"), &json!(true)));
    assert_eq!(reply.json()["node"], shown["node"]);
    assert_eq!(worker.heartbeat(&[&job]).await["cancel"], json!([id]));
    worker.settle(&job, json!({"outcome": "retry", "error": "told to stop"})).await;
    let shown = site.get(&format!("/api/v1/jobs/{id}")).await.json();
    assert_eq!((&shown["state"], &shown["cancelling"]), (&json!("cancelled"), &Value::Null));
    assert_eq!(shown["failures"][0]["error"], "told to stop", "the error of the worker is kept");
    let reply = site.post(&format!("/api/v1/jobs/{id}/cancel"), json!({})).await;
    assert_eq!((reply.status, &reply.json()["state"]), (200, &json!("cancelled")));
}

pub async fn stopping_server_flushes_kind_statistics(mut site: Site) {
    site.push("default").await;
    let worker = Worker::join(&site, 30_000, &["work"]).await;
    let job = worker.one().await;
    assert_eq!(worker.settle(&job, json!({"outcome": "ack"})).await, json!([]));
    site.stop().await;
    let kinds = site.duly.kind_stats(duly::admin::KindStatsQuery::last_hours(1)).await.expect("are kept");
    let counted: Vec<_> = kinds.iter().map(|point| (point.kind.as_str(), point.counters.done)).collect();
    assert_eq!(counted, [("work", 1)]);
}

/// The workers have not died: a restart of the server does not count as a crash of their jobs.
pub async fn stopping_server_releases_jobs_of_its_workers(mut site: Site) {
    let worker = Worker::join(&site, 60_000, &[]).await;
    site.push("default").await;
    let job = worker.one().await;
    let node = worker.id;
    site.stop().await;
    let id = job["id"].as_str().expect("an id").parse().expect("an id");
    let record = site.duly.jobs().get(id).await.expect("reads").expect("is there");
    assert_eq!((record.state, record.crashes, record.attempts), (duly::State::Ready, 0, 0));
    let nodes = site.duly.nodes().list().await.expect("looks");
    assert!(!nodes.iter().any(|known| known.id.to_string() == node && known.alive), "it has left");
}

pub async fn settle_with_oversized_result_or_delay_is_rejected(site: Site) {
    let worker = Worker::join(&site, 30_000, &[]).await;
    site.push("default").await;
    let job = worker.one().await;
    let settle = async |said: Value| {
        let mut end = json!({"id": job["id"], "fence": job["fence"]});
        end.as_object_mut().expect("an object").extend(said.as_object().expect("an object").clone());
        let good = json!({"id": duly::JobId::fresh().to_string(), "fence": 1, "outcome": "ack"});
        let response = site.post(&worker.path("settle"), json!({"outcomes": [good, end]})).await;
        (response.status, response.pointer())
    };
    let refused = |field: &str| (422, format!("/outcomes/1/{field}"));
    let long = "x".repeat(64 * 1024);
    assert_eq!(settle(json!({"outcome": "ack", "result": long})).await, refused("result"));
    for outcome in ["retry", "release"] {
        assert_eq!(settle(json!({"outcome": outcome, "after_ms": u64::MAX})).await, refused("after_ms"));
    }
    assert_eq!(state(&site, &job).await, "running", "nothing was recorded");
    assert_eq!(settle(json!({"outcome": "ack", "result": &long[2..]})).await.0, 200, "just short enough");
    assert_eq!(state(&site, &job).await, "done");
}

/// Node ids are public.
#[tokio::test]
async fn only_its_client_and_operators_can_use_a_node() {
    let mut site = Site::in_memory().await;
    site.be(Role::Pusher).await;
    let own = site.token().to_owned();
    let worker = Worker::join(&site, 60_000, &[]).await;
    site.push("default").await;
    let job = worker.one().await;
    let (node, id, fence) = (worker.id, job["id"].clone(), job["fence"].clone());
    let requests = [
        ("POST", "/claim", json!({})),
        ("POST", "/heartbeat", json!({"held": []})),
        ("POST", "/settle", json!({"outcomes": [{"id": id, "fence": fence, "outcome": "bury"}]})),
        ("POST", "/progress", json!({"id": id, "fence": fence, "lines": ["mine"]})),
        ("DELETE", "", json!({})),
    ];
    let request = async |site: &Site, (verb, what, body): &(&str, &str, Value)| {
        site.json(verb, &format!("/api/v1/nodes/{node}{what}"), body.clone()).await
    };
    site.be(Role::Pusher).await;
    for other in &requests {
        let response = request(&site, other).await;
        assert_eq!((response.status, response.code().as_str()), (404, "not_found"), "{other:?}");
    }
    assert_eq!(state(&site, &job).await, "running");
    site.be_again(own);
    assert_eq!(request(&site, &requests[3]).await.json()["lost"], json!([]), "it is its own still");
    site.be(Role::Operator).await;
    assert_eq!(request(&site, &requests[4]).await.status, 204, "operators look after nodes");
    assert_eq!(state(&site, &job).await, "ready");
}

pub async fn worker_shows_its_own_name_and_machine(site: Site) {
    let body = json!({"queues": ["default"], "name": "mailer 3", "host": "web-3", "pid": 4_711, "slots": 4});
    let joined = site.post("/api/v1/nodes", body).await;
    assert_eq!(joined.status, 201, "{}", joined.text());
    let plain = Worker::join(&site, 30_000, &[]).await;
    let nodes = site.get("/api/v1/nodes").await.json()["nodes"].clone();
    let node = |id: &Value| {
        nodes.as_array().expect("a list").iter().find(|node| node["id"] == *id).expect("is listed").clone()
    };
    let own = node(&joined.json()["id"]);
    assert_eq!((&own["name"], &own["host"]), (&json!("mailer 3"), &json!("web-3")), "{own}");
    assert_eq!((&own["pid"], &own["slots"]), (&json!(4_711), &json!(4)), "{own}");
    let other = node(&json!(plain.id));
    assert_eq!((&other["name"], &other["pid"]), (&Value::Null, &json!(std::process::id())), "{other}");
    for (field, wrong) in [("name", json!("")), ("host", json!("a\u{1b}b")), ("slots", json!(0))] {
        let mut body = json!({"queues": ["default"]});
        body[field] = wrong;
        let refused = site.post("/api/v1/nodes", body).await;
        assert_eq!((refused.status, refused.pointer()), (422, format!("/{field}")), "{}", refused.text());
    }
}
