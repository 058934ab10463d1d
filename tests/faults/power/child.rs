//! The process whose power is cut: does each of duly's own writes, and says what it is about to do and what was answered.
//!
//! It says so line by line on stdout, each a write(2) of its own, so that words and writes stand in one order in the log.

use std::time::Duration;

use duly::store::Claim;
use duly::{Ctx, Duly, Event, JobId, Node, Outcome, Push};

const STORE: &str = "DULY_POWER_STORE";
const ROLE: &str = "DULY_POWER_ROLE";
const RUN: &str = "DULY_POWER_RUN";

/// Times that one process goes through everything: a few hundred commits, several checkpoints.
const ROUNDS: usize = 10;
/// Jobs in one bulk push.
pub const BULK: usize = 10;
/// Jobs that are pushed again.
const AGAIN: usize = 12;
/// Sizes of args: some fit into a page of the file, most spill over several.
const ARGS_BYTES: std::ops::Range<usize> = 100..12_000;
/// The last word of a run: without it the log is of a process that failed.
pub const END: &str = "end";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Does everything that duly can write, with jobs of its own.
    Everything,
    /// Pushes a few jobs whose ids are always the same, as one does whose earlier answer was lost.
    Again,
}

/// The environment that makes the test binary such a process.
pub fn environment(role: Role, store: &str, run: usize) -> [(&'static str, String); 3] {
    [(ROLE, format!("{role:?}")), (STORE, store.to_owned()), (RUN, run.to_string())]
}

/// The args of a job follow from its id, so that nobody needs to remember them.
pub fn args(id: JobId) -> String {
    let seed = id.as_bytes().iter().fold(0_u64, |seed, byte| seed.wrapping_mul(257).wrapping_add(u64::from(*byte)));
    let mut random = fastrand::Rng::with_seed(seed);
    let text: String = (0..random.usize(ARGS_BYTES)).map(|_| random.alphanumeric()).collect();
    format!("\"{text}\"")
}

/// What a child process does; returns at once in any other.
pub fn live() {
    let (Ok(role), Ok(store), Ok(run)) = (std::env::var(ROLE), std::env::var(STORE), std::env::var(RUN)) else {
        return;
    };
    // The test harness may have left the begin of a line.
    say("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let duly = Duly::open(&store).await.expect("opens");
        match role.as_str() {
            "Everything" => everything(&duly, run).await,
            _ => again(&duly).await,
        }
        say(END);
        // No good end: what a clean close would have put in order is left to the next run.
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, rustix::process::Signal::KILL).expect("can be killed");
    });
}

fn say(line: &str) {
    use std::io::Write;
    // Stdout is line buffered: a whole line is one write(2).
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).expect("somebody listens");
}

fn say_all(word: &str, ids: &[JobId]) {
    ids.iter().for_each(|id| say(&format!("{word} {id}")));
}

async fn everything(duly: &Duly, run: String) {
    let mut pusher = Pusher { duly, run, pushed: 0 };
    for round in 0..ROUNDS {
        pusher.round(round).await;
    }
    pusher.hold().await;
}

async fn again(duly: &Duly) {
    for no in 0..AGAIN {
        let id = JobId::from_name(&format!("again-{no}"));
        say_all("pushing", &[id]);
        let push = async || duly.push(Push::new("good", args(id)).id(id)).await;
        let pushed = match push().await {
            Err(error) if error.code() == "unknown" => {
                say_all("unknown", &[id]);
                push().await
            }
            known => known,
        };
        say_all(if pushed.expect("pushes").is_new() { "pushed" } else { "existing" }, &[id]);
    }
}

struct Pusher<'a> {
    duly: &'a Duly,
    run: String,
    pushed: usize,
}

impl Pusher<'_> {
    async fn round(&mut self, round: usize) {
        for kind in ["good", "again", "bad", "good", "again"] {
            let push = self.job(kind);
            self.push(vec![push]).await;
        }
        let later = self.job("good").after(Duration::from_millis(5));
        let much_later = self.job("good").after(Duration::from_secs(3600));
        self.push(vec![later]).await;
        self.push(vec![much_later]).await;
        let kind = format!("bulk-{}-{round}", self.run);
        let bulk = (0..BULK).map(|_| self.job(&kind)).collect();
        self.push(bulk).await;
        let brief: Vec<Push> = (0..3).map(|_| self.job("good").queue("brief")).collect();
        let brief = self.push(brief).await;
        let unwanted = (0..5).map(|_| self.job("good").after(Duration::from_secs(3600))).collect();
        let unwanted = self.push(unwanted).await;

        work(self.duly).await;
        self.forget(&unwanted, &brief).await;
    }

    /// A job with an id, and args that follow from it.
    fn job(&mut self, kind: &str) -> Push {
        self.pushed += 1;
        let id = JobId::from_name(&format!("{}-{}", self.run, self.pushed));
        Push::new(kind, args(id)).id(id)
    }

    async fn push(&self, jobs: Vec<Push>) -> Vec<JobId> {
        let ids: Vec<JobId> = jobs.iter().map(Push::job_id).collect();
        say_all("pushing", &ids);
        let pushed = self.duly.push_all(jobs).await.expect("pushes");
        assert!(pushed.iter().all(duly::PushResult::is_new), "each id is pushed once");
        say_all("pushed", &ids);
        ids
    }

    /// Removes jobs that wait, each in a step of its own, and prunes what is done in the brief queue.
    async fn forget(&self, unwanted: &[JobId], brief: &[JobId]) {
        for id in unwanted {
            say_all("removing", &[*id]);
            self.duly.remove(*id).await.expect("removes");
            say_all("removed", &[*id]);
        }
        say_all("removing", brief);
        let gone = self.duly.store().prune("brief", 0).await.expect("prunes");
        assert_eq!(gone, brief.len(), "all of them were done");
        say_all("removed", brief);
    }

    /// Leaves some jobs in the hands of a node that will be dead: the next run takes them back.
    async fn hold(&mut self) {
        let jobs = (0..3).map(|_| self.job("good").queue("held")).collect();
        self.push(jobs).await;
        let store = self.duly.store();
        let node = Node::fresh(vec!["held".into()]);
        store.heartbeat(&node).await.expect("beats");
        let claim = Claim { queue: "held".into(), max: 3, resync: false, suspect: None, kinds: None };
        assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 3);
    }
}

/// Lets a worker end what is ready. Its handler says what it is about to ask for, its events say what was recorded.
async fn work(duly: &Duly) {
    let handler = |ctx: Ctx| async move {
        let (job, kind) = (ctx.job(), ctx.job().kind.as_str());
        match (kind, ctx.attempt()) {
            ("bad", _) => {
                say_all("burying", &[job.id]);
                Outcome::bury("it is bad")
            }
            ("again", 1) => Outcome::retry(Duration::ZERO, "once more"),
            _ => {
                say_all("acking", &[job.id]);
                Outcome::Ack
            }
        }
    };
    let worker = duly.worker().queue("default", 4).queue("brief", 1).queue("held", 1).on_any_kind(handler);
    let worker = worker.on_event(|event| {
        let Event::Settled { held, outcome, .. } = event else { return };
        match outcome {
            Outcome::Ack => say_all("acked", &[held.job.id]),
            Outcome::Bury { .. } => say_all("buried", &[held.job.id]),
            Outcome::Retry { .. } => say(&format!("retried {} {}", held.job.id, held.attempts + 1)),
            _ => {}
        }
    });
    let tally = worker.drain().await.expect("works");
    assert_eq!(tally.lost, 0, "nobody else is here");
}
