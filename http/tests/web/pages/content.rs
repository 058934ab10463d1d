//! The status and the content of each page, the actions, and a prefix.

use duly::{Filter, State};
use test_support::until;

use crate::fixture;
use crate::pages::client::{get, post};

/// The marker of a node that claims nothing.
const QUIET: &str = "<span class=\"state paused\">quiet</span>";

/// Every page without a name in its path, and a text that it contains if the store is full.
const PAGES: [(&str, &str); 15] = [
    ("/", "Throughput"),
    ("/?range=24h", "jobs in 10 minutes"),
    ("/jobs", "report.build"),
    ("/jobs?q=state:dead", "given up"),
    ("/queues", "billing"),
    ("/queues/mail", "Nodes that work it"),
    ("/scheduled", "The next hour"),
    ("/kinds", "thumbnail.make"),
    ("/dead", "declined"),
    ("/cron", "nightly-backup"),
    ("/nodes", "pid"),
    ("/locks", "invoices:2030-01"),
    ("/calls", "cache.clear"),
    ("/settings", "Time zone"),
    ("/push", "Args, as JSON"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_shows_the_content_of_the_store() {
    let fixture = fixture::full().await;
    for (path, text) in PAGES {
        let response = get(&fixture.url, path).await;
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"), "{path}");
        assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
        assert!(response.header("content-security-policy").is_some_and(|policy| policy.contains("script-src 'self'")));
        // A list of dead jobs shows their errors; the word is on the page of the job.
        assert!(path.contains("state:dead") || response.body.contains(text), "{path} shows {text}");
        let inline = [" style=", "<style", " onclick=", " onload=", "javascript:", "<script>"];
        assert!(!inline.iter().any(|bad| response.body.contains(bad)), "{path} keeps to its own policy");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_store_pages_show_the_next_step() {
    let fixture = fixture::empty().await;
    for (path, command) in [
        ("/", "duly push -- echo hello"),
        ("/jobs", "duly push -- echo hello"),
        ("/queues", "duly push -- echo hello"),
        ("/scheduled", "duly push --in 10m -- echo later"),
        ("/kinds", "No attempt yet"),
        ("/cron", "duly cron add backup"),
        ("/nodes", "duly work"),
        ("/locks", "duly lock deploy"),
        ("/calls", "registers a method with <code>duly.on_call(..)</code>"),
        ("/calls", "duly.on_call(\"cache.clear\", clear)"),
    ] {
        let response = get(&fixture.url, path).await;
        assert!(response.status == 200 && response.body.contains(command), "{path} says {command}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_objects_give_an_error_page() {
    let fixture = fixture::empty().await;
    for path in
        ["/nothing", "/jobs/none", "/jobs/0192f7a1-0000-7000-8000-00000000c3d4", "/queues/none", "/cron/rule/none"]
    {
        let response = get(&fixture.url, path).await;
        assert_eq!(response.status, 404, "{path}");
        assert!(response.body.contains("<h1>Not here</h1>"), "{path}: {}", response.body);
    }
    let response = get(&fixture.url, "/jobs?q=state:undead").await;
    assert_eq!(response.status, 422);
    assert!(response.body.contains("role=\"alert\""), "the filter's fault stands on the page");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actions_redirect_to_a_flash_message() {
    let fixture = fixture::full().await;
    let response = post(&fixture.url, "/queues/mail/pause", "").await;
    assert_eq!((response.status, response.header("location")), (303, Some("/queues/mail?did=paused&of=mail")));
    assert!(get(&fixture.url, "/queues/mail?did=paused&of=mail").await.body.contains("Queue mail is paused"));
    let dead = fixture.duly.list(Filter::all().state(State::Dead)).await.expect("listed");
    let id = dead.jobs[0].job.id;
    assert_eq!(post(&fixture.url, &format!("/jobs/{id}/retry"), "").await.status, 303);
    let record = fixture.duly.get(id).await.expect("asked").expect("there");
    assert_ne!(record.state, State::Dead);
    // A removal needs a confirmation.
    let asked = post(&fixture.url, &format!("/jobs/{id}/remove"), "").await;
    assert!(asked.status == 200 && asked.body.contains("Remove job"), "asks first");
    assert!(fixture.duly.get(id).await.expect("asked").is_some());
    assert_eq!(post(&fixture.url, &format!("/jobs/{id}/remove"), "confirm=yes").await.status, 303);
    assert!(fixture.duly.get(id).await.expect("asked").is_none());
    assert_eq!(post(&fixture.url, &format!("/jobs/{id}/frobnicate"), "").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_node_is_marked() {
    let fixture = fixture::empty().await;
    fixture::work(&fixture);
    let works = async || fixture.duly.nodes().await.expect("listed").into_iter().find(|node| !node.queues.is_empty());
    until("a node works", async || works().await.is_some()).await;
    let node = works().await.expect("works").id;
    let is_quiet = async |path: &str| get(&fixture.url, path).await.body.contains(QUIET);
    assert!(!is_quiet("/nodes").await);
    assert_eq!(post(&fixture.url, &format!("/nodes/{node}/quiet"), "").await.status, 303);
    until("it is quiet in the list", async || is_quiet("/nodes").await).await;
    until("it is quiet on its page", async || is_quiet(&format!("/nodes/{node}")).await).await;
    assert_eq!(post(&fixture.url, &format!("/nodes/{node}/resume"), "").await.status, 303);
    until("it is quiet no more", async || !is_quiet("/nodes").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_action_never_changes_more_than_confirmed() {
    let fixture = fixture::full().await;
    let filter: Filter = "state:dead kind:invoice.charge".parse().expect("a filter");
    let count = fixture.duly.count(&filter).await.expect("counted").matching;
    assert!(count > 3);
    let asked = post(&fixture.url, "/jobs/actions", "do=remove-all&q=state:dead+kind:invoice.charge").await;
    assert!(asked.status == 200 && asked.body.contains(&format!("Remove {count} jobs")), "counts");
    let wrong = post(
        &fixture.url,
        "/jobs/actions",
        &format!("do=remove-all&q=state:dead+kind:invoice.charge&confirm={count}&typed=1"),
    )
    .await;
    assert_eq!(wrong.status, 422, "a wrong number is refused");
    let few = count - 1;
    let fewer = post(
        &fixture.url,
        "/jobs/actions",
        &format!("do=remove-all&q=state:dead+kind:invoice.charge&confirm={few}&typed={few}"),
    )
    .await;
    assert_eq!(fewer.status, 409, "there are more by now than were counted");
    assert_eq!(fixture.duly.count(&filter).await.expect("counted").matching, count, "none is gone");
    let done = post(
        &fixture.url,
        "/jobs/actions",
        &format!("do=remove-all&q=state:dead+kind:invoice.charge&confirm={count}&typed={count}"),
    )
    .await;
    assert_eq!(done.header("location"), Some(format!("/jobs?did=removed&n={count}").as_str()));
    assert_eq!(fixture.duly.count(&filter).await.expect("counted").matching, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_start_with_the_prefix() {
    let fixture = fixture::full_with(|server| server.prefix("/duly")).await;
    for path in ["/", "/jobs", "/queues/mail", "/dead", "/cron", "/settings"] {
        let response = get(&fixture.url, path).await;
        for kind in ["href=\"/", "action=\"/", "src=\"/"] {
            for (at, _) in response.body.match_indices(kind) {
                let link = &response.body[at..response.body.len().min(at + 60)];
                assert!(link.contains("\"/duly/"), "{path}: {link}");
            }
        }
    }
    let response = post(&fixture.url, "/queues/mail/pause", "").await;
    assert_eq!(response.header("location"), Some("/duly/queues/mail?did=paused&of=mail"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn assets_are_cached_under_their_hash() {
    let fixture = fixture::empty().await;
    let page = get(&fixture.url, "/").await.body;
    let at = page.find("/assets/").expect("an asset");
    let path = page[at..].split('"').next().expect("its address");
    let asset = get(&fixture.url, path).await;
    assert_eq!(asset.status, 200);
    assert_eq!(asset.header("cache-control"), Some("public, max-age=31536000, immutable"));
    let old = get(&fixture.url, "/assets/0123456789abcdef/duly.css").await;
    assert_eq!((old.status, old.header("cache-control")), (200, Some("no-cache")));
    assert_eq!(get(&fixture.url, "/assets/0123456789abcdef/..%2Fmod.rs").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_stay_on_this_server() {
    let fixture = fixture::full().await;
    let response = post(&fixture.url, "/queues/mail/pause", "next=%2F%2Fevil.example").await;
    assert_eq!(response.header("location"), Some("/queues/mail?did=paused&of=mail"));
    let look = get(&fixture.url, "/settings/appearance?theme=dark&zone=Asia/Tokyo&next=https://evil.example").await;
    assert_eq!(look.header("location"), Some("/settings?did=appearance"));
    for odd in ["/%09/evil.example/x", "/%00x", "/%0D%0A/evil.example"] {
        let look = get(&fixture.url, &format!("/settings/appearance?next={odd}")).await;
        assert_eq!((look.status, look.header("location")), (303, Some("/settings?did=appearance")), "{odd}");
    }
    assert!(look.head.contains("duly_theme=dark; Path=/;") && look.head.contains("duly_zone=Asia/Tokyo;"));
}

/// The overview reads only counters and history, so its time does not depend on the number of jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "pushes a million jobs"]
async fn the_first_page_does_not_count_a_million_jobs() {
    const JOBS: u64 = 1_000_000;
    let dir = tempfile::tempdir().expect("a directory");
    let fixture = fixture::at(&dir.path().join("duly.db").display().to_string()).await;
    for part in 0..JOBS / 10_000 {
        let job = |no: u64| duly::Push::new("noop", "{}").queue(format!("q{}", no % 5));
        fixture.duly.push_all((0..10_000).map(|no| job(part + no))).await.expect("pushed");
    }
    let mut times = Vec::new();
    for _ in 0..20 {
        let asked = std::time::Instant::now();
        assert_eq!(get(&fixture.url, "/").await.status, 200);
        times.push(asked.elapsed());
    }
    times.sort();
    println!(
        "the first page with {JOBS} jobs: median {:?} (the goal is 50 ms), worst of 20 {:?}",
        times[10], times[19]
    );
    // Far beyond the goal of 50 ms, which the printed figure shows on a quiet machine.
    assert!(times[10] < std::time::Duration::from_secs(2));
}
