//! A store that fails on demand, for tests: refuses, loses an answer, or keeps it back.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::{
    Attended, Audit, AuditRecord, Beaten, Capacity, Claim, Claimed, CronFire, CronPage, CronPut, CronRecord,
    CronsFired, DeadGroup, DueCrons, Edit, End, Filter, Guest, Health, Heard, History, HistoryAsk, HistoryTally,
    KindPoint, LockAsk, LockPage, LockTaken, Marked, MoveIn, Moved, MovedIn, NewToken, Note, Page, PutCron,
    QueueCounts, Store, Target, To, Wake,
};
use crate::admin::token::Token;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, Pushed};
use crate::job::{JobId, Record};
use crate::node::{Node, NodeId, NodeRecord};

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Nothing is carried out.
    Refuse,
    /// It is carried out, and nobody learns of it.
    LoseAnswer,
    /// It is carried out, and never answered.
    KeepAnswer,
    /// It is carried out, and answered so much later.
    Late(Duration),
}

#[derive(Default)]
struct Faults {
    /// What goes wrong with which op, and how many more times.
    due: HashMap<&'static str, (Fault, usize)>,
    /// The queue whose outcomes are never answered, as if its shard hung.
    hangs: Option<String>,
    /// How often each op was asked for.
    asked: HashMap<&'static str, usize>,
}

/// Any store, with faults.
pub(crate) struct Faulty {
    inner: Arc<dyn Store>,
    faults: Mutex<Faults>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Faulty { inner, faults: Mutex::default() })
    }

    /// The next `times` calls of this op go wrong.
    pub(crate) fn next(&self, op: &'static str, fault: Fault, times: usize) {
        self.faults().due.insert(op, (fault, times));
    }

    /// From now on no settle of this queue is answered.
    pub(crate) fn hang(&self, queue: &str) {
        self.faults().hangs = Some(queue.to_owned());
    }

    /// How often this op was asked for.
    pub(crate) fn asked(&self, op: &'static str) -> usize {
        self.faults().asked.get(op).copied().unwrap_or(0)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, op: &'static str) -> Option<Fault> {
        let mut faults = self.faults();
        *faults.asked.entry(op).or_default() += 1;
        let (fault, left) = faults.due.get_mut(op).filter(|(_, left)| *left > 0)?;
        *left -= 1;
        Some(*fault)
    }

    async fn pass<T>(&self, op: &'static str, answer: impl Future<Output = Result<T>> + Send) -> Result<T> {
        match self.fault(op) {
            None => answer.await,
            Some(Fault::Refuse) => Err(Error::store(op, "refused on demand")),
            Some(Fault::LoseAnswer) => {
                answer.await?;
                Err(Error::Unknown { op, source: None })
            }
            Some(Fault::KeepAnswer) => {
                answer.await?;
                std::future::pending().await
            }
            Some(Fault::Late(by)) => {
                let answer = answer.await;
                tokio::time::sleep(by).await;
                answer
            }
        }
    }
}

impl super::sealed::Sealed for Faulty {}

