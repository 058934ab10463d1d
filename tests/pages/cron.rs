//! Rules changed from a page: what the form does not show stays, and nobody's change is saved over.

use std::time::Duration;

use duly::{CronRule, Priority, Push};

use crate::bed::{self, Bed};
use crate::client::{Answer, get, post};

/// The value of a field of the form, as it is sent.
fn field(page: &str, name: &str) -> String {
    let at = page.find(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("no field {name}: {page}"));
    let value = page[at..].split('"').nth(3).expect("a value").replace("&quot;", "\"").replace("&#34;", "\"");
    value.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Fills in the form of a change as it was opened, with another pattern and name.
async fn save(bed: &Bed, opened: &str, name: &str, pattern: &str) -> Answer {
    let (of, seen) = (field(opened, "of"), field(opened, "seen"));
    let rest = "tz=UTC&kind=report&queue=default&args=%7B%7D&missed=once&overlap=allow";
    post(&bed.url, "/cron", &format!("name={name}&pattern={pattern}&of={of}&seen={seen}&{rest}")).await
}

/// A store with one rule that says more than the form shows.
async fn with_a_rule() -> Bed {
    let bed = bed::empty().await;
    let mut job = Push::new("report", "{}").priority(Priority::High).max_attempts(3).timeout(Duration::from_secs(5));
    job = job.tags(["night"]).keep(Duration::from_secs(60));
    bed.duly.cron("report", "0 3 * * *").push(job).await.expect("kept");
    bed
}

async fn rule(bed: &Bed, name: &str) -> CronRule {
    bed.duly.cron_get(name).await.expect("asked").expect("is there").rule
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_a_rule_keeps_what_its_form_does_not_show() {
    let bed = with_a_rule().await;
    let before = rule(&bed, "report").await;
    let opened = get(&bed.url, "/cron/new?like=report").await.body;
    assert_eq!(save(&bed, &opened, "report", "0+4+*+*+*").await.status, 303);
    let mut wanted = before.clone();
    wanted.pattern = "0 4 * * *".to_owned();
    assert_eq!(rule(&bed, "report").await, wanted);
    let opened = get(&bed.url, "/cron/new?like=report").await.body;
    assert_eq!(save(&bed, &opened, "copy", "0+4+*+*+*").await.status, 303, "under another name it is a copy");
    assert_eq!(rule(&bed, "copy").await.tags, before.tags);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_was_changed_meanwhile_is_not_saved_over() {
    let bed = with_a_rule().await;
    let opened = get(&bed.url, "/cron/new?like=report").await.body;
    let (of, seen) = (field(&opened, "of"), field(&opened, "seen"));
    let runs = get(&bed.url, &format!("/cron/new?name=report&pattern=0+5+*+*+*&of={of}&seen={seen}")).await.body;
    assert_eq!(field(&runs, "seen"), seen, "a look at the next runs is no new look at the rule");
    assert_eq!(save(&bed, &opened, "report", "0+4+*+*+*").await.status, 303);
    let late = save(&bed, &opened, "report", "0+5+*+*+*").await;
    assert!(late.status == 409 && late.body.contains("nothing was saved"), "{}: {}", late.status, late.body);
    assert_eq!(rule(&bed, "report").await.pattern, "0 4 * * *");
    bed.duly.remove_cron("report").await.expect("removed");
    assert_eq!(save(&bed, &late.body, "report", "0+5+*+*+*").await.status, 409, "nor brought back");
}
