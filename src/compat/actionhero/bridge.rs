//! ActionHero's cluster calls: a duly node on ActionHero's channel, in both message formats.
//!
//! The API differs from [`Duly::call`](crate::Duly::call) because the guarantees differ. `Duly::call` calls *one* node
//! that has the method, returns failures as errors, and cannot harm that node. In ActionHero, every node runs every
//! call and the first response wins. A response cannot express failure, and there is no list of the methods of a
//! node. A node that lacks a method may crash when the method is called.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
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
use crate::sync::LockExt;

/// The environment variable with the token, used if [`BridgeBuilder::token`] is not called.
pub const TOKEN_VARIABLE: &str = "DULY_ACTIONHERO_TOKEN";
/// ActionHero's default channel.
const DEFAULT_CHANNEL: &str = "actionhero";
/// Time between two checks of the subscription to the channel.
const SUBSCRIPTION_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Most buffered responses to one call.
const RESPONSES_MAX: usize = 1_024;
/// Most calls that wait for responses.
const PENDING_CALLS_MAX: usize = 10_000;
/// Default timeout of a method, equal to ActionHero's `rpcTimeout`: after that, the caller no longer waits.
const DEFAULT_METHOD_TIMEOUT: Duration = Duration::from_secs(5);

type MethodFactory = Box<dyn FnOnce(Handle) -> Method + Send>;

/// Configures a [`Bridge`] and joins it to an ActionHero cluster.
#[must_use = "call `join`"]
pub struct BridgeBuilder {
    url: String,
    token: Option<String>,
    callable_methods: HashSet<String>,
    methods: Vec<(String, MethodFactory)>,
    method_timeout: Duration,
}

impl BridgeBuilder {
    /// Sets the `serverToken` of the ActionHero nodes. The default is the environment variable `DULY_ACTIONHERO_TOKEN`.
    ///
    /// ActionHero sends the token unencrypted in every message, so every subscriber of the channel can read it.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Declares that **all** nodes of the cluster have this method, and that it does not throw.
    /// [`Bridge::call`] calls only methods declared in this way.
    ///
    /// An ActionHero 12 node crashes if it lacks a called method, and any node crashes if the method throws.
    pub fn callable_method(mut self, method: impl Into<String>) -> Self {
        self.callable_methods.insert(method.into());
        self
    }

    /// Handles calls of this method, such as `api.mail.count`, from nodes of the cluster.
    /// The args are a list: take a tuple.
    ///
    /// All nodes of the cluster run a called method, and the first response wins. If the handler fails, duly sends no
    /// response: ActionHero has none for failures, so its caller times out.
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

    /// Sets the timeout of the methods handled here (default 5 s, ActionHero's own `rpcTimeout`).
    pub fn method_timeout(mut self, timeout: Duration) -> Self {
        self.method_timeout = timeout;
        self
    }

    /// Joins the cluster: subscribes to its channel until the last clone of the bridge is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the URL, the token or a method is invalid, and [`Error::Store`] if the server cannot be
    /// reached.
    pub async fn join(self) -> Result<Bridge> {
        let (address, options) = parse_url(&self.url, StoreOptions::default())?;
        let StoreAddress::Foreign(ForeignSystem::ActionHero, server) = address else {
            return Err(Error::invalid("store", "an ActionHero bridge needs actionhero://HOST"));
        };
        reject_replicas(&options, "an ActionHero call")?;
        let token = self.token.or_else(|| std::env::var(TOKEN_VARIABLE).ok()).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| {
            Error::invalid(
                "token",
                format!("missing; pass ActionHero's serverToken to `token`, or put it into {TOKEN_VARIABLE}"),
            )
        })?;
        for method in self.callable_methods.iter().chain(self.methods.iter().map(|(name, _)| name)) {
            check_method(method)?;
        }
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("bridge", "call `join` inside a tokio runtime"))?;
        let methods = MethodRegistry::default();
        for (name, register) in self.methods {
            if !methods.add(name, register(runtime.clone())) {
                return Err(Error::invalid("method", "too many methods; register fewer on this bridge"));
            }
        }
        let channel = url_option(&options.system_options, "channel").unwrap_or(DEFAULT_CHANNEL).to_owned();
        let options =
            StoreOptions { prefix: format!("{}:actionhero", options.prefix), allow_data_loss: Some(true), ..options };
        let redis = Box::pin(Redis::open(server, &options)).await?;
        let messages = redis.subscribe_foreign(&channel);
        redis.ensure_foreign_subscribed(&channel).await?;
        let inner = Arc::new(BridgeInner {
            redis,
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
        tokio::spawn(run_listener(inner.clone(), messages, stop.clone()));
        Ok(Bridge { inner, _stop: Arc::new(stop.drop_guard()) })
    }
}

