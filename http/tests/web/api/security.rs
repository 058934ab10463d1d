//! Safe defaults: attacks on every security promise of the HTTP API.

use duly::Duly;
use duly::admin::Role;
use duly_http::Server;
use serde_json::json;
use test_support::until;

use crate::api::support::{Response, Site};

fn is_refused(response: &Response, status: u16, code: &str) {
    assert_eq!((response.status, response.code().as_str()), (status, code), "{}", response.text());
}

#[tokio::test]
async fn public_address_requires_a_token() {
    let duly = Duly::open(":memory:").await.expect("opens");
    let refused = Server::new(duly.clone()).listen(([0, 0, 0, 0], 0).into()).await.expect_err("refused");
    assert!(refused.to_string().contains("duly token create"), "{refused}");
    duly.tokens().create("ada", Role::Viewer, None).await.expect("made");
    Server::new(duly).listen(([0, 0, 0, 0], 0).into()).await.expect("with one it listens");
}

#[tokio::test]
async fn unknown_host_is_rejected() {
    let site = Site::with(|server| server.allow_hosts(["jobs.example.com"])).await;
    let port = site.address.port();
    for host in ["evil.example", "evil.example:7711", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::2]"] {
        is_refused(&site.send("GET", "/api/v1/stats", &[("Host", host)], b"").await, 421, "wrong_host");
    }
    for host in ["evil.example", "evil.example:7711", "1.2.3.4.evil.example", "1.2.3", "", "[::2", "::2"] {
        assert_eq!(site.send("GET", "/healthz", &[("Host", host)], b"").await.status, 421, "{host}: nothing at all");
    }
    for (path, host) in [("/healthz", "10.1.2.3:7711"), ("/readyz", "10.1.2.3"), ("/metrics", "[fd00::2]:7711")] {
        assert_eq!(site.send("GET", path, &[("Host", host)], b"").await.status, 200, "{path} of {host}");
    }
    for host in
        ["localhost".to_owned(), format!("localhost:{port}"), format!("[::1]:{port}"), "jobs.example.com".into()]
    {
        assert_eq!(site.send("GET", "/api/v1/stats", &[("Host", &host)], b"").await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn only_health_and_login_are_public() {
    let mut site = Site::in_memory().await;
    site.be(Role::Admin).await;
    site.be_nobody();
    let api: serde_json::Value = serde_json::from_str(&duly_http::openapi()).expect("JSON");
    for (path, verbs) in api["paths"].as_object().expect("paths") {
        let path = path.replace("{id}", "01890000-0000-7000-8000-000000000000").replace(['{', '}'], "");
        for verb in verbs.as_object().expect("verbs").keys() {
            let response = site.send(&verb.to_uppercase(), &path, &[("Content-Type", "application/json")], b"{}").await;
            is_refused(&response, 401, "unauthorized");
            assert!(response.header("www-authenticate").is_some());
        }
    }
    for path in ["/metrics", "/openapi.json", "/", "/jobs", "/queues", "/audit", "/nothing"] {
        let response = site.get(path).await;
        assert!([401, 303].contains(&response.status), "{path}: {}", response.text());
    }
    for path in ["/healthz", "/readyz"] {
        let response = site.get(path).await;
        assert_eq!((response.status, &*response.body), (200, &b"ok\n"[..]), "{path} reveals nothing");
    }
}

/// A liveness probe must not restart the server because the store is unresponsive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn liveness_probe_succeeds_without_a_store() {
    let server = {
        use crate::servers::{Binary, Fsync, Options};
        Options::new(Binary::Redis).aof(Fsync::Always).start()
    };
    let mut site = Site::on(server.url()).await;
    site.be(Role::Viewer).await;
    server.pause();
    // The client retries a request to the store for 5 s.
    let soon = std::time::Duration::from_secs(4);
    let alive = tokio::time::timeout(soon, site.get("/healthz")).await.expect("soon");
    let ready = tokio::time::timeout(soon, site.get("/readyz")).await.expect("soon");
    server.resume();
    assert_eq!((alive.status, ready.status), (200, 503));
}

#[tokio::test]
async fn proxied_request_is_not_local() {
    let site = Site::in_memory().await;
    assert_eq!(site.get("/api/v1/stats").await.status, 200);
    for header in ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"] {
        is_refused(&site.send("GET", "/api/v1/stats", &[(header, "127.0.0.1")], b"").await, 401, "unauthorized");
    }
    let public = Site::with(|server| server.public_url("https://jobs.example.com/duly")).await;
    is_refused(&public.get("/api/v1/stats").await, 401, "unauthorized");
}

