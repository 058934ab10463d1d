//! `duly push`: options, output and waiting.

use serde_json::json;

use crate::sandbox::Sandbox;

#[test]
fn push_prints_only_the_id() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["push", "mail", r#"{"to":"ada"}"#]).ok();
    assert_eq!(ran.out.len(), 37, "{ran:?}");
    assert_eq!(ran.err, "", "no messages without a terminal");
    let job = sandbox.job(&ran.id());
    assert_eq!((&job["kind"], &job["args"], &job["state"]), (&json!("mail"), &json!({"to": "ada"}), &json!("ready")));
}

#[test]
fn args_that_are_nested_too_deep_are_refused() {
    let sandbox = Sandbox::new();
    let deep = "[".repeat(65) + &"]".repeat(65);
    sandbox.run(&["push", "mail", &deep]).failed(2, "nested 65 levels deep");
    sandbox.run(&["cron", "add", "nightly", "0 3 * * *", "--kind", "mail", "--args", &deep]).failed(2, "nested 65");
    let id = sandbox.push(&["mail", "{}", "--in", "1h"]);
    sandbox.run(&["jobs", "edit", &id, "--args", &deep]).failed(2, "nested 65 levels deep");
}

#[test]
fn options_reach_the_job() {
    let sandbox = Sandbox::new();
    let id = "0192f7a1-0000-7000-8000-000000000001";
    let pushed = sandbox.push(&[
        "--in",
        "10m",
        "--queue",
        "q.1",
        "--priority",
        "high",
        "--unique",
        "k",
        "--id",
        id,
        "--max-attempts",
        "7",
        "--timeout",
        "90s",
        "--keep",
        "2d",
        "--tag",
        "a",
        "--tag",
        "b",
        "mail",
    ]);
    assert_eq!(pushed, id);
    let job = sandbox.job(id);
    let expected = json!({"queue": "q.1", "priority": "high", "unique": "k", "unique_scope": "kind", "max_attempts": 7, "timeout_ms": 90_000,
        "keep_ms": 172_800_000, "tags": ["a", "b"], "state": "scheduled", "args": null});
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&job[name], value, "{name}");
    }
    let delay = job["due_ms"].as_i64().expect("due") - job["pushed_ms"].as_i64().expect("pushed");
    assert_eq!(delay, 600_000);
}

#[test]
fn push_accepts_a_time_of_day() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--at", "2099-12-01T09:00:00Z", "mail"]);
    assert_eq!(sandbox.job(&id)["due"], json!("2099-12-01T09:00:00Z"));
    sandbox.run(&["push", "--at", "soon", "mail"]).failed(2, "not a time");
    sandbox.run(&["push", "--at", "9999-01-01 00:00", "mail"]).failed(2, "due: too late");
    sandbox.run(&["push", "--in", "99999999d", "mail"]).failed(2, "too long");
    sandbox.run(&["push", "--in", "-5m", "mail"]).failed(2, "negative");
    sandbox.run(&["push", "--at", "14:30", "--in", "1m", "mail"]).failed(2, "cannot be used with");
}

#[test]
fn command_keeps_its_arguments_and_directory() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "echo", "a b", "--wait", "ü"]);
    let job = sandbox.job(&id);
    assert_eq!(job["args"]["argv"], json!(["echo", "a b", "--wait", "ü"]));
    assert_eq!(job["args"]["dir"], json!(sandbox.path("").canonicalize().expect("a directory").to_str()));
}

#[test]
fn same_id_or_key_again_changes_nothing() {
    let sandbox = Sandbox::new();
    let first = sandbox.push(&["--unique", "k", "mail"]);
    let again = sandbox.run(&["push", "--unique", "k", "mail"]).ok();
    assert_eq!(again.id(), first);
    assert!(again.err.contains("nothing was pushed"), "{again:?}");
    let result = sandbox.run(&["push", "--unique", "k", "mail", "-o", "json"]).ok().json();
    assert_eq!((&result["id"], &result["pushed"]), (&json!(first), &json!("existing")));
    let result = sandbox.run(&["push", "--unique", "k", "--replace", "mail", "--json"]).ok().json();
    assert_eq!((&result["pushed"], &result["old"]), (&json!("replaced"), &json!(first)));
    sandbox.run(&["push", "--replace", "mail"]).failed(2, "--unique");
}

#[test]
fn push_can_wait_for_the_end() {
    let sandbox = Sandbox::new();
    let _worker = sandbox.start(&["work", "--exec", "false"]);
    sandbox.run(&["push", "--wait", "--", "true"]).ok();
    sandbox.run(&["push", "--wait", "--keep", "0", "--", "true"]).ok();
    sandbox
        .run(&["push", "--wait", "--max-attempts", "1", "--", "sh", "-c", "echo the reason >&2; exit 4"])
        .failed(1, "is dead: exit code 4: the reason");
    sandbox.run(&["push", "--wait", "--wait-timeout", "50ms", "--in", "1h", "mail"]).failed(124, "still scheduled");
    sandbox.run(&["push", "--wait-timeout", "50ms", "mail"]).failed(2, "--wait");
}
