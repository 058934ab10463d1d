//! The bed of these tests: a database of its own, the real Sidekiq, and workers of ours.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use duly::{CancellationToken, Ctx, Duly, RunSummary, Worker};
use serde_json::Value;
use tokio::task::JoinHandle;

use test_support::servers::{Binary, Client, Fsync, Options, Server};
use test_support::{KillOnDrop, until};

/// Far longer than anything takes; a test that waits this long has failed.
pub const LONG: Duration = Duration::from_secs(30);
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/sidekiq/sidekiq.rb");
/// The root of another Debian whose Ruby and Sidekiq are to be used, with the script at `/sidekiq.rb`.
const ROOT: &str = "DULY_SIDEKIQ_ROOT";
/// Enough for all tests.
const DATABASES: &str = "100";

/// A server that has a database for each test.
fn server() -> u16 {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Options::new(Binary::Redis).aof(Fsync::No).set("databases", DATABASES).start()).port()
}

/// One database of a server, and everything in it.
pub struct Sandbox {
    port: u16,
    db: usize,
    store: String,
    pub duly: Duly,
}

impl Sandbox {
    /// On a database of its own of a server that others use too.
    pub async fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let (port, db) = (server(), NEXT.fetch_add(1, Ordering::SeqCst));
        Sandbox::on(port, db, format!("sidekiq://127.0.0.1:{port}/{db}?lease=1s")).await
    }

    /// With duly on the store of this URL, and Ruby on a database of the server at this port.
    pub async fn on(port: u16, db: usize, store: String) -> Self {
        let duly = Duly::open(&store).await.expect("opens");
        Sandbox { port, db, store, duly }
    }

    /// The same, with Ruby on the server that is the master now.
    pub fn after_failover(self, port: u16) -> Self {
        Sandbox { port, ..self }
    }

    /// As duly names it.
    pub fn store(&self) -> String {
        self.store.clone()
    }

    /// Asks the server itself.
    pub fn redis(&self, command: &[&str]) -> Vec<String> {
        let mut client = Client::connect(self.port, None).expect("connects");
        client.ask(&["SELECT", &self.db.to_string()]).expect("selects");
        let reply = client.ask(command).expect("answers");
        match reply.list() {
            [] => vec![reply.text()],
            list => list.iter().map(|one| one.text()).collect(),
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

    /// Lets the real Sidekiq run a piece of Ruby, and gives its value.
    pub fn ruby(&self, code: &str) -> Value {
        let said = self
            .command()
            .arg(code)
            .stderr(Stdio::piped())
            .output()
            .expect("ruby starts; apt-get install ruby-sidekiq");
        let (out, trouble) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        let value: Option<Value> = out.lines().last().and_then(|line| serde_json::from_str(line).ok());
        value.unwrap_or_else(|| panic!("{code}\n{out}\n{trouble}"))[0].clone()
    }

    /// A real Sidekiq that works these queues.
    pub fn sidekiq(&self, queues: &[&str]) -> KillOnDrop {
        let mut child = self.command().arg("work").args(queues).spawn().expect("ruby starts");
        let mut said = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("says something");
        assert_eq!(line, "ready\n");
        KillOnDrop(child)
    }

    /// What was noted as run: who, with which args, under which jid.
    pub fn ran(&self) -> Vec<(String, Value)> {
        let lines = self.redis(&["LRANGE", "ran", "0", "-1"]);
        let read = |line: &String| serde_json::from_str::<(String, Value, String)>(line).ok();
        lines.iter().filter_map(read).map(|(who, args, _)| (who, args)).collect()
    }

    /// Waits until so many runs were noted.
    pub async fn until_ran(&self, runs: usize) -> Vec<(String, Value)> {
        until(&format!("{runs} runs were noted"), async || self.ran().len() >= runs).await;
        self.ran()
    }

    /// A worker of ours with a handler that notes what it runs, as Ruby's does.
    pub fn worker(&self, kinds: &[&str]) -> Worker {
        let mut worker = self.duly.worker();
        for kind in kinds {
            let (port, db) = (self.port, self.db);
            worker = worker.on_kind(*kind, move |ctx: Ctx| async move { note(port, db, &ctx) });
        }
        worker
    }

    pub fn run(&self, worker: Worker) -> Running {
        let stop = CancellationToken::new();
        Running { task: tokio::spawn(worker.run_until(stop.clone())), stop }
    }
}

pub fn note(port: u16, db: usize, ctx: &Ctx) {
    let mut client = Client::connect(port, None).expect("connects");
    client.ask(&["SELECT", &db.to_string()]).expect("selects");
    let job = ctx.job();
    let line = format!(r#"["rust",{},"{}"]"#, job.args, job.id);
    client.ask(&["RPUSH", "ran", &line]).expect("notes");
}

/// A worker of ours at work.
pub struct Running {
    pub task: JoinHandle<duly::Result<RunSummary>>,
    stop: CancellationToken,
}

impl Running {
    pub async fn end(self) -> RunSummary {
        self.stop.cancel();
        tokio::time::timeout(LONG, self.task).await.expect("in time").expect("no panic").expect("ends well")
    }
}

/// Something that handlers fill in and tests read.
pub type Notes<T> = Arc<Mutex<Vec<T>>>;
