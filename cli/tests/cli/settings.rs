//! Precedence of settings: flag, environment, `duly.toml`, default.

use crate::sandbox::{RunOutput, Sandbox};

#[test]
fn flag_overrides_environment_and_file() {
    let sandbox = Sandbox::new();
    let run = |env: Option<&str>, args: &[&str]| -> RunOutput {
        let mut command = sandbox.command(args);
        command.envs(env.map(|store| ("DULY_STORE", store)));
        command.output().expect("it runs").into()
    };
    run(None, &["push", "mail"]).ok();
    assert!(sandbox.path("duly.db").exists(), "the default");
    sandbox.write("duly.toml", "store = 'toml.db'");
    run(None, &["push", "mail"]).ok();
    assert!(sandbox.path("toml.db").exists(), "the file over the default");
    run(Some("env.db"), &["push", "mail"]).ok();
    assert!(sandbox.path("env.db").exists(), "the environment over the file");
    run(Some("env.db"), &["push", "mail", "--store", "flag.db"]).ok();
    assert!(sandbox.path("flag.db").exists(), "the flag over the environment");
}

#[test]
fn misspelled_setting_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.write("duly.toml", "store = 'a.db'\nstroe = 'b.db'");
    sandbox.run(&["push", "mail"]).failed(2, "stroe");
    sandbox.write("duly.toml", "[work]\nthreads = 3");
    sandbox.run(&["work"]).failed(2, "threads");
    sandbox.write("duly.toml", "[work]\ngrace = 'soon'");
    sandbox.run(&["work"]).failed(2, "work.grace");
    sandbox.run(&["push", "mail", "--config", "none.toml"]).failed(2, "none.toml");
}

#[test]
fn work_section_configures_the_worker() {
    let sandbox = Sandbox::new();
    sandbox.write("duly.toml", "[work]\nqueues = ['a', 'b=3']\nexec = ['sh', '-c', 'cat >> got']\nconcurrency = 1");
    sandbox.push(&["--queue", "a", "mail", "1"]);
    sandbox.push(&["--queue", "b", "mail", "2"]);
    let elsewhere = sandbox.push(&["--queue", "c", "mail", "3"]);
    sandbox.run(&["work", "--until-empty"]).ok();
    let mut got: Vec<char> = sandbox.read("got").chars().collect();
    got.sort_unstable();
    assert_eq!(got, ['1', '2']);
    assert_eq!(sandbox.job(&elsewhere)["state"], "ready");
}

#[test]
fn logs_are_json_on_request() {
    let sandbox = Sandbox::new();
    sandbox.push(&["--", "false"]);
    let ran = sandbox.run(&["work", "--until-empty", "-q", "--log-format", "json"]).ok();
    let logged: Vec<serde_json::Value> =
        ran.err.lines().map(|line| serde_json::from_str(line).expect("json")).collect();
    assert!(logged.iter().any(|line| line["level"] == "WARN" && line["span"]["kind"] == "command"), "{ran:?}");
    assert_eq!(ran.out, "", "quiet");
}
