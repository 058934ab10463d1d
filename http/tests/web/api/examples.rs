//! The example workers in other languages run jobs.

use std::process::{Child, Command, Stdio};

use serde_json::json;
use test_support::until;

use crate::api::support::Site;

/// Kills the worker even if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn runs_jobs(program: &str, script: &str) {
    let site = Site::in_memory().await;
    let path = format!("{}/examples/{script}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(program);
    command.arg(path).env("DULY_URL", format!("http://{}", site.address)).stdout(Stdio::null());
    let _worker = Running(command.spawn().unwrap_or_else(|e| panic!("{program}: {e}; install it")));
    let pushed = site.post("/api/v1/jobs", json!({"kind": "greet", "args": {"name": "ada"}})).await.json();
    let broken = site.post("/api/v1/jobs", json!({"kind": "greet", "args": {}, "max_attempts": 1})).await.json();
    let ended = async |id: &serde_json::Value| {
        let path = format!("/api/v1/jobs/{}", id.as_str().expect("an id"));
        let state = async || site.get(&path).await.json()["state"].clone();
        until("the job ends", async || ["done", "dead"].map(serde_json::Value::from).contains(&state().await)).await;
        site.get(&path).await.json()
    };
    let done = ended(&pushed["id"]).await;
    assert_eq!(done["state"], "done", "{done}");
    let dead = ended(&broken["id"]).await;
    assert_eq!(dead["state"], "dead", "{dead}");
    assert!(dead["failures"][0]["error"].as_str().is_some_and(|error| error.contains("name")), "{dead}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_worker_runs_jobs() {
    runs_jobs("python3", "worker.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn javascript_worker_runs_jobs() {
    runs_jobs("node", "worker.mjs").await;
}
