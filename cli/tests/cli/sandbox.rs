//! A separate directory for each test, in which the binary runs.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
pub(crate) use test_support::until_blocking as until;

pub(crate) struct Sandbox {
    dir: test_support::TempDir,
}

/// The result of a finished command.
#[derive(Debug)]
pub(crate) struct RunOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for RunOutput {
    fn from(output: Output) -> RunOutput {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        RunOutput { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl RunOutput {
    #[track_caller]
    pub(crate) fn ok(self) -> RunOutput {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Asserts that the command failed with this code and one `duly: ` line with this text.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, message: &str) -> RunOutput {
        assert_eq!(self.code, Some(code), "{self:?}");
        let line = self.err.lines().find(|line| line.starts_with("duly: ")).unwrap_or_default();
        assert!(line.contains(message), "{message:?} is not in {self:?}");
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

    /// Returns the contents of a file; empty if it does not exist.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns a command that runs the binary in this directory, without the tester's settings.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duly"));
        command.args(args);
        self.with_settings(command)
    }

    /// As [`Sandbox::command`], after this command of a shell.
    pub(crate) fn command_after(&self, shell: &str, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{shell}; exec \"$@\""), "sh", env!("CARGO_BIN_EXE_duly")]).args(args);
        self.with_settings(command)
    }

    fn with_settings(&self, mut command: Command) -> Command {
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        let settings =
            ["DULY_STORE", "DULY_FROM", "DULY_TO", "DULY_CLUSTER_KEY", "DULY_TOKEN", "DULY_LOG", "DULY_LOG_FORMAT"];
        for name in settings.into_iter().chain(["NOTIFY_SOCKET", "NO_COLOR", "DULY_ADMIN_TOKEN_FILE"]) {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> RunOutput {
        self.command(args).output().expect("the binary starts").into()
    }

    /// Starts the binary in the background; dropping the value kills it.
    pub(crate) fn start(&self, args: &[&str]) -> Background {
        Sandbox::start_command(self.command(args))
    }

    pub(crate) fn start_command(mut command: Command) -> Background {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Background(Some(command.spawn().expect("the binary starts")))
    }

    /// Pushes a job and returns its id.
    #[track_caller]
    pub(crate) fn push(&self, args: &[&str]) -> String {
        self.run(&[&["push"], args].concat()).ok().id()
    }

    #[track_caller]
    pub(crate) fn job(&self, id: &str) -> Value {
        self.run(&["jobs", "get", id, "--json"]).ok().json()
    }

    /// Returns the ids of all jobs of a store.
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

    pub(crate) fn wait(mut self) -> RunOutput {
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

/// Returns true if a process runs and is not a zombie.
pub(crate) fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
