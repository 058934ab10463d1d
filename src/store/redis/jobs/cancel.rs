//! Cancel: ends a job that waits, and marks a running one, so that it ends with its attempt.

use std::time::Duration;

use crate::clock::micros;
use crate::error::{Error, Result};
use crate::job::{JobId, State};
use crate::store::CancelReply;
use crate::store::redis::jobs::query::find_job;
use crate::store::redis::record::DELAY_MAX;
use crate::store::redis::{Redis, script};

/// Implements `AdminStore::cancel`.
pub(crate) async fn cancel(store: &Redis, id: JobId, keep: Duration) -> Result<CancelReply> {
    let Some((keys, _)) = find_job(store, "cancel", id).await? else {
        return Ok(CancelReply::NotFound);
    };
    let mut cmd = script::CANCEL.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(id.as_bytes()).arg(micros(keep).min(DELAY_MAX));
    // A failover that lost the cancel would run the job again.
    let value = store.send_replicated("cancel", &keys, Some(&script::CANCEL), &[cmd]).await?;
    let mut reply = store.parse_reply("cancel", value)?;
    Ok(match &reply.bytes()?[..] {
        b"not_found" => CancelReply::NotFound,
        b"moving" => CancelReply::Moving,
        b"done" => CancelReply::Ended(State::Done),
        b"dead" => CancelReply::Ended(State::Dead),
        b"cancelling" => {
            let node = reply.text()?;
            let damaged = || {
                Error::store("cancel", format!("job {id} is held by an unreadable node: {node:?}; run `duly verify`"))
            };
            CancelReply::Cancelling(node.parse().map_err(|_| damaged())?)
        }
        _ => CancelReply::Cancelled,
    })
}
