//! The way to the servers: finds the one that has a slot, sends, and makes the best of what goes wrong.
//!
//! Written by us because one thing must be known of every request: whether it may have been carried out.
//! A client that sends again by itself after a broken connection would claim twice and tell nobody.

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
mod slots;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::runtime::Handle;

use crate::clock;
use crate::error::{Error, Result};
use crate::store::StoreOptions;
pub(super) use crate::store::redis::conn::all_masters::MasterReply;
use crate::store::redis::conn::connection::{ReplyLost, ServerConnection, ServerPushHandler};
use crate::store::redis::conn::connector::Connector;
use crate::store::redis::conn::errors::ErrorClass;
pub(super) use crate::store::redis::conn::errors::is_forbidden;
use crate::store::redis::conn::masters::{DiscoveryError, MasterUnknown};
use crate::store::redis::conn::replica_wait::ReplicaWaitPool;
pub(super) use crate::store::redis::conn::request::ReplicaConfirmation;
use crate::store::redis::conn::request::{RetryBudget, ServerRequest, Unacknowledged};
use crate::store::redis::conn::slots::SlotMap;
use crate::store::redis::script::Script;
use crate::store::redis::url::{RedisUrl, ServerAddress, Topology};

/// How long a request that was not carried out is tried again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a worker's request is: it has a patience of its own.
const WORKER_RETRY_TIMEOUT: Duration = Duration::from_millis(500);
/// Most runtimes of a process that have a connection of their own to a server.
const RUNTIMES_MAX: usize = 256;
/// How often to listen anew to a server whose connection changes just then.
const SUBSCRIBE_TRIES_MAX: usize = 3;

/// A connection that listens, while it is the same.
pub(super) struct SubscribedConnection {
    connection: Arc<ServerConnection>,
    generation: u64,
}

impl SubscribedConnection {
    pub(super) fn is_current(&self) -> bool {
        self.generation != 0 && self.connection.generation() == self.generation
    }

    /// Listens to these no more. Should that fail, they are heard of a little longer, and nobody minds.
    pub(super) async fn unsubscribe(&self, channels: &[String]) {
        if self.is_current() {
            let unsubscribe = async |channel: &String| {
                let mut cmd = redis::cmd("SUNSUBSCRIBE");
                cmd.arg(channel);
                self.connection.send(&cmd).await.is_ok()
            };
            futures_util::future::join_all(channels.iter().map(unsubscribe)).await;
        }
    }
}

/// Which connection a request takes: none waits behind those of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionRole {
    /// What users ask: pushes and looks.
    Client,
    /// Claims, settles, prunes, and the wakes that come back.
    Worker,
    /// What a worker reads that may be long: no connection that listens may be owed much.
    BulkRead,
    /// Beats, and what is said in the hall.
    Heartbeat,
    /// Pushes and locks that wait for replicas: one at a time per connection.
    ReplicaWait(usize),
    /// Extensions of locks that wait for replicas.
    LockExtend,
    /// Requests that the server answers only when something comes: one at a time per connection.
    BlockingRead(usize),
}

impl ConnectionRole {
    /// What `CLIENT LIST` of the server calls such a connection: what it is for, and whose it is.
    fn connection_name(self) -> String {
        let way = match self {
            ConnectionRole::Client => "client",
            ConnectionRole::Worker => "worker",
            ConnectionRole::BulkRead => "records",
            ConnectionRole::Heartbeat => "heartbeat",
            ConnectionRole::ReplicaWait(_) => "replicated",
            ConnectionRole::LockExtend => "locks",
            ConnectionRole::BlockingRead(_) => "watch",
        };
        let mut host = crate::node::host_name();
        // The server takes no other characters in a name.
        host.retain(|c| c.is_ascii_graphic());
        format!("duly-{way}:{host}:{}", std::process::id())
    }

    /// How long a request that was not carried out is tried again.
    fn retry_timeout(self) -> Duration {
        match self {
            ConnectionRole::Client | ConnectionRole::ReplicaWait(_) => RETRY_TIMEOUT,
            ConnectionRole::Worker
            | ConnectionRole::BulkRead
            | ConnectionRole::Heartbeat
            | ConnectionRole::LockExtend
            | ConnectionRole::BlockingRead(_) => WORKER_RETRY_TIMEOUT,
        }
    }
}

