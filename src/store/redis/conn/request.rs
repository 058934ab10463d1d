//! One request: what is sent, one try with one server, and how often it is tried.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::clock;
use crate::store::redis::conn::connection::{ReplyLost, ServerConnection};
use crate::store::redis::conn::connector;
use crate::store::redis::script::{self, Script};

/// The first wait before a request is tried again; doubles up to the longest.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(5);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(250);
/// Most servers that a request is sent on to without a pause.
const REDIRECTS_MAX: u32 = 5;

/// What is sent: a command, or several that are carried out together or not at all.
pub(crate) struct ServerRequest<'r> {
    pub(crate) cmds: &'r [Cmd],
    /// What to load if the server does not know it.
    pub(crate) script: Option<&'r Script>,
    /// Who else must have it before it is answered.
    pub(crate) confirmation: Option<ReplicaConfirmation<'r>>,
    /// It may be carried out twice: if its answer is lost, it is sent again.
    pub(crate) idempotent: bool,
}

/// How many replicas must have something before it is answered.
#[derive(Clone, Copy)]
pub(in crate::store::redis) struct ReplicaConfirmation<'r> {
    pub(in crate::store::redis) replicas: u32,
    /// Written last: replicas confirm what a connection has written, and a push that finds its jobs there already
    /// would have written nothing, though their first sending may not have reached any replica.
    /// What writes whenever it must be confirmed needs none.
    pub(in crate::store::redis) seal: Option<&'r Cmd>,
}

impl<'r> ServerRequest<'r> {
    /// One plain command, sent once.
    pub(crate) fn single(cmd: &'r Cmd) -> Self {
        ServerRequest { cmds: std::slice::from_ref(cmd), script: None, confirmation: None, idempotent: false }
    }

    /// Whether it matters if it was carried out.
    pub(crate) fn is_write(&self) -> bool {
        self.script.is_some_and(|script| !script.only_reads())
    }

    /// One try with one server, `asking` if the slot is on its way there.
    pub(crate) async fn send_to(&self, lane: &Arc<ServerConnection>, asking: bool) -> Result<Value, Unacknowledged> {
        if let ([cmd], false, None) = (self.cmds, asking, self.confirmation) {
            return Ok(lane.send(cmd).await?);
        }
        let seal = self.confirmation.and_then(|confirm| confirm.seal);
        let together = self.cmds.len() > 1;
        let mut pipe = redis::pipe();
        if asking {
            pipe.cmd("ASKING");
        }
        if together {
            pipe.cmd("MULTI");
        }
        for cmd in self.cmds {
            pipe.add_command(cmd.clone());
        }
        if together {
            pipe.cmd("EXEC");
        }
        if let Some(seal) = seal {
            // Of a script that is not known it would be told too late.
            pipe.cmd("SCRIPT").arg("LOAD").arg(&script::MARK_WRITE.code);
            // It counts for one command only.
            if asking {
                pipe.cmd("ASKING");
            }
            pipe.add_command(seal.clone());
        }
        if let Some(confirm) = self.confirmation {
            pipe.cmd("WAIT").arg(confirm.replicas).arg((connector::REPLY_TIMEOUT / 2).as_millis() as u64);
        }
        let mut answers = lane.send_pipeline(&pipe).await?;
        let confirmed = match self.confirmation {
            None => true,
            Some(confirm) => matches!(answers.pop(), Some(Value::Int(got)) if got >= i64::from(confirm.replicas)),
        };
        let sealed = if seal.is_some() { answers.pop() } else { None };
        if sealed.is_some() {
            let before_it = if asking { 2 } else { 1 };
            answers.truncate(answers.len().saturating_sub(before_it));
        }
        // A command that was refused says why; the end of a transaction only says that one was. One that has ended with a list
        // was carried out, all but what the list says has failed.
        let mut answer = Value::Nil;
        for value in answers {
            let ended = together && matches!(value, Value::Array(_));
            let why =
                |error| if ended { Unacknowledged::Unconfirmed(Some(error)) } else { Unacknowledged::AfterSend(error) };
            answer = value.extract_error().map_err(why)?;
        }
        // What goes before the seal was carried out: to send it again is not for us to decide.
        if let Some(sealed) = sealed {
            sealed.extract_error().map_err(|error| Unacknowledged::Unconfirmed(Some(error)))?;
        }
        if confirmed { Ok(answer) } else { Err(Unacknowledged::Unconfirmed(None)) }
    }
}

/// How often a request is tried.
pub(crate) struct RetryBudget {
    deadline: Instant,
    pause: Duration,
    redirects: u32,
}

impl RetryBudget {
    pub(crate) fn until(until: Instant) -> Self {
        RetryBudget { deadline: until, pause: RETRY_PAUSE_MIN, redirects: 0 }
    }

    /// Whether to send on at once.
    pub(crate) fn allow_redirect(&mut self) -> bool {
        self.redirects += 1;
        self.redirects <= REDIRECTS_MAX
    }

    /// Waits a moment; answers whether there is time for another try.
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
    /// Carried out, but not by as many replicas as were asked for; or only in part, or nobody knows, because of this.
    Unconfirmed(Option<RedisError>),
}

impl From<ReplyLost> for Unacknowledged {
    fn from(no_answer: ReplyLost) -> Self {
        match no_answer {
            ReplyLost::NotSent(error) => Unacknowledged::NotSent(error),
            ReplyLost::AfterSend(error) => Unacknowledged::AfterSend(error),
        }
    }
}
