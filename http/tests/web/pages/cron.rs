//! Editing rules: the form shows every setting, concurrent changes are not overwritten, past runs have their outcome.

use std::time::Duration;

use duly::cron::CronRule;
use duly::{Ctx, Priority, Push};

use crate::fixture::{self, Fixture};
use crate::pages::client::{Response, get, post};

/// Returns the value of a form field, URL-encoded.
fn field(page: &str, name: &str) -> String {
    let at = page.find(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("no field {name}: {page}"));
    let value = page[at..].split('"').nth(3).expect("a value").replace("&quot;", "\"").replace("&#34;", "\"");
    value.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Submits the form as it was opened, with another pattern and name.
async fn save(fixture: &Fixture, opened: &str, name: &str, pattern: &str) -> Response {
    let (original, etag) = (field(opened, "original"), field(opened, "etag"));
    let shown = ["max_attempts", "timeout", "keep", "tags"].map(|name| format!("{name}={}", field(opened, name)));
    assert!(opened.contains("<option value=\"high\" selected>"), "the priority");
    let rest = "tz=UTC&kind=report&queue=default&args=%7B%7D&missed=once&overlap=allow&priority=high";
    let rest = format!("{rest}&{}", shown.join("&"));
    post(&fixture.url, "/cron", &format!("name={name}&pattern={pattern}&original={original}&etag={etag}&{rest}")).await
}

/// Returns a store with one rule that sets everything.
async fn with_a_rule() -> Fixture {
    let fixture = fixture::empty().await;
    let mut job = Push::new("report", "{}").priority(Priority::High).max_attempts(3).timeout(Duration::from_secs(5));
    job = job.tags(["night"]).keep(Duration::from_secs(60));
    fixture.duly.cron("report", "0 3 * * *").push(job).await.expect("kept");
    fixture
}

async fn rule(fixture: &Fixture, name: &str) -> CronRule {
    fixture.duly.crons().get(name).await.expect("asked").expect("is there").rule
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_form_shows_every_setting() {
    let fixture = with_a_rule().await;
    let before = rule(&fixture, "report").await;
    let opened = get(&fixture.url, "/cron/new?like=report").await.body;
    assert_eq!(save(&fixture, &opened, "report", "0+4+*+*+*").await.status, 303);
    let mut wanted = before.clone();
    wanted.pattern = "0 4 * * *".to_owned();
    assert_eq!(rule(&fixture, "report").await, wanted);
    let opened = get(&fixture.url, "/cron/new?like=report").await.body;
    assert_eq!(save(&fixture, &opened, "copy", "0+4+*+*+*").await.status, 303, "under another name it is a copy");
    assert_eq!(rule(&fixture, "copy").await.tags, before.tags);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_runs_have_their_outcome() {
    let fixture = fixture::empty().await;
    fixture.duly.cron("hourly", "0 * * * *").push(Push::new("report", "{}")).await.expect("kept");
    assert!(get(&fixture.url, "/cron/rule/hourly").await.body.contains("None yet."));
    for error in ["", "no paper"] {
        fixture.clock.advance(Duration::from_secs(3_600));
        let report =
            move |_: Ctx| async move { if error.is_empty() { Ok(()) } else { Err(std::io::Error::other(error)) } };
        fixture.duly.worker().queue("default", 1).on_kind("report", report).drain().await.expect("drained");
    }
    let page = get(&fixture.url, "/cron/rule/hourly").await.body;
    let runs = page.split("id=\"past-runs\"").nth(1).and_then(|rest| rest.split("</section>").next()).expect("runs");
    let texts = ["state scheduled", "no paper", "state done", "no job:"];
    let places = texts.map(|text| runs.find(text).unwrap_or_else(|| panic!("{text} is not in {runs}")));
    assert!(places.is_sorted(), "the newest run comes first: {runs}");
    assert_eq!(runs.matches("<li>").count(), 10, "{runs}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_rule_change_is_not_overwritten() {
    let fixture = with_a_rule().await;
    let opened = get(&fixture.url, "/cron/new?like=report").await.body;
    let (original, etag) = (field(&opened, "original"), field(&opened, "etag"));
    let runs = get(&fixture.url, &format!("/cron/new?name=report&pattern=0+5+*+*+*&original={original}&etag={etag}"))
        .await
        .body;
    assert_eq!(field(&runs, "etag"), etag, "a look at the next runs is no new look at the rule");
    assert_eq!(save(&fixture, &opened, "report", "0+4+*+*+*").await.status, 303);
    let late = save(&fixture, &opened, "report", "0+5+*+*+*").await;
    assert!(late.status == 409 && late.body.contains("nothing was saved"), "{}: {}", late.status, late.body);
    assert_eq!(rule(&fixture, "report").await.pattern, "0 4 * * *");
    fixture.duly.crons().remove("report").await.expect("removed");
    assert_eq!(save(&fixture, &late.body, "report", "0+5+*+*+*").await.status, 409, "nor brought back");
}
