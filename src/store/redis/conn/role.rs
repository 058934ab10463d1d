//! The roles of the connections to a server: requests of one role never wait behind requests of another.

use std::time::Duration;

use crate::store::redis::conn::{RETRY_TIMEOUT, WORKER_RETRY_TIMEOUT};

/// The role of a connection, which decides the connection that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionRole {
    /// Requests of users: pushes and queries.
    Client,
    /// Claims, settles and prunes, and the wakes that the server pushes.
    Worker,
    /// Long reads of a worker: a large reply must not delay the wakes on the worker's connection.
    BulkRead,
    /// Heartbeats, and the messages between peers.
    Heartbeat,
    /// Pushes and locks that wait for replicas: one request at a time per connection.
    ReplicaWait(usize),
    /// Lock extensions that wait for replicas.
    LockExtend,
    /// Blocking reads, which the server leaves open until data arrives: one request at a time per connection.
    BlockingRead(usize),
}

impl ConnectionRole {
    /// Returns the name of the connection in the server's `CLIENT LIST`: its role, the host and the process.
    pub(crate) fn connection_name(self) -> String {
        let role = match self {
            ConnectionRole::Client => "client",
            ConnectionRole::Worker => "worker",
            ConnectionRole::BulkRead => "bulk-read",
            ConnectionRole::Heartbeat => "heartbeat",
            ConnectionRole::ReplicaWait(_) => "replica-wait",
            ConnectionRole::LockExtend => "lock-extend",
            ConnectionRole::BlockingRead(_) => "blocking-read",
        };
        let mut host = crate::node::host_name();
        // The server accepts no other characters in a name.
        host.retain(|c| c.is_ascii_graphic());
        format!("duly-{role}:{host}:{}", std::process::id())
    }

    /// Returns the time during which a request that did not run is retried.
    pub(crate) fn retry_timeout(self) -> Duration {
        match self {
            ConnectionRole::Client | ConnectionRole::ReplicaWait(_) => RETRY_TIMEOUT,
            ConnectionRole::Worker
            | ConnectionRole::BulkRead
            | ConnectionRole::Heartbeat
            | ConnectionRole::LockExtend
            | ConnectionRole::BlockingRead(_) => WORKER_RETRY_TIMEOUT,
        }
    }
}
