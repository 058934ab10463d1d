//! Only direct clients of the server's own user are local; otherwise a link signs the first browser in.

use std::os::unix::process::CommandExt;
use std::process::Command;

use duly::Duly;
use duly::admin::Role;
use duly_http::Server;
use serde_json::json;

use crate::api::support::{Response, Site};

/// A user that is certainly not that of the tests.
const OTHER_UID: u32 = 12_345;

const FORM: (&str, &str) = ("Content-Type", "application/x-www-form-urlencoded");

/// Sends a GET with this cookie as another user of this machine; `None` without the right to become one.
fn get_as_other_user(site: &Site, path: &str, cookie: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: nothing to test");
        return None;
    }
    let (host, port) = (site.address.ip(), site.address.port());
    let head = format!("GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\nCookie: {cookie}\\r\\n");
    let request = format!("{head}Connection: close\\r\\n\\r\\n");
    let script = format!("exec 3<>/dev/tcp/{host}/{port}; printf '{request}' >&3; cat <&3");
    let sent = Command::new("bash").args(["-c", &script]).current_dir("/").uid(OTHER_UID).output().expect("bash runs");
    Some(String::from_utf8_lossy(&sent.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_of_the_machine_needs_a_token() {
    let site = Site::in_memory().await;
    assert_eq!(site.get("/api/v1/tokens").await.status, 200, "the server's own user is local");
    let Some(response) = get_as_other_user(&site, "/api/v1/tokens", "") else {
        return;
    };
    assert!(response.starts_with("HTTP/1.1 401"), "{response}");
    assert!(response.contains("duly token create") && response.contains("the user that it runs as"), "{response}");
}

/// A browser without TLS sends the cookie to each port of the host, so to servers of other users as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_is_refused_from_another_user_of_the_machine() {
    let mut site = Site::in_memory().await;
    site.be(Role::Admin).await;
    let token = format!("token={}", site.token());
    site.be_nobody();
    let signed_in = site.send("POST", "/login", &[FORM], token.as_bytes()).await;
    let cookie = signed_in.header("set-cookie").expect("a cookie").split(';').next().expect("a pair").to_owned();
    assert!(cookie.starts_with(&format!("duly-{}=", site.address.port())), "{cookie}");
    let mine = [("Cookie", &*cookie)];
    assert_eq!(site.send("GET", "/api/v1/tokens", &mine, b"").await.status, 200);
    let Some(response) = get_as_other_user(&site, "/api/v1/tokens", &cookie) else {
        return;
    };
    assert!(response.starts_with("HTTP/1.1 401"), "{response}");
    assert_eq!(site.send("GET", "/api/v1/tokens", &mine, b"").await.status, 200, "it is still valid");
}

#[tokio::test]
async fn request_through_a_proxy_is_not_local() {
    let site = Site::in_memory().await;
    let refused = |response: Response, what: &str| {
        assert_eq!((response.status, response.code().as_str()), (401, "unauthorized"), "{what}");
        assert!(response.text().contains("proxy"), "{what}: {}", response.text());
    };
    for header in [
        "X-Forwarded-For",
        "X-Forwarded-Proto",
        "X-Forwarded-Server",
        "Forwarded",
        "Via",
        "X-Real-IP",
        "X-Client-IP",
        "CF-Connecting-IP",
        "True-Client-IP",
    ] {
        refused(site.send("GET", "/api/v1/stats", &[(header, "127.0.0.1")], b"").await, header);
    }
    // A request as nginx sends it for `proxy_pass http://127.0.0.1:7711;`.
    let plain = format!("GET /api/v1/tokens HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", site.address);
    refused(site.raw(plain.as_bytes()).await, "HTTP/1.0");
}

#[tokio::test]
async fn commands_need_a_token() {
    let duly = Duly::open(":memory:").await.expect("opens");
    let server = || Server::new(duly.clone()).allow_commands();
    let refused = server().listen(([127, 0, 0, 1], 0).into()).await.expect_err("refused");
    assert!(refused.to_string().contains("duly token create"), "{refused}");
    duly.tokens().create("ada", Role::Admin, None).await.expect("made");
    server().listen(([127, 0, 0, 1], 0).into()).await.expect("with a token it listens");
}

#[tokio::test]
async fn removing_the_last_token_opens_no_server_that_runs_commands() {
    let site = Site::with_commands().await;
    for token in site.duly.tokens().list().await.expect("lists") {
        site.duly.tokens().remove(&token.name).await.expect("removes");
    }
    test_support::until("the token is gone", async || site.get("/api/v1/stats").await.status == 401).await;
    let mut nobody = site;
    nobody.be_nobody();
    assert_eq!(nobody.get("/api/v1/stats").await.status, 401);
}

/// The same as on a system that does not list the users of connections.
#[tokio::test]
async fn link_signs_in_once_until_there_is_a_token() {
    let mut site = Site::with(Server::sign_in_link).await;
    let link = site.sign_in_url.clone().expect("a link");
    let path = link.strip_prefix(&format!("http://{}", site.address)).expect("of this server").to_owned();
    let secret = path.split_once("link=").expect("a secret").1.to_owned();
    let refused = site.get("/api/v1/stats").await;
    assert_eq!(refused.status, 401);
    assert!(refused.text().contains("sign-in link"), "{}", refused.text());
    for _ in 0..2 {
        let form = site.send("GET", &path, &[("Accept", "text/html")], b"").await;
        assert!(form.status == 200 && form.text().contains(&format!("value=\"{secret}\"")), "only shows the form");
    }
    let sign_in = async || site.send("POST", "/login", &[FORM], format!("token={secret}").as_bytes()).await;
    let signed_in = sign_in().await;
    assert_eq!(signed_in.status, 303, "{}", signed_in.text());
    let cookie = signed_in.header("set-cookie").expect("a cookie").split(';').next().expect("a pair").to_owned();
    let mine = [("Cookie", &*cookie)];
    assert_eq!(site.send("GET", "/api/v1/tokens", &mine, b"").await.status, 200, "an admin");
    assert_eq!(sign_in().await.status, 401, "only once");
    site.be(Role::Viewer).await;
    let first = site.get("/api/v1/stats").await;
    assert_eq!(first.status, 200);
    site.be_nobody();
    assert_eq!(site.send("GET", "/api/v1/tokens", &mine, b"").await.status, 401, "until there is a token");
    let entries = site.duly.audit().list(None, 10).await.expect("reads");
    assert!(entries.iter().any(|record| record.entry.action == "sessions.create" && record.entry.actor == "local"));
}

#[tokio::test]
async fn link_and_its_session_do_not_return_after_the_last_token_is_removed() {
    let (used, unused) = (Site::with(Server::sign_in_link).await, Site::with(Server::sign_in_link).await);
    let sign_in = async |site: &Site| {
        let link = site.sign_in_url.as_ref().expect("a link");
        let secret = link.split_once("link=").expect("a secret").1;
        site.send("POST", "/login", &[FORM], format!("token={secret}").as_bytes()).await
    };
    let signed_in = sign_in(&used).await;
    let cookie = signed_in.header("set-cookie").expect("a cookie").split(';').next().expect("a pair").to_owned();
    let mine = [("Cookie", &*cookie)];
    assert_eq!(used.send("GET", "/api/v1/tokens", &mine, b"").await.status, 200);
    for site in [&used, &unused] {
        let refused_with = async |text: &str| site.get("/api/v1/stats").await.text().contains(text);
        site.duly.tokens().create("ada", Role::Admin, None).await.expect("made");
        test_support::until("the token is seen", async || !refused_with("sign-in link").await).await;
        site.duly.tokens().remove("ada").await.expect("removed");
        test_support::until("it is gone", async || refused_with("sign-in link").await).await;
    }
    assert_eq!(used.send("GET", "/api/v1/tokens", &mine, b"").await.status, 401);
    assert_eq!(sign_in(&unused).await.status, 401);
}

#[tokio::test]
async fn server_that_knows_its_users_prints_no_link() {
    assert_eq!(Site::in_memory().await.sign_in_url, None);
    let required = Site::with(|server| server.sign_in_link().require_token()).await;
    assert_eq!(required.sign_in_url, None);
}

#[tokio::test]
async fn token_behind_a_local_proxy_is_rate_limited() {
    let mut site = Site::with(|server| server.rate(1)).await;
    site.be(Role::Viewer).await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(site.send("GET", "/api/v1/cron", &[("X-Forwarded-For", "10.0.0.1")], b"").await.status);
    }
    assert!(statuses.contains(&429) && statuses[0] == 200, "{statuses:?}");
    let own: Vec<u16> = {
        let mut own = Vec::new();
        for _ in 0..20 {
            own.push(site.get("/api/v1/cron").await.status);
        }
        own
    };
    assert!(own.iter().all(|status| *status == 200), "a local client has no limit: {own:?}");
}

