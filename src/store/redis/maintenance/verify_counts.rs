//! What is counted of a queue while its jobs move, against the jobs themselves.
//!
//! Jobs are looked at in small steps, so this can be told of a queue only if it keeps still meanwhile: its mark is the same before
//! and after. Of one that never does nothing is said.

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

/// How often a queue that does not keep still is counted again.
const RECOUNT_TRIES_MAX: usize = 3;

/// What a queue says of itself.
pub(crate) struct StoredCounts {
    pub(crate) change_mark: String,
    bytes: i64,
    keep_range: Option<(i64, i64)>,
    /// Group to how many there are and since when, kind and error.
    groups: BTreeMap<String, String>,
}

/// Asks a queue what it says of itself.
pub(crate) async fn read_stored_counts(store: &Redis, keys: &QueueKeys) -> Result<StoredCounts> {
    let mut cmd = script::MEASURE_COUNTS.call(keys);
    cmd.arg(store.manual_now());
    let value =
        store.servers.run_script("verify", ConnectionRole::Client, keys.slot, &script::MEASURE_COUNTS, &cmd).await?;
    let mut reply = store.parse_reply("verify", value)?;
    let (mark, bytes, kept) = (reply.text()?, reply.int()?, record::decode_keep_range(&reply.bytes()?));
    let groups = reply.list()?;
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
    let groups = groups.chunks(2).filter_map(|pair| Some((text(pair.first()?), text(pair.get(1)?)))).collect();
    Ok(StoredCounts { change_mark: mark, bytes, keep_range: kept, groups })
}

/// Dead jobs of one group.
#[derive(Default)]
struct ObservedGroup {
    count: u64,
    /// When the first and the last of them died, 16 digits each.
    died_range: Option<(String, String)>,
    kind: String,
}

impl ObservedGroup {
    /// As a queue keeps it; what it died of only the queue knew.
    fn encode(&self, told: Option<&String>) -> String {
        let rest = told.and_then(|told| told.get(42..));
        let (oldest, newest) = self.died_range.clone().unwrap_or_default();
        format!("{:010}{oldest:0>16}{newest:0>16}{}", self.count, rest.unwrap_or(&format!("{}\t…", self.kind)))
    }
}

/// What there is.
#[derive(Default)]
pub(crate) struct ObservedCounts {
    bytes: i64,
    keep_range: Option<(i64, i64)>,
    groups: BTreeMap<String, ObservedGroup>,
}

impl ObservedCounts {
    pub(crate) fn from_jobs(all: &ObservedJobs) -> Self {
        let mut counted = ObservedCounts::default();
        for seen in all.values() {
            let Some(head) = &seen.head else {
                continue;
            };
            if seen.is_unfinished() {
                counted.bytes += head.args_bytes as i64;
            }
            if seen.done.is_some() {
                let (least, longest) = counted.keep_range.unwrap_or((head.keep, head.keep));
                counted.keep_range = Some((least.min(head.keep), longest.max(head.keep)));
            }
            let meta = seen.meta.as_deref().filter(|_| seen.dead.is_some()).unwrap_or_default();
            if let (Some(name), Some(known)) = (JobMeta::dead_group(meta), JobMeta::decode(meta)) {
                let group = counted.groups.entry(name.to_owned()).or_default();
                let moment = format!("{:016}", known.changed_at);
                let (oldest, newest) = group.died_range.take().unwrap_or((moment.clone(), moment.clone()));
                group.died_range = Some((oldest.min(moment.clone()), newest.max(moment)));
                group.kind = head.index_terms.split(' ').next().unwrap_or_default().to_owned();
                group.count += 1;
            }
        }
        counted
    }

    /// What is not so as it is told.
    pub(crate) fn violations(&self, told: &StoredCounts) -> Vec<(Invariant, String)> {
        let mut broken = Vec::new();
        if told.bytes != self.bytes {
            let what = format!("{} bytes of args are counted as unfinished, and {} are", told.bytes, self.bytes);
            broken.push((Invariant::Counts, what));
        }
        let covered =
            |(least, longest): (i64, i64)| told.keep_range.is_some_and(|kept| kept.0 <= least && kept.1 >= longest);
        if self.keep_range.is_some_and(|kept| !covered(kept)) {
            broken.push((Invariant::Counts, "done jobs are kept for another time than is told".to_owned()));
        }
        for (name, count) in self.wrong_groups(told) {
            let counted = told.groups.get(name).and_then(|text| text.get(..10)).unwrap_or("0").trim_start_matches('0');
            let counted = if counted.is_empty() { "0" } else { counted };
            broken
                .push((Invariant::Counts, format!("{counted} dead jobs are counted in group {name}, and {count} are")));
        }
        broken
    }

    /// Groups whose number is another than is told, and what it is.
    fn wrong_groups<'a>(&'a self, told: &'a StoredCounts) -> impl Iterator<Item = (&'a String, u64)> {
        let names = self.groups.keys().chain(told.groups.keys().filter(|name| !self.groups.contains_key(*name)));
        names.filter_map(|name| {
            let count = self.groups.get(name).map_or(0, |group| group.count);
            let counted = told.groups.get(name).map(|text| text.get(..10).and_then(|count| count.parse::<u64>().ok()));
            (counted != Some(Some(count))).then_some((name, count))
        })
    }
}

/// Puts right what is told, if it is wrong.
pub(crate) async fn recount(store: &Redis, keys: &QueueKeys) -> Result<()> {
    for _ in 0..RECOUNT_TRIES_MAX {
        let told = read_stored_counts(store, keys).await?;
        let counted = ObservedCounts::from_jobs(&observe_queue(store, keys).await?);
        let still = self::read_stored_counts(store, keys).await?.change_mark == told.change_mark;
        if still && (counted.violations(&told).is_empty() || write_counts(store, keys, &counted, &told).await?) {
            return Ok(());
        }
    }
    tracing::warn!(queue = %keys.queue, "too much moves to count anew; pause the queue and repair again");
    Ok(())
}

/// Answers whether the queue was still as it was counted.
async fn write_counts(store: &Redis, keys: &QueueKeys, counted: &ObservedCounts, told: &StoredCounts) -> Result<bool> {
    let mut cmd = script::REPAIR_COUNTS.call(keys);
    let kept = counted.keep_range.map_or(String::new(), |(least, longest)| format!("{least:016}{longest:016}"));
    cmd.arg(store.manual_now()).arg(&told.change_mark).arg(counted.bytes).arg(kept);
    for (name, _) in counted.wrong_groups(told) {
        cmd.arg(name).arg(counted.groups.get(name).map_or(String::new(), |group| group.encode(told.groups.get(name))));
    }
    let value =
        store.servers.run_script("repair", ConnectionRole::Client, keys.slot, &script::REPAIR_COUNTS, &cmd).await?;
    Ok(store.parse_reply("repair", value)?.text()? == "yes")
}

/// How many jobs were seen, those of which something seems wrong, and what was counted.
pub(crate) struct CheckedQueue {
    pub(crate) job_count: u64,
    pub(crate) suspects: Vec<(JobId, crate::store::redis::maintenance::job_invariants::ObservedJob)>,
    pub(crate) counts: ObservedCounts,
}
