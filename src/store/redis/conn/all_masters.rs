//! Asking every master the same: what one of them does not say is no reason not to hear the others.

use futures_util::future::join_all;
use redis::Cmd;

use crate::clock;
use crate::error::{Error, Result};
use crate::store::redis::conn::request::Tries;
use crate::store::redis::conn::{Link, PATIENCE, Way, errors};
use crate::store::redis::url::{Address, Shape};

/// What one master says when it is asked.
pub(in crate::store::redis) enum Said {
    Answer(redis::Value),
    /// It would say the same the next time.
    Refusal(Error),
    /// It cannot be reached, or is not ready.
    Nothing(Error),
}

impl Link {
    /// Asks one command of every master that is known, and fails only if none of them answers.
    pub(in crate::store::redis) async fn ask_each(&self, op: &'static str, cmd: &Cmd) -> Result<Vec<(Address, Said)>> {
        let mut tries = Tries::until(clock::tick() + PATIENCE);
        loop {
            let lessons = self.known().lessons;
            let said = match self.masters().await {
                Ok(masters) => self.ask_these(op, &masters, cmd).await,
                Err(nobody) if nobody.is_hopeless() || !tries.again().await => return Err(nobody.error(op)),
                Err(_) => continue,
            };
            if said.iter().any(|(_, said)| !matches!(said, Said::Nothing(_))) {
                return Ok(said);
            }
            if !tries.again().await {
                let why = said.into_iter().find_map(|(_, said)| said.into_error());
                return Err(why.unwrap_or_else(|| Error::store(op, "there is no master to ask")));
            }
            self.doubt_all(said.iter().map(|(address, _)| address));
            self.learn(0, lessons).await;
        }
    }

    /// Asks these masters, each once and all at the same time.
    pub(in crate::store::redis) async fn ask_these(
        &self,
        op: &'static str,
        masters: &[Address],
        cmd: &Cmd,
    ) -> Vec<(Address, Said)> {
        let asks = masters.iter().map(async |address| {
            let said = match self
                .lane(Way::Door, address)
                .send(cmd)
                .await
                .map_err(crate::store::redis::conn::NoAnswer::into_error)
            {
                Ok(value) => Said::Answer(value),
                Err(error) if errors::is_hopeless(&error) => Said::Refusal(errors::unreachable(op, address, error)),
                Err(error) => Said::Nothing(errors::unreachable(op, address, error)),
            };
            (address.clone(), said)
        });
        join_all(asks).await
    }

    /// The master of a slot, as far as is known.
    pub(in crate::store::redis) fn master_of(&self, slot: u16) -> Option<Address> {
        self.known().address_of(&self.place, slot).cloned()
    }

    /// All masters; asks for them if none is known.
    async fn masters(&self) -> Result<Vec<Address>, crate::store::redis::conn::Nobody> {
        let first = self.lane_of(Way::Door, 0).await;
        let masters = match self.place.shape {
            Shape::Cluster => self.known().slots.masters(),
            Shape::One | Shape::Sentinel(_) => self.master_of(0).into_iter().collect(),
        };
        // Of a Cluster some may be known although nobody has this slot.
        if masters.is_empty() { Err(first.err().unwrap_or_else(|| self.nobody())) } else { Ok(masters) }
    }

    fn doubt_all<'a>(&self, addresses: impl Iterator<Item = &'a Address>) {
        addresses.for_each(|address| self.doubt(&self.lane(Way::Door, address)));
    }
}

impl Said {
    fn into_error(self) -> Option<Error> {
        match self {
            Said::Answer(_) => None,
            Said::Refusal(error) | Said::Nothing(error) => Some(error),
        }
    }
}
