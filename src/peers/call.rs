//! Calls: ask other nodes to run a method, and get their answers or a timeout.
//!
//! A message may be lost on its way, so a call that timed out may have been carried out: say so in what you call.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::client::Duly;
use crate::clock::{self, to_micros};
use crate::error::{Error, Result};
use crate::job::push::{check_name, check_text};
use crate::node::NodeId;
use crate::peers::envelope;
pub use crate::peers::envelope::{CLUSTER_KEY_BYTES_MIN, MESSAGE_BYTES_MAX};
pub(crate) use crate::peers::envelope::{ClusterKeys, MessageBody, PeerMessage, RejectReason, deadline_time};
pub use crate::peers::methods::DEFAULT_METHOD_CONCURRENCY;
use crate::peers::methods::METHODS_MAX;
pub(crate) use crate::peers::methods::{Method, MethodLimits, MethodRegistry};
pub use crate::peers::replies::{Replies, Reply};
use crate::peers::{BUILTIN_METHOD_PREFIX, Peers, PendingCall};
use crate::store::Recipient;

/// How long a call waits for its replies, unless [`Call::timeout`] says otherwise.
pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that a call can wait.
pub const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Longest name of a connection, in bytes.
pub(crate) const CONNECTION_BYTES_MAX: usize = 256;
/// How long a call that is over may take to find out who has not answered.
pub(super) const MISSING_NODES_TIMEOUT: Duration = Duration::from_millis(20);

/// Whom a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CallTarget {
    Any,
    All,
    Node(NodeId),
    Connection(String),
}

/// A call to be made. Made by [`Duly::call`].
#[must_use = "a call is not made until `reply`, `replies` or `forget` is awaited"]
#[derive(Debug)]
pub struct Call {
    duly: Duly,
    method: String,
    args: Result<Box<RawValue>>,
    target: CallTarget,
    timeout: Duration,
}

impl Call {
    pub(crate) fn new(duly: Duly, method: String, args: &impl Serialize) -> Self {
        let args =
            to_raw_value(args).map_err(|why| Error::invalid("args", format!("cannot be written as JSON: {why}")));
        Call { duly, method, args, target: CallTarget::Any, timeout: DEFAULT_CALL_TIMEOUT }
    }

    /// Any one node that answers this method: the default.
    pub fn any(mut self) -> Self {
        self.target = CallTarget::Any;
        self
    }

    /// All nodes, this one too.
    pub fn all(mut self) -> Self {
        self.target = CallTarget::All;
        self
    }

    /// This node.
    pub fn node(mut self, node: NodeId) -> Self {
        self.target = CallTarget::Node(node);
        self
    }

    /// The node that holds this connection.
    pub fn connection(mut self, connection: impl Into<String>) -> Self {
        self.target = CallTarget::Connection(connection.into());
        self
    }

    /// Waits at most so long (default 5 s, at most 60 s: what takes longer is a job).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The answer of the one node that is called.
    ///
    /// [`Error::NotFound`] at once if nobody answers this method, no such node is there, or nobody holds the connection;
    /// [`Error::Remote`] if the method has failed there; [`Error::Timeout`] if no answer came in time.
    pub async fn reply<T: DeserializeOwned>(self) -> Result<T> {
        if self.target == CallTarget::All {
            return Err(Error::invalid("call", "is for all nodes, who all answer; take their `replies`"));
        }
        let mut replies = self.replies().await?;
        match replies.next().await {
            Some(reply) => reply.result,
            None => Err(Error::Timeout { op: "call", reason: "nobody has answered".into() }),
        }
    }

    /// The answers of all nodes that are called, each as it comes, until every one has answered or the time is over.
    pub async fn replies<T: DeserializeOwned>(self) -> Result<Replies<T>> {
        // The clock runs from here, and replies are heard from here: nothing is sent before.
        let (hall, args) = self.check()?;
        let until = clock::monotonic_now() + self.timeout;
        let pending = hall.open_call()?;
        let sent = tokio::time::timeout_at(until, self.dispatch(&hall, &pending, args, false));
        match sent.await {
            Ok(sent) => Ok(Replies::new(self.method.clone(), pending, sent?, until)),
            Err(_) => Err(self.send_timeout_error()),
        }
    }

    /// Calls and does not wait for an answer: nobody learns whether it was carried out.
    /// Answers how many nodes it was sent to.
    pub async fn send(self) -> Result<u64> {
        let (hall, args) = self.check()?;
        let pending = hall.open_call()?;
        let sent = tokio::time::timeout(self.timeout, self.dispatch(&hall, &pending, args, true)).await;
        match sent {
            Ok(sent) => Ok(sent?.count()),
            Err(_) => Err(self.send_timeout_error()),
        }
    }

    fn send_timeout_error(&self) -> Error {
        Error::Timeout { op: "call", reason: format!("{} could not be sent in time", self.method) }
    }

    fn check(&self) -> Result<(Arc<Peers>, &RawValue)> {
        check_name("method", &self.method)?;
        if self.timeout.is_zero() || self.timeout > CALL_TIMEOUT_MAX {
            return Err(Error::invalid("timeout", format!("must be more than 0 and at most {CALL_TIMEOUT_MAX:?}")));
        }
        if let CallTarget::Connection(connection) = &self.target {
            check_text("connection", connection, CONNECTION_BYTES_MAX)?;
        }
        let args = self.args.as_ref().map_err(|error| Error::invalid("args", error.to_string()))?;
        Ok((self.duly.peers()?, args))
    }

