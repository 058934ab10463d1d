//! Finds the masters: asks a Cluster for its slot map, or the Sentinels for their master, when one is missing.

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

/// Timeout for one Sentinel; the others have the same information.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(1);

/// Wait for Sentinels that were unreachable before, once most of the others have replied.
const LATE_SENTINEL_TIMEOUT: Duration = Duration::from_millis(200);

/// Timeout for the servers of a Cluster, including connects.
const SLOTS_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Delay before the next server is asked as well.
const NEXT_SERVER_DELAY: Duration = Duration::from_millis(250);
/// Time without a reply after which the other servers of a Cluster are asked about a master.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(2);
/// Maximum maps to compare if none is complete, or all name a failing master.
const SLOT_MAPS_MAX: usize = 5;

/// Why a server or Sentinel did not name the masters.
#[derive(Clone, Debug)]
pub(crate) struct DiscoveryError {
    address: ServerAddress,
    is_sentinel: bool,
    error: RedisError,
}

/// No server names a master for a slot.
pub(crate) struct MasterUnknown {
    /// Which servers were asked, and for which master.
    message: String,
    cause: Option<DiscoveryError>,
}

impl MasterUnknown {
    /// Returns whether a retry fails with the same error.
    pub(crate) fn is_permanent(&self) -> bool {
        self.cause.as_ref().is_some_and(|cause| errors::is_permanent(&cause.error))
    }

    pub(crate) fn into_error(self, op: &'static str) -> Error {
        let message = self.message;
        let Some(DiscoveryError { address, is_sentinel, error }) = self.cause else {
            return Error::store(op, message);
        };
        let own_password = is_sentinel && matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
        match errors::unreachable_error(op, &address, error) {
            Error::Store { cause, .. } if own_password => {
                let reason = format!(
                    "{message}: {address} requires a password; add the password of the Sentinels to the URL as sentinel_password=..., and their user, if they have one, as sentinel_user=..."
                );
                Error::Store { op, reason, cause }
            }
            Error::Store { reason, cause, .. } => Error::Store { op, reason: format!("{message}: {reason}"), cause },
            other => other,
        }
    }
}

impl Servers {
    /// Discovers the masters for a caller that misses this slot, unless another caller has since `discovery_count`.
    ///
    /// Runs on the store's runtime: the caller may not be polled for a long time, and a handler may block its runtime;
    /// heartbeats must not wait for either.
    pub(crate) async fn discover_masters(&self, missed: u16, discovery_count: u64) {
        let Some(servers) = self.weak_self.upgrade().filter(|_| self.url.topology != Topology::Standalone) else {
            return;
        };
        // Fails only if the store closes.
        let _ =
            self.runtime.spawn(async move { servers.discover_masters_on_runtime(missed, discovery_count).await }).await;
    }

    async fn discover_masters_on_runtime(&self, missed: u16, discovery_count: u64) {
        let _one_at_a_time = self.discovery_lock.lock().await;
        if self.state().discovery_count != discovery_count {
            return;
        }
        match &self.url.topology {
            Topology::Cluster => self.discover_slots(missed).await,
            Topology::Sentinel(name) => self.discover_sentinel_master(name).await,
            Topology::Standalone => {}
        }
        self.state().discovery_count += 1;
    }

    /// Asks the servers for the slot map, one after the other, and the next one as soon as one is slow. If the network
    /// drops all packets, the caller waits at most one timeout.
    async fn discover_slots(&self, missed: u16) {
        let hosts = self.query_order(missed);
        let first = hosts.first().cloned();
        let mut hosts = hosts.into_iter();
        self.state().discovery_error = None;
        let (mut best, mut replies): (Option<SlotMap>, usize) = (None, 0);
        let deadline = clock::monotonic_now() + SLOTS_TIMEOUT;
        let mut queries = FuturesUnordered::new();
        queries.extend(hosts.next().map(|host| self.query_slots(host)));
        while replies < SLOT_MAPS_MAX && !queries.is_empty() {
            tokio::select! {
                Some((host, result)) = queries.next() => {
                    match result {
                        Ok(slots) => {
                            replies += 1;
                            let rank = |slots: &SlotMap| (self.names_healthy_master(slots, missed), slots.rank_for(missed));
                            best = best.into_iter().chain([slots]).max_by_key(rank);
                            if best.as_ref().is_some_and(|best| best.is_complete() && self.names_healthy_master(best, missed)) {
                                break;
                            }
                        }
                        Err(error) => self.note_discovery_error(DiscoveryError { address: host, is_sentinel: false, error }),
                    }
                    queries.extend(hosts.next().map(|host| self.query_slots(host)));
                }
                () = tokio::time::sleep(NEXT_SERVER_DELAY), if hosts.len() > 0 => {
                    queries.extend(hosts.next().map(|host| self.query_slots(host)));
                }
                () = tokio::time::sleep_until(deadline) => {
                    if let Some(address) = first {
                        let error = std::io::Error::from(std::io::ErrorKind::TimedOut).into();
                        self.note_discovery_error(DiscoveryError { address, is_sentinel: false, error });
                    }
                    break;
                }
            }
        }
        let mut state = self.state();
        if let Some(slots) = best.filter(|slots| slots.is_better_than(missed, &state.slots)) {
            state.retire_former_masters(&slots.masters());
            (state.slots, state.discovery_error) = (slots, None);
        }
    }