impl std::fmt::Debug for BridgeBuilder {
    /// Never shows the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BridgeBuilder").field("callable_methods", &self.callable_methods).finish_non_exhaustive()
    }
}

/// A duly node in an ActionHero cluster. Cheap to clone; leaves when the last clone is dropped.
#[derive(Clone)]
pub struct Bridge {
    inner: Arc<BridgeInner>,
    _stop: Arc<tokio_util::sync::DropGuard>,
}

struct BridgeInner {
    redis: Redis,
    channel: String,
    /// The `serverId` of this bridge.
    id: String,
    token: ServerToken,
    callable_methods: HashSet<String>,
    methods: MethodRegistry,
    method_timeout: Duration,
    connections: Mutex<HashSet<String>>,
    pending_calls: Mutex<HashMap<String, mpsc::Sender<NodeResponse>>>,
}

/// The `serverId` of the responding node, and its response.
type NodeResponse = (String, Box<RawValue>);

fn check_method(method: &str) -> Result<()> {
    match message::is_api_method(method) {
        true => Ok(()),
        false => Err(Error::invalid(
            "method",
            format!("{method:?} is not an ActionHero method; use a path below api, such as api.cache.size"),
        )),
    }
}

/// Handles the messages of the channel until the bridge is dropped.
async fn run_listener(inner: Arc<BridgeInner>, mut messages: mpsc::Receiver<Vec<u8>>, stop: CancellationToken) {
    let mut check = tokio::time::interval(SUBSCRIPTION_CHECK_INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(bytes) = messages.recv() => inner.handle_message(&bytes),
            _ = check.tick() => {
                // Messages published while the subscription is down are lost, as for every ActionHero node.
                if let Err(error) = inner.redis.ensure_foreign_subscribed(&inner.channel).await {
                    tracing::warn!(%error, "not subscribed to ActionHero's channel; retrying");
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
                if let Some(responses) = self.pending_calls.lock_unpoisoned().get(&id) {
                    let _ = responses.try_send((from, value));
                }
            }
            Err(MessageRejection::NotForUs) => {}
            Err(reason) => tracing::debug!(channel = self.channel, ?reason, "rejected a message"),
        }
    }

    /// Runs a method handled here in a task of its own.
    fn handle_do(
        self: &Arc<Self>,
        from: &str,
        ids: MessageIds,
        method: String,
        connection: Option<String>,
        args: Box<RawValue>,
    ) {
        if connection.as_ref().is_some_and(|connection| !self.connections.lock_unpoisoned().contains(connection)) {
            return;
        }
        let Some(handler) = self.methods.get(&method) else {
            return;
        };
        let permit = match handler.admit(&args) {
            Ok(permit) => permit,
            Err(reason) => return tracing::warn!(method, reason, "call dropped; ActionHero's caller times out"),
        };
        let (inner, timeout) = (self.clone(), self.method_timeout);
        let deadline = Clock::system().now() + timeout;
        let context = CallContext { method: method.clone(), caller: node_id_from_name(from), connection, deadline };
        tokio::spawn(async move {
            match handler.run(&args, context, timeout, permit).await {
                Some(Ok(value)) => inner.send_response(&ids, &value).await,
                Some(Err(error)) => tracing::warn!(method, error, "call failed; ActionHero's caller times out"),
                None => tracing::warn!(method, "call timed out, also for ActionHero's caller"),
            }
        });
    }

    async fn send_response(&self, ids: &MessageIds, value: &RawValue) {
        let Some(message) = message::encode_do_response(&self.id, &self.token, ids, value) else {
            return;
        };
        if let Err(error) = self.publish(message).await {
            tracing::warn!(%error, "cannot send a response; ActionHero's caller times out");
        }
    }

    /// Publishes a message. Returns the number of subscribers, not counting this bridge.
    async fn publish(&self, message: String) -> Result<u64> {
        let mut cmd = redis::cmd("PUBLISH");
        cmd.arg(&self.channel).arg(message);
        match self.redis.send_once("call", ConnectionRole::Client, 0, &cmd).await? {
            Value::Int(subscribers) => Ok(subscribers.unsigned_abs().saturating_sub(1)),
            _ => Ok(0),
        }
    }
}

