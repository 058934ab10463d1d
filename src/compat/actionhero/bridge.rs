//! ActionHero's cluster calls: a node of duly's on its channel, in both of its dialects.
//!
//! Why this is an API of its own, and not [`Duly::call`](crate::Duly::call): there a call goes to *one* node that is known to
//! answer it, a failure comes back as a failure, and nobody can be harmed by being asked. Here every node runs every call,
//! the first answer wins, there is no word for "failed", no list of who answers what, and a node that lacks a method
//! may die of being asked for it. To pretend otherwise would be a lie in the one case and a trap in the other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::message::{self, CHANNEL_MESSAGE_BYTES_MAX, ChannelMessage, MessageIds, MessageRejection, ServerToken};
use crate::clock::{self, Clock};
use crate::compat::{ForeignSystem, reject_replicas, url_option};
use crate::error::{BoxError, Error, Result};
use crate::job::JobId;
use crate::node::NodeId;
use crate::peers::call::{
    CALL_TIMEOUT_MAX, CallContext, DEFAULT_CALL_TIMEOUT, DEFAULT_METHOD_CONCURRENCY, Method, MethodLimits,
    MethodRegistry,
};
use crate::store::redis::{ConnectionRole, Redis};
use crate::store::{StoreAddress, StoreOptions, parse_url};

/// Where the token is looked for if none is given.
pub const TOKEN_VARIABLE: &str = "DULY_ACTIONHERO_TOKEN";
/// ActionHero's channel, unless its configuration says otherwise.
const DEFAULT_CHANNEL: &str = "actionhero";
/// How often it is made sure that the channel is listened to.
const SUBSCRIPTION_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Most answers to one call that wait to be looked at.
const RESPONSES_MAX: usize = 1_024;
/// Most calls that wait for answers.
const PENDING_CALLS_MAX: usize = 10_000;
/// How long a method may take, as ActionHero has it: then nobody waits for it any more.
const DEFAULT_METHOD_TIMEOUT: Duration = Duration::from_secs(5);

type MethodFactory = Box<dyn FnOnce(Handle) -> Method + Send>;

/// A bridge to be joined to ActionHero's cluster. Nothing is joined, answered or called without it.
#[must_use = "call `join`"]
pub struct BridgeBuilder {
    url: String,
    token: Option<String>,
    callable_methods: HashSet<String>,
    methods: Vec<(String, MethodFactory)>,
    method_timeout: Duration,
}

impl BridgeBuilder {
    /// The `serverToken` of ActionHero's nodes; without this it is taken from the environment (`DULY_ACTIONHERO_TOKEN`).
    ///
    /// ActionHero sends it in clear in every message: whoever can listen has it.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Says that **all** nodes of the cluster have this method, and that it does not throw: only such methods can be called.
    ///
    /// A node of ActionHero 12 that lacks a method dies of being asked for it, and any node dies of one that throws.
    pub fn callable_method(mut self, method: impl Into<String>) -> Self {
        self.callable_methods.insert(method.into());
        self
    }

