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
        return Error::Store { op, reason, source: Some(Box::new(error)) };
    }
    let message = error.to_string();
    let advice = match error.code() {
        Some("OOM") => {
            "; the server's memory is full (maxmemory): claims and settles go on, pushes are refused until there is room: `duly jobs rm state:done` makes some"
        }
        Some("NOPERM") => ACL_ADVICE,
        _ if is_script_denied(&message) => ACL_ADVICE,
        Some("NOAUTH" | "WRONGPASS") => "; put user and password into the URL: redis://user:password@host",
        Some("MISCONF") => "; the server cannot save to its disk and refuses writes until it can",
        Some("READONLY") => "; this is a replica: name the master, or use redis+sentinel://",
        Some("NOREPLICAS") => "; too few replicas are connected (min-replicas-to-write)",
        Some("CROSSSLOT") => CLUSTER_ADVICE,
        _ if message.contains("DB index is out of range") => {
            "; the server has fewer databases (its setting `databases`): use /0"
        }
        _ if message.contains("unknown command 'SENTINEL'") => {
            "; this is a server, not a Sentinel: name its Sentinels (port 26379 unless set otherwise), or use redis://"
        }
        _ if is_sentinel_reply(&message) => "; this is a Sentinel: use redis+sentinel://HOST:PORT/MASTER",
        _ if message.contains("cluster support disabled") => "; this server is part of no Cluster: use redis://",
        _ => "",
    };
    Error::Store { op, reason: format!("{message}{advice}"), source: Some(Box::new(error)) }
}

/// Returns the reason if a newer duly has changed a queue's format. The script replies `FORMAT`, the format and the
/// key.
fn newer_format(error: &RedisError) -> Option<String> {
    let (format, key) = error.detail().filter(|_| error.code() == Some("FORMAT"))?.split_once(' ')?;
    Some(format!("{key} has format {format}, this build of duly knows up to {QUEUE_FORMAT}; use a newer duly"))
}

/// Returns whether an ACL denied something to a script. Redis and Valkey have no error code for it.
fn is_script_denied(message: &str) -> bool {
    ["The user executing the script can't", "ACL failure in script"].iter().any(|phrase| message.contains(phrase))
}

/// Returns whether the message comes from a Sentinel, which has very few commands.
fn is_sentinel_reply(message: &str) -> bool {
    ["'TIME'", "'CLUSTER'"].iter().any(|command| message.contains(&format!("unknown command {command}")))
}

const ACL_ADVICE: &str = "; `duly doctor --acl` prints the ACL line that this user needs";
const CLUSTER_ADVICE: &str = "; this server is part of a Cluster: use redis+cluster://";

/// Builds the error for a redirect from a server that the URL describes as standalone.
pub(crate) fn cluster_required_error(op: &'static str, error: RedisError) -> Error {
    Error::Store { op, reason: format!("{error}{CLUSTER_ADVICE}"), source: Some(Box::new(error)) }
}

/// Returns whether the server does not have a command, or denies it to this user.
pub(in crate::store::redis) fn is_forbidden(error: &Error) -> bool {
    let Error::Store { source: Some(source), .. } = error else {
        return false;
    };
    source.downcast_ref::<RedisError>().is_some_and(|error| matches!(error.code(), Some("NOPERM" | "ERR")))
}

/// Builds the error for a request that could not be sent.
pub(crate) fn unreachable_error(op: &'static str, address: &ServerAddress, error: RedisError) -> Error {
    let reason = match error.kind() {
        _ if is_server_untrusted(&error) => format!(
            "the server at {address} is not trusted: {error}; name the authority that signed its certificate with ca=FILE in the URL, and the server by a name that is in it"
        ),
        _ if is_client_untrusted(&error) => format!(
            "the server at {address} does not trust us: {error}; name a certificate that it trusts with cert=FILE and key=FILE in the URL"
        ),
        ErrorKind::Io if error.is_connection_dropped() || error.is_timeout() => format!(
            "cannot reach the server at {address}: {error}; is it running, is the address right, and does it speak TLS (rediss://) or not (redis://)?"
        ),
        ErrorKind::Io => {
            format!("cannot reach the server at {address}: {error}; is it running, and is the address right?")
        }
        _ => return rejected_error(op, error),
    };
    Error::Store { op, reason, source: Some(Box::new(error)) }
}

/// Builds the error for a request that may have run.
pub(crate) fn unknown_error(op: &'static str, error: RedisError) -> Error {
    Error::Unknown { op, source: Some(Box::new(error)) }
}
