//! Calls and replies of this process: matches replies to pending calls and handles incoming messages.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use uuid::Uuid;

use crate::clock::{self, Micros, micros, to_micros};
use crate::error::{Error, Result};
use crate::node::NodeId;
use crate::peers::call::{
    CALL_TIMEOUT_MAX, CallContext, ClusterKeys, MessageBody, Method, PeerMessage, RejectReason, deadline_time,
};
use crate::peers::{Peers, PeersInner, builtin_methods};
use crate::store::{PeerStore, Recipient};
use crate::sync::LockExt;

/// Most pending calls of this process.
const PENDING_CALLS_MAX: usize = 10_000;
/// Most unread replies to one call.
const BUFFERED_REPLIES_MAX: usize = 4_096;
/// Most remembered calls, so that none runs twice.
const SEEN_CALLS_MAX: usize = 100_000;
/// Most concurrent rejections sent to callers.
const REJECTIONS_IN_FLIGHT_MAX: usize = 256;
/// Most concurrent calls of built-in methods.
const BUILTIN_CALLS_MAX: usize = 256;
/// Most nodes whose replies to one call are distinguished; a cluster has no more.
const REPLIERS_MAX: usize = 65_536;
/// How often expired entries of remembered calls are removed.
const SEEN_PRUNE_INTERVAL: Duration = Duration::from_secs(1);
/// Tolerance for a caller whose clock is ahead of the local one.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);

/// Largest error of the store's time as known without a request.
const STORE_TIME_ERROR_MAX: Duration = Duration::from_secs(1);

/// A reply and the node that sent it.
pub(crate) type NodeReply = (NodeId, MessageBody);

/// A pending call.
struct OpenCall {
    replies: mpsc::Sender<NodeReply>,
    replied_nodes: HashSet<NodeId>,
}

/// Counts calls, replies and rejected messages.
#[derive(Default)]
struct CallCounters {
    sent: AtomicU64,
    handled: AtomicU64,
    late_replies: AtomicU64,
    duplicate_replies: AtomicU64,
    malformed: AtomicU64,
    forged: AtomicU64,
    not_for_us: AtomicU64,
    expired: AtomicU64,
    replayed: AtomicU64,
    too_many: AtomicU64,
}

/// A snapshot of [`CallCounters`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct CallCounts {
    /// Calls sent by this process.
    pub(crate) sent: u64,
    /// Calls run by this process.
    pub(crate) handled: u64,
    /// Replies without a pending call.
    pub(crate) late_replies: u64,
    pub(crate) duplicate_replies: u64,
    /// Rejected messages, by reason.
    pub(crate) malformed: u64,
    pub(crate) forged: u64,
    pub(crate) not_for_us: u64,
    pub(crate) expired: u64,
    pub(crate) replayed: u64,
    pub(crate) too_many: u64,
}

/// Received calls, remembered until they expire.
struct SeenCalls {
    expires_at: HashMap<Uuid, Micros>,
    prune_at: Instant,
}

pub(crate) struct CallRegistry {
    node: NodeId,
    pub(crate) keys: ClusterKeys,
    open_calls: Mutex<HashMap<Uuid, OpenCall>>,
    /// When this process joined its peers, by the store's clock.
    joined_at: AtomicI64,
    seen: Mutex<SeenCalls>,
    rejection_permits: Arc<Semaphore>,
    builtin_permits: Arc<Semaphore>,
    counts: CallCounters,
}

/// The method that runs a call, with its permit.
enum CallRunner {
    Builtin(OwnedSemaphorePermit),
    Method(Method, OwnedSemaphorePermit),
}

impl CallRegistry {
    pub(crate) fn new(node: NodeId, keys: ClusterKeys) -> Self {
        let seen = SeenCalls { expires_at: HashMap::new(), prune_at: clock::monotonic_now() };
        CallRegistry {
            node,
            keys,
            open_calls: Mutex::default(),
            joined_at: AtomicI64::new(0),
            seen: Mutex::new(seen),
            rejection_permits: Arc::new(Semaphore::new(REJECTIONS_IN_FLIGHT_MAX)),
            builtin_permits: Arc::new(Semaphore::new(BUILTIN_CALLS_MAX)),
            counts: CallCounters::default(),
        }
    }

