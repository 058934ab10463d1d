//! `duly lock`: runs a command while a lock is held.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::sandbox::{Background, RunOutput, Sandbox, is_running, until};

/// A shell script that creates `runs` and ends once `go` exists.
const UNTIL_GO: &str = "touch runs; until test -e go; do sleep 0.01; done";

fn held_locks(sandbox: &Sandbox, name: &str) -> Vec<Value> {
    sandbox.run(&["lock", "get", name, "--json"]).json()["locks"].as_array().expect("a list").clone()
}

/// Starts a process that holds the lock until the file `go` exists.
fn start_holder(sandbox: &Sandbox, args: &[&str]) -> Background {
    let holder = sandbox.start(&[&["lock"], args, &["--", "sh", "-c", UNTIL_GO]].concat());
    until("the lock is held", || sandbox.path("runs").exists());
    holder
}

#[test]
fn command_gets_its_fence_and_exit_code_is_returned() {
    let sandbox = Sandbox::new();
    let fence = || -> u64 {
        let ran = sandbox.run(&["lock", "deploy", "--", "sh", "-c", "echo $DULY_LOCK $DULY_FENCE $DULY_SLOT; exit 3"]);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        let words: Vec<&str> = ran.out.split_whitespace().collect();
        assert_eq!((words[0], words[2]), ("deploy", "1"));
        assert_eq!(ran.err, format!("lock deploy  fence {}  ttl 30s\n", words[1]));
        words[1].parse().expect("a number")
    };
    assert!(fence() < fence(), "it grows");
    let quiet = sandbox.run(&["lock", "deploy", "-q", "--ttl", "1m30s", "--", "true"]).ok();
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("", ""));
    assert_eq!(sandbox.run(&["lock", "deploy", "--", "sh", "-c", "kill -9 $$"]).code, Some(128 + 9));
    sandbox.run(&["lock", "deploy", "--", "./not-there"]).failed(127, "cannot run ./not-there");
    sandbox.write("text", "no program");
    sandbox.run(&["lock", "deploy", "--", "./text"]).failed(126, "cannot run ./text");
    assert!(held_locks(&sandbox, "deploy").is_empty(), "released each time");
}

#[test]
fn command_inherits_stdin_and_stdout() {
    let sandbox = Sandbox::new();
    sandbox.write("input", "from stdin\n");
    let mut command = sandbox.command(&["lock", "deploy", "-q", "--", "sh", "-c", "cat; echo to stderr >&2"]);
    command.stdin(std::fs::File::open(sandbox.path("input")).expect("a file"));
    let ran = RunOutput::from(command.output().expect("it runs")).ok();
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("from stdin\n", "to stderr\n"));
}

#[test]
fn busy_lock_has_its_own_exit_codes() {
    let sandbox = Sandbox::new();
    let holder = start_holder(&sandbox, &["deploy", "--note", "ada"]);
    let busy = |args: &[&str], code| {
        sandbox.run(&[&["lock", "deploy"], args, &["--", "touch", "wrong"]].concat()).failed(code, "is held by ada");
    };
    busy(&["--wait", "0"], 4);
    busy(&["--no-wait"], 4);
    busy(&["--no-wait", "-E", "9"], 9);
    let started = Instant::now();
    busy(&["--wait", "200ms"], 124);
    assert!(started.elapsed() >= Duration::from_millis(200));
    busy(&["--wait", "1ms", "--conflict-exit-code", "0"], 0);
    sandbox.run(&["lock", "another", "--no-wait", "--", "true"]).ok();
    sandbox.write("go", "");
    holder.wait().ok();
    sandbox.run(&["lock", "deploy", "--no-wait", "--", "true"]).ok();
    assert!(!sandbox.path("wrong").exists());
}

#[test]
fn waiters_acquire_in_order() {
    let sandbox = Sandbox::new();
    let holder = start_holder(&sandbox, &["deploy"]);
    let mut waiters = Vec::new();
    for nth in 1..=3 {
        waiters.push(sandbox.start(&[
            "lock",
            "deploy",
            "--wait",
            "20s",
            "--",
            "sh",
            "-c",
            &format!("echo {nth} >> order"),
        ]));
        until("it waits", || held_locks(&sandbox, "deploy")[0]["waiters"] == nth);
    }
    sandbox.write("go", "");
    holder.wait().ok();
    for waiter in waiters {
        waiter.wait().ok();
    }
    assert_eq!(sandbox.read("order"), "1\n2\n3\n");
}

