//! Each class of failure has its exit code and one line that says what to do.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::bed::{Bed, until};

const NOBODY: &str = "0192f7a1-0000-7000-8000-000000000000";

#[test]
fn wrong_usage() {
    let bed = Bed::new();
    bed.run(&["bogus"]).failed(2, "bogus");
    bed.run(&["push"]).failed(2, "required");
    bed.run(&["push", "--nonsense", "mail"]).failed(2, "--nonsense");
    bed.run(&["jobs", "get", "not-an-id"]).failed(2, "not a job id");
    bed.run(&["jobs", "ls", "--state", "failed"]).failed(2, "none of scheduled");
    bed.run(&["push", "--priority", "urgent", "mail"]).failed(2, "none of low");
    bed.run(&["push", "--in", "10", "mail"]).failed(2, "not a duration");
    bed.run(&["work", "--queue", "a=b"]).failed(2, "a=3");
    bed.run(&["work", "--concurrency", "0"]).failed(2, "concurrency");
    assert_eq!(bed.run(&[]).code, Some(2));
    assert!(!bed.path("duly.db").exists() || bed.run(&["queues", "ls", "--json"]).json().as_array().is_some());
}

#[test]
fn wrong_input() {
    let bed = Bed::new();
    bed.run(&["push", "mail", "{"]).failed(2, "not JSON");
    bed.run(&["push", "a b"]).failed(2, "only letters");
    bed.run(&["push", "--queue", "a\u{1b}[31m", "mail"]).failed(2, "queue");
    bed.run(&["push", "--store", "mysql://host/0", "mail"]).failed(2, "not a store");
    bed.run(&["push", "--store", "duly.db?speed=9", "mail"]).failed(2, "has no option");
}

#[test]
fn a_store_in_memory_is_gone_at_once() {
    let bed = Bed::new();
    for args in [&["push", "mail"][..], &["queues", "ls"], &["cron", "add", "a", "@daily", "--kind", "b"]] {
        bed.run(&[args, &["--store", ":memory:"]].concat()).failed(2, "name a file");
    }
    bed.run(&["work", "--until-empty", "--store", ":memory:"]).ok();
    bed.run(&["push", "mail", "--store", "file:x.db"]).ok();
    assert!(bed.path("x.db").exists() && !bed.path("file:x.db").exists());
}

#[test]
fn a_file_that_is_not_there_and_a_port_that_is_taken() {
    let bed = Bed::new();
    bed.run(&["cron", "apply", "-f", "none.toml"]).failed(2, "cannot read none.toml");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    bed.run(&["serve", "--listen", &address]).failed(1, "choose another with --listen");
}

#[test]
fn words_that_are_not_utf_8() {
    use std::os::unix::ffi::OsStrExt;
    let bed = Bed::new();
    let bad = std::ffi::OsStr::from_bytes(b"/tmp/\xff.db");
    for args in [&["push", "mail"][..], &["queues", "ls", "--store"], &["--server"], &["push", "--"]] {
        let ran: crate::bed::Ran = bed.command(args).arg(bad).output().expect("it runs").into();
        ran.failed(2, "UTF-8");
    }
}

#[test]
fn too_much_on_stdin() {
    let bed = Bed::new();
    let mut child = bed.command(&["push", "mail", "-"]);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || {
        // It may stop reading at any moment.
        let _ = stdin.write_all(format!("\"{}\"", "x".repeat(10 * 1024 * 1024)).as_bytes());
    });
    let ran: crate::bed::Ran = child.wait_with_output().expect("it ends").into();
    writer.join().expect("no panic");
    ran.failed(2, "put large data elsewhere");
}

#[test]
fn args_from_stdin() {
    let bed = Bed::new();
    bed.write("args", "{\"n\": 1}");
    let mut command = bed.command(&["push", "mail", "-"]);
    command.stdin(std::fs::File::open(bed.path("args")).expect("a file"));
    let ran: crate::bed::Ran = command.output().expect("it runs").into();
    assert_eq!(bed.job(&ran.ok().id())["args"], serde_json::json!({"n": 1}));
}

#[test]
fn not_found() {
    let bed = Bed::new();
    bed.push(&["mail"]);
    for verb in [&["jobs", "get"][..], &["jobs", "retry"], &["jobs", "rm"], &["jobs", "wait"]] {
        bed.run(&[verb, &[NOBODY]].concat()).failed(3, NOBODY);
    }
}

