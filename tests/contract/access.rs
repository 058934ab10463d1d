//! Tokens and the audit log.

use duly::admin::Role;
use duly::store::{AccessStore, AuditBounds, AuditEntry, AuditOutcome};
use duly::{ConflictKind, Error};

use crate::test_store::{SECOND, TestStore};

pub async fn token_is_stored_by_name_and_never_in_clear(store: TestStore) {
    let secret = store.duly.tokens().create("ci", Role::Operator, None).await.expect("creates");
    let again = store.duly.tokens().create("ci", Role::Admin, None).await;
    assert!(matches!(again, Err(Error::Conflict { kind: ConflictKind::Exists, .. })), "token names are unique");
    store.duly.tokens().create("ada", Role::Admin, None).await.expect("creates");
    let tokens = store.duly.tokens().list().await.expect("lists");
    let listed: Vec<_> = tokens.iter().map(|token| (token.name.as_str(), token.role)).collect();
    assert_eq!(listed, [("ada", Role::Admin), ("ci", Role::Operator)]);
    assert!(tokens.iter().all(|token| token.created == store.now() && token.expires.is_none()));
    assert!(!format!("{tokens:?}").contains(secret.as_str()));
    store.duly.tokens().remove("ci").await.expect("removes");
    assert!(matches!(store.duly.tokens().remove("ci").await, Err(Error::NotFound { .. })));
    assert_eq!(store.duly.tokens().list().await.expect("lists").len(), 1);
}

pub async fn token_expires_after_its_lifetime(store: TestStore) {
    store.duly.tokens().create("short", Role::Viewer, Some(10 * SECOND)).await.expect("creates");
    let expires = store.duly.tokens().list().await.expect("lists")[0].expires;
    assert_eq!(expires, Some(store.now() + 10 * SECOND));
    store.advance(11 * SECOND).await;
    assert!(store.duly.tokens().list().await.expect("lists").is_empty());
}

pub async fn ids_derived_with_the_secret_are_the_same_for_all_processes(store: TestStore) {
    let first = store.duly.tokens().job_id_key().await.expect("a key");
    let again = store.duly.tokens().job_id_key().await.expect("a key");
    assert_eq!(first.derive("ci/7"), again.derive("ci/7"));
    assert_ne!(first.derive("ci/7"), first.derive("ci/8"));
    let other = TestStore::in_memory().await.duly.tokens().job_id_key().await.expect("a key");
    assert_ne!(first.derive("ci/7"), other.derive("ci/7"), "each store has a secret of its own");
    let secret = store.store.secret("0").await.expect("reads");
    assert!(secret.len() == 64 && !format!("{first:?}").contains(&secret));
}

fn entry(actor: &str, number: usize) -> AuditEntry {
    AuditEntry::new(actor, "jobs.remove", AuditOutcome::Done).target(number.to_string())
}

pub async fn audit_keeps_the_newest_entries_in_order(store: TestStore) {
    assert!(store.duly.audit().list(None, 10).await.expect("reads").is_empty());
    let full = AuditEntry::new("ada", "jobs.retry", AuditOutcome::Unknown).filter("state:dead".to_owned()).count(7);
    let full = full.address("127.0.0.1".to_owned());
    store.duly.audit().add(full.clone()).await.expect("adds");
    let read = store.duly.audit().list(None, 10).await.expect("reads");
    assert_eq!((&read[0].entry, read[0].at), (&full, store.now()));
    for number in 1..=24 {
        store.duly.audit().add(entry("ada", number)).await.expect("adds");
    }
    let first = store.duly.audit().list(None, 10).await.expect("reads");
    assert_eq!((first.len(), first[0].entry.target.as_deref()), (10, Some("24")));
    let next = store.duly.audit().list(Some(first[9].number), 200).await.expect("reads");
    let targets: Vec<_> = next.iter().map(|record| record.entry.target.as_deref()).collect();
    assert_eq!((targets.len(), targets[0], targets[13], targets[14]), (15, Some("14"), Some("1"), None));
}

/// Returns actor and target of all entries, newest first.
async fn audit_entries(store: &TestStore) -> Vec<(String, String)> {
    let entries = store.store.audit_entries(None, 1_000).await.expect("reads");
    let target = |entry: AuditEntry| (entry.actor, entry.target.unwrap_or_default());
    entries.into_iter().map(|record| target(record.entry)).collect()
}

async fn add_entries(store: &TestStore, bounds: AuditBounds, actor: &str, numbers: std::ops::RangeInclusive<usize>) {
    for number in numbers {
        store.store.add_audit_entry(&entry(actor, number), bounds).await.expect("adds");
    }
}

fn count_of(entries: &[(String, String)], actor: &str) -> usize {
    entries.iter().filter(|(name, _)| name == actor).count()
}

pub async fn actor_displaces_only_its_own_audit_entries(store: TestStore) {
    let bounds = AuditBounds { per_actor: 10, total: 20 };
    // Names that surround the busy one in every order.
    for actor in ["a", "busy\n", "busyy", "c"] {
        add_entries(&store, bounds, actor, 0..=0).await;
    }
    // Far more entries than the log has room for.
    add_entries(&store, bounds, "busy", 1..=bounds.total + 13).await;
    let all = audit_entries(&store).await;
    assert_eq!(count_of(&all, "busy"), bounds.per_actor);
    assert_eq!(all[bounds.per_actor - 1].1, "24", "the oldest are gone");
    let others: Vec<&str> = all[bounds.per_actor..].iter().map(|(actor, _)| actor.as_str()).collect();
    assert_eq!(others, ["c", "busyy", "busy ", "a"]);
}

pub async fn largest_actor_loses_audit_entries_beyond_the_total(store: TestStore) {
    let bounds = AuditBounds { per_actor: 10, total: 20 };
    add_entries(&store, bounds, "small", 1..=2).await;
    add_entries(&store, bounds, "large", 1..=9).await;
    add_entries(&store, bounds, "medium", 1..=7).await;
    add_entries(&store, bounds, "new", 1..=5).await;
    let all = audit_entries(&store).await;
    let counts = ["small", "large", "medium", "new"].map(|actor| count_of(&all, actor));
    assert_eq!((all.len(), counts), (bounds.total, [2, 7, 6, 5]), "{all:?}");
    let oldest = all.iter().rfind(|(actor, _)| actor == "large").map(|(_, target)| target.as_str());
    assert_eq!(oldest, Some("3"));
}

pub async fn new_audit_entry_stays_if_every_actor_has_one(store: TestStore) {
    let bounds = AuditBounds { per_actor: 10, total: 3 };
    for actor in ["b", "d", "c", "a", "z", "x"] {
        add_entries(&store, bounds, actor, 1..=1).await;
        let all = audit_entries(&store).await;
        assert_eq!(all[0].0, actor, "{all:?}");
        assert!(all.len() <= bounds.total, "{all:?}");
    }
}
