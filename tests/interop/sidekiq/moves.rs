//! `duly move` beside live Ruby processes.

use std::collections::HashSet;

use duly::{ConflictKind, Duly, Error, Filter, Push};

use super::sandbox::*;

/// Enough for both sides to get some of them.
const JOBS: usize = 4_000;
/// Most tries until each side got some.
const ROUNDS_MAX: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn move_is_refused_while_ruby_works_the_queue() {
    let sandbox = Sandbox::new().await;
    sandbox.duly.push(Push::new("RubyOnly", "[1]").queue("other")).await.expect("pushes");
    sandbox.duly.push(Push::new("RubyOnly", "[2]").queue("free")).await.expect("pushes");
    // A duly worker is in the same list of processes, and is no reason to refuse.
    let running = sandbox.run(sandbox.worker(&["Echo"]).queue("other", 1));
    let sidekiq = sandbox.sidekiq(&["other2", "other"]);
    test_support::until("both are registered", async || sandbox.redis(&["SCARD", "processes"]) == ["2"]).await;
    let away = Duly::open(":memory:").await.expect("opens");
    let error = sandbox.duly.transfer_to(&away).run().await.expect_err("refused");
    assert!(
        matches!(&error, Error::Conflict { kind: ConflictKind::InUse, reason, .. } if reason.starts_with("1 live processes")),
        "{error}"
    );
    assert!(away.jobs().list(Filter::all()).await.expect("lists").jobs.is_empty());
    let moved = sandbox.duly.transfer_to(&away).queue("free").run().await.expect("no process works this queue");
    assert_eq!(moved[0].ready, 1);
    running.end().await;
    drop(sidekiq);
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_move_beside_ruby_doubles_no_job() {
    for round in 0.. {
        assert!(round < ROUNDS_MAX, "one side got all jobs in each round");
        let moved = move_beside_ruby().await;
        if moved > 0 && moved < JOBS {
            break;
        }
    }
}

/// Moves jobs that Ruby is running, and checks that each is run or moved, never both. Returns how many were moved.
async fn move_beside_ruby() -> usize {
    let sandbox = Sandbox::new().await;
    let _sidekiq = sandbox.sidekiq(&["default"]);
    sandbox.duly.push_all((0..JOBS).map(|n| Push::new("Echo", format!("[{n}]")))).await.expect("pushes");
    let away = Duly::open(":memory:").await.expect("opens");
    let moved = sandbox.duly.transfer_to(&away).allow_foreign_processes().run().await.expect("moves");
    let moved = moved.iter().map(duly::admin::QueueTransferReport::total).sum::<u64>() as usize;
    println!("{moved} of {JOBS} jobs were moved");
    let mut seen = HashSet::new();
    for (_, args) in sandbox.until_ran(JOBS - moved).await {
        assert!(seen.insert(args.to_string()), "{args} ran twice");
    }
    let mut cursor: Option<String> = None;
    loop {
        let page = away.jobs().list(Filter::all().limit(1_000).cursor(cursor)).await.expect("lists");
        for record in page.jobs {
            assert!(seen.insert(record.job.args.clone()), "{} was moved and ran in Ruby", record.job.args);
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), JOBS, "none is lost");
    assert_eq!(sandbox.ran().len(), JOBS - moved, "none ran later");
    moved
}
