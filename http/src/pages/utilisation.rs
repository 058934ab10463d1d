//! How many slots of the workers are in use, by node and by queue. Pure.
//!
//! A node also holds jobs that it has claimed ahead, which wait for a slot: they do not count as running.

use super::display;
use super::layout::Layout;
use duly::admin::NodeRecord;

/// The slots of all live workers, and the jobs that wait for one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AllSlots {
    pub slots: u64,
    pub waiting: u64,
}

impl AllSlots {
    /// Returns `None` if a worker does not publish its slots, as workers over HTTP.
    pub(super) fn of(nodes: &[NodeRecord]) -> Option<AllSlots> {
        let workers = nodes.iter().filter(|node| node.alive && !node.queues.is_empty());
        workers.map(|node| node.profile.slots.map(|slots| (slots, node.held.saturating_sub(slots)))).try_fold(
            AllSlots::default(),
            |all, worker| {
                let (slots, waiting) = worker?;
                Some(AllSlots { slots: all.slots.saturating_add(slots), waiting: all.waiting.saturating_add(waiting) })
            },
        )
    }
}

/// The workers of one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueWorkers {
    /// The live nodes that work on the queue.
    nodes: usize,
    /// Those that claim nothing at the moment.
    quiet: usize,
    running: u64,
    waiting: u64,
    /// The sum of their slots; `None` if a node does not publish its own.
    slots: Option<u64>,
    /// Processes that are not nodes may work on the queue, too.
    has_others: bool,
}

impl QueueWorkers {
    pub(super) fn of(layout: &Layout, queue: &str, nodes: &[NodeRecord]) -> QueueWorkers {
        QueueWorkers { has_others: !layout.lists_all_workers(), ..QueueWorkers::of_nodes(queue, nodes) }
    }

    fn of_nodes(queue: &str, nodes: &[NodeRecord]) -> QueueWorkers {
        let works = |node: &&NodeRecord| node.alive && node.queues.iter().any(|own| own == queue);
        let mut workers = QueueWorkers { slots: Some(0), ..QueueWorkers::default() };
        for node in nodes.iter().filter(works) {
            let held = node.held_by_queue.get(queue).copied().unwrap_or(0);
            let slots = node.profile.limits.get(queue).copied().or(node.profile.slots);
            let running = slots.map_or(held, |slots| held.min(slots));
            workers.nodes += 1;
            workers.quiet += usize::from(node.profile.quiet);
            workers.running += running;
            workers.waiting += held - running;
            workers.slots = workers.slots.zip(slots).map(|(sum, slots)| sum.saturating_add(slots));
        }
        workers
    }

    /// Returns the reason why no worker claims jobs of the queue, or an empty text.
    pub(super) fn problem(&self) -> &'static str {
        match self.nodes {
            _ if self.has_others => "",
            0 => "no worker",
            nodes if nodes == self.quiet => "workers quiet",
            _ => "",
        }
    }

    /// Returns the use of their slots, or a dash without a worker.
    pub(super) fn describe(&self) -> String {
        if self.nodes == 0 { "–".to_owned() } else { format_use(self.running, self.waiting, self.slots) }
    }
}

/// Describes how many jobs run in these slots, and how many wait for one: `4 of 4 slots, 1 waiting`.
pub(super) fn describe(held: u64, slots: Option<u64>) -> String {
    let running = slots.map_or(held, |slots| held.min(slots));
    format_use(running, held - running, slots)
}

fn format_use(running: u64, waiting: u64, slots: Option<u64>) -> String {
    let Some(slots) = slots else {
        return display::count(running.saturating_add(waiting));
    };
    let waiting = match waiting {
        0 => String::new(),
        waiting => format!(", {} waiting", display::count(waiting)),
    };
    format!("{} of {}{waiting}", display::count(running), display::plural(slots, "slot"))
}

#[cfg(test)]
mod tests {
    use duly::Duly;
    use duly::store::{JobStore, Node};

    use super::*;

    #[test]
    fn jobs_claimed_ahead_wait_for_a_slot() {
        assert_eq!(describe(3, Some(4)), "3 of 4 slots");
        assert_eq!(describe(5, Some(4)), "4 of 4 slots, 1 waiting");
        assert_eq!(describe(2, Some(1)), "1 of 1 slot, 1 waiting");
        assert_eq!(describe(5, None), "5");
    }

    #[test]
    fn queue_without_a_worker_says_so() {
        let workers = QueueWorkers::of_nodes("mail", &[]);
        assert_eq!((workers.problem(), workers.describe().as_str()), ("no worker", "–"));
        let workers = QueueWorkers { has_others: true, ..workers };
        assert_eq!(workers.problem(), "", "processes of another system may work on it");
    }

    /// Returns workers of the queue `mail` that hold this many jobs and have this many slots.
    async fn workers(all: &[(u64, Option<u64>)]) -> Vec<NodeRecord> {
        let duly = Duly::open(":memory:").await.expect("opens");
        duly.store().heartbeat(&Node::fresh(vec!["mail".to_owned()])).await.expect("joins");
        let node = duly.nodes().list().await.expect("lists").remove(0);
        let worker = |&(held, slots): &(u64, Option<u64>)| {
            let mut node = node.clone();
            (node.held, node.profile.slots) = (held, slots);
            node.held_by_queue.insert("mail".to_owned(), held);
            node
        };
        all.iter().map(worker).collect()
    }

    #[tokio::test]
    async fn free_slots_of_one_worker_are_not_those_of_another() {
        let nodes = workers(&[(6, Some(4)), (0, Some(4))]).await;
        assert_eq!(QueueWorkers::of_nodes("mail", &nodes).describe(), "4 of 8 slots, 2 waiting");
        assert_eq!(AllSlots::of(&nodes), Some(AllSlots { slots: 8, waiting: 2 }));
    }

    #[tokio::test]
    async fn slots_are_unknown_if_one_worker_publishes_none() {
        let nodes = workers(&[(6, Some(4)), (3, None)]).await;
        assert_eq!(QueueWorkers::of_nodes("mail", &nodes).describe(), "9");
        assert_eq!(AllSlots::of(&nodes), None);
    }
}
