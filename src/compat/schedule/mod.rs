//! A schedule in one sorted set: ids scored by due time, a common hand-written pattern on Redis.
//! This module processes such a set safely, alongside the existing code or instead of it.
//!
//! duly keeps the rest in its own keys: lease, fence and attempts of each id, and its next occurrence if the
//! id is enqueued while it is leased. Code that uses only the set still works:
//! a leased id has a score in the future, and a finished id is no member.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use redis::Cmd;
use tokio::sync::{Mutex, Notify, mpsc};

use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::compat::{reject_replicas, script};
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::job::push::Due;
use crate::store::redis::{
    ConnectionRole, Redis, Script, ScriptReply, hash_tag, key_set, parse_number, slot_of_key, span_micros,
};
use crate::store::{StoreAddress, StoreOptions, parse_url};

/// Most ids leased in one operation.
pub const SCHEDULE_BATCH_MAX: usize = 1_000;
/// Default number of attempts after which an id is dead.
pub const DEFAULT_SCHEDULE_MAX_ATTEMPTS: u32 = 25;
/// Longest time between two polls: other programs add members without publishing a wake.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// First delay after a failed request; doubles up to [`POLL_INTERVAL`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Larger scores are milliseconds. As seconds, this value is in the year 5138; as milliseconds, in 1973.
const MILLIS_SCORE_MIN: f64 = 1e11;
/// Longest id, in bytes.
const ID_BYTES_MAX: usize = 64 * 1024;
/// Most dead ids returned by one call.
const DEAD_IDS_MAX: usize = 1_000;

/// The unit of the scores of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScoreUnit {
    /// Seconds since 1970, with a fraction.
    Seconds,
    /// Milliseconds since 1970.
    Millis,
}

impl ScoreUnit {
    fn as_micros(self) -> Micros {
        match self {
            ScoreUnit::Seconds => 1_000_000,
            ScoreUnit::Millis => 1_000,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            ScoreUnit::Seconds => "seconds",
            ScoreUnit::Millis => "millis",
        }
    }
}

/// An id leased to this caller until the lease expires.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasedId {
    /// The member of the set.
    pub id: Vec<u8>,
    /// Grows with every lease, so that a late worker can be distinguished from the current one.
    pub fence: Fence,
    /// The time at which the id was originally due.
    pub due: SystemTime,
    /// The number of this attempt, starting at 1.
    pub attempt: u32,
}

impl LeasedId {
    /// Returns the id as text; invalid UTF-8 is replaced.
    #[must_use]
    pub fn id_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.id)
    }
}

/// The result of [`SortedSetSchedule::enqueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnqueueResult {
    /// The id waits until it is due.
    Scheduled,
    /// The id is leased; this is its next occurrence, which starts to wait when the current attempt is done.
    AfterCurrent,
}

/// The result of [`SortedSetSchedule::done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DoneResult {
    /// The id was removed from the set.
    Removed,
    /// The id was enqueued again during the attempt, and waits for its next occurrence.
    Rescheduled,
    /// The caller no longer held the id: its lease expired or the id was removed. Nothing changed.
    NotHeld,
}

/// An id that used up its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadId {
    /// The former member of the set.
    pub id: Vec<u8>,
    /// The time at which the id became dead.
    pub at: SystemTime,
    /// The number of attempts.
    pub attempts: u32,
}

/// Configures and opens a [`SortedSetSchedule`].
#[must_use = "call `open`"]
#[derive(Clone)]
pub struct SortedSetScheduleBuilder {
    url: String,
    key: String,
    score_unit: Option<ScoreUnit>,
    max_attempts: u32,
}

// The URL may contain a password.
impl std::fmt::Debug for SortedSetScheduleBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SortedSetScheduleBuilder").field("key", &self.key).finish_non_exhaustive()
    }
}

impl SortedSetScheduleBuilder {
    /// Sets the unit of the scores. By default, it is detected from the set; seconds if the set is empty.
    pub fn score_unit(mut self, unit: ScoreUnit) -> Self {
        self.score_unit = Some(unit);
        self
    }

    /// Sets the number of attempts after which an id is dead (default 25).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Opens the schedule.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL or the key is invalid, or if the scores have another unit; [`Error::Store`] if the
    /// server cannot be reached.
    pub async fn open(self) -> Result<SortedSetSchedule> {
        let (address, options) = parse_url(&self.url, StoreOptions::default())?;
        let StoreAddress::Redis(server) = address else {
            return Err(Error::invalid("store", "a schedule is a sorted set on a Redis server; use redis://HOST"));
        };
        reject_replicas(&options, "a schedule")?;
        // The set may belong to another program, which decides how durable its server is.
        let options = StoreOptions { allow_data_loss: Some(true), ..options };
        let keys = ScheduleKeys::new(&options.prefix, &self.key)?;
        let store = Box::pin(Redis::open(server, &options)).await?;
        let wakes = store.subscribe_foreign(&keys.channel);
        let score_unit = agree_on_score_unit(&store, &keys, self.score_unit).await?;
        Ok(SortedSetSchedule {
            store,
            keys,
            score_unit,
            max_attempts: self.max_attempts,
            wakes: Mutex::new(wakes),
            woken: Notify::new(),
        })
    }
}

