//! The [`Store`] contract: passes each operation to the module that implements it.

use super::*;
use crate::store::VerifyReport;
use crate::store::redis::jobs::claim;
use crate::store::redis::jobs::edit;
use crate::store::redis::jobs::list;
use crate::store::redis::jobs::push;
use crate::store::redis::jobs::query;
use crate::store::redis::jobs::settle;
use crate::store::redis::maintenance::health;
use crate::store::redis::maintenance::repair;
use crate::store::redis::maintenance::scan;
use crate::store::redis::maintenance::verify;
use crate::store::redis::nodes::wakes;
use crate::store::redis::peers;
use crate::store::redis::peers::completions;
use crate::store::redis::peers::messages;
use crate::store::redis::stats;
use crate::store::redis::stats::kinds;
use crate::store::redis::transfer;

#[async_trait]
impl Store for Redis {
    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        Some(self.runtime.clone())
    }

    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        push::push(self, jobs).await
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        claim::claim(self, node, claim).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        settle::settle(self, node, ends).await
    }

    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        query::get(self, id).await
    }

    async fn list(&self, filter: Filter) -> Result<JobPage> {
        list::list(self, &filter).await
    }

    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        query::remove(self, id).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        query::reschedule(self, id, due).await
    }

    async fn edit(&self, id: JobId, edit: JobEdit) -> Result<ChangeResult> {
        edit::edit(self, id, &edit).await
    }

    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        edit::change_all(self, "remove_all", &targets, None).await
    }

    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        edit::change_all(self, "reschedule_all", &targets, Some(due)).await
    }

    async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        edit::set_capacity(self, queue, capacity).await
    }

    async fn record_progress(&self, node: NodeId, updates: Vec<ProgressUpdate>) -> Result<Vec<JobId>> {
        edit::record_progress(self, node, &updates).await
    }

    async fn add_kind_stats(&self, kinds: Vec<(String, StatCounters)>) -> Result<()> {
        kinds::add_kind_stats(self, &kinds).await
    }

    async fn kind_stats(&self, hours: u32) -> Result<Vec<KindStats>> {
        kinds::kind_stats(self, hours).await
    }

    async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>> {
        stats::queue_totals(self).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<History> {
        stats::history(self, &query).await
    }

    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        stats::dead_groups(self, queue).await
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        query::counts(self).await
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool> {
        let keys = self.register_queue("set_paused", queue).await?;
        let mut cmd = script::SET_PAUSED.call(&*keys);
        cmd.arg(self.manual_now()).arg(&keys.channel).arg(u8::from(paused));
        let value =
            self.servers.run_script("set_paused", ConnectionRole::Client, keys.slot, &script::SET_PAUSED, &cmd).await?;
        Ok(self.parse_reply("set_paused", value)?.int()? == 1)
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        settle::prune(self, queue, done_max).await
    }

    async fn set_transfer_mark(&self, queue: &str, transfer_id: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        transfer::set_transfer_mark(self, queue, transfer_id, to).await
    }

    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        transfer::transfer_in(self, &batch).await
    }

    async fn transfer_out(
        &self,
        queue: &str,
        transfer_id: NodeId,
        jobs: Vec<(JobId, SystemTime)>,
    ) -> Result<Option<usize>> {
        transfer::transfer_out(self, queue, transfer_id, &jobs).await
    }

    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        nodes::heartbeat(self, node).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        nodes::leave(self, node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        nodes::nodes(self).await
    }

    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        wakes::subscribe_wakes(self, node).await
    }

    async fn accept_deliveries(&self, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()> {
        wakes::accept_deliveries(self, node, kinds).await
    }

    async fn put_cron(&self, put: PutCron) -> Result<PutCronResult> {
        cron::put_cron(self, &put).await
    }

    async fn remove_cron(&self, name: &str) -> Result<bool> {
        cron::remove_cron(self, name).await
    }

    async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        cron::cron(self, name).await
    }

    async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
        cron::crons(self, queue, cursor).await
    }

    async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons> {
        cron::due_crons(self, queue, freed).await
    }

    async fn fire_crons(&self, queue: &str, fires: Vec<CronFiring>) -> Result<FireCronsReply> {
        cron::fire_crons(self, queue, &fires).await
    }

    async fn lock(&self, request: &LockRequest) -> Result<LockReply> {
        locks::lock(self, request).await
    }

    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>> {
        locks::extend_locks(self, requests).await
    }

    async fn unlock(&self, request: &LockRequest) -> Result<bool> {
        locks::unlock(self, request).await
    }

    async fn cancel_wait(&self, request: &LockRequest) -> Result<()> {
        locks::cancel_wait(self, request).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        locks::locks(self, name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        locks::break_lock(self, name).await
    }

    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply> {
        peers::announce(self, peer).await
    }

    async fn withdraw(&self, node: NodeId) -> Result<()> {
        peers::withdraw(self, node).await
    }

    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        Ok(messages::subscribe_messages(self, node, all))
    }

    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        messages::send(self, to, message).await
    }

    async fn watch_completions(&self, node: NodeId, queues: &[String]) -> Result<()> {
        completions::watch_completions(self, node, queues).await
    }

    async fn completed_among(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        completions::completed_among(self, queue, &ids).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        peers::set_connections(self, node, held, gone).await
    }

    async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        peers::refresh_connections(self, node, held).await
    }

    async fn add_token(&self, token: &NewToken) -> Result<bool> {
        access::add_token(self, token).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool> {
        access::remove_token(self, name).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        access::tokens(self).await
    }

    async fn add_audit_entry(&self, entry: &AuditEntry) -> Result<()> {
        access::add_audit_entry(self, entry).await
    }

    async fn audit_entries(&self, before: Option<u64>, capacity: usize) -> Result<Vec<AuditRecord>> {
        access::audit_entries(self, before, capacity).await
    }

    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>> {
        peers::connection_holder(self, connection).await
    }

    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        peers::peers_with_method(self, method).await
    }

    fn now(&self) -> SystemTime {
        from_micros(Redis::now(self))
    }

    async fn health(&self) -> Result<Health> {
        health::health(self).await
    }

    async fn unique_holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        query::unique_holder(self, queue, key).await
    }

    async fn verify(&self) -> Result<VerifyReport> {
        verify::verify(self).await
    }

    async fn repair(&self) -> Result<()> {
        repair::repair(self).await
    }

    async fn scan(&self, queue: &str, cursor: Option<&str>) -> Result<JobPage> {
        scan::scan(self, queue, cursor).await
    }
}
