//! One server: start, kill, restart, pause, send commands.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use super::binary::Binary;
use super::client::{Client, Reply};
use super::options::Options;
use super::process::start_process;
use super::reserved;
use crate::KillOnDrop;
use crate::wait_for;

/// Maximum number of ports to try: another program that ignores our locks may take a free port first.
const PORTS_MAX: usize = 5;
/// The command that reports on persistence.
const PERSISTENCE: &[&str] = &["INFO", "persistence"];

/// A server on loopback. Dropping it ends the process and removes the files.
pub struct Server {
    binary: Binary,
    port: u16,
    tls_port: Option<u16>,
    directory: PathBuf,
    password: Option<String>,
    is_sentinel: bool,
    niceness: Option<i32>,
    env: Vec<(String, String)>,
    /// `None` after a kill. Behind a lock, so that a test can kill a server while others use it.
    process: Mutex<Option<KillOnDrop>>,
}

/// The reason why a started server does not reply.
enum StartError {
    PortTaken,
    Other(String),
}

impl Server {
    #[track_caller]
    pub(super) fn start(options: Options) -> Server {
        for _ in 0..PORTS_MAX {
            let server = Server::spawn(&options);
            match server.wait_until_ready() {
                Ok(()) => return server,
                Err(StartError::PortTaken) => {}
                Err(StartError::Other(error)) => panic!("{:?} does not start: {error}", options.binary),
            }
        }
        panic!("{PORTS_MAX} ports in a row were taken between check and start");
    }

    fn spawn(options: &Options) -> Server {
        let (port, tls_port) = (reserved::port(), options.certificates.as_ref().map(|_| reserved::port()));
        let directory = reserved::directory();
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).expect("a file of ours");
        write("server.conf", &options.config(port, tls_port));
        if let Some(users) = &options.users {
            write("users.acl", users);
        }
        let server = Server {
            binary: options.binary,
            port,
            tls_port,
            directory,
            password: options.password.clone(),
            is_sentinel: options.is_sentinel,
            niceness: options.niceness,
            env: options.env.clone(),
            process: Mutex::new(None),
        };
        *server.process() = Some(server.run());
        server
    }

    fn run(&self) -> KillOnDrop {
        let args: &[&str] = if self.is_sentinel { &["server.conf", "--sentinel"] } else { &["server.conf"] };
        start_process(&self.binary.path(), args, &self.directory, self.niceness, &self.env)
    }

    fn process(&self) -> MutexGuard<'_, Option<KillOnDrop>> {
        // The process can still be killed after a panic of another holder.
        crate::lock(&self.process)
    }

    /// Waits for PONG from our own process: another program may have taken the port.
    fn wait_until_ready(&self) -> Result<(), StartError> {
        wait_for("a server to reply", || {
            let mut process = self.process();
            let process = process.as_mut().expect("it was started");
            if process.has_ended() {
                return Ok(Err(self.start_error()));
            }
            let mut client = self.client().map_err(|error| error.to_string())?;
            let mut send =
                |word: &str| client.send_command(&[word]).map(|reply| reply.text()).map_err(|error| error.to_string());
            let pong = send("PING")?;
            let ours = send("INFO")?.contains(&format!("process_id:{}\r", process.id()));
            if pong == "PONG" && ours { Ok(Ok(())) } else { Err(format!("PING: {pong}, our process: {ours}")) }
        })
    }

    fn start_error(&self) -> StartError {
        let out = fs::read_to_string(self.directory.join("out")).unwrap_or_default();
        if out.contains("Address already in use") { StartError::PortTaken } else { StartError::Other(out) }
    }

    pub fn binary(&self) -> Binary {
        self.binary
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the TLS port.
    #[track_caller]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("a server with Options::tls")
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns a `redis://` URL with address and password.
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}{}", self.address())
    }

    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns the working directory; the server's output is in the file `out` there.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn is_running(&self) -> bool {
        self.process().as_mut().is_some_and(|process| !process.has_ended())
    }

    /// Returns whether the process runs and is not paused.
    pub fn is_awake(&self) -> bool {
        self.process().as_mut().is_some_and(|process| !process.has_ended() && !process.is_stopped())
    }

    /// Opens a connection for administration.
    pub fn client(&self) -> io::Result<Client> {
        Client::connect(self.port, self.password())
    }

    /// Sends a command over a new connection, and returns any reply, including errors of the server.
    pub fn try_send_command(&self, command: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.client()?.send_command(command)
    }

    /// Sends a command over a new connection; any error fails the test.
    #[track_caller]
    pub fn send_command(&self, command: &[impl AsRef<[u8]>]) -> Reply {
        let words = || command.iter().map(|word| String::from_utf8_lossy(word.as_ref())).collect::<Vec<_>>().join(" ");
        match self.try_send_command(command) {
            Ok(Reply::Error(error)) => panic!("{} at {}: {error}", words(), self.port),
            Ok(reply) => reply,
            Err(error) => panic!("{} at {}: {error}", words(), self.port),
        }
    }

    /// Returns one field of `INFO` or `CLUSTER INFO`; empty if it is missing or there is no reply.
    pub fn info(&self, command: &[&str], field: &str) -> String {
        let text = self.try_send_command(command).map(|reply| reply.text()).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().to_owned()
    }

    /// Sends SIGKILL. The port and the directory stay reserved.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// Restarts the server on the same port and directory; kills it first if it runs. Returns when it replies and has
    /// rewritten its append-only file, as the guide recommends after a crash. If that file ends within a transaction,
    /// the server skips the transaction on load but keeps it in the file. Without the rewrite it would return at the
    /// next start, with all later commands inside.
    #[track_caller]
    pub fn restart(&self) {
        self.restart_only();
        let has_aof =
            || self.send_command(&["CONFIG", "GET", "appendonly"]).field("appendonly").is_some_and(|on| on == "yes");
        if !self.is_sentinel && has_aof() {
            let before = self.info(PERSISTENCE, "aof_rewrites");
            wait_for("a rewritten append-only file", || {
                if self.info(PERSISTENCE, "aof_rewrites") == before {
                    // Refused during a sync with a master or another rewrite, so it is repeated until one has begun.
                    let _ = self.try_send_command(&["BGREWRITEAOF"]);
                    return Err("none has begun".into());
                }
                let status = ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_last_bgrewrite_status"];
                let status = status.map(|field| self.info(PERSISTENCE, field));
                if status == ["0", "0", "ok"] { Ok(()) } else { Err(format!("{status:?}")) }
            });
        }
    }

    /// Restarts the server without the rewrite.
    #[track_caller]
    pub fn restart_only(&self) {
        self.kill();
        *self.process() = Some(self.run());
        match self.wait_until_ready() {
            Ok(()) => {}
            Err(StartError::PortTaken) => panic!("another program took port {}", self.port),
            Err(StartError::Other(error)) => panic!("{:?} does not start again: {error}", self.binary),
        }
    }

    /// Sends SIGSTOP: connections stay open, but the server does not reply. Returns when the process has stopped.
    #[track_caller]
    pub fn pause(&self) {
        self.process().as_ref().expect("a running server").pause();
    }

    /// Restarts or resumes the server if it was killed or paused.
    #[track_caller]
    pub fn revive(&self) {
        if self.is_running() { self.resume() } else { self.restart() }
    }

    /// Sends SIGCONT.
    #[track_caller]
    pub fn resume(&self) {
        self.process().as_ref().expect("a running server").resume();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!(
                "the files of the server at {} are in {} until the next run",
                self.port,
                self.directory.display()
            );
            return;
        }
        // Files that cannot be removed now are removed by the next sweep.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
