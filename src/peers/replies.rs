//! The replies to a call, each as it comes.

use std::collections::VecDeque;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::clock;
use crate::error::{Error, Result};
use crate::node::NodeId;
use crate::peers::PendingCall;
use crate::peers::call::{CallDeadline, CallRecipients, MessageBody};

/// What one node has answered.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reply<T> {
    /// Who; `None` if somebody has not answered in time and nobody knows who that is.
    pub node: Option<NodeId>,
    /// The value; [`Error::Remote`] if the method has failed there or was too busy, [`Error::NotFound`] if there is none of
    /// this name, [`Error::Timeout`] if no answer came in time.
    pub result: Result<T>,
}

/// The replies to a call: ends when every node that was called has answered, or when the time is over.
/// Those who had not answered by then come last, each as a timeout.
#[must_use = "take the replies with `next` or `collect`"]
pub struct Replies<T> {
    method: String,
    pending: PendingCall,
    expected: u64,
    /// The one node that was called, if it was one.
    single_node: Option<NodeId>,
    answered: Vec<NodeId>,
    /// Those who have not answered in time, once it is over.
    missing: Option<VecDeque<Option<NodeId>>>,
    deadline: CallDeadline,
    marker: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Replies<T> {
    pub(crate) fn new(method: String, pending: PendingCall, sent: CallRecipients, until: CallDeadline) -> Self {
        let one = match sent {
            CallRecipients::One(node) => Some(node),
            CallRecipients::All(_) => None,
        };
        let expected = sent.count();
        crate::metrics::record_call(&method, expected);
        Replies {
            method,
            pending,
            expected,
            single_node: one,
            answered: Vec::new(),
            missing: None,
            deadline: until,
            marker: PhantomData,
        }
    }

    /// How many nodes were called.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// The next reply; `None` once every node has had its turn.
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
        if self.answered.len() as u64 >= self.expected {
            return None;
        }
        match tokio::time::timeout_at(self.deadline, self.pending.next_reply()).await {
            Ok(Some((node, says))) => {
                self.answered.push(node);
                Some(Reply { node: Some(node), result: self.decode_result(node, says) })
            }
            Ok(None) | Err(_) => {
                self.missing = Some(self.find_missing_nodes().await);
                let node = self.missing.as_mut()?.pop_front()?;
                Some(Reply { node, result: Err(self.timeout_error()) })
            }
        }
    }

    /// All replies, once they are there.
    pub async fn collect(mut self) -> Vec<Reply<T>> {
        let mut all = Vec::new();
        while let Some(reply) = self.next().await {
            all.push(reply);
        }
        all
    }

    fn timeout_error(&self) -> Error {
        Error::Timeout { op: "call", reason: format!("no answer to {}; it may have been carried out", self.method) }
    }

    fn decode_result(&self, node: NodeId, says: MessageBody) -> Result<T> {
        let remote = |reason| Err(Error::Remote { method: self.method.clone(), node, reason });
        match says {
            MessageBody::Value(value) => match serde_json::from_str(value.get()) {
                Ok(value) => Ok(value),
                Err(why) => remote(format!("the answer does not decode as {}: {why}", std::any::type_name::<T>())),
            },
            MessageBody::Failed(reason) => remote(reason),
            MessageBody::Busy(reason) => remote(format!("busy: {reason}")),
            MessageBody::NoMethod => Err(Error::NotFound { what: "method", name: self.method.clone() }),
            MessageBody::NoConnection(name) => Err(Error::NotFound { what: "connection", name }),
            MessageBody::Call { .. } => remote("answered with a call".to_owned()),
        }
    }

    /// One entry for each node that has not answered, by name as far as the store knows them.
    async fn find_missing_nodes(&self) -> VecDeque<Option<NodeId>> {
        let count = usize::try_from(self.expected).unwrap_or(usize::MAX).saturating_sub(self.answered.len());
        if let Some(one) = self.single_node {
            return VecDeque::from(vec![Some(one); count]);
        }
        let store = self.pending.peers().store();
        let known =
            tokio::time::timeout_at(clock::monotonic_now() + crate::peers::call::MISSING_NODES_TIMEOUT, store.nodes())
                .await;
        let known = known.ok().and_then(Result::ok).unwrap_or_default();
        let silent = known.into_iter().filter(|node| node.alive && !self.answered.contains(&node.id));
        let silent: VecDeque<_> = silent.map(|node| Some(node.id)).collect();
        // If others are silent too who were not called, nobody can say which of them it was.
        if silent.len() == count { silent } else { VecDeque::from(vec![None; count]) }
    }
}

impl<T> std::fmt::Debug for Replies<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (method, expected, answered) = (&self.method, &self.expected, &self.answered.len());
        f.debug_struct("Replies")
            .field("method", method)
            .field("expected", expected)
            .field("answered", answered)
            .finish_non_exhaustive()
    }
}
