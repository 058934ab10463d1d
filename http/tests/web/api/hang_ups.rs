//! Clients that hang up while their request runs, on every route that changes something: each change that is carried out
//! is in the audit log.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duly::admin::{AuditEntry, Role};
use duly::cron::CronRule;
use duly::lock::LockRecord;
use duly::{Filter, JobId, Push};
use serde_json::{Value, json};
use test_support::until;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::api::role_matrix::routes;
use crate::api::support::Site;

const FORM: &str = "application/x-www-form-urlencoded";
/// The rounds of a short run; each has one attempt per case.
const ROUNDS: usize = 3;
/// A client hangs up at most this long after its request was sent.
const DELAY_MICROS_MAX: u64 = 4_000;
/// Far longer than a run.
const LATER: Duration = Duration::from_secs(24 * 3_600);

/// The subject of a request, which exists before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Job,
    /// The only job of a queue.
    Queue,
    PausedQueue,
    EmptyQueue,
    /// A queue that the request creates, with a job.
    NewQueue,
    Rule,
    PausedRule,
    NewRule,
    Token,
    NewToken,
    /// A lock of another client.
    Lock,
    Method,
    /// A worker of another client.
    Node,
    /// The same, with a ready job in its queue.
    NodeWithReadyJob,
    /// The same, with a running job.
    NodeWithRunningJob,
    Session,
}

