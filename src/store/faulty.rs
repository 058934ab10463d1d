//! A store that fails on demand, for tests: it rejects a request, loses its reply, or delays it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::{
    AnnounceReply, AttemptEnd, AuditEntry, AuditRecord, Capacity, ChangeResult, ChangeTarget, Claim, ClaimReply,
    CronFiring, CronPage, CronRecord, DeadGroup, DueCrons, Filter, FireCronsReply, Health, HeartbeatReply, History,
    HistoryQuery, JobEdit, JobPage, KindStats, LockPage, LockReply, LockRequest, NewToken, Notification, PeerInfo,
    ProgressUpdate, PutCron, PutCronResult, QueueCounts, Recipient, StatCounters, Store, TransferBatch,
    TransferBatchResult, TransferMarkReply, Wake,
};
use crate::admin::token::Token;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, JobRecord};
use crate::node::{Node, NodeId, NodeRecord};
use crate::sync::LockExt;

/// The kind of failure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InjectedFault {
    /// The request is rejected and not executed.
    Refuse,
    /// The request is executed and its reply is lost.
    LoseReply,
    /// The request is executed and the call never returns.
    WithholdReply,
    /// The request is executed and the reply is delayed.
    DelayReply(Duration),
}

#[derive(Default)]
struct FaultPlan {
    /// The fault of each operation, and how often it is still to occur.
    pending: HashMap<&'static str, (InjectedFault, usize)>,
    /// The queue whose settles never return, as if its shard hung.
    hanging_queue: Option<String>,
    /// How often each operation was called.
    calls: HashMap<&'static str, usize>,
}

/// A store with injected faults.
pub(crate) struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Mutex<FaultPlan>,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(FaultyStore { inner, plan: Mutex::default() })
    }

    /// Injects a fault into the next `times` calls of this operation.
    pub(crate) fn inject(&self, op: &'static str, fault: InjectedFault, times: usize) {
        self.lock().pending.insert(op, (fault, times));
    }

    /// From now on, no settle of this queue returns.
    pub(crate) fn hang_settles(&self, queue: &str) {
        self.lock().hanging_queue = Some(queue.to_owned());
    }

    /// Returns how often this operation was called.
    pub(crate) fn call_count(&self, op: &'static str) -> usize {
        self.lock().calls.get(op).copied().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, FaultPlan> {
        self.plan.lock_unpoisoned()
    }

    fn next_fault(&self, op: &'static str) -> Option<InjectedFault> {
        let mut plan = self.lock();
        *plan.calls.entry(op).or_default() += 1;
        let (fault, remaining) = plan.pending.get_mut(op).filter(|(_, remaining)| *remaining > 0)?;
        *remaining -= 1;
        Some(*fault)
    }

    async fn call_with_fault<T>(&self, op: &'static str, request: impl Future<Output = Result<T>> + Send) -> Result<T> {
        match self.next_fault(op) {
            None => request.await,
            Some(InjectedFault::Refuse) => Err(Error::store(op, "rejected on demand")),
            Some(InjectedFault::LoseReply) => {
                request.await?;
                Err(Error::Unknown { op, source: None })
            }
            Some(InjectedFault::WithholdReply) => {
                request.await?;
                std::future::pending().await
            }
            Some(InjectedFault::DelayReply(delay)) => {
                let reply = request.await;
                tokio::time::sleep(delay).await;
                reply
            }
        }
    }
}

impl super::sealed::Sealed for FaultyStore {}