    /// Records when this process joined its peers.
    pub(crate) fn set_joined(&self, now: Micros) {
        self.joined_at.store(now, Ordering::Relaxed);
    }

    fn open_calls(&self) -> MutexGuard<'_, HashMap<Uuid, OpenCall>> {
        self.open_calls.lock_unpoisoned()
    }

    pub(crate) fn counts(&self) -> CallCounts {
        let CallCounters { sent, handled, late_replies, duplicate_replies, malformed, forged, .. } = &self.counts;
        let CallCounters { not_for_us, expired, replayed, too_many, .. } = &self.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CallCounts {
            sent: read(sent),
            handled: read(handled),
            late_replies: read(late_replies),
            duplicate_replies: read(duplicate_replies),
            malformed: read(malformed),
            forged: read(forged),
            not_for_us: read(not_for_us),
            expired: read(expired),
            replayed: read(replayed),
            too_many: read(too_many),
        }
    }

    fn count_rejection(&self, reason: RejectReason) {
        let count = match reason {
            RejectReason::Malformed | RejectReason::TooLong => &self.counts.malformed,
            RejectReason::Forged => &self.counts.forged,
            RejectReason::NotForUs => &self.counts.not_for_us,
            RejectReason::Expired => &self.counts.expired,
            RejectReason::Replayed => &self.counts.replayed,
            RejectReason::TooMany => &self.counts.too_many,
        };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(node = %self.node, ?reason, "rejected a message");
    }

    /// Accepts a call once and before its deadline. Rejects a broadcast sent before this process joined.
    fn admit(
        &self,
        id: Uuid,
        is_broadcast: bool,
        sent: Micros,
        deadline: Micros,
        now: Micros,
    ) -> Result<(), RejectReason> {
        // If the clock was set back since this process joined, calls sent since then are still accepted.
        let joined = self.joined_at.fetch_min(now, Ordering::Relaxed).min(now);
        if is_broadcast && sent < joined.saturating_sub(micros(STORE_TIME_ERROR_MAX)) {
            return Err(RejectReason::Replayed);
        }
        if deadline <= now {
            return Err(RejectReason::Expired);
        }
        if deadline > now + micros(CALL_TIMEOUT_MAX + CLOCK_SKEW_MAX) {
            return Err(RejectReason::Malformed);
        }
        let mut seen = self.seen.lock_unpoisoned();
        if clock::monotonic_now() >= seen.prune_at {
            seen.expires_at.retain(|_, expires| *expires > now);
            seen.prune_at = clock::monotonic_now() + SEEN_PRUNE_INTERVAL;
        }
        if seen.expires_at.contains_key(&id) {
            return Err(RejectReason::Replayed);
        }
        if seen.expires_at.len() >= SEEN_CALLS_MAX {
            return Err(RejectReason::TooMany);
        }
        seen.expires_at.insert(id, deadline);
        Ok(())
    }

    /// Delivers a reply to its pending call.
    fn deliver_reply(&self, id: Uuid, from: NodeId, body: MessageBody) {
        let mut open = self.open_calls();
        let Some(call) = open.get_mut(&id) else {
            self.counts.late_replies.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if call.replied_nodes.len() >= REPLIERS_MAX || !call.replied_nodes.insert(from) {
            self.counts.duplicate_replies.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Dropped if the caller has thousands of unread replies.
        let _ = call.replies.try_send((from, body));
    }
}

/// A pending call. After it is dropped, further replies are counted as late.
pub(crate) struct PendingCall {
    peers: Arc<Peers>,
    id: Uuid,
    replies: mpsc::Receiver<NodeReply>,
}

impl PendingCall {
    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    /// Returns the next reply.
    pub(crate) async fn next_reply(&mut self) -> Option<NodeReply> {
        self.replies.recv().await
    }

    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.peers.inner.calls.open_calls().remove(&self.id);
    }
}

