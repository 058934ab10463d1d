//! Who the masters are: asked of a Cluster or of Sentinels when somebody misses one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{RedisError, Value};

use crate::clock;
use crate::error::Error;
use crate::store::redis::conn::connection::{ReplyLost, ServerConnection};
use crate::store::redis::conn::slots::SlotMap;
use crate::store::redis::conn::{ConnectionKey, ConnectionRole, Servers, ServersState, errors};
use crate::store::redis::url::{ServerAddress, Topology};

/// How long one Sentinel is waited for: the others know as much.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(1);

/// How long those are waited for that were off the last time, once most Sentinels have answered.
const LATE_SENTINEL_TIMEOUT: Duration = Duration::from_millis(200);

/// How long the servers of a Cluster are waited for, connections included.
const SLOTS_TIMEOUT: Duration = Duration::from_millis(2_500);
/// After how long another one is asked as well: it knows as much.
const NEXT_SERVER_DELAY: Duration = Duration::from_millis(250);
/// After how long without an answer the others of a Cluster are asked whether a master still is one.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(2);
/// How many answers are compared where none names a master for every slot, or all name one that is in trouble.
const SLOT_MAPS_MAX: usize = 5;

/// Why one who was asked did not say who the masters are.
#[derive(Clone, Debug)]
pub(crate) struct DiscoveryError {
    address: ServerAddress,
    is_sentinel: bool,
    error: RedisError,
}

/// Nobody says who has a slot.
pub(crate) struct MasterUnknown {
    /// Who should have said what.
    message: String,
    cause: Option<DiscoveryError>,
}

impl MasterUnknown {
    /// Whether they would say the same the next time.
    pub(crate) fn is_permanent(&self) -> bool {
        self.cause.as_ref().is_some_and(|trouble| errors::is_permanent(&trouble.error))
    }

