//! Sends one command to every master. A master that fails does not hide the replies of the others.

use futures_util::future::join_all;
use redis::Cmd;

use crate::clock;
use crate::error::{Error, Result};
use crate::store::redis::conn::request::RetryBudget;
use crate::store::redis::conn::{ConnectionRole, RETRY_TIMEOUT, Servers, errors};
use crate::store::redis::url::{ServerAddress, Topology};

/// The reply of one master.
pub(in crate::store::redis) enum MasterReply {
    Value(redis::Value),
    /// Permanent: a retry fails too.
    Rejected(Error),
    /// The master is unreachable or not ready.
    Unreachable(Error),
}

impl Servers {
    /// Sends a command to every known master; fails only if no master replies.
    pub(in crate::store::redis) async fn query_all_masters(
        &self,
        op: &'static str,
        cmd: &Cmd,
    ) -> Result<Vec<(ServerAddress, MasterReply)>> {
        let mut budget = RetryBudget::until(clock::monotonic_now() + RETRY_TIMEOUT);
        loop {
            let discovery_count = self.state().discovery_count;
            let replies = match self.known_or_discovered_masters().await {
                Ok(masters) => self.query_masters(op, &masters, cmd).await,
                Err(unknown) if unknown.is_permanent() || !budget.wait_for_retry().await => {
                    return Err(unknown.into_error(op));
                }
                Err(_) => continue,
            };
            if replies.iter().any(|(_, reply)| !matches!(reply, MasterReply::Unreachable(_))) {
                return Ok(replies);
            }
            if !budget.wait_for_retry().await {
                let error = replies.into_iter().find_map(|(_, reply)| reply.into_error());
                return Err(error.unwrap_or_else(|| {
                    Error::store(op, "no master is known; check that the servers run and that the address is right")
                }));
            }
            self.suspect_masters(replies.iter().map(|(address, _)| address));
            self.discover_masters(0, discovery_count).await;
        }
    }

    /// Sends a command to these masters concurrently, once each.
    pub(in crate::store::redis) async fn query_masters(
        &self,
        op: &'static str,
        masters: &[ServerAddress],
        cmd: &Cmd,
    ) -> Vec<(ServerAddress, MasterReply)> {
        let requests = masters.iter().map(async |address| {
            let reply = match self
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
            (address.clone(), reply)
        });
        join_all(requests).await
    }

    /// Returns the master of a slot, if known.
    pub(in crate::store::redis) fn master_of(&self, slot: u16) -> Option<ServerAddress> {
        self.state().address_of(&self.url, slot).cloned()
    }

    /// Returns all masters; discovers them if none is known.
    async fn known_or_discovered_masters(
        &self,
    ) -> Result<Vec<ServerAddress>, crate::store::redis::conn::MasterUnknown> {
        let first = self.connection_for_slot(ConnectionRole::Client, 0).await;
        let masters = match self.url.topology {
            Topology::Cluster => self.state().slots.masters(),
            Topology::Standalone | Topology::Sentinel(_) => self.master_of(0).into_iter().collect(),
        };
        // A Cluster may have known masters although slot 0 has none.
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
