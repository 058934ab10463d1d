//! A file in which a disk has changed a bit, or which it has cut off: SQLite refuses it, or verify tells, or no job differs.
//! Whatever is done with it, nothing panics, and no job is ever given out that is not what was pushed.
//!
//! `DULY_FLIPS=n` tries so many.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use duly::store::Claim;
use duly::{Duly, Filter, Job, JobId, Node, Push};

use crate::verify::populate;

/// Flips in an ordinary run.
const FLIPS: u64 = 150;
/// One of so many is a file that was cut off.
const CUT_EVERY: u64 = 20;
const UNREADABLE: &str = "duly:unreadable";
/// Longest for one file: a damaged one must not make anybody wait for ever.
const LONG: Duration = Duration::from_secs(60);

/// What a job is, as far as it is written once.
fn payload(job: &Job) -> (String, String, u32, Duration, Vec<String>) {
    (job.kind.clone(), job.args.clone(), job.max_attempts, job.timeout, job.tags.clone())
}

type Jobs = BTreeMap<JobId, (String, String, u32, Duration, Vec<String>)>;

async fn list(duly: &Duly) -> duly::Result<Jobs> {
    let jobs = duly.list(Filter { limit: 1_000, ..Filter::default() }).await?.jobs;
    Ok(jobs.iter().map(|record| (record.job.id, payload(&record.job))).collect())
}

/// A closed file with jobs in every state, of several sizes, and what is in it.
async fn sound(path: &Path) -> (Vec<u8>, Jobs) {
    let populated = populate(path.to_str().expect("a plain path")).await;
    for size in [10, 300, 5_000] {
        let args = format!("\"{}\"", "x".repeat(size));
        populated.duly.push(Push::new("sized", &args).tags(["a", "b"])).await.expect("pushes");
    }
    let jobs = list(&populated.duly).await.expect("lists");
    drop(populated);
    let conn = duly::rusqlite::Connection::open(path).expect("opens");
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("checkpoints");
    drop(conn);
    (std::fs::read(path).expect("is there"), jobs)
}

/// Nothing that it gives out is anything but what was pushed.
fn nothing_has_changed(what: &str, jobs: &Jobs, found: impl IntoIterator<Item = Job>) {
    for job in found {
        if job.kind == UNREADABLE {
            continue;
        }
        // An id is a part of what the checksum is made of.
        assert_eq!(jobs.get(&job.id), Some(&payload(&job)), "{what}: given out, and not what was pushed");
    }
}

/// Whether the damage is told by somebody, or has changed no job.
async fn try_it(what: &str, path: &Path, jobs: &Jobs) {
    let Ok(duly) = Duly::open(path.to_str().expect("a plain path")).await else {
        return;
    };
    let verified = duly.verify().await;
    let told = verified.as_ref().map_or(true, |verified| !verified.violations.is_empty());
    for id in jobs.keys() {
        let got = duly.get(*id).await;
        nothing_has_changed(what, jobs, got.ok().flatten().map(|record| record.job));
    }
    match list(&duly).await {
        Ok(found) if !told => assert_eq!(found, *jobs, "{what}: nobody tells, and jobs differ"),
        Ok(_) => {}
        Err(error) => assert!(told, "{what}: verify says that all is well, and a list fails: {error}"),
    }
    let node = Node::fresh(vec!["default".into()]);
    let claim = Claim { queue: "default".into(), max: 100, resync: false, suspect: None, kinds: None };
    if duly.store().heartbeat(&node).await.is_ok()
        && let Ok(claimed) = duly.store().claim(node.id, claim).await
    {
        nothing_has_changed(what, jobs, claimed.jobs.into_iter().map(|held| held.job));
    }
}

#[tokio::test]
async fn flipped_bit_is_reported_or_changes_no_job() {
    let dir = test_support::temp_dir();
    let (whole, jobs) = sound(&dir.path().join("duly.db")).await;
    let flips = test_support::env_number("DULY_FLIPS").unwrap_or(FLIPS);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for flip in 0..flips {
        let mut bytes = whole.clone();
        let what = if flip % CUT_EVERY == CUT_EVERY - 1 {
            bytes.truncate(random.usize(..bytes.len()));
            format!("seed {seed}: cut off at {}", bytes.len())
        } else {
            let (at, bit) = (random.usize(..bytes.len()), random.u8(..8));
            bytes[at] ^= 1 << bit;
            format!("seed {seed}: bit {bit} of byte {at}")
        };
        let path = dir.path().join(format!("{flip}.db"));
        std::fs::write(&path, &bytes).expect("writes");
        tokio::time::timeout(LONG, try_it(&what, &path, &jobs)).await.unwrap_or_else(|_| panic!("{what}: never ends"));
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
        let _ = std::fs::remove_dir_all(format!("{}-nodes", path.display()));
    }
}
