//! What must be true of all that clients have said about their locks, whatever was done to them.
//!
//! A client *believes* to hold a lock from the moment it was told so until it lets go, learns that it is lost, dies,
//! or until its own deadline is over: whichever is first. Nothing else counts as holding: a paused client believes
//! nothing, and what it does when it wakes up is what the fence is for.

use std::collections::BTreeMap;

use crate::distributed_locks::log::{Line, Said};

/// One acquisition of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub name: String,
    pub client: u64,
    pub fence: u64,
    pub asked: i64,
    /// From here on it believed to hold it.
    pub from: i64,
    /// Until here; before `from` if its time was over when it was told.
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
    FenceBack { name: String, before: u64, after: u64 },
    /// Two believed to hold it at one time, for so many microseconds.
    Together { name: String, fences: (u64, u64), micros: i64 },
}

/// Whether a client minds its own deadline; those who do not are there to show what it is good for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Deadlines {
    Minded,
    Ignored,
}

/// The acquisitions of one client, which died then if it did.
pub fn holds(client: u64, lines: &[Line], died: Option<i64>, deadlines: Deadlines) -> Vec<Hold> {
    let mut asks: BTreeMap<u64, Vec<&Line>> = BTreeMap::new();
    lines.iter().for_each(|line| asks.entry(line.ask).or_default().push(line));
    let end = |lines: &[&Line]| {
        let deadline = lines.iter().filter_map(|line| match line.said {
            Said::Acquired { until, .. } | Said::Holds { until } => Some(until),
            _ => None,
        });
        let told = lines.iter().filter(|line| matches!(line.said, Said::Releases | Said::Lost)).map(|line| line.at);
        let deadline = deadline.max().filter(|_| deadlines == Deadlines::Minded);
        deadline.into_iter().chain(told).chain(died).min().unwrap_or(i64::MAX)
    };
    let hold = |lines: Vec<&Line>| {
        let (name, asked) = lines.iter().find_map(|line| match &line.said {
            Said::Asks(name) => Some((name.clone(), line.at)),
            _ => None,
        })?;
        let (fence, from) = lines.iter().find_map(|line| match line.said {
            Said::Acquired { fence, .. } => Some((fence, line.at)),
            _ => None,
        })?;
        Some(Hold { name, client, fence, asked, from, to: end(&lines) })
    };
    asks.into_values().filter_map(hold).collect()
}

/// Everything that is wrong with these acquisitions.
pub fn check(holds: &[Hold]) -> Vec<Fault> {
    let mut names: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    holds.iter().for_each(|hold| names.entry(&hold.name).or_default().push(hold));
    names.into_values().flat_map(check_name).collect()
}

fn check_name(mut holds: Vec<&Hold>) -> Vec<Fault> {
    let mut faults = twice(&mut holds);
    faults.extend(back(&holds));
    faults.extend(together(holds));
    faults
}

fn twice(holds: &mut [&Hold]) -> Vec<Fault> {
    holds.sort_by_key(|hold| hold.fence);
    let same = holds.windows(2).filter(|two| two[0].fence == two[1].fence);
    same.map(|two| Fault::FenceTwice { name: two[0].name.clone(), fence: two[0].fence }).collect()
}

/// Whoever asked after another had been told must have a greater fence, also if it was told late itself.
fn back(holds: &[&Hold]) -> Vec<Fault> {
    let (mut told, mut asked) = (holds.to_vec(), holds.to_vec());
    told.sort_by_key(|hold| hold.from);
    asked.sort_by_key(|hold| hold.asked);
    let (mut told, mut greatest, mut faults) = (told.into_iter().peekable(), 0, Vec::new());
    for hold in asked {
        while let Some(before) = told.next_if(|before| before.from < hold.asked) {
            greatest = greatest.max(before.fence);
        }
        if greatest > hold.fence {
            faults.push(Fault::FenceBack { name: hold.name.clone(), before: greatest, after: hold.fence });
        }
    }
    faults
}