    fn query_order(&self, missed: u16) -> Vec<ServerAddress> {
        let state = self.state();
        state.slots.query_order(missed, &self.url.hosts, |host| state.is_failing(host))
    }

    /// Returns whether a map names a master for this slot that is not failing. A map that does not may be outdated: a
    /// server that is cut off from the others still names the former master.
    fn names_healthy_master(&self, slots: &SlotMap, missed: u16) -> bool {
        slots.master_of(missed).is_some_and(|master| !self.state().is_failing(master))
    }

    /// Asks one server for the slot map.
    async fn query_slots(&self, host: ServerAddress) -> (ServerAddress, Result<SlotMap, RedisError>) {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        let reply =
            self.connection(ConnectionRole::Client, &host).send_untracked(&cmd).await.map_err(ReplyLost::into_error);
        let slots = reply.and_then(|reply| {
            SlotMap::parse(reply, &host).ok_or_else(|| other_error("the reply to CLUSTER SLOTS has no slots"))
        });
        (host, slots)
    }

    /// Keeps the error of a failed discovery. A permanent error is more helpful than a temporary one.
    fn note_discovery_error(&self, error: DiscoveryError) {
        let mut state = self.state();
        if !state.discovery_error.as_ref().is_some_and(|previous| errors::is_permanent(&previous.error)) {
            state.discovery_error = Some(error);
        }
    }

    async fn discover_sentinel_master(&self, name: &str) {
        self.state().discovery_error = None;
        let Some(named) = self.query_sentinels(name).await else {
            return;
        };
        // The server itself must agree, and the Sentinels must still name it, since the connect may have taken long.
        match check_is_master(&self.connection(ConnectionRole::Client, &named)).await {
            Err(error) => self.note_discovery_error(DiscoveryError { address: named, is_sentinel: false, error }),
            Ok(()) if self.query_sentinels(name).await.as_ref() == Some(&named) => self.state().master = Some(named),
            Ok(()) => {}
        }
    }

    /// Returns the master named by the Sentinel with the latest failover; the other Sentinels learn of it a little
    /// later.
    async fn query_sentinels(&self, name: &str) -> Option<ServerAddress> {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("MASTER").arg(name);
        let queries = self.sentinels.iter().enumerate().map(async |(index, sentinel)| {
            let reply = tokio::time::timeout(SENTINEL_TIMEOUT, sentinel.send(&cmd)).await;
            let timed_out = || std::io::Error::from(std::io::ErrorKind::TimedOut).into();
            let reply = reply.map_or_else(|_| Err(timed_out()), |reply| reply.map_err(ReplyLost::into_error));
            (
                index,
                reply.map_err(|error| DiscoveryError { address: sentinel.address().clone(), is_sentinel: true, error }),
            )
        });
        let mut queries: FuturesUnordered<_> = queries.collect();
        let (mut latest, mut replies): (Option<(u64, ServerAddress)>, usize) = (None, 0);
        let mut errors = Vec::new();
        let mut pending: Vec<usize> = (0..self.sentinels.len()).collect();
        loop {
            // Once most have replied, an unreachable Sentinel delays the discovery only briefly.
            let has_majority = replies > self.sentinels.len() / 2;
            let is_unreachable = |index: &usize| {
                self.sentinels[*index].has_connect_failures()
                    || self.sentinels[*index].is_unresponsive(SENTINEL_TIMEOUT)
            };
            let may_stop = has_majority && pending.iter().all(is_unreachable);
            let reply = tokio::select! {
                reply = queries.next() => reply,
                () = tokio::time::sleep(LATE_SENTINEL_TIMEOUT), if may_stop => None,
            };
            pending.retain(|index| reply.as_ref().is_some_and(|(replied, _)| replied != index));
            let reply = match reply.map(|(_, reply)| reply) {
                Some(Ok(reply)) => reply,
                Some(Err(error)) => {
                    errors.push(error);
                    continue;
                }
                None => break,
            };
            replies += 1;
            let fields: HashMap<String, String> = redis::from_redis_value(reply).unwrap_or_default();
            let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
            let epoch = field("config-epoch").parse().unwrap_or(0);
            if let (Ok(port), false) = (field("port").parse(), field("ip").is_empty())
                && latest.as_ref().is_none_or(|(latest_epoch, _)| epoch > *latest_epoch)
            {
                latest = Some((epoch, ServerAddress { host: field("ip").to_owned(), port }));
            }
        }
        if latest.is_none() {
            errors.into_iter().for_each(|error| self.note_discovery_error(error));
        }
        latest.map(|(_, address)| address)
    }

