//! Calls: run a method on other nodes and get their replies, or a timeout.
//!
//! A message may be lost, so a call that timed out may have run. Make methods safe to repeat.

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
use crate::peers::envelope::MESSAGE_BYTES_MAX;
pub(crate) use crate::peers::envelope::{ClusterKeys, MessageBody, PeerMessage, RejectReason, deadline_time};
pub(crate) use crate::peers::methods::DEFAULT_METHOD_CONCURRENCY;
use crate::peers::methods::METHODS_MAX;
pub(crate) use crate::peers::methods::{Method, MethodLimits, MethodRegistry};
pub(crate) use crate::peers::replies::Replies;
use crate::peers::{BUILTIN_METHOD_PREFIX, Peers, PendingCall};
use crate::store::{PeerStore, Recipient};

/// Default time that a call waits for its replies; see [`Call::timeout`].
pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that a call can wait.
pub const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Longest name of a connection, in bytes.
pub(crate) const CONNECTION_BYTES_MAX: usize = 256;
/// How long an expired call may take to find out which nodes have not replied.
pub(super) const MISSING_NODES_TIMEOUT: Duration = Duration::from_millis(20);

/// The target of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CallTarget {
    Any,
    All,
    Node(NodeId),
    Connection(String),
}

/// A call to another node, created by [`Duly::call`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use duly::{Duly, call::CallContext};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.on_call("ping", |(), _: CallContext| async { Ok::<_, duly::Error>("pong") }).await?;
/// let reply: String = duly.call("ping", &()).timeout(Duration::from_secs(2)).reply().await?;
/// assert_eq!(reply, "pong");
/// # Ok(())
/// # }
/// ```
#[must_use = "a call is not made until `reply`, `replies` or `send` is awaited"]
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
            to_raw_value(args).map_err(|error| Error::invalid("args", format!("cannot be written as JSON: {error}")));
        Call { duly, method, args, target: CallTarget::Any, timeout: DEFAULT_CALL_TIMEOUT }
    }

    /// Calls any one node that offers this method: the default.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::call::Call {
    /// duly.call("resize", &7).any()
    /// # }
    /// ```
    pub fn any(mut self) -> Self {
        self.target = CallTarget::Any;
        self
    }

    /// Calls all nodes, including this one.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::call::Call {
    /// duly.call("cache.flush", &"user:").all()
    /// # }
    /// ```
    pub fn all(mut self) -> Self {
        self.target = CallTarget::All;
        self
    }

    /// Calls this node.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly, node: duly::NodeId) -> duly::call::Call {
    /// duly.call("duly.ping", &()).node(node)
    /// # }
    /// ```
    pub fn node(mut self, node: NodeId) -> Self {
        self.target = CallTarget::Node(node);
        self
    }

    /// Calls the node that holds this connection.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::call::Call {
    /// duly.call("notify", &"hello").connection("browser-7")
    /// # }
    /// ```
    pub fn connection(mut self, connection: impl Into<String>) -> Self {
        self.target = CallTarget::Connection(connection.into());
        self
    }

    /// Sets how long to wait (default 5 s, at most 60 s). For longer work, push a job.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::call::Call {
    /// duly.call("report", &7).timeout(std::time::Duration::from_secs(20))
    /// # }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends the call and returns the reply of the one node that is called.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`]: no node offers this method, the node is not there, or no node holds the connection.
    /// - [`Error::Remote`]: the method failed there, or was busy.
    /// - [`Error::Timeout`]: no reply came in time; the method may have run.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Error};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// match duly.call("no.such.method", &()).reply::<u32>().await {
    ///     Err(Error::NotFound { .. }) => println!("no node offers it"),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reply<T: DeserializeOwned>(self) -> Result<T> {
        if self.target == CallTarget::All {
            return Err(Error::invalid(
                "call",
                "a call to all nodes has several replies; use `replies` instead of `reply`",
            ));
        }
        let mut replies = self.replies().await?;
        match replies.next().await {
            Some(reply) => reply.result,
            None => Err(replies.timeout_error()),
        }
    }

    /// Sends the call and returns the replies of all called nodes as they arrive, until all have replied or time is up.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`]: no node offers this method, the node is not there, or no node holds the connection.
    /// - [`Error::Timeout`]: the call could not be sent in time. Missing replies are part of the returned ones.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, call::CallContext};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.on_call("ping", |(), _: CallContext| async { Ok::<_, duly::Error>("pong") }).await?;
    /// let mut replies = duly.call("ping", &()).all().replies::<String>().await?;
    /// while let Some(reply) = replies.next().await {
    ///     println!("{:?}: {:?}", reply.node, reply.result);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn replies<T: DeserializeOwned>(self) -> Result<Replies<T>> {
        // The timeout starts here, and replies are received from here on: nothing is sent before.
        let (peers, args) = self.check()?;
        let deadline = clock::monotonic_now() + self.timeout;
        let pending = peers.open_call()?;
        let sent = tokio::time::timeout_at(deadline, self.dispatch(&peers, &pending, args, false));
        match sent.await {
            Ok(sent) => Ok(Replies::new(self.method.clone(), pending, sent?, deadline, self.timeout)),
            Err(_) => Err(self.send_timeout_error()),
        }
    }

    /// Sends the call and does not wait for a reply, so its outcome stays unknown. Returns the number of called nodes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Call::replies`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, call::CallContext};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.on_call("refresh", |(), _: CallContext| async { Ok::<_, duly::Error>(()) }).await?;
    /// assert_eq!(duly.call("refresh", &()).all().send().await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send(self) -> Result<u64> {
        let (peers, args) = self.check()?;
        let pending = peers.open_call()?;
        let sent = tokio::time::timeout(self.timeout, self.dispatch(&peers, &pending, args, true)).await;
        match sent {
            Ok(sent) => Ok(sent?.count()),
            Err(_) => Err(self.send_timeout_error()),
        }
    }

    fn send_timeout_error(&self) -> Error {
        let (timeout, method) = (self.timeout, &self.method);
        let reason = format!("timed out after {timeout:?} sending the call of {method}; the method may have run");
        Error::Timeout { op: "call", reason }
    }

    fn check(&self) -> Result<(Arc<Peers>, &RawValue)> {
        check_name("method", &self.method)?;
        if self.timeout.is_zero() || self.timeout > CALL_TIMEOUT_MAX {
            return Err(Error::invalid(
                "timeout",
                format!("must be more than 0 and at most {CALL_TIMEOUT_MAX:?}; for longer work, push a job"),
            ));
        }
        if let CallTarget::Connection(connection) = &self.target {
            check_text("connection", connection, CONNECTION_BYTES_MAX)?;
        }
        let args = self.args.as_ref().map_err(|error| Error::invalid("args", error.to_string()))?;
        Ok((self.duly.peers()?, args))
    }

    /// Sends the call to its target.
    async fn dispatch(
        &self,
        peers: &Peers,
        pending: &PendingCall,
        args: &RawValue,
        no_reply: bool,
    ) -> Result<CallRecipients> {
        peers.ensure_announced().await?;
        let body = || MessageBody::Call {
            sent: to_micros(peers.store().now()),
            method: self.method.clone(),
            args: args.to_owned(),
            deadline: envelope::deadline_micros(peers.store().now(), self.timeout),
            connection: match &self.target {
                CallTarget::Connection(connection) => Some(connection.clone()),
                _ => None,
            },
            no_reply,
        };
        let not_found = |what, name: String| Err(Error::not_found(what, name));
        match &self.target {
            CallTarget::All => Ok(CallRecipients::All(peers.send_call(pending.id(), Recipient::All, body()).await?)),
            CallTarget::Node(node) => match peers.send_call(pending.id(), Recipient::Node(*node), body()).await? {
                0 => not_found("node", node.to_string()),
                _ => Ok(CallRecipients::One(*node)),
            },
            CallTarget::Connection(connection) => {
                let Some(node) = peers.store().connection_holder(connection).await? else {
                    return not_found("connection", connection.clone());
                };
                match peers.send_call(pending.id(), Recipient::Node(node), body()).await? {
                    0 => not_found("connection", connection.clone()),
                    _ => Ok(CallRecipients::One(node)),
                }
            }
            CallTarget::Any => {
                let mut nodes = self.candidates(peers).await?;
                fastrand::shuffle(&mut nodes);
                // Tries every node, however many have just died; the timeout of the call bounds the loop.
                for node in nodes {
                    if peers.send_call(pending.id(), Recipient::Node(node), body()).await? > 0 {
                        return Ok(CallRecipients::One(node));
                    }
                }
                not_found("node with the method", self.method.clone())
            }
        }
    }

    async fn candidates(&self, peers: &Peers) -> Result<Vec<NodeId>> {
        if !self.method.starts_with(BUILTIN_METHOD_PREFIX) {
            return peers.store().peers_with_method(&self.method).await;
        }
        let nodes = peers.store().nodes().await?;
        Ok(nodes.into_iter().filter(|node| node.alive).map(|node| node.id).collect())
    }
}

