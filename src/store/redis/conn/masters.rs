//! Who the masters are: asked of a Cluster or of Sentinels when somebody misses one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{RedisError, Value};

use crate::clock;
use crate::error::Error;
use crate::store::redis::conn::connection::{Lane, NoAnswer};
use crate::store::redis::conn::slots::SlotMap;
use crate::store::redis::conn::{Known, LaneKey, Link, Way, errors};
use crate::store::redis::url::{Address, Shape};

/// How long one Sentinel is waited for: the others know as much.
const SENTINEL_ANSWER: Duration = Duration::from_secs(1);

/// How long those are waited for that were off the last time, once most Sentinels have answered.
const LAST_SENTINELS: Duration = Duration::from_millis(200);

/// How long the servers of a Cluster are waited for, connections included.
const SLOTS_ANSWER: Duration = Duration::from_millis(2_500);
/// After how long another one is asked as well: it knows as much.
const SLOW: Duration = Duration::from_millis(250);
/// After how long without an answer the others of a Cluster are asked whether a master still is one.
const SILENT: Duration = Duration::from_secs(2);
/// How many answers are compared where none names a master for every slot, or all name one that is in trouble.
const ANSWERS_MAX: usize = 5;

/// Why one who was asked did not say who the masters are.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    with: Address,
    is_sentinel: bool,
    error: RedisError,
}

/// Nobody says who has a slot.
pub(crate) struct Nobody {
    /// Who should have said what.
    words: String,
    trouble: Option<Trouble>,
}

impl Nobody {
    /// Whether they would say the same the next time.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| errors::is_hopeless(&trouble.error))
    }

    pub(crate) fn error(self, op: &'static str) -> Error {
        let words = self.words;
        let Some(Trouble { with, is_sentinel, error }) = self.trouble else {
            return Error::store(op, words);
        };
        let own_password = is_sentinel && matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
        match errors::unreachable(op, &with, error) {
            Error::Store { source, .. } if own_password => {
                let reason = format!(
                    "{words}: {with} asks for a password; add the Sentinels' own to the URL as sentinel_password=... (and sentinel_user=... if it is of a user)"
                );
                Error::Store { op, reason, source }
            }
            Error::Store { reason, source, .. } => Error::Store { op, reason: format!("{words}: {reason}"), source },
            other => other,
        }
    }
}

impl Link {
    /// Finds out who the masters are, unless somebody else has since `lessons`; what is missed is the one of this slot.
    ///
    /// At home: whoever misses one may not be polled for long, or be held up by a rude handler, and beats must not wait for that.
    pub(crate) async fn learn(&self, missed: u16, lessons: u64) {
        let Some(link) = self.this.upgrade().filter(|_| self.place.shape != Shape::One) else {
            return;
        };
        // It ends early only with the store itself.
        let _ = self.home.spawn(async move { link.learn_at_home(missed, lessons).await }).await;
    }

    async fn learn_at_home(&self, missed: u16, lessons: u64) {
        let _one_at_a_time = self.refreshing.lock().await;
        if self.known().lessons != lessons {
            return;
        }
        match &self.place.shape {
            Shape::Cluster => self.learn_slots(missed).await,
            Shape::Sentinel(name) => self.learn_master(name).await,
            Shape::One => {}
        }
        self.known().lessons += 1;
    }

    /// Asks who has which slot, one after the other, the next as soon as one is slow: a network that swallows everything
    /// must not cost whoever waits more than one of them may.
    async fn learn_slots(&self, missed: u16) {
        let hosts = self.whom_to_ask(missed);
        let first = hosts.first().cloned();
        let mut hosts = hosts.into_iter();
        self.known().trouble = None;
        let (mut best, mut answers): (Option<SlotMap>, usize) = (None, 0);
        let until = clock::tick() + SLOTS_ANSWER;
        let mut asked = FuturesUnordered::new();
        asked.extend(hosts.next().map(|host| self.slots_of(host)));
        while answers < ANSWERS_MAX && !asked.is_empty() {
            tokio::select! {
                Some((host, said)) = asked.next() => {
                    match said {
                        Ok(slots) => {
                            answers += 1;
                            let worth = |slots: &SlotMap| (self.names_another(slots, missed), slots.worth(missed));
                            best = best.into_iter().chain([slots]).max_by_key(worth);
                            if best.as_ref().is_some_and(|best| best.is_whole() && self.names_another(best, missed)) {
                                break;
                            }
                        }
                        Err(error) => self.note(Trouble { with: host, is_sentinel: false, error }),
                    }
                    asked.extend(hosts.next().map(|host| self.slots_of(host)));
                }
                () = tokio::time::sleep(SLOW), if hosts.len() > 0 => {
                    asked.extend(hosts.next().map(|host| self.slots_of(host)));
                }
                () = tokio::time::sleep_until(until) => {
                    if let Some(with) = first {
                        let error = std::io::Error::from(std::io::ErrorKind::TimedOut).into();
                        self.note(Trouble { with, is_sentinel: false, error });
                    }
                    break;
                }
            }
        }
        let mut known = self.known();
        if let Some(slots) = best.filter(|slots| slots.is_news(missed, &known.slots)) {
            known.leave_others(&slots.masters());
            (known.slots, known.trouble) = (slots, None);
        }
    }

