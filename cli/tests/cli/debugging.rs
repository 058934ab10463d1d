//! `why`, `verify`, `backup`, `sql`, `watch`, bulk pushes, completions and manual pages.

use std::io::Write;
use std::process::Stdio;

use crate::sandbox::{RunOutput, Sandbox};

const UNKNOWN_ID: &str = "0192f7a1-0000-7000-8000-000000000000";

#[test]
fn why_prints_one_sentence() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--in", "1h", "mail"]);
    let why = sandbox.run(&["jobs", "why", &id]).ok().out;
    assert!(why.starts_with("it is due later, at 20") && why.lines().count() == 1, "{why}");
    let json = sandbox.run(&["jobs", "why", &id, "--json"]).ok().json();
    assert_eq!(json["why"].as_str(), Some("due_later"));
    let id = sandbox.push(&["mail"]);
    assert!(sandbox.run(&["jobs", "why", &id]).ok().out.starts_with("no node works on its queue default"));
    // Due soon, like a job that a node deferred because it has no handler for the kind.
    let id = sandbox.push(&["--in", "50s", "mail"]);
    let why = sandbox.run(&["jobs", "why", &id]).ok().out;
    assert!(why.starts_with("no node works on its queue default") && why.contains("due at 20"), "{why}");
    sandbox.run(&["jobs", "why", UNKNOWN_ID]).failed(3, "no such job");
    sandbox.run(&["jobs", "why", "x"]).failed(2, "not the id of a job");
}

#[test]
fn verify_finds_and_repairs_a_violation() {
    let sandbox = Sandbox::new();
    sandbox.run(&["verify"]).failed(5, "no store");
    let id = sandbox.push(&["mail"]);
    assert!(sandbox.run(&["verify"]).ok().err.contains("1 job checked, no violation"));
    let damage = "import sqlite3; c = sqlite3.connect('duly.db'); c.execute('DELETE FROM duly_ready'); c.commit()";
    let damaged = std::process::Command::new("python3").args(["-c", damage]).current_dir(sandbox.path("")).output();
    assert!(damaged.expect("python3 is there").status.success());

    let found = sandbox.run(&["verify"]).failed(1, "2 violations");
    assert!(found.out.contains("one_state: ") && found.out.contains(&id), "{found:?}");
    assert!(found.out.contains("1 jobs are counted as ready, but there are 0"), "{found:?}");
    assert_eq!(sandbox.run(&["verify", "--json"]).json()["violations"][0]["invariant"], "one_state");
    sandbox.run(&["verify", "--repair"]).failed(2, "--yes");
    sandbox.run(&["verify", "--repair", "--yes", "--backup", "before.db"]).ok();
    sandbox.run(&["verify"]).ok();
    sandbox.run(&["verify", "--store", "before.db"]).failed(1, "2 violations");
    assert_eq!(sandbox.job(&id)["state"], "ready");
}

#[test]
fn damaged_file_is_reported_once() {
    let sandbox = Sandbox::new();
    let lines: String = (0..2_000).map(|n| format!("{n}\n")).collect();
    with_stdin(&sandbox, &["push", "--bulk", "count"], &lines).ok();
    drop(duly::rusqlite::Connection::open(sandbox.path("duly.db")).expect("SQLite").execute_batch("VACUUM"));
    let intact = std::fs::read(sandbox.path("duly.db")).expect("a file");
    let pages = intact.len() / 4096;
    let mut reported = 0;
    for page in (2..pages).step_by(pages / 8) {
        let mut damaged = intact.clone();
        damaged[page * 4096..page * 4096 + 200].fill(0xff);
        std::fs::write(sandbox.path("damaged.db"), damaged).expect("a file");
        let ran = sandbox.run(&["verify", "--store", "damaged.db"]);
        // A damaged page that is needed to open the store fails at once.
        if ran.code == Some(5) {
            continue;
        }
        reported += 1;
        let ran = ran.failed(1, "the file itself is damaged");
        assert!(
            ran.out.contains("file_integrity: ") && !ran.out.contains("\\n") && !ran.out.contains("***"),
            "{ran:?}"
        );
        sandbox.run(&["verify", "--store", "damaged.db", "--repair", "--yes"]).failed(1, "restore a backup");
    }
    assert!(reported > 2, "{reported} of {pages}");
}

#[test]
fn backup_writes_a_new_file() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail"]);
    sandbox.run(&["backup", "copy.db"]).ok();
    sandbox.run(&["backup", "copy.db"]).failed(4, "already exists");
    sandbox.run(&["backup", "nowhere/copy.db"]).failed(2, "does not exist");
    assert_eq!(sandbox.run(&["jobs", "get", &id, "--store", "copy.db", "--json"]).ok().json()["state"], "ready");
}

