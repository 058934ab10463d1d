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
use crate::compat::{no_replicas, script};
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::job::push::Due;
use crate::store::redis::{Redis, Reply, Script, Way, key_set, number, slot_of, span, tag_of};
use crate::store::{Address, Options, parse};

/// Most ids taken in one step.
pub const SCHEDULE_BATCH_MAX: usize = 1_000;
/// How often an id is taken before it is given up, unless the schedule says otherwise.
pub const SCHEDULE_TRIES: u32 = 25;
/// How long to wait at most until the next look: others may put something into the set and tell nobody.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The first wait after the store has failed; doubles up to the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Scores beyond this are milliseconds: as seconds they would be in the year 5138, as milliseconds this is in 1973.
const MILLIS_FROM: f64 = 1e11;
/// Longest id, in bytes.
const ID_BYTES_MAX: usize = 64 * 1024;
/// Most ids that were given up on one page.
const DEAD_PAGE: usize = 1_000;

/// What the scores of a set count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Seconds since 1970, with a fraction.
    Seconds,
    /// Milliseconds since 1970.
    Millis,
}

impl Scores {
    fn micros(self) -> Micros {
        match self {
            Scores::Seconds => 1_000_000,
            Scores::Millis => 1_000,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Scores::Seconds => "seconds",
            Scores::Millis => "millis",
        }
    }
}

/// An id in somebody's hands, until its lease ends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// The member of the set.
    pub id: Vec<u8>,
    /// Grows with every id that is taken: a late worker is told from the present one by it.
    pub token: Fence,
    /// The moment at which it was due at first.
    pub due: SystemTime,
    /// How often it was taken, this time included.
    pub attempt: u32,
}

impl Taken {
    /// The id as text.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.id)
    }
}

/// What became of an id that was put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It waits for its moment.
    Waits,
    /// It runs just now: this is its next occurrence, and waits until the present one is done.
    AfterThis,
}

/// What became of an id that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is gone.
    Gone,
    /// It is there again: it was put there once more while it ran.
    Again,
    /// It was not held any more: its lease was over and another has it, or it was removed. Nothing was changed.
    NotHeld,
}

/// An id that was taken too often and never done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Given {
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
pub struct ScheduleBuilder {
    url: String,
    key: String,
    scores: Option<Scores>,
    tries: u32,
}

impl ScheduleBuilder {
    /// What its scores count. By itself a schedule looks at the set, and takes seconds if it is empty.
    pub fn scores(mut self, scores: Scores) -> Self {
        self.scores = Some(scores);
        self
    }

    /// How often an id is taken before it is given up (default 25).
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.tries = attempts.max(1);
        self
    }

    /// Opens it.
    pub async fn open(self) -> Result<Schedule> {
        let (target, options) = parse(&self.url, Options::default())?;
        let Address::Redis(place) = target else {
            return Err(Error::invalid("store", "a schedule is a sorted set on a server: give redis://HOST"));
        };
        no_replicas(&options, "a schedule")?;
        // One set may belong to users who look after their server themselves.
        let options = Options { allow_data_loss: true, ..options };
        let keys = Keys::new(&options.prefix, &self.key)?;
        let store = Box::pin(Redis::open(place, &options)).await?;
        let wakes = store.listen_to(&keys.channel);
        let scores = agree(&store, &keys, self.scores).await?;
        Ok(Schedule { store, keys, scores, tries: self.tries, wakes: Mutex::new(wakes), woken: Notify::new() })
    }
}

/// The keys of one schedule.
#[derive(Debug)]
pub(super) struct Keys {
    slot: u16,
    set: String,
    leases: String,
    ends: String,
    next: String,
    tries: String,
    dead: String,
    conf: String,
    channel: String,
}

key_set! { Keys, keys:
    "set" => &keys.set,
    "leases" => &keys.leases,
    "ends" => &keys.ends,
    "next" => &keys.next,
    "tries" => &keys.tries,
    "dead" => &keys.dead,
    "conf" => &keys.conf,
}

impl Keys {
    fn new(prefix: &str, set: &str) -> Result<Self> {
        let tag = tag_of(set);
        if set.is_empty() || tag.contains(['{', '}']) {
            return Err(Error::invalid("key", format!("{set:?}: a key has no braces but those around its hash tag")));
        }
        // All of them where the set is, also on a Cluster.
        let key = |what: &str| format!("{prefix}:schedule:{{{tag}}}:{set}:{what}");
        Ok(Keys {
            slot: slot_of(set),
            set: set.to_owned(),
            leases: key("leases"),
            ends: key("ends"),
            next: key("next"),
            tries: key("tries"),
            dead: key("dead"),
            conf: key("conf"),
            channel: key("wake"),
        })
    }
}