#[async_trait]
impl Store for FaultyStore {
    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        self.inner.runtime()
    }
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        self.call_with_fault("push", self.inner.push(jobs)).await
    }
    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        self.call_with_fault("claim", self.inner.claim(node, claim)).await
    }
    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        let hanging = self.lock().hanging_queue.clone();
        if ends.iter().any(|end| Some(end.queue()) == hanging.as_deref()) {
            std::future::pending::<()>().await;
        }
        self.call_with_fault("settle", self.inner.settle(node, ends)).await
    }
    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.call_with_fault("get", self.inner.get(id)).await
    }
    async fn list(&self, filter: Filter) -> Result<JobPage> {
        self.call_with_fault("list", self.inner.list(filter)).await
    }
    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        self.call_with_fault("remove", self.inner.remove(id)).await
    }
    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        self.call_with_fault("reschedule", self.inner.reschedule(id, due)).await
    }
    async fn edit(&self, id: JobId, edit: JobEdit) -> Result<ChangeResult> {
        self.call_with_fault("edit", self.inner.edit(id, edit)).await
    }
    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        self.call_with_fault("remove_all", self.inner.remove_all(targets)).await
    }
    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        self.call_with_fault("reschedule_all", self.inner.reschedule_all(targets, due)).await
    }
    async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        self.call_with_fault("set_capacity", self.inner.set_capacity(queue, capacity)).await
    }
    async fn record_progress(&self, node: NodeId, updates: Vec<ProgressUpdate>) -> Result<Vec<JobId>> {
        self.call_with_fault("record_progress", self.inner.record_progress(node, updates)).await
    }
    async fn add_kind_stats(&self, kinds: Vec<(String, StatCounters)>) -> Result<()> {
        self.call_with_fault("add_kind_stats", self.inner.add_kind_stats(kinds)).await
    }
    async fn kind_stats(&self, hours: u32) -> Result<Vec<KindStats>> {
        self.call_with_fault("kind_stats", self.inner.kind_stats(hours)).await
    }
    async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>> {
        self.call_with_fault("queue_totals", self.inner.queue_totals()).await
    }
    async fn history(&self, query: HistoryQuery) -> Result<History> {
        self.call_with_fault("history", self.inner.history(query)).await
    }
    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        self.call_with_fault("dead_groups", self.inner.dead_groups(queue)).await
    }
    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        self.call_with_fault("counts", self.inner.counts()).await
    }
    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool> {
        self.call_with_fault("set_paused", self.inner.set_paused(queue, paused)).await
    }
    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        self.call_with_fault("prune", self.inner.prune(queue, done_max)).await
    }
    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        self.call_with_fault("set_transfer_mark", self.inner.set_transfer_mark(queue, mover, to)).await
    }
    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        self.call_with_fault("transfer_in", self.inner.transfer_in(batch)).await
    }
    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        self.call_with_fault("transfer_out", self.inner.transfer_out(queue, mover, jobs)).await
    }
    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        self.call_with_fault("heartbeat", self.inner.heartbeat(node)).await
    }
    async fn leave(&self, node: NodeId) -> Result<()> {
        self.call_with_fault("leave", self.inner.leave(node)).await
    }
    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.call_with_fault("nodes", self.inner.nodes()).await
    }
    async fn accept_deliveries(&self, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()> {
        self.call_with_fault("accept_deliveries", self.inner.accept_deliveries(node, kinds)).await
    }
    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        self.call_with_fault("subscribe_wakes", self.inner.subscribe_wakes(node)).await
    }
    async fn put_cron(&self, change: PutCron) -> Result<PutCronResult> {
        self.call_with_fault("put_cron", self.inner.put_cron(change)).await
    }
    async fn remove_cron(&self, name: &str) -> Result<bool> {
        self.call_with_fault("remove_cron", self.inner.remove_cron(name)).await
    }
    async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        self.call_with_fault("cron", self.inner.cron(name)).await
    }
    async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
        self.call_with_fault("crons", self.inner.crons(queue, cursor)).await
    }
    async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons> {
        self.call_with_fault("due_crons", self.inner.due_crons(queue, freed)).await
    }
    async fn fire_crons(&self, queue: &str, firings: Vec<CronFiring>) -> Result<FireCronsReply> {
        self.call_with_fault("fire_crons", self.inner.fire_crons(queue, firings)).await
    }
    async fn lock(&self, request: &LockRequest) -> Result<LockReply> {
        self.call_with_fault("lock", self.inner.lock(request)).await
    }
    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>> {
        self.call_with_fault("extend_locks", self.inner.extend_locks(requests)).await
    }
    async fn unlock(&self, request: &LockRequest) -> Result<bool> {
        self.call_with_fault("unlock", self.inner.unlock(request)).await
    }
    async fn cancel_wait(&self, request: &LockRequest) -> Result<()> {
        self.call_with_fault("cancel_wait", self.inner.cancel_wait(request)).await
    }
    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        self.call_with_fault("locks", self.inner.locks(name, cursor)).await
    }
    async fn break_lock(&self, name: &str) -> Result<u64> {
        self.call_with_fault("break_lock", self.inner.break_lock(name)).await
    }
    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply> {
        self.call_with_fault("announce", self.inner.announce(peer)).await
    }
    async fn withdraw(&self, node: NodeId) -> Result<()> {
        self.call_with_fault("withdraw", self.inner.withdraw(node)).await
    }
    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        self.call_with_fault("subscribe_messages", self.inner.subscribe_messages(node, all)).await
    }
    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        self.call_with_fault("send", self.inner.send(to, message)).await
    }
    async fn watch_completions(&self, node: NodeId, queues: &[String]) -> Result<()> {
        self.call_with_fault("watch_completions", self.inner.watch_completions(node, queues)).await
    }
    async fn completed_among(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        self.call_with_fault("completed_among", self.inner.completed_among(queue, ids)).await
    }
    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.call_with_fault("set_connections", self.inner.set_connections(node, held, gone)).await
    }
    async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.call_with_fault("refresh_connections", self.inner.refresh_connections(node, held)).await
    }
    async fn add_token(&self, token: &NewToken) -> Result<bool> {
        self.call_with_fault("add_token", self.inner.add_token(token)).await
    }
    async fn remove_token(&self, name: &str) -> Result<bool> {
        self.call_with_fault("remove_token", self.inner.remove_token(name)).await
    }
    async fn tokens(&self) -> Result<Vec<Token>> {
        self.call_with_fault("tokens", self.inner.tokens()).await
    }
    async fn add_audit_entry(&self, entry: &AuditEntry) -> Result<()> {
        self.call_with_fault("add_audit_entry", self.inner.add_audit_entry(entry)).await
    }
    async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        self.call_with_fault("audit_entries", self.inner.audit_entries(before, limit)).await
    }
    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>> {
        self.call_with_fault("connection_holder", self.inner.connection_holder(connection)).await
    }
    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        self.call_with_fault("peers_with_method", self.inner.peers_with_method(method)).await
    }
    fn now(&self) -> SystemTime {
        self.inner.now()
    }
    async fn health(&self) -> Result<Health> {
        self.call_with_fault("health", self.inner.health()).await
    }
    async fn shared_keyspace(&self) -> Result<Option<String>> {
        self.call_with_fault("shared_keyspace", self.inner.shared_keyspace()).await
    }
    async fn unique_holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        self.call_with_fault("unique_holder", self.inner.unique_holder(queue, key)).await
    }
    async fn verify(&self) -> Result<super::VerifyReport> {
        self.call_with_fault("verify", self.inner.verify()).await
    }
    async fn repair(&self) -> Result<()> {
        self.call_with_fault("repair", self.inner.repair()).await
    }
    async fn backup(&self, to: &std::path::Path) -> Result<()> {
        self.call_with_fault("backup", self.inner.backup(to)).await
    }
    async fn scan(&self, queue: &str, cursor: Option<&str>) -> Result<JobPage> {
        self.call_with_fault("scan", self.inner.scan(queue, cursor)).await
    }
}
