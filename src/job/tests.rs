//! Tests of jobs as data, and a held job for other tests.

use super::*;
use proptest::prelude::*;

/// Returns a job of this kind, claimed for the first time.
pub(crate) fn held_job(kind: &str) -> HeldJob {
    let at = SystemTime::UNIX_EPOCH;
    let job = Job {
        id: JobId::fresh(),
        queue: "default".into(),
        kind: kind.into(),
        args: "null".into(),
        priority: Priority::Normal,
        pushed: at,
        max_attempts: 1,
        timeout: Duration::from_secs(60),
        keep: Duration::ZERO,
        unique: None,
        tags: Vec::new(),
        traceparent: None,
    };
    let args_bytes = job.args.len();
    HeldJob { job, fence: Fence(1), due: at, attempts: 0, crashes: 0, locator: Locator::new(1), args_bytes }
}

#[test]
fn same_name_gives_same_id() {
    assert_eq!(JobId::from_name("invoice:7"), JobId::from_name("invoice:7"));
    assert_ne!(JobId::from_name("invoice:7"), JobId::from_name("invoice:8"));
}

#[test]
fn higher_priority_compares_greater() {
    assert!(Priority::Critical > Priority::High && Priority::Normal > Priority::Low);
}

proptest! {
    #[test]
    fn any_text_parses_or_is_rejected(text in ".*") {
        let _ = text.parse::<JobId>();
        let _ = text.parse::<Priority>();
        let _ = text.parse::<State>();
    }

    #[test]
    fn errors_are_cut_between_characters(text in "\\PC{0,3000}") {
        let cut = Failure::truncate_error(&text);
        prop_assert!(cut.len() <= crate::store::ERROR_BYTES_MAX && text.starts_with(cut));
    }

    #[test]
    fn ids_survive_their_text(bytes in any::<[u8; 16]>()) {
        let id = JobId::from_bytes(bytes);
        prop_assert_eq!(id.to_string().parse::<JobId>().expect("its own text"), id);
    }
}