pub(super) struct Servers {
    /// For tasks of its own.
    weak_self: Weak<Servers>,
    url: RedisUrl,
    connector: Arc<Connector>,
    sentinels: Vec<Arc<ServerConnection>>,
    /// Where connections live that must go on whatever handlers do.
    runtime: Handle,
    push_handler: ServerPushHandler,
    state: Mutex<ServersState>,
    discovery_lock: tokio::sync::Mutex<()>,
}

/// A connection belongs to the runtime that drives it: what holds up one runtime holds up no request of another.
/// Those that live at home belong to none.
type ConnectionKey = (ConnectionRole, ServerAddress, Option<tokio::runtime::Id>);

#[derive(Default)]
struct ServersState {
    connections: HashMap<ConnectionKey, Arc<ServerConnection>>,
    /// Requests that wait for replicas, by master; of a slot whose master nobody knows yet, together.
    replica_wait_pools: HashMap<Option<ServerAddress>, Arc<ReplicaWaitPool>>,
    /// The master that Sentinels have named.
    master: Option<ServerAddress>,
    slots: SlotMap,
    /// Why the last who were asked for them did not say.
    discovery_error: Option<DiscoveryError>,
    /// Counts what was learnt, so that of many who miss something only one asks.
    discovery_count: u64,
}

impl Servers {
    pub(super) fn new(
        place: RedisUrl,
        options: &StoreOptions,
        home: Handle,
        listener: ServerPushHandler,
    ) -> Result<Arc<Self>> {
        let mut sentinels = Vec::new();
        if matches!(place.topology, Topology::Sentinel(_)) {
            let to_them = Arc::new(Connector::for_sentinels(&place, options)?);
            let lane = |host: &ServerAddress| {
                Arc::new(ServerConnection::new(host.clone(), to_them.clone(), Some(home.clone()), None))
            };
            sentinels.extend(place.hosts.iter().map(lane));
        }
        let connector = Arc::new(Connector::new(&place, options)?);
        Ok(Arc::new_cyclic(|this| Servers {
            weak_self: this.clone(),
            connector,
            url: place,
            sentinels,
            runtime: home,
            push_handler: listener,
            state: Mutex::default(),
            discovery_lock: tokio::sync::Mutex::default(),
        }))
    }

    pub(super) fn url(&self) -> &RedisUrl {
        &self.url
    }