#[async_trait]
impl Store for Faulty {
    fn home(&self) -> Option<tokio::runtime::Handle> {
        self.inner.home()
    }
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<Pushed>> {
        self.pass("push", self.inner.push(jobs)).await
    }
    async fn claim(&self, node: NodeId, claim: Claim) -> Result<Claimed> {
        self.pass("claim", self.inner.claim(node, claim)).await
    }
    async fn settle(&self, node: NodeId, ends: Vec<End>) -> Result<Vec<JobId>> {
        let hangs = self.faults().hangs.clone();
        if ends.iter().any(|end| Some(&end.queue) == hangs.as_ref()) {
            std::future::pending::<()>().await;
        }
        self.pass("settle", self.inner.settle(node, ends)).await
    }
    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.pass("get", self.inner.get(id)).await
    }
    async fn list(&self, filter: Filter) -> Result<Page> {
        self.pass("list", self.inner.list(filter)).await
    }
    async fn remove(&self, id: JobId) -> Result<Moved> {
        self.pass("remove", self.inner.remove(id)).await
    }
    async fn reschedule(&self, id: JobId, due: Due) -> Result<Moved> {
        self.pass("reschedule", self.inner.reschedule(id, due)).await
    }
    async fn edit(&self, id: JobId, edit: Edit) -> Result<Moved> {
        self.pass("edit", self.inner.edit(id, edit)).await
    }
    async fn remove_all(&self, targets: Vec<Target>) -> Result<Vec<Moved>> {
        self.pass("remove", self.inner.remove_all(targets)).await
    }
    async fn reschedule_all(&self, targets: Vec<Target>, due: Due) -> Result<Vec<Moved>> {
        self.pass("reschedule", self.inner.reschedule_all(targets, due)).await
    }
    async fn set_capacity(&self, queue: &str, limit: Capacity) -> Result<Capacity> {
        self.pass("limit", self.inner.set_capacity(queue, limit)).await
    }
    async fn note(&self, node: NodeId, notes: Vec<Note>) -> Result<Vec<JobId>> {
        self.pass("note", self.inner.note(node, notes)).await
    }
    async fn add_kinds(&self, kinds: Vec<(String, HistoryTally)>) -> Result<()> {
        self.pass("add_kinds", self.inner.add_kinds(kinds)).await
    }
    async fn kinds(&self, hours: u32) -> Result<Vec<KindPoint>> {
        self.pass("kinds", self.inner.kinds(hours)).await
    }
    async fn totals(&self) -> Result<Vec<(String, HistoryTally)>> {
        self.pass("totals", self.inner.totals()).await
    }
    async fn history(&self, ask: HistoryAsk) -> Result<History> {
        self.pass("history", self.inner.history(ask)).await
    }
    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        self.pass("dead", self.inner.dead_groups(queue)).await
    }
    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        self.pass("counts", self.inner.counts()).await
    }
    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        self.pass("pause", self.inner.pause(queue, paused)).await
    }
    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        self.pass("prune", self.inner.prune(queue, done_max)).await
    }
    async fn set_moving(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<Marked> {
        self.pass("set_moving", self.inner.set_moving(queue, mover, to)).await
    }
    async fn move_in(&self, batch: MoveIn) -> Result<MovedIn> {
        self.pass("move_in", self.inner.move_in(batch)).await
    }
    async fn move_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        self.pass("move_out", self.inner.move_out(queue, mover, jobs)).await
    }
    async fn beat(&self, node: &Node) -> Result<Beaten> {
        self.pass("beat", self.inner.beat(node)).await
    }
    async fn leave(&self, node: NodeId) -> Result<()> {
        self.pass("leave", self.inner.leave(node)).await
    }
    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.pass("nodes", self.inner.nodes()).await
    }
    async fn accept(&self, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()> {
        self.pass("accept", self.inner.accept(node, kinds)).await
    }
    async fn subscribe(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        self.pass("subscribe", self.inner.subscribe(node)).await
    }
    async fn put_cron(&self, put: PutCron) -> Result<CronPut> {
        self.pass("put_cron", self.inner.put_cron(put)).await
    }
    async fn remove_cron(&self, name: &str) -> Result<bool> {
        self.pass("remove_cron", self.inner.remove_cron(name)).await
    }
    async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        self.pass("cron", self.inner.cron(name)).await
    }
    async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
        self.pass("crons", self.inner.crons(queue, cursor)).await
    }
    async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons> {
        self.pass("due_crons", self.inner.due_crons(queue, freed)).await
    }
    async fn fire_crons(&self, queue: &str, fires: Vec<CronFire>) -> Result<CronsFired> {
        self.pass("fire_crons", self.inner.fire_crons(queue, fires)).await
    }
    async fn lock(&self, ask: &LockAsk) -> Result<LockTaken> {
        self.pass("lock", self.inner.lock(ask)).await
    }
    async fn extend_locks(&self, asks: &[LockAsk]) -> Result<Vec<bool>> {
        self.pass("extend_locks", self.inner.extend_locks(asks)).await
    }
    async fn unlock(&self, ask: &LockAsk) -> Result<bool> {
        self.pass("unlock", self.inner.unlock(ask)).await
    }
    async fn leave_line(&self, ask: &LockAsk) -> Result<()> {
        self.pass("leave_line", self.inner.leave_line(ask)).await
    }
    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        self.pass("locks", self.inner.locks(name, cursor)).await
    }
    async fn break_lock(&self, name: &str) -> Result<u64> {
        self.pass("break_lock", self.inner.break_lock(name)).await
    }
    async fn attend(&self, guest: &Guest) -> Result<Attended> {
        self.pass("attend", self.inner.attend(guest)).await
    }
    async fn depart(&self, node: NodeId) -> Result<()> {
        self.pass("depart", self.inner.depart(node)).await
    }
    async fn hear(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Heard>> {
        self.pass("hear", self.inner.hear(node, all)).await
    }
    async fn send(&self, to: To, message: &[u8]) -> Result<u64> {
        self.pass("send", self.inner.send(to, message)).await
    }
    async fn watch_ends(&self, node: NodeId, queues: &[String]) -> Result<()> {
        self.pass("watch_ends", self.inner.watch_ends(node, queues)).await
    }
    async fn ended(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        self.pass("ended", self.inner.ended(queue, ids)).await
    }
    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.pass("set_connections", self.inner.set_connections(node, held, gone)).await
    }
    async fn keep_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.pass("keep_connections", self.inner.keep_connections(node, held)).await
    }
    async fn put_token(&self, token: &NewToken) -> Result<bool> {
        self.pass("put_token", self.inner.put_token(token)).await
    }
    async fn remove_token(&self, name: &str) -> Result<bool> {
        self.pass("remove_token", self.inner.remove_token(name)).await
    }
    async fn tokens(&self) -> Result<Vec<Token>> {
        self.pass("tokens", self.inner.tokens()).await
    }
    async fn put_audit(&self, entry: &Audit) -> Result<()> {
        self.pass("put_audit", self.inner.put_audit(entry)).await
    }
    async fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        self.pass("audits", self.inner.audits(before, limit)).await
    }
    async fn connection(&self, connection: &str) -> Result<Option<NodeId>> {
        self.pass("connection", self.inner.connection(connection)).await
    }
    async fn answering(&self, method: &str) -> Result<Vec<NodeId>> {
        self.pass("answering", self.inner.answering(method)).await
    }
    fn now(&self) -> SystemTime {
        self.inner.now()
    }
    async fn health(&self) -> Result<Health> {
        self.pass("health", self.inner.health()).await
    }
    async fn realm(&self) -> Result<Option<String>> {
        self.pass("realm", self.inner.realm()).await
    }
    async fn holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        self.pass("holder", self.inner.holder(queue, key)).await
    }
    async fn verify(&self) -> Result<super::Verified> {
        self.pass("verify", self.inner.verify()).await
    }
    async fn repair(&self) -> Result<()> {
        self.pass("repair", self.inner.repair()).await
    }
    async fn backup(&self, to: &std::path::Path) -> Result<()> {
        self.pass("backup", self.inner.backup(to)).await
    }
    async fn scan(&self, queue: &str, cursor: Option<&str>) -> Result<Page> {
        self.pass("scan", self.inner.scan(queue, cursor)).await
    }
}
