//! Repairs jobs: removes an inconsistent job from every state and puts it into one, in one atomic operation.

use crate::error::{Error, Result};
use crate::job::JobId;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::job_invariants::ObservedJob;
use crate::store::redis::maintenance::verify::{check_counters, inspect_job, observe_queue, run_suffix};
use crate::store::redis::maintenance::{verify_counts, verify_cron};
use crate::store::redis::{Redis, script};

/// Maximum attempts for a job that changes meanwhile.
const REPAIR_TRIES_MAX: usize = 10;

/// Implements `MaintenanceStore::repair`.
pub(crate) async fn repair(store: &Redis) -> Result<()> {
    for queue in store.queue_names("repair").await? {
        let keys = store.keys(&queue);
        for (id, observed) in observe_queue(store, &keys).await? {
            let id = JobId::from_bytes(id);
            if !observed.check(id).is_empty() {
                repair_job(store, &keys, id, observed).await?;
            }
        }
        check_counters(store, &keys, true).await?;
        verify_counts::recount(store, &keys).await?;
        verify_cron::repair_ticks(store, &keys).await?;
    }
    Ok(())
}

async fn repair_job(store: &Redis, keys: &QueueKeys, id: JobId, mut observed: ObservedJob) -> Result<()> {
    for _ in 0..REPAIR_TRIES_MAX {
        observed = inspect_job(store, keys, id, &observed).await?;
        if observed.check(id).is_empty() || try_repair_job(store, keys, id, &observed).await? {
            return Ok(());
        }
    }
    Err(Error::store("repair", format!("job {id} keeps changing; pause queue {} and try again", keys.queue)))
}

/// Repairs a job. Returns whether it was still as observed.
async fn try_repair_job(store: &Redis, keys: &QueueKeys, id: JobId, observed: &ObservedJob) -> Result<bool> {
    let mut cmd = script::REPAIR_JOB.call(keys);
    let (target, moment) = observed.repair_target();
    let key = observed.head.as_ref().map_or("", |head| head.unique_key.as_str());
    cmd.arg(store.manual_now()).arg(id.as_bytes());
    cmd.arg(observed.meta.as_deref().unwrap_or_default()).arg(observed.held.as_deref().unwrap_or_default());
    cmd.arg(target).arg(moment).arg(key).arg(observed.tickets.len());
    for ticket in &observed.tickets {
        cmd.arg(&ticket.text[..]);
    }
    for key in &observed.unique_keys {
        cmd.arg(format!("={key}"));
    }
    for member in &observed.unexpected_members {
        cmd.arg([&b"~"[..], member].concat());
    }
    // Without a record, runs belong to no job; without a meta, only the ack of a done job does.
    let is_lost = |number: u32| observed.head.is_none() || (observed.meta.is_none() && number > 0);
    for number in observed.run_numbers.iter().filter(|number| is_lost(**number)) {
        cmd.arg(format!("#{}", run_suffix(*number)));
    }
    Ok(store.run_script("repair", ConnectionRole::Client, keys.slot, &script::REPAIR_JOB, &cmd).await?.text()?
        == "repaired")
}