    /// Runs a script on the server that has this slot.
    ///
    /// `Store` means that it was not carried out, `Unknown` that it may have been.
    pub(super) async fn run_script(
        &self,
        op: &'static str,
        way: ConnectionRole,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<Value> {
        let request =
            ServerRequest { script: Some(script), idempotent: script.only_reads(), ..ServerRequest::single(cmd) };
        self.send_request(op, way, slot, &request).await
    }

    /// The same for a script that may be carried out twice.
    pub(super) async fn run_script_idempotent(
        &self,
        op: &'static str,
        way: ConnectionRole,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.send_request(
            op,
            way,
            slot,
            &ServerRequest { script: Some(script), idempotent: true, ..ServerRequest::single(cmd) },
        )
        .await
    }

    /// The same for a plain command that may be carried out twice.
    pub(super) async fn send_idempotent(
        &self,
        op: &'static str,
        way: ConnectionRole,
        slot: u16,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.send_request(op, way, slot, &ServerRequest { idempotent: true, ..ServerRequest::single(cmd) }).await
    }

    /// The same for a plain command that may not.
    pub(super) async fn send_once(&self, op: &'static str, way: ConnectionRole, slot: u16, cmd: &Cmd) -> Result<Value> {
        self.send_request(op, way, slot, &ServerRequest::single(cmd)).await
    }

    /// Runs a script, or several commands in one transaction whose answers come as a list,
    /// and answers only when so many replicas have it too; else `Unknown`.
    ///
    /// A transaction cannot follow a slot that is just being moved: then it answers nothing, and nothing was carried out.
    pub(super) async fn send_replicated(
        &self,
        op: &'static str,
        slot: u16,
        script: Option<&Script>,
        cmds: &[Cmd],
        confirm: Option<ReplicaConfirmation<'_>>,
    ) -> Result<Value> {
        let request = ServerRequest { cmds, script, confirmation: confirm, idempotent: false };
        if confirm.is_none() {
            return self.send_request(op, ConnectionRole::Client, slot, &request).await;
        }
        // By master: one whose replicas are slow holds up nobody who waits for another.
        let master = self.master_of(slot);
        let confirming = self.state().replica_wait_pool(master);
        let Some(turn) = confirming.acquire().await else {
            return Err(Error::store(op, "too many wait for replicas of this server; nothing was sent"));
        };
        self.send_request(op, ConnectionRole::ReplicaWait(turn.index), slot, &request).await
    }

    /// Runs a script that may be carried out twice where no handler can hold it up, and answers as `deliver` does.
    pub(super) async fn extend_replicated(
        &self,
        op: &'static str,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
        confirm: Option<ReplicaConfirmation<'_>>,
    ) -> Result<Value> {
        let way = if confirm.is_none() { ConnectionRole::Heartbeat } else { ConnectionRole::LockExtend };
        let request = ServerRequest {
            script: Some(script),
            confirmation: confirm,
            idempotent: true,
            ..ServerRequest::single(cmd)
        };
        self.send_request(op, way, slot, &request).await
    }

    async fn send_request(
        &self,
        op: &'static str,
        way: ConnectionRole,
        slot: u16,
        request: &ServerRequest<'_>,
    ) -> Result<Value> {
        let mut lost = false;
        let answer = self.try_send_request(op, way, slot, request, &mut lost).await;
        // A try whose answer was lost may have been carried out, whatever became of the others.
        answer.map_err(|error| if lost && request.is_write() { error.into_unknown() } else { error })
    }

    async fn try_send_request(
        &self,
        op: &'static str,
        way: ConnectionRole,
        slot: u16,
        request: &ServerRequest<'_>,
        lost: &mut bool,
    ) -> Result<Value> {
        let mut tries = RetryBudget::until(clock::monotonic_now() + way.retry_timeout());
        let mut ask: Option<ServerAddress> = None;
        loop {
            let asked = ask.take();
            let lane = match &asked {
                Some(address) => self.connection(way, address),
                None => match self.connection_for_slot(way, slot).await {
                    Ok(lane) => lane,
                    Err(nobody) if nobody.is_permanent() || !tries.wait_for_retry().await => {
                        return Err(nobody.into_error(op));
                    }
                    Err(_) => continue,
                },
            };
            let lessons = self.state().discovery_count;
            let error = match request.send_to(&lane, asked.is_some()).await {
                Ok(value) => return Ok(value),
                Err(Unacknowledged::Unconfirmed(why)) => return Err(unconfirmed_error(op, why)),
                Err(Unacknowledged::NotSent(error)) => {
                    self.suspect_unreached(&lane, &error);
                    if errors::is_permanent(&error) || !tries.wait_for_retry().await {
                        return Err(errors::unreachable_error(op, lane.address(), error));
                    }
                    self.discover_masters(slot, lessons).await;
                    continue;
                }
                Err(Unacknowledged::AfterSend(error)) => error,
            };
            match (errors::classify(&error), request.script) {
                (ErrorClass::Moved(_) | ErrorClass::Ask(_), _) if self.url.topology == Topology::Standalone => {
                    return Err(errors::cluster_required_error(op, error));
                }
                (ErrorClass::NoScript, Some(script)) if tries.allow_redirect() => {
                    match load_script(&lane, script).await {
                        Ok(()) => {}
                        Err(error) if errors::is_permanent(&error) || !tries.wait_for_retry().await => {
                            return Err(errors::unreachable_error(op, lane.address(), error));
                        }
                        Err(_) => self.discover_masters(slot, lessons).await,
                    }
                }
                (ErrorClass::Moved(to), _) if tries.allow_redirect() => self.note_slot_moved(slot, &to),
                (ErrorClass::Ask(_), _) if request.cmds.len() > 1 => return Ok(Value::Nil),
                (ErrorClass::Ask(to), _) if tries.allow_redirect() => ask = parse_redirect(&to, lane.address()),
                (ErrorClass::NotMaster, _) if tries.wait_for_retry().await => {
                    // Its name may stand for another server by now.
                    lane.reset();
                    self.suspect_master(&lane);
                    self.discover_masters(slot, lessons).await;
                }
                (ErrorClass::TryLater | ErrorClass::Moved(_) | ErrorClass::Ask(_), _)
                    if tries.wait_for_retry().await =>
                {
                    self.discover_masters(slot, lessons).await
                }
                (ErrorClass::OutcomeUnknown, _) => {
                    *lost = true;
                    self.suspect_master(&lane);
                    if !request.idempotent || !tries.wait_for_retry().await {
                        return Err(errors::unknown_error(op, error));
                    }
                }
                _ => return Err(errors::rejected_error(op, error)),
            }
        }
    }

    /// Listens on channels of this slot where claims of this runtime are answered: in the order in which both were sent.
    ///
    /// `None` if the connection has changed meanwhile, and with it perhaps who listens.
    pub(super) async fn subscribe_on_worker(
        &self,
        slot: u16,
        channels: &[String],
    ) -> Result<Option<SubscribedConnection>> {
        let subscribe = async |channel: &String| {
            let mut cmd = redis::cmd("SSUBSCRIBE");
            cmd.arg(channel);
            self.send_idempotent("subscribe", ConnectionRole::Worker, slot, &cmd).await
        };
        for _ in 0..SUBSCRIBE_TRIES_MAX {
            let before = self
                .connection_for_slot(ConnectionRole::Worker, slot)
                .await
                .map_err(|nobody| nobody.into_error("subscribe"))?;
            let generation = before.generation();
            futures_util::future::try_join_all(channels.iter().map(subscribe)).await?;
            let after = self
                .connection_for_slot(ConnectionRole::Worker, slot)
                .await
                .map_err(|nobody| nobody.into_error("subscribe"))?;
            let hearing = SubscribedConnection { connection: before, generation };
            // The slot may have moved to another server meanwhile, and who was asked first does not listen.
            if hearing.is_current() && Arc::ptr_eq(&hearing.connection, &after) {
                return Ok(Some(hearing));
            }
        }
        Ok(None)
    }

    /// Listens on a channel of this slot, and answers by which connection; 0 if it has changed meanwhile, and with it perhaps
    /// who listens.
    pub(super) async fn subscribe(&self, slot: u16, channel: &str) -> Result<u64> {
        let mut cmd = redis::cmd("SSUBSCRIBE");
        cmd.arg(channel);
        for _ in 0..SUBSCRIBE_TRIES_MAX {
            let before = self.generation(ConnectionRole::Heartbeat, slot);
            self.send_idempotent("subscribe", ConnectionRole::Heartbeat, slot, &cmd).await?;
            if before != 0 && self.generation(ConnectionRole::Heartbeat, slot) == before {
                return Ok(before);
            }
        }
        Ok(0)
    }

    /// The latest connection that requests for this slot have taken; 0 if there is none.
    pub(super) fn generation(&self, way: ConnectionRole, slot: u16) -> u64 {
        self.connections_to_slot(way, slot).iter().map(|lane| lane.generation()).max().unwrap_or(0)
    }

    /// The same of those requests alone that were made in this runtime: what others do changes nothing.
    pub(super) fn runtime_generation(&self, way: ConnectionRole, slot: u16) -> u64 {
        let address = self.state().address_of(&self.url, slot).cloned();
        address.map_or(0, |address| self.connection(way, &address).generation())
    }

    /// How long nothing has been heard on the connection that listens for this slot; `None` if there is none.
    pub(super) fn time_since_received(&self, slot: u16) -> Option<Duration> {
        self.connections_to_slot(ConnectionRole::Heartbeat, slot).first().and_then(|lane| lane.time_since_received())
    }

    fn connections_to_slot(&self, way: ConnectionRole, slot: u16) -> Vec<Arc<ServerConnection>> {
        let known = self.state();
        let Some(address) = known.address_of(&self.url, slot) else {
            return Vec::new();
        };
        let there = known.connections.iter().filter(|((of, to, _), _)| *of == way && to == address);
        there.map(|(_, lane)| lane.clone()).collect()
    }

    fn state(&self) -> MutexGuard<'_, ServersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self, way: ConnectionRole, address: &ServerAddress) -> Arc<ServerConnection> {
        let (home, listener) = match way {
            ConnectionRole::Heartbeat => (Some(self.runtime.clone()), Some(self.push_handler.clone())),
            ConnectionRole::LockExtend | ConnectionRole::BlockingRead(_) => (Some(self.runtime.clone()), None),
            ConnectionRole::Worker => (None, Some(self.push_handler.clone())),
            ConnectionRole::Client | ConnectionRole::BulkRead | ConnectionRole::ReplicaWait(_) => (None, None),
        };
        let here = Handle::try_current().ok().filter(|_| home.is_none());
        let key: ConnectionKey = (way, address.clone(), here.map(|here| here.id()));
        let mut known = self.state();
        if let Some(lane) = known.connections.get(&key) {
            return lane.clone();
        }
        known.evict_oldest_runtime(way, address);
        let lane = ServerConnection::new(address.clone(), self.connector.clone(), home, listener)
            .with_name(way.connection_name());
        let lane = Arc::new(lane);
        known.connections.insert(key, lane.clone());
        lane
    }

