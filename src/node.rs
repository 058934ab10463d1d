//! Who we are: one running process taking part, under an identity that is fresh at each start.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Error;

/// A node's hold on what it claimed lasts so long without a beat.
pub const LEASE: Duration = Duration::from_secs(3);
/// How often a node gives a sign of life, if its lease is the default.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The identity of one start of one process.
///
/// Never a configured name: a restarted process must not keep the lease of the dead one alive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(Uuid);

impl NodeId {
    /// An identity nobody has had before.
    #[must_use]
    pub fn fresh() -> Self {
        NodeId(Uuid::now_v7())
    }

    /// The identity as its 16 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The identity with these 16 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        NodeId(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for NodeId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Uuid::parse_str(text).map(NodeId).map_err(|_| Error::invalid("node", "not a node id; ids are UUIDs"))
    }
}

/// A node as it introduces itself to the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// Who it is.
    pub id: NodeId,
    /// How long its hold lasts without a beat.
    pub lease: Duration,
    /// The queues it works.
    pub queues: Vec<String>,
    /// What of them it can take on.
    pub profile: NodeProfile,
}

/// Most kinds that a node tells of: one that knows more does not say which.
pub const NODE_KINDS_MAX: usize = 1_000;

/// What a node can take on, as far as it says: for whoever asks why a job waits. The store decides nothing by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct NodeProfile {
    /// The kinds that its handlers know; `None` if it runs any kind, or does not say.
    pub kinds: Option<Vec<String>>,
    /// How many jobs it runs at once; `None` if it does not say.
    pub slots: Option<u64>,
    /// How many jobs of each queue it runs at once.
    pub limits: BTreeMap<String, u64>,
    /// It claims nothing for now: it was told to be quiet, or it is stopping.
    pub quiet: bool,
}

impl NodeProfile {
    /// Whether a job of this kind would find a handler, as far as is known.
    #[must_use]
    pub fn has_handler(&self, kind: &str) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|known| known == kind))
    }
}

impl Node {
    /// A node with a fresh identity and the default lease.
    #[must_use]
    pub fn fresh(queues: Vec<String>) -> Self {
        Node { id: NodeId::fresh(), lease: LEASE, queues, profile: NodeProfile::default() }
    }

    /// How often it beats: three times a lease.
    #[must_use]
    pub fn heartbeat_interval(&self) -> Duration {
        self.lease / 3
    }
}

/// The machine that this process runs on.
pub(crate) fn host_name() -> String {
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    return rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(any(feature = "sqlite", feature = "redis")))]
    return String::new();
}

/// A node as the store knows it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NodeRecord {
    /// Who it is.
    pub id: NodeId,
    /// The machine it runs on.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The queues it works.
    pub queues: Vec<String>,
    /// When it joined.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub joined: SystemTime,
    /// Whether its lease runs.
    pub alive: bool,
    /// How many jobs it holds.
    pub held: u64,
    /// How many jobs it holds of each queue; queues of which it holds none are absent.
    pub held_by_queue: BTreeMap<String, u64>,
    /// What it can take on.
    pub profile: NodeProfile,
    /// What it can be asked to do, beside what every node can.
    pub methods: Vec<String>,
}

impl NodeRecord {
    /// How it is, in one word: `alive`, `quiet` (it lives, and claims nothing for now) or `dead`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.alive {
            true if self.profile.quiet => "quiet",
            true => "alive",
            false => "dead",
        }
    }
}
