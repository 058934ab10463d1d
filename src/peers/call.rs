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
pub(crate) use crate::peers::envelope::{Keys, Message, Refused, Says, moment};
pub use crate::peers::methods::METHOD_CONCURRENCY;
use crate::peers::methods::METHODS_MAX;
pub(crate) use crate::peers::methods::{Limits, Method, Methods};
pub use crate::peers::replies::{Replies, Reply};
use crate::peers::{Hall, PREFIX, Pending};
use crate::store::To;

/// How long a call waits for its replies, unless [`Call::timeout`] says otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that a call can wait.
pub const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Longest name of a connection, in bytes.
pub(crate) const CONNECTION_BYTES_MAX: usize = 256;
/// How long a call that is over may take to find out who has not answered.
pub(super) const NAMING: Duration = Duration::from_millis(20);

/// Whom a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
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
    target: Target,
    timeout: Duration,
}

impl Call {
    pub(crate) fn new(duly: Duly, method: String, args: &impl Serialize) -> Self {
        let args =
            to_raw_value(args).map_err(|why| Error::invalid("args", format!("cannot be written as JSON: {why}")));
        Call { duly, method, args, target: Target::Any, timeout: CALL_TIMEOUT }
    }

    /// Any one node that answers this method: the default.
    pub fn any(mut self) -> Self {
        self.target = Target::Any;
        self
    }

    /// All nodes, this one too.
    pub fn all(mut self) -> Self {
        self.target = Target::All;
        self
    }

    /// This node.
    pub fn node(mut self, node: NodeId) -> Self {
        self.target = Target::Node(node);
        self
    }

    /// The node that holds this connection.
    pub fn connection(mut self, connection: impl Into<String>) -> Self {
        self.target = Target::Connection(connection.into());
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
        if self.target == Target::All {
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
        let until = clock::tick() + self.timeout;
        let pending = hall.open_call()?;
        let sent = tokio::time::timeout_at(until, self.send(&hall, &pending, args, false));
        match sent.await {
            Ok(sent) => Ok(Replies::new(self.method.clone(), pending, sent?, until)),
            Err(_) => Err(self.not_sent()),
        }
    }

    /// Calls and does not wait for an answer: nobody learns whether it was carried out.
    /// Answers how many nodes it was sent to.
    pub async fn forget(self) -> Result<u64> {
        let (hall, args) = self.check()?;
        let pending = hall.open_call()?;
        let sent = tokio::time::timeout(self.timeout, self.send(&hall, &pending, args, true)).await;
        match sent {
            Ok(sent) => Ok(sent?.len()),
            Err(_) => Err(self.not_sent()),
        }
    }

    fn not_sent(&self) -> Error {
        Error::Timeout { op: "call", reason: format!("{} could not be sent in time", self.method) }
    }

    fn check(&self) -> Result<(Arc<Hall>, &RawValue)> {
        check_name("method", &self.method)?;
        if self.timeout.is_zero() || self.timeout > CALL_TIMEOUT_MAX {
            return Err(Error::invalid("timeout", format!("must be more than 0 and at most {CALL_TIMEOUT_MAX:?}")));
        }
        if let Target::Connection(connection) = &self.target {
            check_text("connection", connection, CONNECTION_BYTES_MAX)?;
        }
        let args = self.args.as_ref().map_err(|error| Error::invalid("args", error.to_string()))?;
        Ok((self.duly.hall()?, args))
    }

    /// Sends it to whom it is for.
    async fn send(&self, hall: &Hall, pending: &Pending, args: &RawValue, forget: bool) -> Result<Sent> {
        hall.attended().await?;
        let says = || Says::Call {
            sent: to_micros(hall.store().now()),
            method: self.method.clone(),
            args: args.to_owned(),
            deadline: envelope::deadline(hall.store().now(), self.timeout),
            connection: match &self.target {
                Target::Connection(connection) => Some(connection.clone()),
                _ => None,
            },
            forget,
        };
        let not_found = |what, name: String| Err(Error::NotFound { what, name });
        match &self.target {
            Target::All => Ok(Sent::All(hall.send_call(pending.id(), To::All, says()).await?)),
            Target::Node(node) => match hall.send_call(pending.id(), To::Node(*node), says()).await? {
                0 => not_found("node", node.to_string()),
                _ => Ok(Sent::One(*node)),
            },
            Target::Connection(connection) => {
                let Some(node) = hall.store().connection(connection).await? else {
                    return not_found("connection", connection.clone());
                };
                match hall.send_call(pending.id(), To::Node(node), says()).await? {
                    0 => not_found("connection", connection.clone()),
                    _ => Ok(Sent::One(node)),
                }
            }
            Target::Any => {
                let mut nodes = self.candidates(hall).await?;
                fastrand::shuffle(&mut nodes);
                // However many of them have just died: one that lives may be the last. The time of the call bounds it.
                for node in nodes {
                    if hall.send_call(pending.id(), To::Node(node), says()).await? > 0 {
                        return Ok(Sent::One(node));
                    }
                }
                not_found("node that answers", self.method.clone())
            }
        }
    }

    async fn candidates(&self, hall: &Hall) -> Result<Vec<NodeId>> {
        if !self.method.starts_with(PREFIX) {
            return hall.store().answering(&self.method).await;
        }
        let nodes = hall.store().nodes().await?;
        Ok(nodes.into_iter().filter(|node| node.alive).map(|node| node.id).collect())
    }
}

/// Who a call was sent to.
pub(crate) enum Sent {
    One(NodeId),
    /// So many, whoever they are.
    All(u64),
}

impl Sent {
    pub(super) fn len(&self) -> u64 {
        match self {
            Sent::One(_) => 1,
            Sent::All(nodes) => *nodes,
        }
    }
}

/// What a method gets beside its args.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Asked {
    /// The method that is called.
    pub method: String,
    /// Who calls.
    pub from: NodeId,
    /// The connection for whose sake this node is called.
    pub connection: Option<String>,
    /// When nobody waits for the answer any more, by the store's clock: then it is ended.
    pub deadline: SystemTime,
}