    async fn connection_for_slot(
        &self,
        way: ConnectionRole,
        slot: u16,
    ) -> Result<Arc<ServerConnection>, MasterUnknown> {
        let (known, lessons) = {
            let known = self.state();
            (known.address_of(&self.url, slot).cloned(), known.discovery_count)
        };
        if let Some(address) = known {
            return Ok(self.connection(way, &address));
        }
        self.discover_masters(slot, lessons).await;
        let learnt = self.state().address_of(&self.url, slot).cloned();
        match learnt {
            Some(address) => Ok(self.connection(way, &address)),
            None => Err(self.master_unknown()),
        }
    }

    fn note_slot_moved(&self, slot: u16, to: &str) {
        if let Some(address) = ServerAddress::parse(to, 0) {
            self.state().slots.set_master(slot, address);
        }
    }
}

/// Where a server sends us to. One that names no host means its own.
fn parse_redirect(to: &str, by: &ServerAddress) -> Option<ServerAddress> {
    match to.strip_prefix(':').and_then(|port| port.parse().ok()) {
        Some(port) => Some(ServerAddress { host: by.host.clone(), port }),
        None => ServerAddress::parse(to, 0),
    }
}

impl ServersState {
    /// Nobody uses the connections to this server any more.
    fn retire_server(&mut self, address: &ServerAddress) {
        let left = self.connections.extract_if(|(_, other, _), _| other == address);
        left.for_each(|(_, lane)| lane.retire());
        self.replica_wait_pools.remove(&Some(address.clone()));
    }

