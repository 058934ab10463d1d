//! Managing many jobs: filters, dry runs, groups of dead jobs, capacity, statistics.

use crate::sandbox::{RunOutput, Sandbox};

#[test]
fn filter_selects_jobs() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail", r#"{"to":"ada lovelace"}"#]);
    sandbox.push(&["mail", r#"{"to":"bob"}"#, "--in", "1h"]);
    let count = |words: &[&str]| {
        let page = sandbox.run(&[&["jobs", "ls", "--json"], words].concat()).ok().json();
        page["jobs"].as_array().expect("a list").len()
    };
    assert_eq!(count(&["kind:mail"]), 2);
    assert_eq!(count(&["state:ready", "args.to:ada lovelace"]), 1);
    assert_eq!(count(&["state:ready args.to:bob"]), 0);
    assert_eq!(count(&["--state", "scheduled", "bob"]), 1);
    let invalid = sandbox.run(&["jobs", "ls", "stat:dead"]);
    assert!(invalid.err.contains("stat:dead") && invalid.err.contains('^'), "{}", invalid.err);
    invalid.failed(2, "unknown field");
}

#[test]
fn bulk_change_counts_and_asks_for_confirmation() {
    let sandbox = Sandbox::new();
    for _ in 0..3 {
        sandbox.push(&["mail", "{}", "--in", "1h"]);
    }
    sandbox.run(&["jobs", "rm"]).failed(2, "no job is selected");
    // As from an unset variable.
    for empty in ["", "  "] {
        sandbox.run(&["jobs", "rm", empty, "--yes"]).failed(2, "use --all");
        sandbox.run(&["dead", "rm", empty, "--yes"]).failed(2, "use --all");
    }
    let id = sandbox.push(&["other", "{}"]);
    let mistyped = format!("{}{}", &id[..17], &id[18..]);
    sandbox.run(&["jobs", "rm", &id, &mistyped, "--yes"]).failed(2, "is not the id of a job");
    sandbox.run(&["jobs", "rm", &id, "kind:mail", "--yes"]).failed(2, "looks like an id");
    sandbox.run(&["jobs", "rm", &id]).ok();
    sandbox.run(&["jobs", "rm", "kind:mail"]).failed(2, "--yes");
    let out = sandbox.run(&["jobs", "rm", "kind:mail", "--dry-run"]).ok().out;
    assert!(out.contains("3 jobs would be removed"), "{out}");
    let report = sandbox.run(&["jobs", "retry", "state:scheduled", "--yes", "--json"]).ok().json();
    assert_eq!((&report["matching"], &report["done"]), (&3.into(), &3.into()));
    sandbox.run(&["jobs", "rm", "--all", "--yes"]).ok();
    assert_eq!(sandbox.run(&["jobs", "ls", "--json"]).ok().json()["jobs"], serde_json::json!([]));
}

#[test]
fn lists_are_sorted_across_queues() {
    let sandbox = Sandbox::new();
    let push = |queue: &str, delay: &str| sandbox.push(&["mail", "--queue", queue, "--in", delay]);
    let ids = [push("a", "1h"), push("b", "2h"), push("a", "3h")];
    let listed = |options: &[&str]| {
        let args = [&["jobs", "ls", "--json", "--sort", "due"], options].concat();
        let jobs = sandbox.run(&args).ok().json()["jobs"].take();
        let jobs = jobs.as_array().expect("jobs").iter().map(|job| job["id"].as_str().expect("an id").to_owned());
        jobs.collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ids);
    assert_eq!(listed(&["--reverse", "--limit", "2"]), [ids[2].clone(), ids[1].clone()]);
    sandbox.run(&["jobs", "ls", "--reverse"]).failed(2, "--sort");
    sandbox.run(&["jobs", "ls", "state:ready", "--sort", "end"]).failed(2, "ready jobs have no end");
    sandbox.run(&["jobs", "ls", "--sort", "size"]).failed(2, "use end or due");
}

#[test]
fn job_is_named_by_part_of_its_id() {
    let sandbox = Sandbox::new();
    let ids = ["0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c11", "0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c12"];
    for id in ids {
        sandbox.push(&["mail", r#"{"to":"beef"}"#, "--id", id]);
    }
    for part in ["7c11", "C7C11", "…6f0c7c11", &ids[0][20..]] {
        assert_eq!(sandbox.job(part)["id"], ids[0], "{part}");
    }
    sandbox.run(&["jobs", "why", "7c11"]).ok();
    let ambiguous = sandbox.run(&["jobs", "get", "0198"]);
    let lists = |id: &str| ambiguous.err.contains(&format!("\n  {id}  mail  ready  in queue default\n"));
    assert!(ids.into_iter().all(lists), "{}", ambiguous.err);
    ambiguous.failed(4, "use more digits");
    // A text of args is not selected by accident.
    for verb in ["rm", "retry", "cancel"] {
        sandbox.run(&["jobs", verb, "beef", "--yes"]).failed(3, "check the digits");
        sandbox.run(&["jobs", verb, "state:ready beef", "--yes"]).failed(2, "looks like an id");
        sandbox.run(&["jobs", verb, "7c11", "beef", "--yes"]).failed(3, "check the digits");
    }
    assert_eq!(sandbox.run(&["jobs", "ls", "beef", "--json"]).ok().json()["jobs"].as_array().map(Vec::len), Some(2));
    sandbox.run(&["jobs", "rm", "7c11"]).failed(2, "Remove job mail …6f0c7c11 in queue default (ready)?");
    sandbox.run(&["jobs", "rm", "7c11", "--yes"]).ok();
    assert_eq!(sandbox.ids("duly.db"), [ids[1]]);
}

#[test]
fn empty_queue_is_removed() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail", "{}", "--queue", "mail"]);
    sandbox.run(&["queues", "rm", "mail"]).failed(4, "it has jobs; clear it first (`duly queues clear`)");
    sandbox.run(&["jobs", "rm", &id]).ok();
    sandbox.run(&["queues", "rm", "mail"]).ok();
    sandbox.run(&["queues", "rm", "mail"]).failed(3, "mail");
    assert_eq!(sandbox.run(&["queues", "ls", "--json"]).ok().json()["queues"], serde_json::json!([]));
}

#[test]
fn dead_jobs_are_retried_by_group() {
    let sandbox = Sandbox::new();
    for _ in 0..2 {
        sandbox.push(&["--max-attempts", "1", "--", "sh", "-c", "echo no user 7 >&2; exit 100"]);
    }
    sandbox.run(&["work", "--until-empty"]).ok();
    let groups = &sandbox.run(&["dead", "ls", "--json"]).ok().json()["groups"];
    assert_eq!((&groups[0]["kind"], &groups[0]["count"]), (&"command".into(), &2.into()));
    let dead = sandbox.run(&["jobs", "ls", "state:dead", "--sort", "end"]).ok().out;
    assert!(dead.contains("ERROR") && dead.lines().filter(|line| line.contains("no user 7")).count() == 2, "{dead}");
    let group = groups[0]["id"].as_str().expect("a group").to_owned();
    let out = sandbox.run(&["dead", "retry", &group, "--dry-run"]).ok().out;
    assert!(out.contains("2 jobs would be retried"), "{out}");
    sandbox.run(&["dead", "retry", &group, "--yes"]).ok();
    assert_eq!(sandbox.run(&["dead", "ls", "--json"]).ok().json()["groups"], serde_json::json!([]));
    let stats = &sandbox.run(&["stats", "--json"]).ok().json()["queues"];
    assert_eq!((&stats[0]["pushed"], &stats[0]["buried"]), (&2.into(), &2.into()));
}

#[test]
fn capacity_and_edits_are_applied() {
    let sandbox = Sandbox::new();
    sandbox.run(&["queues", "capacity", "default", "--jobs", "1"]).ok();
    let id = sandbox.push(&["mail", "{}"]);
    sandbox.run(&["push", "mail", "{}"]).failed(4, "is full");
    let table = sandbox.run(&["queues", "ls"]).ok().out;
    assert!(table.contains("1 job\n") || table.contains("1 job "), "{table}");
    sandbox.run(&["jobs", "edit", &id, "--args", "[7]", "--priority", "high"]).ok();
    let job = sandbox.job(&id);
    assert_eq!((&job["args"], &job["priority"]), (&serde_json::json!([7]), &"high".into()));
    sandbox.run(&["jobs", "edit", &id]).failed(2, "--args <JSON>|--priority <PRIORITY>");
    sandbox.run(&["queues", "capacity", "default"]).failed(2, "--jobs <N>|--bytes <SIZE>|--none");
    sandbox.run(&["queues", "capacity", "default", "--jobs", "1", "--none"]).failed(2, "cannot be used with");
    sandbox.run(&["queues", "capacity", "default", "--none"]).ok();
    sandbox.run(&["queues", "clear", "default", "--yes"]).ok();
    assert_eq!(sandbox.run(&["queues", "ls", "--json"]).ok().json()["queues"][0]["ready"], 0);
}

#[test]
fn queue_without_jobs_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    let prints = |args: &[&str], text: &str| {
        let ran = sandbox.run(args).ok();
        assert!(ran.err.contains(text), "{text:?} is not in {ran:?}");
    };
    let never = "(nothing was ever pushed to it)";
    prints(&["queues", "pause", "defualt"], &format!("queue defualt is paused {never}"));
    prints(&["queues", "resume", "defualt"], "is open (there is no job in it)");
    prints(&["queues", "resume", "other"], never);
    prints(&["queues", "capacity", "third", "--jobs", "7"], never);
    prints(&["queues", "clear", "fourth", "--yes"], never);
    let message = sandbox.run(&["queues", "pause", "default"]).ok().err;
    assert!(message.ends_with("queue default is paused\n"), "{message}");
    sandbox.run(&["dead", "retry", "0123456789abcdef", "--yes"]).failed(3, "no such group");
    sandbox.run(&["dead", "rm", "0123456789abcdef", "--yes"]).failed(3, "no such group");
}

#[test]
fn filter_that_looks_like_an_option_is_accepted() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    sandbox.run(&["jobs", "ls", "-state:done"]).failed(2, "put such a filter after --");
    sandbox.run(&["jobs", "rm", "-queue:a", "--yes"]).failed(2, "put such a filter after --");
    let count = |args: &[&str]| sandbox.run(args).ok().json()["jobs"].as_array().expect("a list").len();
    assert_eq!(count(&["jobs", "ls", "--json", "--", "-state:done"]), 1);
    assert_eq!(count(&["jobs", "ls", "--json", "--", "-state:ready"]), 0);
    assert_eq!(count(&["jobs", "ls", "--json", "state:ready", "--state", "ready"]), 1);
    sandbox.run(&["jobs", "ls", "state:dead", "--state", "done"]).failed(2, "state is given twice");
    sandbox.run(&["jobs", "ls", "queue:a", "--queue", "b"]).failed(2, "queue is given twice");
    sandbox.run(&["jobs", "ls", "stat:dead"]).failed(2, "due<TIME");
    sandbox.run(&["jobs", "ls", "--nonsense"]).failed(2, "--nonsense");
}

/// The browser tests of the dashboard compare its commands with this file.
#[test]
fn commands_copied_from_the_dashboard_work() {
    let sandbox = Sandbox::new();
    sandbox.push(&["copied.job", r#"{"text":"it's"}"#, "--queue=copied", "--id=01890a5d-ac96-774b-bcce-b302099a8057"]);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../http/tests/web/browser/copied.sh");
    let duly = env!("CARGO_BIN_EXE_duly");
    let shell = format!("set -eu; duly() {{ '{duly}' --yes \"$@\"; }}; . '{file}' > copied.log");
    let output = sandbox.command_after(&shell, &["jobs", "ls", "--json"]).output().expect("the shell starts");
    let jobs = RunOutput::from(output).ok().json()["jobs"].clone();
    let pushed = jobs.as_array().expect("a list").iter().find(|job| job["tags"] == serde_json::json!(["eu", "night"]));
    let pushed = pushed.unwrap_or_else(|| panic!("the pushed job is not in {jobs}"));
    let text = r#"it's "$HOME" `id` !! \ ; rm -rf * #"#;
    assert_eq!(pushed["args"]["text"], text);
    assert!(!jobs.to_string().contains("copied.job"), "{jobs}");
}
