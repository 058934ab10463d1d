//! Moves between stores that fail on demand.

use std::collections::BTreeSet;

use crate::job::push::Push;
use crate::store::faulty::{FaultyStore, InjectedFault};
use crate::transfer::*;

/// The same store, which fails once.
fn fail_once(duly: &Duly, op: &'static str, fault: InjectedFault) -> Duly {
    let faulty = FaultyStore::new(duly.store());
    faulty.inject(op, fault, 1);
    Duly { store: faulty, ..duly.clone() }
}

#[tokio::test]
async fn failed_or_unanswered_request_is_retried() {
    for op in ["counts", "beat", "list", "set_moving", "move_in", "move_out"] {
        for fault in [InjectedFault::Refuse, InjectedFault::LoseReply] {
            let (old, new) =
                (Duly::open(":memory:").await.expect("opens"), Duly::open(":memory:").await.expect("opens"));
            let jobs: Vec<_> = (0..3).map(|_| Push::new("mail", "{}")).collect();
            let expected: BTreeSet<_> = jobs.iter().map(Push::job_id).collect();
            old.push_all(jobs).await.expect("pushes");

            let moved = fail_once(&old, op, fault).transfer_to(&fail_once(&new, op, fault)).run().await.expect("moves");
            assert_eq!((moved[0].ready, moved[0].already_present), (3, 0), "{op} {fault:?}");
            let page = new.list(Filter::default()).await.expect("lists");
            let found: BTreeSet<_> = page.jobs.iter().map(|record| record.job.id).collect();
            assert_eq!((page.jobs.len(), found), (3, expected), "{op} {fault:?}");
            let left = old.counts().await.expect("counts");
            assert_eq!((left[0].ready, &left[0].moving), (0, &None), "{op} {fault:?}");
        }
    }
}

#[tokio::test]
async fn transfer_fails_when_store_keeps_failing() {
    tokio::time::pause();
    let old = Duly::open(":memory:").await.expect("opens");
    let mut new = Duly::open(":memory:").await.expect("opens");
    let faulty = FaultyStore::new(new.store());
    faulty.inject("move_in", InjectedFault::Refuse, usize::MAX);
    new.store = faulty.clone();
    old.push(Push::new("mail", "{}")).await.expect("pushes");
    assert_eq!(old.transfer_to(&new).run().await.expect_err("ends").code(), "store");
    faulty.inject("move_in", InjectedFault::Refuse, 0);
    assert_eq!(old.transfer_to(&new).run().await.expect("goes on")[0].ready, 1);
}
