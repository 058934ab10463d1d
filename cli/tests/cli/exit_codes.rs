//! Each class of failure has its exit code and a one-line message with advice.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::sandbox::{Sandbox, until};

const UNKNOWN_ID: &str = "0192f7a1-0000-7000-8000-000000000000";

#[test]
fn invalid_usage_has_its_exit_code() {
    let sandbox = Sandbox::new();
    sandbox.run(&["bogus"]).failed(2, "bogus");
    sandbox.run(&["push"]).failed(2, "required");
    sandbox.run(&["push", "--nonsense", "mail"]).failed(2, "--nonsense");
    sandbox.run(&["jobs", "get", "not-an-id"]).failed(2, "not the id of a job");
    sandbox.run(&["jobs", "ls", "--state", "failed"]).failed(2, "use scheduled, ready");
    sandbox.run(&["push", "--priority", "urgent", "mail"]).failed(2, "use low, normal, high or critical");
    sandbox.run(&["push", "--in", "10", "mail"]).failed(2, "not a duration");
    sandbox.run(&["work", "--queue", "a=b"]).failed(2, "a=3");
    sandbox.run(&["work", "--concurrency", "0"]).failed(2, "concurrency");
    assert_eq!(sandbox.run(&[]).code, Some(2));
    assert!(!sandbox.path("duly.db").exists() || sandbox.run(&["queues", "ls", "--json"]).json()["queues"].is_array());
}

#[test]
fn invalid_input_is_rejected() {
    let sandbox = Sandbox::new();
    sandbox.run(&["push", "mail", "{"]).failed(2, "not JSON");
    sandbox.run(&["push", "a b"]).failed(2, "only letters");
    sandbox.run(&["push", "--queue", "a\u{1b}[31m", "mail"]).failed(2, "queue");
    sandbox.run(&["push", "--store", "mysql://host/0", "mail"]).failed(2, "not a store");
    sandbox.run(&["push", "--store", "duly.db?speed=9", "mail"]).failed(2, "has the unknown option");
}

#[test]
fn store_in_memory_is_rejected() {
    let sandbox = Sandbox::new();
    for args in [&["push", "mail"][..], &["queues", "ls"], &["cron", "add", "a", "@daily", "--kind", "b"]] {
        sandbox.run(&[args, &["--store", ":memory:"]].concat()).failed(2, "name a file");
    }
    sandbox.run(&["work", "--until-empty", "--store", ":memory:"]).ok();
    sandbox.run(&["push", "mail", "--store", "file:x.db"]).ok();
    assert!(sandbox.path("x.db").exists() && !sandbox.path("file:x.db").exists());
}

#[test]
fn missing_file_and_taken_port_are_reported() {
    let sandbox = Sandbox::new();
    sandbox.run(&["cron", "apply", "-f", "none.toml"]).failed(2, "cannot read none.toml");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    sandbox.run(&["serve", "--listen", &address]).failed(1, "choose another address with --listen");
}

#[test]
fn arguments_that_are_not_utf_8_are_rejected() {
    use std::os::unix::ffi::OsStrExt;
    let sandbox = Sandbox::new();
    let bad = std::ffi::OsStr::from_bytes(b"/tmp/\xff.db");
    for args in [&["push", "mail"][..], &["queues", "ls", "--store"], &["--server"], &["push", "--"]] {
        let ran: crate::sandbox::RunOutput = sandbox.command(args).arg(bad).output().expect("it runs").into();
        ran.failed(2, "UTF-8");
    }
}

#[test]
fn too_long_stdin_is_rejected() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.command(&["push", "mail", "-"]);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || {
        // The process may stop reading at any time.
        let _ = stdin.write_all(format!("\"{}\"", "x".repeat(10 * 1024 * 1024)).as_bytes());
    });
    let ran: crate::sandbox::RunOutput = child.wait_with_output().expect("it ends").into();
    writer.join().expect("no panic");
    ran.failed(2, "store large data elsewhere");
}

#[test]
fn args_are_read_from_stdin() {
    let sandbox = Sandbox::new();
    sandbox.write("args", "{\"n\": 1}");
    let mut command = sandbox.command(&["push", "mail", "-"]);
    command.stdin(std::fs::File::open(sandbox.path("args")).expect("a file"));
    let ran: crate::sandbox::RunOutput = command.output().expect("it runs").into();
    assert_eq!(sandbox.job(&ran.ok().id())["args"], serde_json::json!({"n": 1}));
}

#[test]
fn not_found_has_its_exit_code() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    for verb in [&["jobs", "get"][..], &["jobs", "retry"], &["jobs", "rm"], &["jobs", "wait"]] {
        sandbox.run(&[verb, &[UNKNOWN_ID]].concat()).failed(3, UNKNOWN_ID);
    }
}

