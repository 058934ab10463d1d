//! One request: what is sent, one try with one server, and how often it is tried.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::clock;
use crate::store::redis::conn::connection::{Lane, NoAnswer};
use crate::store::redis::conn::connector;
use crate::store::redis::script::{self, Script};

/// The first wait before a request is tried again; doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Most servers that a request is sent on to without a pause.
const REDIRECTS_MAX: u32 = 5;

/// What is sent: a command, or several that are carried out together or not at all.
pub(crate) struct Request<'r> {
    pub(crate) cmds: &'r [Cmd],
    /// What to load if the server does not know it.
    pub(crate) script: Option<&'r Script>,
    /// Who else must have it before it is answered.
    pub(crate) confirm: Option<Confirm<'r>>,
    /// It may be carried out twice: if its answer is lost, it is sent again.
    pub(crate) idempotent: bool,
}

/// How many replicas must have something before it is answered.
#[derive(Clone, Copy)]
pub(in crate::store::redis) struct Confirm<'r> {
    pub(in crate::store::redis) replicas: u32,
    /// Written last: replicas confirm what a connection has written, and a push that finds its jobs there already
    /// would have written nothing, though their first sending may not have reached any replica.
    /// What writes whenever it must be confirmed needs none.
    pub(in crate::store::redis) seal: Option<&'r Cmd>,
}

impl<'r> Request<'r> {
    /// One plain command, sent once.
    pub(crate) fn of(cmd: &'r Cmd) -> Self {
        Request { cmds: std::slice::from_ref(cmd), script: None, confirm: None, idempotent: false }
    }

    /// Whether it matters if it was carried out.
    pub(crate) fn writes(&self) -> bool {
        self.script.is_some_and(|script| !script.only_reads())
    }

    /// One try with one server, `asking` if the slot is on its way there.
    pub(crate) async fn exchange(&self, lane: &Arc<Lane>, asking: bool) -> Result<Value, Unanswered> {
        if let ([cmd], false, None) = (self.cmds, asking, self.confirm) {
            return Ok(lane.send(cmd).await?);
        }
        let seal = self.confirm.and_then(|confirm| confirm.seal);
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
        if let Some(confirm) = self.confirm {
            pipe.cmd("WAIT").arg(confirm.replicas).arg((connector::ANSWER / 2).as_millis() as u64);
        }
        let mut answers = lane.send_all(&pipe).await?;
        let confirmed = match self.confirm {
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
            let why = |error| if ended { Unanswered::Unconfirmed(Some(error)) } else { Unanswered::Answer(error) };
            answer = value.extract_error().map_err(why)?;
        }
        // What goes before the seal was carried out: to send it again is not for us to decide.
        if let Some(sealed) = sealed {
            sealed.extract_error().map_err(|error| Unanswered::Unconfirmed(Some(error)))?;
        }
        if confirmed { Ok(answer) } else { Err(Unanswered::Unconfirmed(None)) }
    }
}

/// How often a request is tried.
pub(crate) struct Tries {
    until: Instant,
    pause: Duration,
    redirects: u32,
}

impl Tries {
    pub(crate) fn until(until: Instant) -> Self {
        Tries { until, pause: PAUSE_MIN, redirects: 0 }
    }

    /// Whether to send on at once.
    pub(crate) fn redirect(&mut self) -> bool {
        self.redirects += 1;
        self.redirects <= REDIRECTS_MAX
    }

    /// Waits a moment; answers whether there is time for another try.
    pub(crate) async fn again(&mut self) -> bool {
        let pause = self.pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        if clock::tick() + pause >= self.until {
            return false;
        }
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

pub(crate) enum Unanswered {
    NotSent(RedisError),
    Answer(RedisError),
    /// Carried out, but not by as many replicas as were asked for; or only in part, or nobody knows, because of this.
    Unconfirmed(Option<RedisError>),
}

impl From<NoAnswer> for Unanswered {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            NoAnswer::NotSent(error) => Unanswered::NotSent(error),
            NoAnswer::Answer(error) => Unanswered::Answer(error),
        }
    }
}
