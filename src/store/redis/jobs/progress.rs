//! Progress and log lines that attempts report.

use async_trait::async_trait;

use crate::error::Result;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::claim::LocatorParts;
use crate::store::redis::{Redis, record, script};
use crate::store::{ProgressStore, ProgressUpdate};

#[async_trait]
impl ProgressStore for Redis {
    async fn record_progress(&self, node: NodeId, updates: Vec<ProgressUpdate>) -> Result<Vec<JobId>> {
        record_progress(self, node, &updates).await
    }
}

/// Implements `ProgressStore::record_progress`, with one operation per queue.
pub(crate) async fn record_progress(store: &Redis, node: NodeId, updates: &[ProgressUpdate]) -> Result<Vec<JobId>> {
    let mut queues: Vec<&str> = updates.iter().map(|update| update.queue.as_str()).collect();
    queues.sort_unstable();
    queues.dedup();
    let requests = queues.into_iter().map(async |queue| {
        let keys = store.keys(queue);
        let mut cmd = script::RECORD_PROGRESS.call(&*keys);
        cmd.arg(store.manual_now());
        for update in updates.iter().filter(|update| update.queue == queue) {
            let flag = record::priority_flag(update.priority, LocatorParts::unpack(update.locator).is_some());
            cmd.arg(update.id.as_bytes()).arg(record::encode_held(node, update.fence, flag));
            cmd.arg(update.progress.as_ref().map(record::encode_progress).unwrap_or_default()).arg(update.lines.len());
            for (at, line) in &update.lines {
                cmd.arg(record::encode_log_line(*at, update.attempt, line));
            }
        }
        store
            .run_script("record_progress", ConnectionRole::Worker, keys.slot, &script::RECORD_PROGRESS, &cmd)
            .await?
            .ids()
    });
    // An error of one server must not keep the others from their updates.
    let replies = futures_util::future::join_all(requests).await;
    replies.into_iter().collect::<Result<Vec<_>>>().map(|lost| lost.concat())
}
