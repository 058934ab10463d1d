//! Output on stdout: complete JSON for scripts, no control characters for terminals.

use std::process::Stdio;

use serde_json::json;

use crate::sandbox::Sandbox;

#[test]
fn json_output_is_complete() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail", r#"{"big":12345678901234567890123}"#]);
    let job = sandbox.run(&["jobs", "get", &id, "--json"]).ok();
    assert!(job.out.contains("12345678901234567890123"), "numbers are kept as they are: {job:?}");
    let page = sandbox.run(&["jobs", "ls", "-o", "json"]).ok().json();
    assert_eq!((&page["jobs"][0]["id"], &page["next"]), (&json!(id), &json!(null)));
    let queues = sandbox.run(&["queues", "ls", "--json"]).ok().json();
    assert_eq!((&queues["queues"][0]["queue"], &queues["queues"][0]["ready"]), (&json!("default"), &json!(1)));
    let health = sandbox.run(&["doctor", "--json"]).ok().json();
    assert!(health["durability"].as_str().expect("a sentence").contains("survives"));
    sandbox.write("duly.toml", "store = './duly.db?durability=second'");
    let health = sandbox.run(&["doctor", "--json"]).ok().json();
    assert!(health["durability"].as_str().expect("a sentence").contains("may lose the last second"), "{health}");
    assert_eq!(health["warnings"], json!([]));
    assert_eq!(sandbox.run(&["nodes", "ls", "--json"]).ok().json(), json!({"nodes": []}));
}

#[test]
fn ndjson_has_one_line_per_item() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail", "{\n\t\"a\":\n 1}"]);
    sandbox.push(&["mail", "2"]);
    let ran = sandbox.run(&["jobs", "ls", "--state", "ready", "-o", "ndjson"]).ok();
    let args: Vec<_> =
        ran.out.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).expect("json")["args"].clone()).collect();
    assert_eq!(args, [json!({"a": 1}), json!(2)]);
}

#[test]
fn lists_are_printed_in_pages() {
    let sandbox = Sandbox::new();
    let ids = [sandbox.push(&["mail"]), sandbox.push(&["mail"]), sandbox.push(&["mail"])];
    let first = sandbox.run(&["jobs", "ls", "--state", "ready", "--limit", "2", "--json"]).ok().json();
    let cursor = first["next"].as_str().expect("more");
    let second =
        sandbox.run(&["jobs", "ls", "--state", "ready", "--limit", "2", "--cursor", cursor, "--json"]).ok().json();
    let listed: Vec<_> = [&first, &second]
        .iter()
        .flat_map(|page| page["jobs"].as_array().expect("jobs"))
        .map(|job| &job["id"])
        .collect();
    assert_eq!(listed, [&json!(ids[0]), &json!(ids[1]), &json!(ids[2])]);
    sandbox.run(&["jobs", "ls", "--cursor", "nonsense"]).failed(2, "cursor");
}

#[test]
fn control_characters_are_escaped() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail", "\"\u{9b}2J\u{7f}\u{202e}\""]);
    let loud = sandbox.push(&[
        "--max-attempts",
        "1",
        "--",
        "sh",
        "-c",
        "printf '\\033[31mred\\007\\n'; printf '\\033]0;title\\007' >&2; exit 1",
    ]);
    let work = sandbox.run(&["work", "--until-empty"]).ok();
    let outputs = [
        work,
        sandbox.run(&["jobs", "get", &id]).ok(),
        sandbox.run(&["jobs", "get", &id, "--json"]).ok(),
        sandbox.run(&["jobs", "get", &loud]).ok(),
        sandbox.run(&["jobs", "get", &loud, "--json"]).ok(),
        sandbox.run(&["jobs", "ls", "-o", "wide", "--state", "scheduled"]).ok(),
    ];
    for ran in &outputs {
        let text = format!("{}{}", ran.out, ran.err);
        let is_unsafe = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(is_unsafe), "{ran:?}");
    }
    assert!(outputs[0].err.contains("\\u{1b}[31mred"), "{:?}", outputs[0]);
    assert_eq!(outputs[2].json()["args"], "\u{9b}2J\u{7f}\u{202e}");
}

#[test]
fn closed_pipe_is_not_a_failure() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    for args in [&["jobs", "ls", "--state", "ready"][..], &["doctor"], &["version"], &["push", "mail"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = sandbox.command(args);
        let ran: crate::sandbox::RunOutput =
            command.stdout(writer).stderr(Stdio::piped()).output().expect("it runs").into();
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn queue_is_paused_and_resumed() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "true"]);
    sandbox.run(&["queues", "pause", "default"]).ok();
    assert!(sandbox.run(&["queues", "ls"]).ok().out.contains("paused"));
    sandbox.run(&["work", "--until-empty"]).ok();
    assert_eq!(sandbox.job(&id)["state"], "ready");
    assert!(sandbox.run(&["queues", "pause", "default"]).ok().err.contains("already"));
    sandbox.run(&["queues", "resume", "default"]).ok();
    sandbox.run(&["work", "--until-empty"]).ok();
    assert_eq!(sandbox.job(&id)["state"], "done");
}

