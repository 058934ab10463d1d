//! Repair: each job of which something is wrong is taken out of every place and put into one, in one step.

use crate::error::{Error, Result};
use crate::job::JobId;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::job_invariants::ObservedJob;
use crate::store::redis::maintenance::verify::{check_counters, inspect_job, observe_queue};
use crate::store::redis::maintenance::{verify_counts, verify_cron};
use crate::store::redis::{Redis, script};

/// How often a job that changes under our eyes is looked at again.
const REPAIR_TRIES_MAX: usize = 10;

/// `repair` of the contract.
pub(crate) async fn repair(store: &Redis) -> Result<()> {
    for queue in store.queue_names("repair").await? {
        let keys = store.keys(&queue);
        for (id, seen) in observe_queue(store, &keys).await? {
            let id = JobId::from_bytes(id);
            if !seen.check(id).is_empty() {
                repair_job(store, &keys, id, seen).await?;
            }
        }
        check_counters(store, &keys, true).await?;
        verify_counts::recount(store, &keys).await?;
        verify_cron::repair_ticks(store, &keys).await?;
    }
    Ok(())
}

async fn repair_job(store: &Redis, keys: &QueueKeys, id: JobId, mut seen: ObservedJob) -> Result<()> {
    for _ in 0..REPAIR_TRIES_MAX {
        seen = inspect_job(store, keys, id, &seen).await?;
        if seen.check(id).is_empty() || try_repair_job(store, keys, id, &seen).await? {
            return Ok(());
        }
    }
    Err(Error::store("repair", format!("job {id} does not keep still; pause queue {} and try again", keys.queue)))
}

/// Answers whether it was still as it was seen.
async fn try_repair_job(store: &Redis, keys: &QueueKeys, id: JobId, seen: &ObservedJob) -> Result<bool> {
    let mut cmd = script::REPAIR_JOB.call(keys);
    let (to, moment) = seen.repair_target();
    let key = seen.head.as_ref().map_or("", |head| head.unique_key.as_str());
    cmd.arg(store.manual_now()).arg(id.as_bytes());
    cmd.arg(seen.meta.as_deref().unwrap_or_default()).arg(seen.held.as_deref().unwrap_or_default());
    cmd.arg(to).arg(moment).arg(key).arg(seen.tickets.len());
    for ticket in &seen.tickets {
        cmd.arg(&ticket.text[..]);
    }
    for key in &seen.unique_keys {
        cmd.arg(format!("={key}"));
    }
    for member in &seen.unexpected_members {
        cmd.arg([&b"~"[..], member].concat());
    }
    // Failures of a job that is not there, or that has no note of them, say nothing to anybody.
    if seen.head.is_none() || seen.meta.is_none() {
        for number in &seen.failure_numbers {
            cmd.arg(format!("#{number}"));
        }
    }
    let value =
        store.servers.run_script("repair", ConnectionRole::Client, keys.slot, &script::REPAIR_JOB, &cmd).await?;
    Ok(store.parse_reply("repair", value)?.text()? == "repaired")
}
