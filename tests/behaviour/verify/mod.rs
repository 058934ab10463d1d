//! Verify, repair and backup: each kind of breach is put into a store behind its back, found, and put right.

mod backup;
mod bit_rot;
mod file;
#[cfg(feature = "redis")]
mod redis;
mod unreadable;

use std::time::Duration;

use duly::store::{AttemptEnd, Claim};
use duly::{Duly, Invariant, JobId, Node, Outcome, Push, State};

/// A store with jobs in every state, some of them with a key, a failure, a ticket left behind; and cron rules.
pub struct Populated {
    pub duly: Duly,
    #[cfg(feature = "redis")]
    pub node: duly::NodeId,
    pub ids: Vec<JobId>,
}

pub async fn populate(url: &str) -> Populated {
    let duly = Duly::open(url).await.expect("opens");
    let node = Node::fresh(vec!["default".into()]);
    let store = duly.store();
    store.heartbeat(&node).await.expect("beats");
    let job = |kind: &str| Push::new(kind, "{\"n\":1}").keep(Duration::from_secs(3600));
    duly.push_all([job("done"), job("dead"), job("retried"), job("running").unique("r")]).await.expect("pushes");
    let claim = Claim { queue: "default".into(), max: 4, resync: false, suspect: None, kinds: None };
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
    duly.remove(ids.pop().expect("five")).await.expect("removes");
    for name in ["daily", "paused"] {
        duly.cron(name, "0 3 * * *").push(job("report")).await.expect("puts");
    }
    duly.pause_cron("paused").await.expect("pauses");
    Populated {
        duly,
        #[cfg(feature = "redis")]
        node: node.id,
        ids,
    }
}

/// The store is sound; after `seed` this rule is broken; a repair finds that, writes a backup first, and leaves nothing
/// (or what cannot be put right).
pub async fn found_and_repaired(populated: &Populated, rule: Invariant, mends: bool, name: &str, seed: impl FnOnce()) {
    let duly = &populated.duly;
    let before = duly.verify().await.expect("verifies");
    let counted = duly.totals().await.expect("reads");
    assert!(counted.iter().any(|(_, tally)| tally.pushed > 0));
    assert!(before.violations.is_empty() && before.jobs == 8, "{name}: sound at first: {before:?}");
    seed();
    let found = duly.verify().await.expect("verifies");
    assert!(found.violations.iter().any(|breach| breach.invariant == rule), "{name}: {rule} is found: {found:?}");

    let dir = test_support::temp_dir();
    let copy = dir.path().join("copy.db");
    let repaired = duly.repair(&copy).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(repaired.before.violations, found.violations, "{name}");
    assert_eq!(repaired.after.violations.is_empty(), mends, "{name}: {:?}", repaired.after);
    assert!(copy.exists(), "{name}: the backup was written first");
    let counted_after = duly.totals().await.expect("reads");
    assert!(counted.iter().all(|queue| counted_after.contains(queue)), "{name}: what has happened stays counted");
    if mends {
        let again = duly.repair(&copy).await.expect("nothing to do, so no backup that would be in the way");
        assert!(again.before.violations.is_empty(), "{name}");
    }
}

/// How many jobs are in which state.
pub async fn states(duly: &Duly) -> Vec<(State, u64)> {
    let counts = duly.counts().await.expect("counts");
    State::ALL.into_iter().map(|state| (state, counts.iter().map(|queue| queue.count_in(state)).sum())).collect()
}
