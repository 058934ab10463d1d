//! Jobs in the file: push, claim, settle, and every query and change of a job.

pub(crate) mod ack_in;
pub(crate) mod cancel;
pub(crate) mod capacity;
pub(crate) mod claim;
pub(crate) mod counts;
pub(crate) mod deferred;
pub(crate) mod edit;
pub(crate) mod find_ids;
pub(crate) mod job_index;
pub(crate) mod list;
pub(crate) mod progress;
pub(crate) mod push;
pub(crate) mod push_in;
pub(crate) mod query;
pub(crate) mod remove_queue;
pub(crate) mod runs;
pub(crate) mod settle;
mod sorted_list;
pub(crate) mod state;

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::params;
use tokio::sync::mpsc;

use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{HeldJob, IdPart, JobId, JobRecord};
use crate::node::{Node, NodeId};
use crate::store::sqlite::maintenance::upkeep;
use crate::store::sqlite::nodes::listener;
use crate::store::sqlite::{Sqlite, disk_reserve, errors, nodes};
use crate::store::{
    AttemptEnd, ChangeResult, ChangeTarget, Claim, ClaimReply, Filter, FoundIds, HeartbeatReply, JobPage, JobStore,
    PRUNE_MAX, QueueCounts, Wake,
};

#[async_trait]
impl JobStore for Sqlite {
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        let bytes = disk_reserve::push_bytes(&jobs);
        self.writer
            .write("push", move |tx| match tx.check_disk_room("push", bytes)? {
                Ok(()) => Ok(push::push(tx, &jobs)?.map_err(Error::from)),
                Err(full) => Ok(Err(full)),
            })
            .await?
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        let (registry, interval) = (self.registry.clone(), self.heartbeat_interval);
        self.writer.write("claim", move |tx| claim::claim(tx, &registry, node, &claim, interval)).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        let registry = self.registry.clone();
        self.writer
            .write("settle", move |tx| settle::settle(tx, nodes::ensure_node(tx, &registry, node)?, node, &ends))
            .await
    }

    async fn set_alone(&self, node: NodeId, held: Arc<HeldJob>, alone: bool) -> Result<bool> {
        self.writer.write("set_alone", move |tx| claim::set_alone(tx, node, &held, alone)).await
    }

    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.query("get", move |conn| query::get(conn, id)).await
    }

    async fn find_ids(&self, part: IdPart, max: usize) -> Result<FoundIds> {
        find_ids::find_ids(self, part, max).await
    }

    async fn list(&self, filter: Filter) -> Result<JobPage> {
        list::list(self, &filter).await
    }

    async fn completed_among(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        let queue = queue.to_owned();
        self.query("completed_among", move |conn| query::completed_among(conn, &queue, &ids)).await
    }

    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        self.writer.write("remove", move |tx| edit::remove(tx, id)).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        self.writer.write("reschedule", move |tx| edit::reschedule(tx, id, due)).await
    }

    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        self.writer.write("remove_all", move |tx| edit::remove_all(tx, &targets)).await
    }

    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        self.writer.write("reschedule_all", move |tx| edit::reschedule_all(tx, &targets, due)).await
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        self.query("counts", query::counts).await
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool> {
        let name = queue.to_owned();
        self.writer
            .write("set_paused", move |tx| {
                // A resume does not create a queue.
                let found = if paused { Some(tx.ensure_queue(&name)?) } else { tx.find_queue(&name)? };
                let Some(queue) = found else {
                    return Ok(false);
                };
                let changed = tx
                    .statement("UPDATE duly_queue SET paused = ?2 WHERE queue_no = ?1 AND paused <> ?2")?
                    .execute(params![queue, paused])?;
                if !paused {
                    tx.wake_one(&name);
                }
                Ok(changed > 0)
            })
            .await
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        let (name, remember) = (queue.to_owned(), self.removed_id_retention);
        let gone = self
            .writer
            .write("prune", move |tx| {
                tx.rotate_removed_ids(remember)?;
                match tx.find_queue(&name)? {
                    Some(queue) => settle::prune(tx, queue, done_max, PRUNE_MAX),
                    None => Ok(0),
                }
            })
            .await?;
        if self.path.is_some() && gone < PRUNE_MAX {
            self.check_files_now("prune")?;
            self.writer.run_outside_transaction("prune", upkeep::shrink).await?;
        }
        Ok(gone)
    }

    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        nodes::heartbeat(self, node).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        nodes::leave(self, node).await
    }

    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        self.watch_inbox();
        listener::subscribe_wakes(&self.registry, node)
            .map_err(|e| errors::from_registry("subscribe_wakes", "cannot use the node registry", e))
    }

    async fn accept_deliveries(&self, _node: NodeId, _kinds: Option<Arc<[String]>>) -> Result<()> {
        // A push wakes the node, and its claim costs little here.
        Ok(())
    }
}
