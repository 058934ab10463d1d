//! Flag, then environment, then `duly.toml`, then default.

use crate::bed::{Bed, Ran};

#[test]
fn the_nearer_setting_wins() {
    let bed = Bed::new();
    let run = |env: Option<&str>, args: &[&str]| -> Ran {
        let mut command = bed.command(args);
        command.envs(env.map(|store| ("DULY_STORE", store)));
        command.output().expect("it runs").into()
    };
    run(None, &["push", "mail"]).ok();
    assert!(bed.path("duly.db").exists(), "the default");
    bed.write("duly.toml", "store = 'toml.db'");
    run(None, &["push", "mail"]).ok();
    assert!(bed.path("toml.db").exists(), "the file over the default");
    run(Some("env.db"), &["push", "mail"]).ok();
    assert!(bed.path("env.db").exists(), "the environment over the file");
    run(Some("env.db"), &["push", "mail", "--store", "flag.db"]).ok();
    assert!(bed.path("flag.db").exists(), "the flag over the environment");
}

#[test]
fn a_typing_mistake_is_told() {
    let bed = Bed::new();
    bed.write("duly.toml", "store = 'a.db'\nstroe = 'b.db'");
    bed.run(&["push", "mail"]).failed(2, "stroe");
    bed.write("duly.toml", "[work]\nthreads = 3");
    bed.run(&["work"]).failed(2, "threads");
    bed.write("duly.toml", "[work]\ngrace = 'soon'");
    bed.run(&["work"]).failed(2, "work.grace");
    bed.run(&["push", "mail", "--config", "none.toml"]).failed(2, "none.toml");
}

#[test]
fn the_part_work() {
    let bed = Bed::new();
    bed.write("duly.toml", "[work]\nqueues = ['a', 'b=3']\nexec = ['sh', '-c', 'cat >> got']\nconcurrency = 1");
    bed.push(&["--queue", "a", "mail", "1"]);
    bed.push(&["--queue", "b", "mail", "2"]);
    let elsewhere = bed.push(&["--queue", "c", "mail", "3"]);
    bed.run(&["work", "--until-empty"]).ok();
    let mut got: Vec<char> = bed.read("got").chars().collect();
    got.sort_unstable();
    assert_eq!(got, ['1', '2']);
    assert_eq!(bed.job(&elsewhere)["state"], "ready");
}

#[test]
fn logs_as_json_on_request() {
    let bed = Bed::new();
    bed.push(&["--", "false"]);
    let ran = bed.run(&["work", "--until-empty", "-q", "--log-format", "json"]).ok();
    let logged: Vec<serde_json::Value> =
        ran.err.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert!(logged.iter().any(|line| line["level"] == "WARN" && line["span"]["kind"] == "command"), "{ran:?}");
    assert_eq!(ran.out, "", "quiet");
}
