//! Tokens and the audit.

use duly::store::{AUDIT_ENTRIES_MAX, AuditEntry};
use duly::{Error, Role};

use crate::test_store::{SECOND, TestStore};

pub async fn token_is_stored_by_name_and_never_in_clear(store: TestStore) {
    let secret = store.duly.create_token("ci", Role::Operator, None).await.expect("made");
    let again = store.duly.create_token("ci", Role::Admin, None).await;
    assert!(matches!(again, Err(Error::Conflict(_))), "one token has a name");
    store.duly.create_token("ada", Role::Admin, None).await.expect("made");
    let tokens = store.duly.tokens().await.expect("lists");
    let known: Vec<_> = tokens.iter().map(|token| (token.name.as_str(), token.role)).collect();
    assert_eq!(known, [("ada", Role::Admin), ("ci", Role::Operator)]);
    assert!(tokens.iter().all(|token| token.created == store.now() && token.expires.is_none()));
    assert!(!format!("{tokens:?}").contains(secret.as_str()));
    store.duly.remove_token("ci").await.expect("is gone");
    assert!(matches!(store.duly.remove_token("ci").await, Err(Error::NotFound { .. })));
    assert_eq!(store.duly.tokens().await.expect("lists").len(), 1);
}

pub async fn token_expires_after_its_lifetime(store: TestStore) {
    store.duly.create_token("short", Role::Viewer, Some(10 * SECOND)).await.expect("made");
    let ends = store.duly.tokens().await.expect("lists")[0].expires;
    assert_eq!(ends, Some(store.now() + 10 * SECOND));
    store.advance(11 * SECOND).await;
    assert!(store.duly.tokens().await.expect("lists").is_empty());
}

pub async fn audit_keeps_the_newest_entries_in_order(store: TestStore) {
    assert!(store.duly.audit_entries(None, 10).await.expect("reads").is_empty());
    for no in 1..=25 {
        let entry = AuditEntry::new("ada", format!("POST /jobs/{no}"), Some("127.0.0.1".into()), 204);
        store.duly.add_audit_entry(entry).await.expect("noted");
    }
    let first = store.duly.audit_entries(None, 10).await.expect("reads");
    assert_eq!((first.len(), first[0].entry.action.as_str()), (10, "POST /jobs/25"));
    assert_eq!(
        (first[0].entry.actor.as_str(), first[0].entry.origin.as_deref(), first[0].at),
        ("ada", Some("127.0.0.1"), store.now())
    );
    let next = store.duly.audit_entries(Some(first[9].number), 200).await.expect("reads");
    let what: Vec<_> = next.iter().map(|record| record.entry.action.as_str()).collect();
    assert_eq!((what.len(), what[0], what[14]), (15, "POST /jobs/15", "POST /jobs/1"));
    const { assert!(AUDIT_ENTRIES_MAX >= 1_000) };
}
