//! A disk that is almost full: pushes are refused early enough that the jobs which are there can be worked and removed.

use duly::{Duly, JobId, Push};

use crate::errors::in_namespace;

const MIB: usize = 1 << 20;
/// The size of the disk. A quarter of it is the reserve.
const DISK_MIB: usize = 48;
/// Selects what the child process does.
const SCENARIO: &str = "DULY_FULL_DISK_SCENARIO";

/// Runs a scenario in a process of its own on a small disk.
fn run_on_small_disk(scenario: &str) {
    let dir = test_support::temp_dir();
    let mount = format!("mount -t tmpfs -o size={DISK_MIB}m none {}", dir.path().display());
    let store = format!("{}/duly.db?keep=0&remember_ids=0", dir.path().display());
    let output = in_namespace(&mount, "full_disk::child_process", &[("DULY_STORE", &store), (SCENARIO, scenario)]);
    assert!(output.contains("all jobs are gone"), "{output}");
}

#[cfg(target_os = "linux")]
#[test]
fn large_pushes_leave_room_to_drain() {
    run_on_small_disk("large");
}

#[cfg(target_os = "linux")]
#[test]
fn pushes_beside_an_open_reader_leave_room_to_drain() {
    run_on_small_disk("reader");
}

/// Not a test: runs a scenario.
#[tokio::test]
async fn child_process() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let url = std::env::var("DULY_STORE").expect("is set");
    let duly = Duly::open(&url).await.expect("opens");
    match scenario.as_str() {
        "large" => push_large_batches(&duly).await,
        _ => push_beside_a_reader(&duly, url.split('?').next().expect("a path")).await,
    }
    assert!(duly.verify().await.expect("verifies").violations.is_empty());
    println!("all jobs are gone");
}

fn job(args_bytes: usize) -> Push {
    Push::new("kind", format!("\"{}\"", "x".repeat(args_bytes)))
}

async fn push_batch(duly: &Duly, mib: usize) -> duly::Result<Vec<JobId>> {
    let results = duly.push_all((0..mib).map(|_| job(MIB - 2))).await?;
    Ok(results.iter().map(duly::PushResult::id).collect())
}

fn assert_refused(error: &duly::Error) {
    assert_eq!(error.code(), "store");
    assert!(error.to_string().contains("the disk is almost full"), "{error}");
}

/// Removes one half of the jobs and works the other.
async fn drain(duly: &Duly, mut jobs: Vec<JobId>) {
    for id in jobs.split_off(jobs.len() / 2) {
        duly.jobs().remove(id).await.expect("removes out of the reserve");
    }
    let summary = duly.worker().on_kind("kind", |_| async {}).drain().await.expect("works out of the reserve");
    assert_eq!(summary.acked, jobs.len() as u64);
}

async fn push_large_batches(duly: &Duly) {
    // Once in the WAL and once in the file, that is more than the disk has.
    assert_refused(&push_batch(duly, DISK_MIB * 2 / 3).await.expect_err("is refused"));
    for batch_mib in [12, 3] {
        let mut jobs = Vec::new();
        let error = loop {
            match push_batch(duly, batch_mib).await {
                Ok(pushed) => jobs.extend(pushed),
                Err(error) => break error,
            }
            assert!(jobs.len() < DISK_MIB, "the disk never fills");
        };
        assert_refused(&error);
        assert!(jobs.len() >= batch_mib, "one batch fits");
        drain(duly, jobs).await;
    }
    // Together, in few transactions.
    let pushes = (0..12).map(|_| {
        let duly = duly.clone();
        tokio::spawn(async move { push_batch(&duly, 3).await })
    });
    let (mut jobs, mut refused) = (Vec::new(), 0);
    for push in pushes.collect::<Vec<_>>() {
        match push.await.expect("no panic") {
            Ok(pushed) => jobs.extend(pushed),
            Err(error) => {
                assert_refused(&error);
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && !jobs.is_empty(), "{refused} refused");
    drain(duly, jobs).await;
}

/// A reader with an old snapshot keeps every page in the WAL.
async fn push_beside_a_reader(duly: &Duly, path: &str) {
    let reader = duly::rusqlite::Connection::open(path).expect("opens");
    reader.execute_batch("BEGIN; SELECT count(*) FROM duly_job").expect("takes a snapshot");
    let mut jobs = Vec::new();
    let error = loop {
        match duly.push(job(50_000)).await {
            Ok(pushed) => jobs.push(pushed.id()),
            Err(error) => break error,
        }
        assert!(jobs.len() < 10_000, "the disk never fills");
    };
    assert_refused(&error);
    let warnings = duly.health().await.expect("reads").warnings;
    assert!(warnings.iter().any(|warning| warning.contains("KiB are rejected")), "{warnings:?}");
    drain(duly, jobs).await;
    drop(reader);
    let id = duly.push(job(50_000)).await.expect("there is room again").id();
    drain(duly, vec![id]).await;
}
