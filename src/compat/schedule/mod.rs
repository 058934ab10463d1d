//! A schedule in one sorted set: ids by the moment at which they are due, as many have it on Redis with a few lines of their
//! own. This is the safe way to work such a set, beside those few lines or in their place.
//!
//! What the set alone cannot say is in keys of duly's beside it: who has an id under which fence, until when, how often it was
//! taken, and its next occurrence if one was asked for while it runs. Whoever knows only the set still sees what it expects:
//! a score in the future for an id that is taken, and no member for one that is done.

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

/// Most ids taken in one step.
pub const SCHEDULE_BATCH_MAX: usize = 1_000;
/// How often an id is taken before it is given up, unless the schedule says otherwise.
pub const SCHEDULE_MAX_ATTEMPTS: u32 = 25;
/// How long to wait at most until the next look: others may put something into the set and tell nobody.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The first wait after the store has failed; doubles up to the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Scores beyond this are milliseconds: as seconds they would be in the year 5138, as milliseconds this is in 1973.
const MILLIS_SCORE_MIN: f64 = 1e11;
/// Longest id, in bytes.
const ID_BYTES_MAX: usize = 64 * 1024;
/// Most ids that were given up on one page.
const DEAD_IDS_MAX: usize = 1_000;

/// What the scores of a set count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// An id in somebody's hands, until its lease ends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasedId {
    /// The member of the set.
    pub id: Vec<u8>,
    /// Grows with every id that is taken: a late worker is told from the present one by it.
    pub fence: Fence,
    /// The moment at which it was due at first.
    pub due: SystemTime,
    /// How often it was taken, this time included.
    pub attempt: u32,
}

impl LeasedId {
    /// The id as text.
    #[must_use]
    pub fn id_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.id)
    }
}

/// What became of an id that was put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueResult {
    /// It waits for its moment.
    Scheduled,
    /// It runs just now: this is its next occurrence, and waits until the present one is done.
    AfterCurrent,
}

/// What became of an id that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoneResult {
    /// It is gone.
    Removed,
    /// It is there again: it was put there once more while it ran.
    Rescheduled,
    /// It was not held any more: its lease was over and another has it, or it was removed. Nothing was changed.
    NotHeld,
}

/// An id that was taken too often and never done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadId {
    /// The member that was in the set.
    pub id: Vec<u8>,
    /// When it was given up.
    pub at: SystemTime,
    /// How often it was taken.
    pub attempts: u32,
}

/// How a schedule is opened.
#[must_use = "call `open`"]
#[derive(Clone, Debug)]
pub struct SortedSetScheduleBuilder {
    url: String,
    key: String,
    score_unit: Option<ScoreUnit>,
    max_attempts: u32,
}

impl SortedSetScheduleBuilder {
    /// What its scores count. By itself a schedule looks at the set, and takes seconds if it is empty.
    pub fn score_unit(mut self, scores: ScoreUnit) -> Self {
        self.score_unit = Some(scores);
        self
    }

