//! Verify, repair and backup: every kind of violation is injected into a store, found and repaired.

mod backup;
mod bit_rot;
mod file;
#[cfg(feature = "redis")]
mod redis;
mod unreadable;

use std::time::Duration;

use duly::admin::Invariant;
use duly::store::Node;
use duly::store::{AttemptEnd, Claim, JobStore};
use duly::{Duly, JobId, Outcome, Push, State};

/// A store with jobs of every state, some with a key, a failure or a stale ticket, and with cron rules.
pub struct PopulatedStore {
    pub duly: Duly,
    #[cfg(feature = "redis")]
    pub node: duly::NodeId,
    pub ids: Vec<JobId>,
}

pub async fn populate(url: &str) -> PopulatedStore {
    let duly = Duly::open(url).await.expect("opens");
    let node = Node::fresh(vec!["default".into()]);
    let store = duly.store();
    store.heartbeat(&node).await.expect("sends a heartbeat");
    let job = |kind: &str| Push::new(kind, "{\"n\":1}").keep(Duration::from_secs(3600));
    duly.push_all([job("done"), job("dead"), job("retried"), job("running").unique("r")]).await.expect("pushes");
    let claim = Claim::new("default", 4);
    for held in store.claim(node.id, claim).await.expect("claims").jobs {
        let outcome = match held.job.kind.as_str() {
            "done" => Outcome::Ack,
            "dead" => Outcome::bury("no"),
            "retried" => Outcome::retry(Duration::from_secs(3600), "again"),
            _ => continue,
        };
        let end = AttemptEnd::from_held(&held, outcome, Duration::from_secs(3600));
        store.settle(node.id, vec![end]).await.expect("settles");
    }
    let later = Duration::from_secs(3600);
    let waiting =
        [job("one").unique("k"), job("two"), job("three"), job("later").after(later).unique("l"), job("gone")];
    let pushed = duly.push_all(waiting).await.expect("pushes");
    let mut ids: Vec<JobId> = pushed.iter().map(duly::PushResult::id).collect();
    duly.jobs().remove(ids.pop().expect("five")).await.expect("removes");
    for name in ["daily", "paused"] {
        duly.cron(name, "0 3 * * *").push(job("report")).await.expect("puts");
    }
    duly.crons().pause("paused").await.expect("pauses");
    PopulatedStore {
        duly,
        #[cfg(feature = "redis")]
        node: node.id,
        ids,
    }
}

/// Fails unless verify finds nothing before `seed`, finds this violation after it, and a repair first writes a backup
/// and then removes every repairable violation.
pub async fn assert_found_and_repaired(
    populated: &PopulatedStore,
    invariant: Invariant,
    is_repairable: bool,
    name: &str,
    seed: impl FnOnce(),
) {
    let duly = &populated.duly;
    let before = duly.verify().await.expect("verifies");
    let totals = duly.queues().totals().await.expect("reads");
    assert!(totals.iter().any(|(_, counters)| counters.pushed > 0));
    assert!(before.violations.is_empty() && before.jobs == 8, "{name}: no violation at first: {before:?}");
    seed();
    let found = duly.verify().await.expect("verifies");
    assert!(
        found.violations.iter().any(|violation| violation.invariant == invariant),
        "{name}: {invariant} is found: {found:?}"
    );

    let dir = test_support::temp_dir();
    let copy = dir.path().join("copy.db");
    let repair = duly.repair(&copy).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(repair.before.violations, found.violations, "{name}");
    assert_eq!(repair.after.violations.is_empty(), is_repairable, "{name}: {:?}", repair.after);
    assert!(copy.exists(), "{name}: the backup was written first");
    let totals_after = duly.queues().totals().await.expect("reads");
    assert!(totals.iter().all(|queue| totals_after.contains(queue)), "{name}: totals are kept");
    if is_repairable {
        let again = duly.repair(&copy).await.expect("without violations, writes no backup over the first");
        assert!(again.before.violations.is_empty(), "{name}");
    }
}

/// Returns the number of jobs in each state.
pub async fn states(duly: &Duly) -> Vec<(State, u64)> {
    let counts = duly.queues().counts().await.expect("counts");
    State::ALL.into_iter().map(|state| (state, counts.iter().map(|queue| queue.count_in(state)).sum())).collect()
}
