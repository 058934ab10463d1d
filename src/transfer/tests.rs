//! Transfers between stores that fail on demand.

use std::collections::BTreeSet;

use crate::job::push::Push;
use crate::store::faulty::{FaultyStore, InjectedFault};
use crate::transfer::*;

/// Returns the same store with a fault that occurs once.
fn fail_once(duly: &Duly, op: &'static str, fault: InjectedFault) -> Duly {
    let faulty = FaultyStore::new(duly.store());
    faulty.inject(op, fault, 1);
    Duly { store: faulty, ..duly.clone() }
}

#[tokio::test]
async fn failed_or_unanswered_request_is_retried() {
    for op in ["counts", "heartbeat", "list", "set_transfer_mark", "transfer_in", "transfer_out"] {
        for fault in [InjectedFault::Refuse, InjectedFault::LoseReply] {
            let (old, new) =
                (Duly::open(":memory:").await.expect("opens"), Duly::open(":memory:").await.expect("opens"));
            let jobs: Vec<_> = (0..3).map(|_| Push::new("mail", "{}")).collect();
            let expected: BTreeSet<_> = jobs.iter().map(Push::job_id).collect();
            old.push_all(jobs).await.expect("pushes");

            let reports =
                fail_once(&old, op, fault).transfer_to(&fail_once(&new, op, fault)).run().await.expect("moves");
            assert_eq!((reports[0].ready, reports[0].already_present), (3, 0), "{op} {fault:?}");
            let page = new.jobs().list(Filter::default()).await.expect("lists");
            let found: BTreeSet<_> = page.jobs.iter().map(|record| record.job.id).collect();
            assert_eq!((page.jobs.len(), found), (3, expected), "{op} {fault:?}");
            let remaining = old.queues().counts().await.expect("counts");
            assert_eq!((remaining[0].ready, &remaining[0].moving), (0, &None), "{op} {fault:?}");
        }
    }
}

#[tokio::test]
async fn transfer_fails_when_store_keeps_failing() {
    tokio::time::pause();
    let old = Duly::open(":memory:").await.expect("opens");
    let mut new = Duly::open(":memory:").await.expect("opens");
    let faulty = FaultyStore::new(new.store());
    faulty.inject("transfer_in", InjectedFault::Refuse, usize::MAX);
    new.store = faulty.clone();
    old.push(Push::new("mail", "{}")).await.expect("pushes");
    assert_eq!(old.transfer_to(&new).run().await.expect_err("ends").code(), "store");
    faulty.inject("transfer_in", InjectedFault::Refuse, 0);
    assert_eq!(old.transfer_to(&new).run().await.expect("continues")[0].ready, 1);
}
