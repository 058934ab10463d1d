//! Classifies errors of servers and connections, and turns them into [`Error`]s with advice.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::Error;
use crate::store::redis::url::ServerAddress;

/// The queue format that the scripts read and write.
const QUEUE_FORMAT: u32 = 1;

/// An error, by the next action it calls for.
#[derive(Debug)]
pub(crate) enum ErrorClass {
    /// The server does not have the script: load it and resend.
    NoScript,
    /// Did not run: the slot has moved to this address.
    Moved(String),
    /// Did not run: send it to this address, once.
    Ask(String),
    /// Did not run: retry after a pause.
    TryLater,
    /// Did not run because the server is not the master: find the master.
    NotMaster,
    /// Did not run, and a retry fails too.
    Rejected,
    /// May have run.
    OutcomeUnknown,
}

/// Classifies an error that arrived after a request was sent, or the lack of a reply.
pub(crate) fn classify(error: &RedisError) -> ErrorClass {
    let redirect = |to: fn(String) -> ErrorClass| match error.redirect_node() {
        Some((address, _)) => to(address.to_owned()),
        None => ErrorClass::TryLater,
    };
    match error.kind() {
        ErrorKind::Server(kind) => match kind {
            ServerErrorKind::NoScript => ErrorClass::NoScript,
            ServerErrorKind::Moved => redirect(ErrorClass::Moved),
            ServerErrorKind::Ask => redirect(ErrorClass::Ask),
            ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown => ErrorClass::TryLater,
            ServerErrorKind::ReadOnly => ErrorClass::NotMaster,
            // Connections become free again, especially after a restart, when all clients reconnect at once.
            _ if is_out_of_connections(error) => ErrorClass::TryLater,
            _ => ErrorClass::Rejected,
        },
        // Error codes without a variant in the client crate.
        ErrorKind::Extension => match error.code() {
            // A failover has just begun, or a replica is coming back: the request was rejected and is safe to resend.
            Some("BUSY" | "NOREPLICAS") => ErrorClass::TryLater,
            _ => ErrorClass::Rejected,
        },
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
            ErrorClass::Rejected
        }
        _ if is_server_untrusted(error) || is_client_untrusted(error) => ErrorClass::Rejected,
        _ => ErrorClass::OutcomeUnknown,
    }
}

/// Returns whether a retry fails with the same error.
pub(crate) fn is_permanent(error: &RedisError) -> bool {
    matches!(classify(error), ErrorClass::Rejected)
}

/// Returns whether the server has reached its connection limit.
pub(crate) fn is_out_of_connections(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("max number of clients"))
}

/// Returns whether we rejected the server's certificate. Matches the text, because the client crate hides the type.
fn is_server_untrusted(error: &RedisError) -> bool {
    error.to_string().contains("peer certificate")
}

/// Returns whether the server rejected our client certificate, or the lack of one.
fn is_client_untrusted(error: &RedisError) -> bool {
    let message = error.to_string();
    let alerts = ["CertificateRequired", "UnknownCA", "BadCertificate", "CertificateExpired", "CertificateUnknown"];
    message.contains("received fatal alert") && alerts.iter().any(|alert| message.contains(alert))
}

/// Builds the error for a request that did not run, with advice for known causes.
pub(crate) fn rejected_error(op: &'static str, error: RedisError) -> Error {
    if let Some(reason) = newer_format(&error) {
        return Error::store_with_cause(op, reason, error);
    }
    let message = error.to_string();
    let advice = match error.code() {
        Some("OOM") => {
            "; the server's memory is full, so it rejects pushes, while claims and settles continue; raise maxmemory, or remove done jobs (`duly jobs rm state:done`)"
        }
        Some("NOPERM") => ACL_ADVICE,
        _ if is_script_denied(&message) => ACL_ADVICE,
        Some("NOAUTH" | "WRONGPASS") => "; put user and password into the URL: redis://user:password@host",
        Some("MISCONF") => {
            "; the server cannot save to its disk, and rejects writes until it can: check its disk and its log"
        }
        Some("READONLY") => "; this is a replica: use the address of the master, or redis+sentinel://",
        Some("NOREPLICAS") => "; too few replicas are connected (min-replicas-to-write): check the replicas",
        Some("CROSSSLOT") => CLUSTER_ADVICE,
        _ if message.contains("DB index is out of range") => {
            "; the server has fewer databases (its setting `databases`): use /0"
        }
        _ if message.contains("unknown command 'SENTINEL'") => {
            "; this is not a Sentinel: use the addresses of the Sentinels (their default port is 26379), or redis://"
        }
        _ if is_sentinel_reply(&message) => "; this is a Sentinel: use redis+sentinel://HOST:PORT/MASTER",
        _ if message.contains("cluster support disabled") => "; this server is not part of a Cluster: use redis://",
        _ => "",
    };
    Error::store_with_cause(op, format!("{message}{advice}"), error)
}

