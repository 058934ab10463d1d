//! `duly work`: commands, programs and exit codes.

use crate::sandbox::{Sandbox, until};

#[test]
fn command_runs_in_the_directory_of_its_push() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "pwd > proof; echo \"$DULY_KIND $DULY_ATTEMPT\" >> proof; echo seen"]);
    let elsewhere = Sandbox::new();
    let ran =
        elsewhere.run(&["work", "--until-empty", "--store", sandbox.path("duly.db").to_str().expect("text")]).ok();
    let dir = sandbox.path("").canonicalize().expect("a directory");
    assert_eq!(sandbox.read("proof"), format!("{}\ncommand 1\n", dir.display()));
    assert!(ran.out.contains("started") && ran.out.contains("attempt 1/25") && ran.out.contains("done"), "{ran:?}");
    assert!(ran.err.contains(&format!("{} |  seen", &id[28..])), "{ran:?}");
    assert_eq!(sandbox.job(&id)["state"], "done");
}

#[test]
fn program_runs_any_other_kind() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--queue", "mails", "mail", r#"{"to":"ada"}"#]);
    let script = "cat > got; echo $DULY_ID $DULY_KIND $DULY_QUEUE $DULY_ATTEMPT $DULY_FENCE $1 > env";
    sandbox.run(&["work", "--until-empty", "--queue", "mails=2", "--exec", "sh", "--", "-c", script, "sh", "arg"]).ok();
    assert_eq!(sandbox.read("got"), r#"{"to":"ada"}"#);
    let env = sandbox.read("env");
    assert!(env.starts_with(&format!("{id} mail mails 1 ")) && env.ends_with(" arg\n"), "{env}");
    assert_eq!(sandbox.job(&id)["state"], "done");
}

#[test]
fn failed_attempt_is_retried() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "test -e flag || { touch flag; echo not yet >&2; exit 3; }; echo ready"]);
    let _worker = sandbox.start(&["work"]);
    sandbox.run(&["jobs", "wait", &id, "--timeout", "15s"]).ok();
    let job = sandbox.job(&id);
    assert_eq!(job["failures"][0]["error"], "exit code 3: not yet");
    assert_eq!(job["attempts"], 1);
    let [failed, done] = [&job["runs"][0], &job["runs"][1]];
    assert!(failed["outcome"] == "retry" && failed["output"] == "not yet" && failed["node"].is_string(), "{job}");
    assert!(done["outcome"] == "ack" && done["output"] == "ready", "{job}");
    let shown = sandbox.run(&["jobs", "get", &id]).ok().out;
    assert!(shown.contains("2 of at most 25, 1 failed") && shown.contains("ready"), "{shown}");
}

#[test]
fn exit_codes_and_signals_decide_the_outcome() {
    let sandbox = Sandbox::new();
    let cases = [
        ("exit 100", "dead", "exit code 100"),
        ("kill -9 $$", "scheduled", "killed by signal 9"),
        ("exec ./not-there", "scheduled", "127"),
    ];
    let ids = cases.map(|(script, ..)| sandbox.push(&["--", "sh", "-c", script]));
    let missing = sandbox.push(&["--", "./not-there-either"]);
    let nowhere = sandbox.push(&["command", r#"{"argv":["true"],"dir":"/not/there"}"#]);
    // `push` refuses such args; other programs may push them.
    sandbox.write("broken", "{\"argv\":\"true\"}\n");
    let mut command = sandbox.command(&["push", "--bulk", "command", "-o", "ndjson"]);
    command.stdin(std::fs::File::open(sandbox.path("broken")).expect("a file"));
    let pushed = crate::sandbox::RunOutput::from(command.output().expect("it runs")).ok().json();
    let broken = pushed["id"].as_str().expect("an id").to_owned();
    let ran = sandbox.run(&["work", "--until-empty"]).ok();
    for ((_, state, error), id) in cases.iter().zip(&ids) {
        let job = sandbox.job(id);
        assert_eq!(job["state"], *state, "{job}");
        assert!(job["failures"][0]["error"].as_str().expect("text").contains(error), "{job} {ran:?}");
    }
    let error = |id: &str| sandbox.job(id)["failures"][0]["error"].as_str().expect("text").to_owned();
    assert!(error(&missing).contains("cannot run ./not-there-either"), "{}", error(&missing));
    assert!(error(&nowhere).contains("cannot start in /not/there"), "{}", error(&nowhere));
    assert!(error(&broken).contains("argv"), "{}", error(&broken));
    assert_eq!(sandbox.job(&broken)["state"], "dead");
    sandbox.run(&["jobs", "retry", &broken]).ok();
    assert_eq!(sandbox.job(&broken)["state"], "ready");
}

#[test]
fn timeout_kills_the_process_group() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&[
        "--timeout",
        "300ms",
        "--max-attempts",
        "1",
        "--",
        "sh",
        "-c",
        "sleep 60 & echo $! > pid; wait",
    ]);
    let _worker = sandbox.start(&["work"]);
    sandbox.until_state(&id, "dead");
    assert!(sandbox.job(&id)["failures"][0]["error"].as_str().expect("text").contains("timed out"));
    until("the grandchild is gone", || !crate::sandbox::is_running(&sandbox.read("pid")));
}