    /// Answers this method, such as `api.mail.count`, when a node of the cluster calls it. Its args are a list: take a tuple.
    ///
    /// All nodes of the cluster run it when it is called, and the first answer wins. If it fails, there is no answer:
    /// ActionHero has no word for that, and its caller times out.
    pub fn on_call<A, F, Fut, R, E>(mut self, method: impl Into<String>, handler: F) -> Self
    where
        A: DeserializeOwned + Send + 'static,
        F: Fn(A, CallContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Serialize,
        E: Into<BoxError>,
    {
        let limits = MethodLimits {
            concurrency: DEFAULT_METHOD_CONCURRENCY,
            rate: None,
            args_bytes_max: CHANNEL_MESSAGE_BYTES_MAX,
        };
        self.methods.push((method.into(), Box::new(move |runtime| Method::new(handler, limits, runtime))));
        self
    }

    /// How long a method that is answered may run (default 5 s, ActionHero's own `rpcTimeout`).
    pub fn method_timeout(mut self, time: Duration) -> Self {
        self.method_timeout = time;
        self
    }

    /// Joins the cluster: listens on its channel from now on, until the bridge is dropped.
    pub async fn join(self) -> Result<Bridge> {
        let (target, options) = parse_url(&self.url, StoreOptions::default())?;
        let StoreAddress::Foreign(ForeignSystem::ActionHero, place) = target else {
            return Err(Error::invalid("store", "a bridge to ActionHero needs actionhero://HOST"));
        };
        reject_replicas(&options, "a call of ActionHero's")?;
        let token = self.token.or_else(|| std::env::var(TOKEN_VARIABLE).ok()).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| {
            Error::invalid("token", format!("give ActionHero's serverToken by `token`, or in {TOKEN_VARIABLE}"))
        })?;
        for method in self.callable_methods.iter().chain(self.methods.iter().map(|(name, _)| name)) {
            check_method(method)?;
        }
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("bridge", "must be joined in a tokio runtime"))?;
        let methods = MethodRegistry::default();
        for (name, register) in self.methods {
            if !methods.add(name, register(runtime.clone())) {
                return Err(Error::invalid("method", "too many methods"));
            }
        }
        let channel = url_option(&options.system_options, "channel").unwrap_or(DEFAULT_CHANNEL).to_owned();
        let options =
            StoreOptions { prefix: format!("{}:actionhero", options.prefix), allow_data_loss: true, ..options };
        let server = Box::pin(Redis::open(place, &options)).await?;
        let heard = server.subscribe_foreign(&channel);
        server.ensure_foreign_subscribed().await?;
        let inner = Arc::new(BridgeInner {
            redis: server,
            channel,
            id: format!("duly:{}:{}:{}", crate::node::host_name(), std::process::id(), Uuid::now_v7()),
            token: ServerToken::new(token),
            callable_methods: self.callable_methods,
            methods,
            method_timeout: self.method_timeout,
            connections: Mutex::default(),
            pending_calls: Mutex::default(),
        });
        let stop = CancellationToken::new();
        tokio::spawn(run_listener(inner.clone(), heard, stop.clone()));
        Ok(Bridge { inner, _stop: Arc::new(stop.drop_guard()) })
    }
}

impl std::fmt::Debug for BridgeBuilder {
    /// Never shows the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BridgeBuilder").field("known", &self.callable_methods).finish_non_exhaustive()
    }
}

/// A node of duly's in a cluster of ActionHero's. Cheap to clone; leaves when the last clone is dropped.
#[derive(Clone)]
pub struct Bridge {
    inner: Arc<BridgeInner>,
    _stop: Arc<tokio_util::sync::DropGuard>,
}

struct BridgeInner {
    redis: Redis,
    channel: String,
    /// Who we are on the channel.
    id: String,
    token: ServerToken,
    callable_methods: HashSet<String>,
    methods: MethodRegistry,
    method_timeout: Duration,
    connections: Mutex<HashSet<String>>,
    pending_calls: Mutex<HashMap<String, mpsc::Sender<NodeResponse>>>,
}

/// Who has answered, and what.
type NodeResponse = (String, Box<RawValue>);

fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_method(method: &str) -> Result<()> {
    match message::is_api_method(method) {
        true => Ok(()),
        false => {
            Err(Error::invalid("method", format!("{method:?} is no method of ActionHero's; they are api.NAME.NAME")))
        }
    }
}

/// Hears the channel until the bridge is dropped.
async fn run_listener(inner: Arc<BridgeInner>, mut heard: mpsc::Receiver<Vec<u8>>, stop: CancellationToken) {
    let mut every = tokio::time::interval(SUBSCRIPTION_CHECK_INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(bytes) = heard.recv() => inner.handle_message(&bytes),
            _ = every.tick() => {
                // What is said while nobody listens is lost, as it is for every node.
                if let Err(error) = inner.redis.ensure_foreign_subscribed().await {
                    tracing::warn!(%error, "ActionHero's channel is not heard");
                }
            }
        }
    }
}

impl BridgeInner {
    fn handle_message(self: &Arc<Self>, bytes: &[u8]) {
        match message::parse_message(bytes, &self.token) {
            Ok(ChannelMessage::Do { from, .. }) if from == self.id => {}
            Ok(ChannelMessage::Do { from, ids, method, connection, args }) => {
                self.handle_do(&from, ids, method, connection, args)
            }
            Ok(ChannelMessage::DoResponse { from, id, value }) => {
                if let Some(waits) = lock_unpoisoned(&self.pending_calls).get(&id) {
                    let _ = waits.try_send((from, value));
                }
            }
            Err(MessageRejection::NotForUs) => {}
            Err(why) => tracing::debug!(channel = self.channel, ?why, "a message was refused"),
        }
    }

