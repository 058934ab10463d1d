//! What is counted in a queue, against what is there: only if nothing has moved between the first look and the last.

use std::collections::BTreeMap;

use redis::Value;

use super::Redis;
use super::keys::QueueKeys;
use super::link::Way;
use super::record::Meta;
use super::verify::{All, look};
use crate::error::{Error, Result};
use crate::store::Rule;

/// How many dead jobs are in which group.
type Groups = BTreeMap<Vec<u8>, u64>;

/// Counts as they are kept, and as they should be.
#[derive(Debug)]
pub(super) struct Counted {
    /// Bytes of args of unfinished jobs.
    bytes: (i64, i64),
    groups: (Groups, Groups),
}

impl Counted {
    /// Which rules are broken, and how.
    pub(super) fn broken(&self) -> Vec<(Rule, String)> {
        let mut broken = Vec::new();
        let (kept, real) = self.bytes;
        if kept != real {
            broken.push((Rule::Counts, format!("{kept} bytes of args are counted, and {real} are there")));
        }
        for (group, kept, real) in self.wrong_groups() {
            let group = String::from_utf8_lossy(group);
            broken.push((Rule::Counts, format!("{kept} dead jobs are counted in group {group}, and {real} are in it")));
        }
        broken
    }

    fn wrong_groups(&self) -> Vec<(&Vec<u8>, u64, u64)> {
        let (kept, real) = &self.groups;
        let names: std::collections::BTreeSet<_> = kept.keys().chain(real.keys()).collect();
        let of = |groups: &Groups, name: &Vec<u8>| groups.get(name).copied().unwrap_or(0);
        let all = names.into_iter().map(|name| (name, of(kept, name), of(real, name)));
        all.filter(|(_, kept, real)| kept != real).collect()
    }

    /// Puts the counts right. By the difference, so that what is counted meanwhile counts too.
    pub(super) async fn mend(&self, store: &Redis, keys: &QueueKeys) -> Result<()> {
        let ask = |cmd: redis::Cmd| async move { store.link.ask("repair", Way::Door, keys.slot, &cmd).await };
        let (kept, real) = self.bytes;
        if kept != real {
            let mut cmd = redis::cmd("HINCRBY");
            cmd.arg(&keys.conf).arg("bytes").arg(real - kept);
            ask(cmd).await?;
        }
        for (group, kept, real) in self.wrong_groups() {
            let mut cmd = redis::cmd("HGET");
            cmd.arg(&keys.groups).arg(group);
            let known = match ask(cmd).await? {
                Value::BulkString(known) if real > 0 && kept > 0 => known,
                // What it was is not known any more: its jobs stay dead, and in no group that can be shown.
                _ => {
                    let mut cmd = redis::cmd("HDEL");
                    cmd.arg(&keys.groups).arg(group);
                    ask(cmd).await?;
                    continue;
                }
            };
            let mut cmd = redis::cmd("HSET");
            let rest = known.get(COUNT_DIGITS..).unwrap_or_default();
            cmd.arg(&keys.groups).arg(group).arg([format!("{real:010}").as_bytes(), rest].concat());
            ask(cmd).await?;
        }
        Ok(())
    }
}

/// Digits of the count that a group begins with.
const COUNT_DIGITS: usize = 10;

/// All of a queue; and what is counted of it, if nothing has moved meanwhile.
pub(super) async fn look_and_count(store: &Redis, keys: &QueueKeys) -> Result<(All, Option<Counted>)> {
    let before = stamp(store, keys).await?;
    let all = look(store, keys).await?;
    let groups = groups(store, keys).await?;
    if stamp(store, keys).await? != before {
        return Ok((all, None));
    }
    let unfinished = all.values().filter(|seen| seen.is_unfinished()).filter_map(|seen| seen.head.as_ref());
    let real = unfinished.map(|head| head.bytes as i64).sum();
    let kept = before.first().and_then(Option::as_deref).map_or(0, super::reply::number);
    let mut real_groups = Groups::new();
    for seen in all.values().filter(|seen| seen.dead.is_some() && seen.head.is_some()) {
        if let Some(group) = seen.meta.as_deref().and_then(Meta::group_of) {
            *real_groups.entry(group.into()).or_default() += 1;
        }
    }
    // A group whose text is lost cannot be told of: what is left of it are letters behind a job.
    real_groups.retain(|name, _| groups.contains_key(name));
    Ok((all, Some(Counted { bytes: (kept, real), groups: (groups, real_groups) })))
}

/// What changes with every push, claim, settle, edit and removal.
async fn stamp(store: &Redis, keys: &QueueKeys) -> Result<Vec<Option<Vec<u8>>>> {
    let mut conf = redis::cmd("HMGET");
    conf.arg(&keys.conf).arg("bytes").arg("fence");
    let strange =
        |e| Error::Store { op: "verify", reason: "conf is not of its kind".into(), source: Some(Box::new(e)) };
    let conf = store.link.ask("verify", Way::Door, keys.slot, &conf).await?;
    let mut stamp: Vec<Option<Vec<u8>>> = redis::from_redis_value(conf).map_err(strange)?;
    let sizes = [
        ("HLEN", &keys.job),
        ("HLEN", &keys.held),
        ("ZCARD", &keys.done),
        ("ZCARD", &keys.dead),
        ("SCARD", &keys.gone[0]),
        ("SCARD", &keys.gone[1]),
    ];
    for (command, key) in sizes {
        let mut cmd = redis::cmd(command);
        cmd.arg(key);
        let size = match store.link.ask("verify", Way::Door, keys.slot, &cmd).await? {
            Value::Int(size) => size,
            _ => -1,
        };
        stamp.push(Some(size.to_string().into_bytes()));
    }
    Ok(stamp)
}

async fn groups(store: &Redis, keys: &QueueKeys) -> Result<Groups> {
    let mut cmd = redis::cmd("HGETALL");
    cmd.arg(&keys.groups);
    let strange =
        |e| Error::Store { op: "verify", reason: "groups is not of its kind".into(), source: Some(Box::new(e)) };
    let all = store.link.ask("verify", Way::Door, keys.slot, &cmd).await?;
    let all: Vec<(Vec<u8>, Vec<u8>)> = redis::from_redis_value(all).map_err(strange)?;
    let count = |text: &[u8]| u64::try_from(super::reply::number(text.get(..COUNT_DIGITS).unwrap_or_default()));
    Ok(all.into_iter().map(|(group, text)| (group, count(&text).unwrap_or(0))).collect())
}
