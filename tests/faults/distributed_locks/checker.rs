//! Invariants over the logs of all lock clients, whatever faults were injected.
//!
//! A client *believes* that it holds a lock from the reply that grants it until its deadline, its release, its death
//! or a report of the loss, whichever is first. Nothing else counts as holding: a paused client believes nothing, and
//! the fence protects against writes after it resumes.

use std::collections::BTreeMap;

use crate::distributed_locks::log::{LockEvent, LogEntry};

/// One acquisition of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub name: String,
    pub client: u64,
    pub fence: u64,
    pub requested: i64,
    /// Start of the belief.
    pub from: i64,
    /// End of the belief; before `from` if the deadline had passed when the reply arrived.
    pub to: i64,
}

impl Hold {
    fn believed(&self) -> bool {
        self.from < self.to
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Two acquisitions of one name have the same fence.
    FenceTwice { name: String, fence: u64 },
    /// A later acquisition has a smaller fence.
    FenceDecreased { name: String, before: u64, after: u64 },
    /// Two clients believed to hold it at the same time, for this many microseconds.
    ConcurrentHolders { name: String, fences: (u64, u64), micros: i64 },
}

/// Whether a client respects its own deadline. Clients that ignore it show why the deadline matters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Deadlines {
    Respected,
    Ignored,
}

/// Returns the acquisitions of one client. `died` is the time of its death, if any.
pub fn holds(client: u64, lines: &[LogEntry], died: Option<i64>, deadlines: Deadlines) -> Vec<Hold> {
    let mut requests: BTreeMap<u64, Vec<&LogEntry>> = BTreeMap::new();
    lines.iter().for_each(|line| requests.entry(line.request).or_default().push(line));
    let end = |lines: &[&LogEntry]| {
        let deadline = lines.iter().filter_map(|line| match line.event {
            LockEvent::Acquired { until, .. } | LockEvent::Held { until } => Some(until),
            _ => None,
        });
        let ended = lines
            .iter()
            .filter(|line| matches!(line.event, LockEvent::Releasing | LockEvent::Lost))
            .map(|line| line.at);
        let deadline = deadline.max().filter(|_| deadlines == Deadlines::Respected);
        deadline.into_iter().chain(ended).chain(died).min().unwrap_or(i64::MAX)
    };
    let hold = |lines: Vec<&LogEntry>| {
        let (name, requested) = lines.iter().find_map(|line| match &line.event {
            LockEvent::Requested(name) => Some((name.clone(), line.at)),
            _ => None,
        })?;
        let (fence, from) = lines.iter().find_map(|line| match line.event {
            LockEvent::Acquired { fence, .. } => Some((fence, line.at)),
            _ => None,
        })?;
        Some(Hold { name, client, fence, requested, from, to: end(&lines) })
    };
    requests.into_values().filter_map(hold).collect()
}

/// Returns all faults of these acquisitions.
pub fn check(holds: &[Hold]) -> Vec<Fault> {
    let mut names: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    holds.iter().for_each(|hold| names.entry(&hold.name).or_default().push(hold));
    names.into_values().flat_map(check_name).collect()
}

fn check_name(mut holds: Vec<&Hold>) -> Vec<Fault> {
    let mut faults = repeated_fences(&mut holds);
    faults.extend(decreased_fences(&holds));
    faults.extend(concurrent_holders(holds));
    faults
}

fn repeated_fences(holds: &mut [&Hold]) -> Vec<Fault> {
    holds.sort_by_key(|hold| hold.fence);
    let same = holds.windows(2).filter(|two| two[0].fence == two[1].fence);
    same.map(|two| Fault::FenceTwice { name: two[0].name.clone(), fence: two[0].fence }).collect()
}

/// A request sent after another client's acquisition must get a greater fence, even if its own reply is late.
fn decreased_fences(holds: &[&Hold]) -> Vec<Fault> {
    let (mut granted, mut requested) = (holds.to_vec(), holds.to_vec());
    granted.sort_by_key(|hold| hold.from);
    requested.sort_by_key(|hold| hold.requested);
    let (mut granted, mut greatest, mut faults) = (granted.into_iter().peekable(), 0, Vec::new());
    for hold in requested {
        while let Some(before) = granted.next_if(|before| before.from < hold.requested) {
            greatest = greatest.max(before.fence);
        }
        if greatest > hold.fence {
            faults.push(Fault::FenceDecreased { name: hold.name.clone(), before: greatest, after: hold.fence });
        }
    }
    faults
}

