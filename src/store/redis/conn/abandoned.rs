//! A connection that was given up says no more.
//!
//! Something between us and the server may keep what was sent for longer than anybody waits for an answer, and hand it on after
//! all. A push would then be carried out a second time, after the one that was sent instead of it: the first sending of a job
//! does not look whether it is there already. So the server is told to close that connection before the next one is used.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

/// What it means if the server does not let us.
const CLOSE_DENIED_WARNING: &str = "a connection was given up, and its user may not have it closed (+client|list +client|kill): if something \
                       between has kept what was sent, it may be carried out late";

/// A connection as the server counts them; begins anew when the server does.
pub(crate) type ClientId = i64;

/// Gives a new connection its name, and ends the one that was given up before it. Answers what the server counts the new one as,
/// if it says so.
pub(crate) async fn identify_and_close_abandoned(
    to: &mut MultiplexedConnection,
    name: &str,
    given_up: Option<ClientId>,
) -> Result<Option<ClientId>, RedisError> {
    let mut pipe = redis::pipe();
    pipe.cmd("CLIENT").arg("SETNAME").arg(name).cmd("CLIENT").arg("ID");
    // The name is for whoever looks at the server: one that does not let us have it is used without.
    let id = match to.send_packed_commands(&pipe, 0, pipe.len()).await?.pop() {
        Some(Value::Int(id)) => Some(id),
        _ => None,
    };
    // A server that has begun anew may count this one as it did the last.
    if let Some(old) = given_up.filter(|old| id.is_some_and(|id| id != *old)) {
        close_abandoned(to, name, old).await?;
    }
    Ok(id)
}

/// Has the server close a connection that was given up, if it still is one of that name. Who may not ask for that goes without.
async fn close_abandoned(to: &mut MultiplexedConnection, name: &str, old: ClientId) -> Result<(), RedisError> {
    let list = redis::cmd("CLIENT").arg("LIST").arg("ID").arg(old).take();
    let Some(listed) = reply_unless_denied(to.send_packed_command(&list).await)? else {
        tracing::warn!(connection = old, "{CLOSE_DENIED_WARNING}");
        return Ok(());
    };
    if !lists_connection_name(&listed, name) {
        return Ok(());
    }
    let kill = redis::cmd("CLIENT").arg("KILL").arg("ID").arg(old).take();
    match reply_unless_denied(to.send_packed_command(&kill).await)? {
        Some(_) => tracing::debug!(connection = old, "the server has closed a connection that was given up"),
        None => tracing::warn!(connection = old, "{CLOSE_DENIED_WARNING}"),
    }
    Ok(())
}

/// What the server says, unless it refuses; an error if it says nothing at all.
fn reply_unless_denied(answer: Result<Value, RedisError>) -> Result<Option<Value>, RedisError> {
    match answer.and_then(Value::extract_error) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_io_error() || error.is_unrecoverable_error() => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether the list of connections has one of this name. A server that has begun anew may count another one so.
fn lists_connection_name(listed: &Value, name: &str) -> bool {
    let text = match listed {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.as_str().into(),
        _ => return false,
    };
    text.split_ascii_whitespace().any(|word| word.strip_prefix("name=") == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_matched_by_full_name() {
        let listed = Value::BulkString(b"id=7 addr=127.0.0.1:5 name=duly-client:a:12 age=3\n".to_vec());
        assert!(lists_connection_name(&listed, "duly-client:a:12"));
        assert!(!lists_connection_name(&listed, "duly-client:a:1"));
        assert!(!lists_connection_name(&Value::BulkString(Vec::new()), "duly-client:a:12"), "it is gone");
        assert!(!lists_connection_name(&Value::Nil, ""));
    }
}
