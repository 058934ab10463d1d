//! `duly nodes` and `duly jobs cancel`: requests to running workers.

use crate::call::{alive, worker};
use crate::sandbox::{Sandbox, is_running, until};

#[test]
fn quiet_worker_claims_nothing() {
    let sandbox = Sandbox::new();
    let running = sandbox.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    let _worker = worker(&sandbox, None);
    until("the job runs", || sandbox.path("runs").exists());
    let node = &alive(&sandbox)[0];
    sandbox.run(&["nodes", "quiet", &node[..8]]).ok();
    let later = sandbox.push(&["--", "true"]);
    // The worker's run loop replies itself, so it has run since the push.
    let jobs = sandbox.run(&["call", "duly.jobs", "--node", node]).ok().out;
    assert!(jobs.contains(&running) && !jobs.contains(&later), "{jobs}");
    assert_eq!(sandbox.job(&later)["state"], "ready");
    assert_eq!(sandbox.job(&running)["state"], "running", "running jobs continue");
    until("the list shows it", || sandbox.run(&["nodes", "ls"]).ok().out.contains("quiet"));
    let why = sandbox.run(&["jobs", "why", &later]).ok().out;
    assert!(why.contains("quiet or stopping"), "{why}");
    let reply = sandbox.run(&["nodes", "quiet", node, "--off", "--json"]).ok().json();
    assert_eq!((&reply["node"], &reply["workers"]), (&node.as_str().into(), &1.into()));
    sandbox.until_state(&later, "done");
}

#[test]
fn stop_ends_a_worker_gracefully() {
    let sandbox = Sandbox::new();
    let (first, second) = (worker(&sandbox, None), worker(&sandbox, None));
    let nodes = alive(&sandbox);
    sandbox.run(&["nodes", "stop", &nodes[0][24..]]).ok();
    first.wait().ok();
    sandbox.run(&["nodes", "stop", "--all"]).failed(2, "--yes");
    sandbox.run(&["nodes", "stop", "--all", "--yes"]).ok();
    second.wait().ok();
    sandbox.run(&["nodes", "stop", "--all", "--yes"]).failed(3, "no node runs a worker");
    sandbox.run(&["nodes", "stop", &nodes[0]]).failed(3, "does not exist");
    sandbox.run(&["nodes", "stop"]).failed(2, "NODE|--all");
    sandbox.run(&["nodes", "stop", &nodes[0], "--all"]).failed(2, "cannot be used with");
}

#[test]
fn node_lists_its_running_jobs() {
    let sandbox = Sandbox::new();
    let _worker = worker(&sandbox, None);
    let node = &alive(&sandbox)[0];
    assert_eq!(sandbox.run(&["nodes", "jobs", node, "--json"]).ok().json(), serde_json::json!([]));
    let id = sandbox.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    until("the job runs", || sandbox.path("runs").exists());
    let jobs = sandbox.run(&["nodes", "jobs", node, "--json"]).ok().json();
    assert_eq!((&jobs[0]["id"], &jobs[0]["kind"]), (&id.as_str().into(), &"command".into()));
    let table = sandbox.run(&["nodes", "jobs", &node[24..]]).ok().out;
    assert!(table.starts_with("ID ") && table.contains(&id), "{table}");
}

#[test]
fn id_prefix_must_match_one_node() {
    let sandbox = Sandbox::new();
    let _both = [worker(&sandbox, None), worker(&sandbox, None)];
    // Ids begin with the creation time, so both nodes share a prefix.
    sandbox.run(&["nodes", "jobs", &alive(&sandbox)[0][..4]]).failed(2, "matches 2 nodes");
}

#[test]
fn running_command_is_cancelled() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "sleep 60 & echo $! > child; wait"]);
    let waiting = sandbox.push(&["--in", "1h", "mail"]);
    let _worker = worker(&sandbox, None);
    until("the job runs", || sandbox.read("child").ends_with('\n'));
    let ran = sandbox.run(&["jobs", "cancel", &id]).ok();
    assert!(ran.err.contains("cancelling; it still runs on node "), "{ran:?}");
    sandbox.until_state(&id, "cancelled");
    until("what it started is gone", || !is_running(&sandbox.read("child")));
    assert!(sandbox.run(&["jobs", "cancel", &id]).ok().err.contains("cancelled"));
    assert!(sandbox.run(&["jobs", "cancel", &waiting]).ok().err.contains("cancelled"));
    assert_eq!(sandbox.job(&waiting)["state"], "cancelled");
    sandbox.run(&["jobs", "wait", &waiting]).failed(1, "was cancelled");
    sandbox.run(&["jobs", "cancel", "0192f7a1-0000-7000-8000-000000000000"]).failed(3, " not found");
    sandbox.run(&["jobs", "cancel"]).failed(2, "no job is selected");
}