    /// Sends it to whom it is for.
    async fn dispatch(
        &self,
        hall: &Peers,
        pending: &PendingCall,
        args: &RawValue,
        forget: bool,
    ) -> Result<CallRecipients> {
        hall.ensure_announced().await?;
        let says = || MessageBody::Call {
            sent: to_micros(hall.store().now()),
            method: self.method.clone(),
            args: args.to_owned(),
            deadline: envelope::deadline_micros(hall.store().now(), self.timeout),
            connection: match &self.target {
                CallTarget::Connection(connection) => Some(connection.clone()),
                _ => None,
            },
            no_reply: forget,
        };
        let not_found = |what, name: String| Err(Error::NotFound { what, name });
        match &self.target {
            CallTarget::All => Ok(CallRecipients::All(hall.send_call(pending.id(), Recipient::All, says()).await?)),
            CallTarget::Node(node) => match hall.send_call(pending.id(), Recipient::Node(*node), says()).await? {
                0 => not_found("node", node.to_string()),
                _ => Ok(CallRecipients::One(*node)),
            },
            CallTarget::Connection(connection) => {
                let Some(node) = hall.store().connection_holder(connection).await? else {
                    return not_found("connection", connection.clone());
                };
                match hall.send_call(pending.id(), Recipient::Node(node), says()).await? {
                    0 => not_found("connection", connection.clone()),
                    _ => Ok(CallRecipients::One(node)),
                }
            }
            CallTarget::Any => {
                let mut nodes = self.candidates(hall).await?;
                fastrand::shuffle(&mut nodes);
                // However many of them have just died: one that lives may be the last. The time of the call bounds it.
                for node in nodes {
                    if hall.send_call(pending.id(), Recipient::Node(node), says()).await? > 0 {
                        return Ok(CallRecipients::One(node));
                    }
                }
                not_found("node that answers", self.method.clone())
            }
        }
    }

    async fn candidates(&self, hall: &Peers) -> Result<Vec<NodeId>> {
        if !self.method.starts_with(BUILTIN_METHOD_PREFIX) {
            return hall.store().peers_with_method(&self.method).await;
        }
        let nodes = hall.store().nodes().await?;
        Ok(nodes.into_iter().filter(|node| node.alive).map(|node| node.id).collect())
    }
}

/// Who a call was sent to.
pub(crate) enum CallRecipients {
    One(NodeId),
    /// So many, whoever they are.
    All(u64),
}

impl CallRecipients {
    pub(super) fn count(&self) -> u64 {
        match self {
            CallRecipients::One(_) => 1,
            CallRecipients::All(nodes) => *nodes,
        }
    }
}

/// What a method gets beside its args.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallContext {
    /// The method that is called.
    pub method: String,
    /// Who calls.
    pub caller: NodeId,
    /// The connection for whose sake this node is called.
    pub connection: Option<String>,
    /// When nobody waits for the answer any more, by the store's clock: then it is ended.
    pub deadline: SystemTime,
}

type MethodBuilder = Box<dyn FnOnce(MethodLimits, Handle) -> Method + Send>;

/// A method to be registered. Made by [`Duly::answer`]; awaited, it is.
#[must_use = "a method is not registered until this is awaited"]
pub struct MethodRegistration {
    duly: Duly,
    method: String,
    build: MethodBuilder,
    limits: MethodLimits,
}

impl MethodRegistration {
    pub(crate) fn new(duly: Duly, method: String, erase: MethodBuilder) -> Self {
        let limits =
            MethodLimits { concurrency: DEFAULT_METHOD_CONCURRENCY, rate: None, args_bytes_max: MESSAGE_BYTES_MAX };
        MethodRegistration { duly, method, build: erase, limits }
    }

    /// At most so many calls of it run at once (default 64); others are told that it is busy.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.limits.concurrency = calls;
        self
    }

    /// So many calls of it in so long, on the long run (default: no limit); others are told that it is busy.
    /// What was not used is saved up: after a rest as many may come at once.
    pub fn rate(mut self, calls: u32, per: Duration) -> Self {
        self.limits.rate = Some((calls, per));
        self
    }

    /// Args of at most so many bytes (default: as many as fit into a message).
    pub fn args_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.args_bytes_max = bytes;
        self
    }

    async fn register(self) -> Result<()> {
        check_name("method", &self.method)?;
        if self.method.starts_with(BUILTIN_METHOD_PREFIX) {
            return Err(Error::invalid(
                "method",
                format!("{} begins with {BUILTIN_METHOD_PREFIX}, which is duly's own", self.method),
            ));
        }
        if self.limits.concurrency == 0 || self.limits.rate.is_some_and(|(calls, per)| calls == 0 || per.is_zero()) {
            return Err(Error::invalid("method", format!("{}: a limit of 0 lets nobody call it", self.method)));
        }
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("method", "must be registered in a tokio runtime"))?;
        let hall = self.duly.peers()?;
        hall.ensure_announced().await?;
        let method = (self.build)(self.limits, runtime);
        if !hall.add_method(self.method, method) {
            return Err(Error::invalid("method", format!("at most {METHODS_MAX} methods per process")));
        }
        hall.announce().await
    }
}

impl IntoFuture for MethodRegistration {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.register())
    }
}

impl std::fmt::Debug for MethodRegistration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").field("method", &self.method).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// When a call is over.
pub(super) type CallDeadline = Instant;
