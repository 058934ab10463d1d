//! Any store, with a span, a duration and a count of errors around each step: once for all of them.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tracing::Instrument;

use super::{
    Attended, Audit, AuditRecord, Beaten, Capacity, Claim, Claimed, CronFire, CronPage, CronPut, CronRecord,
    CronsFired, DeadGroup, DueCrons, Edit, End, Filter, Guest, Health, Heard, History, HistoryAsk, HistoryTally,
    KindPoint, LockAsk, LockPage, LockTaken, Marked, MoveIn, Moved, MovedIn, NewToken, Note, Page, PutCron,
    QueueCounts, Store, Target, To, Verified, Wake,
};
use crate::admin::token::Token;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, Pushed};
use crate::job::{JobId, Record};
use crate::metrics;
use crate::node::{Node, NodeId, NodeRecord};

/// Any store, watched.
pub(crate) struct Traced(Arc<dyn Store>);

impl Traced {
    pub(crate) fn around(store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Traced(store))
    }
}

impl super::sealed::Sealed for Traced {}

/// Passes every step of the contract on. A step that is missing here would answer that it is not supported: a test counts them.
macro_rules! traced {
    ($($op:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl Store for Traced {
            fn home(&self) -> Option<tokio::runtime::Handle> {
                self.0.home()
            }

            fn now(&self) -> SystemTime {
                self.0.now()
            }

            $(async fn $op(&self, $($arg: $ty),*) -> Result<$out> {
                let began = clock::tick();
                let span = tracing::trace_span!("duly.store", op = stringify!($op));
                let answer = self.0.$op($($arg),*).instrument(span).await;
                let code = answer.as_ref().err().map(Error::code);
                metrics::store_answered(stringify!($op), clock::tick() - began, code);
                answer
            })*
        }
    };
}

traced! {
    push(jobs: Vec<Push>) -> Vec<Pushed>;
    claim(node: NodeId, claim: Claim) -> Claimed;
    settle(node: NodeId, ends: Vec<End>) -> Vec<JobId>;
    get(id: JobId) -> Option<Record>;
    list(filter: Filter) -> Page;
    remove(id: JobId) -> Moved;
    reschedule(id: JobId, due: Due) -> Moved;
    counts() -> Vec<QueueCounts>;
    pause(queue: &str, paused: bool) -> bool;
    prune(queue: &str, done_max: usize) -> usize;
    beat(node: &Node) -> Beaten;
    leave(node: NodeId) -> ();
    nodes() -> Vec<NodeRecord>;
    subscribe(node: NodeId) -> mpsc::Receiver<Wake>;
    accept(node: NodeId, kinds: Option<Arc<[String]>>) -> ();
    set_moving(queue: &str, mover: NodeId, to: Option<&str>) -> Marked;
    move_in(batch: MoveIn) -> MovedIn;
    move_out(queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Option<usize>;
    lock(ask: &LockAsk) -> LockTaken;
    extend_locks(asks: &[LockAsk]) -> Vec<bool>;
    unlock(ask: &LockAsk) -> bool;
    leave_line(ask: &LockAsk) -> ();
    locks(name: Option<&str>, cursor: Option<&str>) -> LockPage;
    break_lock(name: &str) -> u64;
    attend(guest: &Guest) -> Attended;
    depart(node: NodeId) -> ();
    hear(node: NodeId, all: bool) -> mpsc::Receiver<Heard>;
    send(to: To, message: &[u8]) -> u64;
    watch_ends(node: NodeId, queues: &[String]) -> ();
    ended(queue: &str, ids: Vec<JobId>) -> Vec<JobId>;
    set_connections(node: NodeId, held: &[String], gone: &[String]) -> ();
    keep_connections(node: NodeId, held: &[String]) -> ();
    connection(connection: &str) -> Option<NodeId>;
    answering(method: &str) -> Vec<NodeId>;
    health() -> Health;
    realm() -> Option<String>;
    holder(queue: &str, key: &str) -> Option<JobId>;
    verify() -> Verified;
    repair() -> ();
    backup(to: &std::path::Path) -> ();
    scan(queue: &str, cursor: Option<&str>) -> Page;
    put_cron(put: PutCron) -> CronPut;
    remove_cron(name: &str) -> bool;
    cron(name: &str) -> Option<CronRecord>;
    crons(queue: Option<&str>, cursor: Option<&str>) -> CronPage;
    due_crons(queue: &str, freed: &[String]) -> DueCrons;
    fire_crons(queue: &str, fires: Vec<CronFire>) -> CronsFired;
    remove_all(targets: Vec<Target>) -> Vec<Moved>;
    reschedule_all(targets: Vec<Target>, due: Due) -> Vec<Moved>;
    edit(id: JobId, edit: Edit) -> Moved;
    note(node: NodeId, notes: Vec<Note>) -> Vec<JobId>;
    set_capacity(queue: &str, limit: Capacity) -> Capacity;
    dead_groups(queue: Option<&str>) -> Vec<DeadGroup>;
    history(ask: HistoryAsk) -> History;
    add_kinds(kinds: Vec<(String, HistoryTally)>) -> ();
    kinds(hours: u32) -> Vec<KindPoint>;
    totals() -> Vec<(String, HistoryTally)>;
    put_token(token: &NewToken) -> bool;
    tokens() -> Vec<Token>;
    remove_token(name: &str) -> bool;
    put_audit(entry: &Audit) -> ();
    audits(before: Option<u64>, limit: usize) -> Vec<AuditRecord>;
}

#[cfg(test)]
mod tests {
    /// The names of all steps in a text.
    fn steps(text: &str) -> Vec<&str> {
        let begins = text.split("async fn ").skip(1);
        begins.filter_map(|rest| rest.split('(').next()).collect()
    }

    #[test]
    fn every_step_of_the_contract_is_passed_on() {
        let contract = include_str!("mod.rs");
        let contract = contract.split_once("pub trait Store").expect("is there").1;
        let (traced, faulty) = (include_str!("traced.rs"), include_str!("faulty.rs"));
        assert!(steps(contract).len() > 30);
        for step in steps(contract) {
            assert!(traced.contains(&format!("    {step}(")), "{step} is missing in traced.rs");
            assert!(faulty.contains(&format!("async fn {step}(")), "{step} is missing in faulty.rs");
        }
    }
}
