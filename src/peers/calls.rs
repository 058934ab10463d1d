//! Calls and replies of this process: who waits for what, and what is done with a message that comes.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use crate::store::Recipient;

/// Most calls of this process that wait for replies.
const PENDING_CALLS_MAX: usize = 10_000;
/// Most replies to one call that wait to be looked at.
const BUFFERED_REPLIES_MAX: usize = 4_096;
/// Most calls that are remembered, so that none is answered twice.
const SEEN_CALLS_MAX: usize = 100_000;
/// Most calls at a time whose caller is told why they are not carried out.
const REJECTIONS_IN_FLIGHT_MAX: usize = 256;
/// Most calls at a time of the methods that every node has.
const BUILTIN_CALLS_MAX: usize = 256;
/// Most nodes whose replies to one call are told apart; there are no more in a cluster.
const REPLIERS_MAX: usize = 65_536;
/// How often those that are too late to come again are forgotten.
const SEEN_PRUNE_INTERVAL: Duration = Duration::from_secs(1);
/// A call that was sent by a clock a little ahead of ours is not refused for that.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);

/// What is known of the store's time without asking may be wrong by so much.
const STORE_TIME_ERROR_MAX: Duration = Duration::from_secs(1);

/// A reply, and who gave it.
pub(crate) type NodeReply = (NodeId, MessageBody);

/// A call that waits for replies.
struct OpenCall {
    replies: mpsc::Sender<NodeReply>,
    replied_nodes: HashSet<NodeId>,
}

/// How many messages were dropped, and why.
#[derive(Default)]
struct CallCounters {
    sent: AtomicU64,
    answered: AtomicU64,
    late_replies: AtomicU64,
    duplicate_replies: AtomicU64,
    malformed: AtomicU64,
    forged: AtomicU64,
    not_for_us: AtomicU64,
    expired: AtomicU64,
    replayed: AtomicU64,
    too_many: AtomicU64,
}

/// The same, to be shown.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct CallCounts {
    /// Calls that this process has made.
    pub(crate) sent: u64,
    /// Calls that it has answered.
    pub(crate) answered: u64,
    /// Replies that came when nobody waited for them any more, or never had.
    pub(crate) late_replies: u64,
    pub(crate) duplicate_replies: u64,
    /// Messages that were refused, by reason.
    pub(crate) malformed: u64,
    pub(crate) forged: u64,
    pub(crate) not_for_us: u64,
    pub(crate) expired: u64,
    pub(crate) replayed: u64,
    pub(crate) too_many: u64,
}

/// Calls that were heard, until they are too late to be heard again.
struct SeenCalls {
    expires_at: HashMap<Uuid, Micros>,
    prune_at: Instant,
}

pub(crate) struct CallRegistry {
    node: NodeId,
    pub(crate) keys: ClusterKeys,
    open_calls: Mutex<HashMap<Uuid, OpenCall>>,
    /// When this process entered the hall, by the store's clock.
    joined_at: AtomicI64,
    seen: Mutex<SeenCalls>,
    rejection_permits: Arc<Semaphore>,
    builtin_permits: Arc<Semaphore>,
    counts: CallCounters,
}

