//! Asking every master the same: what one of them does not say is no reason not to hear the others.

use futures_util::future::join_all;
use redis::Cmd;

use crate::clock;
use crate::error::{Error, Result};
use crate::store::redis::conn::request::RetryBudget;
use crate::store::redis::conn::{ConnectionRole, RETRY_TIMEOUT, Servers, errors};
use crate::store::redis::url::{ServerAddress, Topology};

/// What one master says when it is asked.
pub(in crate::store::redis) enum MasterReply {
    Value(redis::Value),
    /// It would say the same the next time.
    Rejected(Error),
    /// It cannot be reached, or is not ready.
    Unreachable(Error),
}

impl Servers {
    /// Asks one command of every master that is known, and fails only if none of them answers.
    pub(in crate::store::redis) async fn query_all_masters(
        &self,
        op: &'static str,
        cmd: &Cmd,
    ) -> Result<Vec<(ServerAddress, MasterReply)>> {
        let mut tries = RetryBudget::until(clock::monotonic_now() + RETRY_TIMEOUT);
        loop {
            let lessons = self.state().discovery_count;
            let said = match self.known_or_discovered_masters().await {
                Ok(masters) => self.query_masters(op, &masters, cmd).await,
                Err(nobody) if nobody.is_permanent() || !tries.wait_for_retry().await => {
                    return Err(nobody.into_error(op));
                }
                Err(_) => continue,
            };
            if said.iter().any(|(_, said)| !matches!(said, MasterReply::Unreachable(_))) {
                return Ok(said);
            }
            if !tries.wait_for_retry().await {
                let why = said.into_iter().find_map(|(_, said)| said.into_error());
                return Err(why.unwrap_or_else(|| Error::store(op, "there is no master to ask")));
            }
            self.suspect_masters(said.iter().map(|(address, _)| address));
            self.discover_masters(0, lessons).await;
        }
    }

    /// Asks these masters, each once and all at the same time.
    pub(in crate::store::redis) async fn query_masters(
        &self,
        op: &'static str,
        masters: &[ServerAddress],
        cmd: &Cmd,
    ) -> Vec<(ServerAddress, MasterReply)> {
        let asks = masters.iter().map(async |address| {
            let said = match self
                .connection(ConnectionRole::Client, address)
                .send(cmd)
                .await
                .map_err(crate::store::redis::conn::ReplyLost::into_error)
            {
                Ok(value) => MasterReply::Value(value),
                Err(error) if errors::is_permanent(&error) => {
                    MasterReply::Rejected(errors::unreachable_error(op, address, error))
                }
                Err(error) => MasterReply::Unreachable(errors::unreachable_error(op, address, error)),
            };
            (address.clone(), said)
        });
        join_all(asks).await
    }

    /// The master of a slot, as far as is known.
    pub(in crate::store::redis) fn master_of(&self, slot: u16) -> Option<ServerAddress> {
        self.state().address_of(&self.url, slot).cloned()
    }

    /// All masters; asks for them if none is known.
    async fn known_or_discovered_masters(
        &self,
    ) -> Result<Vec<ServerAddress>, crate::store::redis::conn::MasterUnknown> {
        let first = self.connection_for_slot(ConnectionRole::Client, 0).await;
        let masters = match self.url.topology {
            Topology::Cluster => self.state().slots.masters(),
            Topology::Standalone | Topology::Sentinel(_) => self.master_of(0).into_iter().collect(),
        };
        // Of a Cluster some may be known although nobody has this slot.
        if masters.is_empty() { Err(first.err().unwrap_or_else(|| self.master_unknown())) } else { Ok(masters) }
    }

    fn suspect_masters<'a>(&self, addresses: impl Iterator<Item = &'a ServerAddress>) {
        addresses.for_each(|address| self.suspect_master(&self.connection(ConnectionRole::Client, address)));
    }
}

impl MasterReply {
    fn into_error(self) -> Option<Error> {
        match self {
            MasterReply::Value(_) => None,
            MasterReply::Rejected(error) | MasterReply::Unreachable(error) => Some(error),
        }
    }
}
