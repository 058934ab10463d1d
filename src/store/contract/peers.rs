//! Nodes that call each other: peers, messages and connections.

use tokio::sync::mpsc;

use super::capability;
use crate::error::Result;
use crate::node::{NodeId, NodeRecord};
use crate::store::*;

capability! {
    /// Lets nodes find each other and exchange messages.
    pub trait PeerStore(peers: "calls between nodes") {
        /// Renews a peer's lease; the first call registers the peer, and every call confirms that it listens.
        /// Until the lease expires, the peer keeps its positions among lock waiters and its connections.
        /// The reply reports waits that were lost anyway.
        async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply>;

        /// Removes a peer with its lock waits and its connections. Locks it holds stay held.
        async fn withdraw(&self, node: NodeId) -> Result<()>;

        /// Returns all registered nodes.
        async fn nodes(&self) -> Result<Vec<NodeRecord>>;

        /// Subscribes a local node to messages addressed to it and, if `all`, to broadcasts. Delivery starts with its
        /// next [`PeerStore::announce`] and ends when it withdraws or drops the receiver. A process may subscribe
        /// several nodes; one of them should take the broadcasts. Messages are lost while the receiver is full or the
        /// connection is broken.
        async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>>;

        /// Sends a message to listening nodes. Returns how many it reached; a broadcast counts one node per process.
        async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64>;

        /// Registers connections that a node holds and removes others, at most [`CONNECTIONS_BATCH_MAX`] in one call.
        /// A connection that another node held belongs to this node from now on.
        async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()>;

        /// Registers a node's connections again in case the store lost them, at most [`CONNECTIONS_BATCH_MAX`].
        /// A connection that another node has registered since stays with that node while it is alive.
        async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()>;

        /// Returns the node that holds a connection, if that node is alive.
        async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>>;

        /// Returns the live peers that offer this method and are not quiet.
        async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>>;
    }
}
