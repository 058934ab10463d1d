//! `duly nodes` and `duly jobs cancel`: telling running workers what to do.

use crate::bed::{Bed, runs, until};
use crate::call::{alive, worker};

#[test]
fn quiet_claims_no_more() {
    let bed = Bed::new();
    let running = bed.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    let _worker = worker(&bed, None);
    until("the job runs", || bed.path("runs").exists());
    let node = &alive(&bed)[0];
    bed.run(&["nodes", "quiet", &node[..8]]).ok();
    let later = bed.push(&["--", "true"]);
    // The worker's loop answers this itself: it has turned since the push.
    let told = bed.run(&["call", "duly.jobs", "--node", node]).ok().out;
    assert!(told.contains(&running) && !told.contains(&later), "{told}");
    assert_eq!(bed.job(&later)["state"], "ready");
    assert_eq!(bed.job(&running)["state"], "running", "what runs goes on");
    until("everybody sees it", || bed.run(&["nodes", "ls"]).ok().out.contains("quiet"));
    let why = bed.run(&["jobs", "why", &later]).ok().out;
    assert!(why.contains("quiet or stopping"), "{why}");
    let told = bed.run(&["nodes", "quiet", node, "--off", "--json"]).ok().json();
    assert_eq!((&told["node"], &told["workers"]), (&node.as_str().into(), &1.into()));
    bed.until_state(&later, "done");
}

#[test]
fn stop_ends_a_worker_in_good_order() {
    let bed = Bed::new();
    let (first, second) = (worker(&bed, None), worker(&bed, None));
    let nodes = alive(&bed);
    bed.run(&["nodes", "stop", &nodes[0][24..]]).ok();
    first.wait().ok();
    bed.run(&["nodes", "stop", "--all"]).failed(2, "--yes");
    bed.run(&["nodes", "stop", "--all", "--yes"]).ok();
    second.wait().ok();
    bed.run(&["nodes", "stop", "--all", "--yes"]).failed(3, "no node runs a worker");
    bed.run(&["nodes", "stop", &nodes[0]]).failed(3, "is not there");
    bed.run(&["nodes", "stop"]).failed(2, "NODE|--all");
    bed.run(&["nodes", "stop", &nodes[0], "--all"]).failed(2, "cannot be used with");
}

#[test]
fn what_a_node_runs() {
    let bed = Bed::new();
    let _worker = worker(&bed, None);
    let node = &alive(&bed)[0];
    assert_eq!(bed.run(&["nodes", "jobs", node, "--json"]).ok().json(), serde_json::json!([]));
    let id = bed.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    until("the job runs", || bed.path("runs").exists());
    let jobs = bed.run(&["nodes", "jobs", node, "--json"]).ok().json();
    assert_eq!((&jobs[0]["id"], &jobs[0]["kind"]), (&id.as_str().into(), &"command".into()));
    let table = bed.run(&["nodes", "jobs", &node[24..]]).ok().out;
    assert!(table.starts_with("ID ") && table.contains(&id), "{table}");
}

#[test]
fn part_of_an_id_must_be_of_one_node() {
    let bed = Bed::new();
    let _both = [worker(&bed, None), worker(&bed, None)];
    // Ids begin with the time: nodes of the same hour begin alike.
    bed.run(&["nodes", "jobs", &alive(&bed)[0][..4]]).failed(2, "fits 2 nodes");
}

#[test]
fn cancelling_a_running_command() {
    let bed = Bed::new();
    let id = bed.push(&["--", "sh", "-c", "sleep 60 & echo $! > child; wait"]);
    let waiting = bed.push(&["--in", "1h", "mail"]);
    let _worker = worker(&bed, None);
    until("the job runs", || bed.read("child").ends_with('\n'));
    let ran = bed.run(&["jobs", "cancel", &id]).ok();
    assert!(ran.err.contains("cancelled"), "{ran:?}");
    bed.until_state(&id, "dead");
    assert_eq!(bed.job(&id)["failures"][0]["error"], "cancelled");
    until("what it started is gone", || !runs(&bed.read("child")));
    bed.run(&["jobs", "cancel", &id]).failed(4, "is dead");
    bed.run(&["jobs", "cancel", &waiting]).failed(4, "not running");
    bed.run(&["jobs", "cancel", "0192f7a1-0000-7000-8000-000000000000"]).failed(3, "no job");
    bed.run(&["jobs", "cancel"]).failed(2, "which jobs?");
}