fn together(holds: Vec<&Hold>) -> Vec<Fault> {
    let mut believed: Vec<&Hold> = holds.into_iter().filter(|hold| hold.believed()).collect();
    believed.sort_by_key(|hold| hold.from);
    let (mut faults, mut last) = (Vec::new(), None::<&Hold>);
    for hold in believed {
        if let Some(last) = last {
            if hold.from < last.to {
                let (fences, micros) = ((last.fence, hold.fence), last.to.min(hold.to) - hold.from);
                faults.push(Fault::Together { name: hold.name.clone(), fences, micros });
            } else if hold.fence < last.fence {
                faults.push(Fault::FenceBack { name: hold.name.clone(), before: last.fence, after: hold.fence });
            }
        }
        last = Some(last.filter(|last| last.to > hold.to).unwrap_or(hold));
    }
    faults
}

/// The checker is worth something only if it fails when something is wrong, and only then.
#[cfg(test)]
mod tests {
    use super::*;

    fn hold(fence: u64, asked: i64, from: i64, to: i64) -> Hold {
        Hold { name: "a".into(), client: 1, fence, asked, from, to }
    }

    fn name() -> String {
        "a".into()
    }

    #[test]
    fn sound_histories_pass() {
        assert_eq!(check(&[hold(1, 0, 10, 20), hold(2, 5, 20, 30), hold(7, 0, 30, 31)]), []);
        // Told so late that its time was over: another came before it, with a greater fence.
        assert_eq!(check(&[hold(1, 0, 50, 20), hold(2, 5, 30, 60)]), []);
        // Different locks have nothing to do with each other.
        assert_eq!(check(&[hold(5, 0, 10, 20), Hold { name: "b".into(), ..hold(1, 11, 12, 20) }]), []);
    }

    #[test]
    fn repeated_fence_is_found() {
        assert_eq!(check(&[hold(1, 0, 10, 20), hold(1, 5, 20, 30)]), [Fault::FenceTwice { name: name(), fence: 1 }]);
    }

    #[test]
    fn decreasing_fence_is_found() {
        let back = Fault::FenceBack { name: name(), before: 5, after: 4 };
        assert_eq!(check(&[hold(5, 0, 10, 20), hold(4, 5, 20, 30)]), std::slice::from_ref(&back));
        assert_eq!(check(&[hold(5, 0, 10, 10), hold(4, 11, 20, 20)]), [back], "also where nobody believed anything");
    }

    #[test]
    fn two_concurrent_holders_are_found() {
        let both = |fences, micros| Fault::Together { name: name(), fences, micros };
        assert_eq!(check(&[hold(1, 0, 10, 20), hold(2, 5, 19, 30)]), [both((1, 2), 1)]);
        let inside = [hold(1, 0, 10, 90), hold(2, 5, 20, 30), hold(3, 5, 40, 50)];
        assert_eq!(check(&inside), [both((1, 2), 10), both((1, 3), 10)]);
    }

    #[test]
    fn claimed_hold_ends_with_the_first_end() {
        let line = |at, said| Line { at, ask: 1, said };
        let taken = || vec![line(0, Said::Asks(name())), line(10, Said::Acquired { fence: 3, until: 40 })];
        let to = |more: Vec<Line>, died| {
            let lines = [taken(), more].concat();
            let all = holds(1, &lines, died, Deadlines::Minded);
            assert_eq!((all[0].asked, all[0].from, all[0].fence), (0, 10, 3));
            all[0].to
        };
        assert_eq!(to(vec![], None), 40, "its deadline");
        assert_eq!(to(vec![line(30, Said::Holds { until: 60 })], None), 60, "its deadline after it was extended");
        assert_eq!(to(vec![line(20, Said::Releases)], None), 20);
        assert_eq!(to(vec![line(20, Said::Lost)], None), 20);
        assert_eq!(to(vec![line(30, Said::Holds { until: 60 })], Some(35)), 35, "its death");
        assert_eq!(to(vec![line(70, Said::Releases)], None), 40, "it was paused meanwhile");
        let ignored = holds(1, &[taken(), vec![line(70, Said::Releases)]].concat(), None, Deadlines::Ignored);
        assert_eq!(ignored[0].to, 70);
        assert_eq!(holds(1, &taken()[..1], None, Deadlines::Minded), [], "never got it");
    }
}
