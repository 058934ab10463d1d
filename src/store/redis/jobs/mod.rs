//! Jobs: push, claim and settle, and every query and change of a job.

pub(crate) mod cancel;
pub(crate) mod capacity;
pub(crate) mod claim;
pub(crate) mod edit;
pub(crate) mod find_ids;
pub(crate) mod job_index;
pub(crate) mod list;
mod list_cursor;
pub(crate) mod progress;
pub(crate) mod push;
pub(crate) mod query;
pub(crate) mod remove_queue;
pub(crate) mod settle;
mod sorted_list;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::error::Result;
use crate::job::push::{Due, Push, PushResult};
use crate::job::{HeldJob, IdPart, JobId, JobRecord};
use crate::node::{Node, NodeId};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::nodes::wakes;
use crate::store::redis::{Redis, nodes, script};
use crate::store::{
    AttemptEnd, ChangeResult, ChangeTarget, Claim, ClaimReply, Filter, FoundIds, HeartbeatReply, JobPage, JobStore,
    QueueCounts, Wake,
};

#[async_trait]
impl JobStore for Redis {
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        push::push(self, jobs).await
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        claim::claim(self, node, claim).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        settle::settle(self, node, ends).await
    }

    async fn set_alone(&self, node: NodeId, held: Arc<HeldJob>, alone: bool) -> Result<bool> {
        claim::set_alone(self, node, &held, alone).await
    }

    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        query::get(self, id).await
    }

    async fn find_ids(&self, part: IdPart, max: usize) -> Result<FoundIds> {
        find_ids::find_ids(self, &part, max).await
    }

    async fn list(&self, filter: Filter) -> Result<JobPage> {
        list::list(self, &filter).await
    }

    async fn completed_among(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        query::completed_among(self, queue, &ids).await
    }

    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        edit::remove(self, id).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        edit::reschedule(self, id, due).await
    }

    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        edit::change_all(self, "remove_all", &targets, None).await
    }

    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        edit::change_all(self, "reschedule_all", &targets, Some(due)).await
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        query::counts(self).await
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool> {
        // A resume does not create a queue.
        let keys = if paused { self.register_queue("set_paused", queue).await? } else { self.keys(queue) };
        let mut cmd = script::SET_PAUSED.call(&*keys);
        cmd.arg(self.manual_now()).arg(&keys.channel).arg(u8::from(paused));
        let value =
            self.servers.run_script("set_paused", ConnectionRole::Client, keys.slot, &script::SET_PAUSED, &cmd).await?;
        Ok(self.parse_reply("set_paused", value)?.int()? == 1)
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        settle::prune(self, queue, done_max).await
    }

    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        nodes::heartbeat(self, node).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        nodes::leave(self, node).await
    }

    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        wakes::subscribe_wakes(self, node).await
    }

    async fn accept_deliveries(&self, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()> {
        wakes::accept_deliveries(self, node, kinds).await
    }
}
