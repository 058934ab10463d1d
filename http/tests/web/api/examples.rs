//! The example workers in other languages: jobs, results, several at once, cancel, a restarted server, SIGTERM.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use test_support::until;

use crate::api::support::Site;

/// Longer than the running job needs after SIGTERM, and shorter than a claim that waits.
const STOP_MAX: Duration = Duration::from_secs(15);

/// An example worker. It is killed even if the test fails.
struct ExampleWorker(Child);

impl Drop for ExampleWorker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ExampleWorker {
    fn start(program: &str, script: &str, site: &Site) -> Self {
        let path = format!("{}/examples/{script}", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(program);
        command.arg(path).env("DULY_URL", format!("http://{}", site.address)).stdout(Stdio::null());
        // Python would write compiled files into the source directory.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        ExampleWorker(command.spawn().unwrap_or_else(|e| panic!("{program}: {e}; install it")))
    }

    fn has_exited(&mut self) -> bool {
        self.0.try_wait().expect("is a child").is_some()
    }
}

async fn push(site: &Site, job: Value) -> String {
    let pushed = site.post("/api/v1/jobs", job).await.json();
    pushed["id"].as_str().unwrap_or_else(|| panic!("{pushed}")).to_owned()
}

async fn until_state(site: &Site, id: &str, state: &str) -> Value {
    let path = format!("/api/v1/jobs/{id}");
    until(&format!("the job is {state}"), async || site.get(&path).await.json()["state"] == state).await;
    site.get(&path).await.json()
}

/// A job that runs for this long.
fn count(seconds: u32) -> Value {
    json!({"kind": "count", "args": {"seconds": seconds}, "keep_ms": 600_000})
}

async fn worker_does_what_it_promises(program: &str, script: &str) {
    let mut site = Site::in_memory().await;
    let mut worker = ExampleWorker::start(program, script, &site);

    let greeted = push(&site, json!({"kind": "greet", "args": {"name": "ada"}})).await;
    let broken = push(&site, json!({"kind": "greet", "args": {}, "max_attempts": 1})).await;
    assert_eq!(until_state(&site, &greeted, "done").await["result"], json!({"greeted": "ada"}));
    let dead = until_state(&site, &broken, "dead").await;
    assert!(dead["failures"][0]["error"].as_str().is_some_and(|error| error.contains("name")), "{dead}");

    let (first, second) = (push(&site, count(600)).await, push(&site, count(600)).await);
    for id in [&first, &second] {
        until_state(&site, id, "running").await;
    }
    site.post(&format!("/api/v1/jobs/{first}/cancel"), json!({})).await;
    until_state(&site, &first, "cancelled").await;

    // The server releases the job, and the worker joins again.
    site.restart().await;
    let again = until_state(&site, &second, "running").await;
    assert_eq!(again["crashes"], 0, "{again}");
    site.post(&format!("/api/v1/jobs/{second}/cancel"), json!({})).await;
    until_state(&site, &second, "cancelled").await;

    let last = push(&site, count(2)).await;
    until_state(&site, &last, "running").await;
    let stopped = Instant::now();
    kill_process(Pid::from_child(&worker.0), Signal::TERM).expect("it runs");
    until("the worker exits", async || worker.has_exited()).await;
    assert!(stopped.elapsed() < STOP_MAX, "it waited for its claim");
    assert_eq!(until_state(&site, &last, "done").await["attempts"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_worker_does_what_it_promises() {
    worker_does_what_it_promises("python3", "worker.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn javascript_worker_does_what_it_promises() {
    worker_does_what_it_promises("node", "worker.mjs").await;
}

/// Follows the program of the guide, which inserts an order and its job in one transaction.
const ROLL_BACK: &str = r#"
try:
    with conn:
        conn.execute("INSERT INTO duly_inbox (kind) VALUES ('never')")
        raise RuntimeError("rolled back")
except RuntimeError:
    pass
conn.close()
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_pushes_in_its_own_transaction() {
    let dir = test_support::temp_dir();
    let file = dir.path().join("shop.db");
    let duly = duly::Duly::open_file(&file).await.expect("opens");
    let conn = duly::rusqlite::Connection::open(&file).expect("opens");
    conn.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)").expect("writes");
    let (_, program) = include_str!("../../../../docs/guide/jobs.md").split_once("```python\n").expect("a program");
    let program = program.split_once("```").expect("its end").0.replace("timeout=5", "timeout=60") + ROLL_BACK;
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let stop = duly::CancellationToken::new();
    let worker = duly.worker().queue("post", 1).on_kind("mail", move |ctx: duly::Ctx| {
        let _ = sender.send(ctx.job().args.clone());
        async {}
    });
    let run = tokio::spawn(worker.run_until(stop.clone()));
    let mut command = Command::new("python3");
    command.args(["-c", &program]).current_dir(dir.path());
    let status = tokio::task::block_in_place(|| command.status()).expect("python3 is installed");
    assert!(status.success(), "{status}");
    let args = test_support::in_time(received.recv()).await.expect("the job runs");
    assert_eq!(args, r#"{"to": "ada@example.com"}"#);
    stop.cancel();
    run.await.expect("no panic").expect("ends well");
    let rows: i64 = conn.query_row("SELECT count(*) FROM duly_inbox", [], |row| row.get(0)).expect("counts");
    assert_eq!(rows, 0, "the row that was rolled back is not there");
}