/// Derives a node id from a `serverId`; the same name always gives the same id.
fn node_id_from_name(name: &str) -> NodeId {
    NodeId::from_bytes(*JobId::from_name(&format!("actionhero:{name}")).as_bytes())
}

impl Bridge {
    /// Returns a builder for the cluster on this URL: `actionhero://host`, with `?channel=` for a custom channel.
    pub fn builder(url: impl Into<String>) -> BridgeBuilder {
        BridgeBuilder {
            url: url.into(),
            token: None,
            callable_methods: HashSet::new(),
            methods: Vec::new(),
            method_timeout: DEFAULT_METHOD_TIMEOUT,
        }
    }

    /// Returns the `serverId` of this bridge in the cluster.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Calls a method on all nodes of the cluster, with these args: a list, or its only element.
    ///
    /// The method must have been declared with [`BridgeBuilder::callable_method`].
    pub fn call(&self, method: impl Into<String>, args: &impl Serialize) -> BridgeCall {
        let args =
            to_raw_value(args).map_err(|error| Error::invalid("args", format!("cannot be written as JSON: {error}")));
        BridgeCall {
            bridge: self.clone(),
            method: method.into(),
            args,
            connection: None,
            timeout: DEFAULT_CALL_TIMEOUT,
        }
    }

    /// Starts to handle calls for this connection.
    pub fn hold_connection(&self, connection: impl Into<String>) {
        self.inner.connections.lock_unpoisoned().insert(connection.into());
    }

    /// Stops handling calls for this connection. Returns whether it was held.
    pub fn drop_connection(&self, connection: &str) -> bool {
        self.inner.connections.lock_unpoisoned().remove(connection)
    }
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, channel) = (&self.inner.id, &self.inner.channel);
        f.debug_struct("Bridge").field("id", id).field("channel", channel).finish_non_exhaustive()
    }
}

/// The response of one ActionHero node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BridgeReply<T> {
    /// The `serverId` of the node.
    pub from: String,
    /// The value. A node before 19.0.3 sends the arguments of its callback: the only one, or the list of several.
    pub value: T,
}

