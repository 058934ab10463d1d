//! Implements the store contract: each method calls the module of its subject.

use super::*;
use crate::store::sqlite::errors;
use crate::store::sqlite::jobs::capacity;
use crate::store::sqlite::jobs::claim;
use crate::store::sqlite::jobs::counts;
use crate::store::sqlite::jobs::edit;
use crate::store::sqlite::jobs::job_index;
use crate::store::sqlite::jobs::list;
use crate::store::sqlite::jobs::progress;
use crate::store::sqlite::jobs::push;
use crate::store::sqlite::jobs::query;
use crate::store::sqlite::jobs::settle;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::locks;
use crate::store::sqlite::locks::waiters;
use crate::store::sqlite::maintenance::backup;
use crate::store::sqlite::maintenance::health;
use crate::store::sqlite::maintenance::repair;
use crate::store::sqlite::maintenance::upkeep;
use crate::store::sqlite::maintenance::verify;
use crate::store::sqlite::nodes::listener;
use crate::store::sqlite::stats;
use crate::store::sqlite::transfer;
use crate::store::{TAKE_BACK_MAX, Verified};

#[async_trait]
impl Store for Sqlite {
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<Pushed>> {
        self.writer.write("push", move |tx| push::push(tx, &jobs)).await?.map_err(Error::from)
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<Claimed> {
        let board = self.board.clone();
        let step = move |tx: &Tx<'_>| -> rusqlite::Result<Claimed> {
            let node_no = nodes::number_of(tx, &board, node)?;
            let queue = tx.queue(&claim.queue)?;
            if claim.redo {
                let jobs = claim::redo(tx, node_no, queue, &claim.queue)?;
                return Ok(claimed(tx.now, jobs));
            }
            let taken_back = match claim.suspect {
                Some(suspect) => nodes::take_back(tx, &board, suspect, queue)?,
                None => 0,
            };
            let step = claim::claim(tx, node_no, queue, &claim)?;
            // Recorded while the write lock is held: a push that this claim did not see will see the node as idle.
            let has_room = step.jobs.len() < claim.max.min(CLAIM_MAX);
            let rank = board.set_idle(node, &claim.queue, has_room && !step.more);
            if step.for_others {
                tx.wake(&claim.queue);
            }
            Ok(Claimed {
                more: step.more || taken_back == TAKE_BACK_MAX,
                next_due: step.next_due,
                next_tick: step.next_tick,
                rank,
                taken_back,
                left: taken_back == TAKE_BACK_MAX,
                ..claimed(step.now, step.jobs)
            })
        };
        self.writer.write("claim", step).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<End>) -> Result<Vec<JobId>> {
        let board = self.board.clone();
        self.writer
            .write("settle", move |tx| settle::settle(tx, nodes::number_of(tx, &board, node)?, node, &ends))
            .await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        self.read("get", move |conn| query::get(conn, id).map_err(|e| errors::refused("get", e))).await
    }

    async fn list(&self, filter: Filter) -> Result<Page> {
        let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
        let mut from = filter.cursor.as_deref().map(list::Cursor::parse).transpose()?;
        let (mut page, mut bytes, now) = (Page::default(), 0, self.clock.wall());
        loop {
            let (filter, room) = (filter.clone(), limit - page.jobs.len());
            let look = move |conn: &Connection| list::look(conn, &filter, from, room, now);
            let looked = self.read("list", look).await?;
            bytes += looked.jobs.iter().map(list::size).sum::<usize>();
            page.jobs.extend(looked.jobs);
            page.looked += looked.looked as u64;
            from = looked.next;
            let is_full = page.jobs.len() >= limit || bytes >= PAGE_BYTES_MAX;
            if from.is_none() || is_full || page.looked >= LOOKED_MAX as u64 {
                page.next = from.map(|from| from.text());
                return Ok(page);
            }
        }
    }

    async fn edit(&self, id: JobId, edit: Edit) -> Result<Moved> {
        self.writer.write("edit", move |tx| edit::edit(tx, id, &edit)).await
    }

    async fn remove_all(&self, targets: Vec<Target>) -> Result<Vec<Moved>> {
        self.writer.write("remove", move |tx| edit::remove_all(tx, &targets)).await
    }

    async fn reschedule_all(&self, targets: Vec<Target>, due: Due) -> Result<Vec<Moved>> {
        self.writer.write("reschedule", move |tx| edit::reschedule_all(tx, &targets, due)).await
    }

