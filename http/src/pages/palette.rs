//! The command palette: finds pages, queues, kinds, rules, nodes and jobs by a few words, with their actions.
//!
//! An action is a POST to the same address as the form of its page, so a destructive one asks first.

use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};

use super::display;
use super::layout::Layout;
use crate::api::totals_by_kind;
use crate::server::{App, AppState};
use duly::admin::{KindStatsQuery, NodeRecord};
use duly::bounds::OTHER_KINDS;
use duly::cron::CronRecord;
use duly::{Filter, JobRecord, State as JobState};

/// The most items of one group in a response.
const GROUP_ITEMS_MAX: usize = 8;
/// The most characters of the words that are searched.
const QUERY_CHARS_MAX: usize = 200;
/// The fewest digits of an id that are looked up: a search for a part reads many ids, and short words such as `dead` look
/// like one.
const ID_CHARS_MIN: usize = 6;
/// The newest jobs that suggestions are collected from.
const SAMPLE_JOBS: usize = 200;
/// The most suggestions for the filter box.
const SUGGESTIONS_MAX: usize = 500;
/// Hours back from now in which a kind must have run to be found.
const KIND_HOURS: u32 = 24;

#[derive(Deserialize, Default)]
pub(super) struct PaletteParams {
    #[serde(default)]
    q: String,
}

/// The items that match, group by group.
#[derive(Serialize)]
pub(super) struct PaletteItems {
    items: Vec<Item>,
}

/// A link, or a form without fields.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
struct Item {
    group: &'static str,
    label: String,
    detail: String,
    /// The address, below the root.
    path: String,
    /// The item is an action: its address is posted to.
    is_post: bool,
}

impl Item {
    fn link(group: &'static str, label: impl Into<String>, detail: impl Into<String>, path: String) -> Item {
        Item { group, label: label.into(), detail: detail.into(), path, is_post: false }
    }

    fn action(label: String, path: String) -> Item {
        Item { group: "Actions", label, detail: String::new(), path, is_post: true }
    }
}

/// The items found so far. Items that do not contain every word are dropped.
struct Search<'l> {
    layout: &'l Layout,
    /// In lower case.
    words: Vec<String>,
    items: Vec<Item>,
}

