//! What stands on stdout: whole JSON for scripts, nothing that could drive a terminal for people.

use std::process::Stdio;

use serde_json::json;

use crate::bed::Bed;

#[test]
fn json_for_scripts() {
    let bed = Bed::new();
    let id = bed.push(&["mail", r#"{"big":12345678901234567890123}"#]);
    let got = bed.run(&["jobs", "get", &id, "--json"]).ok();
    assert!(got.out.contains("12345678901234567890123"), "numbers are kept as they are: {got:?}");
    let page = bed.run(&["jobs", "ls", "-o", "json"]).ok().json();
    assert_eq!((&page["jobs"][0]["id"], &page["next"]), (&json!(id), &json!(null)));
    let queues = bed.run(&["queues", "ls", "--json"]).ok().json();
    assert_eq!((&queues[0]["queue"], &queues[0]["ready"]), (&json!("default"), &json!(1)));
    let health = bed.run(&["doctor", "--json"]).ok().json();
    assert!(health["durability"].as_str().expect("a sentence").contains("survives"));
    bed.write("duly.toml", "store = './duly.db?durability=second'");
    let health = bed.run(&["doctor", "--json"]).ok().json();
    assert!(health["durability"].as_str().expect("a sentence").contains("may cost the last second"), "{health}");
    assert_eq!(health["warnings"], json!([]));
    assert_eq!(bed.run(&["nodes", "ls", "--json"]).ok().json(), json!([]));
}

#[test]
fn ndjson_is_one_line_each() {
    let bed = Bed::new();
    bed.push(&["mail", "{\n\t\"a\":\n 1}"]);
    bed.push(&["mail", "2"]);
    let ran = bed.run(&["jobs", "ls", "--state", "ready", "-o", "ndjson"]).ok();
    let args: Vec<_> =
        ran.out.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).expect("json")["args"].clone()).collect();
    assert_eq!(args, [json!({"a": 1}), json!(2)]);
}

#[test]
fn pages() {
    let bed = Bed::new();
    let ids = [bed.push(&["mail"]), bed.push(&["mail"]), bed.push(&["mail"])];
    let first = bed.run(&["jobs", "ls", "--state", "ready", "--limit", "2", "--json"]).ok().json();
    let cursor = first["next"].as_str().expect("more");
    let second = bed.run(&["jobs", "ls", "--state", "ready", "--limit", "2", "--cursor", cursor, "--json"]).ok().json();
    let seen: Vec<_> = [&first, &second]
        .iter()
        .flat_map(|page| page["jobs"].as_array().expect("jobs"))
        .map(|job| &job["id"])
        .collect();
    assert_eq!(seen, [&json!(ids[0]), &json!(ids[1]), &json!(ids[2])]);
    bed.run(&["jobs", "ls", "--cursor", "nonsense"]).failed(2, "cursor");
}

#[test]
fn nothing_drives_the_terminal() {
    let bed = Bed::new();
    let id = bed.push(&["mail", "\"\u{9b}2J\u{7f}\u{202e}\""]);
    let loud = bed.push(&[
        "--max-attempts",
        "1",
        "--",
        "sh",
        "-c",
        "printf '\\033[31mred\\007\\n'; printf '\\033]0;title\\007' >&2; exit 1",
    ]);
    let work = bed.run(&["work", "--until-empty"]).ok();
    let shown = [
        work,
        bed.run(&["jobs", "get", &id]).ok(),
        bed.run(&["jobs", "get", &id, "--json"]).ok(),
        bed.run(&["jobs", "get", &loud]).ok(),
        bed.run(&["jobs", "get", &loud, "--json"]).ok(),
        bed.run(&["jobs", "ls", "-o", "wide", "--state", "scheduled"]).ok(),
    ];
    for ran in &shown {
        let text = format!("{}{}", ran.out, ran.err);
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(bad), "{ran:?}");
    }
    assert!(shown[0].err.contains("\\u{1b}[31mred"), "{:?}", shown[0]);
    assert_eq!(shown[2].json()["args"], "\u{9b}2J\u{7f}\u{202e}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let bed = Bed::new();
    bed.push(&["mail"]);
    for args in [&["jobs", "ls", "--state", "ready"][..], &["doctor"], &["version"], &["push", "mail"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = bed.command(args);
        let ran: crate::bed::Ran = command.stdout(writer).stderr(Stdio::piped()).output().expect("it runs").into();
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn pause_and_resume() {
    let bed = Bed::new();
    let id = bed.push(&["--", "true"]);
    bed.run(&["queues", "pause", "default"]).ok();
    assert!(bed.run(&["queues", "ls"]).ok().out.contains("paused"));
    bed.run(&["work", "--until-empty"]).ok();
    assert_eq!(bed.job(&id)["state"], "ready");
    assert!(bed.run(&["queues", "pause", "default"]).ok().err.contains("already"));
    bed.run(&["queues", "resume", "default"]).ok();
    bed.run(&["work", "--until-empty"]).ok();
    assert_eq!(bed.job(&id)["state"], "done");
}

#[test]
fn colours_only_where_they_belong() {
    let bed = Bed::new();
    bed.push(&["mail"]);
    assert!(!bed.run(&["queues", "ls"]).ok().out.contains('\u{1b}'));
    assert!(bed.run(&["queues", "ls", "--color", "always"]).ok().out.contains('\u{1b}'));
}

#[test]
fn version_and_help() {
    let bed = Bed::new();
    let said = format!("duly {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(bed.run(&["version"]).ok().out, said);
    assert_eq!(bed.run(&["--version"]).ok().out, said);
    let help = bed.run(&["--help"]).ok().out;
    assert!(help.contains("demo") && !help.contains("run-child"), "{help}");
}
