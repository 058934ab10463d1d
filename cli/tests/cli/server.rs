//! `duly --server URL`: the verbs that work through a `duly serve`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::json;

use crate::bed::{Bed, Ran};

/// A server on a free port, killed with the value, and its URL.
struct Serving {
    child: std::process::Child,
    url: String,
}

impl Serving {
    fn start(bed: &Bed, options: &[&str]) -> Serving {
        let mut command = bed.command(&[&["serve", "--listen", "127.0.0.1:0"], options].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut url).expect("its URL");
        Serving { child, url: url.trim().to_owned() }
    }

    fn run(&self, bed: &Bed, args: &[&str]) -> Ran {
        bed.run(&[&["--server", &self.url], args].concat())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_command_is_pushed_as_one_or_refused() {
    let bed = Bed::new();
    let open = Serving::start(&bed, &["--allow-commands"]);
    let id = open.run(&bed, &["push", "--", "echo", r#"{"a":1}"#]).ok().id();
    let job = bed.job(&id);
    assert_eq!((&job["kind"], &job["args"]["argv"]), (&json!("command"), &json!(["echo", r#"{"a":1}"#])));
    let id = open.run(&bed, &["push", "mail", r#"{"a":1}"#]).ok().id();
    assert_eq!((&bed.job(&id)["kind"], &bed.job(&id)["args"]), (&json!("mail"), &json!({"a": 1})));
    let shut = Serving::start(&bed, &[]);
    shut.run(&bed, &["push", "--", "true"]).failed(1, "--allow-commands");
    shut.run(&bed, &["push", "mail", "--", "true"]).failed(2, "cannot be used with");
    shut.run(&bed, &["push"]).failed(2, "KIND");
    assert_eq!(bed.run(&["jobs", "ls", "--json"]).ok().json()["jobs"].as_array().expect("a list").len(), 2);
}
