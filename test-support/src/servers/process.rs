//! One server process, which cannot outlive this process.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};

use crate::KillOnDrop;

/// Starts a program in a directory; its output goes to the file `out` there.
pub fn start_process(
    program: &Path,
    args: &[&str],
    directory: &Path,
    niceness: Option<i32>,
    env: &[(String, String)],
) -> KillOnDrop {
    let out = File::create(directory.join("out")).expect("a file in a directory of ours");
    let mut command = command(program, niceness);
    command.args(args).envs(env.iter().map(|(name, value)| (name, value)));
    command.current_dir(directory).stdin(Stdio::null());
    command.stdout(out.try_clone().expect("a second handle")).stderr(out);
    KillOnDrop(spawn(command).unwrap_or_else(|error| panic!("{} cannot be started: {error}", program.display())))
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
