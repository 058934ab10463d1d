//! What an error of the server or of the connection means for a request.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::Error;
use crate::store::redis::url::ServerAddress;

/// The format of queues that the scripts read and write.
const QUEUE_FORMAT: u32 = 1;

/// Sorted by what to do next.
#[derive(Debug)]
pub(crate) enum ErrorClass {
    /// The server does not know the script: load it, send again.
    NoScript,
    /// Not carried out: the slot lives at this address now.
    Moved(String),
    /// Not carried out: ask at this address, this once.
    Ask(String),
    /// Not carried out, and may be the next moment.
    TryLater,
    /// Not carried out, because this is not the master: find out who is.
    NotMaster,
    /// Not carried out, and will not be.
    Rejected,
    /// Nobody knows whether it was carried out.
    OutcomeUnknown,
}

/// What an answer that is an error, or no answer, means once a request was sent.
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
            // Others go away again, most of all after a restart, when all come at once.
            _ if is_out_of_connections(error) => ErrorClass::TryLater,
            _ => ErrorClass::Rejected,
        },
        // Codes that the client knows no name for.
        ErrorKind::Extension => match error.code() {
            // A failover has just begun, or a replica comes back: refused, and safe to send again.
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

/// Whether it would be the same the next time.
pub(crate) fn is_permanent(error: &RedisError) -> bool {
    matches!(classify(error), ErrorClass::Rejected)
}

/// Whether the server has as many connections as it may have.
pub(crate) fn is_out_of_connections(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("max number of clients"))
}

/// Whether it is we who refuse, because of the server's certificate: by the text, as the client crate hides the type.
fn is_server_untrusted(error: &RedisError) -> bool {
    error.to_string().contains("peer certificate")
}

/// Whether it is the server that refuses, because of our certificate, or because there is none.
fn is_client_untrusted(error: &RedisError) -> bool {
    let said = error.to_string();
    let alerts = ["CertificateRequired", "UnknownCA", "BadCertificate", "CertificateExpired", "CertificateUnknown"];
    said.contains("received fatal alert") && alerts.iter().any(|alert| said.contains(alert))
}

/// A request that was not carried out, with what to do about it where that is known.
pub(crate) fn rejected_error(op: &'static str, error: RedisError) -> Error {
    if let Some(reason) = newer_format(&error) {
        return Error::Store { op, reason, source: Some(Box::new(error)) };
    }
    let said = error.to_string();
    let advice = match error.code() {
        Some("OOM") => {
            "; the server's memory is full (maxmemory): claims and settles go on, pushes are refused until there is room: `duly jobs rm state:done` makes some"
        }
        Some("NOPERM") => ACL_ADVICE,
        _ if is_script_denied(&said) => ACL_ADVICE,
        Some("NOAUTH" | "WRONGPASS") => "; put user and password into the URL: redis://user:password@host",
        Some("MISCONF") => "; the server cannot save to its disk and refuses writes until it can",
        Some("READONLY") => "; this is a replica: name the master, or use redis+sentinel://",
        Some("NOREPLICAS") => "; too few replicas are connected (min-replicas-to-write)",
        Some("CROSSSLOT") => CLUSTER_ADVICE,
        _ if said.contains("DB index is out of range") => {
            "; the server has fewer databases (its setting `databases`): use /0"
        }
        _ if said.contains("unknown command 'SENTINEL'") => {
            "; this is a server, not a Sentinel: name its Sentinels (port 26379 unless set otherwise), or use redis://"
        }
        _ if is_sentinel_reply(&said) => "; this is a Sentinel: use redis+sentinel://HOST:PORT/MASTER",
        _ if said.contains("cluster support disabled") => "; this server is part of no Cluster: use redis://",
        _ => "",
    };
    Error::Store { op, reason: format!("{said}{advice}"), source: Some(Box::new(error)) }
}

/// What a script replies if a newer duly has changed the format of a queue: `FORMAT`, the format, the key that has it.
fn newer_format(error: &RedisError) -> Option<String> {
    let (format, key) = error.detail().filter(|_| error.code() == Some("FORMAT"))?.split_once(' ')?;
    Some(format!("{key} has format {format}, this build of duly knows up to {QUEUE_FORMAT}; use a newer duly"))
}

/// Whether a script was denied something, as Redis and Valkey say it: neither gives it a code of its own.
fn is_script_denied(said: &str) -> bool {
    ["The user executing the script can't", "ACL failure in script"].iter().any(|words| said.contains(words))
}

/// Whether this was said by a Sentinel, which knows next to no commands.
fn is_sentinel_reply(said: &str) -> bool {
    ["'TIME'", "'CLUSTER'"].iter().any(|word| said.contains(&format!("unknown command {word}")))
}

const ACL_ADVICE: &str = "; `duly doctor --acl` prints the ACL line that this user needs";
const CLUSTER_ADVICE: &str = "; this server is part of a Cluster: use redis+cluster://";

/// The server has named another one, and the URL says that there is no other.
pub(crate) fn cluster_required_error(op: &'static str, error: RedisError) -> Error {
    Error::Store { op, reason: format!("{error}{CLUSTER_ADVICE}"), source: Some(Box::new(error)) }
}

/// Whether the server does not know a command, or does not let this user give it.
pub(in crate::store::redis) fn is_forbidden(error: &Error) -> bool {
    let Error::Store { source: Some(source), .. } = error else {
        return false;
    };
    source.downcast_ref::<RedisError>().is_some_and(|error| matches!(error.code(), Some("NOPERM" | "ERR")))
}

/// A request that could not be sent.
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

/// A request whose outcome nobody knows.
pub(crate) fn unknown_error(op: &'static str, error: RedisError) -> Error {
    Error::Unknown { op, source: Some(Box::new(error)) }
}
