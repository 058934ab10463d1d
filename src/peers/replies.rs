//! The replies to a call, as they arrive.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::clock;
use crate::error::{Error, Result};
use crate::node::NodeId;
use crate::peers::PendingCall;
use crate::peers::call::{CallDeadline, CallRecipients, MessageBody};
use crate::store::PeerStore;

/// The reply of one node.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reply<T> {
    /// The node; `None` for a missing reply of an unknown node.
    pub node: Option<NodeId>,
    /// The value. [`Error::Remote`] if the method failed there or was busy, [`Error::NotFound`] if the node has no such
    /// method, [`Error::Timeout`] if no reply came in time.
    pub result: Result<T>,
}

/// The replies to a call. Ends when every called node has replied, or when the time is over.
/// Nodes that have not replied by then come last, each as a timeout.
///
/// # Examples
///
/// ```
/// # use duly::Duly;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let replies = duly.call("duly.ping", &()).all().replies::<serde_json::Value>().await?;
/// assert_eq!(replies.expected(), 1); // this process
/// let all = replies.collect().await;
/// assert!(all[0].result.is_ok());
/// # Ok(())
/// # }
/// ```
#[must_use = "take the replies with `next` or `collect`"]
pub struct Replies<T> {
    method: String,
    pending: PendingCall,
    expected: u64,
    /// The called node, if it was a single one.
    single_node: Option<NodeId>,
    replied: Vec<NodeId>,
    /// The nodes that have not replied, once the time is over.
    missing: Option<VecDeque<Option<NodeId>>>,
    deadline: CallDeadline,
    /// The time from the call to the deadline, for errors.
    timeout: Duration,
    marker: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Replies<T> {
    pub(crate) fn new(
        method: String,
        pending: PendingCall,
        sent: CallRecipients,
        deadline: CallDeadline,
        timeout: Duration,
    ) -> Self {
        let single_node = match sent {
            CallRecipients::One(node) => Some(node),
            CallRecipients::All(_) => None,
        };
        let expected = sent.count();
        crate::metrics::record_call(&method, expected);
        Replies {
            method,
            pending,
            expected,
            single_node,
            replied: Vec::new(),
            missing: None,
            deadline,
            timeout,
            marker: PhantomData,
        }
    }

    /// Returns how many nodes were called.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let replies = duly.call("duly.ping", &()).all().replies::<serde_json::Value>().await?;
    /// assert_eq!(replies.expected(), 1, "this process is the only node");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// Returns the next reply; `None` after one result per node.
    ///
    /// See [`Call::replies`](crate::call::Call::replies) for an example.
    pub async fn next(&mut self) -> Option<Reply<T>> {
        let reply = self.next_reply().await?;
        crate::metrics::record_reply(reply.result.as_ref().map_or_else(Error::code, |_| "ok"));
        Some(reply)
    }

    async fn next_reply(&mut self) -> Option<Reply<T>> {
        if let Some(missing) = &mut self.missing {
            let node = missing.pop_front()?;
            return Some(Reply { node, result: Err(self.timeout_error()) });
        }
        if self.replied.len() as u64 >= self.expected {
            return None;
        }
        match tokio::time::timeout_at(self.deadline, self.pending.next_reply()).await {
            Ok(Some((node, body))) => {
                self.replied.push(node);
                Some(Reply { node: Some(node), result: self.decode_result(node, body) })
            }
            Ok(None) | Err(_) => {
                self.missing = Some(self.find_missing_nodes().await);
                let node = self.missing.as_mut()?.pop_front()?;
                Some(Reply { node, result: Err(self.timeout_error()) })
            }
        }
    }

    /// Waits for all replies and returns them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let replies = duly.call("duly.ping", &()).all().replies::<serde_json::Value>().await?.collect().await;
    /// let failed = replies.iter().filter(|reply| reply.result.is_err()).count();
    /// assert_eq!(failed, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn collect(mut self) -> Vec<Reply<T>> {
        let mut all = Vec::new();
        while let Some(reply) = self.next().await {
            all.push(reply);
        }
        all
    }

    pub(super) fn timeout_error(&self) -> Error {
        let (timeout, method) = (self.timeout, &self.method);
        let reason = format!("timed out after {timeout:?} waiting for a reply to {method}; the method may have run");
        Error::Timeout { op: "call", reason }
    }

    fn decode_result(&self, node: NodeId, body: MessageBody) -> Result<T> {
        let remote = |reason| Err(Error::Remote { method: self.method.clone(), node, reason });
        match body {
            MessageBody::Value(value) => match serde_json::from_str(value.get()) {
                Ok(value) => Ok(value),
                Err(error) => remote(format!("cannot decode the reply as {}: {error}", std::any::type_name::<T>())),
            },
            MessageBody::Failed(reason) => remote(reason),
            MessageBody::Busy(reason) => remote(format!("busy: {reason}")),
            MessageBody::NoMethod => Err(Error::not_found("method", &self.method)),
            MessageBody::NoConnection(name) => Err(Error::not_found("connection", name)),
            MessageBody::Call { .. } => remote("replied with a call".to_owned()),
        }
    }

    /// Returns one entry for each node that has not replied, with its id if the store knows it.
    async fn find_missing_nodes(&self) -> VecDeque<Option<NodeId>> {
        let count = usize::try_from(self.expected).unwrap_or(usize::MAX).saturating_sub(self.replied.len());
        if let Some(node) = self.single_node {
            return VecDeque::from(vec![Some(node); count]);
        }
        let store = self.pending.peers().store();
        let nodes =
            tokio::time::timeout_at(clock::monotonic_now() + crate::peers::call::MISSING_NODES_TIMEOUT, store.nodes())
                .await;
        let nodes = nodes.ok().and_then(Result::ok).unwrap_or_default();
        let missing = nodes.into_iter().filter(|node| node.alive && !self.replied.contains(&node.id));
        let missing: VecDeque<_> = missing.map(|node| Some(node.id)).collect();
        // If other nodes that were not called are alive too, it is unknown which ones are missing.
        if missing.len() == count { missing } else { VecDeque::from(vec![None; count]) }
    }
}

impl<T> std::fmt::Debug for Replies<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (method, expected, replied) = (&self.method, &self.expected, &self.replied.len());
        f.debug_struct("Replies")
            .field("method", method)
            .field("expected", expected)
            .field("replied", replied)
            .finish_non_exhaustive()
    }
}
