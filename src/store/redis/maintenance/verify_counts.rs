//! Compares the stored counters of a queue with its jobs.
//!
//! Jobs are read in small requests, so the comparison is valid only if the queue did not change meanwhile: its change
//! mark is the same before and after. A queue that always changes is not checked.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::job::JobId;
use crate::store::Invariant;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::verify::{ObservedJobs, observe_queue};
use crate::store::redis::record;
use crate::store::redis::record::JobMeta;
use crate::store::redis::{Redis, script};

/// Maximum recounts of a queue that changes meanwhile.
const RECOUNT_TRIES_MAX: usize = 3;

/// The counters that a queue stores.
pub(crate) struct StoredCounts {
    pub(crate) change_mark: String,
    bytes: i64,
    keep_range: Option<(i64, i64)>,
    /// Per group: its count, first and last death, kind and error.
    groups: BTreeMap<String, String>,
}

/// Reads the stored counters of a queue.
pub(crate) async fn read_stored_counts(store: &Redis, keys: &QueueKeys) -> Result<StoredCounts> {
    let mut cmd = script::MEASURE_COUNTS.call(keys);
    cmd.arg(store.manual_now());
    let mut reply =
        store.run_script("verify", ConnectionRole::Client, keys.slot, &script::MEASURE_COUNTS, &cmd).await?;
    let (change_mark, bytes, keep_range) = (reply.text()?, reply.int()?, record::decode_keep_range(&reply.bytes()?));
    let groups = reply.list()?;
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
    let groups = groups.chunks(2).filter_map(|pair| Some((text(pair.first()?), text(pair.get(1)?)))).collect();
    Ok(StoredCounts { change_mark, bytes, keep_range, groups })
}

/// The dead jobs of one group.
#[derive(Default)]
struct ObservedGroup {
    count: u64,
    /// When the first and the last of them died, 16 digits each.
    died_range: Option<(String, String)>,
    kind: String,
}

impl ObservedGroup {
    /// Encodes the group as a queue stores it. The error is taken from the stored group; the jobs do not have it.
    fn encode(&self, stored: Option<&String>) -> String {
        let rest = stored.and_then(|stored| stored.get(42..));
        let (oldest, newest) = self.died_range.clone().unwrap_or_default();
        format!("{:010}{oldest:0>16}{newest:0>16}{}", self.count, rest.unwrap_or(&format!("{}\t…", self.kind)))
    }
}

/// The counters computed from the jobs.
#[derive(Default)]
pub(crate) struct ObservedCounts {
    bytes: i64,
    keep_range: Option<(i64, i64)>,
    groups: BTreeMap<String, ObservedGroup>,
}

impl ObservedCounts {
    pub(crate) fn from_jobs(jobs: &ObservedJobs) -> Self {
        let mut counts = ObservedCounts::default();
        for observed in jobs.values() {
            let Some(head) = &observed.head else {
                continue;
            };
            if observed.is_unfinished() {
                counts.bytes += head.args_bytes as i64;
            }
            if observed.done.is_some() {
                let (keep_min, keep_max) = counts.keep_range.unwrap_or((head.keep, head.keep));
                counts.keep_range = Some((keep_min.min(head.keep), keep_max.max(head.keep)));
            }
            let meta = observed.meta.as_deref().filter(|_| observed.dead.is_some()).unwrap_or_default();
            if let (Some(name), Some(decoded)) = (JobMeta::dead_group(meta), JobMeta::decode(meta)) {
                let group = counts.groups.entry(name.to_owned()).or_default();
                let moment = format!("{:016}", decoded.changed_at);
                let (oldest, newest) = group.died_range.take().unwrap_or((moment.clone(), moment.clone()));
                group.died_range = Some((oldest.min(moment.clone()), newest.max(moment)));
                group.kind = head.index_terms.split(' ').next().unwrap_or_default().to_owned();
                group.count += 1;
            }
        }
        counts
    }

    /// Returns the differences from the stored counters.
    pub(crate) fn violations(&self, stored: &StoredCounts) -> Vec<(Invariant, String)> {
        let mut violations = Vec::new();
        if stored.bytes != self.bytes {
            let details =
                format!("{} bytes of unfinished args are counted, but there are {}", stored.bytes, self.bytes);
            violations.push((Invariant::Counts, details));
        }
        let covered = |(keep_min, keep_max): (i64, i64)| {
            stored.keep_range.is_some_and(|range| range.0 <= keep_min && range.1 >= keep_max)
        };
        if self.keep_range.is_some_and(|range| !covered(range)) {
            violations
                .push((Invariant::Counts, "done jobs are kept longer or shorter than the stored range".to_owned()));
        }
        for (name, count) in self.wrong_groups(stored) {
            let counted =
                stored.groups.get(name).and_then(|text| text.get(..10)).unwrap_or("0").trim_start_matches('0');
            let counted = if counted.is_empty() { "0" } else { counted };
            violations.push((
                Invariant::Counts,
                format!("{counted} dead jobs are counted in group {name}, but there are {count}"),
            ));
        }
        violations
    }

    /// Returns the groups with a wrong stored count, and their true count.
    fn wrong_groups<'a>(&'a self, stored: &'a StoredCounts) -> impl Iterator<Item = (&'a String, u64)> {
        let names = self.groups.keys().chain(stored.groups.keys().filter(|name| !self.groups.contains_key(*name)));
        names.filter_map(|name| {
            let count = self.groups.get(name).map_or(0, |group| group.count);
            let counted =
                stored.groups.get(name).map(|text| text.get(..10).and_then(|count| count.parse::<u64>().ok()));
            (counted != Some(Some(count))).then_some((name, count))
        })
    }
}

/// Corrects the stored counters if they are wrong.
pub(crate) async fn recount(store: &Redis, keys: &QueueKeys) -> Result<()> {
    for _ in 0..RECOUNT_TRIES_MAX {
        let stored = read_stored_counts(store, keys).await?;
        let counts = ObservedCounts::from_jobs(&observe_queue(store, keys).await?);
        let is_unchanged = self::read_stored_counts(store, keys).await?.change_mark == stored.change_mark;
        if is_unchanged
            && (counts.violations(&stored).is_empty() || write_counts(store, keys, &counts, &stored).await?)
        {
            return Ok(());
        }
    }
    tracing::warn!(queue = %keys.queue, "the queue changes too much to recount; pause it and repair again");
    Ok(())
}

/// Writes the counters. Returns whether the queue was still unchanged.
async fn write_counts(store: &Redis, keys: &QueueKeys, counts: &ObservedCounts, stored: &StoredCounts) -> Result<bool> {
    let mut cmd = script::REPAIR_COUNTS.call(keys);
    let keep_range =
        counts.keep_range.map_or(String::new(), |(keep_min, keep_max)| format!("{keep_min:016}{keep_max:016}"));
    cmd.arg(store.manual_now()).arg(&stored.change_mark).arg(counts.bytes).arg(keep_range);
    for (name, _) in counts.wrong_groups(stored) {
        cmd.arg(name).arg(counts.groups.get(name).map_or(String::new(), |group| group.encode(stored.groups.get(name))));
    }
    Ok(store.run_script("repair", ConnectionRole::Client, keys.slot, &script::REPAIR_COUNTS, &cmd).await?.text()?
        == "yes")
}

/// The number of observed jobs, the suspicious ones, and the computed counters.
pub(crate) struct CheckedQueue {
    pub(crate) job_count: u64,
    pub(crate) suspects: Vec<(JobId, crate::store::redis::maintenance::job_invariants::ObservedJob)>,
    pub(crate) counts: ObservedCounts,
}