#[test]
fn commands_run_up_to_the_number_of_slots() {
    let sandbox = Sandbox::new();
    let script = "echo $DULY_SLOT > slot$DULY_SLOT; until test -e go; do sleep 0.01; done";
    let acquire =
        |name: &'static str| sandbox.start(&["lock", "disk", "--slots", "2", "--note", name, "--", "sh", "-c", script]);
    let both = [acquire("ada"), acquire("bob")];
    until("both hold it", || sandbox.path("slot1").exists() && sandbox.path("slot2").exists());
    sandbox.run(&["lock", "disk", "--slots", "2", "--no-wait", "--", "true"]).failed(4, "bob");
    let listed = sandbox.run(&["lock", "ls"]).ok().out;
    assert_eq!(listed.lines().filter(|line| line.starts_with("disk")).count(), 2, "{listed}");
    sandbox.write("go", "");
    for holder in both {
        let ran = holder.wait().ok();
        assert!(ran.err.contains("  slot "), "{ran:?}");
    }
}

#[test]
fn lost_lock_ends_the_command() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo term >> signals; exit 0' TERM; sleep 60 & echo $! > child; while :; do sleep 0.01; done";
    let holder = sandbox.start(&["lock", "deploy", "--ttl", "300ms", "--note", "ada", "--", "sh", "-c", script]);
    until("it runs", || sandbox.read("child").ends_with('\n'));
    let broken = sandbox.run(&["lock", "break", "deploy", "--yes"]).ok();
    assert!(broken.err.contains("was held by ada"), "{broken:?}");
    sandbox.run(&["lock", "deploy", "--wait", "5s", "--", "true"]).ok();
    holder.wait().failed(6, "lock deploy was lost");
    assert_eq!(sandbox.read("signals"), "term\n");
    until("what it started is gone", || !is_running(&sandbox.read("child")));
}

#[test]
fn command_that_ignores_sigterm_is_killed() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done";
    let holder = sandbox.start(&["lock", "deploy", "--ttl", "300ms", "--", "sh", "-c", script]);
    until("it runs", || sandbox.read("pid").ends_with('\n'));
    sandbox.run(&["lock", "break", "deploy", "--yes", "-q"]).ok();
    let started = Instant::now();
    holder.wait().failed(6, "lost");
    assert!(started.elapsed() > Duration::from_secs(4), "it had its time");
    assert!(!is_running(&sandbox.read("pid")));
}

#[test]
fn nested_locks_work() {
    let sandbox = Sandbox::new();
    let duly = env!("CARGO_BIN_EXE_duly");
    let inner = format!(
        "echo $DULY_FENCE; exec {duly} lock b -q -- sh -c 'echo $DULY_LOCK $DULY_FENCE; {duly} lock ls -o ndjson'"
    );
    let ran = sandbox.run(&["lock", "a", "-q", "--", "sh", "-c", &inner]).ok();
    let lines: Vec<&str> = ran.out.lines().collect();
    let held: Vec<Value> = lines[2..].iter().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert_eq!((&held[0]["name"], &held[1]["name"]), (&"a".into(), &"b".into()));
    assert_eq!(held[0]["fence"].to_string(), lines[0], "each has a fence of its own");
    assert_eq!(format!("b {}", held[1]["fence"]), lines[1]);
    sandbox.run(&["lock", "a", "-q", "--", duly, "lock", "a", "--no-wait", "--", "true"]).failed(4, "is held");
}

#[test]
fn lock_can_be_shown_and_broken() {
    let sandbox = Sandbox::new();
    sandbox.run(&["lock", "ls"]).failed(5, "push a job first");
    sandbox.push(&["mail"]);
    sandbox.run(&["lock", "get", "deploy"]).failed(3, "lock deploy is not held");
    sandbox.run(&["lock", "break", "deploy"]).failed(3, "lock deploy is not held");
    let _holder = start_holder(&sandbox, &["deploy"]);
    let listed = sandbox.run(&["lock", "ls"]).ok().out;
    let head: Vec<&str> = listed.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(head, ["NAME", "SLOT", "FENCE", "HOLDER", "NODE", "SINCE", "EXPIRES", "WAITERS"]);
}