#[tokio::test]
async fn wrong_tokens_are_rejected_and_rate_limited() {
    let mut site = Site::in_memory().await;
    site.be(Role::Admin).await;
    assert_eq!(site.get("/api/v1/stats").await.status, 200);
    let good = site.token().to_owned();
    site.be_nobody();
    let wrong = [("Authorization", "Bearer duly_0000")];
    for _ in 0..5 {
        is_refused(&site.send("GET", "/api/v1/stats", &wrong, b"").await, 401, "unauthorized");
    }
    let slowed = site.send("GET", "/api/v1/stats", &wrong, b"").await;
    is_refused(&slowed, 429, "too_many");
    assert!(slowed.header("retry-after").is_some());
    let right = format!("Bearer {good}");
    assert_eq!(
        site.send("GET", "/api/v1/stats", &[("Authorization", &right)], b"").await.status,
        200,
        "a right one is"
    );
    assert!(site.get(&format!("/api/v1/stats?token={good}")).await.status >= 400, "never in a query string");
}

pub async fn tokens_have_roles_and_expire(mut site: Site) {
    site.be(Role::Admin).await;
    let made = site.post("/api/v1/tokens", json!({"name": "ci", "role": "viewer"})).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let listed = site.get("/api/v1/tokens").await;
    assert!(!String::from_utf8_lossy(&listed.body).contains(made.json()["token"].as_str().expect("a token")));
    let id = site.push("mail").await;
    assert_eq!(site.json("PUT", "/api/v1/locks/deploy", json!({"ttl_ms": 600_000})).await.status, 200);
    let changes = [
        ("DELETE", format!("/api/v1/jobs/{id}"), Role::Operator),
        ("POST", "/api/v1/queues/mail/pause".to_owned(), Role::Operator),
        ("GET", "/api/v1/tokens".to_owned(), Role::Admin),
        ("GET", "/api/v1/audit".to_owned(), Role::Operator),
    ];
    for role in Role::ALL {
        site.be(role).await;
        let job = site.get(&format!("/api/v1/jobs/{id}")).await;
        assert_eq!(job.status, 200, "a token is good from the moment it is made");
        let job = job.json();
        assert_eq!(job.get("args").is_some(), role >= Role::Operator, "{role} sees what jobs carry only if they may");
        for filter in ["args.n:1", "-args.n:1", "hidden", "-hidden"] {
            let asked = site.get(&format!("/api/v1/jobs?filter={filter}")).await;
            assert_eq!(asked.status == 200, role >= Role::Operator, "{role} asks for {filter}: {}", asked.text());
        }
        let locks = site.get("/api/v1/locks").await.json();
        assert_eq!(locks["locks"][0].get("owner").is_some(), role >= Role::Operator, "{role} sees whose a lock is");
        let push = site.post("/api/v1/jobs", json!({"kind": "a"})).await;
        assert_eq!(push.status == 201, role >= Role::Pusher, "{role}: {}", push.text());
        for (verb, path, needs) in changes.iter().filter(|(_, _, needs)| *needs > role) {
            let response = site.send(verb, path, &[], b"").await;
            assert_eq!(
                (response.status, response.code().as_str()),
                (403, "forbidden"),
                "{role} {verb} {path} needs {needs}"
            );
        }
    }
    assert_eq!(site.send("DELETE", "/api/v1/tokens/ci", &[], b"").await.status, 204);
    site.be_nobody();
    let ci = format!("Bearer {}", made.json()["token"].as_str().expect("a token"));
    assert_eq!(site.send("GET", "/api/v1/stats", &[("Authorization", &ci)], b"").await.status, 401, "it is gone");
}

