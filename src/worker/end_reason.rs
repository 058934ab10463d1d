//! Why an attempt ended, or a claimed job was released, if its handler did not decide that.

/// The reason of an outcome that the worker decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// A client cancelled the job.
    Cancelled,
    /// Another node may have a handler.
    UnknownKind,
    /// The task of the attempt ended without an outcome.
    TaskBroken,
    GracePeriodOver,
    /// A crash suspect needs the node for itself.
    Quarantine,
    /// A push delivered the job to a node without a free slot.
    NoFreeSlot,
    WorkerQuiet,
    WorkerBlocked,
    WorkerStopping,
}

impl EndReason {
    /// Returns the text for events and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            EndReason::Cancelled => "cancelled",
            EndReason::UnknownKind => "no handler for its kind on this node",
            EndReason::TaskBroken => "its task ended without an outcome",
            EndReason::GracePeriodOver => "its grace period was over",
            EndReason::Quarantine => "a job that may crash its process runs alone",
            EndReason::NoFreeSlot => "delivered to this node without a free slot",
            EndReason::WorkerQuiet => "claimed while the worker was quiet",
            EndReason::WorkerBlocked => "claimed while a handler blocked the worker",
            EndReason::WorkerStopping => "claimed while the worker was stopping",
        }
    }
}