    /// Runs a method that is answered here, beside what comes next.
    fn handle_do(
        self: &Arc<Self>,
        from: &str,
        ids: MessageIds,
        method: String,
        connection: Option<String>,
        args: Box<RawValue>,
    ) {
        if connection.as_ref().is_some_and(|connection| !lock_unpoisoned(&self.connections).contains(connection)) {
            return;
        }
        let Some(run) = self.methods.get(&method) else {
            return;
        };
        let room = match run.admit(&args) {
            Ok(room) => room,
            Err(why) => return tracing::warn!(method, why, "not run, and not answered"),
        };
        let (inner, within) = (self.clone(), self.method_timeout);
        let deadline = Clock::system().now() + within;
        let asked = CallContext { method: method.clone(), caller: node_id_from_name(from), connection, deadline };
        tokio::spawn(async move {
            match run.run(&args, asked, within, room).await {
                Some(Ok(value)) => inner.send_response(&ids, &value).await,
                Some(Err(error)) => tracing::warn!(method, error, "failed; ActionHero's caller times out"),
                None => tracing::warn!(method, "took too long; ActionHero's caller has timed out"),
            }
        });
    }

    async fn send_response(&self, ids: &MessageIds, value: &RawValue) {
        let Some(message) = message::encode_do_response(&self.id, &self.token, ids, value) else {
            return;
        };
        if let Err(error) = self.publish(message).await {
            tracing::warn!(%error, "an answer could not be sent");
        }
    }

    /// Answers how many listen, this one not counted.
    async fn publish(&self, message: String) -> Result<u64> {
        let mut cmd = redis::cmd("PUBLISH");
        cmd.arg(&self.channel).arg(message);
        match self.redis.send_once("call", ConnectionRole::Client, 0, &cmd).await? {
            Value::Int(heard) => Ok(heard.unsigned_abs().saturating_sub(1)),
            _ => Ok(0),
        }
    }
}

/// The same name always gives the same node.
fn node_id_from_name(name: &str) -> NodeId {
    NodeId::from_bytes(*JobId::from_name(&format!("actionhero:{name}")).as_bytes())
}

impl Bridge {
    /// A bridge to the cluster on this URL: `actionhero://host`, with `?channel=` if its channel has another name.
    pub fn builder(url: impl Into<String>) -> BridgeBuilder {
        BridgeBuilder {
            url: url.into(),
            token: None,
            callable_methods: HashSet::new(),
            methods: Vec::new(),
            method_timeout: DEFAULT_METHOD_TIMEOUT,
        }
    }

    /// Our name among the nodes of the cluster.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Calls a method on all nodes of the cluster, with these args: a list, or the only element of one.
    ///
    /// Only methods that [`BridgeBuilder::knows`] has named can be called.
    pub fn call(&self, method: impl Into<String>, args: &impl Serialize) -> BridgeCall {
        let args =
            to_raw_value(args).map_err(|why| Error::invalid("args", format!("cannot be written as JSON: {why}")));
        BridgeCall {
            bridge: self.clone(),
            method: method.into(),
            args,
            connection: None,
            timeout: DEFAULT_CALL_TIMEOUT,
        }
    }

    /// From now on calls for this connection are ours.
    pub fn hold_connection(&self, connection: impl Into<String>) {
        lock_unpoisoned(&self.inner.connections).insert(connection.into());
    }

    /// Calls for this connection are not ours any more. Answers whether they were.
    pub fn drop_connection(&self, connection: &str) -> bool {
        lock_unpoisoned(&self.inner.connections).remove(connection)
    }
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, channel) = (&self.inner.id, &self.inner.channel);
        f.debug_struct("Bridge").field("id", id).field("channel", channel).finish_non_exhaustive()
    }
}

/// What one node of ActionHero's has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BridgeReply<T> {
    /// Its `serverId`.
    pub from: String,
    /// The value; of a node before 19.0.3 the only argument of its callback, or the list of them in the order it sent.
    pub value: T,
}

/// A call to be made. Made by [`Bridge::call`].
#[must_use = "a call is not made until `first`, `all` or `forget` is awaited"]
#[derive(Debug)]
pub struct BridgeCall {
    bridge: Bridge,
    method: String,
    args: Result<Box<RawValue>>,
    connection: Option<String>,
    timeout: Duration,
}

impl BridgeCall {
    /// Only on the node that has this connection. If nobody has it, nobody says so.
    pub fn connection(mut self, connection: impl Into<String>) -> Self {
        self.connection = Some(connection.into());
        self
    }