/// What scores count, for all who open this schedule: what was found or said first.
async fn agree(store: &Redis, keys: &Keys, said: Option<Scores>) -> Result<Scores> {
    let found = match said {
        Some(said) => said,
        None => detect(store, keys).await?,
    };
    let mut set = redis::cmd("HSETNX");
    set.arg(&keys.conf).arg("scores").arg(found.as_str());
    store.ask("open", Way::Door, keys.slot, &set).await?;
    let mut get = redis::cmd("HGET");
    get.arg(&keys.conf).arg("scores");
    let is: String = redis::from_redis_value(store.ask("open", Way::Door, keys.slot, &get).await?).unwrap_or_default();
    let is = if is == Scores::Millis.as_str() { Scores::Millis } else { Scores::Seconds };
    match said {
        Some(said) if said != is => Err(Error::invalid(
            "scores",
            format!("this schedule counts {}; the field `scores` of {} says so", is.as_str(), keys.conf),
        )),
        _ => Ok(is),
    }
}

async fn detect(store: &Redis, keys: &Keys) -> Result<Scores> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(&keys.set).arg(-1).arg(-1).arg("WITHSCORES");
    let last: Vec<(Vec<u8>, f64)> =
        redis::from_redis_value(store.ask("open", Way::Door, keys.slot, &cmd).await?).unwrap_or_default();
    let millis = last.iter().any(|(_, score)| *score > MILLIS_FROM);
    Ok(if millis { Scores::Millis } else { Scores::Seconds })
}

/// A schedule in one sorted set of a server.
#[derive(Debug)]
pub struct Schedule {
    store: Redis,
    keys: Keys,
    scores: Scores,
    tries: u32,
    wakes: Mutex<mpsc::Receiver<Vec<u8>>>,
    /// Whoever here hears a wake passes it on to all who wait here.
    woken: Notify,
}

impl Schedule {
    /// Opens the schedule in the sorted set under this key, whether it is there already or not.
    pub async fn open(url: impl Into<String>, key: impl Into<String>) -> Result<Schedule> {
        Schedule::builder(url, key).open().await
    }

    /// The same, with options.
    pub fn builder(url: impl Into<String>, key: impl Into<String>) -> ScheduleBuilder {
        ScheduleBuilder { url: url.into(), key: key.into(), scores: None, tries: SCHEDULE_TRIES }
    }

    /// What the scores count.
    #[must_use]
    pub fn scores(&self) -> Scores {
        self.scores
    }

    /// Puts an id there for a moment, by the server's clock; one that waits gets this moment instead of the one it had.
    ///
    /// An id that runs is not disturbed: this is its next occurrence then. One that was given up is there again.
    pub async fn enqueue(&self, id: impl AsRef<[u8]>, due: Due) -> Result<Enqueued> {
        let due = match due {
            Due::Now => "+0".to_owned(),
            Due::After(delay) => format!("+{}", span(delay)),
            Due::At(moment) => to_micros(moment).to_string(),
        };
        let id = checked(id.as_ref())?;
        let mut cmd = self.begin(&script::SCHEDULE_PUT);
        cmd.arg(id).arg(due);
        match self.again("enqueue", &script::SCHEDULE_PUT, &cmd).await?.int()? {
            2 => Ok(Enqueued::AfterThis),
            _ => Ok(Enqueued::Waits),
        }
    }

    /// Takes an id out, and its next occurrence; a worker that has it learns so when it is done. Answers whether it was there.
    pub async fn remove(&self, id: impl AsRef<[u8]>) -> Result<bool> {
        let mut cmd = self.begin(&script::SCHEDULE_REMOVE);
        cmd.arg(checked(id.as_ref())?);
        Ok(self.again("remove", &script::SCHEDULE_REMOVE, &cmd).await?.int()? == 1)
    }

    /// The id that has been due longest, if any is: nobody else gets it before the lease ends.
    pub async fn get_expired(&self, lease: Duration) -> Result<Option<Taken>> {
        Ok(self.get_expired_batch(lease, 1).await?.pop())
    }

    /// The same for several, at most [`SCHEDULE_BATCH_MAX`].
    pub async fn get_expired_batch(&self, lease: Duration, most: usize) -> Result<Vec<Taken>> {
        Ok(self.take(lease, most).await?.0)
    }