#[tokio::test]
async fn expiry_of_the_last_token_does_not_open_the_server() {
    let site = Site::in_memory().await;
    assert_eq!(site.get("/api/v1/stats").await.status, 200, "no token yet");
    let lasts = std::time::Duration::from_secs(1);
    let secret = site.duly.tokens().create("short", Role::Admin, Some(lasts)).await.expect("made");
    until("it ends", async || site.duly.tokens().list().await.expect("lists").is_empty()).await;
    let ended = [("Authorization", &*format!("Bearer {}", secret.as_str()))];
    // The server may cache the token for a moment.
    until("it is refused", async || site.send("GET", "/api/v1/stats", &ended, b"").await.status != 200).await;
    is_refused(&site.get("/api/v1/stats").await, 401, "unauthorized");
    is_refused(&site.post("/api/v1/tokens", json!({"name": "mine", "role": "admin"})).await, 401, "unauthorized");
    site.duly.tokens().remove("short").await.expect("is there still");
    until("without any, this machine gets in again", async || site.get("/api/v1/stats").await.status == 200).await;
}

#[tokio::test]
async fn refusals_do_not_displace_audit_entries() {
    const REFUSALS_MAX: usize = 20;
    let mut site = Site::in_memory().await;
    site.be(Role::Admin).await;
    let admin = format!("Bearer {}", site.token());
    assert_eq!(site.post("/api/v1/queues/mail/pause", json!({})).await.status, 200);
    site.be(Role::Viewer).await;
    for no in 0..3 * REFUSALS_MAX {
        is_refused(&site.post(&format!("/nothing/{no}"), json!({})).await, 403, "forbidden");
        is_refused(&site.post("/api/v1/queues/mail/resume", json!({})).await, 403, "forbidden");
    }
    site.be_nobody();
    let entries = site.send("GET", "/api/v1/audit?limit=200", &[("Authorization", &admin)], b"").await.json();
    let entries = entries["entries"].as_array().expect("entries");
    let action = |entry: &serde_json::Value| entry["action"].as_str().unwrap_or_default().to_owned();
    let refused = entries.iter().filter(|entry| entry["outcome"] == "refused").map(action);
    let refused: Vec<String> = refused.collect();
    assert!(refused.iter().all(|what| what == "queues.resume"), "only what there is: {refused:?}");
    // One more may have been allowed while the requests ran.
    assert!((REFUSALS_MAX..=REFUSALS_MAX + 1).contains(&refused.len()), "{}", refused.len());
    assert!(entries.iter().any(|entry| action(entry) == "queues.pause"), "and what was decided");
}

