//! ActiveJob on Sidekiq: the entry has a wrapper as its class, the real class in `wrapped`, and ActiveJob's own form of the
//! job as its only argument. For duly the real class is the kind, and the argument stays as it is.

use serde::Deserialize;

use super::json::{JsonObject, encode_object, encode_string};
use crate::job::JobId;

/// The wrapper's class: in every version of Sidekiq with the adapter of Rails, and what Sidekiq 8 with its own adapter
/// writes. That adapter accepts both; duly writes the first.
pub(super) const WRAPPERS: [&str; 2] =
    ["ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper", "Sidekiq::ActiveJob::Wrapper"];

/// Returns the kind of an entry with this class.
pub(super) fn kind(fields: &JsonObject<'_>, class: String) -> String {
    match WRAPPERS.contains(&&class[..]) {
        true => fields.get("wrapped").unwrap_or(class),
        false => class,
    }
}

/// The fields by which args are recognized.
#[derive(Deserialize)]
struct ActiveJobArgs {
    job_class: String,
    /// ActiveJob fails without it.
    #[serde(rename = "arguments")]
    _arguments: Vec<serde::de::IgnoredAny>,
}

/// Returns the args with all fields that ActiveJob needs, if they are those of an ActiveJob of this kind: a list of one
/// object with `job_class` and `arguments`.
pub(super) fn complete_args(args: &str, kind: &str, queue: &str, id: JobId) -> Option<String> {
    // Most args need no parser.
    if !args.contains("\"job_class\"") {
        return None;
    }
    let [job]: [ActiveJobArgs; 1] = serde_json::from_str(args).ok()?;
    if job.job_class != kind {
        return None;
    }
    let [object]: [JsonObject<'_>; 1] = serde_json::from_str(args).ok()?;
    let mut fields = object.rewrite(&[]);
    let defaults = [
        ("job_id", encode_string(&id.to_string())),
        ("queue_name", encode_string(queue)),
        ("executions", "0".to_owned()),
        ("exception_executions", "{}".to_owned()),
    ];
    for (name, value) in defaults {
        if !fields.iter().any(|(field, _)| field == name) {
            fields.push((name.to_owned(), value));
        }
    }
    Some(format!("[{}]", encode_object(&fields)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_args_of_active_job_are_completed() {
        let id = JobId::from_name("one");
        let complete = |args| complete_args(args, "Welcome", "mail", id);
        let full = complete(r#"[{"job_class":"Welcome","arguments":[1e2, "a"]}]"#).expect("an ActiveJob");
        let expected = format!(
            r#"[{{"job_class":"Welcome","arguments":[100.0,"a"],"job_id":"{id}","queue_name":"mail","executions":0,"exception_executions":{{}}}}]"#
        );
        assert_eq!(full, expected);
        assert_eq!(complete(&full), Some(full.clone()), "nothing is added twice");
        for other in [
            r#"[{"job_class":"Other","arguments":[]}]"#,
            r#"[{"job_class":"Welcome"}]"#,
            r#"[{"job_class":"Welcome","arguments":[]},2]"#,
            r#"{"job_class":"Welcome","arguments":[]}"#,
            r#"["job_class"]"#,
        ] {
            assert_eq!(complete(other), None, "{other}");
        }
    }
}