type Erase = Box<dyn FnOnce(Limits, Handle) -> Method + Send>;

/// A method to be registered. Made by [`Duly::answer`]; awaited, it is.
#[must_use = "a method is not registered until this is awaited"]
pub struct Answer {
    duly: Duly,
    method: String,
    erase: Erase,
    limits: Limits,
}

impl Answer {
    pub(crate) fn new(duly: Duly, method: String, erase: Erase) -> Self {
        let limits = Limits { concurrency: METHOD_CONCURRENCY, rate: None, bytes_max: MESSAGE_BYTES_MAX };
        Answer { duly, method, erase, limits }
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
        self.limits.bytes_max = bytes;
        self
    }

    async fn register(self) -> Result<()> {
        check_name("method", &self.method)?;
        if self.method.starts_with(PREFIX) {
            return Err(Error::invalid("method", format!("{} begins with {PREFIX}, which is duly's own", self.method)));
        }
        if self.limits.concurrency == 0 || self.limits.rate.is_some_and(|(calls, per)| calls == 0 || per.is_zero()) {
            return Err(Error::invalid("method", format!("{}: a limit of 0 lets nobody call it", self.method)));
        }
        let runtime =
            Handle::try_current().map_err(|_| Error::invalid("method", "must be registered in a tokio runtime"))?;
        let hall = self.duly.hall()?;
        hall.attended().await?;
        let method = (self.erase)(self.limits, runtime);
        if !hall.add_method(self.method, method) {
            return Err(Error::invalid("method", format!("at most {METHODS_MAX} methods per process")));
        }
        hall.show().await
    }
}

impl IntoFuture for Answer {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.register())
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").field("method", &self.method).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// When a call is over.
pub(super) type Until = Instant;
