//! One request: its commands, one attempt on one server, and the retry budget.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::clock;
use crate::store::redis::conn::connection::{ReplyLost, ServerConnection};
use crate::store::redis::conn::connector;
use crate::store::redis::script::{self, Script};

/// First pause before a retry; doubles up to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(5);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(250);
/// Maximum redirects to follow without a pause.
const REDIRECTS_MAX: u32 = 5;

/// A command, or several commands that run as one transaction.
pub(crate) struct ServerRequest<'r> {
    pub(crate) cmds: &'r [Cmd],
    /// Loaded if the server does not have it.
    pub(crate) script: Option<&'r Script>,
    /// The replicas that must have the write before the request succeeds.
    pub(crate) confirmation: Option<ReplicaConfirmation<'r>>,
    /// The request may run twice: it is resent if its reply is lost.
    pub(crate) idempotent: bool,
}

/// The number of replicas that must have a write before the request succeeds.
#[derive(Clone, Copy)]
pub(in crate::store::redis) struct ReplicaConfirmation<'r> {
    pub(in crate::store::redis) replicas: u32,
    /// A small write, sent last. Replicas confirm the writes of a connection, and a repeated push that finds its jobs
    /// writes nothing, although no replica may have the first push yet. Not needed if the request always writes.
    pub(in crate::store::redis) mark_write: Option<&'r Cmd>,
}

impl<'r> ServerRequest<'r> {
    /// Returns a request of one plain command that is sent once.
    pub(crate) fn single(cmd: &'r Cmd) -> Self {
        ServerRequest { cmds: std::slice::from_ref(cmd), script: None, confirmation: None, idempotent: false }
    }

    /// Returns whether the request may change data.
    pub(crate) fn is_write(&self) -> bool {
        self.script.is_some_and(|script| !script.only_reads())
    }

    /// Makes one attempt on one server, with `ASKING` if the slot is being migrated to it.
    pub(crate) async fn send_to(
        &self,
        connection: &Arc<ServerConnection>,
        asking: bool,
    ) -> Result<Value, Unacknowledged> {
        if let ([cmd], false, None) = (self.cmds, asking, self.confirmation) {
            return Ok(connection.send(cmd).await?);
        }
        let mark_write = self.confirmation.and_then(|confirmation| confirmation.mark_write);
        let is_transaction = self.cmds.len() > 1;
        let mut pipe = redis::pipe();
        if asking {
            pipe.cmd("ASKING");
        }
        if is_transaction {
            pipe.cmd("MULTI");
        }
        for cmd in self.cmds {
            pipe.add_command(cmd.clone());
        }
        if is_transaction {
            pipe.cmd("EXEC");
        }
        if let Some(mark_write) = mark_write {
            // Loaded first: NOSCRIPT would arrive only after the request ran.
            pipe.cmd("SCRIPT").arg("LOAD").arg(&script::MARK_WRITE.code);
            // ASKING counts for one command only.
            if asking {
                pipe.cmd("ASKING");
            }
            pipe.add_command(mark_write.clone());
        }
        if let Some(confirmation) = self.confirmation {
            pipe.cmd("WAIT").arg(confirmation.replicas).arg((connector::REPLY_TIMEOUT / 2).as_millis() as u64);
        }
        let mut replies = connection.send_pipeline(&pipe).await?;
        let confirmed = match self.confirmation {
            None => true,
            Some(confirmation) => {
                matches!(replies.pop(), Some(Value::Int(count)) if count >= i64::from(confirmation.replicas))
            }
        };
        let mark_reply = if mark_write.is_some() { replies.pop() } else { None };
        if mark_reply.is_some() {
            let replies_before_mark = if asking { 2 } else { 1 };
            replies.truncate(replies.len().saturating_sub(replies_before_mark));
        }
        // A rejected command has its own error; EXEC only reports that one was rejected. An EXEC that returns a list
        // did run, except for the commands with an error in the list.
        let mut reply = Value::Nil;
        for value in replies {
            let has_run = is_transaction && matches!(value, Value::Array(_));
            let unacknowledged = |error| {
                if has_run { Unacknowledged::Unconfirmed(Some(error)) } else { Unacknowledged::AfterSend(error) }
            };
            reply = value.extract_error().map_err(unacknowledged)?;
        }
        // The commands before `mark_write` have run: the caller decides about a retry.
        if let Some(mark_reply) = mark_reply {
            mark_reply.extract_error().map_err(|error| Unacknowledged::Unconfirmed(Some(error)))?;
        }
        if confirmed { Ok(reply) } else { Err(Unacknowledged::Unconfirmed(None)) }
    }
}

/// The deadline, the pause and the redirects of a request's attempts.
pub(crate) struct RetryBudget {
    deadline: Instant,
    pause: Duration,
    redirects: u32,
}

impl RetryBudget {
    pub(crate) fn until(deadline: Instant) -> Self {
        RetryBudget { deadline, pause: RETRY_PAUSE_MIN, redirects: 0 }
    }

    /// Returns whether another redirect may be followed at once.
    pub(crate) fn allow_redirect(&mut self) -> bool {
        self.redirects += 1;
        self.redirects <= REDIRECTS_MAX
    }

    /// Waits before a retry; returns whether time is left for it.
    pub(crate) async fn wait_for_retry(&mut self) -> bool {
        let pause = self.pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        if clock::monotonic_now() + pause >= self.deadline {
            return false;
        }
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(RETRY_PAUSE_MAX);
        true
    }
}

pub(crate) enum Unacknowledged {
    NotSent(RedisError),
    AfterSend(RedisError),
    /// Ran, but fewer replicas confirmed it than required; or it ran partially, or may have run, because of this error.
    Unconfirmed(Option<RedisError>),
}

impl From<ReplyLost> for Unacknowledged {
    fn from(lost: ReplyLost) -> Self {
        match lost {
            ReplyLost::NotSent(error) => Unacknowledged::NotSent(error),
            ReplyLost::AfterSend(error) => Unacknowledged::AfterSend(error),
        }
    }
}