/// A route, a request for it, and its name in the audit log. NAME, JOB, FENCE and OWNER stand for those of the subject.
struct Case(&'static str, &'static str, &'static str, &'static str, &'static str, Subject);

const CASES: [Case; 42] = [
    Case("POST", "/api/v1/calls/{method}", "/api/v1/calls/NAME", "", "calls.run", Subject::Method),
    Case(
        "PUT",
        "/api/v1/cron/{name}",
        "/api/v1/cron/NAME",
        r#"{"pattern":"0 3 1 1 *","kind":"work"}"#,
        "cron.save",
        Subject::NewRule,
    ),
    Case("DELETE", "/api/v1/cron/{name}", "/api/v1/cron/NAME", "", "cron.remove", Subject::Rule),
    Case("POST", "/api/v1/cron/{name}/pause", "/api/v1/cron/NAME/pause", "", "cron.pause", Subject::Rule),
    Case("POST", "/api/v1/cron/{name}/resume", "/api/v1/cron/NAME/resume", "", "cron.resume", Subject::PausedRule),
    Case("POST", "/api/v1/cron/{name}/trigger", "/api/v1/cron/NAME/trigger", "", "cron.trigger", Subject::Rule),
    Case(
        "POST",
        "/api/v1/jobs/actions",
        "/api/v1/jobs/actions",
        r#"{"action":"remove","filter":"queue:NAME"}"#,
        "jobs.remove",
        Subject::Queue,
    ),
    Case("DELETE", "/api/v1/jobs/{id}", "/api/v1/jobs/NAME", "", "jobs.remove", Subject::Job),
    Case("PATCH", "/api/v1/jobs/{id}", "/api/v1/jobs/NAME", r#"{"args":2}"#, "jobs.edit", Subject::Job),
    Case("POST", "/api/v1/jobs/{id}/cancel", "/api/v1/jobs/NAME/cancel", "", "jobs.cancel", Subject::Job),
    Case(
        "POST",
        "/api/v1/jobs/{id}/reschedule",
        "/api/v1/jobs/NAME/reschedule",
        r#"{"after_ms":1000000}"#,
        "jobs.reschedule",
        Subject::Job,
    ),
    Case("POST", "/api/v1/jobs/{id}/retry", "/api/v1/jobs/NAME/retry", "", "jobs.retry", Subject::Job),
    Case("DELETE", "/api/v1/locks/{name}", "/api/v1/locks/NAME?owner=OWNER", "", "locks.release", Subject::Lock),
    Case(
        "PATCH",
        "/api/v1/locks/{name}",
        "/api/v1/locks/NAME",
        r#"{"owner":"OWNER","ttl_ms":900000}"#,
        "locks.extend",
        Subject::Lock,
    ),
    Case("POST", "/api/v1/locks/{name}/break", "/api/v1/locks/NAME/break", "", "locks.break", Subject::Lock),
    Case("DELETE", "/api/v1/nodes/{id}", "/api/v1/nodes/NAME", "", "nodes.leave", Subject::Node),
    Case("POST", "/api/v1/nodes/{id}/quiet", "/api/v1/nodes/NAME/quiet", "", "nodes.quiet", Subject::Node),
    Case("POST", "/api/v1/nodes/{id}/stop", "/api/v1/nodes/NAME/stop", "", "nodes.stop", Subject::Node),
    Case("POST", "/api/v1/nodes/{id}/claim", "/api/v1/nodes/NAME/claim", "", "nodes.claim", Subject::NodeWithReadyJob),
    Case(
        "POST",
        "/api/v1/nodes/{id}/progress",
        "/api/v1/nodes/NAME/progress",
        r#"{"id":"JOB","fence":FENCE,"fraction":0.5}"#,
        "nodes.progress",
        Subject::NodeWithRunningJob,
    ),
    Case(
        "POST",
        "/api/v1/nodes/{id}/settle",
        "/api/v1/nodes/NAME/settle",
        r#"{"outcomes":[{"id":"JOB","fence":FENCE,"outcome":"ack"}]}"#,
        "nodes.settle",
        Subject::NodeWithRunningJob,
    ),
    Case(
        "PATCH",
        "/api/v1/queues/{queue}",
        "/api/v1/queues/NAME",
        r#"{"capacity_jobs":5}"#,
        "queues.edit",
        Subject::Queue,
    ),
    Case("DELETE", "/api/v1/queues/{queue}", "/api/v1/queues/NAME", "", "queues.remove", Subject::EmptyQueue),
    Case(
        "DELETE",
        "/api/v1/queues/{queue}/jobs",
        "/api/v1/queues/NAME/jobs?confirm=NAME",
        "",
        "queues.clear",
        Subject::Queue,
    ),
    Case("POST", "/api/v1/queues/{queue}/pause", "/api/v1/queues/NAME/pause", "", "queues.pause", Subject::Queue),
    Case(
        "POST",
        "/api/v1/queues/{queue}/resume",
        "/api/v1/queues/NAME/resume",
        "",
        "queues.resume",
        Subject::PausedQueue,
    ),
    Case(
        "POST",
        "/api/v1/tokens",
        "/api/v1/tokens",
        r#"{"name":"NAME","role":"viewer"}"#,
        "tokens.create",
        Subject::NewToken,
    ),
    Case("DELETE", "/api/v1/tokens/{name}", "/api/v1/tokens/NAME", "", "tokens.remove", Subject::Token),
    Case(
        "POST",
        "/jobs/actions",
        "/jobs/actions",
        "do=remove-all&q=queue%3ANAME&confirm=1",
        "jobs.remove",
        Subject::Queue,
    ),
    Case("POST", "/jobs/{id}/edit", "/jobs/NAME/edit", "args=2", "jobs.edit", Subject::Job),
    Case("POST", "/jobs/{id}/{action}", "/jobs/NAME/remove", "confirm=1", "jobs.remove", Subject::Job),
    Case("POST", "/jobs/{id}/{action}", "/jobs/NAME/cancel", "confirm=1", "jobs.cancel", Subject::Job),
    Case(
        "POST",
        "/push",
        "/push",
        "kind=work&queue=NAME&args=1&priority=normal&after=1h&max_attempts=1&unique=&tags=",
        "jobs.push",
        Subject::NewQueue,
    ),
    Case("POST", "/queues/{queue}/{action}", "/queues/NAME/pause", "", "queues.pause", Subject::Queue),
    Case("POST", "/queues/{queue}/{action}", "/queues/NAME/clear", "name=NAME", "queues.clear", Subject::Queue),
    Case(
        "POST",
        "/cron",
        "/cron",
        "name=NAME&pattern=0+3+1+1+*&kind=work&queue=rules&args=1&missed=once&overlap=allow&tz=UTC",
        "cron.save",
        Subject::NewRule,
    ),
    Case("POST", "/cron/{name}/{action}", "/cron/NAME/remove", "confirm=1", "cron.remove", Subject::Rule),
    Case("POST", "/cron/{name}/{action}", "/cron/NAME/trigger", "", "cron.trigger", Subject::Rule),
    Case("POST", "/nodes/{id}/{action}", "/nodes/NAME/quiet", "", "nodes.quiet", Subject::Node),
    Case("POST", "/nodes/{id}/{action}", "/nodes/NAME/stop", "confirm=1", "nodes.stop", Subject::Node),
    Case("POST", "/locks/break", "/locks/break", "name=NAME&confirm=1", "locks.break", Subject::Lock),
    Case("POST", "/logout", "/logout", "", "sessions.remove", Subject::Session),
];

/// Routine requests of programs, which are not recorded, and two that change nothing in the store.
const UNRECORDED: [(&str, &str); 7] = [
    ("POST", "/api/v1/jobs"),
    ("POST", "/api/v1/jobs/bulk"),
    ("PUT", "/api/v1/locks/{name}"),
    ("POST", "/api/v1/nodes"),
    ("POST", "/api/v1/nodes/{id}/heartbeat"),
    ("POST", "/calls"),
    ("POST", "/login"),
];

#[test]
fn every_route_that_changes_something_is_hung_up_on() {
    let covered: BTreeSet<(&str, &str)> = CASES.iter().map(|case| (case.0, case.1)).chain(UNRECORDED).collect();
    let routes = routes();
    let unsafe_routes = routes.iter().filter(|(method, _)| method != "GET");
    let unsafe_routes: BTreeSet<_> = unsafe_routes.map(|(method, path)| (method.as_str(), path.as_str())).collect();
    assert_eq!(covered, unsafe_routes);
}

/// The clients of a run.
struct Run {
    site: Site,
    admin: String,
    /// Owns the workers and locks.
    pusher: String,
    /// The methods that were called.
    called: Arc<Mutex<BTreeSet<String>>>,
}

/// One request whose client hangs up.
struct Attempt {
    case: &'static Case,
    name: String,
    job: Option<JobId>,
    fence: u64,
    owner: String,
    cookie: String,
    before: String,
}

impl Run {
    async fn new(mut site: Site) -> Self {
        site.be(Role::Pusher).await;
        let pusher = site.token().to_owned();
        site.be(Role::Admin).await;
        let admin = site.token().to_owned();
        Run { site, admin, pusher, called: Arc::default() }
    }

    async fn post_as_pusher(&self, path: &str, body: Value) -> Value {
        let bearer = format!("Bearer {}", self.pusher);
        let headers = [("Authorization", &*bearer), ("Content-Type", "application/json")];
        let method = if path.contains("/locks/") { "PUT" } else { "POST" };
        let response = self.site.send(method, path, &headers, body.to_string().as_bytes()).await;
        let body = serde_json::from_slice(&response.body).unwrap_or(Value::Null);
        json!({"status": response.status, "body": body})
    }

    /// Creates the subject of a request.
    async fn prepare(&mut self, case: &'static Case) -> Attempt {
        let (id, duly) = (JobId::fresh(), self.site.duly.clone());
        let name = id.to_string();
        let mut attempt = Attempt {
            case,
            name: name.clone(),
            job: None,
            fence: 0,
            owner: String::new(),
            cookie: String::new(),
            before: String::new(),
        };
        // Another client prepares the request: only entries of the tested one count.
        self.site.be_nobody();
        match case.5 {
            Subject::Job => {
                duly.push(Push::new("work", "1").id(id).after(LATER)).await.expect("pushed");
                attempt.job = Some(id);
            }
            Subject::Queue | Subject::PausedQueue => {
                duly.push(Push::new("work", "1").queue(&*name).after(LATER)).await.expect("pushed");
                if case.5 == Subject::PausedQueue {
                    duly.queues().pause(&name).await.expect("paused");
                }
            }
            Subject::EmptyQueue => {
                duly.push(Push::new("work", "1").queue(&*name).id(id)).await.expect("pushed");
                duly.jobs().remove(id).await.expect("removed");
            }
            Subject::Rule | Subject::PausedRule => {
                let rule = CronRule::new(&*name, "0 3 1 1 *", Push::new("work", "1").queue(&*name)).expect("a rule");
                duly.crons().put(rule).await.expect("saved");
                if case.5 == Subject::PausedRule {
                    duly.crons().pause(&name).await.expect("paused");
                }
            }
            Subject::Token => drop(duly.tokens().create(&name, Role::Viewer, None).await.expect("made")),
            Subject::Lock => {
                let hold = self.post_as_pusher(&format!("/api/v1/locks/{name}"), json!({"ttl_ms": 600_000})).await;
                attempt.owner = hold["body"]["owner"].as_str().expect("an owner").to_owned();
            }
            Subject::Method => {
                let (called, method) = (self.called.clone(), name);
                let mark = move |_: Value, _| {
                    called.lock().expect("no panic").insert(method.clone());
                    async { Ok::<_, std::io::Error>(true) }
                };
                duly.on_call(&*attempt.name, mark).await.expect("registered");
            }
            Subject::Node | Subject::NodeWithReadyJob | Subject::NodeWithRunningJob => self.join(&mut attempt).await,
            Subject::Session => {
                let secret = duly.tokens().create(&name, Role::Viewer, None).await.expect("made");
                let body = format!("token={}", secret.as_str());
                let signed_in = self.site.send("POST", "/login", &[("Content-Type", FORM)], body.as_bytes()).await;
                let cookie = signed_in.header("set-cookie").expect("a cookie");
                attempt.cookie = cookie.split(';').next().expect("a pair").to_owned();
            }
            Subject::NewQueue | Subject::NewRule | Subject::NewToken => {}
        }
        attempt.before = self.state(&attempt).await;
        attempt
    }

    /// Joins a worker, whose id is the name of the subject.
    async fn join(&self, attempt: &mut Attempt) {
        let body = json!({"queues": [attempt.name], "lease_ms": 600_000});
        let joined = self.post_as_pusher("/api/v1/nodes", body).await;
        let node = joined["body"]["id"].as_str().unwrap_or_else(|| panic!("{joined}")).to_owned();
        let queue = std::mem::replace(&mut attempt.name, node);
        if attempt.case.5 == Subject::Node {
            return;
        }
        let id = JobId::fresh();
        self.site.duly.push(Push::new("work", "1").queue(queue).id(id)).await.expect("pushed");
        attempt.job = Some(id);
        if attempt.case.5 == Subject::NodeWithRunningJob {
            let claimed = self.post_as_pusher(&format!("/api/v1/nodes/{}/claim", attempt.name), json!({})).await;
            attempt.fence = claimed["body"]["jobs"][0]["fence"].as_u64().unwrap_or_else(|| panic!("{claimed}"));
        }
    }

    /// Returns the state of a subject, as text.
    async fn state(&self, attempt: &Attempt) -> String {
        let (duly, name) = (&self.site.duly, attempt.name.as_str());
        match attempt.case.5 {
            Subject::Job | Subject::NodeWithReadyJob | Subject::NodeWithRunningJob => {
                format!("{:?}", duly.jobs().get(attempt.job.expect("a job")).await.expect("reads"))
            }
            Subject::Queue | Subject::PausedQueue | Subject::EmptyQueue | Subject::NewQueue => {
                let counts = duly.queues().counts().await.expect("reads");
                format!("{:?}", counts.iter().find(|counts| counts.queue == name))
            }
            Subject::Rule | Subject::PausedRule | Subject::NewRule => {
                let jobs = self.jobs_of(name).await.len();
                format!("{:?} {jobs}", duly.crons().get(name).await.expect("reads"))
            }
            Subject::Token | Subject::NewToken => {
                let tokens = duly.tokens().list().await.expect("reads");
                tokens.iter().any(|token| token.name == name).to_string()
            }
            Subject::Lock => {
                let holders = duly.lock(name).holders().await.expect("reads");
                // A file keeps the time that is left, so the time of the expiry differs by a few microseconds.
                let ttl = |lock: &LockRecord| {
                    lock.expires.duration_since(lock.since.expect("is known")).expect("later").as_secs()
                };
                format!("{:?}", holders.iter().map(|lock| (lock.owner, ttl(lock))).collect::<Vec<_>>())
            }
            Subject::Method => self.called.lock().expect("no panic").contains(name).to_string(),
            Subject::Node => {
                self.post_as_pusher(&format!("/api/v1/nodes/{name}/heartbeat"), json!({})).await.to_string()
            }
            Subject::Session => {
                let headers = [("Cookie", &*attempt.cookie)];
                self.site.send("GET", "/api/v1/stats", &headers, b"").await.status.to_string()
            }
        }
    }

    async fn jobs_of(&self, queue: &str) -> Vec<String> {
        let filter: Filter = format!("queue:{queue}").parse().expect("a filter");
        let jobs = self.site.duly.jobs().list(filter).await.expect("reads").jobs;
        jobs.iter().map(|record| record.job.id.to_string()).collect()
    }

    /// Sends the request, and hangs up.
    async fn hang_up(&mut self, attempt: &Attempt) {
        let Case(method, _, path, body, ..) = attempt.case;
        let fill = |text: &str| {
            let job = attempt.job.map(|job| job.to_string()).unwrap_or_default();
            let text = text.replace("NAME", &attempt.name).replace("JOB", &job).replace("OWNER", &attempt.owner);
            text.replace("FENCE", &attempt.fence.to_string())
        };
        match attempt.case.5 {
            Subject::Session => self.site.be_nobody(),
            _ => self.site.be_again(self.admin.clone()),
        }
        let kind = if path.starts_with("/api/") { "application/json" } else { FORM };
        let headers = [("Content-Type", kind), ("Cookie", &*attempt.cookie)];
        let request = self.site.request(method, &fill(path), &headers, fill(body).as_bytes());
        self.site.be_nobody();
        let mut stream = TcpStream::connect(self.site.address).await.expect("connects");
        stream.write_all(&request).await.expect("sends");
        // Some leave at once, others while the request runs.
        if fastrand::u8(..4) > 0 {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..DELAY_MICROS_MAX))).await;
        }
        drop(stream);
    }

    /// Returns the number of changes, and those of them that are not in the audit log.
    async fn changed_and_unrecorded(&self, attempts: &[Attempt]) -> (usize, Vec<String>) {
        let entries = self.entries().await;
        let (mut changed, mut unrecorded) = (0, Vec::new());
        for attempt in attempts {
            let after = self.state(attempt).await;
            if after == attempt.before {
                continue;
            }
            changed += 1;
            let mut names = vec![attempt.name.clone()];
            if attempt.case.5 == Subject::NewQueue {
                names = self.jobs_of(&attempt.name).await;
            }
            let is_recorded = |entry: &AuditEntry| {
                let mentioned = [&Some(entry.actor.clone()), &entry.target, &entry.filter];
                let is_named = |text: &str| names.iter().any(|name| text.contains(name.as_str()));
                entry.action == attempt.case.4 && mentioned.into_iter().flatten().any(|text| is_named(text))
            };
            if !entries.iter().any(is_recorded) {
                unrecorded.push(format!("{} {}: {} is now {after}", attempt.case.0, attempt.case.2, attempt.before));
            }
        }
        (changed, unrecorded)
    }

    /// Returns the newest entries, more than those of two rounds.
    async fn entries(&self) -> Vec<AuditEntry> {
        let (mut all, mut before) = (Vec::new(), None);
        while all.len() < 5 * CASES.len() {
            let page = self.site.duly.audit().list(before, 200).await.expect("reads");
            let Some(last) = page.last() else {
                break;
            };
            before = Some(last.number);
            all.extend(page.into_iter().map(|record| record.entry));
        }
        all
    }

    /// Removes the subjects that a store may have only few of.
    async fn clean_up(&self, attempts: &[Attempt]) {
        for attempt in attempts {
            match attempt.case.5 {
                Subject::Token | Subject::NewToken | Subject::Session => {
                    // It may be gone already.
                    let _ = self.site.duly.tokens().remove(&attempt.name).await;
                }
                Subject::Node | Subject::NodeWithReadyJob | Subject::NodeWithRunningJob => {
                    let bearer = format!("Bearer {}", self.pusher);
                    let path = format!("/api/v1/nodes/{}", attempt.name);
                    self.site.send("DELETE", &path, &[("Authorization", &bearer)], b"").await;
                }
                _ => {}
            }
        }
    }
}