/// The keys of one schedule.
#[derive(Debug)]
pub(super) struct ScheduleKeys {
    slot: u16,
    set: String,
    leases: String,
    lease_ends: String,
    next_occurrences: String,
    attempts: String,
    dead: String,
    conf: String,
    channel: String,
}

key_set! { ScheduleKeys, keys:
    "set" => &keys.set,
    "leases" => &keys.leases,
    "lease_ends" => &keys.lease_ends,
    "next" => &keys.next_occurrences,
    "attempts" => &keys.attempts,
    "dead" => &keys.dead,
    "conf" => &keys.conf,
}

impl ScheduleKeys {
    fn new(prefix: &str, set: &str) -> Result<Self> {
        let tag = hash_tag(set);
        if set.is_empty() || tag.contains(['{', '}']) {
            return Err(Error::invalid("key", format!("{set:?} must have no braces except those around its hash tag")));
        }
        // The hash tag of the set keeps all keys in its slot on a Cluster.
        let key = |name: &str| format!("{prefix}:schedule:{{{tag}}}:{set}:{name}");
        Ok(ScheduleKeys {
            slot: slot_of_key(set),
            set: set.to_owned(),
            leases: key("leases"),
            lease_ends: key("lease_ends"),
            next_occurrences: key("next"),
            attempts: key("attempts"),
            dead: key("dead"),
            conf: key("conf"),
            channel: key("wake"),
        })
    }
}

/// Returns the unit of the scores. The first client to open the schedule records it for all others.
async fn agree_on_score_unit(store: &Redis, keys: &ScheduleKeys, requested: Option<ScoreUnit>) -> Result<ScoreUnit> {
    let proposed = match requested {
        Some(requested) => requested,
        None => detect_score_unit(store, keys).await?,
    };
    let mut set = redis::cmd("HSETNX");
    set.arg(&keys.conf).arg("scores").arg(proposed.as_str());
    store.send_idempotent("open", ConnectionRole::Client, keys.slot, &set).await?;
    let mut get = redis::cmd("HGET");
    get.arg(&keys.conf).arg("scores");
    let recorded: String =
        redis::from_redis_value(store.send_idempotent("open", ConnectionRole::Client, keys.slot, &get).await?)
            .unwrap_or_default();
    let recorded = if recorded == ScoreUnit::Millis.as_str() { ScoreUnit::Millis } else { ScoreUnit::Seconds };
    match requested {
        Some(requested) if requested != recorded => Err(Error::invalid(
            "scores",
            format!(
                "the scores of this schedule are in {}, as the field `scores` of {} records; use that unit",
                recorded.as_str(),
                keys.conf
            ),
        )),
        _ => Ok(recorded),
    }
}

async fn detect_score_unit(store: &Redis, keys: &ScheduleKeys) -> Result<ScoreUnit> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(&keys.set).arg(-1).arg(-1).arg("WITHSCORES");
    let last: Vec<(Vec<u8>, f64)> =
        redis::from_redis_value(store.send_idempotent("open", ConnectionRole::Client, keys.slot, &cmd).await?)
            .unwrap_or_default();
    let millis = last.iter().any(|(_, score)| *score > MILLIS_SCORE_MIN);
    Ok(if millis { ScoreUnit::Millis } else { ScoreUnit::Seconds })
}

/// A schedule in one sorted set of a Redis server. The guide
/// [Interoperability](crate::guide::interop#a-schedule-in-one-sorted-set) has an example.
#[derive(Debug)]
pub struct SortedSetSchedule {
    store: Redis,
    keys: ScheduleKeys,
    score_unit: ScoreUnit,
    max_attempts: u32,
    wakes: Mutex<mpsc::Receiver<Vec<u8>>>,
    /// One task at a time receives from `wakes`, and forwards each wake to all waiting tasks through this.
    woken: Notify,
}

impl SortedSetSchedule {
    /// Opens the schedule in the sorted set with this key. The set need not exist yet.
    ///
    /// # Errors
    /// The errors of [`SortedSetScheduleBuilder::open`].
    pub async fn open(url: impl Into<String>, key: impl Into<String>) -> Result<SortedSetSchedule> {
        SortedSetSchedule::builder(url, key).open().await
    }