#[test]
fn long_stderr_is_truncated_to_its_end() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "seq 1 20000 >&2; exit 1"]);
    sandbox.run(&["work", "--until-empty", "-q"]).ok();
    let job = sandbox.job(&id);
    let error = job["failures"][0]["error"].as_str().expect("text");
    assert!(error.len() <= 4096 && error.ends_with("20000"), "{}", error.len());
}

#[test]
fn background_process_does_not_block_the_job() {
    let sandbox = Sandbox::new();
    // The background process keeps the pipe open after the job.
    let id = sandbox.push(&["--", "sh", "-c", "sleep 60 & echo $! > pid"]);
    sandbox.run(&["work", "--until-empty"]).ok();
    assert_eq!(sandbox.job(&id)["state"], "done");
    let pid = sandbox.read("pid").trim().parse().ok().and_then(rustix::process::Pid::from_raw).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it was left alone");
}

#[test]
fn events_are_printed_as_json_lines() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "true"]);
    let ran = sandbox.run(&["work", "--until-empty", "-o", "ndjson"]).ok();
    let events: Vec<serde_json::Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["joined", "started", "done"], "{ran:?}");
    assert_eq!(events[1]["id"], id.as_str());
}

#[test]
fn release_is_shown_with_its_reason() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail", "{}"]);
    let ran = sandbox.run(&["work", "--until-empty"]).ok();
    assert!(ran.out.contains("released  mail") && ran.out.contains("no handler for its kind on this node"), "{ran:?}");
    sandbox.push(&["post", "{}"]);
    let ran = sandbox.run(&["work", "--until-empty", "-o", "ndjson"]).ok();
    assert!(ran.out.contains(r#""reason":"no handler for its kind on this node""#), "{ran:?}");
}

#[test]
fn missing_program_costs_no_attempt() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail"]);
    sandbox.run(&["work", "--until-empty", "--exec", "/nonexistent"]).failed(2, "does not exist");
    sandbox.run(&["work", "--until-empty", "--exec", "sleep 1"]).failed(2, "arguments follow after `--`");
    sandbox.run(&["work", "--until-empty", "--exec", "no-such-program-at-all"]).failed(2, "does not exist");
    sandbox.run(&["work", "--until-empty", "--exec", "./duly.db"]).failed(2, "this user may not run it");
    assert_eq!((&sandbox.job(&id)["attempts"], &sandbox.job(&id)["state"]), (&0.into(), &"ready".into()));
    sandbox.write("duly.toml", "[work]\nexec = \"./none\"\n");
    sandbox.run(&["work", "--until-empty"]).failed(2, "./none");
}

#[test]
fn jobs_left_for_other_workers_are_reported() {
    let sandbox = Sandbox::new();
    sandbox.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    let _elsewhere = sandbox.start(&["work"]);
    until("the job runs", || sandbox.path("runs").exists());
    sandbox.run(&["queues", "pause", "idle"]).ok();
    sandbox.push(&["--queue", "idle", "--", "true"]);
    let ran = sandbox.run(&["work", "--until-empty", "--queue", "default", "--queue", "idle"]).ok();
    let message = "left: 1 running elsewhere in queue default, 1 ready in queue idle, which is paused";
    assert!(ran.err.contains(message), "{ran:?}");
    sandbox.run(&["queues", "resume", "idle"]).ok();
    let ran = sandbox.run(&["work", "--until-empty", "--queue", "idle"]).ok();
    assert!(!ran.err.contains("left"), "{ran:?}");
}

/// The worker may open too few files for the pipes of all processes.
#[test]
fn lack_of_descriptors_uses_up_no_attempt() {
    const JOBS: usize = 40;
    let sandbox = Sandbox::new();
    let ids: Vec<String> = (0..JOBS).map(|_| sandbox.push(&["--", "sleep", "1"])).collect();
    let mut shell = std::process::Command::new("sh");
    let worker = sandbox.command(&["work", "--until-empty", "--concurrency", &JOBS.to_string()]);
    shell.args(["-c", "ulimit -n 100; exec \"$0\" \"$@\""]).arg(worker.get_program()).args(worker.get_args());
    shell.current_dir(sandbox.path("")).stdin(std::process::Stdio::null());
    for (name, _) in worker.get_envs() {
        shell.env_remove(name);
    }
    let ran = Sandbox::start_command(shell).wait().ok();
    let jobs: Vec<_> = ids.iter().map(|id| sandbox.job(id)).collect();
    assert!(jobs.iter().all(|job| job["attempts"] == 0), "{ran:?}");
    let count = |state: &str| jobs.iter().filter(|job| job["state"] == state).count();
    assert!(count("done") > 0 && count("scheduled") > 0, "{} done; {ran:?}", count("done"));
}

#[test]
fn worker_that_cannot_write_its_output_fails_and_says_so() {
    let sandbox = Sandbox::new();
    sandbox.push(&["--", "true"]);
    let full = std::fs::File::options().write(true).open("/dev/full").expect("is there");
    let output = sandbox.command(&["work"]).stdout(full).stderr(std::process::Stdio::piped()).output().expect("starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("stdout cannot be written: No space left"), "{message}");
}
