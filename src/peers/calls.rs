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
use crate::peers::call::{Asked, CALL_TIMEOUT_MAX, Keys, Message, Method, Refused, Says, moment};
use crate::peers::{Hall, Inner, builtin_methods};
use crate::store::To;

/// Most calls of this process that wait for replies.
const PENDING_MAX: usize = 10_000;
/// Most replies to one call that wait to be looked at.
const REPLIES_MAX: usize = 4_096;
/// Most calls that are remembered, so that none is answered twice.
const SEEN_MAX: usize = 100_000;
/// Most calls at a time whose caller is told why they are not carried out.
const REFUSALS_MAX: usize = 256;
/// Most calls at a time of the methods that every node has.
const OWN_MAX: usize = 256;
/// Most nodes whose replies to one call are told apart; there are no more in a cluster.
const ANSWERING_MAX: usize = 65_536;
/// How often those that are too late to come again are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// A call that was sent by a clock a little ahead of ours is not refused for that.
const AHEAD_MAX: Duration = Duration::from_secs(60);

/// What is known of the store's time without asking may be wrong by so much.
const UNSURE: Duration = Duration::from_secs(1);

/// A reply, and who gave it.
pub(crate) type Replied = (NodeId, Says);

/// A call that waits for replies.
struct Open {
    replies: mpsc::Sender<Replied>,
    from: HashSet<NodeId>,
}

/// How many messages were dropped, and why.
#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    answered: AtomicU64,
    late_replies: AtomicU64,
    doubled_replies: AtomicU64,
    malformed: AtomicU64,
    forged: AtomicU64,
    not_for_us: AtomicU64,
    late: AtomicU64,
    replayed: AtomicU64,
    flood: AtomicU64,
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
    pub(crate) doubled_replies: u64,
    /// Messages that were refused, by reason.
    pub(crate) malformed: u64,
    pub(crate) forged: u64,
    pub(crate) not_for_us: u64,
    pub(crate) late: u64,
    pub(crate) replayed: u64,
    pub(crate) flood: u64,
}

/// Calls that were heard, until they are too late to be heard again.
struct Seen {
    until: HashMap<Uuid, Micros>,
    forget_at: Instant,
}

pub(crate) struct Calls {
    node: NodeId,
    pub(crate) keys: Keys,
    open: Mutex<HashMap<Uuid, Open>>,
    /// When this process entered the hall, by the store's clock.
    joined: AtomicI64,
    seen: Mutex<Seen>,
    refusals: Arc<Semaphore>,
    own: Arc<Semaphore>,
    counts: Counts,
}

/// Who answers a call, and the room that it takes until then.
enum Answering {
    Own(OwnedSemaphorePermit),
    Method(Method, OwnedSemaphorePermit),
}

impl Calls {
    pub(crate) fn new(node: NodeId, keys: Keys) -> Self {
        let seen = Seen { until: HashMap::new(), forget_at: clock::tick() };
        Calls {
            node,
            keys,
            open: Mutex::default(),
            joined: AtomicI64::new(0),
            seen: Mutex::new(seen),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            own: Arc::new(Semaphore::new(OWN_MAX)),
            counts: Counts::default(),
        }
    }

