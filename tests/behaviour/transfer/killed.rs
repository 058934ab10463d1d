//! Transfers that are killed or run twice. Arrived jobs run at once and are forgotten, so a second arrival would show.

use duly::{Duly, JobId};

use crate::transfer::stores::*;

/// More requests than any transfer here makes.
const CALLS_MAX: u64 = 200;

/// Runs a transfer until it is killed, then runs the jobs in the target. Returns whether it ended, and those jobs.
async fn run_until_killed(old: &Duly, new: &Duly, calls: u64) -> (bool, Vec<JobId>) {
    let result = old.transfer_to(new).kill_after(calls).run().await;
    if let Err(error) = &result {
        assert!(error.to_string().contains("killed"), "{error}");
    }
    let worker = ManualNode::join(new, "default").await;
    let done = worker.run_ready_jobs().await;
    worker.leave().await;
    (result.is_ok(), done)
}

async fn job_ids(duly: &Duly) -> Vec<JobId> {
    all(duly).await.into_iter().map(|record| record.job.id).collect()
}

pub async fn transfer_killed_at_every_operation_continues(pair: StorePair) {
    let mut ended = false;
    for calls in 0..CALLS_MAX {
        let (old, new) = pair.open().await;
        let ids = fill(&old, "default", 40).await;
        let (completed, mut done) = run_until_killed(&old, &new, calls).await;
        ended = completed;
        done.extend(run_until_killed(&old, &new, CALLS_MAX).await.1);
        done.extend(job_ids(&new).await);
        assert_each_once(done, &ids);
        assert_empty(&old).await;
        if ended {
            break;
        }
    }
    assert!(ended, "every operation has been the last");
}

pub async fn transfer_killed_twice_continues(pair: StorePair) {
    for _ in 0..12 {
        let (old, new) = pair.open().await;
        let ids = fill(&old, "default", 40).await;
        let mut done = Vec::new();
        for _ in 0..3 {
            done.extend(run_until_killed(&old, &new, fastrand::u64(4..20)).await.1);
        }
        done.extend(run_until_killed(&old, &new, CALLS_MAX).await.1);
        done.extend(job_ids(&new).await);
        assert_each_once(done, &ids);
        assert_empty(&old).await;
    }
}

pub async fn transfer_killed_at_every_operation_can_be_reversed(pair: StorePair) {
    for calls in 0..CALLS_MAX {
        let (old, new) = pair.open().await;
        let ids = fill(&old, "default", 40).await;
        let (ended, mut done) = run_until_killed(&old, &new, calls).await;
        new.transfer_to(&old).run().await.expect("transfers back");
        assert_empty(&new).await;
        assert_eq!(old.queues().counts().await.expect("counts")[0].moving, None);
        let worker = ManualNode::join(&old, "default").await;
        done.extend(worker.run_ready_jobs().await);
        done.extend(job_ids(&old).await);
        assert_each_once(done, &ids);
        if ended {
            return;
        }
    }
    panic!("it never ended");
}

pub async fn two_concurrent_transfers_move_each_job_once(pair: StorePair) {
    let (old, new) = pair.open().await;
    let ids = fill(&old, "default", 150).await;
    let (target, worker) = (new.clone(), ManualNode::join(&new, "default").await);
    let first = tokio::spawn(old.transfer_to(&new).run());
    let second = tokio::spawn(old.transfer_to(&target).run());
    let mut done = Vec::new();
    while !first.is_finished() || !second.is_finished() {
        done.extend(worker.run_ready_jobs().await);
        tokio::task::yield_now().await;
    }
    for transfer in [first, second] {
        if let Err(error) = transfer.await.expect("no panic") {
            assert!(error.code() == "conflict" && error.to_string().contains("taken over queue"), "{error}");
        }
    }
    old.transfer_to(&new).run().await.expect("transfers the rest");
    done.extend(worker.run_ready_jobs().await);
    done.extend(job_ids(&new).await);
    assert_each_once(done, &ids);
    assert_empty(&old).await;
}
