//! Nodes: one running process under an identity that is fresh at each start.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Error;
use crate::uuid_id::uuid_id;

/// The default lease: a node without a heartbeat for this long loses the jobs it holds.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(3);
/// Interval between two heartbeats with the default lease.
pub const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Returns a command that takes back the jobs of dead nodes of a queue, and runs none of them.
pub(crate) fn take_back_command(queue: &str) -> String {
    format!("duly work --queue {queue} --exec true --kind none --until-empty")
}

/// The identity of one run of one process.
///
/// Never a configured name: a restarted process must not extend the lease of its dead predecessor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(Uuid);
uuid_id!(NodeId);

impl FromStr for NodeId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Uuid::parse_str(text)
            .map(NodeId)
            .map_err(|_| Error::invalid("node", "not a node id; use the UUID from the list of nodes"))
    }
}

/// A node as it registers with the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// Its identity.
    pub id: NodeId,
    /// How long it keeps its jobs without a heartbeat.
    pub lease: Duration,
    /// The queues it works on.
    pub queues: Vec<String>,
    /// Its capabilities.
    pub profile: NodeProfile,
}

/// Maximum kinds a node publishes. A node with more publishes none.
pub const NODE_KINDS_MAX: usize = 1_000;

/// The capabilities a node publishes. They explain why a job waits; the store makes no decisions by them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeProfile {
    /// The kinds it has handlers for; `None` if it runs any kind or does not publish them.
    pub kinds: Option<Vec<String>>,
    /// How many jobs it runs at once; `None` if it does not publish that.
    pub slots: Option<u64>,
    /// How many jobs it runs at once per queue.
    pub limits: BTreeMap<String, u64>,
    /// Whether it claims no jobs at the moment, because it is quiet or stopping.
    pub quiet: bool,
    /// Its name, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The machine of a worker in another process than the one that has registered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The process id of that worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

impl NodeProfile {
    /// Returns whether the node has a handler for this kind, or may have one.
    #[must_use]
    pub fn has_handler(&self, kind: &str) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|handled| handled == kind))
    }
}

impl Node {
    /// Returns a node with a fresh identity and the default lease.
    #[must_use]
    pub fn fresh(queues: Vec<String>) -> Self {
        Node { id: NodeId::fresh(), lease: DEFAULT_LEASE, queues, profile: NodeProfile::default() }
    }

    /// Returns the interval between heartbeats: a third of the lease.
    #[must_use]
    pub fn heartbeat_interval(&self) -> Duration {
        self.lease / 3
    }
}

/// Returns the name of the machine this process runs on.
pub(crate) fn host_name() -> String {
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(any(feature = "sqlite", feature = "redis")))]
    return String::new();
}

/// A node as the store has it on record.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NodeRecord {
    /// Its identity.
    pub id: NodeId,
    /// The machine it runs on.
    pub host: String,
    /// Its process id on that machine.
    pub pid: u32,
    /// The queues it works on.
    pub queues: Vec<String>,
    /// When it joined.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub joined: SystemTime,
    /// Whether its lease has not expired.
    pub alive: bool,
    /// How many jobs it holds.
    pub held: u64,
    /// How many jobs it holds per queue. Queues without held jobs are absent.
    pub held_by_queue: BTreeMap<String, u64>,
    /// Its capabilities.
    pub profile: NodeProfile,
    /// Methods it handles, not counting those that every node has.
    pub methods: Vec<String>,
}

impl NodeRecord {
    /// Returns its state in one word: `alive`, `quiet` (alive, but not claiming) or `dead`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.alive {
            true if self.profile.quiet => "quiet",
            true => "alive",
            false => "dead",
        }
    }
}