#[tokio::test]
async fn cross_site_changes_are_rejected() {
    let site = Site::in_memory().await;
    let push = async |headers: &[(&str, &str)]| {
        let json = [("Content-Type", "application/json")];
        site.send("POST", "/api/v1/jobs", &[&json[..], headers].concat(), br#"{"kind":"a"}"#).await
    };
    for site in ["cross-site", "same-site"] {
        is_refused(&push(&[("Sec-Fetch-Site", site)]).await, 403, "cross_site");
    }
    is_refused(&push(&[("Origin", "https://evil.example")]).await, 403, "cross_site");
    is_refused(&push(&[("Origin", "null")]).await, 403, "cross_site");
    let own = format!("http://{}", site.address);
    for headers in [&[("Sec-Fetch-Site", "same-origin")][..], &[("Origin", &*own)], &[]] {
        assert_eq!(push(headers).await.status, 201);
    }
    assert_eq!(site.send("GET", "/api/v1/stats", &[("Sec-Fetch-Site", "cross-site")], b"").await.status, 200);
    let form = [("Content-Type", "text/plain")];
    is_refused(&site.send("POST", "/api/v1/jobs", &form, br#"{"kind":"a"}"#).await, 415, "content_type");
}

#[tokio::test]
async fn every_response_has_security_headers_and_no_cors() {
    let site = Site::in_memory().await;
    for path in ["/api/v1/stats", "/healthz", "/nothing", "/api/v1/jobs/none"] {
        let response = site.send("GET", path, &[("Origin", "https://evil.example")], b"").await;
        let csp = response.header("content-security-policy").expect("a policy");
        assert!(
            csp.starts_with("default-src 'none'; script-src 'self'") && csp.contains("frame-ancestors 'none'"),
            "{csp}"
        );
        assert!(!csp.contains("unsafe"), "{csp}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(response.header("cross-origin-opener-policy"), Some("same-origin"));
        assert_eq!(response.header("cache-control"), Some("no-store"));
        assert!(response.header("x-request-id").is_some());
        assert_eq!(response.header("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn read_only_server_rejects_changes() {
    let site = Site::with(Server::read_only).await;
    is_refused(&site.post("/api/v1/jobs", json!({"kind": "a"})).await, 403, "read_only");
    is_refused(&site.post("/api/v1/queues/a/pause", json!({})).await, 403, "read_only");
    is_refused(&site.json("PUT", "/api/v1/locks/a", json!({})).await, 403, "read_only");
    assert_eq!(site.get("/api/v1/stats").await.status, 200);
}

#[tokio::test]
async fn command_jobs_are_rejected_unless_allowed() {
    let body = json!({"kind": "command", "args": {"argv": ["true"], "dir": "/"}});
    let site = Site::in_memory().await;
    is_refused(&site.post("/api/v1/jobs", body.clone()).await, 403, "forbidden");
    is_refused(&site.post("/api/v1/jobs/bulk", json!([body])).await, 403, "forbidden");
    let rule = json!({"pattern": "0 3 * * *", "kind": "command", "args": {"argv": ["true"]}});
    is_refused(&site.json("PUT", "/api/v1/cron/nightly", rule).await, 403, "forbidden");
    let id = site.duly.push(duly::Push::new("command", "{}")).await.expect("pushes").id();
    let job = format!("/api/v1/jobs/{id}");
    for change in [json!({"args": {}}), json!({"due_ms": 0})] {
        is_refused(&site.json("PATCH", &job, change).await, 403, "forbidden");
    }
    is_refused(&site.post(&format!("{job}/retry"), json!({})).await, 403, "forbidden");
    is_refused(&site.post(&format!("{job}/reschedule"), json!({"after_ms": 1})).await, 403, "forbidden");
    let all = site.post("/api/v1/jobs/actions", json!({"action": "retry", "all": true, "dry_run": true})).await;
    assert_eq!(all.json()["matching"], 0, "{}", all.text());
    let rule = duly::cron::CronRule::new("nightly", "0 3 * * *", duly::Push::new("command", "{}")).expect("a rule");
    site.duly.crons().put(rule).await.expect("saved");
    for action in ["trigger", "resume"] {
        is_refused(&site.post(&format!("/api/v1/cron/nightly/{action}"), json!({})).await, 403, "forbidden");
    }
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    for (path, body) in [
        (format!("/jobs/{id}/retry"), String::new()),
        (format!("/jobs/{id}/reschedule"), "due=1s".to_owned()),
        ("/jobs/actions".to_owned(), format!("do=retry&id={id}")),
        ("/cron/nightly/trigger".to_owned(), String::new()),
        ("/cron/nightly/resume".to_owned(), String::new()),
    ] {
        is_refused(&site.send("POST", &path, &form, body.as_bytes()).await, 403, "forbidden");
    }
    assert_eq!(site.send("DELETE", &job, &[], b"").await.status, 204, "removing one is no danger");
    let open = Site::with_commands().await;
    let id = open.post("/api/v1/jobs", body).await.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(open.post(&format!("/api/v1/jobs/{id}/retry"), json!({})).await.status, 204);
}

#[tokio::test]
async fn session_cookie_is_http_only_and_same_site() {
    let mut site = Site::in_memory().await;
    site.be(Role::Operator).await;
    let token = site.token().to_owned();
    site.be_nobody();
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let wrong = site.send("POST", "/login", &form, b"token=duly_1").await;
    assert_eq!(wrong.status, 401, "{}", wrong.text());
    let sign_in = async |next: &str| {
        let body = format!("token={token}&next={next}");
        site.send("POST", "/login", &form, body.as_bytes()).await
    };
    for next in ["//evil.example", "/%09/evil.example/x", "/%0A/evil.example", "/%5Cevil.example", "/%00x"] {
        let signed_in = sign_in(next).await;
        assert_eq!((signed_in.status, signed_in.header("location")), (303, Some("/")), "{next}: never to another site");
    }
    let signed_in = sign_in("/queues").await;
    assert_eq!((signed_in.status, signed_in.header("location")), (303, Some("/queues")));
    let cookie = signed_in.header("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    let pair = cookie.split(';').next().expect("a pair").to_owned();
    assert!(!pair.contains(&token), "the token itself stays here");
    assert_eq!(site.send("GET", "/api/v1/stats", &[("Cookie", &pair)], b"").await.status, 200);
    let out = site.send("POST", "/logout", &[("Cookie", &pair)], b"").await;
    assert_eq!(out.status, 303, "{}", out.text());
    assert_eq!(site.send("GET", "/api/v1/stats", &[("Cookie", &pair)], b"").await.status, 401, "signed out");
}

#[tokio::test]
async fn only_the_host_cookie_is_accepted_behind_tls() {
    let mut site = Site::with(|server| server.public_url("https://jobs.example.com")).await;
    site.be(Role::Operator).await;
    let body = format!("token={}", site.token());
    site.be_nobody();
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let sign_in = async || {
        let signed_in = site.send("POST", "/login", &form, body.as_bytes()).await;
        let cookie = signed_in.header("set-cookie").expect("a cookie").to_owned();
        assert!(cookie.contains("; Secure"), "{cookie}");
        let (name, id) = cookie.split(';').next().and_then(|pair| pair.split_once('=')).expect("a pair");
        assert_eq!(name, "__Host-duly");
        id.to_owned()
    };
    let (mine, other) = (sign_in().await, sign_in().await);
    let status = async |cookie: String| site.send("GET", "/api/v1/stats", &[("Cookie", &cookie)], b"").await.status;
    assert_eq!(status(format!("duly={mine}")).await, 401, "a neighbour could have set it");
    assert_eq!(status(format!("duly=none; __Host-duly={mine}")).await, 200, "and does not stand before the right one");
    let both = format!("duly={other}; __Host-duly={mine}");
    assert_eq!(site.send("POST", "/logout", &[("Cookie", &both)], b"").await.status, 303);
    assert_eq!(status(format!("__Host-duly={mine}")).await, 401, "signed out");
    assert_eq!(status(format!("__Host-duly={other}")).await, 200, "was never meant");
}

#[tokio::test]
async fn mounted_router_requires_a_token() {
    let duly = Duly::open(":memory:").await.expect("opens");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let router = axum::Router::new().nest("/duly", duly_http::router(duly));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let request = format!("GET /duly/api/v1/stats HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let site = Site::in_memory().await;
    let mut elsewhere = site;
    elsewhere.address = address;
    is_refused(&elsewhere.raw(request.as_bytes()).await, 401, "unauthorized");
}

/// Log lines may contain args, and progress does not.
#[tokio::test]
async fn logs_are_hidden_from_roles_that_cannot_see_args() {
    let mut site = Site::in_memory().await;
    site.be(Role::Pusher).await;
    let joined = site.post("/api/v1/nodes", json!({"queues": ["default"]})).await.json();
    let node = format!("/api/v1/nodes/{}", joined["id"].as_str().expect("an id"));
    let id = site.push("default").await;
    let fence = site.post(&format!("{node}/claim"), json!({})).await.json()["jobs"][0]["fence"].clone();
    let said = json!({"id": id, "fence": fence, "fraction": 0.5, "message": "half", "lines": ["a secret"]});
    assert_eq!(site.post(&format!("{node}/progress"), said).await.json()["lost"], json!([]));
    for role in Role::ALL {
        site.be(role).await;
        for path in [format!("/api/v1/jobs/{id}"), format!("/api/v1/jobs/{id}/wait?timeout_ms=0")] {
            let job = site.get(&path).await.json();
            assert_eq!(job["log"][0]["line"] == "a secret", role >= Role::Operator, "{role} {path}: {job}");
            assert_eq!(job["progress"]["message"], "half", "{role} {path}");
        }
    }
}
