//! The runs of a job: what each of its attempts did.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{rfc3339, unix_ms};
use crate::openapi::RunOutcomeName;
use duly::job::JobRun;

/// One run of a job: what one of its attempts did.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Run)]
pub struct RunView {
    /// The number of the attempt, from 1. A run that did not count has the number of the next one.
    pub attempt: u32,
    /// How it ended: `ack` (the job was done), `retry`, `bury` (the job died), `release` (it ended early and did not
    /// count) or `crash` (its node died).
    #[schema(value_type = RunOutcomeName)]
    pub outcome: String,
    /// The node that held the job.
    #[schema(format = "uuid")]
    pub node: String,
    /// When it started. Absent if that is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// The same in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<i64>,
    /// When its end was recorded.
    pub ended: String,
    /// The same in milliseconds since 1970.
    pub ended_ms: i64,
    /// How long it took, in milliseconds with fractions. Absent if that is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
    /// The error of a run that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The end of what it logged, or of what its command printed. Absent for roles below operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl From<&JobRun> for RunView {
    fn from(run: &JobRun) -> Self {
        RunView {
            attempt: run.attempt,
            outcome: run.outcome.as_str().to_owned(),
            node: run.node.to_string(),
            started: run.started.map(rfc3339),
            started_ms: run.started.map(unix_ms),
            ended: rfc3339(run.ended),
            ended_ms: unix_ms(run.ended),
            duration_ms: run.duration.map(|duration| duration.as_micros() as f64 / 1_000.0),
            error: run.error.clone(),
            output: run.output.clone(),
        }
    }
}