impl Search<'_> {
    /// Adds the best matches of a group: those that begin with the words before those that contain them.
    fn add(&mut self, items: impl IntoIterator<Item = Item>) {
        let mut found: Vec<(u8, Item)> =
            items.into_iter().filter_map(|item| Some((rank_of(&self.words, &item)?, item))).collect();
        found.sort_by_key(|(rank, _)| *rank);
        self.items.extend(found.into_iter().take(GROUP_ITEMS_MAX).map(|(_, item)| item));
    }

    fn add_pages(&mut self) {
        let links = self.layout.all_links().into_iter();
        let mut pages: Vec<Item> =
            links.map(|link| Item::link("Pages", link.name, link.badge, link.path.to_owned())).collect();
        if self.layout.can_push() {
            pages.push(Item::link("Pages", "Push a job", "", "/push".to_owned()));
        }
        if self.layout.can_operate() && self.layout.all_links().iter().any(|link| link.path == "/cron") {
            pages.push(Item::link("Pages", "New cron rule", "", "/cron/new".to_owned()));
        }
        // All pages, not only the first of them, are offered before the first word.
        let found: Vec<Item> = pages.into_iter().filter(|item| rank_of(&self.words, item).is_some()).collect();
        self.items.extend(found);
    }

    fn add_queues(&mut self) {
        let (layout, mut links, mut actions) = (self.layout, Vec::new(), Vec::new());
        for counts in &layout.counts {
            let (queue, path) = (&counts.queue, display::url_encode(&counts.queue));
            let paused = if counts.paused { ", paused" } else { "" };
            let detail = format!("queue, {} ready{paused}", display::count(counts.ready));
            links.push(Item::link("Queues", queue, detail, format!("/queues/{path}")));
            if layout.can_operate() {
                let (label, action) = if counts.paused { ("Resume", "resume") } else { ("Pause", "pause") };
                actions.push(Item::action(format!("{label} queue {queue}"), format!("/queues/{path}/{action}")));
                let clear = format!("/queues/{path}#clear");
                actions.push(Item::link("Actions", format!("Clear queue {queue}"), "asks first", clear));
            }
            if layout.can_push() {
                let push = format!("/push?queue={path}");
                actions.push(Item::link("Actions", format!("Push a job into {queue}"), "", push));
            }
        }
        self.add(links);
        self.add(actions);
    }

    fn add_kinds(&mut self, kinds: &[String]) {
        let (layout, mut links, mut actions) = (self.layout, Vec::new(), Vec::new());
        for kind in kinds {
            let filter = display::url_encode(&Filter::all().kind(kind.clone()).to_string());
            links.push(Item::link("Kinds", kind, "jobs of this kind", format!("/jobs?q={filter}")));
            if layout.can_push() {
                let push = format!("/push?kind={}", display::url_encode(kind));
                actions.push(Item::link("Actions", format!("Push a job of kind {kind}"), "", push));
            }
        }
        self.add(links);
        self.add(actions);
    }

    fn add_rules(&mut self, rules: &[CronRecord]) {
        let (can_operate, mut links, mut actions) = (self.layout.can_operate(), Vec::new(), Vec::new());
        for record in rules {
            let (name, path) = (&record.rule.name, display::url_encode(&record.rule.name));
            let detail = format!("cron rule {}", record.rule.pattern);
            links.push(Item::link("Cron", name, detail, format!("/cron/rule/{path}")));
            if can_operate {
                actions.push(Item::action(format!("Trigger rule {name}"), format!("/cron/{path}/trigger")));
                let (label, action) = if record.paused { ("Resume", "resume") } else { ("Pause", "pause") };
                actions.push(Item::action(format!("{label} rule {name}"), format!("/cron/{path}/{action}")));
                let change = format!("/cron/new?like={path}");
                actions.push(Item::link("Actions", format!("Change rule {name}"), "", change));
                let removal = Item::action(format!("Remove rule {name}"), format!("/cron/{path}/remove"));
                actions.push(Item { detail: "asks first".to_owned(), ..removal });
            }
        }
        self.add(links);
        self.add(actions);
    }

    fn add_nodes(&mut self, nodes: &[NodeRecord]) {
        let (can_operate, mut links, mut actions) = (self.layout.can_operate(), Vec::new(), Vec::new());
        for node in nodes {
            let name = format!("{} {}", node.host, display::short_id(&node.id.to_string()));
            let detail = format!("node, pid {}", node.pid);
            links.push(Item::link("Nodes", name.clone(), detail, format!("/nodes/{}", node.id)));
            if can_operate && node.alive && !node.queues.is_empty() {
                let (label, action) = if node.profile.quiet { ("Resume", "resume") } else { ("Quiet", "quiet") };
                actions.push(Item::action(format!("{label} node {name}"), format!("/nodes/{}/{action}", node.id)));
                let stop = Item::action(format!("Stop node {name}"), format!("/nodes/{}/stop", node.id));
                actions.push(Item { detail: "asks first".to_owned(), ..stop });
            }
        }
        self.add(links);
        self.add(actions);
    }

    /// Adds a job that was found by its id, whatever the words are; its actions only if it is the only one.
    fn add_job(&mut self, record: &JobRecord, is_only: bool) {
        let (job, can_operate) = (&record.job, self.layout.can_operate());
        let detail = format!("{}, {} in queue {}", display::short_id(&job.id.to_string()), record.state, job.queue);
        self.items.push(Item::link("Jobs", &job.kind, detail, format!("/jobs/{}", job.id)));
        if !is_only {
            return;
        }
        let can_retry = !matches!(record.state, JobState::Running | JobState::Ready);
        let can_cancel =
            record.state == JobState::Running || (!record.state.is_final() && self.layout.can_administer());
        for (is_offered, action, label, detail) in [
            (can_retry, "retry", if record.state == JobState::Scheduled { "Run now" } else { "Retry" }, ""),
            (can_cancel, "cancel", "Cancel", "asks first"),
            (record.state != JobState::Running, "remove", "Remove", "asks first"),
        ] {
            if can_operate && is_offered {
                let item = Item::action(format!("{label}: {}", job.kind), format!("/jobs/{}/{action}", job.id));
                self.items.push(Item { detail: detail.to_owned(), ..item });
            }
        }
        if self.layout.can_push() {
            let copy = format!("/push?like={}", job.id);
            self.items.push(Item::link("Actions", format!("Push a copy: {}", job.kind), "", copy));
        }
    }

    /// Adds the list of the jobs that the words select as a filter.
    fn add_filter(&mut self, text: &str) {
        if text.parse::<Filter>().is_ok_and(|filter| !filter.uses_args() || self.layout.can_see_args()) {
            let path = format!("/jobs?q={}", display::url_encode(text));
            self.items.push(Item::link("Search", format!("Jobs that match {text}"), "", path));
        }
    }
}

