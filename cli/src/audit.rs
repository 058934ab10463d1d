//! Records what this command changes in the audit log of the store, with the user of the system.

use std::time::Duration;

use duly::admin::{AuditEntry, AuditOutcome};
use duly::lock::LockOwner;
use duly::{Duly, Error, Filter, Result};

/// The action of a call to other nodes.
pub(crate) const CALL_ACTION: &str = "calls.run";
/// The file with the names of users.
const USERS_FILE: &str = "/etc/passwd";
/// How long a store that does not reply may delay the end of an action.
const END_RECORD_WAIT_MAX: Duration = Duration::from_secs(5);

/// Records a change of one thing, and returns its result. A refused change is not recorded. Actions that consist of
/// several changes use [`record_steps`].
pub(crate) async fn record<T>(duly: &Duly, action: &str, target: impl ToString, result: Result<T>) -> Result<T> {
    if let Some(outcome) = outcome_of(&result) {
        add(duly, AuditEntry::new(&actor(), action, outcome).target(target.to_string())).await;
    }
    result
}

/// Records the break of one hold of a lock, or of all without an owner, and returns its result.
pub(crate) async fn record_break<T>(duly: &Duly, lock: &str, owner: Option<LockOwner>, result: Result<T>) -> Result<T> {
    if let Some(outcome) = outcome_of(&result) {
        let entry = AuditEntry::new(&actor(), "locks.break", outcome).target(lock.to_owned());
        add(duly, entry.filter(owner.map(|owner| format!("owner={owner}")))).await;
    }
    result
}

/// An action on all jobs of a filter or a queue, for the audit log.
pub(crate) struct BulkAction<'d> {
    pub(crate) duly: &'d Duly,
    pub(crate) name: &'static str,
    pub(crate) filter: Option<String>,
    pub(crate) target: Option<String>,
}

impl<'d> BulkAction<'d> {
    pub(crate) fn on_filter(duly: &'d Duly, name: &'static str, filter: &Filter) -> Self {
        BulkAction { duly, name, filter: Some(filter.to_string()), target: None }
    }

    /// Records the action.
    pub(crate) async fn record(&self, outcome: AuditOutcome, count: Option<u64>) {
        let entry = AuditEntry::new(&actor(), self.name, outcome).count(count);
        add(self.duly, entry.filter(self.filter.clone()).target(self.target.clone())).await;
    }
}

/// Runs an action of several changes, and records its start and its end in all these stores.
///
/// An action that fails may have made some of its changes, so its end is then recorded as unknown. `count` returns the
/// number of changed things.
pub(crate) async fn record_steps<T, E>(
    stores: &[&Duly],
    action: &str,
    target: &str,
    run: impl Future<Output = std::result::Result<T, E>>,
    count: impl Fn() -> Option<u64>,
) -> std::result::Result<T, E> {
    let entry = |outcome| AuditEntry::new(&actor(), action, outcome).target(target.to_owned());
    for duly in stores {
        add(duly, entry(AuditOutcome::Started)).await;
    }
    let result = run.await;
    let outcome = if result.is_ok() { AuditOutcome::Done } else { AuditOutcome::Unknown };
    for duly in stores {
        let added = add(duly, entry(outcome).count(count()));
        if tokio::time::timeout(END_RECORD_WAIT_MAX, added).await.is_err() {
            tracing::warn!(action, "timed out recording the end of an action in the audit log");
        }
    }
    result
}

/// Records a call to other nodes, and returns its result. A method that fails has been run.
pub(crate) async fn record_call<T>(duly: &Duly, target: &str, result: Result<T>) -> Result<T> {
    let outcome = match &result {
        Err(Error::Remote { .. }) => Some(AuditOutcome::Done),
        result => outcome_of(result),
    };
    if let Some(outcome) = outcome {
        add(duly, AuditEntry::new(&actor(), CALL_ACTION, outcome).target(target.to_owned())).await;
    }
    result
}

fn outcome_of<T>(result: &Result<T>) -> Option<AuditOutcome> {
    match result {
        Ok(_) => Some(AuditOutcome::Done),
        Err(Error::Unknown { .. } | Error::Timeout { .. }) => Some(AuditOutcome::Unknown),
        Err(_) => None,
    }
}

async fn add(duly: &Duly, entry: AuditEntry) {
    match duly.audit().add(entry).await {
        // Stores on the keys of other systems have no audit log.
        Ok(()) | Err(Error::Unsupported { .. }) => {}
        Err(error) => tracing::warn!(%error, "could not record a change in the audit log"),
    }
}

/// Returns the user and the host of this process. No token has an `@` in its name.
fn actor() -> String {
    let (uid, system) = (rustix::process::getuid().as_raw(), rustix::system::uname());
    let users = std::fs::read_to_string(USERS_FILE).unwrap_or_default();
    let user = user_name(&users, uid).map_or_else(|| format!("uid-{uid}"), str::to_owned);
    format!("{user}@{}", system.nodename().to_string_lossy())
}

/// Returns the name of a user in the lines of passwd(5).
fn user_name(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_names_are_found_by_uid() {
        let users = "root:x:0:0:root:/root:/bin/sh\n# a comment\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(
            (user_name(users, 1000), user_name(users, 0), user_name(users, 7)),
            (Some("ada"), Some("root"), None)
        );
        assert!(actor().contains('@'));
    }
}
