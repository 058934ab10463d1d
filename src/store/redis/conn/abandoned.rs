//! Closes abandoned connections on the server.
//!
//! A proxy may hold a request for longer than the reply timeout and deliver it after all. A push would then run a
//! second time, after its replacement, because the first attempt of a push does not check whether the job exists. The
//! next connection therefore has the server close the abandoned one before any other request.

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};

/// Logged if the user may not close connections.
const CLOSE_DENIED_WARNING: &str = "cannot close an abandoned connection: the user lacks +client|list and \
     +client|kill; a request that a proxy still holds may run late";

/// The server's id of a connection; restarts with the server.
pub(crate) type ClientId = i64;

/// Sets the name of a new connection, and closes the abandoned one before it. Returns the server's id of the new
/// connection, if it reports one.
pub(crate) async fn identify_and_close_abandoned(
    connection: &mut MultiplexedConnection,
    name: &str,
    abandoned_id: Option<ClientId>,
) -> Result<Option<ClientId>, RedisError> {
    let mut pipe = redis::pipe();
    pipe.cmd("CLIENT").arg("SETNAME").arg(name).cmd("CLIENT").arg("ID");
    // The name is only informative: a user that may not set it goes without.
    let id = match connection.send_packed_commands(&pipe, 0, pipe.len()).await?.pop() {
        Some(Value::Int(id)) => Some(id),
        _ => None,
    };
    // After a restart of the server the new connection may have the old id.
    if let Some(old) = abandoned_id.filter(|old| id.is_some_and(|id| id != *old)) {
        close_abandoned(connection, name, old).await?;
    }
    Ok(id)
}

/// Has the server close an abandoned connection, if that id still has this name. Only warns if the user may not.
async fn close_abandoned(connection: &mut MultiplexedConnection, name: &str, old: ClientId) -> Result<(), RedisError> {
    let list = redis::cmd("CLIENT").arg("LIST").arg("ID").arg(old).take();
    let Some(listed) = reply_unless_denied(connection.send_packed_command(&list).await)? else {
        tracing::warn!(connection = old, "{CLOSE_DENIED_WARNING}");
        return Ok(());
    };
    if !lists_connection_name(&listed, name) {
        return Ok(());
    }
    let kill = redis::cmd("CLIENT").arg("KILL").arg("ID").arg(old).take();
    match reply_unless_denied(connection.send_packed_command(&kill).await)? {
        Some(_) => tracing::debug!(connection = old, "closed an abandoned connection"),
        None => tracing::warn!(connection = old, "{CLOSE_DENIED_WARNING}"),
    }
    Ok(())
}

/// Returns the reply, or `None` if the server denied the command; fails if no reply arrived.
fn reply_unless_denied(reply: Result<Value, RedisError>) -> Result<Option<Value>, RedisError> {
    match reply.and_then(Value::extract_error) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_io_error() || error.is_unrecoverable_error() => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns whether the list has a connection of this name. After a restart the id may belong to another client.
fn lists_connection_name(listed: &Value, name: &str) -> bool {
    let text = match listed {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.as_str().into(),
        _ => return false,
    };
    text.split_ascii_whitespace().any(|field| field.strip_prefix("name=") == Some(name))
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
