//! The schemas of words: each lists all values, so that generated clients know them.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use duly::admin::{AuditOutcome, Why};
use duly::cron::Overlap;
use duly::job::{RunOutcome, UniqueScope};
use duly::{ConflictKind, Priority, State};

/// Defines a type for each schema: its name in the description, its text, and its values.
macro_rules! word_schemas {
    ($($(#[$doc:meta])* $type:ident = $name:literal, $text:literal, $values:expr;)*) => { $(
        $(#[$doc])*
        pub(crate) struct $type;

        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                let words = ObjectBuilder::new().schema_type(Type::String).enum_values(Some($values));
                words.description(Some($text)).build().into()
            }
        }

        impl ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
        }
    )* };
}

word_schemas! {
    /// The schema of [`State`].
    JobStateName = "JobState", "The state of a job.", State::ALL.map(State::as_str);
    /// The schema of [`RunOutcome`].
    RunOutcomeName = "RunOutcome",
        "The end of an attempt: `ack` if the job was done, `retry` if it failed, `bury` if the job died of it, `release` if it ended early and did not count, `crash` if its node died.",
        RunOutcome::ALL.map(RunOutcome::as_str);
    /// The schema of [`Priority`].
    PriorityName = "Priority", "The order among the ready jobs of a queue.", Priority::ALL.map(Priority::as_str);
    /// The schema of [`UniqueScope`].
    UniqueScopeName = "UniqueScope",
        "The jobs that cannot have the same unique key: those of the same kind and queue, or of the whole queue.",
        UniqueScope::ALL.map(UniqueScope::as_str);
    /// The schema of [`Overlap`].
    OverlapName = "Overlap",
        "The policy for a tick while an earlier job of the rule is unfinished: push anyway, skip the tick, let it wait, or replace that job.",
        Overlap::ALL.map(Overlap::as_str);
    /// The schema of [`ConflictKind`].
    ConflictName = "Conflict", "The case of a conflict. Later versions may add further ones.",
        ConflictKind::ALL.map(ConflictKind::as_str);
    /// The schema of the codes of [`Why`].
    WhyName = "WhyCode", "The reason why a job is not running. Later versions may add further ones.", Why::CODES;
    /// The schema of [`AuditOutcome`].
    AuditOutcomeName = "AuditOutcome",
        "The end of an action: `refused` if the client lacked the rights, `started` if another entry follows at its end, `unknown` if it may have been carried out.",
        AuditOutcome::ALL.map(AuditOutcome::as_str);
    /// The schema of the result of a push.
    PushedName = "PushOutcome",
        "`new`; `existing` if nothing was changed; `replaced` if the job has replaced a waiting one.",
        ["new", "existing", "replaced"];
    /// The schema of the state of a bulk action.
    OperationStateName = "OperationState", "The state of a bulk action.", ["running", "done", "failed"];
}
