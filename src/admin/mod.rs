//! Administration: bulk changes, why a job waits, backup and verify, access tokens and the audit log.

pub(crate) mod access;
pub(crate) mod backup;
pub(crate) mod bulk;
pub(crate) mod job_id_key;
pub(crate) mod token;
pub(crate) mod unused_queues;
pub(crate) mod why;
mod why_description;

pub use self::access::{Audit, Tokens};
pub use self::backup::RepairReport;
pub use self::bulk::{BulkCount, BulkOperation, BulkReport};
pub use self::job_id_key::JobIdKey;
pub use self::token::TokenSecret;
pub use self::why::Why;
pub use crate::client::{Jobs, Nodes, Queues};
pub use crate::node::{NodeProfile, NodeRecord};
pub use crate::peers::RunningJob;
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::{ReadOnlySql, SqlTable};
pub use crate::store::{
    AuditEntry, AuditOutcome, AuditRecord, CancelResult, Capacity, DeadGroup, Health, Histogram, History, HistoryPoint,
    HistoryQuery, Invariant, JobEdit, JobPage, KindStats, KindStatsQuery, QueueCounts, Resolution, Role, StatCounters,
    StoreUrl, Token, TransferMark, VerifyReport, Violation, parse_duration,
};
pub use crate::transfer::{QueueTransferReport, Transfer, TransferProgress};
