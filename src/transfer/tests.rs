//! Moves between stores that fail on demand.

use std::collections::BTreeSet;

use crate::job::push::Push;
use crate::store::faulty::{Fault, Faulty};
use crate::transfer::*;

/// The same store, which fails once.
fn failing(duly: &Duly, op: &'static str, fault: Fault) -> Duly {
    let faulty = Faulty::new(duly.store());
    faulty.next(op, fault, 1);
    Duly { store: faulty, ..duly.clone() }
}

#[tokio::test]
async fn what_a_store_refuses_or_leaves_unanswered_is_asked_again() {
    for op in ["counts", "beat", "list", "set_moving", "move_in", "move_out"] {
        for fault in [Fault::Refuse, Fault::LoseAnswer] {
            let (old, new) =
                (Duly::open(":memory:").await.expect("opens"), Duly::open(":memory:").await.expect("opens"));
            let jobs: Vec<_> = (0..3).map(|_| Push::new("mail", "{}")).collect();
            let expected: BTreeSet<_> = jobs.iter().map(Push::job_id).collect();
            old.push_all(jobs).await.expect("pushes");

            let moved = failing(&old, op, fault).move_to(&failing(&new, op, fault)).run().await.expect("moves");
            assert_eq!((moved[0].ready, moved[0].known), (3, 0), "{op} {fault:?}");
            let page = new.list(Filter::default()).await.expect("lists");
            let found: BTreeSet<_> = page.jobs.iter().map(|record| record.job.id).collect();
            assert_eq!((page.jobs.len(), found), (3, expected), "{op} {fault:?}");
            let left = old.counts().await.expect("counts");
            assert_eq!((left[0].ready, &left[0].moving), (0, &None), "{op} {fault:?}");
        }
    }
}

#[tokio::test]
async fn a_store_that_goes_on_failing_ends_the_move() {
    tokio::time::pause();
    let old = Duly::open(":memory:").await.expect("opens");
    let mut new = Duly::open(":memory:").await.expect("opens");
    let faulty = Faulty::new(new.store());
    faulty.next("move_in", Fault::Refuse, usize::MAX);
    new.store = faulty.clone();
    old.push(Push::new("mail", "{}")).await.expect("pushes");
    assert_eq!(old.move_to(&new).run().await.expect_err("ends").code(), "store");
    faulty.next("move_in", Fault::Refuse, 0);
    assert_eq!(old.move_to(&new).run().await.expect("goes on")[0].ready, 1);
}