/// The nodes that a call was sent to.
pub(crate) enum CallRecipients {
    One(NodeId),
    /// This many nodes of unknown identity.
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

/// The context of a call, passed to a method with its args.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, NodeId, call::CallContext};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.on_call("whoami", |(), context: CallContext| async move { Ok::<_, duly::Error>(context.caller) }).await?;
/// let caller: NodeId = duly.call("whoami", &()).reply().await?;
/// assert_eq!(caller, duly.node_id()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallContext {
    /// The called method.
    pub method: String,
    /// The calling node.
    pub caller: NodeId,
    /// The connection that the caller addressed, if any.
    pub connection: Option<String>,
    /// When the caller stops waiting, by the store's clock; the method is then aborted.
    pub deadline: SystemTime,
}

type MethodBuilder = Box<dyn FnOnce(MethodLimits, Handle) -> Method + Send>;

/// A method to register, created by [`Duly::on_call`]; await it to register.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use duly::{Duly, call::CallContext};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.on_call("resize", |width: u32, _: CallContext| async move { Ok::<_, duly::Error>(width / 2) })
///     .concurrency(4)
///     .rate(100, Duration::from_secs(1))
///     .args_bytes_max(64)
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a method is not registered until this is awaited"]
pub struct MethodRegistration {
    duly: Duly,
    method: String,
    build: MethodBuilder,
    limits: MethodLimits,
}