#[test]
fn lock_break_requires_yes() {
    let sandbox = Sandbox::new();
    let holder = start_holder(&sandbox, &["deploy", "--note", "ada"]);
    sandbox.run(&["lock", "break", "deploy"]).failed(2, "held by ada");
    let details = sandbox.run(&["lock", "get", "deploy"]).ok().out;
    assert!(details.contains("holder   ada\n") && details.contains("waiters  0\n"), "{details}");
    let listed = sandbox.run(&["lock", "ls", "-o", "ndjson"]).ok().json();
    assert_eq!(listed["fence"], held_locks(&sandbox, "deploy")[0]["fence"]);
    let broken = sandbox.run(&["lock", "break", "deploy", "--yes", "--json"]).ok().json();
    assert_eq!((&broken["broken"], &broken["held_by"][0]["note"]), (&1.into(), &"ada".into()));
    assert!(held_locks(&sandbox, "deploy").is_empty());
    sandbox.write("go", "");
    // The command may end before its lock is known to be lost; then the release reports it.
    holder.wait().failed(6, "lost");
}

#[test]
fn lock_break_ends_only_the_chosen_slot() {
    let sandbox = Sandbox::new();
    let (_one, _two) = (
        start_holder(&sandbox, &["gpu", "--slots", "2", "--note", "ada"]),
        start_holder(&sandbox, &["gpu", "--slots", "2", "--note", "bob"]),
    );
    let held = || -> Vec<(u64, String)> {
        let hold = |lock: &Value| (lock["slot"].as_u64().expect("a slot"), lock["note"].to_string());
        held_locks(&sandbox, "gpu").iter().map(hold).collect()
    };
    until("both hold it", || held().len() == 2);
    let before = held();
    let asked = sandbox.run(&["lock", "break", "gpu", "--yes"]).failed(2, "choose --slot N or --all");
    assert!(asked.err.contains("ada") && asked.err.contains("bob"), "{}", asked.err);
    sandbox.run(&["lock", "break", "gpu", "--slot", "3", "--yes"]).failed(3, "slot 3 of lock gpu is not held");
    sandbox.run(&["lock", "break", "gpu", "--slot", "2"]).failed(2, "Slot 2 of lock gpu is held by");
    sandbox.run(&["lock", "break", "gpu", "--slot", "2", "--yes"]).ok();
    assert_eq!(held(), before[..1]);
    sandbox.run(&["lock", "break", "gpu", "--all", "--yes"]).ok();
    assert_eq!(held(), []);
    let query = "SELECT coalesce(substr(filter, 1, 6), '') AS filter FROM duly_audit ORDER BY number";
    let recorded = sandbox.run(&["sql", query, "--json"]).ok().json();
    assert_eq!(recorded, serde_json::json!([{"filter": "owner="}, {"filter": ""}]), "one hold, then all");
}

#[test]
fn sigkill_kills_the_command_and_frees_the_lock() {
    let sandbox = Sandbox::new();
    let script = "sleep 60 & echo $! > grandchild; echo $$ > child; wait";
    let holder = sandbox.start(&["lock", "deploy", "--ttl", "60s", "--", "sh", "-c", script]);
    until("it runs", || sandbox.read("child").ends_with('\n'));
    holder.signal(Signal::KILL);
    let killed = Instant::now();
    sandbox.run(&["lock", "deploy", "--wait", "15s", "--", "true"]).ok();
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    until("the child is gone", || !is_running(&sandbox.read("child")));
    until("its child is gone", || !is_running(&sandbox.read("grandchild")));
}

#[test]
fn signals_are_forwarded_to_the_command() {
    let sandbox = Sandbox::new();
    let script = "trap 'sleep 0.2; touch cleaned; exit 5' TERM; touch runs; while :; do sleep 0.01; done";
    let holder = sandbox.start(&["lock", "deploy", "--", "sh", "-c", script]);
    until("it runs", || sandbox.path("runs").exists());
    holder.signal(Signal::TERM);
    let next = sandbox.run(&["lock", "deploy", "--", "test", "-e", "cleaned"]);
    assert_eq!(next.code, Some(0), "held until the command has ended: {next:?}");
    assert_eq!(holder.wait().code, Some(5));
}