    pub(crate) fn into_error(self, op: &'static str) -> Error {
        let words = self.message;
        let Some(DiscoveryError { address: with, is_sentinel, error }) = self.cause else {
            return Error::store(op, words);
        };
        let own_password = is_sentinel && matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
        match errors::unreachable_error(op, &with, error) {
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

impl Servers {
    /// Finds out who the masters are, unless somebody else has since `lessons`; what is missed is the one of this slot.
    ///
    /// At home: whoever misses one may not be polled for long, or be held up by a rude handler, and beats must not wait for that.
    pub(crate) async fn discover_masters(&self, missed: u16, lessons: u64) {
        let Some(link) = self.weak_self.upgrade().filter(|_| self.url.topology != Topology::Standalone) else {
            return;
        };
        // It ends early only with the store itself.
        let _ = self.runtime.spawn(async move { link.discover_masters_on_runtime(missed, lessons).await }).await;
    }

    async fn discover_masters_on_runtime(&self, missed: u16, lessons: u64) {
        let _one_at_a_time = self.discovery_lock.lock().await;
        if self.state().discovery_count != lessons {
            return;
        }
        match &self.url.topology {
            Topology::Cluster => self.discover_slots(missed).await,
            Topology::Sentinel(name) => self.discover_sentinel_master(name).await,
            Topology::Standalone => {}
        }
        self.state().discovery_count += 1;
    }

    /// Asks who has which slot, one after the other, the next as soon as one is slow: a network that swallows everything
    /// must not cost whoever waits more than one of them may.
    async fn discover_slots(&self, missed: u16) {
        let hosts = self.query_order(missed);
        let first = hosts.first().cloned();
        let mut hosts = hosts.into_iter();
        self.state().discovery_error = None;
        let (mut best, mut answers): (Option<SlotMap>, usize) = (None, 0);
        let until = clock::monotonic_now() + SLOTS_TIMEOUT;
        let mut asked = FuturesUnordered::new();
        asked.extend(hosts.next().map(|host| self.query_slots(host)));
        while answers < SLOT_MAPS_MAX && !asked.is_empty() {
            tokio::select! {
                Some((host, said)) = asked.next() => {
                    match said {
                        Ok(slots) => {
                            answers += 1;
                            let worth = |slots: &SlotMap| (self.names_healthy_master(slots, missed), slots.rank_for(missed));
                            best = best.into_iter().chain([slots]).max_by_key(worth);
                            if best.as_ref().is_some_and(|best| best.is_complete() && self.names_healthy_master(best, missed)) {
                                break;
                            }
                        }
                        Err(error) => self.note_discovery_error(DiscoveryError { address: host, is_sentinel: false, error }),
                    }
                    asked.extend(hosts.next().map(|host| self.query_slots(host)));
                }
                () = tokio::time::sleep(NEXT_SERVER_DELAY), if hosts.len() > 0 => {
                    asked.extend(hosts.next().map(|host| self.query_slots(host)));
                }
                () = tokio::time::sleep_until(until) => {
                    if let Some(address) = first {
                        let error = std::io::Error::from(std::io::ErrorKind::TimedOut).into();
                        self.note_discovery_error(DiscoveryError { address, is_sentinel: false, error });
                    }
                    break;
                }
            }
        }
        let mut known = self.state();
        if let Some(slots) = best.filter(|slots| slots.is_better_than(missed, &known.slots)) {
            known.retire_former_masters(&slots.masters());
            (known.slots, known.discovery_error) = (slots, None);
        }
    }

    fn query_order(&self, missed: u16) -> Vec<ServerAddress> {
        let known = self.state();
        known.slots.query_order(missed, &self.url.hosts, |host| known.is_failing(host))
    }

    /// Whether a map names a master for this slot that is not known to be in trouble. One that does not may be old: a server
    /// that is cut off from the others still names who was it before.
    fn names_healthy_master(&self, slots: &SlotMap, missed: u16) -> bool {
        slots.master_of(missed).is_some_and(|master| !self.state().is_failing(master))
    }

    /// What one server says of who has which slot.
    async fn query_slots(&self, host: ServerAddress) -> (ServerAddress, Result<SlotMap, RedisError>) {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let answer =
            self.connection(ConnectionRole::Client, &host).send_untracked(&cmd).await.map_err(ReplyLost::into_error);
        let slots = answer
            .and_then(|answer| SlotMap::parse(answer, &host).ok_or_else(|| other_error("an answer without slots")));
        (host, slots)
    }

    /// Notes why somebody did not say. What would be the same the next time tells more than what may pass.
    fn note_discovery_error(&self, trouble: DiscoveryError) {
        let mut known = self.state();
        if !known.discovery_error.as_ref().is_some_and(|before| errors::is_permanent(&before.error)) {
            known.discovery_error = Some(trouble);
        }
    }

    async fn discover_sentinel_master(&self, name: &str) {
        self.state().discovery_error = None;
        let Some(named) = self.query_sentinels(name).await else {
            return;
        };
        // The server itself must agree; and making the connection may have taken long enough for another to be named.
        match check_is_master(&self.connection(ConnectionRole::Client, &named)).await {
            Err(error) => self.note_discovery_error(DiscoveryError { address: named, is_sentinel: false, error }),
            Ok(()) if self.query_sentinels(name).await.as_ref() == Some(&named) => self.state().master = Some(named),
            Ok(()) => {}
        }
    }

    /// The master as the Sentinel says that knows of the latest failover: the others learn of it a little later.
    async fn query_sentinels(&self, name: &str) -> Option<ServerAddress> {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("MASTER").arg(name);
        let asks = self.sentinels.iter().enumerate().map(async |(at, sentinel)| {
            let answer = tokio::time::timeout(SENTINEL_TIMEOUT, sentinel.send(&cmd)).await;
            let late = || std::io::Error::from(std::io::ErrorKind::TimedOut).into();
            let answer = answer.map_or_else(|_| Err(late()), |answer| answer.map_err(ReplyLost::into_error));
            (
                at,
                answer.map_err(|error| DiscoveryError {
                    address: sentinel.address().clone(),
                    is_sentinel: true,
                    error,
                }),
            )
        });
        let mut asks: FuturesUnordered<_> = asks.collect();
        let (mut latest, mut answers): (Option<(u64, ServerAddress)>, usize) = (None, 0);
        let mut troubles = Vec::new();
        let mut unheard: Vec<usize> = (0..self.sentinels.len()).collect();
        loop {
            // Once most have answered, one whose machine is off is hardly waited for: it would be each time.
            let most = answers > self.sentinels.len() / 2;
            let off = |at: &usize| {
                self.sentinels[*at].has_connect_failures() || self.sentinels[*at].is_unresponsive(SENTINEL_TIMEOUT)
            };
            let enough = most && unheard.iter().all(off);
            let answer = tokio::select! {
                answer = asks.next() => answer,
                () = tokio::time::sleep(LATE_SENTINEL_TIMEOUT), if enough => None,
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
                latest = Some((epoch, ServerAddress { host: field("ip").to_owned(), port }));
            }
        }
        if latest.is_none() {
            troubles.into_iter().for_each(|trouble| self.note_discovery_error(trouble));
        }
        latest.map(|(_, address)| address)
    }

    pub(crate) fn master_unknown(&self) -> MasterUnknown {
        let trouble = self.state().discovery_error.clone();
        let words = match &self.url.topology {
            Topology::Sentinel(name) if trouble.as_ref().is_some_and(|trouble| !trouble.is_sentinel) => {
                format!("the master that Sentinels name for {name:?} cannot be used")
            }
            Topology::Sentinel(name) => {
                format!("no Sentinel of {} names a master for {name:?}", self.url.display_url())
            }
            Topology::Standalone | Topology::Cluster => {
                format!("no server of {} says who has this slot", self.url.display_url())
            }
        };
        MasterUnknown { message: words, cause: trouble }
    }

    /// Under Sentinel a master that was lost from sight is asked nothing more until the Sentinels name it again:
    /// it may come back as it was, still thinking itself the master, when another one has long taken its place.
    pub(crate) fn suspect_master(&self, lane: &ServerConnection) {
        if matches!(self.url.topology, Topology::Sentinel(_)) {
            let mut known = self.state();
            known.retire_server(lane.address());
            known.master = known.master.take().filter(|master| master != lane.address());
        }
    }

    /// The same of one to which no connection could be made, for this reason.
    ///
    /// A server that has no room for one more is still what it was to those that are there; and one that was left before may be
    /// the master again, for those who came after.
    pub(crate) fn suspect_unreached(&self, lane: &ServerConnection, error: &RedisError) {
        if !errors::is_out_of_connections(error) && !lane.is_retired() {
            self.suspect_master(lane);
        }
    }

    /// Whether there is still anybody who is not what he was, although nobody says so.
    pub(in crate::store::redis) async fn check_masters(&self) {
        match &self.url.topology {
            Topology::Standalone => {}
            Topology::Cluster => self.check_unresponsive_masters().await,
            Topology::Sentinel(name) => self.check_sentinel_master(name).await,
        }
    }

    /// A master of a Cluster that stands still, or is cut off, keeps its connections and says nothing: by the time a request
    /// is given up another may long have taken its place. Whoever does not wait so long, as a beat, would never know.
    async fn check_unresponsive_masters(&self) {
        let (missed, lessons) = {
            let known = self.state();
            // Some are to be silent until something comes.
            let silent = |((way, to, _), lane): (&ConnectionKey, &Arc<ServerConnection>)| {
                let asked = !matches!(way, ConnectionRole::BlockingRead(_)) && lane.is_unresponsive(UNRESPONSIVE_AFTER);
                asked.then(|| known.slots.any_slot_of(to)).flatten()
            };
            (known.connections.iter().find_map(silent), known.discovery_count)
        };
        if let Some(missed) = missed {
            self.discover_masters(missed, lessons).await;
        }
    }

    /// Asks the Sentinels again; a master that was replaced is left at once, also one that still answers.
    async fn check_sentinel_master(&self, name: &str) {
        let before = self.state().master.clone();
        let named = self.query_sentinels(name).await;
        if named.is_none() || named == before {
            return;
        }
        let _one_at_a_time = self.discovery_lock.lock().await;
        self.discover_sentinel_master(name).await;
        let mut known = self.state();
        if known.master != before {
            known.discovery_count += 1;
            if let Some(before) = before {
                known.retire_server(&before);
            }
        }
    }
}

impl ServersState {
    /// Whether this server cannot be reached, or does not answer.
    fn is_failing(&self, host: &ServerAddress) -> bool {
        let there = self
            .connections
            .iter()
            .filter(|((way, to, _), _)| to == host && !matches!(way, ConnectionRole::BlockingRead(_)));
        let lanes: Vec<&Arc<ServerConnection>> = there.map(|(_, lane)| lane).collect();
        // One that nobody has used since an outage still tells of that; one that is connected knows better.
        let connected = lanes.iter().any(|lane| lane.generation() != 0);
        lanes.iter().any(|lane| lane.is_unresponsive(UNRESPONSIVE_AFTER))
            || (!connected && lanes.iter().any(|lane| lane.has_connect_failures()))
    }

    /// One that was a master may be there still, and silent; or answer again, as a replica, and repeat what others say.
    /// Whoever listens there must notice that nobody speaks to him.
    fn retire_former_masters(&mut self, masters: &[ServerAddress]) {
        let others = |(_, to, _): &ConnectionKey, lane: &mut Arc<ServerConnection>| {
            !masters.contains(to) && lane.generation() != 0
        };
        self.connections.extract_if(others).for_each(|(_, lane)| lane.retire());
        self.replica_wait_pools.retain(|master, _| master.as_ref().is_none_or(|master| masters.contains(master)));
    }
}

async fn check_is_master(lane: &Arc<ServerConnection>) -> Result<(), RedisError> {
    match lane.send(&redis::cmd("ROLE")).await.map_err(ReplyLost::into_error)? {
        Value::Array(role) if matches!(role.first(), Some(Value::BulkString(name)) if name == b"master") => Ok(()),
        _ => Err(other_error("it does not say itself that it is the master")),
    }
}

fn other_error(why: &'static str) -> RedisError {
    std::io::Error::other(why).into()
}