    /// Returns a builder with further options.
    pub fn builder(url: impl Into<String>, key: impl Into<String>) -> SortedSetScheduleBuilder {
        SortedSetScheduleBuilder {
            url: url.into(),
            key: key.into(),
            score_unit: None,
            max_attempts: DEFAULT_SCHEDULE_MAX_ATTEMPTS,
        }
    }

    /// Returns the unit of the scores.
    #[must_use]
    pub fn score_unit(&self) -> ScoreUnit {
        self.score_unit
    }

    /// Schedules an id for a time by the server's clock. An id that already waits gets the new time.
    ///
    /// A leased id keeps its lease, and this becomes its next occurrence. A dead id is revived.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the id is empty or too long; [`Error::Store`] or [`Error::Unknown`] if the server cannot be
    /// reached. It is safe to repeat.
    pub async fn enqueue(&self, id: impl AsRef<[u8]>, due: Due) -> Result<EnqueueResult> {
        let due = match due {
            Due::Now => "+0".to_owned(),
            Due::After(delay) => format!("+{}", span_micros(delay)),
            Due::At(time) => to_micros(time).to_string(),
        };
        let id = check_id(id.as_ref())?;
        let mut cmd = self.schedule_command(&script::SCHEDULE_ENQUEUE);
        cmd.arg(id).arg(due);
        match self.run_idempotent("enqueue", &script::SCHEDULE_ENQUEUE, &cmd).await?.int()? {
            2 => Ok(EnqueueResult::AfterCurrent),
            _ => Ok(EnqueueResult::Scheduled),
        }
    }

    /// Removes an id and its next occurrence. Returns whether the id existed.
    ///
    /// A worker that holds the id gets [`DoneResult::NotHeld`] when it is done.
    ///
    /// # Errors
    /// The errors of [`SortedSetSchedule::enqueue`].
    pub async fn remove(&self, id: impl AsRef<[u8]>) -> Result<bool> {
        let mut cmd = self.schedule_command(&script::SCHEDULE_REMOVE);
        cmd.arg(check_id(id.as_ref())?);
        Ok(self.run_idempotent("remove", &script::SCHEDULE_REMOVE, &cmd).await?.int()? == 1)
    }

    /// Leases the id that has been due longest, if any is due. No other caller gets it before the lease expires.
    ///
    /// # Errors
    /// The errors of [`SortedSetSchedule::get_expired_batch`].
    pub async fn get_expired(&self, lease: Duration) -> Result<Option<LeasedId>> {
        Ok(self.get_expired_batch(lease, 1).await?.pop())
    }

    /// Leases up to `max` due ids, at most [`SCHEDULE_BATCH_MAX`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lease is zero; [`Error::Store`] if the server cannot be reached. After
    /// [`Error::Unknown`], ids may be leased: they return when the lease expires.
    pub async fn get_expired_batch(&self, lease: Duration, max: usize) -> Result<Vec<LeasedId>> {
        Ok(self.take_due(lease, max).await?.0)
    }

