//! `duly work`: commands, programs, exit codes.

use crate::bed::{Bed, until};

#[test]
fn a_command_runs_where_it_was_pushed() {
    let bed = Bed::new();
    let id = bed.push(&["--", "sh", "-c", "pwd > proof; echo \"$DULY_KIND $DULY_ATTEMPT\" >> proof; echo seen"]);
    let elsewhere = Bed::new();
    let ran = elsewhere.run(&["work", "--until-empty", "--store", bed.path("duly.db").to_str().expect("text")]).ok();
    let dir = bed.path("").canonicalize().expect("a directory");
    assert_eq!(bed.read("proof"), format!("{}\ncommand 1\n", dir.display()));
    assert!(ran.out.contains("started") && ran.out.contains("attempt 1/25") && ran.out.contains("done"), "{ran:?}");
    assert!(ran.err.contains(&format!("{} |  seen", &id[28..])), "{ran:?}");
    assert_eq!(bed.job(&id)["state"], "done");
}

#[test]
fn a_program_runs_any_other_kind() {
    let bed = Bed::new();
    let id = bed.push(&["--queue", "mails", "mail", r#"{"to":"ada"}"#]);
    let script = "cat > got; echo $DULY_ID $DULY_KIND $DULY_QUEUE $DULY_ATTEMPT $DULY_FENCE $1 > env";
    bed.run(&["work", "--until-empty", "--queue", "mails=2", "--exec", "sh", "--", "-c", script, "sh", "arg"]).ok();
    assert_eq!(bed.read("got"), r#"{"to":"ada"}"#);
    let env = bed.read("env");
    assert!(env.starts_with(&format!("{id} mail mails 1 ")) && env.ends_with(" arg\n"), "{env}");
    assert_eq!(bed.job(&id)["state"], "done");
}

#[test]
fn a_failed_attempt_is_retried_and_recovers() {
    let bed = Bed::new();
    let id = bed.push(&["--", "sh", "-c", "test -e flag || { touch flag; echo not yet >&2; exit 3; }"]);
    let _worker = bed.start(&["work"]);
    bed.run(&["jobs", "wait", &id, "--timeout", "15s"]).ok();
    let job = bed.job(&id);
    assert_eq!(job["failures"][0]["error"], "exit code 3: not yet");
    assert_eq!(job["attempts"], 1);
}

#[test]
fn exit_codes_and_signals_decide() {
    let bed = Bed::new();
    let cases = [
        ("exit 100", "dead", "exit code 100"),
        ("kill -9 $$", "scheduled", "killed by signal 9"),
        ("exec ./not-there", "scheduled", "127"),
    ];
    let ids = cases.map(|(script, ..)| bed.push(&["--", "sh", "-c", script]));
    let missing = bed.push(&["--", "./not-there-either"]);
    let nowhere = bed.push(&["command", r#"{"argv":["true"],"dir":"/not/there"}"#]);
    let broken = bed.push(&["command", r#"{"argv":"true"}"#]);
    let ran = bed.run(&["work", "--until-empty"]).ok();
    for ((_, state, error), id) in cases.iter().zip(&ids) {
        let job = bed.job(id);
        assert_eq!(job["state"], *state, "{job}");
        assert!(job["failures"][0]["error"].as_str().expect("text").contains(error), "{job} {ran:?}");
    }
    let error = |id: &str| bed.job(id)["failures"][0]["error"].as_str().expect("text").to_owned();
    assert!(error(&missing).contains("cannot run ./not-there-either"), "{}", error(&missing));
    assert!(error(&nowhere).contains("cannot start in /not/there"), "{}", error(&nowhere));
    assert!(error(&broken).contains("argv"), "{}", error(&broken));
    assert_eq!(bed.job(&broken)["state"], "dead");
    bed.run(&["jobs", "retry", &broken]).ok();
    assert_eq!(bed.job(&broken)["state"], "ready");
}

#[test]
fn a_timeout_kills_the_whole_group() {
    let bed = Bed::new();
    let id =
        bed.push(&["--timeout", "300ms", "--max-attempts", "1", "--", "sh", "-c", "sleep 60 & echo $! > pid; wait"]);
    let _worker = bed.start(&["work"]);
    bed.until_state(&id, "dead");
    assert!(bed.job(&id)["failures"][0]["error"].as_str().expect("text").contains("timed out"));
    until("the grandchild is gone", || !crate::bed::runs(&bed.read("pid")));
}

#[test]
fn a_long_complaint_is_cut_to_its_end() {
    let bed = Bed::new();
    let id = bed.push(&["--", "sh", "-c", "seq 1 20000 >&2; exit 1"]);
    bed.run(&["work", "--until-empty", "-q"]).ok();
    let job = bed.job(&id);
    let error = job["failures"][0]["error"].as_str().expect("text");
    assert!(error.len() <= 4096 && error.ends_with("20000"), "{}", error.len());
}

#[test]
fn what_is_left_running_does_not_hold_up_the_job() {
    let bed = Bed::new();
    // It keeps our pipe open for longer than any patience.
    let id = bed.push(&["--", "sh", "-c", "sleep 60 & echo $! > pid"]);
    bed.run(&["work", "--until-empty"]).ok();
    assert_eq!(bed.job(&id)["state"], "done");
    let pid = bed.read("pid").trim().parse().ok().and_then(rustix::process::Pid::from_raw).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it was left alone");
}

#[test]
fn events_as_json_lines() {
    let bed = Bed::new();
    let id = bed.push(&["--", "true"]);
    let ran = bed.run(&["work", "--until-empty", "-o", "ndjson"]).ok();
    let events: Vec<serde_json::Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["joined", "started", "done"], "{ran:?}");
    assert_eq!(events[1]["id"], id.as_str());
}

#[test]
fn a_release_is_shown_with_its_reason() {
    let bed = Bed::new();
    bed.push(&["mail", "{}"]);
    let ran = bed.run(&["work", "--until-empty"]).ok();
    assert!(ran.out.contains("released  mail") && ran.out.contains("no handler here knows its kind"), "{ran:?}");
    bed.push(&["post", "{}"]);
    let ran = bed.run(&["work", "--until-empty", "-o", "ndjson"]).ok();
    assert!(ran.out.contains(r#""why":"no handler here knows its kind""#), "{ran:?}");
}

#[test]
fn a_program_that_is_not_there_costs_no_attempt() {
    let bed = Bed::new();
    let id = bed.push(&["mail"]);
    bed.run(&["work", "--until-empty", "--exec", "/nonexistent"]).failed(2, "there is no program");
    bed.run(&["work", "--until-empty", "--exec", "sleep 1"]).failed(2, "arguments follow after `--`");
    bed.run(&["work", "--until-empty", "--exec", "no-such-program-at-all"]).failed(2, "there is no program");
    bed.run(&["work", "--until-empty", "--exec", "./duly.db"]).failed(2, "may not be run");
    assert_eq!((&bed.job(&id)["attempts"], &bed.job(&id)["state"]), (&0.into(), &"ready".into()));
    bed.write("duly.toml", "[work]\nexec = \"./none\"\n");
    bed.run(&["work", "--until-empty"]).failed(2, "./none");
}

#[test]
fn what_is_left_for_others_is_told() {
    let bed = Bed::new();
    bed.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    let _elsewhere = bed.start(&["work"]);
    until("the job runs", || bed.path("runs").exists());
    bed.run(&["queues", "pause", "idle"]).ok();
    bed.push(&["--queue", "idle", "--", "true"]);
    let ran = bed.run(&["work", "--until-empty", "--queue", "default", "--queue", "idle"]).ok();
    let told = "left: 1 running elsewhere in queue default, 1 ready in queue idle, which is paused";
    assert!(ran.err.contains(told), "{ran:?}");
    bed.run(&["queues", "resume", "idle"]).ok();
    let ran = bed.run(&["work", "--until-empty", "--queue", "idle"]).ok();
    assert!(!ran.err.contains("left"), "{ran:?}");
}
