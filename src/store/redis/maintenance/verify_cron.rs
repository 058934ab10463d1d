//! Verify and repair of cron rules: each is looked at when its tick is due, and claims are told of the first.

use std::collections::BTreeMap;

use redis::Value;

use crate::clock::Micros;
use crate::error::Result;
use crate::store::Rule;
use crate::store::redis::conn::Way;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::verify::{STEP, each_pair};
use crate::store::redis::{Redis, cron, reply, script};

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) rule: Rule,
    pub(crate) what: String,
    name: Vec<u8>,
    /// As it was seen; empty if there is none of this name.
    text: Vec<u8>,
    /// When it should be looked at.
    look: Option<Micros>,
}

/// Rules, when each is looked at, and what claims are told.
#[derive(Default)]
struct Seen {
    rules: BTreeMap<Vec<u8>, Vec<u8>>,
    ticks: BTreeMap<Vec<u8>, Micros>,
    told: Option<Micros>,
}

/// What is wrong with the rules of a queue. Rule and tick are written in one step: what is so in two looks is no look between.
pub(crate) async fn wrong(store: &Redis, keys: &QueueKeys) -> Result<Vec<Wrong>> {
    let mut wrong = judge(&look(store, keys).await?);
    if !wrong.is_empty() {
        let again = judge(&look(store, keys).await?);
        wrong.retain(|one| again.contains(one));
    }
    Ok(wrong)
}

/// Puts right what is wrong and can be: a rule that cannot be read is left to who can.
pub(crate) async fn repair(store: &Redis, keys: &QueueKeys) -> Result<()> {
    for wrong in wrong(store, keys).await?.iter().filter(|wrong| wrong.rule == Rule::Ticks) {
        let mut cmd = script::REPAIR_TICK.call(keys);
        cmd.arg(store.manual_now()).arg(&wrong.name[..]).arg(&wrong.text[..]);
        cmd.arg(wrong.look.map_or(String::new(), |look| look.to_string()));
        // One that has changed meanwhile was written whole.
        store.link.run("repair", Way::Door, keys.slot, &script::REPAIR_TICK, &cmd).await?;
    }
    Ok(())
}

async fn look(store: &Redis, keys: &QueueKeys) -> Result<Seen> {
    let mut seen = Seen::default();
    each_pair(store, keys, "HSCAN", &keys.cron, STEP, |name, text| drop(seen.rules.insert(name, text))).await?;
    each_pair(store, keys, "ZSCAN", &keys.ticks, STEP, |name, at| {
        seen.ticks.insert(name, reply::number(&at));
    })
    .await?;
    let mut cmd = redis::cmd("HGET");
    cmd.arg(&keys.conf).arg("next_tick");
    if let Value::BulkString(tick) = store.link.ask("verify", Way::Door, keys.slot, &cmd).await? {
        seen.told = Some(reply::number(&tick));
    }
    Ok(seen)
}

/// Pure.
fn judge(seen: &Seen) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    for (name, text) in &seen.rules {
        let is = seen.ticks.get(name).copied();
        let mut note = |rule, look, what: String| {
            wrong.push(Wrong { rule, what, name: name.clone(), text: text.clone(), look });
        };
        match cron::look_of(text) {
            None => note(Rule::Readable, None, format!("cron rule {} cannot be read", shown(name))),
            // It waits for another job, and is looked at now and then.
            Some((Some(_), true)) if is.is_some() => {}
            Some((look, _)) if look == is => {}
            Some((look, _)) => {
                note(Rule::Ticks, look, format!("cron rule {} is not looked at when its tick is due", shown(name)));
            }
        }
    }
    for name in seen.ticks.keys().filter(|name| !seen.rules.contains_key(*name)) {
        let what = format!("cron rule {} is to be looked at, and is not there", shown(name));
        wrong.push(Wrong { rule: Rule::Ticks, what, name: name.clone(), text: Vec::new(), look: None });
    }
    let first = seen.ticks.values().min().copied();
    if first != seen.told {
        let what = format!("the first tick is at {first:?}, and claims are told {:?}", seen.told);
        wrong.push(Wrong { rule: Rule::Ticks, what, name: Vec::new(), text: Vec::new(), look: None });
    }
    wrong
}
