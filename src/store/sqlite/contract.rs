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
use crate::store::{TAKE_BACK_MAX, VerifyReport};

#[async_trait]
impl Store for Sqlite {
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        self.writer.write("push", move |tx| push::push(tx, &jobs)).await?.map_err(Error::from)
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        let registry = self.registry.clone();
        let operation = move |tx: &Tx<'_>| -> rusqlite::Result<ClaimReply> {
            let node_no = nodes::ensure_node(tx, &registry, node)?;
            let queue = tx.ensure_queue(&claim.queue)?;
            if claim.resync {
                let jobs = claim::resync(tx, node_no, queue, &claim.queue)?;
                return Ok(ClaimReply::new(tx.now, jobs));
            }
            let taken_back = match claim.suspect {
                Some(suspect) => nodes::take_back(tx, &registry, suspect, queue)?,
                None => 0,
            };
            let claimed = claim::claim(tx, node_no, queue, &claim)?;
            // Recorded while the write lock is held: a push that this claim did not see will see the node as idle.
            let has_room = claimed.jobs.len() < claim.max.min(CLAIM_MAX);
            let idle_rank = registry.set_idle(node, &claim.queue, has_room && !claimed.more);
            if claimed.wake_others {
                tx.wake_one(&claim.queue);
            }
            Ok(ClaimReply {
                has_more: claimed.more || taken_back == TAKE_BACK_MAX,
                next_due: claimed.next_due,
                next_tick: claimed.next_tick,
                idle_rank,
                taken_back,
                suspect_has_more: taken_back == TAKE_BACK_MAX,
                ..ClaimReply::new(claimed.now, claimed.jobs)
            })
        };
        self.writer.write("claim", operation).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        let registry = self.registry.clone();
        self.writer
            .write("settle", move |tx| settle::settle(tx, nodes::ensure_node(tx, &registry, node)?, node, &ends))
            .await
    }

    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.read("get", move |conn| query::get(conn, id).map_err(|e| errors::from_sqlite("get", e))).await
    }

    async fn list(&self, filter: Filter) -> Result<JobPage> {
        let limit = if filter.limit == 0 { PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
        let mut from = filter.cursor.as_deref().map(list::RowCursor::parse).transpose()?;
        let (mut page, mut bytes, now) = (JobPage::default(), 0, self.clock.now_micros());
        loop {
            let (filter, room) = (filter.clone(), limit - page.jobs.len());
            let read = move |conn: &Connection| list::scan(conn, &filter, from, room, now);
            let batch = self.read("list", read).await?;
            bytes += batch.jobs.iter().map(list::record_bytes).sum::<usize>();
            page.jobs.extend(batch.jobs);
            page.scanned += batch.scanned as u64;
            from = batch.next;
            let is_full = page.jobs.len() >= limit || bytes >= PAGE_BYTES_MAX;
            if from.is_none() || is_full || page.scanned >= LIST_EXAMINED_MAX as u64 {
                page.next_cursor = from.map(|from| from.to_text());
                return Ok(page);
            }
        }
    }

    async fn edit(&self, id: JobId, edit: JobEdit) -> Result<ChangeResult> {
        self.writer.write("edit", move |tx| edit::edit(tx, id, &edit)).await
    }

    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        self.writer.write("remove_all", move |tx| edit::remove_all(tx, &targets)).await
    }

    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        self.writer.write("reschedule_all", move |tx| edit::reschedule_all(tx, &targets, due)).await
    }

    async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        let queue = queue.to_owned();
        self.writer.write("set_capacity", move |tx| capacity::set_capacity(tx, &queue, capacity)).await
    }

    async fn record_progress(&self, node: NodeId, updates: Vec<ProgressUpdate>) -> Result<Vec<JobId>> {
        let registry = self.registry.clone();
        self.writer
            .write("record_progress", move |tx| {
                progress::record_progress(tx, nodes::ensure_node(tx, &registry, node)?, &updates)
            })
            .await
    }

    async fn add_kind_stats(&self, kinds: Vec<(String, StatCounters)>) -> Result<()> {
        self.writer.write("add_kind_stats", move |tx| stats::add_kind_stats(tx, &kinds)).await
    }

    async fn kind_stats(&self, hours: u32) -> Result<Vec<KindStats>> {
        let now = self.clock.now_micros();
        self.read("kind_stats", move |conn| {
            stats::kind_stats(conn, hours, now).map_err(|e| errors::from_sqlite("kind_stats", e))
        })
        .await
    }

    async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>> {
        self.read("queue_totals", |conn| counts::queue_totals(conn).map_err(|e| errors::from_sqlite("queue_totals", e)))
            .await
    }

    async fn history(&self, query: HistoryQuery) -> Result<History> {
        let now = self.clock.now_micros();
        self.read("history", move |conn| {
            counts::history(conn, &query, now).map_err(|e| errors::from_sqlite("history", e))
        })
        .await
    }

    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        let queue = queue.map(str::to_owned);
        let read = move |conn: &Connection| {
            job_index::dead_groups(conn, queue.as_deref()).map_err(|e| errors::from_sqlite("dead_groups", e))
        };
        self.read("dead_groups", read).await
    }

    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        self.writer.write("remove", move |tx| state::remove(tx, id)).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        self.writer.write("reschedule", move |tx| state::reschedule(tx, id, due)).await
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        self.read("counts", |conn| query::counts(conn).map_err(|e| errors::from_sqlite("counts", e))).await
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool> {
        let name = queue.to_owned();
        self.writer
            .write("set_paused", move |tx| {
                let queue = tx.ensure_queue(&name)?;
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
            self.writer.run_outside_transaction("prune", upkeep::shrink).await?;
        }
        Ok(gone)
    }

    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        let to_error = |e: std::io::Error| Error::store("heartbeat", e.to_string());
        if !self.registry.heartbeat(node.id, node.profile.quiet).map_err(to_error)? {
            self.join_worker(node).await?;
            self.registry.heartbeat(node.id, node.profile.quiet).map_err(to_error)?;
        }
        let (id, registry) = (node.id, self.registry.clone());
        let read = move |conn: &Connection| {
            query::heartbeat_reply(conn, &registry, id).map_err(|e| errors::from_sqlite("heartbeat", e))
        };
        let reply = self.read("heartbeat", read).await?;
        // A claim costs little here, so all queues are listed without checking for jobs.
        Ok(HeartbeatReply { queues_to_check: node.queues.clone(), ..reply })
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.registry.leave(node).map_err(|e| Error::store("leave", e.to_string()))?;
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
        let registry = self.registry.clone();
        let read = move |conn: &Connection| query::nodes(conn, &registry).map_err(|e| errors::from_sqlite("nodes", e));
        let workers = self.read("nodes", read).await?;
        let peers = self.peers.find_peers("nodes").await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list peers");
            Vec::new()
        });
        Ok(nodes::merge_peers(workers, peers))
    }

    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        listener::subscribe_wakes(&self.registry, node).map_err(|e| Error::store("subscribe_wakes", e.to_string()))
    }

    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        let (queue, to) = (queue.to_owned(), to.map(str::to_owned));
        self.writer
            .write("set_transfer_mark", move |tx| transfer::set_transfer_mark(tx, &queue, mover, to.as_deref()))
            .await
    }

    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        self.writer.write("transfer_in", move |tx| transfer::transfer_in(tx, &batch)).await
    }

    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        let queue = queue.to_owned();
        self.writer.write("transfer_out", move |tx| transfer::transfer_out(tx, &queue, mover, &jobs)).await
    }

    async fn put_cron(&self, change: PutCron) -> Result<PutCronResult> {
        self.writer.write("put_cron", move |tx| cron::put_cron(tx, &change)).await
    }

    async fn remove_cron(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.writer.write("remove_cron", move |tx| cron::remove_cron(tx, &name)).await
    }

    async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        let name = name.to_owned();
        self.read("cron", move |conn| cron::cron(conn, &name).map_err(|e| errors::from_sqlite("cron", e))).await
    }

    async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
        let (queue, cursor) = (queue.map(str::to_owned), cursor.map(str::to_owned));
        self.read("crons", move |conn| cron::crons(conn, queue.as_deref(), cursor.as_deref())).await
    }

    async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons> {
        let (queue, freed, clock) = (queue.to_owned(), freed.to_vec(), self.clock.clone());
        let read = move |conn: &Connection| {
            cron::due_crons(conn, clock.now_micros(), &queue, &freed).map_err(|e| errors::from_sqlite("due_crons", e))
        };
        self.read("due_crons", read).await
    }

    async fn fire_crons(&self, queue: &str, firings: Vec<CronFiring>) -> Result<FireCronsReply> {
        if firings.len() > CRON_FIRINGS_MAX {
            return Err(Error::invalid("firings", format!("must not be more than {CRON_FIRINGS_MAX} rules at a time")));
        }
        let queue = queue.to_owned();
        self.writer.write("fire_crons", move |tx| cron::fire_crons(tx, &queue, &firings)).await
    }

    async fn lock(&self, request: &LockRequest) -> Result<LockReply> {
        let to_error =
            |e: std::io::Error| Error::store("lock", format!("cannot take a slot in the node registry: {e}"));
        self.registry.ensure_announced(request.node, request.lease).map_err(to_error)?;
        let (registry, request) = (self.registry.clone(), request.clone());
        self.writer.write("lock", move |tx| locks::lock(tx, &LivenessSnapshot::new(&registry), &request)).await
    }

    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>> {
        if requests.len() > LOCK_EXTENDS_MAX {
            return Err(Error::invalid("locks", format!("must not be more than {LOCK_EXTENDS_MAX} at a time")));
        }
        let (registry, requests) = (self.registry.clone(), requests.to_vec());
        let extend = move |tx: &Tx<'_>| {
            let liveness = LivenessSnapshot::new(&registry);
            requests.iter().map(|request| locks::extend_lock(tx, &liveness, request)).collect()
        };
        self.writer.write("extend_locks", extend).await
    }

    async fn unlock(&self, request: &LockRequest) -> Result<bool> {
        let (registry, name, owner) = (self.registry.clone(), request.name.clone(), request.owner);
        self.writer.write("unlock", move |tx| locks::unlock(tx, &LivenessSnapshot::new(&registry), &name, owner)).await
    }

    async fn cancel_wait(&self, request: &LockRequest) -> Result<()> {
        let (registry, name, owner) = (self.registry.clone(), request.name.clone(), request.owner);
        self.writer
            .write("cancel_wait", move |tx| locks::cancel_wait(tx, &LivenessSnapshot::new(&registry), &name, owner))
            .await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        let (registry, clock) = (self.registry.clone(), self.clock.clone());
        let (name, cursor) = (name.map(str::to_owned), cursor.map(str::to_owned));
        let read = move |conn: &Connection| {
            locks::locks(
                conn,
                &LivenessSnapshot::new(&registry),
                clock.now_micros(),
                name.as_deref(),
                cursor.as_deref(),
            )
        };
        self.read("locks", read).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        let (registry, name) = (self.registry.clone(), name.to_owned());
        self.writer.write("break_lock", move |tx| locks::break_lock(tx, &LivenessSnapshot::new(&registry), &name)).await
    }

    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply> {
        if self.peers.announce(peer, self.clock.now_micros()).await? {
            let registry = self.registry.clone();
            let sweep = move |tx: &Tx<'_>| {
                let liveness = LivenessSnapshot::new(&registry);
                locks::delete_before_boot(tx, &liveness).and_then(|()| waiters::delete_dead_waiters(tx, &liveness))
            };
            self.writer.write("announce", sweep).await?;
        }
        if peer.waited_locks.is_empty() && peer.waiters.is_empty() {
            return Ok(AnnounceReply::default());
        }
        let (registry, peer) = (self.registry.clone(), peer.clone());
        let read = move |conn: &Connection| {
            let to_error = |e| errors::from_sqlite("announce", e);
            let lost_waits = waiters::find_lost_waiters(conn, &peer).map_err(to_error)?;
            Ok((lost_waits, waiters::lock_turns(conn, &LivenessSnapshot::new(&registry), &peer).map_err(to_error)?))
        };
        let (lost_waits, (turns, stale)) = self.read("announce", read).await?;
        if !stale.is_empty() {
            let registry = self.registry.clone();
            let pass_on = move |tx: &Tx<'_>| {
                let liveness = LivenessSnapshot::new(&registry);
                stale.iter().try_for_each(|name| locks::notify_next_waiters(tx, &liveness, name))
            };
            self.writer.write("announce", pass_on).await?;
        }
        Ok(AnnounceReply { turns, lost_waits })
    }

    async fn withdraw(&self, node: NodeId) -> Result<()> {
        let registry = self.registry.clone();
        // Must run before the slot is released: a node without a slot is dead, and any node could take its locks.
        let withdraw = move |tx: &Tx<'_>| {
            locks::detach_from_node(tx, node)
                .and_then(|()| waiters::withdraw(tx, &LivenessSnapshot::new(&registry), node))
        };
        self.writer.write("withdraw", withdraw).await?;
        self.peers.withdraw(node).await
    }

    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        self.peers.subscribe_messages(node, all)
    }

    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        self.peers.send(to, message).await
    }

    async fn watch_completions(&self, node: NodeId, queues: &[String]) -> Result<()> {
        if queues.len() > COMPLETION_QUEUES_MAX {
            return Err(Error::invalid(
                "queues",
                format!("must not be more than {COMPLETION_QUEUES_MAX} to watch for completions"),
            ));
        }
        self.registry.watch_completions(node, queues).map_err(|e| Error::store("watch_completions", e.to_string()))
    }

    async fn completed_among(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        let queue = queue.to_owned();
        let read = move |conn: &Connection| {
            query::completed_among(conn, &queue, &ids).map_err(|e| errors::from_sqlite("completed_among", e))
        };
        self.read("completed_among", read).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.peers.set_connections(node, held, gone).await
    }

    async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.peers.refresh_connections(node, held).await
    }

    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>> {
        self.peers.connection_holder(connection).await
    }

    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        self.peers.peers_with_method(method).await
    }

    async fn add_token(&self, token: &NewToken) -> Result<bool> {
        let token = token.clone();
        self.writer.write("add_token", move |tx| access::add_token(tx, &token)).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.writer.write("remove_token", move |tx| access::remove_token(tx, &name)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.read("tokens", |conn| access::tokens(conn).map_err(|e| errors::from_sqlite("tokens", e))).await
    }

    async fn add_audit_entry(&self, entry: &AuditEntry) -> Result<()> {
        let entry = entry.clone();
        self.writer.write("add_audit_entry", move |tx| access::add_audit_entry(tx, &entry)).await
    }

    async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        let read = move |conn: &Connection| {
            access::audit_entries(conn, before, limit).map_err(|e| errors::from_sqlite("audit_entries", e))
        };
        self.read("audit_entries", read).await
    }

    fn now(&self) -> SystemTime {
        self.clock.now()
    }

    async fn health(&self) -> Result<Health> {
        let (path, durability, clock) = (self.path.clone(), self.durability, self.clock.clone());
        let read = move |conn: &Connection| health::health(conn, path.as_deref(), durability, &clock);
        let mut health = self.writer.run_outside_transaction("health", read).await?;
        health.add_history_fact(self.history_enabled);
        Ok(health)
    }

    async fn unique_holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        let (queue, key) = (queue.to_owned(), key.to_owned());
        let read = move |conn: &Connection| {
            query::unique_holder(conn, &queue, &key).map_err(|e| errors::from_sqlite("unique_holder", e))
        };
        self.read("unique_holder", read).await
    }

    async fn verify(&self) -> Result<VerifyReport> {
        verify::verify(self).await
    }

    async fn repair(&self) -> Result<()> {
        repair::repair(self).await
    }

    async fn backup(&self, to: &Path) -> Result<()> {
        backup::backup(self, to).await
    }
}