    async fn set_capacity(&self, queue: &str, limit: Capacity) -> Result<Capacity> {
        let queue = queue.to_owned();
        self.writer.write("limit", move |tx| capacity::set(tx, &queue, limit)).await
    }

    async fn note(&self, node: NodeId, notes: Vec<Note>) -> Result<Vec<JobId>> {
        let board = self.board.clone();
        self.writer.write("note", move |tx| progress::note(tx, nodes::number_of(tx, &board, node)?, &notes)).await
    }

    async fn add_kinds(&self, kinds: Vec<(String, HistoryTally)>) -> Result<()> {
        self.writer.write("add_kinds", move |tx| stats::add(tx, &kinds)).await
    }

    async fn kinds(&self, hours: u32) -> Result<Vec<KindPoint>> {
        let now = self.clock.wall();
        self.read("kinds", move |conn| stats::asked(conn, hours, now).map_err(|e| errors::refused("kinds", e))).await
    }

    async fn totals(&self) -> Result<Vec<(String, HistoryTally)>> {
        self.read("totals", |conn| counts::totals(conn).map_err(|e| errors::refused("totals", e))).await
    }

    async fn history(&self, ask: HistoryAsk) -> Result<History> {
        let now = self.clock.wall();
        self.read("history", move |conn| counts::asked(conn, &ask, now).map_err(|e| errors::refused("history", e)))
            .await
    }

    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        let queue = queue.map(str::to_owned);
        let look =
            move |conn: &Connection| job_index::groups(conn, queue.as_deref()).map_err(|e| errors::refused("dead", e));
        self.read("dead", look).await
    }

    async fn remove(&self, id: JobId) -> Result<Moved> {
        self.writer.write("remove", move |tx| state::remove(tx, id)).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<Moved> {
        self.writer.write("reschedule", move |tx| state::reschedule(tx, id, due)).await
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        self.read("counts", |conn| query::counts(conn).map_err(|e| errors::refused("counts", e))).await
    }

    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        let name = queue.to_owned();
        self.writer
            .write("pause", move |tx| {
                let queue = tx.queue(&name)?;
                let changed = tx
                    .statement("UPDATE duly_queue SET paused = ?2 WHERE queue_no = ?1 AND paused <> ?2")?
                    .execute(params![queue, paused])?;
                if !paused {
                    tx.wake(&name);
                }
                Ok(changed > 0)
            })
            .await
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        let (name, remember) = (queue.to_owned(), self.remember);
        let gone = self
            .writer
            .write("prune", move |tx| {
                tx.swap_gone(remember)?;
                match tx.known_queue(&name)? {
                    Some(queue) => settle::prune(tx, queue, done_max, PRUNE_MAX),
                    None => Ok(0),
                }
            })
            .await?;
        if self.path.is_some() && gone < PRUNE_MAX {
            self.writer.upkeep("prune", upkeep::shrink).await?;
        }
        Ok(gone)
    }

    async fn beat(&self, node: &Node) -> Result<Beaten> {
        let told = |e: std::io::Error| Error::store("beat", e.to_string());
        if !self.board.beat(node.id, node.takes.quiet).map_err(told)? {
            self.join(node).await?;
            self.board.beat(node.id, node.takes.quiet).map_err(told)?;
        }
        let (id, board) = (node.id, self.board.clone());
        let look = move |conn: &Connection| query::beaten(conn, &board, id).map_err(|e| errors::refused("beat", e));
        let beaten = self.read("beat", look).await?;
        // A claim costs little here, so all queues are listed without checking for jobs.
        Ok(Beaten { look: node.queues.clone(), ..beaten })
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.board.leave(node).map_err(|e| Error::store("leave", e.to_string()))?;
        let leave = move |tx: &Tx<'_>| {
            tx.statement(
                "DELETE FROM duly_node WHERE id = ?1 AND NOT EXISTS
                   (SELECT 1 FROM duly_running WHERE node_no = duly_node.node_no)",
            )?
            .execute([node.as_bytes()])
        };
        self.writer.write("leave", leave).await.map(drop)
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        let board = self.board.clone();
        let look = move |conn: &Connection| query::nodes(conn, &board).map_err(|e| errors::refused("nodes", e));
        let workers = self.read("nodes", look).await?;
        let guests = self.hall.guests("nodes").await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list peers");
            Vec::new()
        });
        Ok(nodes::merge(workers, guests))
    }

    async fn subscribe(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        listener::subscribe(&self.board, node).map_err(|e| Error::store("subscribe", e.to_string()))
    }

    async fn set_moving(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<Marked> {
        let (queue, to) = (queue.to_owned(), to.map(str::to_owned));
        self.writer.write("set_moving", move |tx| transfer::set_moving(tx, &queue, mover, to.as_deref())).await
    }

    async fn move_in(&self, batch: MoveIn) -> Result<MovedIn> {
        self.writer.write("move_in", move |tx| transfer::move_in(tx, &batch)).await
    }

    async fn move_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        let queue = queue.to_owned();
        self.writer.write("move_out", move |tx| transfer::move_out(tx, &queue, mover, &jobs)).await
    }

    async fn put_cron(&self, put: PutCron) -> Result<CronPut> {
        self.writer.write("put_cron", move |tx| cron::put(tx, &put)).await
    }

    async fn remove_cron(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.writer.write("remove_cron", move |tx| cron::remove(tx, &name)).await
    }

    async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        let name = name.to_owned();
        self.read("cron", move |conn| cron::get(conn, &name).map_err(|e| errors::refused("cron", e))).await
    }

    async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
        let (queue, cursor) = (queue.map(str::to_owned), cursor.map(str::to_owned));
        self.read("crons", move |conn| cron::page(conn, queue.as_deref(), cursor.as_deref())).await
    }

    async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons> {
        let (queue, freed, clock) = (queue.to_owned(), freed.to_vec(), self.clock.clone());
        let look = move |conn: &Connection| {
            cron::due(conn, clock.wall(), &queue, &freed).map_err(|e| errors::refused("due_crons", e))
        };
        self.read("due_crons", look).await
    }

    async fn fire_crons(&self, queue: &str, fires: Vec<CronFire>) -> Result<CronsFired> {
        if fires.len() > CRON_FIRE_MAX {
            return Err(Error::invalid("fires", format!("must not be more than {CRON_FIRE_MAX} rules at a time")));
        }
        let queue = queue.to_owned();
        self.writer.write("fire_crons", move |tx| cron::fire(tx, &queue, &fires)).await
    }

    async fn lock(&self, ask: &LockAsk) -> Result<LockTaken> {
        let told = |e: std::io::Error| Error::store("lock", format!("cannot take a slot in the node registry: {e}"));
        self.board.admit(ask.node, ask.lease).map_err(told)?;
        let (board, ask) = (self.board.clone(), ask.clone());
        self.writer.write("lock", move |tx| locks::lock(tx, &Lives::on(&board), &ask)).await
    }

    async fn extend_locks(&self, asks: &[LockAsk]) -> Result<Vec<bool>> {
        if asks.len() > EXTEND_MAX {
            return Err(Error::invalid("locks", format!("must not be more than {EXTEND_MAX} at a time")));
        }
        let (board, asks) = (self.board.clone(), asks.to_vec());
        let extend = move |tx: &Tx<'_>| {
            let lives = Lives::on(&board);
            asks.iter().map(|ask| locks::extend(tx, &lives, ask)).collect()
        };
        self.writer.write("extend_locks", extend).await
    }

    async fn unlock(&self, ask: &LockAsk) -> Result<bool> {
        let (board, name, owner) = (self.board.clone(), ask.name.clone(), ask.owner);
        self.writer.write("unlock", move |tx| locks::unlock(tx, &Lives::on(&board), &name, owner)).await
    }

    async fn leave_line(&self, ask: &LockAsk) -> Result<()> {
        let (board, name, owner) = (self.board.clone(), ask.name.clone(), ask.owner);
        self.writer.write("leave_line", move |tx| locks::leave_line(tx, &Lives::on(&board), &name, owner)).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        let (board, clock) = (self.board.clone(), self.clock.clone());
        let (name, cursor) = (name.map(str::to_owned), cursor.map(str::to_owned));
        let look = move |conn: &Connection| {
            locks::list(conn, &Lives::on(&board), clock.wall(), name.as_deref(), cursor.as_deref())
        };
        self.read("locks", look).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        let (board, name) = (self.board.clone(), name.to_owned());
        self.writer.write("break_lock", move |tx| locks::break_all(tx, &Lives::on(&board), &name)).await
    }

    async fn attend(&self, guest: &Guest) -> Result<Attended> {
        if self.hall.attend(guest, self.clock.wall()).await? {
            let board = self.board.clone();
            let sweep = move |tx: &Tx<'_>| {
                let lives = Lives::on(&board);
                locks::sweep(tx, &lives).and_then(|()| waiters::sweep(tx, &lives))
            };
            self.writer.write("attend", sweep).await?;
        }
        if guest.waits.is_empty() && guest.places.is_empty() {
            return Ok(Attended::default());
        }
        let (board, guest) = (self.board.clone(), guest.clone());
        let look = move |conn: &Connection| {
            let told = |e| errors::refused("attend", e);
            let lost = waiters::lost(conn, &guest).map_err(told)?;
            Ok((lost, waiters::turns(conn, &Lives::on(&board), &guest).map_err(told)?))
        };
        let (lost, (turns, stale)) = self.read("attend", look).await?;
        if !stale.is_empty() {
            let board = self.board.clone();
            let pass_on = move |tx: &Tx<'_>| {
                let lives = Lives::on(&board);
                stale.iter().try_for_each(|name| locks::pass_on(tx, &lives, name))
            };
            self.writer.write("attend", pass_on).await?;
        }
        Ok(Attended { turns, lost })
    }

    async fn depart(&self, node: NodeId) -> Result<()> {
        let board = self.board.clone();
        // Must run before the slot is released: a node without a slot is dead, and any node could take its locks.
        let depart =
            move |tx: &Tx<'_>| locks::unbind(tx, node).and_then(|()| waiters::depart(tx, &Lives::on(&board), node));
        self.writer.write("depart", depart).await?;
        self.hall.depart(node).await
    }

    async fn hear(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Heard>> {
        self.hall.hear(node, all)
    }

    async fn send(&self, to: To, message: &[u8]) -> Result<u64> {
        self.hall.send(to, message).await
    }

    async fn watch_ends(&self, node: NodeId, queues: &[String]) -> Result<()> {
        if queues.len() > ENDS_QUEUES_MAX {
            return Err(Error::invalid(
                "queues",
                format!("must not be more than {ENDS_QUEUES_MAX} to watch for completions"),
            ));
        }
        self.board.watch_ends(node, queues).map_err(|e| Error::store("watch_ends", e.to_string()))
    }

    async fn ended(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        let queue = queue.to_owned();
        let look = move |conn: &Connection| query::ended(conn, &queue, &ids).map_err(|e| errors::refused("ended", e));
        self.read("ended", look).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.hall.set_connections(node, held, gone).await
    }

    async fn keep_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.hall.keep_connections(node, held).await
    }

    async fn connection(&self, connection: &str) -> Result<Option<NodeId>> {
        self.hall.connection(connection).await
    }

    async fn answering(&self, method: &str) -> Result<Vec<NodeId>> {
        self.hall.answering(method).await
    }

    async fn put_token(&self, token: &NewToken) -> Result<bool> {
        let token = token.clone();
        self.writer.write("put_token", move |tx| access::put_token(tx, &token)).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.writer.write("remove_token", move |tx| access::remove_token(tx, &name)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.read("tokens", |conn| access::tokens(conn).map_err(|e| errors::refused("tokens", e))).await
    }

    async fn put_audit(&self, entry: &Audit) -> Result<()> {
        let entry = entry.clone();
        self.writer.write("put_audit", move |tx| access::put_audit(tx, &entry)).await
    }

    async fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        let look =
            move |conn: &Connection| access::audits(conn, before, limit).map_err(|e| errors::refused("audits", e));
        self.read("audits", look).await
    }

    fn now(&self) -> SystemTime {
        self.clock.now()
    }

    async fn health(&self) -> Result<Health> {
        let (path, durability, clock) = (self.path.clone(), self.durability, self.clock.clone());
        let look = move |conn: &Connection| health::health(conn, path.as_deref(), durability, &clock);
        let mut health = self.writer.upkeep("health", look).await?;
        health.history(self.history);
        Ok(health)
    }

    async fn holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        let (queue, key) = (queue.to_owned(), key.to_owned());
        let look = move |conn: &Connection| query::holder(conn, &queue, &key).map_err(|e| errors::refused("holder", e));
        self.read("holder", look).await
    }

    async fn verify(&self) -> Result<Verified> {
        verify::verify(self).await
    }

    async fn repair(&self) -> Result<()> {
        repair::repair(self).await
    }

    async fn backup(&self, to: &Path) -> Result<()> {
        backup::backup(self, to).await
    }
}