#[test]
fn wait_timeout_reports_the_state() {
    let sandbox = Sandbox::new();
    let (good, bad) = (sandbox.push(&["--", "true"]), sandbox.push(&["--max-attempts", "1", "--", "false"]));
    sandbox.run(&["jobs", "wait", &good, "--timeout", "0s"]).failed(124, "still ready");
    sandbox.run(&["work", "--until-empty"]).ok();
    sandbox.run(&["jobs", "wait", &good, "--timeout", "0s"]).ok();
    sandbox.run(&["jobs", "wait", &bad, "--timeout", "0s"]).failed(1, "is dead");
    sandbox.run(&["jobs", "wait", UNKNOWN_ID, "--timeout", "0s"]).failed(3, UNKNOWN_ID);
}

#[test]
fn conflict_has_its_exit_code() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    let _worker = sandbox.start(&["work"]);
    until("the job runs", || sandbox.path("runs").exists());
    sandbox.run(&["jobs", "rm", &id]).failed(4, "is running");
    sandbox.run(&["jobs", "retry", &id]).failed(4, "is running");
}

#[test]
fn unreachable_store_has_its_exit_code() {
    let sandbox = Sandbox::new();
    sandbox.run(&["push", "--store", "missing/duly.db", "mail"]).failed(5, "create it first");
    sandbox.run(&["push", "--store", ".", "mail"]).failed(5, "is a directory");
    sandbox.write("text.db", &"this is not SQLite\n".repeat(100));
    sandbox.run(&["push", "--store", "text.db", "mail"]).failed(5, "not a SQLite file");
    sandbox.run(&["doctor", "--store", "none.db"]).failed(5, "push a job first");
    assert!(!sandbox.path("none.db").exists(), "looking leaves nothing behind");
}

/// A user who needs the ACL rules cannot log in to the server yet.
#[test]
fn acl_is_printed_without_a_server() {
    let sandbox = Sandbox::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("is bound");
    let store = format!("redis://nobody:wrong@{closed}?prefix=app");
    let ran = sandbox.run(&["doctor", "--acl", "--store", &store]).ok();
    assert!(
        ran.out.starts_with("ACL SETUSER duly on >PASSWORD resetkeys ~app:* resetchannels &app:* -@all +auth"),
        "{ran:?}"
    );
    assert!(!ran.out.contains("config"), "CONFIG GET shows the server's password: {ran:?}");
    let ran = sandbox.run(&["doctor", "--acl", "--with-config", "--store", &store]).ok();
    assert!(ran.out.contains(" +config|get"), "{ran:?}");
    sandbox.run(&["doctor", "--store", &store]).failed(5, "cannot reach the server");
    sandbox.run(&["doctor", "--acl"]).failed(2, "--acl supports only");
    assert!(!sandbox.path("duly.db").exists(), "looking leaves nothing behind");
}

#[test]
fn read_only_file_is_reported() {
    const NOBODY_UID: u32 = 65_534;
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    let set_mode = |name: &str, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(sandbox.path(name), mode).expect("ours");
    };
    set_mode("duly.db", 0o444);
    let mut command = sandbox.command(&["push", "mail"]);
    if rustix::process::geteuid().is_root() {
        // Root may write everywhere, so the user `nobody` runs a copy of the program.
        std::fs::copy(env!("CARGO_BIN_EXE_duly"), sandbox.path("duly")).expect("a copy");
        set_mode("duly", 0o755);
        set_mode("", 0o755);
        command = std::process::Command::new(sandbox.path("duly"));
        command.current_dir(sandbox.path("")).args(["push", "mail"]).uid(NOBODY_UID).gid(NOBODY_UID);
    }
    let ran: crate::sandbox::RunOutput = command.output().expect("it runs").into();
    ran.failed(5, "permissions");
}

#[test]
fn newer_format_is_left_unchanged() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    let conn = duly::rusqlite::Connection::open(sandbox.path("duly.db")).expect("SQLite");
    conn.execute("UPDATE duly_meta SET value = '99' WHERE name = 'format'", []).expect("written");
    drop(conn);
    sandbox.run(&["push", "mail"]).failed(5, "use a newer duly");
    sandbox.run(&["doctor"]).failed(5, "use a newer duly");
}

#[test]
fn bulk_remove_requires_yes() {
    let sandbox = Sandbox::new();
    let ids = [sandbox.push(&["mail"]), sandbox.push(&["mail"])];
    sandbox.run(&["jobs", "rm", &ids[0], &ids[1]]).failed(2, "--yes");
    // A missing job does not stop the removal of the others.
    let ran = sandbox.run(&["jobs", "rm", "--yes", UNKNOWN_ID, &ids[0], &ids[1]]).failed(3, UNKNOWN_ID);
    assert_eq!(ran.err.matches("removed").count(), 2, "{ran:?}");
    sandbox.run(&["jobs", "get", &ids[1]]).failed(3, &ids[1]);
}

#[test]
fn push_next_to_a_deleted_file_in_use_creates_nothing() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    let _worker = sandbox.start(&["work"]);
    until("the job runs", || sandbox.path("runs").exists());
    for name in ["duly.db", "duly.db-wal", "duly.db-shm"] {
        let _ = std::fs::remove_file(sandbox.path(name));
    }
    sandbox.run(&["push", "mail"]).failed(5, "processes still use the file that was there before");
    assert!(!sandbox.path("duly.db").exists(), "no empty file is left; {id} was in the deleted one");
}
