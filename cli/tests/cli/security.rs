//! Secrets stay in the process, other users' settings are not read, and changes by commands are recorded.

use std::os::unix::fs::{PermissionsExt, chown, symlink};

use serde_json::{Value, json};

use crate::sandbox::Sandbox;

#[test]
fn commands_inherit_no_secrets() {
    let sandbox = Sandbox::new();
    sandbox.run(&["push", "--", "sh", "-c", "env > command"]).ok();
    sandbox.run(&["push", "mail"]).ok();
    let mut work = sandbox.command(&["work", "--until-empty", "--exec", "sh", "--", "-c", "env > program"]);
    let secret = "a-secret-of-at-least-32-bytes-which-nobody-may-see";
    work.env("DULY_STORE", sandbox.path("duly.db")).env("DULY_CLUSTER_KEY", secret).env("PLAIN", "kept");
    work.env("DULY_TOKEN", secret).env("DULY_FROM", secret).env("DULY_TO", secret).env("DULY_ACTIONHERO_TOKEN", secret);
    work.env("DULY_ADMIN_TOKEN_FILE", secret);
    let worked = work.output().expect("it runs");
    assert!(worked.status.success(), "{worked:?}");
    for file in ["command", "program"] {
        let env = sandbox.read(file);
        assert!(env.contains("PLAIN=kept") && env.contains("DULY_ID="), "{file}: {env}");
        assert!(!env.contains(secret) && !env.contains("DULY_STORE"), "{file}: {env}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn commands_cannot_read_secrets_of_any_process_of_the_worker() {
    use std::os::unix::process::CommandExt;

    let sandbox = Sandbox::new();
    let script = "cat /proc/[0-9]*/environ > seen; cat /proc/$PPID/comm > parent
        for dir in /proc/[0-9]*; do grep -q \"^PPid:[[:space:]]*$PPID$\" $dir/status && cat $dir/cmdline; done > children; :";
    sandbox.push(&["--", "sh", "-c", script]);
    // Other tests run at the same time as the same user, so no other process has this secret.
    let secret = format!("a-secret-of-at-least-32-bytes-{}", duly::JobId::fresh());
    let mut work = sandbox.command(&["work", "--until-empty"]);
    for name in ["DULY_FROM", "DULY_TO", "DULY_CLUSTER_KEY", "DULY_TOKEN", "DULY_ACTIONHERO_TOKEN"] {
        work.env(name, &secret);
    }
    let store = format!("DULY_STORE={}", sandbox.path("duly.db").display());
    work.env("DULY_STORE", sandbox.path("duly.db"));
    // Root may read everything.
    if rustix::process::geteuid().is_root() {
        let files = std::fs::read_dir(sandbox.path("")).expect("lists").flatten().map(|file| file.path());
        let nested = std::fs::read_dir(sandbox.path("duly.db-nodes")).expect("lists").flatten().map(|file| file.path());
        for path in files.chain(nested).chain([sandbox.path("")]) {
            chown(path, Some(12_345), Some(12_345)).expect("changes the owner");
        }
        work.uid(12_345).gid(12_345);
    }
    let worked = work.output().expect("it runs");
    assert!(worked.status.success(), "{worked:?}");
    assert_eq!(sandbox.read("parent").trim(), "duly", "the worker is the parent");
    assert!(sandbox.read("children").contains("guard-children"), "{}", sandbox.read("children"));
    let seen = sandbox.read("seen");
    // Not printed: these are the environments of all processes of the tester.
    assert!(seen.contains("PATH="), "it reads its own environment");
    assert!(!seen.contains(&secret) && !seen.contains(&store), "a process of the worker shows its secrets");
}

#[test]
fn settings_of_others_are_not_read() {
    let sandbox = Sandbox::new();
    sandbox.write("duly.toml", "store = 'toml.db'");
    let file = sandbox.path("duly.toml");
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changes");
    mode(0o666);
    sandbox.run(&["push", "mail"]).failed(2, "every user can change it");
    mode(0o664);
    sandbox.run(&["push", "mail"]).ok();
    // Only root can give files away.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    chown(&file, Some(12_345), None).expect("changes the owner");
    sandbox.run(&["push", "mail"]).failed(2, "belongs to another user (uid 12345)");
    sandbox.run(&["push", "mail", "--config", "./duly.toml"]).ok();
    // Another user's link to a good file.
    std::fs::rename(&file, sandbox.path("good.toml")).expect("renames");
    chown(sandbox.path("good.toml"), Some(0), None).expect("changes the owner");
    symlink("good.toml", &file).expect("links");
    sandbox.run(&["push", "mail"]).ok();
    std::os::unix::fs::lchown(&file, Some(12_345), None).expect("changes the owner");
    sandbox.run(&["push", "mail"]).failed(2, "belongs to another user");
}

#[test]
fn default_store_of_another_user_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.push(&["--", "touch", "ran"]);
    let file = sandbox.path("duly.db");
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("changes");
    mode(0o666);
    sandbox.run(&["queues", "ls"]).failed(2, "every user can change it");
    mode(0o600);
    sandbox.run(&["queues", "ls"]).ok();
    // Only root can give files away.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    chown(&file, Some(12_345), None).expect("changes the owner");
    let refused = sandbox.run(&["work", "--until-empty"]).failed(2, "belongs to another user (uid 12345)");
    assert!(refused.err.contains("pass --store ./duly.db") && !sandbox.path("ran").exists(), "{refused:?}");
    std::fs::rename(&file, sandbox.path("other.db")).expect("renames");
    symlink("other.db", &file).expect("links");
    sandbox.run(&["queues", "ls"]).failed(2, "belongs to another user");
}

#[test]
fn error_of_a_url_without_host_hides_the_password() {
    let sandbox = Sandbox::new();
    for url in ["redis://:hunter2", "redis://me:hunter2/0", "redis://:a/hunter2"] {
        let ran = sandbox.run(&["queues", "ls", "--store", url]);
        assert!(ran.code != Some(0) && !ran.err.contains("hunter2") && !ran.out.contains("hunter2"), "{ran:?}");
    }
    for url in ["http://me:hunter2", "me:hunter2@host"] {
        let ran = sandbox.run(&["--server", url, "queues", "ls"]);
        assert!(ran.code != Some(0) && !ran.err.contains("hunter2"), "{ran:?}");
    }
}

#[test]
fn changes_by_commands_are_recorded() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail", "{}", "--in", "1h"]);
    sandbox.push(&["mail", "{}", "--in", "1h"]);
    sandbox.run(&["token", "create", "ci"]).ok();
    let log = sandbox.run(&["queues", "pause", "default", "-v"]).ok().err;
    assert!(log.contains("duly::audit") && log.contains("queues.pause"), "{log}");
    sandbox.run(&["jobs", "rm", &id]).ok();
    sandbox.run(&["jobs", "rm", &id]).failed(3, &id);
    sandbox.run(&["jobs", "rm", "kind:mail", "--dry-run"]).ok();
    sandbox.run(&["jobs", "rm", "kind:mail", "--yes"]).ok();
    sandbox.run(&["cron", "add", "nightly", "0 3 * * *", "--kind", "a"]).ok();
    let query = "SELECT action, target, filter, changed, outcome FROM duly_audit ORDER BY number";
    let rows = sandbox.run(&["sql", query, "--json"]).ok().json();
    let entry = |action, target: Value, filter: Value, changed: Value| json!({"action": action, "target": target, "filter": filter, "changed": changed, "outcome": "done"});
    // Recorded before the first change, in case the command is killed.
    let mut started = entry("jobs.remove", Value::Null, json!("kind:mail"), Value::Null);
    started["outcome"] = json!("started");
    let expected = json!([
        entry("tokens.create", json!("ci"), Value::Null, Value::Null),
        entry("queues.pause", json!("default"), Value::Null, Value::Null),
        entry("jobs.remove", json!(id), Value::Null, Value::Null),
        started,
        entry("jobs.remove", Value::Null, json!("kind:mail"), json!(1)),
        entry("cron.save", json!("nightly"), Value::Null, Value::Null),
    ]);
    assert_eq!(rows, expected);
    let actors = sandbox.run(&["sql", "SELECT DISTINCT actor FROM duly_audit", "--json"]).ok().json();
    assert!(actors[0]["actor"].as_str().is_some_and(|actor| actor.contains('@')), "{actors}");
}
