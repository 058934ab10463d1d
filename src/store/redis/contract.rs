//! The contract, step by step: each is passed on to the file that knows it.

use super::*;
use crate::store::Verified;
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
    fn home(&self) -> Option<tokio::runtime::Handle> {
        Some(self.home.clone())
    }

    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<Pushed>> {
        push::push(self, jobs).await
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<Claimed> {
        claim::claim(self, node, claim).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<End>) -> Result<Vec<JobId>> {
        settle::settle(self, node, ends).await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        query::get(self, id).await
    }

    async fn list(&self, filter: Filter) -> Result<Page> {
        list::list(self, &filter).await
    }

    async fn remove(&self, id: JobId) -> Result<Moved> {
        query::remove(self, id).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<Moved> {
        query::reschedule(self, id, due).await
    }

    async fn edit(&self, id: JobId, edit: Edit) -> Result<Moved> {
        edit::edit(self, id, &edit).await
    }

    async fn remove_all(&self, targets: Vec<Target>) -> Result<Vec<Moved>> {
        edit::change_all(self, "remove", &targets, None).await
    }

    async fn reschedule_all(&self, targets: Vec<Target>, due: Due) -> Result<Vec<Moved>> {
        edit::change_all(self, "reschedule", &targets, Some(due)).await
    }

    async fn set_capacity(&self, queue: &str, limit: Capacity) -> Result<Capacity> {
        edit::set_capacity(self, queue, limit).await
    }

    async fn note(&self, node: NodeId, notes: Vec<Note>) -> Result<Vec<JobId>> {
        edit::note(self, node, &notes).await
    }

    async fn add_kinds(&self, kinds: Vec<(String, HistoryTally)>) -> Result<()> {
        kinds::add(self, &kinds).await
    }

    async fn kinds(&self, hours: u32) -> Result<Vec<KindPoint>> {
        kinds::asked(self, hours).await
    }

    async fn totals(&self) -> Result<Vec<(String, HistoryTally)>> {
        stats::totals(self).await
    }

    async fn history(&self, ask: HistoryAsk) -> Result<History> {
        stats::history(self, &ask).await
    }

    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        stats::groups(self, queue).await
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        query::counts(self).await
    }

    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        let keys = self.register("pause", queue).await?;
        let mut cmd = script::PAUSE.call(&*keys);
        cmd.arg(self.manual_now()).arg(&keys.channel).arg(u8::from(paused));
        let value = self.link.run("pause", Way::Door, keys.slot, &script::PAUSE, &cmd).await?;
        Ok(self.reply("pause", value)?.int()? == 1)
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        settle::prune(self, queue, done_max).await
    }

    async fn set_moving(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<Marked> {
        transfer::set_moving(self, queue, mover, to).await
    }

    async fn move_in(&self, batch: MoveIn) -> Result<MovedIn> {
        transfer::move_in(self, &batch).await
    }

    async fn move_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        transfer::move_out(self, queue, mover, &jobs).await
    }

    async fn beat(&self, node: &Node) -> Result<Beaten> {
        nodes::beat(self, node).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        nodes::leave(self, node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        nodes::nodes(self).await
    }

    async fn subscribe(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        wakes::subscribe(self, node).await
    }

    async fn accept(&self, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()> {
        wakes::accept(self, node, kinds).await
    }

    async fn put_cron(&self, put: PutCron) -> Result<CronPut> {
        cron::put(self, &put).await
    }

    async fn remove_cron(&self, name: &str) -> Result<bool> {
        cron::remove(self, name).await
    }

    async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        cron::get(self, name).await
    }

    async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
        cron::page(self, queue, cursor).await
    }

    async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons> {
        cron::due(self, queue, freed).await
    }

    async fn fire_crons(&self, queue: &str, fires: Vec<CronFire>) -> Result<CronsFired> {
        cron::fire(self, queue, &fires).await
    }

    async fn lock(&self, ask: &LockAsk) -> Result<LockTaken> {
        locks::lock(self, ask).await
    }

    async fn extend_locks(&self, asks: &[LockAsk]) -> Result<Vec<bool>> {
        locks::extend_locks(self, asks).await
    }

    async fn unlock(&self, ask: &LockAsk) -> Result<bool> {
        locks::unlock(self, ask).await
    }

    async fn leave_line(&self, ask: &LockAsk) -> Result<()> {
        locks::leave_line(self, ask).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        locks::locks(self, name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        locks::break_lock(self, name).await
    }

    async fn attend(&self, guest: &Guest) -> Result<Attended> {
        peers::attend(self, guest).await
    }

    async fn depart(&self, node: NodeId) -> Result<()> {
        peers::depart(self, node).await
    }

    async fn hear(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Heard>> {
        Ok(messages::hear(self, node, all))
    }

    async fn send(&self, to: To, message: &[u8]) -> Result<u64> {
        messages::send(self, to, message).await
    }

    async fn watch_ends(&self, node: NodeId, queues: &[String]) -> Result<()> {
        completions::watch(self, node, queues).await
    }

    async fn ended(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        completions::ended(self, queue, &ids).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        peers::set_connections(self, node, held, gone).await
    }

    async fn keep_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        peers::keep_connections(self, node, held).await
    }

    async fn put_token(&self, token: &NewToken) -> Result<bool> {
        access::put_token(self, token).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool> {
        access::remove_token(self, name).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        access::tokens(self).await
    }

    async fn put_audit(&self, entry: &Audit) -> Result<()> {
        access::put_audit(self, entry).await
    }

    async fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        access::audits(self, before, limit).await
    }

    async fn connection(&self, connection: &str) -> Result<Option<NodeId>> {
        peers::connection(self, connection).await
    }

    async fn answering(&self, method: &str) -> Result<Vec<NodeId>> {
        peers::answering(self, method).await
    }

    fn now(&self) -> SystemTime {
        from_micros(Redis::now(self))
    }

    async fn health(&self) -> Result<Health> {
        health::health(self).await
    }

    async fn holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        query::holder(self, queue, key).await
    }

    async fn verify(&self) -> Result<Verified> {
        verify::verify(self).await
    }

    async fn repair(&self) -> Result<()> {
        repair::repair(self).await
    }

    async fn scan(&self, queue: &str, cursor: Option<&str>) -> Result<Page> {
        scan::scan(self, queue, cursor).await
    }
}
