//! Subscriptions to channels, tied to the connection that carries them: a new connection has none of them.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::store::redis::conn::connection::ServerConnection;
use crate::store::redis::conn::masters::MasterUnknown;
use crate::store::redis::conn::{ConnectionRole, Servers};

/// Maximum attempts to subscribe while the connection to the server keeps changing.
const SUBSCRIBE_TRIES_MAX: usize = 3;

/// The connection that carries a subscription, and the generation for which the subscription holds.
pub(in crate::store::redis) struct SubscribedConnection {
    connection: Arc<ServerConnection>,
    generation: u64,
}

impl SubscribedConnection {
    fn is_open(&self) -> bool {
        self.generation != 0 && self.connection.generation() == self.generation
    }

    /// Unsubscribes from these channels. A failure is harmless: a few more messages arrive.
    pub(in crate::store::redis) async fn unsubscribe(&self, channels: &[String]) {
        if self.is_open() {
            let unsubscribe = async |channel: &String| {
                let mut cmd = redis::cmd("SUNSUBSCRIBE");
                cmd.arg(channel);
                self.connection.send(&cmd).await.is_ok()
            };
            futures_util::future::join_all(channels.iter().map(unsubscribe)).await;
        }
    }
}

impl Servers {
    /// Subscribes to channels of this slot. A worker subscribes on the connection of its own runtime, the one that
    /// claims, so that wakes and claim replies arrive in the order in which the server sent them.
    ///
    /// Returns `None` if the connection changes meanwhile, because the subscription may be lost with it.
    pub(in crate::store::redis) async fn subscribe(
        &self,
        role: ConnectionRole,
        slot: u16,
        command: &'static str,
        channels: &[String],
    ) -> Result<Option<SubscribedConnection>> {
        let subscribe = async |channel: &String| {
            let mut cmd = redis::cmd(command);
            cmd.arg(channel);
            self.send_idempotent("subscribe", role, slot, &cmd).await
        };
        for _ in 0..SUBSCRIBE_TRIES_MAX {
            let master_unknown = |error: MasterUnknown| error.into_error("subscribe");
            let before = self.connection_for_slot(role, slot).await.map_err(master_unknown)?;
            let generation = before.generation();
            futures_util::future::try_join_all(channels.iter().map(subscribe)).await?;
            let after = self.connection_for_slot(role, slot).await.map_err(master_unknown)?;
            let subscribed = SubscribedConnection { connection: before, generation };
            // The slot may have moved to another server meanwhile; the first server then carries no subscription.
            if subscribed.is_open() && Arc::ptr_eq(&subscribed.connection, &after) {
                return Ok(Some(subscribed));
            }
        }
        Ok(None)
    }

    /// Returns whether the connection is still open, and its server still has the slot.
    pub(in crate::store::redis) fn is_current(&self, subscribed: &SubscribedConnection, slot: u16) -> bool {
        subscribed.is_open() && self.state().address_of(&self.url, slot) == Some(subscribed.connection.address())
    }

    /// Returns the latest generation of the connections used for this slot, or 0 if there is none.
    pub(in crate::store::redis) fn generation(&self, role: ConnectionRole, slot: u16) -> u64 {
        self.connections_to_slot(role, slot).iter().map(|connection| connection.generation()).max().unwrap_or(0)
    }

    /// Returns the generation of this runtime's own connection for this slot, or 0 if there is none.
    pub(in crate::store::redis) fn runtime_generation(&self, role: ConnectionRole, slot: u16) -> u64 {
        let address = self.state().address_of(&self.url, slot).cloned();
        address.map_or(0, |address| self.connection(role, &address).generation())
    }

    /// Returns the time since anything arrived on the subscribed connection of this slot, or `None` if there is none.
    pub(in crate::store::redis) fn time_since_received(&self, slot: u16) -> Option<Duration> {
        self.connections_to_slot(ConnectionRole::Heartbeat, slot)
            .first()
            .and_then(|connection| connection.time_since_received())
    }
}