#[test]
fn forwarded_signal_ends_only_the_command() {
    let sandbox = Sandbox::new();
    let script = "trap 'touch rotated' USR1; touch runs; until [ -e rotated ]; do sleep 0.01; done; exit 7";
    let holder = sandbox.start(&["lock", "deploy", "--", "sh", "-c", script]);
    until("it runs", || sandbox.path("runs").exists());
    holder.signal(Signal::USR1);
    assert_eq!(holder.wait().code, Some(7));
}

#[test]
fn signal_ends_the_wait() {
    let sandbox = Sandbox::new();
    let _holder = start_holder(&sandbox, &["deploy"]);
    let waiter = sandbox.start(&["lock", "deploy", "--", "touch", "wrong"]);
    until("it waits", || held_locks(&sandbox, "deploy")[0]["waiters"] == 1);
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.wait().code, Some(128 + 15));
    assert_eq!(held_locks(&sandbox, "deploy")[0]["waiters"], 0, "its wait is cancelled");
    assert!(!sandbox.path("wrong").exists());
}

#[test]
fn ignored_signal_stays_ignored() {
    let sandbox = Sandbox::new();
    let mut command = Command::new("sh");
    let duly = env!("CARGO_BIN_EXE_duly");
    command.args(["-c", &format!("trap '' HUP; exec {duly} lock deploy -q -- sh -c '{UNTIL_GO}'")]);
    let holder = Sandbox::start_command({
        command.current_dir(sandbox.path("")).stdin(Stdio::null());
        command
    });
    until("it runs", || sandbox.path("runs").exists());
    holder.signal(Signal::HUP);
    sandbox.write("go", "");
    holder.wait().ok();
}

#[test]
fn command_can_read_from_the_terminal() {
    let sandbox = Sandbox::new();
    let duly = env!("CARGO_BIN_EXE_duly");
    // The next command must get the terminal back.
    let line = format!("{duly} lock deploy -q -- sh -c 'read line; echo got $line'; read line; echo then $line");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/sh").current_dir(sandbox.path(""));
    let mut script =
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("script");
    let mut keyboard = script.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut keyboard, b"one\ntwo\n").expect("typed");
    drop(keyboard);
    let ran = RunOutput::from(script.wait_with_output().expect("it ends")).ok();
    assert!(ran.out.contains("got one") && ran.out.contains("then two"), "{ran:?}");
}

#[test]
fn lock_named_like_a_verb_works() {
    let sandbox = Sandbox::new();
    for name in ["ls", "get", "break"] {
        let ran = sandbox.run(&["lock", "--name", name, "--", "sh", "-c", "echo $DULY_LOCK"]).ok();
        assert_eq!(ran.out, format!("{name}\n"));
    }
    sandbox.run(&["lock", "ls", "--", "true"]).failed(2, "--name");
    sandbox.run(&["lock", "get", "deploy", "--", "true"]).failed(2, "--name");
    sandbox.run(&["lock", "--ttl", "1s", "ls"]).failed(2, "--name");
    sandbox.run(&["lock", "deploy", "--name", "ls", "--", "true"]).failed(2, "cannot be used with");
}

#[test]
fn invalid_input_is_rejected() {
    let sandbox = Sandbox::new();
    sandbox.run(&["lock"]).failed(2, "NAME");
    sandbox.run(&["lock", "deploy"]).failed(2, "COMMAND");
    sandbox.run(&["lock", "deploy", "true"]).failed(2, "true");
    sandbox.run(&["lock", "deploy", "--ttl", "1", "--", "true"]).failed(2, "not a duration");
    sandbox.run(&["lock", "deploy", "--ttl", "1ms", "--", "true"]).failed(2, "ttl");
    sandbox.run(&["lock", "deploy", "--slots", "0", "--", "true"]).failed(2, "slots");
    sandbox.run(&["lock", "deploy", "--wait", "1s", "--no-wait", "--", "true"]).failed(2, "cannot be used with");
    sandbox.run(&["lock", "deploy", "-E", "300", "--", "true"]).failed(2, "300");
    sandbox.run(&["lock", "", "--", "true"]).failed(2, "lock");
    sandbox.run(&["lock", "a\u{7}", "--", "true"]).failed(2, "lock");
}