impl Peers {
    /// Registers a call before it is sent, so that its replies are received.
    pub(crate) fn open_call(self: &Arc<Self>) -> Result<PendingCall> {
        let (sender, replies) = mpsc::channel(BUFFERED_REPLIES_MAX);
        let id = Uuid::now_v7();
        let mut open = self.inner.calls.open_calls();
        if open.len() >= PENDING_CALLS_MAX {
            let reason = format!("{PENDING_CALLS_MAX} calls of this process are pending; wait for some of them first");
            return Err(Error::store("call", reason));
        }
        open.insert(id, OpenCall { replies: sender, replied_nodes: HashSet::new() });
        self.inner.calls.counts.sent.fetch_add(1, Ordering::Relaxed);
        Ok(PendingCall { peers: self.clone(), id, replies })
    }

    /// Signs and sends a call. Returns how many nodes it reached.
    pub(crate) async fn send_call(&self, id: Uuid, to: Recipient, body: MessageBody) -> Result<u64> {
        let node = match to {
            Recipient::All => None,
            Recipient::Node(node) => Some(node),
        };
        let message = PeerMessage { id, from: self.inner.node, to: node, body };
        let frame = message.seal(&self.inner.calls.keys).map_err(|error| match error {
            Error::Invalid { reason, .. } => Error::invalid("args", reason),
            other => other,
        })?;
        self.inner.store.send(to, &frame).await
    }
}

impl PeersInner {
    /// Handles a received message.
    pub(crate) fn handle_message(self: &Arc<Self>, frame: &[u8]) {
        let is_local = |node: NodeId| node == self.node || self.workers().iter().any(|worker| worker.node == node);
        let message = match PeerMessage::open(frame, &self.calls.keys, is_local) {
            Ok(message) => message,
            Err(reason) => return self.calls.count_rejection(reason),
        };
        let MessageBody::Call { method, args, sent, deadline, connection, no_reply } = message.body else {
            return self.calls.deliver_reply(message.id, message.from, message.body);
        };
        let now = to_micros(self.store.now());
        // Replies come from the node id that was called.
        let from = message.to.unwrap_or(self.node);
        let reply = move |body| PeerMessage { id: message.id, from, to: Some(message.from), body };
        if let Err(reason) = self.calls.admit(message.id, message.to.is_none(), sent, deadline, now) {
            self.calls.count_rejection(reason);
            if reason == RejectReason::TooMany && !no_reply {
                let too_many = format!("this node already remembers {SEEN_CALLS_MAX} unexpired calls; try again later");
                self.send_rejection(reply(MessageBody::Busy(too_many)));
            }
            return;
        }
        let timeout = Duration::from_micros(u64::try_from(deadline - now).unwrap_or(0));
        let context = CallContext { method, caller: message.from, connection, deadline: deadline_time(deadline) };
        // Checked before a task is spawned, so that a flood of calls without a method creates no tasks.
        let runner = match self.find_runner(&context, &args) {
            Ok(runner) => runner,
            Err(body) if !no_reply => return self.send_rejection(reply(body)),
            Err(_) => return,
        };
        let (inner, to) = (self.clone(), message.to);
        self.spawn(async move {
            let body = inner.run_call(runner, context, &args, to, timeout).await;
            drop(args);
            let Some(body) = body.filter(|_| !no_reply) else {
                return;
            };
            inner.send_reply(reply(body)).await;
        });
    }

    /// Sends a caller the reason why its call is rejected. Limited in number, to avoid overload.
    fn send_rejection(self: &Arc<Self>, message: PeerMessage) {
        let Ok(permit) = self.calls.rejection_permits.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.clone();
        self.spawn(async move {
            inner.send_reply(message).await;
            drop(permit);
        });
    }