fn concurrent_holders(holds: Vec<&Hold>) -> Vec<Fault> {
    let mut believed: Vec<&Hold> = holds.into_iter().filter(|hold| hold.believed()).collect();
    believed.sort_by_key(|hold| hold.from);
    let (mut faults, mut last) = (Vec::new(), None::<&Hold>);
    for hold in believed {
        if let Some(last) = last {
            if hold.from < last.to {
                let (fences, micros) = ((last.fence, hold.fence), last.to.min(hold.to) - hold.from);
                faults.push(Fault::ConcurrentHolders { name: hold.name.clone(), fences, micros });
            } else if hold.fence < last.fence {
                faults.push(Fault::FenceDecreased { name: hold.name.clone(), before: last.fence, after: hold.fence });
            }
        }
        last = Some(last.filter(|last| last.to > hold.to).unwrap_or(hold));
    }
    faults
}

/// Control of the checker: it reports each kind of fault, and nothing else.
#[cfg(test)]
mod tests {
    use super::*;

    fn hold(fence: u64, requested: i64, from: i64, to: i64) -> Hold {
        Hold { name: "a".into(), client: 1, fence, requested, from, to }
    }

    fn name() -> String {
        "a".into()
    }

    #[test]
    fn sound_histories_pass() {
        assert_eq!(check(&[hold(1, 0, 10, 20), hold(2, 5, 20, 30), hold(7, 0, 30, 31)]), []);
        // The reply arrived after the deadline: another client acquired it earlier, with a greater fence.
        assert_eq!(check(&[hold(1, 0, 50, 20), hold(2, 5, 30, 60)]), []);
        // Locks of different names are independent.
        assert_eq!(check(&[hold(5, 0, 10, 20), Hold { name: "b".into(), ..hold(1, 11, 12, 20) }]), []);
    }

    #[test]
    fn repeated_fence_is_found() {
        assert_eq!(check(&[hold(1, 0, 10, 20), hold(1, 5, 20, 30)]), [Fault::FenceTwice { name: name(), fence: 1 }]);
    }

    #[test]
    fn decreasing_fence_is_found() {
        let decreased = Fault::FenceDecreased { name: name(), before: 5, after: 4 };
        assert_eq!(check(&[hold(5, 0, 10, 20), hold(4, 5, 20, 30)]), std::slice::from_ref(&decreased));
        assert_eq!(
            check(&[hold(5, 0, 10, 10), hold(4, 11, 20, 20)]),
            [decreased],
            "also if no client believed to hold it"
        );
    }

    #[test]
    fn two_concurrent_holders_are_found() {
        let concurrent = |fences, micros| Fault::ConcurrentHolders { name: name(), fences, micros };
        assert_eq!(check(&[hold(1, 0, 10, 20), hold(2, 5, 19, 30)]), [concurrent((1, 2), 1)]);
        let inside = [hold(1, 0, 10, 90), hold(2, 5, 20, 30), hold(3, 5, 40, 50)];
        assert_eq!(check(&inside), [concurrent((1, 2), 10), concurrent((1, 3), 10)]);
    }

    #[test]
    fn claimed_hold_ends_with_the_first_end() {
        let line = |at, event| LogEntry { at, request: 1, event };
        let acquired =
            || vec![line(0, LockEvent::Requested(name())), line(10, LockEvent::Acquired { fence: 3, until: 40 })];
        let to = |more: Vec<LogEntry>, died| {
            let lines = [acquired(), more].concat();
            let all = holds(1, &lines, died, Deadlines::Respected);
            assert_eq!((all[0].requested, all[0].from, all[0].fence), (0, 10, 3));
            all[0].to
        };
        assert_eq!(to(vec![], None), 40, "its deadline");
        assert_eq!(to(vec![line(30, LockEvent::Held { until: 60 })], None), 60, "its deadline after it was extended");
        assert_eq!(to(vec![line(20, LockEvent::Releasing)], None), 20);
        assert_eq!(to(vec![line(20, LockEvent::Lost)], None), 20);
        assert_eq!(to(vec![line(30, LockEvent::Held { until: 60 })], Some(35)), 35, "the death of the process");
        assert_eq!(to(vec![line(70, LockEvent::Releasing)], None), 40, "it was paused meanwhile");
        let ignored = holds(1, &[acquired(), vec![line(70, LockEvent::Releasing)]].concat(), None, Deadlines::Ignored);
        assert_eq!(ignored[0].to, 70);
        assert_eq!(holds(1, &acquired()[..1], None, Deadlines::Respected), [], "never got it");
    }
}
