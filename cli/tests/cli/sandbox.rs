//! A directory of its own for each test, and the binary run in it.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
pub(crate) use test_support::until_blocking as until;

pub(crate) struct Sandbox {
    dir: test_support::TempDir,
}

/// What a finished command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Ran {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Failed with this code, and said so in one line that starts with our name and has these words.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, words: &str) -> Ran {
        assert_eq!(self.code, Some(code), "{self:?}");
        let line = self.err.lines().find(|line| line.starts_with("duly: ")).unwrap_or_default();
        assert!(line.contains(words), "{words:?} is not in {self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        self
    }

    pub(crate) fn id(&self) -> String {
        self.out.trim().to_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Sandbox {
    pub(crate) fn new() -> Sandbox {
        Sandbox { dir: test_support::temp_dir() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file");
    }

    /// What a job wrote; empty while it has not.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The binary, in this directory, with nothing of the tester's own settings.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duly"));
        command.current_dir(self.dir.path()).args(args).stdin(Stdio::null());
        let ours = ["DULY_STORE", "DULY_FROM", "DULY_TO", "DULY_CLUSTER_KEY", "DULY_LOG", "DULY_LOG_FORMAT"];
        for name in ours.into_iter().chain(["NOTIFY_SOCKET", "NO_COLOR"]) {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.command(args).output().expect("the binary starts").into()
    }

    /// The binary in the background; killed with the value.
    pub(crate) fn start(&self, args: &[&str]) -> Background {
        Sandbox::start_it(self.command(args))
    }

    pub(crate) fn start_it(mut command: Command) -> Background {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Background(Some(command.spawn().expect("the binary starts")))
    }

    /// Pushes, and answers the id.
    #[track_caller]
    pub(crate) fn push(&self, args: &[&str]) -> String {
        self.run(&[&["push"], args].concat()).ok().id()
    }

    #[track_caller]
    pub(crate) fn job(&self, id: &str) -> Value {
        self.run(&["jobs", "get", id, "--json"]).ok().json()
    }

    /// The ids of all jobs of a store.
    #[track_caller]
    pub(crate) fn ids(&self, store: &str) -> Vec<String> {
        let mut ids = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut args = vec!["jobs", "ls", "--store", store, "--limit", "1000", "--json"];
            args.extend(cursor.iter().flat_map(|cursor| ["--cursor", cursor.as_str()]));
            let page = self.run(&args).ok().json();
            let jobs = page["jobs"].as_array().expect("jobs").iter();
            ids.extend(jobs.map(|job| job["id"].as_str().expect("an id").to_owned()));
            cursor = page["next"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return ids;
            }
        }
    }

    #[track_caller]
    pub(crate) fn until_state(&self, id: &str, state: &str) {
        until(&format!("{id} is {state}"), || self.job(id)["state"] == state);
    }
}

pub(crate) struct Background(Option<Child>);

impl Background {
    fn child(&self) -> &Child {
        self.0.as_ref().expect("not waited for yet")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(self.child());
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    pub(crate) fn wait(mut self) -> Ran {
        self.0.take().expect("waited for once").wait_with_output().expect("it ends").into()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a process runs; one that only waits to be collected does not.
pub(crate) fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
