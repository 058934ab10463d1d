//! What is counted of a queue while its jobs move, against the jobs themselves.
//!
//! Jobs are looked at in small steps, so this can be told of a queue only if it keeps still meanwhile: its mark is the same before
//! and after. Of one that never does nothing is said.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::job::JobId;
use crate::store::Rule;
use crate::store::redis::conn::Way;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::verify::{All, look};
use crate::store::redis::record;
use crate::store::redis::record::Meta;
use crate::store::redis::{Redis, script};

/// How often a queue that does not keep still is counted again.
const TRIES_MAX: usize = 3;

/// What a queue says of itself.
pub(crate) struct Told {
    pub(crate) mark: String,
    bytes: i64,
    kept: Option<(i64, i64)>,
    /// Group to how many there are and since when, kind and error.
    groups: BTreeMap<String, String>,
}

/// Asks a queue what it says of itself.
pub(crate) async fn told(store: &Redis, keys: &QueueKeys) -> Result<Told> {
    let mut cmd = script::MEASURE_COUNTS.call(keys);
    cmd.arg(store.manual_now());
    let value = store.link.run("verify", Way::Door, keys.slot, &script::MEASURE_COUNTS, &cmd).await?;
    let mut reply = store.reply("verify", value)?;
    let (mark, bytes, kept) = (reply.text()?, reply.int()?, record::read_kept(&reply.bytes()?));
    let groups = reply.list()?;
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
    let groups = groups.chunks(2).filter_map(|pair| Some((text(pair.first()?), text(pair.get(1)?)))).collect();
    Ok(Told { mark, bytes, kept, groups })
}

/// Dead jobs of one group.
#[derive(Default)]
struct Group {
    count: u64,
    /// When the first and the last of them died, 16 digits each.
    died: Option<(String, String)>,
    kind: String,
}

impl Group {
    /// As a queue keeps it; what it died of only the queue knew.
    fn text(&self, told: Option<&String>) -> String {
        let rest = told.and_then(|told| told.get(42..));
        let (oldest, newest) = self.died.clone().unwrap_or_default();
        format!("{:010}{oldest:0>16}{newest:0>16}{}", self.count, rest.unwrap_or(&format!("{}\t…", self.kind)))
    }
}

/// What there is.
#[derive(Default)]
pub(crate) struct Counted {
    bytes: i64,
    kept: Option<(i64, i64)>,
    groups: BTreeMap<String, Group>,
}

impl Counted {
    pub(crate) fn of(all: &All) -> Self {
        let mut counted = Counted::default();
        for seen in all.values() {
            let Some(head) = &seen.head else {
                continue;
            };
            if seen.is_unfinished() {
                counted.bytes += head.bytes as i64;
            }
            if seen.done.is_some() {
                let (least, longest) = counted.kept.unwrap_or((head.keep, head.keep));
                counted.kept = Some((least.min(head.keep), longest.max(head.keep)));
            }
            let meta = seen.meta.as_deref().filter(|_| seen.dead.is_some()).unwrap_or_default();
            if let (Some(name), Some(known)) = (Meta::group_of(meta), Meta::read(meta)) {
                let group = counted.groups.entry(name.to_owned()).or_default();
                let moment = format!("{:016}", known.moved);
                let (oldest, newest) = group.died.take().unwrap_or((moment.clone(), moment.clone()));
                group.died = Some((oldest.min(moment.clone()), newest.max(moment)));
                group.kind = head.words.split(' ').next().unwrap_or_default().to_owned();
                group.count += 1;
            }
        }
        counted
    }

    /// What is not so as it is told.
    pub(crate) fn breaches(&self, told: &Told) -> Vec<(Rule, String)> {
        let mut broken = Vec::new();
        if told.bytes != self.bytes {
            let what = format!("{} bytes of args are counted as unfinished, and {} are", told.bytes, self.bytes);
            broken.push((Rule::Counts, what));
        }
        let covered = |(least, longest): (i64, i64)| told.kept.is_some_and(|kept| kept.0 <= least && kept.1 >= longest);
        if self.kept.is_some_and(|kept| !covered(kept)) {
            broken.push((Rule::Counts, "done jobs are kept for another time than is told".to_owned()));
        }
        for (name, count) in self.wrong_groups(told) {
            let counted = told.groups.get(name).and_then(|text| text.get(..10)).unwrap_or("0").trim_start_matches('0');
            let counted = if counted.is_empty() { "0" } else { counted };
            broken.push((Rule::Counts, format!("{counted} dead jobs are counted in group {name}, and {count} are")));
        }
        broken
    }

    /// Groups whose number is another than is told, and what it is.
    fn wrong_groups<'a>(&'a self, told: &'a Told) -> impl Iterator<Item = (&'a String, u64)> {
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
    for _ in 0..TRIES_MAX {
        let told = told(store, keys).await?;
        let counted = Counted::of(&look(store, keys).await?);
        let still = self::told(store, keys).await?.mark == told.mark;
        if still && (counted.breaches(&told).is_empty() || write(store, keys, &counted, &told).await?) {
            return Ok(());
        }
    }
    tracing::warn!(queue = %keys.queue, "too much moves to count anew; pause the queue and repair again");
    Ok(())
}

/// Answers whether the queue was still as it was counted.
async fn write(store: &Redis, keys: &QueueKeys, counted: &Counted, told: &Told) -> Result<bool> {
    let mut cmd = script::REPAIR_COUNTS.call(keys);
    let kept = counted.kept.map_or(String::new(), |(least, longest)| format!("{least:016}{longest:016}"));
    cmd.arg(store.manual_now()).arg(&told.mark).arg(counted.bytes).arg(kept);
    for (name, _) in counted.wrong_groups(told) {
        cmd.arg(name).arg(counted.groups.get(name).map_or(String::new(), |group| group.text(told.groups.get(name))));
    }
    let value = store.link.run("repair", Way::Door, keys.slot, &script::REPAIR_COUNTS, &cmd).await?;
    Ok(store.reply("repair", value)?.text()? == "yes")
}

/// How many jobs were seen, those of which something seems wrong, and what was counted.
pub(crate) struct Judged {
    pub(crate) jobs: u64,
    pub(crate) suspects: Vec<(JobId, crate::store::redis::maintenance::job_invariants::Seen)>,
    pub(crate) counted: Counted,
}