    /// Returns the method for a call, or the reply that rejects it.
    fn find_runner(&self, context: &CallContext, args: &RawValue) -> Result<CallRunner, MessageBody> {
        if let Some(connection) =
            context.connection.as_ref().filter(|connection| !self.connections.contains(connection))
        {
            return Err(MessageBody::NoConnection(connection.clone()));
        }
        if context.method.starts_with(builtin_methods::BUILTIN_METHOD_PREFIX) {
            let permit = self.calls.builtin_permits.clone().try_acquire_owned();
            return permit.map(CallRunner::Builtin).map_err(|_| {
                MessageBody::Busy(format!(
                    "{BUILTIN_CALLS_MAX} calls of built-in methods are running on this node; try again later"
                ))
            });
        }
        let method = self.methods.get(&context.method).ok_or(MessageBody::NoMethod)?;
        let permit = method.admit(args).map_err(MessageBody::Busy)?;
        Ok(CallRunner::Method(method, permit))
    }

    /// Runs a call and returns the reply; `None` if the caller no longer waits.
    async fn run_call(
        self: &Arc<Self>,
        runner: CallRunner,
        context: CallContext,
        args: &RawValue,
        to: Option<NodeId>,
        timeout: Duration,
    ) -> Option<MessageBody> {
        self.calls.counts.handled.fetch_add(1, Ordering::Relaxed);
        match runner {
            CallRunner::Builtin(_permit) => {
                let method = context.method.strip_prefix(builtin_methods::BUILTIN_METHOD_PREFIX).unwrap_or_default();
                tokio::time::timeout(timeout, builtin_methods::run_builtin(self, method, args, to)).await.ok()
            }
            CallRunner::Method(method, permit) => Some(match method.run(args, context, timeout, permit).await? {
                Ok(value) => MessageBody::Value(value),
                Err(error) => MessageBody::Failed(error),
            }),
        }
    }

    async fn send_reply(&self, mut message: PeerMessage) {
        let Some(to) = message.to else {
            return;
        };
        let frame = message.seal(&self.calls.keys).or_else(|error| {
            message.body = MessageBody::Failed(format!("the reply cannot be sent: {error}"));
            message.seal(&self.calls.keys)
        });
        let sent = match frame {
            Ok(frame) => self.store.send(Recipient::Node(to), &frame).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::warn!(%to, %error, "failed to send a reply");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Duly;

    #[tokio::test]
    async fn call_after_clock_set_back_is_not_replayed() {
        let calls = CallRegistry::new(NodeId::fresh(), ClusterKeys::default());
        let (hour, minute) = (micros(Duration::from_secs(3_600)), micros(Duration::from_secs(60)));
        calls.set_joined(10 * hour);
        let broadcast = |sent, now| calls.admit(Uuid::now_v7(), true, sent, now + minute, now);
        assert_eq!(broadcast(9 * hour, 10 * hour), Err(RejectReason::Replayed), "sent before this node joined");
        assert_eq!(broadcast(8 * hour, 8 * hour), Ok(()), "the clock was set back by two hours");
        assert_eq!(broadcast(7 * hour, 8 * hour), Err(RejectReason::Replayed));
    }

    #[tokio::test]
    async fn call_to_node_with_full_seen_set_gets_busy() {
        let duly = Duly::open(":memory:").await.expect("opens");
        let peers = duly.peers().expect("starts");
        let ping = || duly.call("duly.ping", &()).node(peers.node_id()).reply::<serde_json::Value>();
        ping().await.expect("replies");
        let deadline = to_micros(peers.store().now()) + micros(CALL_TIMEOUT_MAX);
        let fill_seen = |expires: Micros| {
            let mut seen = peers.inner.calls.seen.lock_unpoisoned();
            seen.expires_at = (0..SEEN_CALLS_MAX).map(|_| (Uuid::now_v7(), expires)).collect();
        };
        fill_seen(deadline);
        let error = ping().await.expect_err("too many");
        assert!(matches!(&error, Error::Remote { reason, .. } if reason.starts_with("busy")), "{error}");
        assert_eq!(peers.inner.calls.counts().too_many, 1);
        fill_seen(0);
        tokio::time::sleep(SEEN_PRUNE_INTERVAL).await;
        ping().await.expect("replies again");
    }
}
