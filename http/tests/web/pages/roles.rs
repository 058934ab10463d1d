//! The pages and actions of each role, and the read-only mode.

use duly::JobId;
use duly::admin::Role;

use crate::fixture;
use crate::pages::client::{Response, get, send};

async fn with(url: &str, line: &str, token: &str) -> Response {
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    send(url, &format!("{line} HTTP/1.1"), &format!("{form}Authorization: Bearer {token}\r\n"), "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_has_its_pages_and_actions() {
    let fixture = fixture::full().await;
    let token =
        async |name, role| fixture.duly.tokens().create(name, role, None).await.expect("made").as_str().to_owned();
    let (viewer, pusher) = (token("v", Role::Viewer).await, token("p", Role::Pusher).await);
    let (operator, admin) = (token("o", Role::Operator).await, token("a", Role::Admin).await);
    let job = format!("GET /jobs/{}", JobId::from_name("report"));
    for (secret, sees, pushes, operates) in [
        (&viewer, false, false, false),
        (&pusher, false, true, false),
        (&operator, true, true, true),
        (&admin, true, true, true),
    ] {
        let page = with(&fixture.url, &job, secret).await;
        assert_eq!(page.status, 200);
        assert_eq!(page.body.contains("123456789012345678901234567890"), sees, "args");
        assert!(!page.body.contains("hunter2"), "nobody sees secrets");
        let queue = with(&fixture.url, "GET /queues/mail", secret).await.body;
        assert_eq!(queue.contains(">Push a job<"), pushes);
        assert_eq!(queue.contains("method=\"post\" action=\"/queues/mail/"), operates);
        assert_eq!(with(&fixture.url, "GET /push", secret).await.status == 200, pushes);
        assert_eq!(with(&fixture.url, "POST /queues/mail/pause", secret).await.status == 303, operates);
        assert_eq!(with(&fixture.url, "GET /audit", secret).await.status == 200, operates);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_pages_have_no_buttons() {
    let fixture = fixture::full_with(|server| server.read_only()).await;
    for path in ["/jobs", "/queues/mail", "/dead", "/cron", "/locks", "/scheduled"] {
        let page = get(&fixture.url, path).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(!page.body.contains("method=\"post\" action=\"/queues"), "{path}");
        assert!(!page.body.contains("<button class=\"small"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_jobs_are_not_pushed_from_a_page() {
    let fixture = fixture::empty().await;
    let form = "kind=command&queue=default&args=%7B%7D&priority=normal";
    let response = crate::pages::client::post(&fixture.url, "/push", form).await;
    assert_eq!(response.status, 403, "{}", response.body);
    let rule = "name=x&pattern=*+*+*+*+*&tz=UTC&kind=command&queue=default&args=%7B%7D&missed=once&overlap=allow";
    assert_eq!(crate::pages::client::post(&fixture.url, "/cron", rule).await.status, 403);
}
