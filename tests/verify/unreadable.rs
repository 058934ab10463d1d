//! Rows of which a disk has made what no step has written: they stop nobody, can be removed, and are told.

use std::path::{Path, PathBuf};
use std::time::Duration;

use duly::rusqlite::Connection;
use duly::store::Claim;
use duly::{Clock, Duly, JobId, Node, Outcome, Push, Pushed, Rule, State};

const HOUR: Duration = Duration::from_secs(3_600);
/// Longer than dead jobs are kept.
const LONG: Duration = Duration::from_secs(1_000 * 24 * 3_600);

/// A store with a clock of its own, and its file.
struct Bed {
    duly: Duly,
    clock: Clock,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Bed {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, clock) = (dir.path().join("duly.db"), Clock::manual());
        Bed { duly: open(&path, &clock).await, clock, path, _dir: dir }
    }

    fn change(&self, sql: &str) {
        let conn = Connection::open(&self.path).expect("opens");
        conn.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn push(&self, jobs: impl IntoIterator<Item = Push>) -> Vec<JobId> {
        self.duly.push_all(jobs).await.expect("pushes").iter().map(Pushed::id).collect()
    }

    /// Works off what is ready, whatever kind it has. Answers how many were acked.
    async fn run(&self) -> u64 {
        self.duly.worker().on_any_kind(|_| async {}).drain().await.expect("drains").acked
    }

    /// Jobs of which verify says that they cannot be read, each once.
    async fn unreadable(&self) -> Vec<JobId> {
        let breaches = self.duly.verify().await.expect("does not fail").breaches;
        let mut ids: Vec<JobId> =
            breaches.iter().filter(|breach| breach.rule == Rule::Readable).filter_map(|breach| breach.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

async fn open(path: &Path, clock: &Clock) -> Duly {
    Duly::builder(path.to_str().expect("a plain path")).clock(clock.clone()).open().await.expect("opens")
}

fn job(name: &str) -> Push {
    Push::new(name, "1").tags(["a", "b"]).unique(name)
}

/// A ready, a scheduled and a dead one, each beside one that is whole.
async fn others_go_on(column: &str) {
    let bed = Bed::new().await;
    let dead = bed.push([job("bad-dead"), job("good-dead")]).await;
    let buried = bed.duly.worker().on_any_kind(|_| async { Outcome::bury("no") }).drain().await.expect("drains").buried;
    assert_eq!(buried, 2);
    let waiting = [job("bad-ready"), job("good-ready"), job("bad-later").after(HOUR), job("good-later").after(HOUR)];
    let waiting = bed.push(waiting).await;
    bed.change(&format!("UPDATE duly_job SET {column} = CAST(x'62e3' AS TEXT) WHERE kind GLOB 'bad-*'"));
    let mut bad = vec![dead[0], waiting[0], waiting[2]];
    bad.sort_unstable();
    assert_eq!(bed.unreadable().await, bad, "{column}");

    assert_eq!(bed.run().await, 1, "{column}: the ready one that is whole");
    bed.clock.advance(2 * HOUR);
    assert_eq!(bed.run().await, 1, "{column}: the scheduled one that is whole");
    for id in [waiting[0], waiting[2]] {
        assert_eq!(
            bed.duly.get(id).await.expect("looks").expect("is there").state,
            State::Scheduled,
            "{column}: later"
        );
        bed.duly.remove(id).await.unwrap_or_else(|error| panic!("{column}: {error}"));
    }
    let again = bed.duly.push(job("bad-ready")).await.expect("its unique key is free");
    assert!(matches!(again, Pushed::New(_)), "{column}");
    bed.clock.advance(LONG);
    assert_eq!(bed.duly.store().prune("default", 10).await.expect("prunes"), 4, "{column}: two done, two dead");
    assert_eq!(bed.duly.verify().await.expect("verifies").breaches, [], "{column}: nothing of them is left");
}

#[tokio::test]
async fn a_text_that_is_none_any_more_stops_nobody() {
    for column in ["kind", "tags", "unique_key"] {
        others_go_on(column).await;
    }
}

/// What no statement can write, since the table is strict.
const NULL_ATTEMPTS: &str = "PRAGMA writable_schema = ON;
    UPDATE sqlite_schema SET sql = replace(sql, 'attempts INTEGER NOT NULL', 'attempts INTEGER') WHERE name = 'duly_ready';
    PRAGMA writable_schema = RESET;
    UPDATE duly_ready SET attempts = NULL;
    PRAGMA writable_schema = ON;
    UPDATE sqlite_schema SET sql = replace(sql, 'attempts INTEGER', 'attempts INTEGER NOT NULL') WHERE name = 'duly_ready';
    PRAGMA schema_version = 9999; PRAGMA writable_schema = OFF;";

#[tokio::test]
async fn counts_that_cannot_be_stop_nobody() {
    let bed = Bed::new().await;
    let ids = bed.push([Push::new("ready", "1"), Push::new("later", "1").after(HOUR)]).await;
    bed.change(
        "UPDATE duly_ready SET attempts = -1, crashes = -7; UPDATE duly_scheduled SET attempts = 1 << 40, crashes = -1",
    );
    assert_eq!(bed.unreadable().await.len(), 2);
    let later = bed.duly.get(ids[1]).await.expect("reads").expect("is there");
    assert_eq!((later.attempts, later.crashes), (u32::MAX, 0), "the nearest that can be");
    assert_eq!(bed.run().await, 1);
    bed.clock.advance(2 * HOUR);
    assert_eq!(bed.run().await, 1);

    // One that a node held when it went.
    bed.push([Push::new("held", "1")]).await;
    let (store, node) = (bed.duly.store(), Node::fresh(vec!["default".into()]));
    store.beat(&node).await.expect("beats");
    let claim = Claim { queue: "default".into(), max: 1, redo: false, suspect: None, kinds: None };
    assert_eq!(store.claim(node.id, claim).await.expect("claims").jobs.len(), 1);
    bed.change("UPDATE duly_held SET attempts = -1, crashes = -7");
    store.leave(node.id).await.expect("leaves");
    assert_eq!(bed.run().await, 1, "taken back");

    bed.push([Push::new("null", "1"), Push::new("null", "2")]).await;
    bed.change(NULL_ATTEMPTS);
    assert_eq!(bed.run().await, 2);
}

#[tokio::test]
async fn a_queue_whose_name_is_none_any_more_gets_one_by_a_repair() {
    let bed = Bed::new().await;
    bed.push([Push::new("mail", "1")]).await;
    bed.change("UPDATE duly_queue SET name = CAST(x'64e3' AS TEXT), limit_jobs = -1; UPDATE duly_count SET ready = -1");
    let counts = bed.duly.counts().await.expect("does not fail");
    assert_eq!((counts[0].ready, counts[0].capacity.jobs), (0, None));
    let repaired = bed.duly.repair(bed.path.with_extension("copy")).await.expect("repairs");
    let rules: Vec<Rule> = repaired.found.breaches.iter().map(|breach| breach.rule).collect();
    assert_eq!(rules, [Rule::Readable, Rule::Counts]);
    assert_eq!(repaired.left.breaches, []);

    let anew = open(&bed.path, &bed.clock).await;
    let queue = anew.counts().await.expect("counts").remove(0);
    assert_eq!((queue.queue.as_str(), queue.ready), ("recovered-1", 1));
    let tally = anew.worker().queue("recovered-1", 1).on_any_kind(|_| async {}).drain().await.expect("drains");
    assert_eq!(tally.acked, 1);
}
