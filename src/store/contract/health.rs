//! Health reports. Every store has this capability.

use super::capability;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Reports on the store's own condition.
    pub trait HealthStore(health: "health reports") {
        /// Returns the store's durability, facts and warnings.
        async fn health(&self) -> Result<Health>;
    }
}
