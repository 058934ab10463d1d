//! Sends requests to the right Redis server and classifies every failure by whether the request may have run.
//!
//! - [`Servers`] finds the master of a slot (`masters`, `slots`), sends the request and retries it (`request`).
//! - Each server has one connection per [`ConnectionRole`], so no request waits behind requests of another role.
//! - `connection` is one such connection: opened on first use, dropped on failure, reconnected by the next request.
//! - `pending_replies` detects a silent server; `abandoned` has the server close a connection that duly gave up.
//! - `inline_driver` lets the task that waits for a reply read the socket itself if it is the only one that waits.
//!
//! The client crate's own reconnecting connections are not used: after a broken connection they resend a request
//! without reporting it, and a claim would run twice.

mod abandoned;
mod all_masters;
mod connection;
mod connector;
mod errors;
mod inline_driver;
mod masters;
mod pending_replies;
mod replica_wait;
mod request;
mod role;
mod slots;
mod subscribe;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::runtime::Handle;

use crate::clock;
use crate::error::{BoxError, Error, Result};
use crate::store::StoreOptions;
use crate::store::redis::conn::abandoned::ClientId;
pub(super) use crate::store::redis::conn::all_masters::MasterReply;
use crate::store::redis::conn::connection::{ReplyLost, ServerConnection, ServerPushHandler};
use crate::store::redis::conn::connector::Connector;
use crate::store::redis::conn::errors::ErrorClass;
pub(crate) use crate::store::redis::conn::errors::is_forbidden;
use crate::store::redis::conn::masters::{DiscoveryError, MasterUnknown};
use crate::store::redis::conn::replica_wait::ReplicaWaitPool;
pub(super) use crate::store::redis::conn::request::ReplicaConfirmation;
use crate::store::redis::conn::request::{RetryBudget, ServerRequest, Unacknowledged};
pub(crate) use crate::store::redis::conn::role::ConnectionRole;
use crate::store::redis::conn::slots::SlotMap;
pub(super) use crate::store::redis::conn::subscribe::SubscribedConnection;
use crate::store::redis::script::Script;
use crate::store::redis::url::{RedisUrl, ServerAddress, Topology};
use crate::sync::LockExt;

/// Time during which a request that did not run is retried.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a request of a worker, which has retries of its own.
const WORKER_RETRY_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of runtimes in a process that have their own connection to a server.
const RUNTIMES_MAX: usize = 256;
/// Maximum abandoned connections to retired servers that are remembered.
const ABANDONED_MAX: usize = 1_000;

pub(super) struct Servers {
    /// For tasks that outlive the caller.
    weak_self: Weak<Servers>,
    url: RedisUrl,
    connector: Arc<Connector>,
    sentinels: Vec<Arc<ServerConnection>>,
    /// Drives the connections that handlers must not be able to block.
    runtime: Handle,
    push_handler: ServerPushHandler,
    state: Mutex<ServersState>,
    discovery_lock: tokio::sync::Mutex<()>,
}

/// A connection belongs to the runtime that drives it, so a blocked runtime delays only its own requests.
/// Connections driven by the store's runtime have `None`.
type ConnectionKey = (ConnectionRole, ServerAddress, Option<tokio::runtime::Id>);

#[derive(Default)]
struct ServersState {
    connections: HashMap<ConnectionKey, Arc<ServerConnection>>,
    /// Abandoned connections to retired servers: a server may come back, and still execute their requests.
    abandoned: HashMap<ConnectionKey, ClientId>,
    /// Pools of connections that wait for replicas, by master. Slots with an unknown master share `None`.
    replica_wait_pools: HashMap<Option<ServerAddress>, Arc<ReplicaWaitPool>>,
    /// The master reported by the Sentinels.
    master: Option<ServerAddress>,
    slots: SlotMap,
    /// Why the last discovery found no master.
    discovery_error: Option<DiscoveryError>,
    /// Number of discoveries. Callers that miss the same master compare it, so that only one of them asks.
    discovery_count: u64,
}