    fn whom_to_ask(&self, missed: u16) -> Vec<Address> {
        let known = self.known();
        known.slots.whom_to_ask(missed, &self.place.hosts, |host| known.fails(host))
    }

    /// Whether a map names a master for this slot that is not known to be in trouble. One that does not may be old: a server
    /// that is cut off from the others still names who was it before.
    fn names_another(&self, slots: &SlotMap, missed: u16) -> bool {
        slots.master_of(missed).is_some_and(|master| !self.known().fails(master))
    }

    /// What one server says of who has which slot.
    async fn slots_of(&self, host: Address) -> (Address, Result<SlotMap, RedisError>) {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let answer = self.lane(Way::Door, &host).try_to_ask(&cmd).await.map_err(NoAnswer::into_error);
        let slots =
            answer.and_then(|answer| SlotMap::read(answer, &host).ok_or_else(|| other("an answer without slots")));
        (host, slots)
    }

    /// Notes why somebody did not say. What would be the same the next time tells more than what may pass.
    fn note(&self, trouble: Trouble) {
        let mut known = self.known();
        if !known.trouble.as_ref().is_some_and(|before| errors::is_hopeless(&before.error)) {
            known.trouble = Some(trouble);
        }
    }

    async fn learn_master(&self, name: &str) {
        self.known().trouble = None;
        let Some(named) = self.named_master(name).await else {
            return;
        };
        // The server itself must agree; and making the connection may have taken long enough for another to be named.
        match is_master(&self.lane(Way::Door, &named)).await {
            Err(error) => self.note(Trouble { with: named, is_sentinel: false, error }),
            Ok(()) if self.named_master(name).await.as_ref() == Some(&named) => self.known().master = Some(named),
            Ok(()) => {}
        }
    }

    /// The master as the Sentinel says that knows of the latest failover: the others learn of it a little later.
    async fn named_master(&self, name: &str) -> Option<Address> {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("MASTER").arg(name);
        let asks = self.sentinels.iter().enumerate().map(async |(at, sentinel)| {
            let answer = tokio::time::timeout(SENTINEL_ANSWER, sentinel.send(&cmd)).await;
            let late = || std::io::Error::from(std::io::ErrorKind::TimedOut).into();
            let answer = answer.map_or_else(|_| Err(late()), |answer| answer.map_err(NoAnswer::into_error));
            (at, answer.map_err(|error| Trouble { with: sentinel.address().clone(), is_sentinel: true, error }))
        });
        let mut asks: FuturesUnordered<_> = asks.collect();
        let (mut latest, mut answers): (Option<(u64, Address)>, usize) = (None, 0);
        let mut troubles = Vec::new();
        let mut unheard: Vec<usize> = (0..self.sentinels.len()).collect();
        loop {
            // Once most have answered, one whose machine is off is hardly waited for: it would be each time.
            let most = answers > self.sentinels.len() / 2;
            let off = |at: &usize| self.sentinels[*at].fails() || self.sentinels[*at].is_silent(SENTINEL_ANSWER);
            let enough = most && unheard.iter().all(off);
            let answer = tokio::select! {
                answer = asks.next() => answer,
                () = tokio::time::sleep(LAST_SENTINELS), if enough => None,
            };
            unheard.retain(|at| answer.as_ref().is_some_and(|(heard, _)| heard != at));
            let answer = match answer.map(|(_, answer)| answer) {
                Some(Ok(answer)) => answer,
                Some(Err(trouble)) => {
                    troubles.push(trouble);
                    continue;
                }
                None => break,
            };
            answers += 1;
            let fields: HashMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
            let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
            let epoch = field("config-epoch").parse().unwrap_or(0);
            if let (Ok(port), false) = (field("port").parse(), field("ip").is_empty())
                && latest.as_ref().is_none_or(|(known, _)| epoch > *known)
            {
                latest = Some((epoch, Address { host: field("ip").to_owned(), port }));
            }
        }
        if latest.is_none() {
            troubles.into_iter().for_each(|trouble| self.note(trouble));
        }
        latest.map(|(_, address)| address)
    }

