//! Tokens and the audit.

use duly::store::{AUDIT_MAX, Audit};
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
    assert!(store.duly.audits(None, 10).await.expect("reads").is_empty());
    for no in 1..=25 {
        let entry = Audit::new("ada", format!("POST /jobs/{no}"), Some("127.0.0.1".into()), 204);
        store.duly.put_audit(entry).await.expect("noted");
    }
    let first = store.duly.audits(None, 10).await.expect("reads");
    assert_eq!((first.len(), first[0].entry.what.as_str()), (10, "POST /jobs/25"));
    assert_eq!(
        (first[0].entry.who.as_str(), first[0].entry.from.as_deref(), first[0].at),
        ("ada", Some("127.0.0.1"), store.now())
    );
    let next = store.duly.audits(Some(first[9].no), 200).await.expect("reads");
    let what: Vec<_> = next.iter().map(|record| record.entry.what.as_str()).collect();
    assert_eq!((what.len(), what[0], what[14]), (15, "POST /jobs/15", "POST /jobs/1"));
    const { assert!(AUDIT_MAX >= 1_000) };
}
