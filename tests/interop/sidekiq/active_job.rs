//! Jobs of ActiveJob: their kind is the wrapped class, in both directions.

use duly::{Duly, Filter, Push};
use serde_json::json;

use super::sandbox::*;

/// The queue for which the Ruby program loads ActiveJob.
const QUEUE: &str = "active";

/// Pushes jobs by ActiveJob; returns nothing before they are in Redis.
fn perform_later(sandbox: &Sandbox, code: &str) {
    sandbox.ruby(&format!("load_active_job; {code}; nil"));
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_takes_only_its_wrapped_classes() {
    let sandbox = Sandbox::new().await;
    perform_later(&sandbox, "3.times { |n| Welcome.perform_later(n, 'a'); Goodbye.perform_later(n) }");
    // As Sidekiq 8 writes it.
    let newer = r#"{"retry":true,"queue":"active","class":"Sidekiq::ActiveJob::Wrapper","wrapped":"Welcome","args":[{"job_class":"Welcome","arguments":[9]}],"jid":"0123456789abcdef01234567","created_at":1794765574492}"#;
    // As Sidekiq 8.1 does.
    let newest = r#"{"retry":true,"queue":"active","wrapped":"Welcome","args":[{"job_class":"Welcome","arguments":[8]}],"class":"Sidekiq::ActiveJob::Wrapper","jid":"0123456789abcdef01234568","created_at":1794765574492}"#;
    for entry in [newer, newest] {
        sandbox.redis(&["LPUSH", "queue:active", &entry.replace("\"Welcome\"", "\"Goodbye\"")]);
        sandbox.redis(&["LPUSH", "queue:active", entry]);
    }
    let welcome: Filter = "kind:Welcome".parse().expect("a filter");
    assert_eq!(sandbox.duly.jobs().list(welcome).await.expect("lists").jobs.len(), 5);
    let running = sandbox.run(sandbox.worker(&["Welcome"]).queue(QUEUE, 5));
    let ran = sandbox.until_ran(5).await;
    assert_eq!(running.end().await.acked, 5);
    assert!(ran.iter().all(|(_, args)| args[0]["job_class"] == "Welcome"), "{ran:?}");
    assert!(ran.iter().any(|(_, args)| args[0]["arguments"] == json!([2, "a"])), "{ran:?}");
    assert_eq!(sandbox.redis(&["LLEN", "queue:active"]), ["5"], "the other class is left for Ruby");
}

#[tokio::test(flavor = "multi_thread")]
async fn ruby_runs_active_jobs_pushed_by_duly_and_moved_back() {
    let sandbox = Sandbox::new().await;
    perform_later(&sandbox, "Goodbye.perform_later('from ruby')");
    let away = Duly::open(":memory:").await.expect("opens");
    sandbox.duly.transfer_to(&away).run().await.expect("moves away");
    let moved = away.jobs().list(Filter::all()).await.expect("lists").jobs;
    assert_eq!(moved.iter().map(|record| record.job.kind.as_str()).collect::<Vec<_>>(), ["Goodbye"]);
    away.transfer_to(&sandbox.duly).run().await.expect("moves back");
    let args = r#"[{"job_class":"Welcome","arguments":[7,"from duly"]}]"#;
    sandbox.duly.push(Push::new("Welcome", args).queue(QUEUE)).await.expect("pushes");
    let _sidekiq = sandbox.sidekiq(&[QUEUE]);
    let ran = sandbox.until_ran(2).await;
    for expected in [json!(["Goodbye", QUEUE, "from ruby"]), json!(["Welcome", QUEUE, 7, "from duly"])] {
        assert!(ran.contains(&("ruby".to_owned(), expected.clone())), "{expected} in {ran:?}");
    }
}
