//! The status and the content of each page, the actions, and a prefix.

use std::time::Duration;

use duly::store::{JobStore, Node};
use duly::{Filter, State};
use test_support::until;

use crate::fixture;
use crate::pages::client::{get, post, send};

/// The marker of a node that claims nothing.
const QUIET: &str = "<span class=\"state paused\">quiet</span>";

/// Every page without a name in its path, and a text that it contains if the store is full.
const PAGES: [(&str, &str); 18] = [
    ("/", "Throughput"),
    ("/?range=5m", "this server has just begun to collect them"),
    ("/?range=24h", "one point per 10 minutes"),
    ("/queues/mail?range=30d", "one point per hour"),
    ("/jobs", "report.build"),
    ("/jobs?q=state:dead", "dead"),
    ("/queues", "no worker"),
    ("/queues/mail", "This queue has no worker"),
    ("/scheduled", "The next hour"),
    ("/kinds", "thumbnail.make"),
    ("/kinds/thumbnail.make?range=7d", "failed attempts, of all that ended"),
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

/// The list of the overview: its text, without the rest of the page.
async fn attention(fixture: &fixture::Fixture) -> String {
    let page = get(&fixture.url, "/").await.body;
    let list = page.split("id=\"attention\"").nth(1).and_then(|rest| rest.split("</ul>").next());
    list.expect("a list").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overview_opens_with_what_needs_attention() {
    let fixture = fixture::full().await;
    let list = attention(&fixture).await;
    for text in [
        "Queue reports is paused",
        "It has 12 ready jobs",
        "Queue media has no worker",
        "duly work --queue media",
        "died, most recently",
        "more jobs died",
    ] {
        assert!(list.contains(text), "{text} is not in {list}");
    }
    for link in list.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert_eq!(get(&fixture.url, &link.replace("&amp;", "&")).await.status, 200, "{link}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overview_names_dead_nodes_lag_and_missed_runs() {
    let fixture = fixture::empty().await;
    fixture.duly.push(duly::Push::new("mail", "{}").queue("mail")).await.expect("pushed");
    fixture.duly.cron("hourly", "0 * * * *").push(duly::Push::new("mail", "{}")).await.expect("a rule");
    let store = fixture.duly.store();
    let node = Node::fresh(vec!["mail".to_owned()]);
    store.heartbeat(&node).await.expect("joins");
    assert!(attention(&fixture).await.contains("Nothing needs attention"));
    fixture.clock.advance(Duration::from_secs(2 * 3_600));
    store.heartbeat(&Node::fresh(vec!["mail".to_owned()])).await.expect("joins");
    let list = attention(&fixture).await;
    for text in ["sends no heartbeats", "Queue mail lags", "Rule hourly has missed its run"] {
        assert!(list.contains(text), "{text} is not in {list}");
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
        ("/kinds", "No attempt in this time"),
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
        assert!(response.body.contains("<h1>Not found</h1>"), "{path}: {}", response.body);
    }
    let response = get(&fixture.url, "/jobs?q=state:undead").await;
    assert_eq!(response.status, 422);
    assert!(response.body.contains("role=\"alert\""), "the filter's fault stands on the page");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_sorted_by_the_time_column() {
    let fixture = fixture::full().await;
    for (path, aria, ascending, link) in [
        ("/jobs?q=state:dead", "descending", false, "/jobs?q=state%3Adead&sort=end&reverse=1"),
        ("/jobs?q=state:dead&sort=end&reverse=1", "ascending", true, "/jobs?q=state%3Adead&sort=end\""),
        ("/jobs?q=&sort=end", "descending", false, "/jobs?q=&sort=end&reverse=1"),
        ("/jobs?q=state:scheduled", "ascending", true, "/jobs?q=state%3Ascheduled&sort=due&reverse=1"),
        ("/scheduled", "ascending", true, "/scheduled?reverse=1"),
        ("/scheduled?reverse=1", "descending", false, "/scheduled\""),
    ] {
        let page = get(&fixture.url, path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        let header = page.body.split("c-when\" aria-sort=\"").nth(1).unwrap_or_default();
        let header = header.replace("&#38;", "&").replace("&amp;", "&");
        assert!(header.starts_with(&format!("{aria}\"")) && header.contains(link), "{path}: {header:.300}");
        let rows = page.body.split("id=\"rows\"").nth(1).expect("rows");
        let times: Vec<&str> = rows.split("<time datetime=\"").skip(1).map(|rest| &rest[..24]).collect();
        assert!(times.len() > 10, "{path}: {times:?}");
        assert!(times.is_sorted_by(|a, b| if ascending { a <= b } else { a >= b }), "{path}: {times:?}");
    }
    let ready = get(&fixture.url, "/jobs?q=state:ready").await.body;
    assert!(!ready.contains("aria-sort"), "ready jobs have no such order");
    assert!(get(&fixture.url, "/jobs?q=&sort=none").await.body.contains("aria-sort=\"none\""));
    assert_eq!(get(&fixture.url, "/jobs?q=&sort=size").await.status, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pasted_id_opens_the_job() {
    let fixture = fixture::empty().await;
    let ids = ["0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c11", "0198f7a1-5a3c-7c1e-9b0e-6f1f6f0cbeef"];
    for id in ids {
        let push = duly::Push::new("mail", r#"{"to":"beef"}"#).id(id.parse().expect("an id"));
        fixture.duly.push(push).await.expect("pushed");
    }
    let target = format!("/jobs/{}", ids[0]);
    for path in ["/jobs?q=7c11", "/jobs?q=%E2%80%A66f0c7c11", &format!("/jobs?q={}+", ids[0]), "/jobs/7c11"] {
        let response = get(&fixture.url, path).await;
        assert_eq!((response.status, response.header("location")), (303, Some(&*target)), "{path}");
    }
    let page = get(&fixture.url, &target).await.body;
    assert!(page.contains("Remove job mail …6f0c7c11 from queue default?"), "the question names the job");
    let several = get(&fixture.url, "/jobs?q=0198f7a1").await;
    assert!(several.status == 200 && several.body.contains("/jobs?q=id%3A0198f7a1"), "{}", several.body);
    assert_eq!(get(&fixture.url, "/jobs/0198f7a1").await.header("location"), Some("/jobs?q=id%3A0198f7a1"));
    let listed = get(&fixture.url, "/jobs?q=id:0198f7a1").await.body;
    assert!(listed.contains("…6f0c7c11") && listed.contains("…6f0cbeef"));
    // A word that is no id is a text.
    let found = get(&fixture.url, "/jobs?q=beef+kind:mail").await;
    assert!(found.status == 200 && ids.iter().all(|id| found.body.contains(id)));
    assert_eq!(get(&fixture.url, "/jobs?q=cafe").await.status, 200);
    let refused = post(&fixture.url, "/jobs/actions", "do=remove-all&q=beef&confirm=2&typed=2").await;
    assert!(refused.status == 422 && refused.body.contains("looks like an id"), "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_of_a_rejected_form_is_updated_from_its_own_address() {
    let fixture = fixture::full().await;
    for (path, form) in [("/queues/mail/clear", "name=wrong"), ("/queues/mail/capacity", "jobs=many")] {
        let rejected = post(&fixture.url, path, form).await;
        assert!(rejected.status == 422 && rejected.body.contains("data-url=\"/queues/mail\""), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_to_nodes_lead_to_a_page() {
    let fixture = fixture::full().await;
    let dead = fixture.duly.jobs().list(Filter::all().state(State::Dead).limit(1)).await.expect("listed");
    let job = format!("/jobs/{}", dead.jobs[0].job.id);
    for path in ["/locks", &job] {
        let page = get(&fixture.url, path).await.body;
        for link in page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let is_node = link.starts_with("/nodes/");
            assert!(!is_node || get(&fixture.url, link).await.status == 200, "{path}: {link}");
        }
    }
    let page = get(&fixture.url, &job).await.body;
    assert!(page.contains("This node is gone"), "the node of its attempts has left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actions_redirect_to_a_flash_message() {
    let fixture = fixture::full().await;
    let response = post(&fixture.url, "/queues/mail/pause", "").await;
    assert_eq!((response.status, response.header("location")), (303, Some("/queues/mail")));
    let cookie = response.header("set-cookie").and_then(|set| set.split(';').next()).expect("a message").to_owned();
    assert_eq!(cookie, "duly_flash=did=paused&of=mail");
    let open = async |live: &str| {
        send(&fixture.url, "GET /queues/mail HTTP/1.1", &format!("Cookie: {cookie}\r\n{live}"), "").await
    };
    let update = open("X-Live: 1\r\n").await;
    assert!(update.header("set-cookie").is_none() && !update.body.contains("Queue mail is paused"));
    let page = open("").await;
    assert!(page.body.contains("Queue mail is paused"));
    assert!(page.header("set-cookie").is_some_and(|set| set.starts_with("duly_flash=; Path=/; Max-Age=0")));
    let dead = fixture.duly.jobs().list(Filter::all().state(State::Dead)).await.expect("listed");
    let id = dead.jobs[0].job.id;
    assert_eq!(post(&fixture.url, &format!("/jobs/{id}/retry"), "").await.status, 303);
    let record = fixture.duly.jobs().get(id).await.expect("asked").expect("there");
    assert_ne!(record.state, State::Dead);
    // A removal needs a confirmation.
    let asked = post(&fixture.url, &format!("/jobs/{id}/remove"), "").await;
    assert!(asked.status == 200 && asked.body.contains("Remove job"), "asks first");
    assert!(fixture.duly.jobs().get(id).await.expect("asked").is_some());
    assert_eq!(post(&fixture.url, &format!("/jobs/{id}/remove"), "confirm=yes").await.status, 303);
    assert!(fixture.duly.jobs().get(id).await.expect("asked").is_none());
    assert_eq!(post(&fixture.url, &format!("/jobs/{id}/frobnicate"), "").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentences_have_times_of_the_readers_zone() {
    let fixture = fixture::full().await;
    let scheduled = fixture.duly.jobs().list(Filter::all().state(State::Scheduled).limit(1)).await.expect("listed");
    let line = format!("GET /jobs/{} HTTP/1.1", scheduled.jobs[0].job.id);
    let page = send(&fixture.url, &line, "Cookie: duly_zone=Asia/Tokyo\r\n", "").await.body;
    let why = page.split("id=\"why\"").nth(1).and_then(|rest| rest.split("</p>").next()).expect("a reason");
    assert!(why.contains("due") && why.contains(" JST") && !why.contains('Z'), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_offer_the_actions_of_their_state() {
    let fixture = fixture::full().await;
    fixture::work(&fixture);
    until("a job runs", async || get(&fixture.url, "/jobs?q=state:running").await.body.contains("video.encode")).await;
    for (state, offered) in [
        ("", vec!["retry", "cancel", "remove"]),
        ("state:scheduled", vec!["retry", "cancel", "remove"]),
        ("state:ready", vec!["cancel", "remove"]),
        ("state:running", vec!["cancel"]),
        ("state:done", vec!["retry", "remove"]),
        ("state:dead", vec!["retry", "remove"]),
    ] {
        let page = get(&fixture.url, &format!("/jobs?q={state}")).await.body;
        let has = |action: &&str| page.contains(&format!("name=\"do\" value=\"{action}\""));
        let shown: Vec<&str> = ["retry", "cancel", "remove"].into_iter().filter(has).collect();
        assert_eq!(shown, offered, "{state}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_node_is_marked() {
    let fixture = fixture::empty().await;
    fixture::work(&fixture);
    let works =
        async || fixture.duly.nodes().list().await.expect("listed").into_iter().find(|node| !node.queues.is_empty());
    until("a node works", async || works().await.is_some()).await;
    assert!(get(&fixture.url, "/nodes").await.body.contains("0 of 18 slots"));
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
    let count = fixture.duly.jobs().count(&filter).await.expect("counted").matching;
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
    assert_eq!(fixture.duly.jobs().count(&filter).await.expect("counted").matching, count, "none is gone");
    let done = post(
        &fixture.url,
        "/jobs/actions",
        &format!("do=remove-all&q=state:dead+kind:invoice.charge&confirm={count}&typed={count}"),
    )
    .await;
    assert_eq!(done.header("location"), Some("/jobs"));
    assert!(done.head.contains(&format!("duly_flash=did=removed&n={count};")), "{}", done.head);
    assert_eq!(fixture.duly.jobs().count(&filter).await.expect("counted").matching, 0);
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
    assert_eq!(response.header("location"), Some("/duly/queues/mail"));
    assert!(response.header("set-cookie").is_some_and(|set| set.contains("; Path=/duly;")));
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
    assert_eq!(response.header("location"), Some("/queues/mail"));
    let look = get(&fixture.url, "/settings/appearance?theme=dark&zone=Asia/Tokyo&next=https://evil.example").await;
    assert_eq!(look.header("location"), Some("/settings"));
    for odd in ["/%09/evil.example/x", "/%00x", "/%0D%0A/evil.example"] {
        let look = get(&fixture.url, &format!("/settings/appearance?next={odd}")).await;
        assert_eq!((look.status, look.header("location")), (303, Some("/settings")), "{odd}");
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

/// A sorted list merges the queues, and reads only the first jobs of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "pushes a hundred thousand jobs"]
async fn a_sorted_page_reads_a_thousand_queues() {
    let dir = tempfile::tempdir().expect("a directory");
    let fixture = fixture::at(&dir.path().join("duly.db").display().to_string()).await;
    for part in 0..10u64 {
        let job = |no: u64| {
            let delay = Duration::from_secs(60 + (no * 7_919 + part) % 86_400);
            duly::Push::new("noop", "{}").queue(format!("q{}", no % 1_000)).after(delay)
        };
        fixture.duly.push_all((0..10_000).map(job)).await.expect("pushed");
    }
    let filter = Filter::all().order(duly::job::JobOrder::Due);
    let mut times = Vec::new();
    for _ in 0..20 {
        let asked = std::time::Instant::now();
        let page = fixture.duly.jobs().list(filter.clone()).await.expect("listed");
        times.push(asked.elapsed());
        assert!(page.jobs.len() == 50 && page.jobs.is_sorted_by_key(|record| record.due));
    }
    times.sort();
    println!("a sorted page of 1,000 queues: median {:?} (the goal is 50 ms), worst of 20 {:?}", times[10], times[19]);
    // Far beyond the goal of 50 ms, which the printed figure shows on a quiet machine.
    assert!(times[10] < Duration::from_secs(2));
}
