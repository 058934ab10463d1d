//! One server process, which cannot outlive this process.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};

use crate::wait_for;

/// A running process. Killed when dropped.
pub struct Process(Child);

impl Process {
    /// Starts a program in a directory; its output goes to the file `out` there.
    pub fn start(program: &Path, args: &[&str], directory: &Path, niceness: Option<i32>) -> Process {
        let out = File::create(directory.join("out")).expect("a file in a directory of ours");
        let mut command = command(program, niceness);
        command.args(args).current_dir(directory).stdin(Stdio::null());
        command.stdout(out.try_clone().expect("a second handle")).stderr(out);
        Process(spawn(command).unwrap_or_else(|error| panic!("{} cannot be started: {error}", program.display())))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Sends SIGKILL; returns when the process is gone and its port is free.
    pub fn kill(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Sends SIGSTOP; returns when the process has stopped.
    pub fn pause(&self) {
        self.signal("STOP");
        wait_for("a stopped process", || if self.is_stopped() { Ok(()) } else { Err("it runs".into()) });
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    // Uses the shell's built-in `kill`: std can only send SIGKILL.
    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.id())]).status();
        assert!(status.is_ok_and(|status| status.success()), "SIG{name} to process {}", self.id());
    }

    pub fn is_stopped(&self) -> bool {
        // The state follows the name, which is in parentheses and may contain any character.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a command that the system kills when this process ends. Destructors do not run when a test is killed, nor
/// for statics.
fn command(program: &Path, niceness: Option<i32>) -> Command {
    let niceness = niceness.map(|level| level.to_string());
    let mut words: Vec<&OsStr> = Vec::new();
    if cfg!(target_os = "linux") {
        words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(OsStr::new));
    }
    if let Some(level) = &niceness {
        words.extend(["nice", "-n", level].map(OsStr::new));
    }
    words.push(program.as_os_str());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// Spawns from a dedicated thread that never ends. The system watches for the end of the *thread* that spawned the
/// child. Test threads end with their test, but a shared server must stay.
fn spawn(command: Command) -> io::Result<Child> {
    type SpawnRequest = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<SpawnRequest>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<SpawnRequest>();
        std::thread::spawn(move || {
            for (mut command, reply) in requests {
                // Fails only if the requesting thread is gone.
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (reply, child) = mpsc::channel();
    let sent = spawner.lock().expect("no thread panics while holding it").send((command, reply));
    sent.expect("the spawning thread never ends");
    child.recv().expect("the spawning thread replies")
}