/// Who answers a call, and the room that it takes until then.
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

    /// This process has entered the hall.
    pub(crate) fn set_joined(&self, now: Micros) {
        self.joined_at.store(now, Ordering::Relaxed);
    }

    fn open_calls(&self) -> MutexGuard<'_, HashMap<Uuid, OpenCall>> {
        self.open_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> CallCounts {
        let CallCounters {
            sent, answered, late_replies, duplicate_replies: doubled_replies, malformed, forged, ..
        } = &self.counts;
        let CallCounters { not_for_us, expired: late, replayed, too_many: flood, .. } = &self.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CallCounts {
            sent: read(sent),
            answered: read(answered),
            late_replies: read(late_replies),
            duplicate_replies: read(doubled_replies),
            malformed: read(malformed),
            forged: read(forged),
            not_for_us: read(not_for_us),
            expired: read(late),
            replayed: read(replayed),
            too_many: read(flood),
        }
    }

    fn count_rejection(&self, why: RejectReason) {
        let count = match why {
            RejectReason::Malformed | RejectReason::TooLong => &self.counts.malformed,
            RejectReason::Forged => &self.counts.forged,
            RejectReason::NotForUs => &self.counts.not_for_us,
            RejectReason::Expired => &self.counts.expired,
            RejectReason::Replayed => &self.counts.replayed,
            RejectReason::TooMany => &self.counts.too_many,
        };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(node = %self.node, ?why, "a message was refused");
    }

    /// A call is answered once, not after its time, and if it is for all not by who has come after it.
    fn admit(&self, id: Uuid, to_all: bool, sent: Micros, deadline: Micros, now: Micros) -> Result<(), RejectReason> {
        // If the clock was set back since we came, what is sent by it now is not from before.
        let joined = self.joined_at.fetch_min(now, Ordering::Relaxed).min(now);
        if to_all && sent < joined.saturating_sub(micros(STORE_TIME_ERROR_MAX)) {
            return Err(RejectReason::Replayed);
        }
        if deadline <= now {
            return Err(RejectReason::Expired);
        }
        if deadline > now + micros(CALL_TIMEOUT_MAX + CLOCK_SKEW_MAX) {
            return Err(RejectReason::Malformed);
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if clock::monotonic_now() >= seen.prune_at {
            seen.expires_at.retain(|_, until| *until > now);
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

    /// Passes a reply on to who waits for it.
    fn deliver_reply(&self, id: Uuid, from: NodeId, says: MessageBody) {
        let mut open = self.open_calls();
        let Some(call) = open.get_mut(&id) else {
            self.counts.late_replies.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if call.replied_nodes.len() >= REPLIERS_MAX || !call.replied_nodes.insert(from) {
            self.counts.duplicate_replies.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Whoever does not look at thousands of replies will not miss one.
        let _ = call.replies.try_send((from, says));
    }
}

/// A call that waits for replies; dropped, nobody waits any more, and what comes is counted as late.
pub(crate) struct PendingCall {
    peers: Arc<Peers>,
    id: Uuid,
    replies: mpsc::Receiver<NodeReply>,
}

impl PendingCall {
    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    /// The next reply.
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
    /// A call that is about to be sent: from now on its replies are heard.
    pub(crate) fn open_call(self: &Arc<Self>) -> Result<PendingCall> {
        let (sender, replies) = mpsc::channel(BUFFERED_REPLIES_MAX);
        let id = Uuid::now_v7();
        let mut open = self.inner.calls.open_calls();
        if open.len() >= PENDING_CALLS_MAX {
            let reason =
                format!("{PENDING_CALLS_MAX} calls of this process wait for replies already; wait for some of them");
            return Err(Error::store("call", reason));
        }
        open.insert(id, OpenCall { replies: sender, replied_nodes: HashSet::new() });
        self.inner.calls.counts.sent.fetch_add(1, Ordering::Relaxed);
        Ok(PendingCall { peers: self.clone(), id, replies })
    }

    /// Signs and sends a call; answers how many it has reached.
    pub(crate) async fn send_call(&self, id: Uuid, to: Recipient, says: MessageBody) -> Result<u64> {
        let node = match to {
            Recipient::All => None,
            Recipient::Node(node) => Some(node),
        };
        let message = PeerMessage { id, from: self.inner.node, to: node, body: says };
        let frame = message.seal(&self.inner.calls.keys).map_err(|error| match error {
            Error::Invalid { reason, .. } => Error::invalid("args", reason),
            other => other,
        })?;
        self.inner.store.send(to, &frame).await
    }
}

impl PeersInner {
    /// A message has come.
    pub(crate) fn handle_message(self: &Arc<Self>, frame: &[u8]) {
        let ours = |node: NodeId| node == self.node || self.workers().iter().any(|worker| worker.node == node);
        let message = match PeerMessage::open(frame, &self.calls.keys, ours) {
            Ok(message) => message,
            Err(refused) => return self.calls.count_rejection(refused),
        };
        let MessageBody::Call { method, args, sent, deadline, connection, no_reply: forget } = message.body else {
            return self.calls.deliver_reply(message.id, message.from, message.body);
        };
        let now = to_micros(self.store.now());
        // Under the name by which it was called.
        let from = message.to.unwrap_or(self.node);
        let reply = move |says| PeerMessage { id: message.id, from, to: Some(message.from), body: says };
        if let Err(refused) = self.calls.admit(message.id, message.to.is_none(), sent, deadline, now) {
            self.calls.count_rejection(refused);
            if refused == RejectReason::TooMany && !forget {
                let many = format!("{SEEN_CALLS_MAX} calls that are not over yet are remembered here");
                self.send_rejection(reply(MessageBody::Busy(many)));
            }
            return;
        }
        let within = Duration::from_micros(u64::try_from(deadline - now).unwrap_or(0));
        let asked = CallContext { method, caller: message.from, connection, deadline: deadline_time(deadline) };
        // Before anything is begun: whoever floods us with calls that nobody answers makes no tasks of them.
        let answering = match self.find_runner(&asked, &args) {
            Ok(answering) => answering,
            Err(says) if !forget => return self.send_rejection(reply(says)),
            Err(_) => return,
        };
        let (inner, to) = (self.clone(), message.to);
        self.spawn(async move {
            let says = inner.run_call(answering, asked, &args, to, within).await;
            drop(args);
            let Some(says) = says.filter(|_| !forget) else {
                return;
            };
            inner.send_reply(reply(says)).await;
        });
    }

    /// Tells a caller why its call is not carried out; not all of them at once, or that itself would be too much.
    fn send_rejection(self: &Arc<Self>, message: PeerMessage) {
        let Ok(room) = self.calls.rejection_permits.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.clone();
        self.spawn(async move {
            inner.send_reply(message).await;
            drop(room);
        });
    }

    /// Who answers a call; or why nobody does.
    fn find_runner(&self, asked: &CallContext, args: &RawValue) -> Result<CallRunner, MessageBody> {
        if let Some(connection) = asked.connection.as_ref().filter(|connection| !self.connections.contains(connection))
        {
            return Err(MessageBody::NoConnection(connection.clone()));
        }
        if asked.method.starts_with(builtin_methods::BUILTIN_METHOD_PREFIX) {
            let room = self.calls.builtin_permits.clone().try_acquire_owned();
            return room
                .map(CallRunner::Builtin)
                .map_err(|_| MessageBody::Busy(format!("{BUILTIN_CALLS_MAX} such calls are under way")));
        }
        let method = self.methods.get(&asked.method).ok_or(MessageBody::NoMethod)?;
        let room = method.admit(args).map_err(MessageBody::Busy)?;
        Ok(CallRunner::Method(method, room))
    }

    /// What to reply; nothing if nobody waits for it any more.
    async fn run_call(
        self: &Arc<Self>,
        answering: CallRunner,
        asked: CallContext,
        args: &RawValue,
        to: Option<NodeId>,
        within: Duration,
    ) -> Option<MessageBody> {
        self.calls.counts.answered.fetch_add(1, Ordering::Relaxed);
        match answering {
            CallRunner::Builtin(_room) => {
                let own = asked.method.strip_prefix(builtin_methods::BUILTIN_METHOD_PREFIX).unwrap_or_default();
                tokio::time::timeout(within, builtin_methods::run_builtin(self, own, args, to)).await.ok()
            }
            CallRunner::Method(method, room) => Some(match method.run(args, asked, within, room).await? {
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
            tracing::warn!(%to, %error, "a reply could not be sent");
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
        let to_all = |sent, now| calls.admit(Uuid::now_v7(), true, sent, now + minute, now);
        assert_eq!(to_all(9 * hour, 10 * hour), Err(RejectReason::Replayed), "from before we came");
        assert_eq!(to_all(8 * hour, 8 * hour), Ok(()), "the clock was set back by two hours");
        assert_eq!(to_all(7 * hour, 8 * hour), Err(RejectReason::Replayed));
    }

    #[tokio::test]
    async fn call_to_node_with_full_seen_set_gets_busy() {
        let duly = Duly::open(":memory:").await.expect("opens");
        let hall = duly.peers().expect("starts");
        let ping = || duly.call("duly.ping", &()).node(hall.node_id()).reply::<serde_json::Value>();
        ping().await.expect("answers");
        let over = to_micros(hall.store().now()) + micros(CALL_TIMEOUT_MAX);
        let forget = |at: Micros| {
            let mut seen = hall.inner.calls.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.expires_at = (0..SEEN_CALLS_MAX).map(|_| (Uuid::now_v7(), at)).collect();
        };
        forget(over);
        let refused = ping().await.expect_err("too many");
        assert!(matches!(&refused, Error::Remote { reason, .. } if reason.starts_with("busy")), "{refused}");
        assert_eq!(hall.inner.calls.counts().too_many, 1);
        forget(0);
        tokio::time::sleep(SEEN_PRUNE_INTERVAL).await;
        ping().await.expect("answers again");
    }
}