    /// Waits until an id is due, and takes it. Sleeps until the next one is due, or until it is told that one is sooner;
    /// what others put into the set without saying so is seen within a second.
    ///
    /// Errors that pass are waited out.
    pub async fn next_expired(&self, lease: Duration) -> Result<Taken> {
        let mut backoff = BACKOFF_MIN;
        loop {
            let listening = self.store.keep_listening().await;
            match self.take(lease, 1).await {
                Ok((mut taken, wait)) => {
                    if let Some(taken) = taken.pop() {
                        return Ok(taken);
                    }
                    backoff = BACKOFF_MIN;
                    self.sleep(wait.min(LOOK_EVERY)).await;
                }
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, listening = listening.is_ok(), "the schedule does not answer; asked again");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(LOOK_EVERY);
                }
            }
        }
    }

    /// Keeps an id for so long from now. Answers whether it was still held.
    pub async fn extend(&self, taken: &Taken, lease: Duration) -> Result<bool> {
        Ok(self.settle("extend", taken, lease).await? == 1)
    }

    /// Gives an id back, due again after a while; it counts as an attempt. Answers whether it was still held.
    pub async fn retry(&self, taken: &Taken, after: Duration) -> Result<bool> {
        Ok(self.settle("retry", taken, after).await? == 1)
    }

    /// An id is done.
    pub async fn done(&self, taken: &Taken) -> Result<Done> {
        Ok(match self.settle("done", taken, Duration::ZERO).await? {
            1 => Done::Gone,
            2 => Done::Again,
            _ => Done::NotHeld,
        })
    }

    /// Ids that were taken too often and never done, at most a thousand. [`Schedule::enqueue`] puts one back,
    /// [`Schedule::remove`] forgets it.
    pub async fn dead(&self) -> Result<Vec<Given>> {
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(&self.keys.dead).arg(0).arg("COUNT").arg(DEAD_PAGE);
        let answer = self.store.ask("dead", Way::Door, self.keys.slot, &cmd).await?;
        let (_, pairs): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer).unwrap_or_default();
        let read = |pair: &[Vec<u8>]| {
            let text = String::from_utf8_lossy(&pair[1]);
            let (at, attempts) = text.split_once(' ')?;
            let attempts = attempts.parse().unwrap_or(0);
            Some(Given { id: pair[0].clone(), at: from_micros(at.parse().ok()?), attempts })
        };
        Ok(pairs.chunks_exact(2).filter_map(read).collect())
    }

    /// What is due, and how long until the next one is.
    async fn take(&self, lease: Duration, most: usize) -> Result<(Vec<Taken>, Duration)> {
        if lease.is_zero() {
            return Err(Error::invalid("lease", "must be longer than nothing"));
        }
        let mut cmd = self.begin(&script::SCHEDULE_TAKE);
        cmd.arg(most.clamp(1, SCHEDULE_BATCH_MAX)).arg(span(lease)).arg(self.tries);
        let script: &Script = &script::SCHEDULE_TAKE;
        let mut reply = self.store.run("get_expired", Way::Door, self.keys.slot, script, &cmd).await?;
        let (ids, fences, firsts, times) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
        let next = reply.maybe_int()?;
        let read = |bytes: Option<Vec<u8>>| number(&bytes.unwrap_or_default());
        let taken = ids.into_iter().zip(fences).zip(firsts).zip(times).map(|(((id, fence), first), attempt)| Taken {
            id: id.unwrap_or_default(),
            token: Fence(read(fence).unsigned_abs()),
            due: from_micros(read(first)),
            attempt: u32::try_from(read(attempt)).unwrap_or(0),
        });
        let wait = next.map_or(LOOK_EVERY, |next| Duration::from_micros(u64::try_from(next - reply.now).unwrap_or(0)));
        Ok((taken.collect(), wait))
    }

    /// Until it is time, or somebody says that it is.
    async fn sleep(&self, time: Duration) {
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

    async fn settle(&self, how: &'static str, taken: &Taken, time: Duration) -> Result<i64> {
        let mut cmd = self.begin(&script::SCHEDULE_SETTLE);
        cmd.arg(&taken.id).arg(format!("{:016}", taken.token.0)).arg(how).arg(span(time).max(micros(Duration::ZERO)));
        let script: &Script = &script::SCHEDULE_SETTLE;
        self.store.run(how, Way::Door, self.keys.slot, script, &cmd).await?.int()
    }

    async fn again(&self, op: &'static str, script: &Script, cmd: &Cmd) -> Result<Reply> {
        self.store.repeat(op, Way::Door, self.keys.slot, script, cmd).await
    }

    /// A script of this schedule; its own arguments follow.
    fn begin(&self, script: &Script) -> Cmd {
        let mut cmd = script.call(&self.keys);
        cmd.arg(self.store.manual_now()).arg(self.scores.micros()).arg(&self.keys.channel);
        cmd
    }
}

fn checked(id: &[u8]) -> Result<&[u8]> {
    match id.len() {
        1..=ID_BYTES_MAX => Ok(id),
        length => Err(Error::invalid("id", format!("{length} bytes long; must be 1 to {ID_BYTES_MAX}"))),
    }
}