#[test]
fn who_waits_no_longer_is_told_how_it_is() {
    let bed = Bed::new();
    let (good, bad) = (bed.push(&["--", "true"]), bed.push(&["--max-attempts", "1", "--", "false"]));
    bed.run(&["jobs", "wait", &good, "--timeout", "0s"]).failed(124, "still ready");
    bed.run(&["work", "--until-empty"]).ok();
    bed.run(&["jobs", "wait", &good, "--timeout", "0s"]).ok();
    bed.run(&["jobs", "wait", &bad, "--timeout", "0s"]).failed(1, "is dead");
    bed.run(&["jobs", "wait", NOBODY, "--timeout", "0s"]).failed(3, NOBODY);
}

#[test]
fn conflict() {
    let bed = Bed::new();
    let id = bed.push(&["--", "sh", "-c", "touch runs; sleep 60"]);
    let _worker = bed.start(&["work"]);
    until("the job runs", || bed.path("runs").exists());
    bed.run(&["jobs", "rm", &id]).failed(4, "is running");
    bed.run(&["jobs", "retry", &id]).failed(4, "is running");
}

#[test]
fn store_out_of_reach() {
    let bed = Bed::new();
    bed.run(&["push", "--store", "missing/duly.db", "mail"]).failed(5, "create it first");
    bed.run(&["push", "--store", ".", "mail"]).failed(5, "is a directory");
    bed.write("text.db", &"this is not SQLite\n".repeat(100));
    bed.run(&["push", "--store", "text.db", "mail"]).failed(5, "not a SQLite file");
    bed.run(&["doctor", "--store", "none.db"]).failed(5, "push a job first");
    assert!(!bed.path("none.db").exists(), "looking leaves nothing behind");
}

/// Whoever needs the line is refused by the server until it was given.
#[test]
fn the_rights_that_are_needed_are_printed_without_a_server() {
    let bed = Bed::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("is bound");
    let store = format!("redis://nobody:wrong@{closed}?prefix=app");
    let ran = bed.run(&["doctor", "--acl", "--store", &store]).ok();
    assert!(
        ran.out.starts_with("ACL SETUSER duly on >PASSWORD resetkeys ~app:* resetchannels &app:* -@all +auth"),
        "{ran:?}"
    );
    bed.run(&["doctor", "--store", &store]).failed(5, "cannot reach the server");
    bed.run(&["doctor", "--acl"]).failed(2, "rules are known for");
    assert!(!bed.path("duly.db").exists(), "looking leaves nothing behind");
}

#[test]
fn a_read_only_file() {
    const NOBODY_UID: u32 = 65_534;
    let bed = Bed::new();
    bed.push(&["mail"]);
    let allow = |name: &str, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(bed.path(name), mode).expect("ours");
    };
    allow("duly.db", 0o444);
    let mut command = bed.command(&["push", "mail"]);
    if rustix::process::geteuid().is_root() {
        // Root may write everywhere: nobody takes its place, with a copy of the program that nobody can reach.
        std::fs::copy(env!("CARGO_BIN_EXE_duly"), bed.path("duly")).expect("a copy");
        allow("duly", 0o755);
        allow("", 0o755);
        command = std::process::Command::new(bed.path("duly"));
        command.current_dir(bed.path("")).args(["push", "mail"]).uid(NOBODY_UID).gid(NOBODY_UID);
    }
    let ran: crate::bed::Ran = command.output().expect("it runs").into();
    ran.failed(5, "permissions");
}

#[test]
fn a_newer_format_is_left_alone() {
    let bed = Bed::new();
    bed.push(&["mail"]);
    let conn = duly::rusqlite::Connection::open(bed.path("duly.db")).expect("SQLite");
    conn.execute("UPDATE duly_meta SET value = '99' WHERE name = 'format'", []).expect("written");
    drop(conn);
    bed.run(&["push", "mail"]).failed(5, "use a newer duly");
    bed.run(&["doctor"]).failed(5, "use a newer duly");
}

#[test]
fn removing_many_wants_a_yes() {
    let bed = Bed::new();
    let ids = [bed.push(&["mail"]), bed.push(&["mail"])];
    bed.run(&["jobs", "rm", &ids[0], &ids[1]]).failed(2, "--yes");
    // One that is not there does not keep the others from going.
    let ran = bed.run(&["jobs", "rm", "--yes", NOBODY, &ids[0], &ids[1]]).failed(3, NOBODY);
    assert_eq!(ran.err.matches("removed").count(), 2, "{ran:?}");
    bed.run(&["jobs", "get", &ids[1]]).failed(3, &ids[1]);
}