/// Returns the reason if a newer duly has changed a queue's format. The script replies `FORMAT`, the format and the
/// key.
fn newer_format(error: &RedisError) -> Option<String> {
    let (format, key) = error.detail().filter(|_| error.code() == Some("FORMAT"))?.split_once(' ')?;
    Some(format!(
        "{key} has format {format}, but this build of duly supports formats up to {QUEUE_FORMAT}; use a newer duly"
    ))
}

/// Returns whether an ACL denied something to a script. Redis and Valkey have no error code for it.
fn is_script_denied(message: &str) -> bool {
    ["The user executing the script can't", "ACL failure in script"].iter().any(|phrase| message.contains(phrase))
}

/// Returns whether the message comes from a Sentinel, which has very few commands.
fn is_sentinel_reply(message: &str) -> bool {
    ["'TIME'", "'CLUSTER'"].iter().any(|command| message.contains(&format!("unknown command {command}")))
}

const ACL_ADVICE: &str = "; grant this user the rights that `duly doctor --acl` prints";
const CLUSTER_ADVICE: &str = "; this server is part of a Cluster; use redis+cluster://";

/// Builds the error for a redirect from a server that the URL describes as standalone.
pub(crate) fn cluster_required_error(op: &'static str, error: RedisError) -> Error {
    Error::store_with_cause(op, format!("{error}{CLUSTER_ADVICE}"), error)
}

/// Returns whether the server does not have a command, or denies it to this user.
pub(crate) fn is_forbidden(error: &Error) -> bool {
    let Error::Store { cause: Some(cause), .. } = error else {
        return false;
    };
    cause.downcast_ref::<RedisError>().is_some_and(|error| matches!(error.code(), Some("NOPERM" | "ERR")))
}

/// Builds the error for a request that could not be sent.
pub(crate) fn unreachable_error(op: &'static str, address: &ServerAddress, error: RedisError) -> Error {
    let reason = match error.kind() {
        _ if is_server_untrusted(&error) => format!(
            "the certificate of the server at {address} is not trusted: {error}; add its certificate authority to the URL with ca=FILE, and use a host name that is in the certificate"
        ),
        _ if is_client_untrusted(&error) => format!(
            "the server at {address} does not trust this client: {error}; add a client certificate that it trusts to the URL, with cert=FILE and key=FILE"
        ),
        ErrorKind::Io if error.is_connection_dropped() || error.is_timeout() => format!(
            "cannot reach the server at {address}: {error}; check that it runs, the address, and the scheme (rediss:// for TLS)"
        ),
        ErrorKind::Io => {
            format!("cannot reach the server at {address}: {error}; check that it runs, and the address")
        }
        _ => return rejected_error(op, error),
    };
    Error::store_with_cause(op, reason, error)
}

/// Builds the error for a request that may have run.
pub(crate) fn unknown_error(op: &'static str, error: RedisError) -> Error {
    Error::unknown_with_cause(op, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_contains_the_message_of_the_server_once() {
        let refused = || RedisError::from(std::io::Error::other("no route to host"));
        let address = ServerAddress { host: "redis".into(), port: 6379 };
        for error in [
            unreachable_error("open", &address, refused()),
            rejected_error("push", refused()),
            unknown_error("push", refused()),
            unknown_error("push", refused()).into_unknown(),
            rejected_error("push", refused()).into_unknown(),
        ] {
            assert_eq!(error.to_string().matches("no route to host").count(), 1, "{error}");
            assert!(std::error::Error::source(&error).is_none(), "{error:?}");
        }
    }
}
