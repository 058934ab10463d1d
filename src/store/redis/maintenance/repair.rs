//! Repair: each job of which something is wrong is taken out of every place and put into one, in one step.

use crate::error::{Error, Result};
use crate::job::JobId;
use crate::store::redis::conn::Way;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::job_invariants::Seen;
use crate::store::redis::maintenance::verify::{inspect, look, tally};
use crate::store::redis::maintenance::{verify_counts, verify_cron};
use crate::store::redis::{Redis, script};

/// How often a job that changes under our eyes is looked at again.
const TRIES_MAX: usize = 10;

/// `repair` of the contract.
pub(crate) async fn repair(store: &Redis) -> Result<()> {
    for queue in store.queues("repair").await? {
        let keys = store.keys(&queue);
        for (id, seen) in look(store, &keys).await? {
            let id = JobId::from_bytes(id);
            if !seen.judge(id).is_empty() {
                mend(store, &keys, id, seen).await?;
            }
        }
        tally(store, &keys, true).await?;
        verify_counts::recount(store, &keys).await?;
        verify_cron::repair(store, &keys).await?;
    }
    Ok(())
}

async fn mend(store: &Redis, keys: &QueueKeys, id: JobId, mut seen: Seen) -> Result<()> {
    for _ in 0..TRIES_MAX {
        seen = inspect(store, keys, id, &seen).await?;
        if seen.judge(id).is_empty() || mend_once(store, keys, id, &seen).await? {
            return Ok(());
        }
    }
    Err(Error::store("repair", format!("job {id} does not keep still; pause queue {} and try again", keys.queue)))
}

/// Answers whether it was still as it was seen.
async fn mend_once(store: &Redis, keys: &QueueKeys, id: JobId, seen: &Seen) -> Result<bool> {
    let mut cmd = script::REPAIR_JOB.call(keys);
    let (to, moment) = seen.home();
    let key = seen.head.as_ref().map_or("", |head| head.key.as_str());
    cmd.arg(store.manual_now()).arg(id.as_bytes());
    cmd.arg(seen.meta.as_deref().unwrap_or_default()).arg(seen.held.as_deref().unwrap_or_default());
    cmd.arg(to).arg(moment).arg(key).arg(seen.tickets.len());
    for ticket in &seen.tickets {
        cmd.arg(&ticket.text[..]);
    }
    for key in &seen.keys {
        cmd.arg(format!("={key}"));
    }
    for member in &seen.strange {
        cmd.arg([&b"~"[..], member].concat());
    }
    // Failures of a job that is not there, or that has no note of them, say nothing to anybody.
    if seen.head.is_none() || seen.meta.is_none() {
        for number in &seen.failures {
            cmd.arg(format!("#{number}"));
        }
    }
    let value = store.link.run("repair", Way::Door, keys.slot, &script::REPAIR_JOB, &cmd).await?;
    Ok(store.reply("repair", value)?.text()? == "repaired")
}