/// A call that has not been sent yet. Created by [`Bridge::call`].
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
    /// Calls only the node that holds this connection. If no node holds it, the call times out.
    pub fn connection(mut self, connection: impl Into<String>) -> Self {
        self.connection = Some(connection.into());
        self
    }

    /// Sets the timeout of the call (default 5 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Calls and returns the first response.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no response arrives. ActionHero does not report whether no node holds the connection, the
    /// method failed, or a message was lost.
    pub async fn first<T: DeserializeOwned>(self) -> Result<T> {
        let (method, timeout) = (self.method.clone(), self.timeout);
        let mut replies = self.collect_replies(Some(1)).await?;
        let timed_out = || Error::Timeout {
            op: "call",
            reason: format!("timed out after {timeout:?} waiting for a response to {method}; the method may have run"),
        };
        replies.pop().map(|reply| reply.value).ok_or_else(timed_out)
    }

    /// Calls and returns all responses, until as many arrived as the channel has subscribers, or until the timeout.
    /// The timeout always passes if a node does not respond, or if a subscriber is not a node.
    ///
    /// # Errors
    /// The errors of [`BridgeCall::forget`], and [`Error::Timeout`] if the call could not be sent in time.
    pub async fn all<T: DeserializeOwned>(self) -> Result<Vec<BridgeReply<T>>> {
        self.collect_replies(None).await
    }

    /// Calls without waiting for responses. Returns the number of subscribers of the channel.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the method is not declared or the args are invalid, and [`Error::Store`] or
    /// [`Error::Unknown`] if the server cannot be reached.
    pub async fn forget(self) -> Result<u64> {
        let message = self.build_message(&Uuid::now_v7().to_string())?;
        self.bridge.inner.publish(message).await
    }

    /// Returns the message of the call, if all nodes can run it safely.
    fn build_message(&self, id: &str) -> Result<String> {
        let inner = &self.bridge.inner;
        check_method(&self.method)?;
        if !inner.callable_methods.contains(&self.method) {
            let reason = format!(
                "{} may be missing on a node, and calling it could crash that node; if all nodes have it, declare it with `callable_method`",
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
                format!("too long: the message has {long} bytes, at most {CHANNEL_MESSAGE_BYTES_MAX} are allowed"),
            )),
        }
    }

    async fn collect_replies<T: DeserializeOwned>(self, max: Option<usize>) -> Result<Vec<BridgeReply<T>>> {
        let deadline = clock::monotonic_now() + self.timeout;
        let (id, inner) = (Uuid::now_v7().to_string(), &self.bridge.inner);
        let message = self.build_message(&id)?;
        // Registered before publishing: a response may arrive before the publish returns.
        let mut pending = PendingBridgeCall::open(inner.clone(), id)?;
        let timed_out = |_| Error::Timeout {
            op: "call",
            reason: format!("timed out after {:?} sending the call of {}", self.timeout, self.method),
        };
        let subscribers = tokio::time::timeout_at(deadline, inner.publish(message)).await.map_err(timed_out)??;
        let max = max.unwrap_or_else(|| usize::try_from(subscribers).unwrap_or(usize::MAX));
        let mut replies = Vec::new();
        while replies.len() < max {
            let Ok(Some((from, value))) = tokio::time::timeout_at(deadline, pending.responses.recv()).await else {
                break;
            };
            let decoded = serde_json::from_str(value.get()).map_err(|error| Error::Remote {
                method: self.method.clone(),
                node: node_id_from_name(&from),
                reason: format!("the response of {from} is not a {}: {error}", std::any::type_name::<T>()),
            })?;
            replies.push(BridgeReply { from, value: decoded });
        }
        Ok(replies)
    }
}

/// A call that waits for responses. Later responses are ignored once this is dropped.
struct PendingBridgeCall {
    inner: Arc<BridgeInner>,
    id: String,
    responses: mpsc::Receiver<NodeResponse>,
}

impl PendingBridgeCall {
    fn open(inner: Arc<BridgeInner>, id: String) -> Result<Self> {
        let (sender, responses) = mpsc::channel(RESPONSES_MAX);
        let mut pending = inner.pending_calls.lock_unpoisoned();
        if pending.len() >= PENDING_CALLS_MAX {
            return Err(Error::store(
                "call",
                format!("too many pending calls, at most {PENDING_CALLS_MAX}; wait for some to finish"),
            ));
        }
        pending.insert(id.clone(), sender);
        drop(pending);
        Ok(PendingBridgeCall { inner, id, responses })
    }
}

impl Drop for PendingBridgeCall {
    fn drop(&mut self) {
        self.inner.pending_calls.lock_unpoisoned().remove(&self.id);
    }
}
