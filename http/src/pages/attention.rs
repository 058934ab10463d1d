//! What needs attention: the list that opens the overview. Pure.

use std::time::Duration;

use super::display::{self, Moment};
use super::layout::Layout;
use super::utilisation::QueueWorkers;
use duly::Filter;
use duly::State as JobState;
use duly::admin::{DeadGroup, NodeRecord, QueueCounts};
use duly::cron::CronRecord;

/// The most items on the page; it shows the number of the rest.
const ITEMS_MAX: usize = 10;
/// A group of dead jobs is listed this long after its last job died.
const DEATH_RECENT: Duration = Duration::from_secs(3_600);
/// The most groups of dead jobs in the list; the page of dead jobs has all.
const GROUPS_MAX: usize = 3;
/// A queue lags if its oldest ready job waits longer.
const LAG_MAX: Duration = Duration::from_secs(300);
/// A run of a rule is missed if it is overdue for longer.
const OVERDUE_MAX: Duration = Duration::from_secs(60);
/// The most characters of an error.
const ERROR_CHARS_MAX: usize = 160;

/// The state of the store.
pub(super) struct Situation<'s> {
    pub groups: &'s [DeadGroup],
    pub counts: &'s [QueueCounts],
    pub nodes: &'s [NodeRecord],
    pub rules: &'s [CronRecord],
    /// The rules whose next run is planned too late.
    pub delayed: &'s [CronRecord],
}

/// All that needs attention.
pub(super) struct Attention {
    pub items: Vec<AttentionItem>,
    /// The number of further items.
    pub left_out: usize,
}

/// One problem, with the page on which to solve it.
pub(super) struct AttentionItem {
    /// The class of a state, for the colour.
    pub class: &'static str,
    pub text: String,
    pub detail: String,
    pub at: Option<Moment>,
    pub action: &'static str,
    /// The path of the page, below the root.
    pub path: String,
}

impl Attention {
    pub(super) fn of(layout: &Layout, situation: &Situation<'_>) -> Attention {
        let mut items = dead_groups(layout, situation.groups);
        items.extend(dead_nodes(situation.nodes));
        items.extend(situation.counts.iter().filter_map(|counts| queue(layout, counts, situation.nodes)));
        items.extend(rules(layout, situation));
        let left_out = items.len().saturating_sub(ITEMS_MAX);
        items.truncate(ITEMS_MAX);
        Attention { items, left_out }
    }
}

fn dead_groups(layout: &Layout, groups: &[DeadGroup]) -> Vec<AttentionItem> {
    let is_recent = |group: &&DeadGroup| layout.now.duration_since(group.newest).unwrap_or_default() < DEATH_RECENT;
    let item = |group: &DeadGroup| {
        let filter = Filter::all().state(JobState::Dead).queue(group.queue.clone()).group(group.id.clone());
        AttentionItem {
            class: "dead",
            text: format!("{} of {} died, most recently", display::plural(group.count, "job"), group.kind),
            detail: display::truncate(&group.error, ERROR_CHARS_MAX),
            at: Some(layout.moment(group.newest)),
            action: "View jobs",
            path: format!("/jobs?q={}", display::url_encode(&filter.to_string())),
        }
    };
    let recent: Vec<&DeadGroup> = groups.iter().filter(is_recent).collect();
    let mut items: Vec<AttentionItem> = recent.iter().take(GROUPS_MAX).map(|group| item(group)).collect();
    if recent.len() > GROUPS_MAX {
        let more = &recent[GROUPS_MAX..];
        let jobs = display::plural(more.iter().map(|group| group.count).sum::<u64>(), "more job");
        items.push(AttentionItem {
            class: "dead",
            text: format!("{jobs} died, most recently"),
            detail: "of other kinds or with other errors".to_owned(),
            at: more.iter().map(|group| group.newest).max().map(|newest| layout.moment(newest)),
            action: "View dead jobs",
            path: "/dead".to_owned(),
        });
    }
    items
}

fn dead_nodes(nodes: &[NodeRecord]) -> Vec<AttentionItem> {
    let item = |node: &NodeRecord| AttentionItem {
        class: "dead",
        text: format!("Node {} sends no heartbeats", node.host),
        detail: format!("It held {}. Other workers of its queues take them back.", display::plural(node.held, "job")),
        at: None,
        action: "View node",
        path: format!("/nodes/{}", node.id),
    };
    nodes.iter().filter(|node| !node.alive && !node.queues.is_empty()).map(item).collect()
}

/// Returns the first problem of a queue with ready jobs.
fn queue(layout: &Layout, counts: &QueueCounts, nodes: &[NodeRecord]) -> Option<AttentionItem> {
    if counts.ready == 0 || counts.moving.is_some() {
        return None;
    }
    let (queue, jobs) = (&counts.queue, display::plural(counts.ready, "ready job"));
    let lag = counts.oldest_ready.and_then(|oldest| layout.now.duration_since(oldest).ok()).unwrap_or_default();
    let (text, detail) = match QueueWorkers::of(layout, queue, nodes).problem() {
        _ if counts.paused => {
            (format!("Queue {queue} is paused"), format!("It has {jobs}, which wait until it is resumed."))
        }
        "no worker" => {
            (format!("Queue {queue} has no worker"), format!("It has {jobs}. To start one: duly work --queue {queue}"))
        }
        "" if lag > LAG_MAX => {
            (format!("Queue {queue} lags"), format!("Its oldest job has waited for {}.", display::duration(lag)))
        }
        "" => return None,
        _ => (format!("All workers of queue {queue} are quiet"), format!("It has {jobs}, and no worker claims them.")),
    };
    let (class, action) = (if counts.paused { "paused" } else { "dead" }, "View queue");
    let path = format!("/queues/{}", display::url_encode(queue));
    Some(AttentionItem { class, text, detail, at: None, action, path })
}

fn rules(layout: &Layout, situation: &Situation<'_>) -> Vec<AttentionItem> {
    let item = |record: &CronRecord, text: String, detail: &str| AttentionItem {
        class: "paused",
        text,
        detail: detail.to_owned(),
        at: record.next.map(|next| layout.moment(next)),
        action: "View rule",
        path: format!("/cron/rule/{}", display::url_encode(&record.rule.name)),
    };
    let is_missed = |record: &&CronRecord| {
        let overdue = record.next.and_then(|next| layout.now.duration_since(next).ok()).unwrap_or_default();
        overdue > OVERDUE_MAX && !record.paused && !record.waiting
    };
    let missed = situation.rules.iter().filter(is_missed).map(|record| {
        let text = format!("Rule {} has missed its run", record.rule.name);
        item(record, text, &format!("Only a worker of queue {} pushes its jobs.", record.rule.queue))
    });
    let delayed = situation.delayed.iter().map(|record| {
        let detail = "The clock was ahead when it was planned. A worker of its queue corrects it.";
        item(record, format!("Rule {} runs too late", record.rule.name), detail)
    });
    missed.chain(delayed).collect()
}
