//! A file with a flipped bit, or truncated: SQLite rejects it, verify reports it, or no job differs.
//! No operation panics, and no corrupted job is ever returned.
//!
//! `DULY_FLIPS=n` sets the number of tries.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use duly::store::Node;
use duly::store::{Claim, JobStore};
use duly::{Duly, Filter, Job, JobId, Push};

use crate::verify::populate;

/// Flips in an ordinary run.
const FLIPS: u64 = 150;
/// Every this many tries, the file is truncated instead.
const CUT_EVERY: u64 = 20;
const UNREADABLE: &str = "duly:unreadable";
/// The time limit per file: a damaged file must not block an operation for ever.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the fields of a job that never change.
fn payload(job: &Job) -> (String, String, u32, Duration, Vec<String>) {
    (job.kind.clone(), job.args.clone(), job.max_attempts, job.timeout, job.tags.clone())
}

type JobsById = BTreeMap<JobId, (String, String, u32, Duration, Vec<String>)>;

async fn list(duly: &Duly) -> duly::Result<JobsById> {
    let jobs = duly.jobs().list(Filter::all().limit(1_000)).await?.jobs;
    Ok(jobs.iter().map(|record| (record.job.id, payload(&record.job))).collect())
}

/// Creates a closed file with jobs of every state and several sizes. Returns its bytes and jobs.
async fn sound_file(path: &Path) -> (Vec<u8>, JobsById) {
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

/// Fails if a returned job differs from the pushed one.
fn assert_unchanged(case: &str, jobs: &JobsById, found: impl IntoIterator<Item = Job>) {
    for job in found {
        if job.kind == UNREADABLE {
            continue;
        }
        // The checksum covers the id too.
        assert_eq!(jobs.get(&job.id), Some(&payload(&job)), "{case}: returned a job that differs from the pushed one");
    }
}

/// Fails unless the damage is reported or has changed no job.
async fn assert_reported_or_harmless(case: &str, path: &Path, jobs: &JobsById) {
    let Ok(duly) = Duly::open(path.to_str().expect("a plain path")).await else {
        return;
    };
    let report = duly.verify().await;
    let is_reported = report.as_ref().map_or(true, |report| !report.violations.is_empty());
    for id in jobs.keys() {
        let result = duly.jobs().get(*id).await;
        assert_unchanged(case, jobs, result.ok().flatten().map(|record| record.job));
    }
    match list(&duly).await {
        Ok(found) if !is_reported => assert_eq!(found, *jobs, "{case}: jobs differ without a report"),
        Ok(_) => {}
        Err(error) => assert!(is_reported, "{case}: verify reports nothing, but a list fails: {error}"),
    }
    let node = Node::fresh(vec!["default".into()]);
    let claim = Claim::new("default", 100);
    if duly.store().heartbeat(&node).await.is_ok()
        && let Ok(reply) = duly.store().claim(node.id, claim).await
    {
        assert_unchanged(case, jobs, reply.jobs.into_iter().map(|held| held.job));
    }
}

#[tokio::test]
async fn flipped_bit_is_reported_or_changes_no_job() {
    let dir = test_support::temp_dir();
    let (original, jobs) = sound_file(&dir.path().join("duly.db")).await;
    let flips = test_support::env_number("DULY_FLIPS").unwrap_or(FLIPS);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for flip in 0..flips {
        let mut bytes = original.clone();
        let case = if flip % CUT_EVERY == CUT_EVERY - 1 {
            bytes.truncate(random.usize(..bytes.len()));
            format!("seed {seed}: truncated at {}", bytes.len())
        } else {
            let (index, bit) = (random.usize(..bytes.len()), random.u8(..8));
            bytes[index] ^= 1 << bit;
            format!("seed {seed}: bit {bit} of byte {index}")
        };
        let path = dir.path().join(format!("{flip}.db"));
        std::fs::write(&path, &bytes).expect("writes");
        tokio::time::timeout(TIMEOUT, assert_reported_or_harmless(&case, &path, &jobs))
            .await
            .unwrap_or_else(|_| panic!("{case}: never ends"));
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
        }
        let _ = std::fs::remove_dir_all(format!("{}-nodes", path.display()));
    }
}