    /// How often an id is taken before it is given up (default 25).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Opens it.
    pub async fn open(self) -> Result<SortedSetSchedule> {
        let (target, options) = parse_url(&self.url, StoreOptions::default())?;
        let StoreAddress::Redis(place) = target else {
            return Err(Error::invalid("store", "a schedule is a sorted set on a server: give redis://HOST"));
        };
        reject_replicas(&options, "a schedule")?;
        // One set may belong to users who look after their server themselves.
        let options = StoreOptions { allow_data_loss: true, ..options };
        let keys = ScheduleKeys::new(&options.prefix, &self.key)?;
        let store = Box::pin(Redis::open(place, &options)).await?;
        let wakes = store.subscribe_foreign(&keys.channel);
        let scores = agree_on_score_unit(&store, &keys, self.score_unit).await?;
        Ok(SortedSetSchedule {
            store,
            keys,
            score_unit: scores,
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
    "ends" => &keys.lease_ends,
    "next" => &keys.next_occurrences,
    "tries" => &keys.attempts,
    "dead" => &keys.dead,
    "conf" => &keys.conf,
}

impl ScheduleKeys {
    fn new(prefix: &str, set: &str) -> Result<Self> {
        let tag = hash_tag(set);
        if set.is_empty() || tag.contains(['{', '}']) {
            return Err(Error::invalid("key", format!("{set:?}: a key has no braces but those around its hash tag")));
        }
        // All of them where the set is, also on a Cluster.
        let key = |what: &str| format!("{prefix}:schedule:{{{tag}}}:{set}:{what}");
        Ok(ScheduleKeys {
            slot: slot_of_key(set),
            set: set.to_owned(),
            leases: key("leases"),
            lease_ends: key("ends"),
            next_occurrences: key("next"),
            attempts: key("tries"),
            dead: key("dead"),
            conf: key("conf"),
            channel: key("wake"),
        })
    }
}

/// What scores count, for all who open this schedule: what was found or said first.
async fn agree_on_score_unit(store: &Redis, keys: &ScheduleKeys, said: Option<ScoreUnit>) -> Result<ScoreUnit> {
    let found = match said {
        Some(said) => said,
        None => detect_score_unit(store, keys).await?,
    };
    let mut set = redis::cmd("HSETNX");
    set.arg(&keys.conf).arg("scores").arg(found.as_str());
    store.send_idempotent("open", ConnectionRole::Client, keys.slot, &set).await?;
    let mut get = redis::cmd("HGET");
    get.arg(&keys.conf).arg("scores");
    let is: String =
        redis::from_redis_value(store.send_idempotent("open", ConnectionRole::Client, keys.slot, &get).await?)
            .unwrap_or_default();
    let is = if is == ScoreUnit::Millis.as_str() { ScoreUnit::Millis } else { ScoreUnit::Seconds };
    match said {
        Some(said) if said != is => Err(Error::invalid(
            "scores",
            format!("this schedule counts {}; the field `scores` of {} says so", is.as_str(), keys.conf),
        )),
        _ => Ok(is),
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

/// A schedule in one sorted set of a server.
#[derive(Debug)]
pub struct SortedSetSchedule {
    store: Redis,
    keys: ScheduleKeys,
    score_unit: ScoreUnit,
    max_attempts: u32,
    wakes: Mutex<mpsc::Receiver<Vec<u8>>>,
    /// Whoever here hears a wake passes it on to all who wait here.
    woken: Notify,
}

impl SortedSetSchedule {
    /// Opens the schedule in the sorted set under this key, whether it is there already or not.
    pub async fn open(url: impl Into<String>, key: impl Into<String>) -> Result<SortedSetSchedule> {
        SortedSetSchedule::builder(url, key).open().await
    }

    /// The same, with options.
    pub fn builder(url: impl Into<String>, key: impl Into<String>) -> SortedSetScheduleBuilder {
        SortedSetScheduleBuilder {
            url: url.into(),
            key: key.into(),
            score_unit: None,
            max_attempts: SCHEDULE_MAX_ATTEMPTS,
        }
    }

    /// What the scores count.
    #[must_use]
    pub fn score_unit(&self) -> ScoreUnit {
        self.score_unit
    }

    /// Puts an id there for a moment, by the server's clock; one that waits gets this moment instead of the one it had.
    ///
    /// An id that runs is not disturbed: this is its next occurrence then. One that was given up is there again.
    pub async fn enqueue(&self, id: impl AsRef<[u8]>, due: Due) -> Result<EnqueueResult> {
        let due = match due {
            Due::Now => "+0".to_owned(),
            Due::After(delay) => format!("+{}", span_micros(delay)),
            Due::At(moment) => to_micros(moment).to_string(),
        };
        let id = check_id(id.as_ref())?;
        let mut cmd = self.schedule_command(&script::SCHEDULE_PUT);
        cmd.arg(id).arg(due);
        match self.run_idempotent("enqueue", &script::SCHEDULE_PUT, &cmd).await?.int()? {
            2 => Ok(EnqueueResult::AfterCurrent),
            _ => Ok(EnqueueResult::Scheduled),
        }
    }

    /// Takes an id out, and its next occurrence; a worker that has it learns so when it is done. Answers whether it was there.
    pub async fn remove(&self, id: impl AsRef<[u8]>) -> Result<bool> {
        let mut cmd = self.schedule_command(&script::SCHEDULE_REMOVE);
        cmd.arg(check_id(id.as_ref())?);
        Ok(self.run_idempotent("remove", &script::SCHEDULE_REMOVE, &cmd).await?.int()? == 1)
    }

    /// The id that has been due longest, if any is: nobody else gets it before the lease ends.
    pub async fn get_expired(&self, lease: Duration) -> Result<Option<LeasedId>> {
        Ok(self.get_expired_batch(lease, 1).await?.pop())
    }

    /// The same for several, at most [`SCHEDULE_BATCH_MAX`].
    pub async fn get_expired_batch(&self, lease: Duration, most: usize) -> Result<Vec<LeasedId>> {
        Ok(self.take_due(lease, most).await?.0)
    }

    /// Waits until an id is due, and takes it. Sleeps until the next one is due, or until it is told that one is sooner;
    /// what others put into the set without saying so is seen within a second.
    ///
    /// Errors that pass are waited out.
    pub async fn next_expired(&self, lease: Duration) -> Result<LeasedId> {
        let mut backoff = BACKOFF_MIN;
        loop {
            let listening = self.store.ensure_foreign_subscribed().await;
            match self.take_due(lease, 1).await {
                Ok((mut taken, wait)) => {
                    if let Some(taken) = taken.pop() {
                        return Ok(taken);
                    }
                    backoff = BACKOFF_MIN;
                    self.sleep_or_wake(wait.min(POLL_INTERVAL)).await;
                }
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, listening = listening.is_ok(), "the schedule does not answer; asked again");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(POLL_INTERVAL);
                }
            }
        }
    }

    /// Keeps an id for so long from now. Answers whether it was still held.
    pub async fn extend(&self, taken: &LeasedId, lease: Duration) -> Result<bool> {
        Ok(self.settle("extend", taken, lease).await? == 1)
    }

    /// Gives an id back, due again after a while; it counts as an attempt. Answers whether it was still held.
    pub async fn retry(&self, taken: &LeasedId, after: Duration) -> Result<bool> {
        Ok(self.settle("retry", taken, after).await? == 1)
    }

    /// An id is done.
    pub async fn done(&self, taken: &LeasedId) -> Result<DoneResult> {
        Ok(match self.settle("done", taken, Duration::ZERO).await? {
            1 => DoneResult::Removed,
            2 => DoneResult::Rescheduled,
            _ => DoneResult::NotHeld,
        })
    }

    /// Ids that were taken too often and never done, at most a thousand. [`Schedule::enqueue`] puts one back,
    /// [`Schedule::remove`] forgets it.
    pub async fn dead(&self) -> Result<Vec<DeadId>> {
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(&self.keys.dead).arg(0).arg("COUNT").arg(DEAD_IDS_MAX);
        let answer = self.store.send_idempotent("dead", ConnectionRole::Client, self.keys.slot, &cmd).await?;
        let (_, pairs): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer).unwrap_or_default();
        let read = |pair: &[Vec<u8>]| {
            let text = String::from_utf8_lossy(&pair[1]);
            let (at, attempts) = text.split_once(' ')?;
            let attempts = attempts.parse().unwrap_or(0);
            Some(DeadId { id: pair[0].clone(), at: from_micros(at.parse().ok()?), attempts })
        };
        Ok(pairs.chunks_exact(2).filter_map(read).collect())
    }

    /// What is due, and how long until the next one is.
    async fn take_due(&self, lease: Duration, most: usize) -> Result<(Vec<LeasedId>, Duration)> {
        if lease.is_zero() {
            return Err(Error::invalid("lease", "must be longer than nothing"));
        }
        let mut cmd = self.schedule_command(&script::SCHEDULE_TAKE);
        cmd.arg(most.clamp(1, SCHEDULE_BATCH_MAX)).arg(span_micros(lease)).arg(self.max_attempts);
        let script: &Script = &script::SCHEDULE_TAKE;
        let mut reply =
            self.store.run_script("get_expired", ConnectionRole::Client, self.keys.slot, script, &cmd).await?;
        let (ids, fences, firsts, times) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
        let next = reply.optional_int()?;
        let read = |bytes: Option<Vec<u8>>| parse_number(&bytes.unwrap_or_default());
        let taken =
            ids.into_iter().zip(fences).zip(firsts).zip(times).map(|(((id, fence), first), attempt)| LeasedId {
                id: id.unwrap_or_default(),
                fence: Fence(read(fence).unsigned_abs()),
                due: from_micros(read(first)),
                attempt: u32::try_from(read(attempt)).unwrap_or(0),
            });
        let wait =
            next.map_or(POLL_INTERVAL, |next| Duration::from_micros(u64::try_from(next - reply.now).unwrap_or(0)));
        Ok((taken.collect(), wait))
    }

    /// Until it is time, or somebody says that it is.
    async fn sleep_or_wake(&self, time: Duration) {
        let hear = async {
            let mut wakes = self.wakes.lock().await;
            if wakes.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
            while wakes.try_recv().is_ok() {}
            self.woken.notify_waiters();
        };
        tokio::select! {
            () = self.woken.notified() => {}
            () = hear => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    async fn settle(&self, how: &'static str, taken: &LeasedId, time: Duration) -> Result<i64> {
        let mut cmd = self.schedule_command(&script::SCHEDULE_SETTLE);
        cmd.arg(&taken.id)
            .arg(format!("{:016}", taken.fence.0))
            .arg(how)
            .arg(span_micros(time).max(micros(Duration::ZERO)));
        let script: &Script = &script::SCHEDULE_SETTLE;
        self.store.run_script(how, ConnectionRole::Client, self.keys.slot, script, &cmd).await?.int()
    }

    async fn run_idempotent(&self, op: &'static str, script: &Script, cmd: &Cmd) -> Result<ScriptReply> {
        self.store.run_script_idempotent(op, ConnectionRole::Client, self.keys.slot, script, cmd).await
    }

    /// A script of this schedule; its own arguments follow.
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
