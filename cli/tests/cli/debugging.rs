//! Looking closer: why, verify, backup, sql, and what shells and manuals want to know.

use std::io::Write;
use std::process::Stdio;

use crate::sandbox::{Ran, Sandbox};

const NOBODY: &str = "0192f7a1-0000-7000-8000-000000000000";

#[test]
fn why_prints_one_sentence() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--in", "1h", "mail"]);
    let said = sandbox.run(&["jobs", "why", &id]).ok().out;
    assert!(said.starts_with("it is due later, at 20") && said.lines().count() == 1, "{said}");
    let told = sandbox.run(&["jobs", "why", &id, "--json"]).ok().json();
    assert_eq!((told["why"].as_str(), told["id"].as_str()), (Some("due_later"), Some(&*id)));
    let id = sandbox.push(&["mail"]);
    assert!(sandbox.run(&["jobs", "why", &id]).ok().out.starts_with("no node works its queue default"));
    // As one that was put off because nobody there knew its kind.
    let id = sandbox.push(&["--in", "50s", "mail"]);
    let said = sandbox.run(&["jobs", "why", &id]).ok().out;
    assert!(said.starts_with("no node works its queue default") && said.contains("put off until 20"), "{said}");
    sandbox.run(&["jobs", "why", NOBODY]).failed(3, "no such job");
    sandbox.run(&["jobs", "why", "x"]).failed(2, "not a job id");
}

#[test]
fn verify_finds_and_repairs_a_breach() {
    let sandbox = Sandbox::new();
    sandbox.run(&["verify"]).failed(5, "no store");
    let id = sandbox.push(&["mail"]);
    assert!(sandbox.run(&["verify"]).ok().err.contains("1 job, as it must be"));
    let damage = "import sqlite3; c = sqlite3.connect('duly.db'); c.execute('DELETE FROM duly_ready'); c.commit()";
    let damaged = std::process::Command::new("python3").args(["-c", damage]).current_dir(sandbox.path("")).output();
    assert!(damaged.expect("python3 is there").status.success());

    let found = sandbox.run(&["verify"]).failed(1, "2 breaches");
    assert!(found.out.contains("one_state: ") && found.out.contains(&id), "{found:?}");
    assert!(found.out.contains("1 jobs are counted as ready, but there are 0"), "{found:?}");
    assert_eq!(sandbox.run(&["verify", "--json"]).json()["breaches"][0]["rule"], "one_state");
    sandbox.run(&["verify", "--repair"]).failed(2, "--yes");
    sandbox.run(&["verify", "--repair", "--yes", "--backup", "before.db"]).ok();
    sandbox.run(&["verify"]).ok();
    sandbox.run(&["verify", "--store", "before.db"]).failed(1, "2 breaches");
    assert_eq!(sandbox.job(&id)["state"], "ready");
}

#[test]
fn damaged_file_is_reported_once() {
    let sandbox = Sandbox::new();
    let lines: String = (0..2_000).map(|n| format!("{n}\n")).collect();
    with_stdin(&sandbox, &["push", "--bulk", "count"], &lines).ok();
    drop(duly::rusqlite::Connection::open(sandbox.path("duly.db")).expect("SQLite").execute_batch("VACUUM"));
    let whole = std::fs::read(sandbox.path("duly.db")).expect("a file");
    let pages = whole.len() / 4096;
    let mut seen = 0;
    for page in (2..pages).step_by(pages / 8) {
        let mut rotten = whole.clone();
        rotten[page * 4096..page * 4096 + 200].fill(0xff);
        std::fs::write(sandbox.path("rotten.db"), rotten).expect("a file");
        let ran = sandbox.run(&["verify", "--store", "rotten.db"]);
        // A page of a table that opening needs is told at once.
        if ran.code == Some(5) {
            continue;
        }
        seen += 1;
        let ran = ran.failed(1, "the file itself is damaged");
        assert!(ran.out.contains("file: ") && !ran.out.contains("\\n") && !ran.out.contains("***"), "{ran:?}");
        sandbox.run(&["verify", "--store", "rotten.db", "--repair", "--yes"]).failed(1, "restore a backup");
    }
    assert!(seen > 2, "{seen} of {pages}");
}

#[test]
fn backup_writes_a_new_file() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail"]);
    sandbox.run(&["backup", "copy.db"]).ok();
    sandbox.run(&["backup", "copy.db"]).failed(4, "is there already");
    sandbox.run(&["backup", "nowhere/copy.db"]).failed(2, "does not exist");
    assert_eq!(sandbox.run(&["jobs", "get", &id, "--store", "copy.db", "--json"]).ok().json()["state"], "ready");
}

fn with_stdin(sandbox: &Sandbox, args: &[&str], text: &str) -> Ran {
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
    let ran = sandbox.run(&["sql", "--store", "redis://localhost", "SELECT 1"]).failed(2, "only a store in a file");
    assert!(!ran.err.contains("Redis"), "{ran:?}");
    for nothing in ["", " ; -- not yet", "/* nothing"] {
        sandbox.run(&["sql", nothing]).failed(2, "must not be empty");
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
    assert!(ran.err.contains("2500 jobs pushed, 0 were there already"), "{ran:?}");
    let id = "0192f7a1-0000-7000-8000-000000000009";
    let whole = format!(
        "{{\"kind\":\"a\",\"args\":[1],\"priority\":\"high\",\"in\":\"1h\",\"tags\":[\"x\"],\"id\":\"{id}\"}}\n\n{{\"kind\":\"b\"}}\n"
    );
    assert_eq!(with_stdin(&sandbox, &["push", "--bulk", "--json"], &whole).ok().json()["pushed"], 2);
    let told = with_stdin(&sandbox, &["push", "--bulk", "--json"], &whole).ok().json();
    assert_eq!((told["pushed"].as_u64(), told["existing"].as_u64()), (Some(1), Some(1)), "an id is pushed once");
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
    let lines = |wrong: Option<usize>| -> String {
        let line = |n| if Some(n) == wrong { "{bad\n".to_owned() } else { format!("{n}\n") };
        (1..=1_500).map(line).collect()
    };
    let ran =
        with_stdin(&sandbox, &["push", "--bulk", "count"], &lines(Some(1_200))).failed(2, "line 1200: args: not JSON");
    assert!(ran.err.contains("lines 1 to 1000 were pushed") && !ran.err.contains("line 1 column"), "{ran:?}");
    let id = ran.err.split("--id ").nth(1).and_then(|rest| rest.split(':').next()).expect("an id").to_owned();
    let told = with_stdin(&sandbox, &["push", "--bulk", "count", "--id", &id, "--json"], &lines(None)).ok().json();
    assert_eq!((told["pushed"].as_u64(), told["existing"].as_u64()), (Some(500), Some(1_000)));
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
    assert_eq!(sandbox.run(&["jobs", "watch", "--queue", "none"]).ok().out, "");
    sandbox.run(&["jobs", "watch", NOBODY]).failed(3, "no job");
}

#[test]
fn top_needs_a_terminal() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    sandbox.run(&["top"]).failed(2, "needs a terminal");
}