    pub(crate) fn master_unknown(&self) -> MasterUnknown {
        let error = self.state().discovery_error.clone();
        let message = match &self.url.topology {
            Topology::Sentinel(name) if error.as_ref().is_some_and(|error| !error.is_sentinel) => {
                format!("the Sentinels name a master for {name:?}, but it cannot be used")
            }
            Topology::Sentinel(name) => {
                format!("no Sentinel of {} names a master for {name:?}", self.url.display_url())
            }
            Topology::Standalone | Topology::Cluster => {
                format!("no server of {} names a master for this slot", self.url.display_url())
            }
        };
        MasterUnknown { message, cause: error }
    }

    /// Under Sentinel, stops using a master that was lost from sight until the Sentinels name it again. It may come
    /// back and still consider itself the master, long after another one has taken over.
    pub(crate) fn suspect_master(&self, connection: &ServerConnection) {
        if matches!(self.url.topology, Topology::Sentinel(_)) {
            let mut state = self.state();
            state.retire_server(connection.address());
            state.master = state.master.take().filter(|master| master != connection.address());
        }
    }

    /// Like [`Servers::suspect_master`] for a failed connect.
    ///
    /// A server that is out of connections is still the master for the existing ones. A retired connection is no
    /// evidence: its server may have become the master again for newer connections.
    pub(crate) fn suspect_unreached(&self, connection: &ServerConnection, error: &RedisError) {
        if !errors::is_out_of_connections(error) && !connection.is_retired() {
            self.suspect_master(connection);
        }
    }

    /// Checks whether the known masters are still masters, without an error from any of them.
    pub(in crate::store::redis) async fn check_masters(&self) {
        match &self.url.topology {
            Topology::Standalone => {}
            Topology::Cluster => self.check_unresponsive_masters().await,
            Topology::Sentinel(name) => self.check_sentinel_master(name).await,
        }
    }

    /// A Cluster master that hangs or is cut off keeps its connections and sends nothing. Another server may have taken
    /// over long before a request times out, and callers with short timeouts, such as heartbeats, would never notice.
    async fn check_unresponsive_masters(&self) {
        let (missed, discovery_count) = {
            let state = self.state();
            // Blocking reads are silent until data arrives.
            let unresponsive_slot = |((role, address, _), connection): (&ConnectionKey, &Arc<ServerConnection>)| {
                let queries =
                    !matches!(role, ConnectionRole::BlockingRead(_)) && connection.is_unresponsive(UNRESPONSIVE_AFTER);
                queries.then(|| state.slots.any_slot_of(address)).flatten()
            };
            (state.connections.iter().find_map(unresponsive_slot), state.discovery_count)
        };
        if let Some(missed) = missed {
            self.discover_masters(missed, discovery_count).await;
        }
    }

    /// Asks the Sentinels again, and retires a replaced master at once, even if it still replies.
    async fn check_sentinel_master(&self, name: &str) {
        let previous = self.state().master.clone();
        let named = self.query_sentinels(name).await;
        if named.is_none() || named == previous {
            return;
        }
        let _one_at_a_time = self.discovery_lock.lock().await;
        self.discover_sentinel_master(name).await;
        let mut state = self.state();
        if state.master != previous {
            state.discovery_count += 1;
            if let Some(previous) = previous {
                state.retire_server(&previous);
            }
        }
    }
}

impl ServersState {
    /// Returns whether this server is unreachable or unresponsive.
    fn is_failing(&self, host: &ServerAddress) -> bool {
        let matching = self
            .connections
            .iter()
            .filter(|((role, address, _), _)| address == host && !matches!(role, ConnectionRole::BlockingRead(_)));
        let connections: Vec<&Arc<ServerConnection>> = matching.map(|(_, connection)| connection).collect();
        // A connection unused since an outage still has its failures; an open connection is newer evidence.
        let connected = connections.iter().any(|connection| connection.generation() != 0);
        connections.iter().any(|connection| connection.is_unresponsive(UNRESPONSIVE_AFTER))
            || (!connected && connections.iter().any(|connection| connection.has_connect_failures()))
    }

    /// Retires the connections to servers that are no longer masters. Such a server may be silent, or reply as a
    /// replica; a subscription on it would never receive anything.
    fn retire_former_masters(&mut self, masters: &[ServerAddress]) {
        self.retire_connections(|address, connection| !masters.contains(address) && connection.generation() != 0);
        self.replica_wait_pools.retain(|master, _| master.as_ref().is_none_or(|master| masters.contains(master)));
    }
}

async fn check_is_master(connection: &Arc<ServerConnection>) -> Result<(), RedisError> {
    match connection.send(&redis::cmd("ROLE")).await.map_err(ReplyLost::into_error)? {
        Value::Array(role) if matches!(role.first(), Some(Value::BulkString(name)) if name == b"master") => Ok(()),
        _ => Err(other_error("its reply to ROLE is not `master`")),
    }
}

fn other_error(message: &'static str) -> RedisError {
    std::io::Error::other(message).into()
}