fn with_stdin(sandbox: &Sandbox, args: &[&str], text: &str) -> RunOutput {
    let mut command = sandbox.command(args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends").into()
}

#[test]
fn sql_is_read_only() {
    let sandbox = Sandbox::new();
    sandbox.run(&["sql", "SELECT 1"]).failed(5, "no store");
    let id = sandbox.push(&["mail"]);
    let table = sandbox.run(&["sql", "SELECT id, kind, char(27) || '[31m' FROM duly_job"]).ok().out;
    assert!(table.contains(&id) && table.contains("mail") && !table.contains('\u{1b}'), "{table}");
    assert_eq!(sandbox.run(&["sql", "--json", "SELECT kind FROM duly_job"]).ok().json()[0]["kind"], "mail");
    sandbox.run(&["sql", "DELETE FROM duly_job"]).failed(2, "would write");
    sandbox.run(&["sql", "SELEC"]).failed(2, "syntax");
    let ran =
        sandbox.run(&["sql", "--store", "redis://localhost", "SELECT 1"]).failed(2, "only a SQLite file can run SQL");
    assert!(!ran.err.contains("Redis"), "{ran:?}");
    for empty in ["", " ; -- not yet", "/* nothing"] {
        sandbox.run(&["sql", empty]).failed(2, "must not be empty");
    }
    assert_eq!(
        with_stdin(&sandbox, &["sql", "-o", "ndjson"], "SELECT count(*) AS n FROM duly_job").ok().out.trim(),
        "{\"n\":1}"
    );
}

#[test]
fn completions_and_man_pages_are_printed() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(sandbox.run(&["completions", shell]).ok().out.contains("duly"), "{shell}");
    }
    sandbox.run(&["completions", "cmd"]).failed(2, "cmd");
    assert!(sandbox.run(&["man"]).ok().out.contains(".TH duly 1"));
    assert!(sandbox.run(&["man", "jobs", "why"]).ok().out.contains("one sentence"));
    sandbox.run(&["man", "nothing"]).failed(2, "no verb");
}

#[test]
fn many_jobs_are_read_from_stdin() {
    let sandbox = Sandbox::new();
    let lines: String = (0..2_500).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let ran = with_stdin(&sandbox, &["push", "--bulk", "count", "--queue", "q"], &lines).ok();
    assert!(ran.err.contains("2500 jobs pushed, 0 jobs existed already"), "{ran:?}");
    let id = "0192f7a1-0000-7000-8000-000000000009";
    let lines = format!(
        "{{\"kind\":\"a\",\"args\":[1],\"priority\":\"high\",\"in\":\"1h\",\"tags\":[\"x\"],\"id\":\"{id}\"}}\n\n{{\"kind\":\"b\"}}\n"
    );
    assert_eq!(with_stdin(&sandbox, &["push", "--bulk", "--json"], &lines).ok().json()["pushed"], 2);
    let counts = with_stdin(&sandbox, &["push", "--bulk", "--json"], &lines).ok().json();
    assert_eq!((counts["pushed"].as_u64(), counts["existing"].as_u64()), (Some(1), Some(1)), "an id is pushed once");
    let job = sandbox.job(id);
    assert_eq!((&job["state"], &job["priority"], &job["args"][0]), (&"scheduled".into(), &"high".into(), &1.into()));
    with_stdin(&sandbox, &["push", "--bulk"], "{\"kind\":\"a\"}\nnonsense\n").failed(2, "line 2");
    with_stdin(&sandbox, &["push", "--bulk"], "{\"kind\":\"a\",\"colour\":1}\n").failed(2, "colour");
    with_stdin(&sandbox, &["push", "--bulk"], "{\"kind\":\"a\",\"in\":\"soon\"}\n").failed(2, "duration");
    with_stdin(&sandbox, &["push", "--bulk", "a"], "{\n").failed(2, "not JSON");
    sandbox.run(&["push", "--bulk", "-"]).failed(2, "leave out the -");
    sandbox.run(&["push", "--bulk", "a", "1"]).failed(2, "cannot be used with");
}

#[test]
fn invalid_line_is_named_and_repeat_is_safe() {
    let sandbox = Sandbox::new();
    let lines = |invalid: Option<usize>| -> String {
        let line = |n| if Some(n) == invalid { "{bad\n".to_owned() } else { format!("{n}\n") };
        (1..=1_500).map(line).collect()
    };
    let ran =
        with_stdin(&sandbox, &["push", "--bulk", "count"], &lines(Some(1_200))).failed(2, "line 1200: args: not JSON");
    assert!(ran.err.contains("lines 1 to 1000 were pushed") && !ran.err.contains("line 1 column"), "{ran:?}");
    let id = ran.err.split("--id ").nth(1).and_then(|rest| rest.split(':').next()).expect("an id").to_owned();
    let counts = with_stdin(&sandbox, &["push", "--bulk", "count", "--id", &id, "--json"], &lines(None)).ok().json();
    assert_eq!((counts["pushed"].as_u64(), counts["existing"].as_u64()), (Some(500), Some(1_000)));
    with_stdin(&sandbox, &["push", "--bulk", "count"], &lines(Some(1))).failed(2, "nothing was pushed");
    with_stdin(&sandbox, &["push", "--bulk"], "{\"kind\":\"a b\"}\n").failed(2, "line 1: kind");
}

#[test]
fn watch_prints_each_change() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "true"]);
    let watch = sandbox.start(&["jobs", "watch", &id]);
    sandbox.run(&["work", "--until-empty"]).ok();
    let ran = watch.wait().ok();
    let last = ran.out.lines().last().unwrap_or_default();
    assert!(last.contains(&id) && last.contains("done"), "{ran:?}");
    assert_eq!(sandbox.run(&["jobs", "watch", "--queue", "none", "--until-done"]).ok().out, "");
    sandbox.run(&["jobs", "watch", UNKNOWN_ID]).failed(3, " not found");
}

#[test]
fn watch_and_logs_follow_jobs() {
    let sandbox = Sandbox::new();
    let first = sandbox.push(&["mail", "--in", "1h"]);
    let watch = sandbox.start(&["jobs", "watch", "--until-done"]);
    let logs = sandbox.start(&["logs", "-f", &first]);
    sandbox.run(&["jobs", "cancel", &first]).ok();
    let ran = watch.wait().ok();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines.last().is_none_or(|line| line.contains(&first) && line.contains("cancelled")), "{ran:?}");
    let ran = logs.wait().ok();
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", "the job has no log lines\nthe job is cancelled\n"));
}

#[test]
fn top_needs_a_terminal() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    sandbox.run(&["top"]).failed(2, "needs a terminal");
}