#[test]
fn colours_are_printed_only_to_a_terminal() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    assert!(!sandbox.run(&["queues", "ls"]).ok().out.contains('\u{1b}'));
    assert!(sandbox.run(&["queues", "ls", "--color", "always"]).ok().out.contains('\u{1b}'));
}

#[test]
fn version_and_help_are_printed() {
    let sandbox = Sandbox::new();
    let version = format!("duly {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(sandbox.run(&["version"]).ok().out, version);
    assert_eq!(sandbox.run(&["--version"]).ok().out, version);
    let help = sandbox.run(&["--help"]).ok().out;
    assert!(help.contains("demo") && !help.contains("run-child"), "{help}");
}

#[test]
fn lists_have_columns_names_and_all_pages() {
    let sandbox = Sandbox::new();
    let ids = [sandbox.push(&["mail"]), sandbox.push(&["mail"]), sandbox.push(&["mail"])];
    let names = sandbox.run(&["jobs", "ls", "--state", "ready", "-o", "name"]).ok();
    assert_eq!(names.out.lines().collect::<Vec<_>>(), ids);
    let table = sandbox.run(&["jobs", "ls", "--state", "ready", "--columns", "state,ID"]).ok().out;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((&rows[0], &rows[1]), (&vec!["STATE", "ID"], &vec!["ready", ids[0].as_str()]));
    sandbox.run(&["jobs", "ls", "--columns", "id,nope"]).failed(2, "the columns are id, state, kind");
    let all = sandbox.run(&["jobs", "ls", "--all-pages", "--json"]).ok().json();
    assert_eq!((all["jobs"].as_array().map(Vec::len), &all["next"]), (Some(3), &json!(null)));
    let none = sandbox.run(&["jobs", "ls", "state:dead"]).ok();
    assert_eq!((none.out.as_str(), none.err.as_str()), ("", "no jobs match\n"));
}

#[test]
fn mistakes_get_a_hint() {
    let sandbox = Sandbox::new();
    sandbox.run(&["push", "echo", "hello"]).failed(2, "to run a command, write `duly push -- echo hello`");
    sandbox.run(&["push", "--", ""]).failed(2, "needs a program to run");
    sandbox.run(&["push", "command", r#"{"x":1}"#]).failed(2, "needs a program to run");
    sandbox.run(&["cron", "add", "x"]).failed(2, "duly cron add backup '0 3 * * *' -- ./backup");
    sandbox.run(&["cron", "add", "x", "@fortnight", "--kind", "y"]).failed(2, "@hourly, @daily");
    sandbox.run(&["queues", "capacity", "q", "--bytes", "5X"]).failed(2, "not a size; write 5000000, 5MB or 5MiB");
    sandbox.run(&["--store", "http://127.0.0.1:7711", "queues", "ls"]).failed(2, "use --server URL for it");
    assert!(!sandbox.path("duly.db").exists(), "nothing was created");
    let next =
        ["cron", "next", "--pattern", "0 9 * * *", "--tz", "America/New_York", "--from", "2026-06-01 08:00", "-n", "1"];
    assert!(sandbox.run(&next).ok().out.contains("2026-06-01 09:00"), "in the zone of the pattern");
}

#[test]
fn shell_completes_names_of_the_store() {
    let sandbox = Sandbox::new();
    let complete = |words: &[&str]| {
        let mut command = sandbox.command(&[&["--", "duly"], words].concat());
        let ran: crate::sandbox::RunOutput = command.env("DULY_COMPLETE", "fish").output().expect("it runs").into();
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{words:?}");
        ran.out
    };
    assert!(!complete(&["queues", "pause", ""]).contains("post"), "no store, no candidates");
    let id = sandbox.push(&["mail", "--queue", "post"]);
    sandbox.run(&["cron", "add", "nightly", "0 3 * * *", "--kind", "x"]).ok();
    assert!(complete(&["queues", "pause", ""]).contains("post"));
    assert!(complete(&["push", "--queue", "po"]).contains("post"));
    assert!(complete(&["jobs", "get", ""]).contains(&id));
    assert!(complete(&["cron", "get", "n"]).contains("nightly"));
    assert!(!complete(&["--store", "none.db", "cron", "get", "n"]).contains("nightly"));
}
