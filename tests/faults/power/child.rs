//! The process with the power cut: makes each kind of write of duly, and reports each request and each reply.
//!
//! Each report is one line on stdout and one write(2), so that reports and writes are in one order in the log.

use std::time::Duration;

use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::worker::Event;
use duly::{Ctx, Duly, JobId, Outcome, Push};

const STORE: &str = "DULY_POWER_STORE";
const ROLE: &str = "DULY_POWER_ROLE";
const RUN: &str = "DULY_POWER_RUN";

/// Rounds of one process: a few hundred commits, several checkpoints.
const ROUNDS: usize = 10;
/// Jobs in one bulk push.
pub const BULK: usize = 10;
/// Jobs that are pushed again.
const AGAIN: usize = 12;
/// Sizes of args: some fit into a page of the file, most spill over several.
const ARGS_BYTES: std::ops::Range<usize> = 100..12_000;
/// The last report of a run: without it the process has failed.
pub const END: &str = "end";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Makes every kind of write, with its own jobs.
    Everything,
    /// Pushes a few jobs with fixed ids, as a client does that repeats a push after a lost reply.
    Again,
}

/// Returns the environment that gives a child process its role.
pub fn environment(role: Role, store: &str, run: usize) -> [(&'static str, String); 3] {
    [(ROLE, format!("{role:?}")), (STORE, store.to_owned()), (RUN, run.to_string())]
}

/// Derives the args of a job from its id, so that they need not be stored.
pub fn args(id: JobId) -> String {
    let seed = id.as_bytes().iter().fold(0_u64, |seed, byte| seed.wrapping_mul(257).wrapping_add(u64::from(*byte)));
    let mut random = fastrand::Rng::with_seed(seed);
    let text: String = (0..random.usize(ARGS_BYTES)).map(|_| random.alphanumeric()).collect();
    format!("\"{text}\"")
}

/// Runs the role of a child process; returns at once in any other process.
pub fn run_role() {
    let (Ok(role), Ok(store), Ok(run)) = (std::env::var(ROLE), std::env::var(STORE), std::env::var(RUN)) else {
        return;
    };
    // The test harness may have begun a line.
    report("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let duly = Duly::open(&store).await.expect("opens");
        match role.as_str() {
            "Everything" => everything(&duly, run).await,
            _ => again(&duly).await,
        }
        report(END);
        // The process is killed, so that the next run must recover without a clean close.
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, rustix::process::Signal::KILL).expect("can be killed");
    });
}

fn report(line: &str) {
    use std::io::Write;
    // Stdout is line buffered: a whole line is one write(2).
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).expect("stdout is open");
}

fn report_ids(name: &str, ids: &[JobId]) {
    ids.iter().for_each(|id| report(&format!("{name} {id}")));
}

async fn everything(duly: &Duly, run: String) {
    let mut pusher = Pusher { duly, run, pushed: 0 };
    for round in 0..ROUNDS {
        pusher.round(round).await;
    }
    pusher.hold().await;
}

async fn again(duly: &Duly) {
    for number in 0..AGAIN {
        let id = JobId::from_name(&format!("again-{number}"));
        report_ids("pushing", &[id]);
        let push = async || duly.push(Push::new("good", args(id)).id(id)).await;
        let pushed = match push().await {
            Err(error) if error.code() == "unknown" => {
                report_ids("unknown", &[id]);
                push().await
            }
            result => result,
        };
        report_ids(if pushed.expect("pushes").is_new() { "pushed" } else { "existing" }, &[id]);
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
        self.remove_and_prune(&unwanted, &brief).await;
    }

    /// Returns a job with an id and the args derived from it.
    fn job(&mut self, kind: &str) -> Push {
        self.pushed += 1;
        let id = JobId::from_name(&format!("{}-{}", self.run, self.pushed));
        Push::new(kind, args(id)).id(id)
    }

    async fn push(&self, jobs: Vec<Push>) -> Vec<JobId> {
        let ids: Vec<JobId> = jobs.iter().map(Push::job_id).collect();
        report_ids("pushing", &ids);
        let pushed = self.duly.push_all(jobs).await.expect("pushes");
        assert!(pushed.iter().all(duly::PushResult::is_new), "each id is pushed once");
        report_ids("pushed", &ids);
        ids
    }

    /// Removes waiting jobs, each in its own operation, and prunes done jobs of the brief queue.
    async fn remove_and_prune(&self, unwanted: &[JobId], brief: &[JobId]) {
        for id in unwanted {
            report_ids("removing", &[*id]);
            self.duly.jobs().remove(*id).await.expect("removes");
            report_ids("removed", &[*id]);
        }
        report_ids("removing", brief);
        let pruned = self.duly.store().prune("brief", 0).await.expect("prunes");
        assert_eq!(pruned, brief.len(), "all of them were done");
        report_ids("removed", brief);
    }

    /// Leaves some jobs claimed by a node that dies: the next run takes them back.
    async fn hold(&mut self) {
        let jobs = (0..3).map(|_| self.job("good").queue("held")).collect();
        self.push(jobs).await;
        let store = self.duly.store();
        let node = Node::fresh(vec!["held".into()]);
        store.heartbeat(&node).await.expect("sends a heartbeat");
        let claim = Claim::new("held", 3);
        assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 3);
    }
}

/// Lets a worker finish all ready jobs. Its handler reports each intended outcome, its events each recorded one.
async fn work(duly: &Duly) {
    let handler = |ctx: Ctx| async move {
        let (job, kind) = (ctx.job(), ctx.job().kind.as_str());
        match (kind, ctx.attempt()) {
            ("bad", _) => {
                report_ids("burying", &[job.id]);
                Outcome::bury("it is bad")
            }
            ("again", 1) => Outcome::retry(Duration::ZERO, "once more"),
            _ => {
                report_ids("acking", &[job.id]);
                Outcome::Ack
            }
        }
    };
    let worker = duly.worker().queue("default", 4).queue("brief", 1).queue("held", 1).on_any_kind(handler);
    let worker = worker.on_event(|event| {
        let Event::Settled { held, outcome, .. } = event else { return };
        match outcome {
            Outcome::Ack => report_ids("acked", &[held.job.id]),
            Outcome::Bury { .. } => report_ids("buried", &[held.job.id]),
            Outcome::Retry { .. } => report(&format!("retried {} {}", held.job.id, held.attempts + 1)),
            _ => {}
        }
    });
    let summary = worker.drain().await.expect("works");
    assert_eq!(summary.lost, 0, "there is no other worker");
}
