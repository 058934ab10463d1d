//! One server of its own: start, kill, restart, pause, ask.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use super::binary::Binary;
use super::client::{Client, Reply};
use super::options::Options;
use super::process::Process;
use super::reserved;
use crate::wait_for;

/// How many ports are tried: one that was free a moment ago may be taken by a program that knows nothing of our locks.
const PORTS_MAX: usize = 5;
/// Asks what a server says of its files.
const PERSISTENCE: &[&str] = &["INFO", "persistence"];

/// A server on loopback. Its process ends, and its files go, when this is dropped.
pub struct Server {
    binary: Binary,
    port: u16,
    tls_port: Option<u16>,
    directory: PathBuf,
    password: Option<String>,
    is_sentinel: bool,
    niceness: Option<i32>,
    /// Behind a lock, so that a test may kill a server that others are talking to. None: killed.
    process: Mutex<Option<Process>>,
}

/// Why a server that was started does not answer.
enum Refusal {
    PortTaken,
    Other(String),
}

impl Server {
    #[track_caller]
    pub(super) fn start(options: Options) -> Server {
        for _ in 0..PORTS_MAX {
            let server = Server::spawn(&options);
            match server.wait_until_answering() {
                Ok(()) => return server,
                Err(Refusal::PortTaken) => {}
                Err(Refusal::Other(why)) => panic!("{:?} does not start: {why}", options.binary),
            }
        }
        panic!("{PORTS_MAX} ports in a row were taken between looking and starting");
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
            process: Mutex::new(None),
        };
        *server.process() = Some(server.run());
        server
    }

    fn run(&self) -> Process {
        let args: &[&str] = if self.is_sentinel { &["server.conf", "--sentinel"] } else { &["server.conf"] };
        Process::start(&self.binary.path(), args, &self.directory, self.niceness)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        // A test that panicked with it leaves a process that can still be killed.
        self.process.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for PONG from our own process: another may have got the port.
    fn wait_until_answering(&self) -> Result<(), Refusal> {
        wait_for("a server to answer", || {
            let mut process = self.process();
            let process = process.as_mut().expect("it was started");
            if process.has_ended() {
                return Ok(Err(self.refusal()));
            }
            let mut client = self.client().map_err(|why| why.to_string())?;
            let mut ask = |word: &str| client.ask(&[word]).map(|reply| reply.text()).map_err(|why| why.to_string());
            let pong = ask("PING")?;
            let ours = ask("INFO")?.contains(&format!("process_id:{}\r", process.id()));
            if pong == "PONG" && ours { Ok(Ok(())) } else { Err(format!("PING: {pong}, our process: {ours}")) }
        })
    }

    fn refusal(&self) -> Refusal {
        let out = fs::read_to_string(self.directory.join("out")).unwrap_or_default();
        if out.contains("Address already in use") { Refusal::PortTaken } else { Refusal::Other(out) }
    }

    pub fn binary(&self) -> Binary {
        self.binary
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it speaks TLS.
    #[track_caller]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("a server with Options::tls")
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `redis://` with address and password.
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}{}", self.address())
    }

    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Where it keeps its files; what it printed is in `out` there.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn is_running(&self) -> bool {
        self.process().as_mut().is_some_and(|process| !process.has_ended())
    }

    /// Whether it runs and is not paused.
    pub fn is_awake(&self) -> bool {
        self.process().as_mut().is_some_and(|process| !process.has_ended() && !process.is_stopped())
    }

    /// A connection to administer it with.
    pub fn client(&self) -> io::Result<Client> {
        Client::connect(self.port, self.password())
    }

    /// Asks over a connection of its own, and answers whatever comes, errors of the server too.
    pub fn try_ask(&self, command: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.client()?.ask(command)
    }

    /// Asks over a connection of its own; any error fails the test.
    #[track_caller]
    pub fn ask(&self, command: &[impl AsRef<[u8]>]) -> Reply {
        let words = || command.iter().map(|word| String::from_utf8_lossy(word.as_ref())).collect::<Vec<_>>().join(" ");
        match self.try_ask(command) {
            Ok(Reply::Error(why)) => panic!("{} at {}: {why}", words(), self.port),
            Ok(reply) => reply,
            Err(why) => panic!("{} at {}: {why}", words(), self.port),
        }
    }

    /// One field of `INFO` or `CLUSTER INFO`; empty if there is none, or no answer.
    pub fn info(&self, command: &[&str], field: &str) -> String {
        let text = self.try_ask(command).map(|reply| reply.text()).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().to_owned()
    }

    /// SIGKILL. Its port and its directory stay its own.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// Starts it again on the same port and directory, after killing it if it runs; returns when it answers and, as the
    /// guide tells operators after a crash, has rewritten its append-only file. One that was torn off within a transaction is
    /// loaded without that, but keeps it, and it would come back at the next start together with what follows it.
    #[track_caller]
    pub fn restart(&self) {
        self.restart_only();
        let keeps = || self.ask(&["CONFIG", "GET", "appendonly"]).field("appendonly").is_some_and(|on| on == "yes");
        if !self.is_sentinel && keeps() {
            let before = self.info(PERSISTENCE, "aof_rewrites");
            wait_for("a rewritten append-only file", || {
                if self.info(PERSISTENCE, "aof_rewrites") == before {
                    // Refused while it copies another server or is at it already: asked again until one has begun.
                    let _ = self.try_ask(&["BGREWRITEAOF"]);
                    return Err("none has begun".into());
                }
                let said = ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "aof_last_bgrewrite_status"];
                let said = said.map(|field| self.info(PERSISTENCE, field));
                if said == ["0", "0", "ok"] { Ok(()) } else { Err(format!("{said:?}")) }
            });
        }
    }

    /// The same without that.
    #[track_caller]
    pub fn restart_only(&self) {
        self.kill();
        *self.process() = Some(self.run());
        match self.wait_until_answering() {
            Ok(()) => {}
            Err(Refusal::PortTaken) => panic!("another program took port {}", self.port),
            Err(Refusal::Other(why)) => panic!("{:?} does not start again: {why}", self.binary),
        }
    }

    /// SIGSTOP: connections stay open, and nothing answers. Returns when it stands still.
    #[track_caller]
    pub fn pause(&self) {
        self.process().as_ref().expect("a running server").pause();
    }

    /// Makes it run, whether it was killed, paused or neither.
    #[track_caller]
    pub fn revive(&self) {
        if self.is_running() { self.resume() } else { self.restart() }
    }

    /// SIGCONT.
    #[track_caller]
    pub fn resume(&self) {
        self.process().as_ref().expect("a running server").resume();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("what the server at {} left is in {} until the next run", self.port, self.directory.display());
            return;
        }
        // What cannot be removed now goes with the next sweep.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