    /// Waits until an id is due, and leases it. Wakes up early if an id with an earlier time is enqueued.
    /// A member that another program added without a wake is found within a second.
    ///
    /// Retryable errors are logged and retried.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lease is zero.
    pub async fn next_expired(&self, lease: Duration) -> Result<LeasedId> {
        let mut backoff = BACKOFF_MIN;
        loop {
            let subscribed = self.store.ensure_foreign_subscribed(&self.keys.channel).await;
            match self.take_due(lease, 1).await {
                Ok((mut ids, wait)) => {
                    if let Some(id) = ids.pop() {
                        return Ok(id);
                    }
                    backoff = BACKOFF_MIN;
                    self.sleep_or_wake(wait.min(POLL_INTERVAL)).await;
                }
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, subscribed = subscribed.is_ok(), "cannot read the schedule; retrying");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(POLL_INTERVAL);
                }
            }
        }
    }

    /// Extends the lease to `lease` from now. Returns whether the caller still held the id.
    ///
    /// # Errors
    /// [`Error::Store`] or [`Error::Unknown`] if the server cannot be reached.
    pub async fn extend(&self, id: &LeasedId, lease: Duration) -> Result<bool> {
        Ok(self.settle("extend", id, lease).await? == 1)
    }

    /// Gives an id back, due again after a delay. Counts as an attempt. Returns whether the caller still held the id.
    ///
    /// # Errors
    /// The errors of [`SortedSetSchedule::extend`].
    pub async fn retry(&self, id: &LeasedId, after: Duration) -> Result<bool> {
        Ok(self.settle("retry", id, after).await? == 1)
    }

    /// Reports an id as done.
    ///
    /// # Errors
    /// The errors of [`SortedSetSchedule::extend`].
    pub async fn done(&self, id: &LeasedId) -> Result<DoneResult> {
        Ok(match self.settle("done", id, Duration::ZERO).await? {
            1 => DoneResult::Removed,
            2 => DoneResult::Rescheduled,
            _ => DoneResult::NotHeld,
        })
    }

    /// Returns ids that used up their attempts, about a thousand at most. [`SortedSetSchedule::enqueue`] revives an id,
    /// [`SortedSetSchedule::remove`] deletes it.
    ///
    /// # Errors
    /// The errors of [`SortedSetSchedule::extend`].
    pub async fn dead(&self) -> Result<Vec<DeadId>> {
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(&self.keys.dead).arg(0).arg("COUNT").arg(DEAD_IDS_MAX);
        let reply = self.store.send_idempotent("dead", ConnectionRole::Client, self.keys.slot, &cmd).await?;
        let (_, pairs): (String, Vec<Vec<u8>>) = redis::from_redis_value(reply).unwrap_or_default();
        let read = |pair: &[Vec<u8>]| {
            let text = String::from_utf8_lossy(&pair[1]);
            let (at, attempts) = text.split_once(' ')?;
            let attempts = attempts.parse().unwrap_or(0);
            Some(DeadId { id: pair[0].clone(), at: from_micros(at.parse().ok()?), attempts })
        };
        Ok(pairs.chunks_exact(2).filter_map(read).collect())
    }

    /// Leases up to `max` due ids. Also returns the time until the next id is due.
    async fn take_due(&self, lease: Duration, max: usize) -> Result<(Vec<LeasedId>, Duration)> {
        if lease.is_zero() {
            return Err(Error::invalid("lease", "must be greater than zero"));
        }
        let mut cmd = self.schedule_command(&script::SCHEDULE_TAKE_DUE);
        cmd.arg(max.clamp(1, SCHEDULE_BATCH_MAX)).arg(span_micros(lease)).arg(self.max_attempts);
        let script: &Script = &script::SCHEDULE_TAKE_DUE;
        let mut reply =
            self.store.run_script("get_expired", ConnectionRole::Client, self.keys.slot, script, &cmd).await?;
        let (ids, fences, due_times, attempts) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
        let next = reply.optional_int()?;
        let read = |bytes: Option<Vec<u8>>| parse_number(&bytes.unwrap_or_default());
        let leased =
            ids.into_iter().zip(fences).zip(due_times).zip(attempts).map(|(((id, fence), due), attempt)| LeasedId {
                id: id.unwrap_or_default(),
                fence: Fence(read(fence).unsigned_abs()),
                due: from_micros(read(due)),
                attempt: u32::try_from(read(attempt)).unwrap_or(0),
            });
        let wait =
            next.map_or(POLL_INTERVAL, |next| Duration::from_micros(u64::try_from(next - reply.now).unwrap_or(0)));
        Ok((leased.collect(), wait))
    }

    /// Sleeps for this time, or until a wake arrives.
    async fn sleep_or_wake(&self, time: Duration) {
        let receive_wake = async {
            let mut wakes = self.wakes.lock().await;
            if wakes.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
            while wakes.try_recv().is_ok() {}
            self.woken.notify_waiters();
        };
        tokio::select! {
            () = self.woken.notified() => {}
            () = receive_wake => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    async fn settle(&self, op: &'static str, leased: &LeasedId, time: Duration) -> Result<i64> {
        let mut cmd = self.schedule_command(&script::SCHEDULE_SETTLE);
        cmd.arg(&leased.id)
            .arg(format!("{:016}", leased.fence.0))
            .arg(op)
            .arg(span_micros(time).max(micros(Duration::ZERO)));
        let script: &Script = &script::SCHEDULE_SETTLE;
        self.store.run_script(op, ConnectionRole::Client, self.keys.slot, script, &cmd).await?.int()
    }

    async fn run_idempotent(&self, op: &'static str, script: &Script, cmd: &Cmd) -> Result<ScriptReply> {
        self.store.run_script_idempotent(op, ConnectionRole::Client, self.keys.slot, script, cmd).await
    }

    /// Returns a call of a script with the common arguments; the caller appends the others.
    fn schedule_command(&self, script: &Script) -> Cmd {
        let mut cmd = script.call(&self.keys);
        cmd.arg(self.store.manual_now()).arg(self.score_unit.as_micros()).arg(&self.keys.channel);
        cmd
    }
}

fn check_id(id: &[u8]) -> Result<&[u8]> {
    match id.len() {
        1..=ID_BYTES_MAX => Ok(id),
        length => Err(Error::invalid("id", format!("{length} bytes long; must be 1 to {ID_BYTES_MAX}"))),
    }
}
