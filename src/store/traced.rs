//! Wraps any store and adds a span, a duration and an error count to each operation.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tracing::Instrument;

use super::{
    AnnounceReply, AttemptEnd, AuditEntry, AuditRecord, Capacity, ChangeResult, ChangeTarget, Claim, ClaimReply,
    CronFiring, CronPage, CronRecord, DeadGroup, DueCrons, Filter, FireCronsReply, Health, HeartbeatReply, History,
    HistoryQuery, JobEdit, JobPage, KindStats, LockPage, LockReply, LockRequest, NewToken, Notification, PeerInfo,
    ProgressUpdate, PutCron, PutCronResult, QueueCounts, Recipient, StatCounters, Store, TransferBatch,
    TransferBatchResult, TransferMarkReply, VerifyReport, Wake,
};
use crate::admin::token::Token;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, JobRecord};
use crate::metrics;
use crate::node::{Node, NodeId, NodeRecord};

/// A store that reports traces and metrics.
pub(crate) struct TracedStore(Arc<dyn Store>);

impl TracedStore {
    pub(crate) fn wrap(store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(TracedStore(store))
    }
}

impl super::sealed::Sealed for TracedStore {}

/// Forwards every operation of the contract. A missing one would be reported as unsupported; a test checks for that.
macro_rules! traced {
    ($($operation:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl Store for TracedStore {
            fn runtime(&self) -> Option<tokio::runtime::Handle> {
                self.0.runtime()
            }

            fn now(&self) -> SystemTime {
                self.0.now()
            }

            $(async fn $operation(&self, $($arg: $ty),*) -> Result<$out> {
                let started = clock::monotonic_now();
                let span = tracing::trace_span!("duly.store", op = stringify!($operation));
                let reply = self.0.$operation($($arg),*).instrument(span).await;
                let code = reply.as_ref().err().map(Error::code);
                metrics::record_store_request(stringify!($operation), clock::monotonic_now() - started, code);
                reply
            })*
        }
    };
}

traced! {
    push(jobs: Vec<Push>) -> Vec<PushResult>;
    claim(node: NodeId, claim: Claim) -> ClaimReply;
    settle(node: NodeId, ends: Vec<AttemptEnd>) -> Vec<JobId>;
    get(id: JobId) -> Option<JobRecord>;
    list(filter: Filter) -> JobPage;
    remove(id: JobId) -> ChangeResult;
    reschedule(id: JobId, due: Due) -> ChangeResult;
    counts() -> Vec<QueueCounts>;
    set_paused(queue: &str, paused: bool) -> bool;
    prune(queue: &str, done_max: usize) -> usize;
    heartbeat(node: &Node) -> HeartbeatReply;
    leave(node: NodeId) -> ();
    nodes() -> Vec<NodeRecord>;
    subscribe_wakes(node: NodeId) -> mpsc::Receiver<Wake>;
    accept_deliveries(node: NodeId, kinds: Option<Arc<[String]>>) -> ();
    set_transfer_mark(queue: &str, mover: NodeId, to: Option<&str>) -> TransferMarkReply;
    transfer_in(batch: TransferBatch) -> TransferBatchResult;
    transfer_out(queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Option<usize>;
    lock(request: &LockRequest) -> LockReply;
    extend_locks(requests: &[LockRequest]) -> Vec<bool>;
    unlock(request: &LockRequest) -> bool;
    cancel_wait(request: &LockRequest) -> ();
    locks(name: Option<&str>, cursor: Option<&str>) -> LockPage;
    break_lock(name: &str) -> u64;
    announce(peer: &PeerInfo) -> AnnounceReply;
    withdraw(node: NodeId) -> ();
    subscribe_messages(node: NodeId, all: bool) -> mpsc::Receiver<Notification>;
    send(to: Recipient, message: &[u8]) -> u64;
    watch_completions(node: NodeId, queues: &[String]) -> ();
    completed_among(queue: &str, ids: Vec<JobId>) -> Vec<JobId>;
    set_connections(node: NodeId, held: &[String], gone: &[String]) -> ();
    refresh_connections(node: NodeId, held: &[String]) -> ();
    connection_holder(connection: &str) -> Option<NodeId>;
    peers_with_method(method: &str) -> Vec<NodeId>;
    health() -> Health;
    shared_keyspace() -> Option<String>;
    unique_holder(queue: &str, key: &str) -> Option<JobId>;
    verify() -> VerifyReport;
    repair() -> ();
    backup(to: &std::path::Path) -> ();
    scan(queue: &str, cursor: Option<&str>) -> JobPage;
    put_cron(change: PutCron) -> PutCronResult;
    remove_cron(name: &str) -> bool;
    cron(name: &str) -> Option<CronRecord>;
    crons(queue: Option<&str>, cursor: Option<&str>) -> CronPage;
    due_crons(queue: &str, freed: &[String]) -> DueCrons;
    fire_crons(queue: &str, firings: Vec<CronFiring>) -> FireCronsReply;
    remove_all(targets: Vec<ChangeTarget>) -> Vec<ChangeResult>;
    reschedule_all(targets: Vec<ChangeTarget>, due: Due) -> Vec<ChangeResult>;
    edit(id: JobId, edit: JobEdit) -> ChangeResult;
    record_progress(node: NodeId, updates: Vec<ProgressUpdate>) -> Vec<JobId>;
    set_capacity(queue: &str, capacity: Capacity) -> Capacity;
    dead_groups(queue: Option<&str>) -> Vec<DeadGroup>;
    history(query: HistoryQuery) -> History;
    add_kind_stats(kinds: Vec<(String, StatCounters)>) -> ();
    kind_stats(hours: u32) -> Vec<KindStats>;
    queue_totals() -> Vec<(String, StatCounters)>;
    add_token(token: &NewToken) -> bool;
    tokens() -> Vec<Token>;
    remove_token(name: &str) -> bool;
    add_audit_entry(entry: &AuditEntry) -> ();
    audit_entries(before: Option<u64>, limit: usize) -> Vec<AuditRecord>;
}

#[cfg(test)]
mod tests {
    /// Returns the names of all operations in a source text.
    fn operation_names(text: &str) -> Vec<&str> {
        let functions = text.split("async fn ").skip(1);
        functions.filter_map(|rest| rest.split('(').next()).collect()
    }

    #[test]
    fn every_operation_of_the_contract_is_forwarded() {
        let contract = include_str!("mod.rs");
        let contract = contract.split_once("pub trait Store").expect("is there").1;
        let (traced, faulty) = (include_str!("traced.rs"), include_str!("faulty.rs"));
        assert!(operation_names(contract).len() > 30);
        for operation in operation_names(contract) {
            assert!(traced.contains(&format!("    {operation}(")), "{operation} is missing in traced.rs");
            assert!(faulty.contains(&format!("async fn {operation}(")), "{operation} is missing in faulty.rs");
        }
    }
}
