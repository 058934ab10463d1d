//! apalis with apalis-sqlite, in the fastest settings found: WAL, one connection, no second write to lock a job,
//! one poll per millisecond, and `synchronous=FULL`, which its own set-up turns off.
//!
//! `peer-apalis COUNT ARGS_BYTES DIR` prints one line of JSON.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};

/// Jobs in one bulk push.
const BULK: usize = 1_000;
/// Jobs in one fetch and one acknowledgement; 30 to 300 give the same, 10 is slower.
const BATCH: usize = 100;
/// The polling interval of the worker.
const POLL: Duration = Duration::from_millis(1);
/// Longest wait for the last jobs to be recorded as done.
const DONE_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Noop {
    text: String,
}

#[derive(Serialize)]
struct Figures {
    peer: &'static str,
    jobs: usize,
    single_push_per_s: f64,
    bulk_push_per_s: f64,
    life_per_s: f64,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let mut given = std::env::args().skip(1);
    let mut next = || given.next().context("usage: peer-apalis COUNT ARGS_BYTES DIR");
    let (count, bytes, dir): (usize, usize, String) = (next()?.parse()?, next()?.parse()?, next()?);
    let noop = Noop { text: "x".repeat(bytes.saturating_sub(r#"{"text":""}"#.len())) };

    let pool = open(&Path::new(&dir).join("single.db")).await?;
    let mut storage = SqliteStorage::<Noop>::new(&pool);
    let singles = count.min(500);
    let begin = Instant::now();
    for _ in 0..singles {
        storage.push(noop.clone()).await.map_err(|e| anyhow::anyhow!("{e}"))?;
    }
    let single_push_per_s = singles as f64 / begin.elapsed().as_secs_f64();
    drop(storage);
    pool.close().await;

    let pool = open(&Path::new(&dir).join("life.db")).await?;
    let config = Config::default().queue("bench").batch_size(BATCH).lock_tasks(false);
    let mut storage = SqliteStorage::<Noop>::new(&pool).with_config(config);
    let begin = Instant::now();
    for at in (0..count).step_by(BULK) {
        let batch = vec![noop.clone(); BULK.min(count - at)];
        storage.push_bulk(batch).await.map_err(|e| anyhow::anyhow!("{e}"))?;
    }
    let bulk_push_per_s = count as f64 / begin.elapsed().as_secs_f64();
    work(storage, &pool, count).await?;
    let life_per_s = count as f64 / begin.elapsed().as_secs_f64();

    let figures = Figures { peer: "apalis-sqlite 1.0", jobs: count, single_push_per_s, bulk_push_per_s, life_per_s };
    println!("{}", serde_json::to_string(&figures)?);
    // The worker would wait for more jobs; no data is left to be saved.
    std::process::exit(0);
}

/// Opens one permanent connection: other connections of a pool would not have the setting.
async fn open(path: &Path) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new()
        .min_connections(1)
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_with(options)
        .await?;
    SqliteStorage::setup(&pool).await?;
    sqlx::query("PRAGMA synchronous = FULL").execute(&pool).await?;
    let mode: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&pool).await?;
    ensure!(mode == 2, "synchronous is {mode}, not FULL");
    Ok(pool)
}

/// Runs all jobs and waits until each is recorded as done.
async fn work(storage: SqliteStorage<Noop>, pool: &SqlitePool, count: usize) -> Result<()> {
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = ran.clone();
    let noop = move |_job: Noop| {
        let counter = counter.clone();
        async move {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<(), BoxDynError>(())
        }
    };
    let worker = WorkerBuilder::new("bench").backend(storage.poll_with_interval(POLL)).build(noop);
    tokio::spawn(worker.run());
    // Does not use the only connection until every handler has run.
    while ran.load(Ordering::Relaxed) < count {
        tokio::time::sleep(POLL).await;
    }
    let by = Instant::now() + DONE_TIMEOUT;
    loop {
        let done: i64 = sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status = 'Done'").fetch_one(pool).await?;
        if done == count as i64 {
            return Ok(());
        }
        ensure!(Instant::now() < by, "only {done} of {count} jobs are recorded as done");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