#[tokio::test]
async fn refused_tokens_are_counted() {
    let mut site = Site::in_memory().await;
    site.be(Role::Viewer).await;
    let count = async || {
        let text = String::from_utf8(site.get("/metrics").await.body).expect("text");
        let line = text.lines().find(|line| line.starts_with("duly_server_refused_tokens_total ")).expect("the metric");
        line.rsplit_once(' ').and_then(|(_, value)| value.parse::<u64>().ok()).expect("a number")
    };
    let before = count().await;
    let other = Site::in_memory().await;
    let wrong = other.send("GET", "/api/v1/stats", &[("Authorization", "Bearer duly_0")], b"").await;
    assert_eq!(wrong.status, 401);
    assert!(count().await > before);
}

#[tokio::test]
async fn compressed_body_is_rejected() {
    let site = Site::in_memory().await;
    let headers = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")];
    let rejected = site.send("POST", "/api/v1/jobs", &headers, br#"{"kind":"a"}"#).await;
    assert_eq!((rejected.status, rejected.code().as_str()), (415, "content_encoding"));
    let headers = [("Content-Type", "application/json"), ("Content-Encoding", "identity")];
    assert_eq!(site.send("POST", "/api/v1/jobs", &headers, br#"{"kind":"a"}"#).await.status, 201);
}

#[tokio::test]
async fn new_sign_in_of_a_browser_ends_its_old_session() {
    let mut site = Site::in_memory().await;
    site.be(Role::Viewer).await;
    let body = format!("token={}", site.token());
    site.be_nobody();
    let sign_in = async |cookie: &str| {
        let signed_in = site.send("POST", "/login", &[FORM, ("Cookie", cookie)], body.as_bytes()).await;
        signed_in.header("set-cookie").expect("a cookie").split(';').next().expect("a pair").to_owned()
    };
    let first = sign_in("duly=none").await;
    let second = sign_in(&first).await;
    let status = async |cookie: &str| site.send("GET", "/api/v1/stats", &[("Cookie", cookie)], b"").await.status;
    assert_eq!((status(&first).await, status(&second).await), (401, 200));
}

#[tokio::test]
async fn idempotency_key_of_another_client_cannot_be_occupied() {
    let mut site = Site::in_memory().await;
    site.be(Role::Pusher).await;
    let victim = site.duly.tokens().list().await.expect("lists")[0].name.clone();
    // All that an attacker knows: the name of the victim, its keys, and that a public derivation has no secret.
    let computed = |key: &str| duly::JobId::from_name(&format!("{victim}\n{key}"));
    let ended = duly::Push::new("trap", "1").keep(std::time::Duration::ZERO);
    let far = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(7_952_342_400);
    let scheduled = || duly::Push::new("mail", "7").at(far);
    site.duly.push(ended.id(computed("order-7"))).await.expect("pushes");
    site.duly.worker().on_kind("trap", |_| async {}).drain().await.expect("drains");
    site.duly.push(scheduled().id(computed("order-8"))).await.expect("pushes");
    site.duly.push(scheduled().id(computed("order-9\n0"))).await.expect("pushes");
    let push = async |path: &str, key: &str, body: &str| {
        let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)];
        site.send("POST", path, &headers, body.as_bytes()).await
    };
    let body = r#"{"kind":"mail","args":7}"#;
    for key in ["order-7", "order-8"] {
        let pushed = push("/api/v1/jobs", key, body).await;
        assert_eq!((pushed.status, &pushed.json()["pushed"]), (201, &json!("new")), "{key}");
        assert_eq!(push("/api/v1/jobs", key, body).await.json()["pushed"], "existing");
    }
    assert_eq!(push("/api/v1/jobs/bulk", "order-9", &format!("[{body}]")).await.json()["new"], 1);
    let ready = duly::Filter::all().state(duly::State::Ready);
    assert_eq!(site.duly.jobs().list(ready).await.expect("lists").jobs.len(), 3);
}

#[tokio::test]
async fn key_that_its_client_has_used_for_another_job_is_a_conflict() {
    let mut site = Site::in_memory().await;
    site.be(Role::Pusher).await;
    let name = site.duly.tokens().list().await.expect("lists")[0].name.clone();
    let key = site.duly.tokens().job_id_key().await.expect("a key");
    // As pushed before a restart of the server, which forgets the requests.
    for id in [format!("{name}\norder-7"), format!("{name}\norder-8\n1")] {
        site.duly.push(duly::Push::new("mail", "1").id(key.derive(&id))).await.expect("pushes");
    }
    let push = async |path: &str, key: &str, body: &str| {
        let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)];
        site.send("POST", path, &headers, body.as_bytes()).await
    };
    for _ in 0..2 {
        let taken = push("/api/v1/jobs", "order-7", r#"{"kind":"mail","args":{"to":"ada"}}"#).await;
        assert_eq!((taken.status, taken.code().as_str()), (409, "key_taken"));
    }
    let taken = push("/api/v1/jobs/bulk", "order-8", r#"[{"kind":"mail"},{"kind":"mail"}]"#).await;
    assert_eq!((taken.status, taken.code().as_str()), (409, "key_taken"));
}
