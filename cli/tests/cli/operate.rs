//! Looking after many jobs: filters, dry runs, groups of dead ones, limits, what has happened.

use crate::bed::Bed;

#[test]
fn a_filter_says_which_jobs() {
    let bed = Bed::new();
    bed.push(&["mail", r#"{"to":"ada lovelace"}"#]);
    bed.push(&["mail", r#"{"to":"bob"}"#, "--in", "1h"]);
    let found = |words: &[&str]| {
        let told = bed.run(&[&["jobs", "ls", "--json"], words].concat()).ok().json();
        told["jobs"].as_array().expect("a list").len()
    };
    assert_eq!(found(&["kind:mail"]), 2);
    assert_eq!(found(&["state:ready", "args.to:ada lovelace"]), 1);
    assert_eq!(found(&["state:ready args.to:bob"]), 0);
    assert_eq!(found(&["--state", "scheduled", "bob"]), 1);
    let wrong = bed.run(&["jobs", "ls", "stat:dead"]);
    assert!(wrong.err.contains("stat:dead") && wrong.err.contains('^'), "{}", wrong.err);
    wrong.failed(2, "is nothing to look for");
}

#[test]
fn a_change_to_many_counts_and_asks() {
    let bed = Bed::new();
    for _ in 0..3 {
        bed.push(&["mail", "{}", "--in", "1h"]);
    }
    bed.run(&["jobs", "rm"]).failed(2, "which jobs?");
    // As of a variable that is not set.
    for nothing in ["", "  "] {
        bed.run(&["jobs", "rm", nothing, "--yes"]).failed(2, "say --all");
        bed.run(&["dead", "rm", nothing, "--yes"]).failed(2, "say --all");
    }
    let id = bed.push(&["other", "{}"]);
    bed.run(&["jobs", "rm", &id, &id[..35], "--yes"]).failed(2, "is no id of a job");
    bed.run(&["jobs", "rm", &id, "kind:mail", "--yes"]).failed(2, "is no id of a job");
    bed.run(&["jobs", "rm", &id]).ok();
    bed.run(&["jobs", "rm", "kind:mail"]).failed(2, "--yes");
    let told = bed.run(&["jobs", "rm", "kind:mail", "--dry-run"]).ok().out;
    assert!(told.contains("3 jobs would be removed"), "{told}");
    let told = bed.run(&["jobs", "retry", "state:scheduled", "--yes", "--json"]).ok().json();
    assert_eq!((&told["matching"], &told["done"]), (&3.into(), &3.into()));
    bed.run(&["jobs", "rm", "--all", "--yes"]).ok();
    assert_eq!(bed.run(&["jobs", "ls", "--json"]).ok().json()["jobs"], serde_json::json!([]));
}

#[test]
fn dead_jobs_are_retried_by_group() {
    let bed = Bed::new();
    for _ in 0..2 {
        bed.push(&["--max-attempts", "1", "--", "sh", "-c", "echo no user 7 >&2; exit 100"]);
    }
    bed.run(&["work", "--until-empty"]).ok();
    let groups = bed.run(&["dead", "ls", "--json"]).ok().json();
    assert_eq!((&groups[0]["kind"], &groups[0]["count"]), (&"command".into(), &2.into()));
    let group = groups[0]["id"].as_str().expect("a group").to_owned();
    let told = bed.run(&["dead", "retry", &group, "--dry-run"]).ok().out;
    assert!(told.contains("2 jobs would be retried"), "{told}");
    bed.run(&["dead", "retry", &group, "--yes"]).ok();
    assert_eq!(bed.run(&["dead", "ls", "--json"]).ok().json(), serde_json::json!([]));
    let stats = bed.run(&["stats", "--json"]).ok().json();
    assert_eq!((&stats[0]["pushed"], &stats[0]["buried"]), (&2.into(), &2.into()));
}

#[test]
fn limits_and_edits() {
    let bed = Bed::new();
    bed.run(&["queues", "capacity", "default", "--jobs", "1"]).ok();
    let id = bed.push(&["mail", "{}"]);
    bed.run(&["push", "mail", "{}"]).failed(4, "is full");
    let table = bed.run(&["queues", "ls"]).ok().out;
    assert!(table.contains("1 job\n") || table.contains("1 job "), "{table}");
    bed.run(&["jobs", "edit", &id, "--args", "[7]", "--priority", "high"]).ok();
    let job = bed.job(&id);
    assert_eq!((&job["args"], &job["priority"]), (&serde_json::json!([7]), &"high".into()));
    bed.run(&["jobs", "edit", &id]).failed(2, "--args <JSON>|--priority <PRIORITY>");
    bed.run(&["queues", "capacity", "default"]).failed(2, "--jobs <N>|--bytes <N>|--none");
    bed.run(&["queues", "capacity", "default", "--jobs", "1", "--none"]).failed(2, "cannot be used with");
    bed.run(&["queues", "capacity", "default", "--none"]).ok();
    bed.run(&["queues", "clear", "default", "--yes"]).ok();
    assert_eq!(bed.run(&["queues", "ls", "--json"]).ok().json()[0]["ready"], 0);
}

#[test]
fn a_queue_that_nobody_has_pushed_to_is_told() {
    let bed = Bed::new();
    bed.push(&["mail"]);
    let told = |args: &[&str], words: &str| {
        let ran = bed.run(args).ok();
        assert!(ran.err.contains(words), "{words:?} is not in {ran:?}");
    };
    let never = "(nothing was ever pushed to it)";
    told(&["queues", "pause", "defualt"], &format!("queue defualt is paused {never}"));
    told(&["queues", "resume", "defualt"], "is open (there is no job in it)");
    told(&["queues", "resume", "other"], never);
    told(&["queues", "capacity", "third", "--jobs", "7"], never);
    told(&["queues", "clear", "fourth", "--yes"], never);
    let known = bed.run(&["queues", "pause", "default"]).ok().err;
    assert!(known.ends_with("queue default is paused\n"), "{known}");
    bed.run(&["dead", "retry", "0123456789abcdef", "--yes"]).failed(3, "no such group");
    bed.run(&["dead", "rm", "0123456789abcdef", "--yes"]).failed(3, "no such group");
}

#[test]
fn filters_that_a_shell_or_an_option_gets_in_the_way_of() {
    let bed = Bed::new();
    bed.push(&["mail"]);
    bed.run(&["jobs", "ls", "-state:done"]).failed(2, "goes behind --");
    bed.run(&["jobs", "rm", "-queue:a", "--yes"]).failed(2, "goes behind --");
    let found = |args: &[&str]| bed.run(args).ok().json()["jobs"].as_array().expect("a list").len();
    assert_eq!(found(&["jobs", "ls", "--json", "--", "-state:done"]), 1);
    assert_eq!(found(&["jobs", "ls", "--json", "--", "-state:ready"]), 0);
    assert_eq!(found(&["jobs", "ls", "--json", "state:ready", "--state", "ready"]), 1);
    bed.run(&["jobs", "ls", "state:dead", "--state", "done"]).failed(2, "state is said twice");
    bed.run(&["jobs", "ls", "queue:a", "--queue", "b"]).failed(2, "queue is said twice");
    bed.run(&["jobs", "ls", "stat:dead"]).failed(2, "due<TIME");
    bed.run(&["jobs", "ls", "--nonsense"]).failed(2, "--nonsense");
}
