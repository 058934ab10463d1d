//! Tokens and the audit log.

use duly::Error;
use duly::admin::Role;
use duly::store::{AUDIT_ENTRIES_MAX, AuditEntry};

use crate::test_store::{SECOND, TestStore};

pub async fn token_is_stored_by_name_and_never_in_clear(store: TestStore) {
    let secret = store.duly.create_token("ci", Role::Operator, None).await.expect("creates");
    let again = store.duly.create_token("ci", Role::Admin, None).await;
    assert!(matches!(again, Err(Error::Conflict(_))), "token names are unique");
    store.duly.create_token("ada", Role::Admin, None).await.expect("creates");
    let tokens = store.duly.tokens().await.expect("lists");
    let listed: Vec<_> = tokens.iter().map(|token| (token.name.as_str(), token.role)).collect();
    assert_eq!(listed, [("ada", Role::Admin), ("ci", Role::Operator)]);
    assert!(tokens.iter().all(|token| token.created == store.now() && token.expires.is_none()));
    assert!(!format!("{tokens:?}").contains(secret.as_str()));
    store.duly.remove_token("ci").await.expect("removes");
    assert!(matches!(store.duly.remove_token("ci").await, Err(Error::NotFound { .. })));
    assert_eq!(store.duly.tokens().await.expect("lists").len(), 1);
}

pub async fn token_expires_after_its_lifetime(store: TestStore) {
    store.duly.create_token("short", Role::Viewer, Some(10 * SECOND)).await.expect("creates");
    let expires = store.duly.tokens().await.expect("lists")[0].expires;
    assert_eq!(expires, Some(store.now() + 10 * SECOND));
    store.advance(11 * SECOND).await;
    assert!(store.duly.tokens().await.expect("lists").is_empty());
}

pub async fn audit_keeps_the_newest_entries_in_order(store: TestStore) {
    assert!(store.duly.audit_entries(None, 10).await.expect("reads").is_empty());
    for number in 1..=25 {
        let entry = AuditEntry::new("ada", format!("POST /jobs/{number}"), Some("127.0.0.1".into()), 204);
        store.duly.add_audit_entry(entry).await.expect("adds");
    }
    let first = store.duly.audit_entries(None, 10).await.expect("reads");
    assert_eq!((first.len(), first[0].entry.action.as_str()), (10, "POST /jobs/25"));
    assert_eq!(
        (first[0].entry.actor.as_str(), first[0].entry.address.as_deref(), first[0].at),
        ("ada", Some("127.0.0.1"), store.now())
    );
    let next = store.duly.audit_entries(Some(first[9].number), 200).await.expect("reads");
    let actions: Vec<_> = next.iter().map(|record| record.entry.action.as_str()).collect();
    assert_eq!((actions.len(), actions[0], actions[14]), (15, "POST /jobs/15", "POST /jobs/1"));
    const { assert!(AUDIT_ENTRIES_MAX >= 1_000) };
}
