//! `duly push`.

use serde_json::json;

use crate::bed::Bed;

#[test]
fn prints_the_id_alone() {
    let bed = Bed::new();
    let ran = bed.run(&["push", "mail", r#"{"to":"ada"}"#]).ok();
    assert_eq!(ran.out.len(), 37, "{ran:?}");
    assert_eq!(ran.err, "", "nobody at a terminal: no words");
    let job = bed.job(&ran.id());
    assert_eq!((&job["kind"], &job["args"], &job["state"]), (&json!("mail"), &json!({"to": "ada"}), &json!("ready")));
}

#[test]
fn options_reach_the_job() {
    let bed = Bed::new();
    let id = "0192f7a1-0000-7000-8000-000000000001";
    let pushed = bed.push(&[
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
    let job = bed.job(id);
    let wanted = json!({"queue": "q.1", "priority": "high", "unique": "k", "max_attempts": 7, "timeout": 90_000,
        "keep": 172_800_000, "tags": ["a", "b"], "state": "scheduled", "args": null});
    for (name, value) in wanted.as_object().expect("an object") {
        assert_eq!(&job[name], value, "{name}");
    }
    let ahead = job["due"].as_i64().expect("due") - job["pushed"].as_i64().expect("pushed");
    assert_eq!(ahead, 600_000_000);
}

#[test]
fn a_moment_on_the_clock() {
    let bed = Bed::new();
    let id = bed.push(&["--at", "2099-12-01T09:00:00Z", "mail"]);
    assert_eq!(bed.job(&id)["due"], json!(4_099_798_800_000_000_i64));
    bed.run(&["push", "--at", "soon", "mail"]).failed(2, "not a moment");
    bed.run(&["push", "--at", "9999-01-01 00:00", "mail"]).failed(2, "due: too late");
    bed.run(&["push", "--in", "99999999d", "mail"]).failed(2, "too long");
    bed.run(&["push", "--in", "-5m", "mail"]).failed(2, "negative");
    bed.run(&["push", "--at", "14:30", "--in", "1m", "mail"]).failed(2, "cannot be used with");
}

#[test]
fn a_command_keeps_its_words_and_its_place() {
    let bed = Bed::new();
    let id = bed.push(&["--", "echo", "a b", "--wait", "ü"]);
    let job = bed.job(&id);
    assert_eq!(job["args"]["argv"], json!(["echo", "a b", "--wait", "ü"]));
    assert_eq!(job["args"]["dir"], json!(bed.path("").canonicalize().expect("a directory").to_str()));
}

#[test]
fn the_same_id_or_key_again_changes_nothing() {
    let bed = Bed::new();
    let first = bed.push(&["--unique", "k", "mail"]);
    let again = bed.run(&["push", "--unique", "k", "mail"]).ok();
    assert_eq!(again.id(), first);
    assert!(again.err.contains("nothing was pushed"), "{again:?}");
    let told = bed.run(&["push", "--unique", "k", "mail", "-o", "json"]).ok().json();
    assert_eq!((&told["id"], &told["pushed"]), (&json!(first), &json!("existing")));
    let told = bed.run(&["push", "--unique", "k", "--replace", "mail", "--json"]).ok().json();
    assert_eq!((&told["pushed"], &told["old"]), (&json!("replaced"), &json!(first)));
    bed.run(&["push", "--replace", "mail"]).failed(2, "--unique");
}

#[test]
fn waiting_for_the_end() {
    let bed = Bed::new();
    let _worker = bed.start(&["work", "--exec", "false"]);
    bed.run(&["push", "--wait", "--", "true"]).ok();
    bed.run(&["push", "--wait", "--keep", "0", "--", "true"]).ok();
    bed.run(&["push", "--wait", "--max-attempts", "1", "--", "sh", "-c", "echo the reason >&2; exit 4"])
        .failed(1, "is dead: exit code 4: the reason");
    bed.run(&["push", "--wait", "--wait-timeout", "50ms", "--in", "1h", "mail"]).failed(124, "still scheduled");
    bed.run(&["push", "--wait-timeout", "50ms", "mail"]).failed(2, "--wait");
}
