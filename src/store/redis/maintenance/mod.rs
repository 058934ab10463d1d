//! Maintenance of the stored data: health, access rules, verify, repair and scan.

pub(crate) mod acl;
mod durability;
pub(crate) mod health;
pub(crate) mod job_invariants;
pub(crate) mod repair;
pub(crate) mod scan;
pub(crate) mod verify;
pub(crate) mod verify_counts;
pub(crate) mod verify_cron;
mod vulnerabilities;

use async_trait::async_trait;

use crate::error::Result;
use crate::store::redis::Redis;
use crate::store::{Health, HealthStore, JobPage, MaintenanceStore, ScanStore, VerifyReport};

#[async_trait]
impl MaintenanceStore for Redis {
    async fn verify(&self) -> Result<VerifyReport> {
        verify::verify(self).await
    }

    async fn repair(&self) -> Result<()> {
        repair::repair(self).await
    }
}

#[async_trait]
impl HealthStore for Redis {
    async fn health(&self) -> Result<Health> {
        health::health(self).await
    }
}

#[async_trait]
impl ScanStore for Redis {
    async fn scan(&self, queue: &str, cursor: Option<&str>) -> Result<JobPage> {
        scan::scan(self, queue, cursor).await
    }
}
