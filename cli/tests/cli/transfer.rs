//! `duly move`: output, errors, kills and interruptions.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::sandbox::{RunOutput, Sandbox, until};

/// Far more jobs than one batch.
const JOBS: usize = 3_000;

fn push_many(sandbox: &Sandbox) -> BTreeSet<String> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let path = sandbox.path("duly.db").display().to_string();
    let pushed = runtime.block_on(async move {
        let duly = duly::Duly::open(path).await.expect("opens");
        duly.push_all((0..JOBS).map(|n| duly::Push::new("mail", n.to_string()))).await.expect("pushes")
    });
    pushed.iter().map(|pushed| pushed.id().to_string()).collect()
}

#[test]
fn move_transfers_all_jobs() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail", "{\"to\":\"ada\"}"]);
    sandbox.push(&["mail", "--in", "1h", "--queue", "post"]);
    let before = sandbox.job(&id);
    let ran = sandbox.run(&["move", "--from", "duly.db", "--to", "new.db"]).ok();
    assert!(ran.err.contains("moved 2 jobs to new.db"), "{ran:?}");
    let rows: Vec<Vec<&str>> = ran.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["QUEUE", "READY", "SCHEDULED", "DEAD", "CANCELLED", "DONE"]);
    assert_eq!(rows[1..], [["default", "1", "0", "0", "0", "0"], ["post", "0", "1", "0", "0", "0"]]);
    assert_eq!(sandbox.run(&["jobs", "get", &id, "--store", "new.db", "--json"]).ok().json(), before);
    sandbox.run(&["jobs", "get", &id]).failed(3, &id);

    let again = sandbox.run(&["move", "--from", "duly.db", "--to", "new.db"]).ok();
    assert!(again.err.contains("moved 0 jobs"), "{again:?}");
    let back = sandbox.run(&["move", "--from", "new.db", "--to", "duly.db", "--queue", "post", "--json"]).ok();
    let moved = back.json();
    assert_eq!((&moved["moved"], &moved["queues"][0]["queue"]), (&json!(1), &json!("post")));
    assert_eq!(moved["queues"][0]["scheduled"], 1);
    let quiet = sandbox.run(&["move", "-q", "--from", "new.db", "--to", "duly.db", "-o", "ndjson"]).ok();
    let lines: Vec<Value> = quiet.out.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!((&lines[0]["queue"], &lines[0]["ready"]), (&json!("default"), &json!(1)));
    assert_eq!(quiet.err, "");
}

/// All users of a machine can read command lines, and a URL may contain a password.
#[test]
fn stores_can_be_set_by_environment() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    let run = |args: &[&str]| -> RunOutput {
        let mut command = sandbox.command(args);
        command.envs([("DULY_FROM", "duly.db"), ("DULY_TO", "new.db")]);
        command.output().expect("it runs").into()
    };
    let help = run(&["move", "--help"]).ok().out;
    assert!(help.contains("DULY_FROM") && help.contains("DULY_TO") && !help.contains("new.db"), "{help}");
    assert!(run(&["move"]).ok().err.contains("moved 1 jobs to new.db"));
    assert!(run(&["move", "--from", "new.db", "--to", "third.db"]).ok().err.contains("moved 1 jobs to third.db"));
}

#[test]
fn skipped_jobs_are_not_counted_as_moved() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail"]);
    sandbox.push(&["mail", "--id", &id, "--store", "new.db"]);
    let ran = sandbox.run(&["move", "--from", "duly.db", "--to", "new.db"]).ok();
    assert!(ran.err.contains("1 jobs were skipped") && ran.err.contains("moved 0 jobs"), "{ran:?}");
    sandbox.push(&["mail", "--id", &id]);
    sandbox.push(&["mail"]);
    let moved = sandbox.run(&["move", "--from", "duly.db", "--to", "new.db", "--json"]).ok().json();
    assert_eq!((&moved["moved"], &moved["queues"][0]["already_present"]), (&json!(1), &json!(1)), "{moved}");
}

#[test]
fn unmovable_jobs_are_reported() {
    let sandbox = Sandbox::new();
    sandbox.run(&["move", "--from", "duly.db"]).failed(2, "--to");
    sandbox.run(&["move", "--from", "none.db", "--to", "new.db"]).failed(5, "no store at none.db");
    sandbox.push(&["mail"]);
    sandbox.run(&["move", "--from", "mysql://host", "--to", "new.db"]).failed(2, "--from");
    sandbox.run(&["move", "--from", "duly.db", "--to", "mysql://host"]).failed(2, "--to");
    sandbox.run(&["move", "--from", "duly.db", "--to", "none/new.db"]).failed(5, "create it first");
    sandbox
        .run(&["move", "--from", "duly.db", "--to", "./duly.db?keep=1h"])
        .failed(2, "is the store that the jobs are in");
    sandbox.run(&["move", "--store", "duly.db", "--from", "duly.db", "--to", "new.db"]).failed(2, "not --store");
    assert!(!sandbox.path("new.db").exists(), "nothing was made in vain");
    sandbox.run(&["move", "--from", "duly.db", "--to", "new.db", "--queue", "none"]).failed(3, "none");

    let conn = duly::rusqlite::Connection::open(sandbox.path("new.db")).expect("SQLite");
    conn.execute("UPDATE duly_meta SET value = '0' WHERE name = 'format'", []).expect("written");
    drop(conn);
    sandbox.run(&["move", "--from", "duly.db", "--to", "new.db"]).failed(5, "unknown format");
    assert_eq!(sandbox.ids("duly.db").len(), 1);
}