    fn replica_wait_pool(&mut self, master: Option<ServerAddress>) -> Arc<ReplicaWaitPool> {
        self.replica_wait_pools.entry(master).or_default().clone()
    }

    /// Where too many runtimes have had a connection of their own, the oldest is forgotten: a program may make a runtime for
    /// each call, and nobody tells when one has ended.
    fn evict_oldest_runtime(&mut self, way: ConnectionRole, address: &ServerAddress) {
        let like_it = |(of, to, _): &&ConnectionKey| *of == way && to == address;
        if self.connections.keys().filter(like_it).count() < RUNTIMES_MAX {
            return;
        }
        let unused = self.connections.iter().filter(|(key, _)| like_it(key)).min_by_key(|(_, lane)| lane.generation());
        if let Some(key) = unused.map(|(key, _)| key.clone()) {
            self.connections.remove(&key);
        }
    }

    fn address_of<'k>(&'k self, place: &'k RedisUrl, slot: u16) -> Option<&'k ServerAddress> {
        match place.topology {
            Topology::Standalone => place.hosts.first(),
            Topology::Sentinel(_) => self.master.as_ref(),
            Topology::Cluster => self.slots.master_of(slot),
        }
    }
}

fn unconfirmed_error(op: &'static str, why: Option<RedisError>) -> Error {
    let too_few = || "fewer replicas than `replicas` asks for have confirmed it in time".into();
    Error::Unknown { op, source: Some(why.map_or_else(too_few, Box::from)) }
}

/// Makes a script known to a server; may be done twice.
async fn load_script(lane: &Arc<ServerConnection>, script: &Script) -> Result<(), RedisError> {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(&script.code);
    lane.send(&cmd).await.map(drop).map_err(ReplyLost::into_error)
}