impl Servers {
    pub(super) fn new(
        url: RedisUrl,
        options: &StoreOptions,
        runtime: Handle,
        push_handler: ServerPushHandler,
    ) -> Result<Arc<Self>> {
        let mut sentinels = Vec::new();
        if matches!(url.topology, Topology::Sentinel(_)) {
            let sentinel_connector = Arc::new(Connector::for_sentinels(&url, options)?);
            let connection = |host: &ServerAddress| {
                Arc::new(ServerConnection::new(host.clone(), sentinel_connector.clone(), Some(runtime.clone()), None))
            };
            sentinels.extend(url.hosts.iter().map(connection));
        }
        let connector = Arc::new(Connector::new(&url, options)?);
        Ok(Arc::new_cyclic(|this| Servers {
            weak_self: this.clone(),
            connector,
            url,
            sentinels,
            runtime,
            push_handler,
            state: Mutex::default(),
            discovery_lock: tokio::sync::Mutex::default(),
        }))
    }

    pub(super) fn url(&self) -> &RedisUrl {
        &self.url
    }

    /// Runs a script on the master of this slot.
    ///
    /// Returns `Error::Store` if the script did not run, `Error::Unknown` if it may have run.
    pub(super) async fn run_script(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<Value> {
        let request =
            ServerRequest { script: Some(script), idempotent: script.only_reads(), ..ServerRequest::single(cmd) };
        self.send_request(op, role, slot, &request).await
    }

    /// Runs a script that is safe to run twice; resends it if the reply is lost.
    pub(super) async fn run_script_idempotent(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.send_request(
            op,
            role,
            slot,
            &ServerRequest { script: Some(script), idempotent: true, ..ServerRequest::single(cmd) },
        )
        .await
    }

    /// Sends a plain command that is safe to run twice; resends it if the reply is lost.
    pub(super) async fn send_idempotent(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.send_request(op, role, slot, &ServerRequest { idempotent: true, ..ServerRequest::single(cmd) }).await
    }

    /// Sends a plain command that must not run twice.
    pub(super) async fn send_once(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.send_request(op, role, slot, &ServerRequest::single(cmd)).await
    }

    /// Runs a script, or several commands as one transaction whose replies come as a list.
    ///
    /// If `confirm` is set, returns only after that many replicas have the write; otherwise the error is `Unknown`.
    /// A transaction cannot follow a slot that is being migrated: it then returns `Nil`, and nothing ran.
    pub(super) async fn send_replicated(
        &self,
        op: &'static str,
        slot: u16,
        script: Option<&Script>,
        cmds: &[Cmd],
        confirmation: Option<ReplicaConfirmation<'_>>,
    ) -> Result<Value> {
        let request = ServerRequest { cmds, script, confirmation, idempotent: false };
        if confirmation.is_none() {
            return self.send_request(op, ConnectionRole::Client, slot, &request).await;
        }
        // One pool per master: slow replicas of one master do not delay requests to another.
        let master = self.master_of(slot);
        let pool = self.state().replica_wait_pool(master);
        let Some(permit) = pool.acquire().await else {
            return Err(Error::store(
                op,
                "too many requests wait for replicas of this server; nothing was sent; check the replicas, and try again",
            ));
        };
        self.send_request(op, ConnectionRole::ReplicaWait(permit.index), slot, &request).await
    }

    /// Like [`Servers::send_replicated`] for a script that is safe to run twice; no handler can block its connection.
    pub(super) async fn extend_replicated(
        &self,
        op: &'static str,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
        confirmation: Option<ReplicaConfirmation<'_>>,
    ) -> Result<Value> {
        let role = if confirmation.is_none() { ConnectionRole::Heartbeat } else { ConnectionRole::LockExtend };
        let request =
            ServerRequest { script: Some(script), confirmation, idempotent: true, ..ServerRequest::single(cmd) };
        self.send_request(op, role, slot, &request).await
    }

    async fn send_request(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        request: &ServerRequest<'_>,
    ) -> Result<Value> {
        let mut lost = false;
        let reply = self.try_send_request(op, role, slot, request, &mut lost).await;
        // An attempt with a lost reply may have run, whatever happened to the other attempts.
        reply.map_err(|error| if lost && request.is_write() { error.into_unknown() } else { error })
    }

    async fn try_send_request(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        request: &ServerRequest<'_>,
        lost: &mut bool,
    ) -> Result<Value> {
        let mut budget = RetryBudget::until(clock::monotonic_now() + role.retry_timeout());
        let mut redirect: Option<ServerAddress> = None;
        loop {
            let ask_target = redirect.take();
            let Some(connection) = self.connection_for_try(op, role, slot, ask_target.as_ref(), &mut budget).await?
            else {
                continue;
            };
            let discovery_count = self.state().discovery_count;
            let error = match request.send_to(&connection, ask_target.is_some()).await {
                Ok(value) => return Ok(value),
                Err(Unacknowledged::Unconfirmed(reason)) => return Err(unconfirmed_error(op, reason)),
                Err(Unacknowledged::NotSent(error)) => {
                    self.suspect_unreached(&connection, &error);
                    self.wait_and_rediscover(op, slot, &connection, error, &mut budget, discovery_count).await?;
                    continue;
                }
                Err(Unacknowledged::AfterSend(error)) => error,
            };
            match (errors::classify(&error), request.script) {
                (ErrorClass::Moved(_) | ErrorClass::Ask(_), _) if self.url.topology == Topology::Standalone => {
                    return Err(errors::cluster_required_error(op, error));
                }
                (ErrorClass::NoScript, Some(script)) if budget.allow_redirect() => {
                    if let Err(error) = load_script(&connection, script).await {
                        self.wait_and_rediscover(op, slot, &connection, error, &mut budget, discovery_count).await?;
                    }
                }
                (ErrorClass::Moved(to), _) if budget.allow_redirect() => self.note_slot_moved(slot, &to),
                (ErrorClass::Ask(_), _) if request.cmds.len() > 1 => return Ok(Value::Nil),
                (ErrorClass::Ask(to), _) if budget.allow_redirect() => {
                    redirect = parse_redirect(&to, connection.address())
                }
                (ErrorClass::NotMaster, _) if budget.wait_for_retry().await => {
                    // The host name may resolve to another server by now.
                    connection.reset();
                    self.suspect_master(&connection);
                    self.discover_masters(slot, discovery_count).await;
                }
                (ErrorClass::TryLater | ErrorClass::Moved(_) | ErrorClass::Ask(_), _)
                    if budget.wait_for_retry().await =>
                {
                    self.discover_masters(slot, discovery_count).await
                }
                (ErrorClass::OutcomeUnknown, _) => {
                    *lost = true;
                    self.suspect_master(&connection);
                    if !request.idempotent || !budget.wait_for_retry().await {
                        return Err(errors::unknown_error(op, error));
                    }
                }
                _ => return Err(errors::rejected_error(op, error)),
            }
        }
    }

    /// Returns the connection for one try: to the target of an ASK redirect if there is one, else to the master of the slot.
    /// Returns `None` if the master is not known yet and time is left for another try.
    async fn connection_for_try(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        ask_target: Option<&ServerAddress>,
        budget: &mut RetryBudget,
    ) -> Result<Option<Arc<ServerConnection>>> {
        if let Some(address) = ask_target {
            return Ok(Some(self.connection(role, address)));
        }
        match self.connection_for_slot(role, slot).await {
            Ok(connection) => Ok(Some(connection)),
            Err(unknown) if unknown.is_permanent() || !budget.wait_for_retry().await => Err(unknown.into_error(op)),
            Err(_) => Ok(None),
        }
    }

    /// Prepares a retry after a failed connect or script load. Fails if the error is permanent or no time is left.
    async fn wait_and_rediscover(
        &self,
        op: &'static str,
        slot: u16,
        connection: &ServerConnection,
        error: RedisError,
        budget: &mut RetryBudget,
        discovery_count: u64,
    ) -> Result<()> {
        if errors::is_permanent(&error) || !budget.wait_for_retry().await {
            return Err(errors::unreachable_error(op, connection.address(), error));
        }
        self.discover_masters(slot, discovery_count).await;
        Ok(())
    }

    fn connections_to_slot(&self, role: ConnectionRole, slot: u16) -> Vec<Arc<ServerConnection>> {
        let state = self.state();
        let Some(address) = state.address_of(&self.url, slot) else {
            return Vec::new();
        };
        let matching = state.connections.iter().filter(|((of, to, _), _)| *of == role && to == address);
        matching.map(|(_, connection)| connection.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, ServersState> {
        self.state.lock_unpoisoned()
    }

    fn connection(&self, role: ConnectionRole, address: &ServerAddress) -> Arc<ServerConnection> {
        let (runtime, push_handler) = match role {
            ConnectionRole::Heartbeat => (Some(self.runtime.clone()), Some(self.push_handler.clone())),
            ConnectionRole::LockExtend | ConnectionRole::BlockingRead(_) => (Some(self.runtime.clone()), None),
            ConnectionRole::Worker => (None, Some(self.push_handler.clone())),
            ConnectionRole::Client | ConnectionRole::BulkRead | ConnectionRole::ReplicaWait(_) => (None, None),
        };
        let here = Handle::try_current().ok().filter(|_| runtime.is_none());
        let key: ConnectionKey = (role, address.clone(), here.map(|here| here.id()));
        let mut state = self.state();
        if let Some(connection) = state.connections.get(&key) {
            return connection.clone();
        }
        state.evict_oldest_runtime(role, address);
        let connection = ServerConnection::new(address.clone(), self.connector.clone(), runtime, push_handler)
            .with_name(role.connection_name())
            .with_abandoned(state.abandoned.remove(&key));
        let connection = Arc::new(connection);
        state.connections.insert(key, connection.clone());
        connection
    }

    async fn connection_for_slot(
        &self,
        role: ConnectionRole,
        slot: u16,
    ) -> Result<Arc<ServerConnection>, MasterUnknown> {
        let (state, discovery_count) = {
            let state = self.state();
            (state.address_of(&self.url, slot).cloned(), state.discovery_count)
        };
        if let Some(address) = state {
            return Ok(self.connection(role, &address));
        }
        self.discover_masters(slot, discovery_count).await;
        let discovered = self.state().address_of(&self.url, slot).cloned();
        match discovered {
            Some(address) => Ok(self.connection(role, &address)),
            None => Err(self.master_unknown()),
        }
    }

    fn note_slot_moved(&self, slot: u16, to: &str) {
        if let Some(address) = ServerAddress::parse(to, 0) {
            self.state().slots.set_master(slot, address);
        }
    }
}

/// Parses the target of a redirect. A target without a host means the host that sent it.
fn parse_redirect(to: &str, sender: &ServerAddress) -> Option<ServerAddress> {
    match to.strip_prefix(':').and_then(|port| port.parse().ok()) {
        Some(port) => Some(ServerAddress { host: sender.host.clone(), port }),
        None => ServerAddress::parse(to, 0),
    }
}

impl ServersState {
    /// Drops all connections to this server.
    fn retire_server(&mut self, address: &ServerAddress) {
        self.retire_connections(|other, _| other == address);
        self.replica_wait_pools.remove(&Some(address.clone()));
    }

    /// Drops these connections.
    fn retire_connections(&mut self, is_retired: impl Fn(&ServerAddress, &ServerConnection) -> bool) {
        for (key, connection) in self.connections.extract_if(|(_, address, _), it| is_retired(address, it)) {
            let abandoned = connection.retire().filter(|_| self.abandoned.len() < ABANDONED_MAX);
            self.abandoned.extend(abandoned.map(|id| (key, id)));
        }
    }

    fn replica_wait_pool(&mut self, master: Option<ServerAddress>) -> Arc<ReplicaWaitPool> {
        self.replica_wait_pools.entry(master).or_default().clone()
    }

    /// Forgets the oldest connection of a role if too many runtimes have one. A program may create a runtime per call,
    /// and the end of a runtime is not observable.
    fn evict_oldest_runtime(&mut self, role: ConnectionRole, address: &ServerAddress) {
        let is_same = |(of, to, _): &&ConnectionKey| *of == role && to == address;
        if self.connections.keys().filter(is_same).count() < RUNTIMES_MAX {
            return;
        }
        let oldest = self
            .connections
            .iter()
            .filter(|(key, _)| is_same(key))
            .min_by_key(|(_, connection)| connection.generation());
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.connections.remove(&key);
        }
    }

    fn address_of<'k>(&'k self, url: &'k RedisUrl, slot: u16) -> Option<&'k ServerAddress> {
        match url.topology {
            Topology::Standalone => url.hosts.first(),
            Topology::Sentinel(_) => self.master.as_ref(),
            Topology::Cluster => self.slots.master_of(slot),
        }
    }
}

fn unconfirmed_error(op: &'static str, reason: Option<RedisError>) -> Error {
    let too_few = || BoxError::from("fewer replicas confirmed it in time than `replicas` requires");
    Error::unknown_with_cause(op, reason.map_or_else(too_few, Box::from))
}

/// Loads a script into a server; safe to repeat.
async fn load_script(connection: &Arc<ServerConnection>, script: &Script) -> Result<(), RedisError> {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(&script.code);
    connection.send(&cmd).await.map(drop).map_err(ReplyLost::into_error)
}
