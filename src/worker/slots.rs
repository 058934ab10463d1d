//! Divides the free slots of a worker among its queues.

/// Divides `free` slots among queues, given as `(wanted jobs, weight)`. Returns `(queue index, jobs)`, never 0 jobs.
///
/// Without weights, the first queue gets as much as it wants, then the next one.
/// With weights, the slots are divided in proportion; `random` in 0..1 decides which queue gets the remainder.
pub(super) fn divide_slots(queues: &[(usize, Option<u32>)], free: usize, random: f64) -> Vec<(usize, usize)> {
    let open: Vec<usize> = (0..queues.len()).filter(|index| queues[*index].0 > 0).collect();
    let weighted = queues.iter().any(|(_, weight)| weight.is_some());
    if !weighted {
        return divide_slots_in_order(queues, &open, free);
    }
    let weight = |index: usize| u64::from(queues[index].1.unwrap_or(1));
    let sum: u64 = open.iter().map(|index| weight(*index)).sum();
    let mut shares = Vec::new();
    let (mut before, mut given) = (0.0, 0);
    for index in open {
        // All cumulative shares are shifted by the same random fraction: they add up, and each is fair on average.
        before += free as f64 * weight(index) as f64 / sum.max(1) as f64;
        let up_to = ((before + random.clamp(0.0, 0.999_999)).floor() as usize).min(free);
        let share = (up_to - given).min(queues[index].0);
        given = up_to;
        if share > 0 {
            shares.push((index, share));
        }
    }
    shares
}

fn divide_slots_in_order(queues: &[(usize, Option<u32>)], open: &[usize], free: usize) -> Vec<(usize, usize)> {
    let mut remaining = free;
    let mut shares = Vec::new();
    for index in open {
        let share = queues[*index].0.min(remaining);
        if share > 0 {
            shares.push((*index, share));
            remaining -= share;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queues_without_weights_are_filled_in_order() {
        assert_eq!(divide_slots(&[(5, None), (5, None)], 3, 0.0), [(0, 3)]);
        assert_eq!(divide_slots(&[(5, None), (5, None)], 8, 0.0), [(0, 5), (1, 3)]);
        assert_eq!(divide_slots(&[(0, None), (5, None)], 8, 0.0), [(1, 5)]);
    }

    #[test]
    fn free_slots_are_divided_by_weight() {
        assert_eq!(divide_slots(&[(9, Some(3)), (9, Some(1))], 8, 0.0), [(0, 6), (1, 2)]);
    }

    #[test]
    fn single_free_slot_goes_to_each_queue_by_weight_on_average() {
        let first =
            (0..1_000).filter(|n| divide_slots(&[(9, Some(3)), (9, Some(1))], 1, f64::from(*n) / 1_000.0)[0].0 == 0);
        assert!((700..800).contains(&first.count()));
    }

    proptest! {
        #[test]
        fn shares_never_exceed_free_slots_or_demand(
            queues in proptest::collection::vec((0usize..50, proptest::option::of(0u32..9)), 0..8),
            free in 0usize..100,
            random in any::<f64>(),
        ) {
            let shares = divide_slots(&queues, free, random);
            prop_assert!(shares.iter().map(|(_, n)| n).sum::<usize>() <= free);
            prop_assert!(shares.iter().all(|(index, n)| *n > 0 && *n <= queues[*index].0));
        }

        #[test]
        fn strict_order_fills_every_slot(wanted in proptest::collection::vec(0usize..50, 0..8), free in 0usize..100) {
            let queues: Vec<_> = wanted.iter().map(|jobs| (*jobs, None)).collect();
            let given: usize = divide_slots(&queues, free, 0.0).iter().map(|(_, n)| n).sum();
            prop_assert_eq!(given, free.min(wanted.iter().sum()));
        }
    }
}
