//! The environment of these tests: a separate database, the real Sidekiq, and duly workers.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use duly::worker::RunSummary;
use duly::{CancellationToken, Ctx, Duly, Worker};
use serde_json::Value;
use tokio::task::JoinHandle;

use test_support::servers::{Binary, Client, Fsync, Options, Server};
use test_support::{KillOnDrop, until};

/// Timeout far beyond the expected duration of any operation.
pub const LONG: Duration = Duration::from_secs(30);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/sidekiq/sidekiq.rb");
/// Environment variable: the root of another Debian to use Ruby and Sidekiq from, with the script at `/sidekiq.rb`.
const ROOT: &str = "DULY_SIDEKIQ_ROOT";
/// Number of databases, enough for all tests.
const DATABASES: &str = "100";

/// Returns the port of a shared server with a database for each test.
fn server() -> u16 {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Options::new(Binary::Redis).aof(Fsync::No).set("databases", DATABASES).start()).port()
}

/// One database of a server, with duly and Ruby on it.
pub struct Sandbox {
    port: u16,
    db: usize,
    store: String,
    pub duly: Duly,
}

impl Sandbox {
    /// Opens a new database on the shared server.
    pub async fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let (port, db) = (server(), NEXT.fetch_add(1, Ordering::SeqCst));
        Sandbox::on(port, db, format!("sidekiq://127.0.0.1:{port}/{db}?lease=1s")).await
    }

    /// Opens the store of this URL for duly; Ruby uses this database of the server at this port.
    pub async fn on(port: u16, db: usize, store: String) -> Self {
        let duly = Duly::open(&store).await.expect("opens");
        Sandbox { port, db, store, duly }
    }

    /// Returns the same sandbox with Ruby on the new master.
    pub fn after_failover(self, port: u16) -> Self {
        Sandbox { port, ..self }
    }

    /// Returns the URL of duly's store.
    pub fn store(&self) -> String {
        self.store.clone()
    }

    /// Sends a command directly to the server.
    pub fn redis(&self, command: &[&str]) -> Vec<String> {
        let mut client = Client::connect(self.port, None).expect("connects");
        client.send_command(&["SELECT", &self.db.to_string()]).expect("selects");
        let reply = client.send_command(command).expect("succeeds");
        match reply.list() {
            [] => vec![reply.text()],
            list => list.iter().map(|item| item.text()).collect(),
        }
    }

    fn command(&self) -> Command {
        let root = std::env::var_os(ROOT);
        let mut command = Command::new(if root.is_some() { "chroot" } else { "ruby" });
        match root {
            None => command.arg(SCRIPT),
            Some(root) => command.arg(root).args(["ruby", "/sidekiq.rb"]),
        };
        command.env("REDIS_URL", format!("redis://127.0.0.1:{}/{}", self.port, self.db));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// Runs Ruby code with the real Sidekiq, and returns its value.
    pub fn ruby(&self, code: &str) -> Value {
        let output = self
            .command()
            .arg(code)
            .stderr(Stdio::piped())
            .output()
            .expect("ruby starts; install it with `apt-get install ruby-sidekiq`");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let value: Option<Value> = out.lines().last().and_then(|line| serde_json::from_str(line).ok());
        value.unwrap_or_else(|| panic!("{code}\n{out}\n{err}"))[0].clone()
    }

    /// Starts a real Sidekiq on these queues.
    pub fn sidekiq(&self, queues: &[&str]) -> KillOnDrop {
        let mut child = self.command().arg("work").args(queues).spawn().expect("ruby starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("prints a line");
        assert_eq!(line, "ready\n");
        KillOnDrop(child)
    }

    /// Returns the recorded runs: `ruby` or `rust`, and the args.
    pub fn ran(&self) -> Vec<(String, Value)> {
        let lines = self.redis(&["LRANGE", "ran", "0", "-1"]);
        let parse = |line: &String| serde_json::from_str::<(String, Value, String)>(line).ok();
        lines.iter().filter_map(parse).map(|(runner, args, _jid)| (runner, args)).collect()
    }

    /// Returns how many runs `ruby` or `rust` has recorded.
    pub fn runs_by(&self, runner: &str) -> usize {
        self.ran().iter().filter(|(by, _)| by == runner).count()
    }

    /// Waits until this many runs are recorded.
    pub async fn until_ran(&self, runs: usize) -> Vec<(String, Value)> {
        until(&format!("{runs} runs are recorded"), async || self.ran().len() >= runs).await;
        self.ran()
    }

    /// Returns a duly worker that records its runs, like `Echo` in Ruby.
    pub fn worker(&self, kinds: &[&str]) -> Worker {
        let mut worker = self.duly.worker();
        for kind in kinds {
            let (port, db) = (self.port, self.db);
            worker = worker.on_kind(*kind, move |ctx: Ctx| async move { record_run(port, db, &ctx) });
        }
        worker
    }

    pub fn run(&self, worker: Worker) -> RunningWorker {
        let stop = CancellationToken::new();
        RunningWorker { task: tokio::spawn(worker.run_until(stop.clone())), stop }
    }
}

fn record_run(port: u16, db: usize, ctx: &Ctx) {
    let mut client = Client::connect(port, None).expect("connects");
    client.send_command(&["SELECT", &db.to_string()]).expect("selects");
    let job = ctx.job();
    let line = format!(r#"["rust",{},"{}"]"#, job.args, job.id);
    client.send_command(&["RPUSH", "ran", &line]).expect("records");
}

/// A running duly worker.
pub struct RunningWorker {
    pub task: JoinHandle<duly::Result<RunSummary>>,
    stop: CancellationToken,
}

impl RunningWorker {
    pub async fn end(self) -> RunSummary {
        self.stop.cancel();
        tokio::time::timeout(LONG, self.task).await.expect("in time").expect("no panic").expect("ends well")
    }
}

/// A list that handlers fill and tests read.
pub type SharedList<T> = Arc<Mutex<Vec<T>>>;
