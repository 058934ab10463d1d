//! Verbs that work on a store and through a server alike.

use serde_json::json;

use crate::sandbox::Sandbox;
use crate::server::ServerProcess;

#[test]
fn json_is_the_same_from_a_store_and_a_server() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&sandbox, &[]);
    let args = r#"{"b":12345678901234567890123,"a":[1.10,null]}"#;
    let id = server.run(&sandbox, &["push", "mail", args, "--tag", "x", "--unique", "k", "--in", "1h"]).ok().id();
    sandbox.push(&["--max-attempts", "1", "--", "false"]);
    sandbox.run(&["work", "--until-empty"]).ok();
    let add = ["cron", "add", "nightly", "0 3 * * *", "--kind", "report", "--args", args, "--overlap", "skip"];
    server.run(&sandbox, &add).ok();
    let verbs: [&[&str]; 12] = [
        &["jobs", "get", &id],
        &["jobs", "why", &id],
        &["jobs", "ls"],
        &["dead", "ls"],
        &["queues", "ls"],
        &["cron", "ls"],
        &["cron", "get", "nightly"],
        &["cron", "next", "nightly", "--from", "2026-06-01 08:00"],
        &["nodes", "ls"],
        &["lock", "ls"],
        &["token", "ls"],
        &["stats"],
    ];
    for verb in verbs {
        // For people, times are local in a store and in UTC from a server.
        let formats = if verb.contains(&"why") { &["json", "ndjson"][..] } else { &["json", "ndjson", "name"] };
        for format in formats {
            let args = [verb, &["-o", format]].concat();
            let (store, server) = (sandbox.run(&args).ok(), server.run(&sandbox, &args).ok());
            // Only the message of a page may differ, by its cursor.
            assert_eq!(store.out, server.out, "{args:?}");
        }
    }
    let job = server.run(&sandbox, &["jobs", "get", &id, "--json"]).ok();
    assert!(job.out.contains(args), "byte for byte: {job:?}");
    assert_eq!((&job.json()["due_ms"].is_i64(), &job.json()["keep_ms"]), (&true, &json!(86_400_000)));
}

#[test]
fn changes_work_through_a_server() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&sandbox, &[]);
    let run = |args: &[&str]| server.run(&sandbox, args);
    let id = run(&["push", "mail", "1", "--in", "1h"]).ok().id();
    run(&["jobs", "edit", &id, "--args", r#"{"z":1.0,"a":2}"#, "--priority", "high"]).ok();
    assert!(run(&["jobs", "get", &id]).ok().out.contains(r#"{"z":1.0,"a":2}"#));
    run(&["jobs", "retry", "kind:mail"]).failed(2, "--yes");
    assert!(run(&["jobs", "retry", "kind:mail", "--dry-run"]).ok().out.contains("1 job would be retried"));
    assert!(run(&["jobs", "retry", "kind:mail", "--yes"]).ok().out.contains("1 job retried"));
    assert_eq!(sandbox.job(&id)["state"], "ready");
    run(&["jobs", "cancel", &id]).ok();
    run(&["jobs", "rm", "--all", "--yes"]).ok();
    run(&["jobs", "get", &id]).failed(3, "not found");
    assert!(run(&["queues", "capacity", "post", "--jobs", "1"]).ok().err.contains("before: "));
    run(&["push", "mail", "--queue", "post"]).ok();
    run(&["push", "mail", "--queue", "post"]).failed(4, "full");
    assert!(run(&["queues", "clear", "post", "--yes"]).ok().out.contains("1 job removed"));
    sandbox.write(
        "rules.toml",
        "[[cron]]\nname = 'a'\npattern = '0 3 * * *'\nkind = 'x'\nargs = { n = 1 }\npaused = true\n",
    );
    let dry = run(&["cron", "apply", "-f", "rules.toml", "--dry-run"]).ok();
    assert_eq!((dry.out.as_str(), dry.err.trim()), ("+ a\n", "1 rule would change, 0 unchanged"));
    run(&["cron", "apply", "-f", "rules.toml"]).ok();
    assert_eq!(run(&["cron", "apply", "-f", "rules.toml"]).ok().out, "", "the same again changes nothing");
    assert!(run(&["cron", "resume", "a"]).ok().out.contains("next: "));
    run(&["jobs", "get", &run(&["cron", "trigger", "a"]).ok().id()]).ok();
    run(&["cron", "rm", "a"]).ok();
    run(&["cron", "rm", "a"]).failed(3, "see `duly cron ls`");
    run(&["push", "--store", "duly.db", "mail"]).failed(2, "both --server and --store");
    let token = run(&["token", "create", "ci", "--role", "operator"]).ok().id();
    let ran = run(&["queues", "ls"]).failed(1, "missing token: the server at");
    assert!(ran.err.contains("duly token create NAME --role operator"), "{ran:?}");
    let mut server = server;
    server.token = Some(format!("{token}x"));
    server.run(&sandbox, &["queues", "ls"]).failed(1, "does not accept the token in DULY_TOKEN");
    server.token = Some(token);
    server.run(&sandbox, &["queues", "ls"]).ok();
    let url = server.url.clone();
    assert_eq!(sandbox.run(&["--server", &url, "open", "--print"]).ok().out.trim(), url);
}
