//! Maintenance of the file: health, verify, repair, backup, upkeep and read-only SQL.

pub(crate) mod backup;
pub(crate) mod health;
pub(crate) mod repair;
pub(crate) mod sql;
pub(crate) mod upkeep;
pub(crate) mod verify;

use std::path::Path;

use async_trait::async_trait;
use rusqlite::Connection;

use crate::error::Result;
use crate::store::sqlite::Sqlite;
use crate::store::{Health, HealthStore, MaintenanceStore, SnapshotStore, VerifyReport};

#[async_trait]
impl MaintenanceStore for Sqlite {
    async fn verify(&self) -> Result<VerifyReport> {
        verify::verify(self).await
    }

    async fn repair(&self) -> Result<()> {
        repair::repair(self).await
    }
}

#[async_trait]
impl HealthStore for Sqlite {
    async fn health(&self) -> Result<Health> {
        let (watch, durability, clock) = (self.watch.clone(), self.durability, self.clock.clone());
        let read = move |conn: &Connection| health::health(conn, watch.as_deref(), durability, &clock);
        let mut health = self.writer.run_outside_transaction("health", read).await?;
        health.add_history_fact(self.history_enabled);
        Ok(health)
    }
}

#[async_trait]
impl SnapshotStore for Sqlite {
    async fn backup(&self, to: &Path) -> Result<()> {
        backup::backup(self, to).await
    }
}