    /// This process has entered the hall.
    pub(crate) fn joined(&self, now: Micros) {
        self.joined.store(now, Ordering::Relaxed);
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Uuid, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> CallCounts {
        let Counts { sent, answered, late_replies, doubled_replies, malformed, forged, .. } = &self.counts;
        let Counts { not_for_us, late, replayed, flood, .. } = &self.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CallCounts {
            sent: read(sent),
            answered: read(answered),
            late_replies: read(late_replies),
            doubled_replies: read(doubled_replies),
            malformed: read(malformed),
            forged: read(forged),
            not_for_us: read(not_for_us),
            late: read(late),
            replayed: read(replayed),
            flood: read(flood),
        }
    }

    fn refuse(&self, why: Refused) {
        let count = match why {
            Refused::Malformed | Refused::TooLong => &self.counts.malformed,
            Refused::Forged => &self.counts.forged,
            Refused::NotForUs => &self.counts.not_for_us,
            Refused::Late => &self.counts.late,
            Refused::Replayed => &self.counts.replayed,
            Refused::Flood => &self.counts.flood,
        };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(node = %self.node, ?why, "a message was refused");
    }

    /// A call is answered once, not after its time, and if it is for all not by who has come after it.
    fn admit(&self, id: Uuid, to_all: bool, sent: Micros, deadline: Micros, now: Micros) -> Result<(), Refused> {
        // If the clock was set back since we came, what is sent by it now is not from before.
        let joined = self.joined.fetch_min(now, Ordering::Relaxed).min(now);
        if to_all && sent < joined.saturating_sub(micros(UNSURE)) {
            return Err(Refused::Replayed);
        }
        if deadline <= now {
            return Err(Refused::Late);
        }
        if deadline > now + micros(CALL_TIMEOUT_MAX + AHEAD_MAX) {
            return Err(Refused::Malformed);
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if clock::tick() >= seen.forget_at {
            seen.until.retain(|_, until| *until > now);
            seen.forget_at = clock::tick() + FORGET_EVERY;
        }
        if seen.until.contains_key(&id) {
            return Err(Refused::Replayed);
        }
        if seen.until.len() >= SEEN_MAX {
            return Err(Refused::Flood);
        }
        seen.until.insert(id, deadline);
        Ok(())
    }

    /// Passes a reply on to who waits for it.
    fn replied(&self, id: Uuid, from: NodeId, says: Says) {
        let mut open = self.open();
        let Some(call) = open.get_mut(&id) else {
            self.counts.late_replies.fetch_add(1, Ordering::Relaxed);
            return;
        };
        if call.from.len() >= ANSWERING_MAX || !call.from.insert(from) {
            self.counts.doubled_replies.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Whoever does not look at thousands of replies will not miss one.
        let _ = call.replies.try_send((from, says));
    }
}

/// A call that waits for replies; dropped, nobody waits any more, and what comes is counted as late.
pub(crate) struct Pending {
    hall: Arc<Hall>,
    id: Uuid,
    replies: mpsc::Receiver<Replied>,
}

impl Pending {
    pub(crate) fn id(&self) -> Uuid {
        self.id
    }

    /// The next reply.
    pub(crate) async fn next(&mut self) -> Option<Replied> {
        self.replies.recv().await
    }

    pub(crate) fn hall(&self) -> &Arc<Hall> {
        &self.hall
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.hall.inner.calls.open().remove(&self.id);
    }
}

impl Hall {
    /// A call that is about to be sent: from now on its replies are heard.
    pub(crate) fn open_call(self: &Arc<Self>) -> Result<Pending> {
        let (sender, replies) = mpsc::channel(REPLIES_MAX);
        let id = Uuid::now_v7();
        let mut open = self.inner.calls.open();
        if open.len() >= PENDING_MAX {
            let reason = format!("{PENDING_MAX} calls of this process wait for replies already; wait for some of them");
            return Err(Error::store("call", reason));
        }
        open.insert(id, Open { replies: sender, from: HashSet::new() });
        self.inner.calls.counts.sent.fetch_add(1, Ordering::Relaxed);
        Ok(Pending { hall: self.clone(), id, replies })
    }

    /// Signs and sends a call; answers how many it has reached.
    pub(crate) async fn send_call(&self, id: Uuid, to: To, says: Says) -> Result<u64> {
        let node = match to {
            To::All => None,
            To::Node(node) => Some(node),
        };
        let message = Message { id, from: self.inner.node, to: node, says };
        let frame = message.seal(&self.inner.calls.keys).map_err(|error| match error {
            Error::Invalid { reason, .. } => Error::invalid("args", reason),
            other => other,
        })?;
        self.inner.store.send(to, &frame).await
    }
}

impl Inner {
    /// A message has come.
    pub(crate) fn message(self: &Arc<Self>, frame: &[u8]) {
        let ours = |node: NodeId| node == self.node || self.workers().iter().any(|worker| worker.node == node);
        let message = match Message::open(frame, &self.calls.keys, ours) {
            Ok(message) => message,
            Err(refused) => return self.calls.refuse(refused),
        };
        let Says::Call { method, args, sent, deadline, connection, forget } = message.says else {
            return self.calls.replied(message.id, message.from, message.says);
        };
        let now = to_micros(self.store.now());
        // Under the name by which it was called.
        let from = message.to.unwrap_or(self.node);
        let reply = move |says| Message { id: message.id, from, to: Some(message.from), says };
        if let Err(refused) = self.calls.admit(message.id, message.to.is_none(), sent, deadline, now) {
            self.calls.refuse(refused);
            if refused == Refused::Flood && !forget {
                let many = format!("{SEEN_MAX} calls that are not over yet are remembered here");
                self.turn_away(reply(Says::Busy(many)));
            }
            return;
        }
        let within = Duration::from_micros(u64::try_from(deadline - now).unwrap_or(0));
        let asked = Asked { method, from: message.from, connection, deadline: moment(deadline) };
        // Before anything is begun: whoever floods us with calls that nobody answers makes no tasks of them.
        let answering = match self.answering(&asked, &args) {
            Ok(answering) => answering,
            Err(says) if !forget => return self.turn_away(reply(says)),
            Err(_) => return,
        };
        let (inner, to) = (self.clone(), message.to);
        self.spawn(async move {
            let says = inner.answer(answering, asked, &args, to, within).await;
            drop(args);
            let Some(says) = says.filter(|_| !forget) else {
                return;
            };
            inner.reply(reply(says)).await;
        });
    }

    /// Tells a caller why its call is not carried out; not all of them at once, or that itself would be too much.
    fn turn_away(self: &Arc<Self>, message: Message) {
        let Ok(room) = self.calls.refusals.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.clone();
        self.spawn(async move {
            inner.reply(message).await;
            drop(room);
        });
    }

    /// Who answers a call; or why nobody does.
    fn answering(&self, asked: &Asked, args: &RawValue) -> Result<Answering, Says> {
        if let Some(connection) = asked.connection.as_ref().filter(|connection| !self.connections.has(connection)) {
            return Err(Says::NoConnection(connection.clone()));
        }
        if asked.method.starts_with(builtin_methods::PREFIX) {
            let room = self.calls.own.clone().try_acquire_owned();
            return room.map(Answering::Own).map_err(|_| Says::Busy(format!("{OWN_MAX} such calls are under way")));
        }
        let method = self.methods.get(&asked.method).ok_or(Says::NoMethod)?;
        let room = method.admit(args).map_err(Says::Busy)?;
        Ok(Answering::Method(method, room))
    }

    /// What to reply; nothing if nobody waits for it any more.
    async fn answer(
        self: &Arc<Self>,
        answering: Answering,
        asked: Asked,
        args: &RawValue,
        to: Option<NodeId>,
        within: Duration,
    ) -> Option<Says> {
        self.calls.counts.answered.fetch_add(1, Ordering::Relaxed);
        match answering {
            Answering::Own(_room) => {
                let own = asked.method.strip_prefix(builtin_methods::PREFIX).unwrap_or_default();
                tokio::time::timeout(within, builtin_methods::answer(self, own, args, to)).await.ok()
            }
            Answering::Method(method, room) => Some(match method.run(args, asked, within, room).await? {
                Ok(value) => Says::Value(value),
                Err(error) => Says::Failed(error),
            }),
        }
    }

    async fn reply(&self, mut message: Message) {
        let Some(to) = message.to else {
            return;
        };
        let frame = message.seal(&self.calls.keys).or_else(|error| {
            message.says = Says::Failed(format!("the reply cannot be sent: {error}"));
            message.seal(&self.calls.keys)
        });
        let sent = match frame {
            Ok(frame) => self.store.send(To::Node(to), &frame).await,
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
    async fn a_clock_that_is_set_back_makes_no_call_an_old_one() {
        let calls = Calls::new(NodeId::fresh(), Keys::default());
        let (hour, minute) = (micros(Duration::from_secs(3_600)), micros(Duration::from_secs(60)));
        calls.joined(10 * hour);
        let to_all = |sent, now| calls.admit(Uuid::now_v7(), true, sent, now + minute, now);
        assert_eq!(to_all(9 * hour, 10 * hour), Err(Refused::Replayed), "from before we came");
        assert_eq!(to_all(8 * hour, 8 * hour), Ok(()), "the clock was set back by two hours");
        assert_eq!(to_all(7 * hour, 8 * hour), Err(Refused::Replayed));
    }

    #[tokio::test]
    async fn who_calls_a_node_that_remembers_too_many_is_told() {
        let duly = Duly::open(":memory:").await.expect("opens");
        let hall = duly.hall().expect("starts");
        let ping = || duly.call("duly.ping", &()).node(hall.node()).reply::<serde_json::Value>();
        ping().await.expect("answers");
        let over = to_micros(hall.store().now()) + micros(CALL_TIMEOUT_MAX);
        let forget = |at: Micros| {
            let mut seen = hall.inner.calls.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.until = (0..SEEN_MAX).map(|_| (Uuid::now_v7(), at)).collect();
        };
        forget(over);
        let refused = ping().await.expect_err("too many");
        assert!(matches!(&refused, Error::Remote { reason, .. } if reason.starts_with("busy")), "{refused}");
        assert_eq!(hall.inner.calls.counts().flood, 1);
        forget(0);
        tokio::time::sleep(FORGET_EVERY).await;
        ping().await.expect("answers again");
    }
}