    pub(crate) fn nobody(&self) -> Nobody {
        let trouble = self.known().trouble.clone();
        let words = match &self.place.shape {
            Shape::Sentinel(name) if trouble.as_ref().is_some_and(|trouble| !trouble.is_sentinel) => {
                format!("the master that Sentinels name for {name:?} cannot be used")
            }
            Shape::Sentinel(name) => format!("no Sentinel of {} names a master for {name:?}", self.place.shown()),
            Shape::One | Shape::Cluster => format!("no server of {} says who has this slot", self.place.shown()),
        };
        Nobody { words, trouble }
    }

    /// Under Sentinel a master that was lost from sight is asked nothing more until the Sentinels name it again:
    /// it may come back as it was, still thinking itself the master, when another one has long taken its place.
    pub(crate) fn doubt(&self, lane: &Lane) {
        if matches!(self.place.shape, Shape::Sentinel(_)) {
            let mut known = self.known();
            known.leave(lane.address());
            known.master = known.master.take().filter(|master| master != lane.address());
        }
    }

    /// The same of one to which no connection could be made, for this reason.
    ///
    /// A server that has no room for one more is still what it was to those that are there; and one that was left before may be
    /// the master again, for those who came after.
    pub(crate) fn doubt_unreached(&self, lane: &Lane, error: &RedisError) {
        if !errors::is_crowded(error) && !lane.is_retired() {
            self.doubt(lane);
        }
    }

    /// Whether there is still anybody who is not what he was, although nobody says so.
    pub(in crate::store::redis) async fn look_after_masters(&self) {
        match &self.place.shape {
            Shape::One => {}
            Shape::Cluster => self.look_after_silent().await,
            Shape::Sentinel(name) => self.look_after_named(name).await,
        }
    }

    /// A master of a Cluster that stands still, or is cut off, keeps its connections and says nothing: by the time a request
    /// is given up another may long have taken its place. Whoever does not wait so long, as a beat, would never know.
    async fn look_after_silent(&self) {
        let (missed, lessons) = {
            let known = self.known();
            // Some are to be silent until something comes.
            let silent = |((way, to, _), lane): (&LaneKey, &Arc<Lane>)| {
                let asked = !matches!(way, Way::Watch(_)) && lane.is_silent(SILENT);
                asked.then(|| known.slots.slot_of(to)).flatten()
            };
            (known.lanes.iter().find_map(silent), known.lessons)
        };
        if let Some(missed) = missed {
            self.learn(missed, lessons).await;
        }
    }

    /// Asks the Sentinels again; a master that was replaced is left at once, also one that still answers.
    async fn look_after_named(&self, name: &str) {
        let before = self.known().master.clone();
        let named = self.named_master(name).await;
        if named.is_none() || named == before {
            return;
        }
        let _one_at_a_time = self.refreshing.lock().await;
        self.learn_master(name).await;
        let mut known = self.known();
        if known.master != before {
            known.lessons += 1;
            if let Some(before) = before {
                known.leave(&before);
            }
        }
    }
}

impl Known {
    /// Whether this server cannot be reached, or does not answer.
    fn fails(&self, host: &Address) -> bool {
        let there = self.lanes.iter().filter(|((way, to, _), _)| to == host && !matches!(way, Way::Watch(_)));
        let lanes: Vec<&Arc<Lane>> = there.map(|(_, lane)| lane).collect();
        // One that nobody has used since an outage still tells of that; one that is connected knows better.
        let connected = lanes.iter().any(|lane| lane.generation() != 0);
        lanes.iter().any(|lane| lane.is_silent(SILENT)) || (!connected && lanes.iter().any(|lane| lane.fails()))
    }

    /// One that was a master may be there still, and silent; or answer again, as a replica, and repeat what others say.
    /// Whoever listens there must notice that nobody speaks to him.
    fn leave_others(&mut self, masters: &[Address]) {
        let others = |(_, to, _): &LaneKey, lane: &mut Arc<Lane>| !masters.contains(to) && lane.generation() != 0;
        self.lanes.extract_if(others).for_each(|(_, lane)| lane.retire());
        self.confirming.retain(|master, _| master.as_ref().is_none_or(|master| masters.contains(master)));
    }
}

async fn is_master(lane: &Arc<Lane>) -> Result<(), RedisError> {
    match lane.send(&redis::cmd("ROLE")).await.map_err(NoAnswer::into_error)? {
        Value::Array(role) if matches!(role.first(), Some(Value::BulkString(name)) if name == b"master") => Ok(()),
        _ => Err(other("it does not say itself that it is the master")),
    }
}

fn other(why: &'static str) -> RedisError {
    std::io::Error::other(why).into()
}
