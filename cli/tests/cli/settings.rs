//! Precedence of settings: flag, environment, `duly.toml`, default; and what JSON logs contain.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::sandbox::{RunOutput, Sandbox, until};

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

/// Returns the lines of a log. Every one must be an object with the fields that all have.
#[track_caller]
fn log_lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| {
        let parsed: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?} in {text}"));
        let is_complete = ["timestamp", "level", "message", "target"].iter().all(|field| parsed[field].is_string());
        assert!(is_complete, "{line}");
        parsed
    };
    text.lines().map(parse).collect()
}

#[test]
fn messages_errors_and_output_of_jobs_are_json_in_json_logs() {
    let sandbox = Sandbox::new();
    let run =
        |args: &[&str]| RunOutput::from(sandbox.command(args).env("DULY_LOG_FORMAT", "json").output().expect("runs"));
    for args in [&["nonsense"][..], &["cron", "preview", "61 * * * *"], &["push", "mail", "{"]] {
        let failed = run(args);
        assert_eq!((failed.code, failed.out.as_str()), (Some(2), ""), "{failed:?}");
        assert!(log_lines(&failed.err).iter().any(|line| line["level"] == "ERROR"), "{failed:?}");
    }
    let id = sandbox.push(&["--", "sh", "-c", "echo from stdout; printf 'from\\tstderr' >&2; exit 3"]);
    let worked = run(&["work", "--until-empty"]).ok();
    let events = log_lines(&worked.out);
    assert!(events.iter().any(|line| line["message"] == "started" && line["id"] == *id), "{worked:?}");
    assert!(events.iter().any(|line| line["event"] == "retried" && line["level"] == "WARN"), "{worked:?}");
    let logged = log_lines(&worked.err);
    for output in ["from stdout", "from\tstderr"] {
        let is_output = |line: &Value| line["target"] == "duly::job" && line["message"] == output && line["id"] == *id;
        assert!(logged.iter().any(is_output), "{output}: {worked:?}");
    }
    assert!(logged.iter().any(|line| line["target"] == "duly::cli" && line["level"] == "INFO"), "{worked:?}");
}

#[test]
fn server_logs_each_request_with_its_id_and_no_query() {
    let sandbox = Sandbox::new();
    let args = ["up", "--listen", "127.0.0.1:0"];
    let mut command = sandbox.command_after("exec >out 2>err", &args);
    command.env("DULY_LOG_FORMAT", "json");
    let server = Sandbox::start_command(command);
    until("it serves", || sandbox.read("out").contains('\n'));
    let start = log_lines(&sandbox.read("out")).remove(0);
    assert_eq!((&start["target"], &start["message"]), (&json!("duly::serve"), &json!("serving")));
    let host = start["url"].as_str().expect("a URL").trim_start_matches("http://").to_owned();
    let get = |path: &str, id: &str| {
        let mut stream = TcpStream::connect(&host).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Request-Id: {id}\r\nConnection: close\r\n\r\n")
            .expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response.to_lowercase()
    };
    assert!(get("/api/v1/jobs?filter=secret", "list-1").contains("\r\nx-request-id: list-1\r\n"));
    let missing = get("/api/v1/queues/secret", "queue-2");
    assert!(missing.starts_with("http/1.1 404") && missing.contains("\"request_id\":\"queue-2\""), "{missing}");
    let unsafe_id = get("/healthz", "two words");
    assert!(unsafe_id.contains("\r\nx-request-id: ") && !unsafe_id.contains("two words"), "{unsafe_id}");
    server.signal(rustix::process::Signal::TERM);
    server.wait().ok();
    log_lines(&sandbox.read("out"));
    let logged = log_lines(&sandbox.read("err"));
    let access = |id: &str| {
        let found = logged.iter().find(|line| line["target"] == "duly::access" && line["request_id"] == id);
        found.unwrap_or_else(|| panic!("{id}: {logged:?}"))
    };
    let list = access("list-1");
    assert_eq!(
        (&list["method"], &list["route"], &list["status"]),
        (&json!("GET"), &json!("/api/v1/jobs"), &json!(200))
    );
    assert_eq!((&list["client"], &list["address"]), (&json!("local"), &json!("127.0.0.1")));
    assert!(list["bytes"].as_u64() > Some(0) && list["duration_ms"].is_f64(), "{list}");
    let missing = access("queue-2");
    assert_eq!((&missing["route"], &missing["status"]), (&json!("/api/v1/queues/{queue}"), &json!(404)));
    assert!(!sandbox.read("err").contains("secret"), "paths and queries may contain anything");
}