/// `DULY_HANGUPS` sets the number of requests.
pub async fn changes_of_clients_that_hang_up_are_recorded(site: Site) {
    let requests = test_support::env_number("DULY_HANGUPS").map_or(ROUNDS * CASES.len(), |number| number as usize);
    let mut run = Run::new(site).await;
    let (mut sent, mut changed_in_all, mut previous) = (0, 0, Vec::new());
    while sent < requests {
        let mut attempts = Vec::new();
        for case in &CASES {
            let attempt = run.prepare(case).await;
            run.hang_up(&attempt).await;
            attempts.push(attempt);
        }
        sent += attempts.len();
        // Late requests of the previous round count, too.
        for round in [&previous, &attempts] {
            let mut last = Vec::new();
            until("every change is recorded", async || {
                let (_, unrecorded) = run.changed_and_unrecorded(round).await;
                let is_same = unrecorded == last;
                if !unrecorded.is_empty() && !is_same {
                    println!("not recorded yet: {unrecorded:?}");
                }
                last = unrecorded;
                last.is_empty()
            })
            .await;
        }
        changed_in_all += run.changed_and_unrecorded(&previous).await.0;
        run.clean_up(&previous).await;
        previous = attempts;
    }
    let (changed, unrecorded) = run.changed_and_unrecorded(&previous).await;
    println!("{sent} hang-ups: {} changes, {} unrecorded", changed_in_all + changed, unrecorded.len());
    assert_eq!(unrecorded, Vec::<String>::new());
    assert!(changed_in_all + changed > 0, "some requests are carried out");
    // The server ends and records its last requests before it stops.
    run.site.stop().await;
}
