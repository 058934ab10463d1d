//! Nodes: calls between them, the methods they register, and the connections they hold.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Duly;
use crate::error::{BoxError, Result};
use crate::job::push::check_text;
use crate::node::{NodeId, NodeRecord};
use crate::peers::call::{CONNECTION_BYTES_MAX, Call, CallContext, ClusterKeys, Method, MethodRegistration};
use crate::peers::{HeldConnection, Peers};
use crate::store::PeerStore;

impl Duly {
    /// Calls a method on another node: on any node that offers it, unless the call selects one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, call::CallContext};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.on_call("add", |(a, b): (u32, u32), _: CallContext| async move { Ok::<_, duly::Error>(a + b) }).await?;
    /// let sum: u32 = duly.call("add", &(2, 3)).reply().await?;
    /// assert_eq!(sum, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn call(&self, method: impl Into<String>, args: &impl Serialize) -> Call {
        Call::new(self.clone(), method.into(), args)
    }

    /// Registers a handler for calls of this method.
    ///
    /// Other nodes can call only registered methods and duly's own (`duly.ping` and others).
    /// The handler runs on the runtime from which it was registered; if it panics, the caller gets an error.
    ///
    /// # Errors
    ///
    /// Awaiting the registration returns [`Error::Invalid`](crate::Error::Invalid) if the name is reserved or invalid, if a
    /// limit is zero, if there is no tokio runtime, or if the process has too many methods.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, call::CallContext};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.on_call("add", |(a, b): (u32, u32), _: CallContext| async move { Ok::<_, duly::Error>(a + b) }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_call<A, F, Fut, R, E>(&self, method: impl Into<String>, handler: F) -> MethodRegistration
    where
        A: DeserializeOwned + Send + 'static,
        F: Fn(A, CallContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Serialize,
        E: Into<BoxError>,
    {
        MethodRegistration::new(
            self.clone(),
            method.into(),
            Box::new(|limits, runtime| Method::new(handler, limits, runtime)),
        )
    }

    /// Removes the handler of this method. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`](crate::Error::Store) if the other nodes cannot be informed. This process rejects calls of the
    /// method then too.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, call::CallContext};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.on_call("add", |(a, b): (u32, u32), _: CallContext| async move { Ok::<_, duly::Error>(a + b) }).await?;
    /// assert!(duly.remove_method("add").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove_method(&self, method: &str) -> Result<bool> {
        let peers = self.peers()?;
        let removed = peers.remove_method(method);
        if removed {
            peers.announce().await?;
        }
        Ok(removed)
    }

    /// Registers a connection of this process, for example to a browser or a device, under this name. Calls to the
    /// connection reach this process until the returned value is dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Conflict`](crate::Error::Conflict) if this process already holds the connection.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, call::CallContext};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.on_call("notify", |text: String, _: CallContext| async move { Ok::<_, duly::Error>(text.len()) }).await?;
    /// let held = duly.hold_connection("browser-7").await?;
    /// let sent: usize = duly.call("notify", &"hello").connection("browser-7").reply().await?;
    /// assert_eq!((held.id(), sent), ("browser-7", 5));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hold_connection(&self, connection: impl Into<String>) -> Result<HeldConnection> {
        let connection = connection.into();
        check_text("connection", &connection, CONNECTION_BYTES_MAX)?;
        self.peers()?.hold_connection(connection).await
    }

    /// Returns the identity of this process for other nodes; its first worker uses the same one.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if a cluster key is invalid, and
    /// [`Error::Store`](crate::Error::Store) if the thread for messages does not start.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let pong: serde_json::Value = duly.call("duly.ping", &()).node(duly.node_id()?).reply().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn node_id(&self) -> Result<NodeId> {
        Ok(self.peers()?.node_id())
    }

    /// Returns a handle to the nodes: the processes that work, call or wait on this store.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let nodes = duly.nodes().list().await?;
    /// let slots: u64 = nodes.iter().filter(|node| node.alive).filter_map(|node| node.profile.slots).sum();
    /// assert_eq!(slots, 0, "no worker has started");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn nodes(&self) -> Nodes<'_> {
        Nodes { duly: self }
    }

    /// Returns this process as a peer; starts its thread on first use.
    pub(crate) fn peers(&self) -> Result<Arc<Peers>> {
        if let Some(peers) = self.peers.get() {
            return Ok(peers.clone());
        }
        let (options, store) = (&self.options, self.store.clone());
        let keys = ClusterKeys::new(&options.cluster_keys)?;
        let peers = Peers::start(store, options.lease, options.clock.clone(), keys)?;
        // If two callers start a thread at the same time, the first one wins; the other thread ends.
        Ok(self.peers.get_or_init(|| peers).clone())
    }
}

/// The nodes of a store, from [`Duly::nodes`].
///
/// See [`Nodes::list`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct Nodes<'d> {
    duly: &'d Duly,
}

impl Nodes<'_> {
    /// Returns all registered nodes.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`](crate::Error::Store) if the store cannot be reached.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// for node in duly.nodes().list().await?.iter().filter(|node| node.alive) {
    ///     println!("{} on {} holds {} jobs", node.id, node.host, node.held);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(self) -> Result<Vec<NodeRecord>> {
        self.duly.store.nodes().await
    }
}
