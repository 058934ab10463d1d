//! Administration: bulk changes, why a job waits, backup and verify, access tokens and the audit log.

pub(crate) mod access;
pub(crate) mod backup;
pub(crate) mod bulk;
pub(crate) mod token;
pub(crate) mod why;

pub use self::backup::RepairReport;
pub use self::bulk::{BulkCount, BulkOperation, BulkReport};
pub use self::token::{Role, Token, TokenSecret};
pub use self::why::Why;
pub use crate::node::{NodeProfile, NodeRecord};
pub use crate::peers::RunningJob;
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::{ReadOnlySql, SqlTable};
pub use crate::store::{
    AuditEntry, AuditRecord, Capacity, DeadGroup, Health, Histogram, History, HistoryPoint, HistoryQuery, Invariant,
    JobEdit, JobPage, KindStats, QueueCounts, StatCounters, StoreUrl, TransferMark, VerifyReport, Violation,
    parse_duration,
};
pub use crate::transfer::{QueueTransferReport, Transfer, TransferProgress};