impl MethodRegistration {
    pub(crate) fn new(duly: Duly, method: String, build: MethodBuilder) -> Self {
        let limits =
            MethodLimits { concurrency: DEFAULT_METHOD_CONCURRENCY, rate: None, args_bytes_max: MESSAGE_BYTES_MAX };
        MethodRegistration { duly, method, build, limits }
    }

    /// Sets how many calls run at once (default 64); further callers get a "busy" error.
    ///
    /// See [`MethodRegistration`] for an example.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.limits.concurrency = calls;
        self
    }

    /// Sets the sustained rate of calls (default: unlimited); further callers get a "busy" error.
    /// Unused calls accumulate up to `calls`, so a burst of that size is possible after a pause.
    ///
    /// See [`MethodRegistration`] for an example.
    pub fn rate(mut self, calls: u32, per: Duration) -> Self {
        self.limits.rate = Some((calls, per));
        self
    }

    /// Sets the maximum size of the args in bytes (default: the limit of a message).
    ///
    /// See [`MethodRegistration`] for an example.
    pub fn args_bytes_max(mut self, bytes: usize) -> Self {
        self.limits.args_bytes_max = bytes;
        self
    }

    async fn register(self) -> Result<()> {
        check_name("method", &self.method)?;
        if self.method.starts_with(BUILTIN_METHOD_PREFIX) {
            return Err(Error::invalid(
                "method",
                format!("{} begins with {BUILTIN_METHOD_PREFIX}, which is reserved for duly", self.method),
            ));
        }
        if self.limits.concurrency == 0 || self.limits.rate.is_some_and(|(calls, per)| calls == 0 || per.is_zero()) {
            return Err(Error::invalid("method", format!("{}: its limits must be greater than zero", self.method)));
        }
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("method", "register it inside a tokio runtime"))?;
        let peers = self.duly.peers()?;
        peers.ensure_announced().await?;
        let method = (self.build)(self.limits, runtime);
        if !peers.add_method(self.method, method) {
            return Err(Error::invalid(
                "method",
                format!("at most {METHODS_MAX} methods per process; remove one first"),
            ));
        }
        peers.announce().await
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
        f.debug_struct("MethodRegistration")
            .field("method", &self.method)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// When a call expires.
pub(super) type CallDeadline = Instant;
