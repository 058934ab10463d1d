//! One server process: started so that it cannot outlive us, killed, paused.

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
    /// Starts a program in a directory; what it prints goes to the file `out` there.
    pub fn start(program: &Path, args: &[&str], directory: &Path, niceness: Option<i32>) -> Process {
        let out = File::create(directory.join("out")).expect("a file in a directory of ours");
        let mut command = command(program, niceness);
        command.args(args).current_dir(directory).stdin(Stdio::null());
        command.stdout(out.try_clone().expect("a second handle")).stderr(out);
        Process(spawn(command).unwrap_or_else(|why| panic!("{} cannot be started: {why}", program.display())))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    /// SIGKILL; returns when it is gone and its port is free.
    pub fn kill(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// SIGSTOP; returns when it stands still.
    pub fn pause(&self) {
        self.signal("STOP");
        wait_for("a stopped process", || if self.is_stopped() { Ok(()) } else { Err("it runs".into()) });
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    // By a shell, which has it built in: std can send no signal but SIGKILL.
    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.id())]).status();
        assert!(status.is_ok_and(|status| status.success()), "SIG{name} to process {}", self.id());
    }

    pub fn is_stopped(&self) -> bool {
        // The state stands after the name, which is in brackets and may hold anything.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command whose process the system kills when this process ends: destructors do not run when a test is killed, nor for
/// statics.
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

/// Spawns from one thread that never ends: the death the system watches for is that of the *thread* which spawned,
/// and each test has a thread of its own that ends with it, while a shared server must stay.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                // Nobody waits for the answer only if the asking thread is gone.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (answer, child) = mpsc::channel();
    let sent = spawner.lock().expect("nobody panics with it").send((command, answer));
    sent.expect("the spawning thread never ends");
    child.recv().expect("the spawning thread answers")
}
