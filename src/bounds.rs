//! Every public maximum and every default of jobs, workers, locks and calls, in one list. The module for the keys of other
//! systems has its own.
//!
//! Input beyond a maximum is rejected with an error that names it; nothing is cut silently unless the constant says so.

pub use crate::admin::bulk::{BULK_MAX, COUNT_SCANNED_MAX};
pub use crate::admin::token::TOKEN_PREFIX;
pub use crate::cron::crons::CRONS_MAX;
pub use crate::cron::plan::{MISSED_AFTER, MISSED_TICKS_MAX};
pub use crate::cron::rule::{CRON_ARGS_BYTES_MAX, JITTER_MAX};
pub use crate::job::depth::JSON_DEPTH_MAX;
pub use crate::job::filter::{FILTER_BYTES_MAX, FILTER_TERMS_MAX};
pub use crate::job::id::ID_PART_DIGITS_MIN;
pub use crate::job::push::{
    ARGS_BYTES_MAX, DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, DEFAULT_TIMEOUT, NAME_BYTES_MAX, PUSH_BYTES_MAX, PUSH_MAX,
    TAGS_MAX, UNIQUE_BYTES_MAX,
};
pub use crate::lock::{DEFAULT_LOCK_TTL, LOCK_NAME_BYTES_MAX};
pub use crate::node::{DEFAULT_HEARTBEAT_INTERVAL, DEFAULT_LEASE, NODE_KINDS_MAX};
pub use crate::peers::WAITED_JOBS_MAX;
pub use crate::peers::call::{CALL_TIMEOUT_MAX, DEFAULT_CALL_TIMEOUT};
pub use crate::peers::envelope::{CLUSTER_KEY_BYTES_MIN, MESSAGE_BYTES_MAX};
pub use crate::peers::methods::DEFAULT_METHOD_CONCURRENCY;
#[cfg(feature = "sqlite")]
pub use crate::store::sqlite::SQL_ROWS_MAX;
pub use crate::store::{
    AUDIT_TEXT_BYTES_MAX, DEFAULT_PAGE_SIZE, ERROR_BYTES_MAX, HISTORY_HOURS_MAX, HISTORY_MINUTES_MAX, KIND_HOURS_MAX,
    KIND_MINUTES_MAX, LOCK_SLOTS_MAX, LOG_LINE_BYTES_MAX, LOG_LINES_MAX, OTHER_KINDS, PAGE_SIZE_MAX,
    PROGRESS_MESSAGE_BYTES_MAX, RESULT_BYTES_MAX, RUN_OUTPUT_BYTES_MAX, RUNS_MAX, TOKENS_MAX,
};
pub use crate::worker::remote::{
    CLAIM_BYTES_MAX as REMOTE_CLAIM_BYTES_MAX, DEFAULT_REMOTE_LEASE, JOBS_HELD_MAX as REMOTE_JOBS_HELD_MAX,
};
pub use crate::worker::{DEFAULT_CONCURRENCY, DEFAULT_CRASHES_MAX, DEFAULT_GRACE_PERIOD, DEFAULT_KEEP_DONE_MAX};