    /// Waits at most so long (default 5 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The first answer. [`Error::Timeout`] if none came: because nobody has the connection, because the method has
    /// failed, or because the message was lost; ActionHero does not say which.
    pub async fn first<T: DeserializeOwned>(self) -> Result<T> {
        let method = self.method.clone();
        let mut replies = self.collect_replies(Some(1)).await?;
        let late =
            || Error::Timeout { op: "call", reason: format!("no answer to {method}; it may have been carried out") };
        replies.pop().map(|reply| reply.value).ok_or_else(late)
    }

    /// All answers that come in time, until as many have answered as listen on the channel.
    /// Not every node may answer, and not all that listen need be nodes: then the whole time passes.
    pub async fn all<T: DeserializeOwned>(self) -> Result<Vec<BridgeReply<T>>> {
        self.collect_replies(None).await
    }

    /// Calls, and waits for no answer. Answers how many listen.
    pub async fn forget(self) -> Result<u64> {
        let message = self.build_message(&Uuid::now_v7().to_string())?;
        self.bridge.inner.publish(message).await
    }

    /// The message, if it harms nobody.
    fn build_message(&self, id: &str) -> Result<String> {
        let inner = &self.bridge.inner;
        check_method(&self.method)?;
        if !inner.callable_methods.contains(&self.method) {
            let reason = format!(
                "{} is not known to exist on all nodes, and one without it may die of the call; name it with `knows` if all have it",
                self.method
            );
            return Err(Error::invalid("method", reason));
        }
        if self.timeout.is_zero() || self.timeout > CALL_TIMEOUT_MAX {
            return Err(Error::invalid("timeout", format!("must be more than 0 and at most {CALL_TIMEOUT_MAX:?}")));
        }
        let args = self.args.as_ref().map_err(|error| Error::invalid("args", error.to_string()))?;
        let list;
        let args = if args.get().starts_with('[') {
            args
        } else {
            list = RawValue::from_string(format!("[{}]", args.get()))
                .map_err(|e| Error::invalid("args", e.to_string()))?;
            &list
        };
        let message = message::encode_do(&inner.id, &inner.token, id, &self.method, self.connection.as_deref(), args);
        match message.len() {
            0..=CHANNEL_MESSAGE_BYTES_MAX => Ok(message),
            long => Err(Error::invalid(
                "args",
                format!("make a message of {long} bytes; at most {CHANNEL_MESSAGE_BYTES_MAX}"),
            )),
        }
    }

    async fn collect_replies<T: DeserializeOwned>(self, most: Option<usize>) -> Result<Vec<BridgeReply<T>>> {
        let until = clock::monotonic_now() + self.timeout;
        let (id, inner) = (Uuid::now_v7().to_string(), &self.bridge.inner);
        let message = self.build_message(&id)?;
        // Heard from here on: an answer may come before the publish returns.
        let mut pending = PendingBridgeCall::open(inner.clone(), id)?;
        let late = |_| Error::Timeout { op: "call", reason: format!("{} could not be sent in time", self.method) };
        let listeners = tokio::time::timeout_at(until, inner.publish(message)).await.map_err(late)??;
        let most = most.unwrap_or_else(|| usize::try_from(listeners).unwrap_or(usize::MAX));
        let mut replies = Vec::new();
        while replies.len() < most {
            let Ok(Some((from, value))) = tokio::time::timeout_at(until, pending.responses.recv()).await else {
                break;
            };
            let decoded = serde_json::from_str(value.get()).map_err(|why| Error::Remote {
                method: self.method.clone(),
                node: node_id_from_name(&from),
                reason: format!("the answer of {from} does not decode as {}: {why}", std::any::type_name::<T>()),
            })?;
            replies.push(BridgeReply { from, value: decoded });
        }
        Ok(replies)
    }
}

/// A call that waits for answers; dropped, what comes later is for nobody.
struct PendingBridgeCall {
    inner: Arc<BridgeInner>,
    id: String,
    responses: mpsc::Receiver<NodeResponse>,
}

impl PendingBridgeCall {
    fn open(inner: Arc<BridgeInner>, id: String) -> Result<Self> {
        let (sender, answers) = mpsc::channel(RESPONSES_MAX);
        let mut pending = lock_unpoisoned(&inner.pending_calls);
        if pending.len() >= PENDING_CALLS_MAX {
            return Err(Error::store(
                "call",
                format!("{PENDING_CALLS_MAX} calls wait for answers already; wait for some of them"),
            ));
        }
        pending.insert(id.clone(), sender);
        drop(pending);
        Ok(PendingBridgeCall { inner, id, responses: answers })
    }
}

impl Drop for PendingBridgeCall {
    fn drop(&mut self) {
        lock_unpoisoned(&self.inner.pending_calls).remove(&self.id);
    }
}