#[test]
fn repeatedly_killed_move_moves_everything_once() {
    let sandbox = Sandbox::new();
    let pushed = push_many(&sandbox);
    let has_jobs = || {
        sandbox.path("new.db").exists() && sandbox.run(&["queues", "ls", "--store", "new.db"]).out.contains("default")
    };
    let mut killed = 0;
    for _ in 0..4 {
        let transfer = sandbox.start(&["move", "--from", "duly.db", "--to", "new.db"]);
        if killed == 0 {
            until("jobs arrive", has_jobs);
        } else {
            std::thread::sleep(std::time::Duration::from_millis(30 * killed));
        }
        transfer.signal(Signal::KILL);
        killed += u64::from(transfer.wait().code.is_none());
    }
    assert!(killed > 0, "it was too fast");
    sandbox.run(&["move", "--from", "duly.db", "--to", "new.db"]).ok();
    let found = sandbox.ids("new.db");
    assert_eq!(found.len(), JOBS, "none twice");
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), pushed, "none lost");
    assert_eq!(sandbox.ids("duly.db").len(), 0);
}

#[test]
fn interrupted_move_says_how_to_continue() {
    let sandbox = Sandbox::new();
    sandbox.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    sandbox.push(&["mail"]);
    let worker = sandbox.start(&["work", "--concurrency", "1", "--grace", "0"]);
    until("the job runs", || sandbox.path("runs").exists());
    let transfer = sandbox.start(&["move", "--from", "duly.db", "--to", "new.db"]);
    let listed = || sandbox.run(&["queues", "ls"]).ok().out;
    until("the queue is moving", || listed().contains("moving to"));
    until("the transfer waits", || sandbox.run(&["queues", "ls", "--store", "new.db"]).code == Some(0));
    transfer.signal(Signal::INT);
    let ran = transfer.wait().failed(1, "run the same command again");
    assert!(!ran.err.contains("moved"), "{ran:?}");

    let resumed = sandbox.run(&["queues", "resume", "default"]).ok();
    assert!(resumed.err.contains("but it is moving to"), "{resumed:?}");
    let queues = sandbox.run(&["queues", "ls", "--json"]).ok().json();
    assert!(queues["queues"][0]["moving_to"].as_str().expect("somewhere").ends_with("new.db"), "{queues}");
    worker.signal(Signal::TERM);
    worker.wait().ok();
    sandbox.run(&["jobs", "rm", &sandbox.ids("duly.db")[0]]).failed(4, "moving");

    // Rules in a moving queue cannot change, so this fails after its first change.
    let rule = |name: &str, queue: &str| {
        format!("[[cron]]\nname = '{name}'\npattern = '0 3 * * *'\nkind = 'mail'\nqueue = '{queue}'\npaused = true\n")
    };
    sandbox.write("rules.toml", &(rule("a", "post") + &rule("b", "default")));
    sandbox.run(&["cron", "apply", "-f", "rules.toml"]).failed(4, "moving");

    let resumed = sandbox.run(&["queues", "resume", "default", "--abandon-move"]).ok();
    assert!(!resumed.err.contains("but") && !listed().contains("moving"), "{resumed:?}");
    for _ in 0..2 {
        sandbox.run(&["cron", "apply", "-f", "rules.toml"]).ok();
    }
    assert!(sandbox.run(&["move", "--from", "duly.db", "--to", "new.db"]).ok().err.contains("moved 2 jobs"));
    let moves = [
        "queues.move|all queues from duly.db to new.db||started",
        "queues.move|all queues from duly.db to new.db|0|unknown",
        "queues.move|all queues from duly.db to new.db||started",
        "queues.move|all queues from duly.db to new.db|2|done",
    ];
    assert_eq!(audit(&sandbox, "new.db"), moves);
    let between = [
        "queues.resume|default||done",
        "cron.apply|rules.toml (2 rules)||started",
        "cron.apply|rules.toml (2 rules)||unknown",
        "queues.abandon_move|default||done",
        "queues.resume|default||done",
        "cron.apply|rules.toml (1 rule)||started",
        "cron.apply|rules.toml (1 rule)||done",
        "cron.pause|a||done",
        "cron.pause|b||done",
    ];
    assert_eq!(audit(&sandbox, "duly.db"), [&moves[..2], &between, &moves[2..]].concat());
}

/// Returns the audit log of a store: action, target, count and outcome.
fn audit(sandbox: &Sandbox, store: &str) -> Vec<String> {
    let query = "SELECT concat_ws('|', action, target, coalesce(changed, ''), outcome) AS entry FROM duly_audit ORDER BY number";
    let rows = sandbox.run(&["sql", query, "--store", store, "--json"]).ok().json();
    rows.as_array().expect("rows").iter().map(|row| row["entry"].as_str().expect("a text").to_owned()).collect()
}