/// Returns how well an item matches, 0 for the best; `None` if it does not contain every word.
fn rank_of(words: &[String], item: &Item) -> Option<u8> {
    let label = item.label.to_lowercase();
    let all = format!("{} {} {}", item.group, item.label, item.detail).to_lowercase();
    if !words.iter().all(|word| all.contains(word)) {
        return None;
    }
    let first = words.first().map_or("", String::as_str);
    let ranks = [label == first, label.starts_with(first), label.contains(first), true];
    ranks.iter().zip(0..).find(|(applies, _)| **applies).map(|(_, rank)| rank)
}

/// `GET /palette?q=WORDS`
pub(super) async fn search(
    State(app): AppState,
    Query(params): Query<PaletteParams>,
    layout: Layout,
) -> axum::Json<PaletteItems> {
    let text: String = params.q.chars().take(QUERY_CHARS_MAX).collect();
    let words = text.split_whitespace().map(str::to_lowercase).collect();
    let mut search = Search { layout: &layout, words, items: Vec::new() };
    if search.words.is_empty() {
        search.add_pages();
        return axum::Json(PaletteItems { items: search.items });
    }
    let jobs = find_jobs(&app, text.trim()).await;
    for record in &jobs {
        search.add_job(record, jobs.len() == 1);
    }
    // Every list is optional: a store may lack it, and the others are still of use.
    let (kinds, rules, nodes) = tokio::join!(kinds(&app), app.duly.crons().list(), app.duly.nodes().list());
    search.add_pages();
    search.add_queues();
    search.add_kinds(&kinds);
    search.add_rules(&rules.unwrap_or_default());
    search.add_nodes(&nodes.unwrap_or_default());
    search.add_filter(text.trim());
    // Stable: links before actions.
    search.items.sort_by_key(|item| (item.group == "Search", item.group == "Actions"));
    axum::Json(PaletteItems { items: search.items })
}

/// Returns the kinds that ran in the last day.
async fn kinds(app: &App) -> Vec<String> {
    let points = app.duly.kind_stats(KindStatsQuery::last_hours(KIND_HOURS).sum_intervals()).await.unwrap_or_default();
    totals_by_kind(points).into_keys().filter(|kind| kind != OTHER_KINDS).collect()
}

/// Returns the jobs with this id, or with this beginning or end of it.
async fn find_jobs(app: &App, text: &str) -> Vec<JobRecord> {
    if text.len() < ID_CHARS_MIN || text.contains(char::is_whitespace) {
        return Vec::new();
    }
    let Ok(filter) = format!("id:{text}").parse::<Filter>() else {
        return Vec::new();
    };
    app.duly.jobs().list(filter.limit(GROUP_ITEMS_MAX)).await.map(|page| page.jobs).unwrap_or_default()
}

/// Words of the filter that the store knows.
#[derive(Serialize)]
pub(super) struct Suggestions {
    words: Vec<String>,
}

/// `GET /suggestions`: kinds and tags for the filter box, from the statistics, the newest jobs and the rules.
pub(super) async fn suggestions(State(app): AppState) -> axum::Json<Suggestions> {
    let newest = Filter::all().limit(SAMPLE_JOBS);
    let (mut kinds, jobs, rules) = tokio::join!(kinds(&app), app.duly.jobs().list(newest), app.duly.crons().list());
    let (jobs, rules) = (jobs.map(|page| page.jobs).unwrap_or_default(), rules.unwrap_or_default());
    kinds.extend(jobs.iter().map(|record| record.job.kind.clone()));
    kinds.extend(rules.iter().map(|record| record.rule.kind.clone()));
    let tags = jobs.iter().flat_map(|record| &record.job.tags).chain(rules.iter().flat_map(|record| &record.rule.tags));
    let mut words: Vec<String> = kinds.into_iter().map(|kind| Filter::all().kind(kind).to_string()).collect();
    words.extend(tags.map(|tag| Filter::all().tag(tag.clone()).to_string()));
    words.sort_unstable();
    words.dedup();
    words.truncate(SUGGESTIONS_MAX);
    axum::Json(Suggestions { words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_must_match_and_names_come_first() {
        let item = |label: &str| Item::link("Queues", label, "queue", String::new());
        let rank = |words: &str, label: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            rank_of(&words, &item(label))
        };
        assert_eq!(rank("mail", "mail"), Some(0));
        assert_eq!(rank("mail", "mail.bulk"), Some(1));
        assert_eq!(rank("mail", "Fanmail"), Some(2));
        assert_eq!(rank("queue mail", "mail"), Some(3));
        assert_eq!(rank("mail dead", "mail"), None);
    }
}
