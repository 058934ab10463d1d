//! Verify and repair of cron rules: each is looked at when its tick is due, and claims are told of the first.

use std::collections::BTreeMap;

use redis::Value;

use crate::clock::Micros;
use crate::error::Result;
use crate::store::Invariant;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::verify::{ENTRIES_PER_STEP, scan_pairs};
use crate::store::redis::{Redis, cron, reply, script};

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CronViolation {
    pub(crate) invariant: Invariant,
    pub(crate) description: String,
    name: Vec<u8>,
    /// As it was seen; empty if there is none of this name.
    stored_text: Vec<u8>,
    /// When it should be looked at.
    check_at: Option<Micros>,
}

/// Rules, when each is looked at, and what claims are told.
#[derive(Default)]
struct ObservedCrons {
    rules: BTreeMap<Vec<u8>, Vec<u8>>,
    ticks: BTreeMap<Vec<u8>, Micros>,
    announced_tick: Option<Micros>,
}

/// What is wrong with the rules of a queue. Rule and tick are written in one step: what is so in two looks is no look between.
pub(crate) async fn find_violations(store: &Redis, keys: &QueueKeys) -> Result<Vec<CronViolation>> {
    let mut wrong = check_rules(&observe_rules(store, keys).await?);
    if !wrong.is_empty() {
        let again = check_rules(&observe_rules(store, keys).await?);
        wrong.retain(|one| again.contains(one));
    }
    Ok(wrong)
}

/// Puts right what is wrong and can be: a rule that cannot be read is left to who can.
pub(crate) async fn repair_ticks(store: &Redis, keys: &QueueKeys) -> Result<()> {
    for wrong in find_violations(store, keys).await?.iter().filter(|wrong| wrong.invariant == Invariant::CronTicks) {
        let mut cmd = script::REPAIR_TICK.call(keys);
        cmd.arg(store.manual_now()).arg(&wrong.name[..]).arg(&wrong.stored_text[..]);
        cmd.arg(wrong.check_at.map_or(String::new(), |look| look.to_string()));
        // One that has changed meanwhile was written whole.
        store.servers.run_script("repair", ConnectionRole::Client, keys.slot, &script::REPAIR_TICK, &cmd).await?;
    }
    Ok(())
}

async fn observe_rules(store: &Redis, keys: &QueueKeys) -> Result<ObservedCrons> {
    let mut seen = ObservedCrons::default();
    scan_pairs(store, keys, "HSCAN", &keys.cron, ENTRIES_PER_STEP, |name, text| drop(seen.rules.insert(name, text)))
        .await?;
    scan_pairs(store, keys, "ZSCAN", &keys.ticks, ENTRIES_PER_STEP, |name, at| {
        seen.ticks.insert(name, reply::parse_number(&at));
    })
    .await?;
    let mut cmd = redis::cmd("HGET");
    cmd.arg(&keys.conf).arg("next_tick");
    if let Value::BulkString(tick) =
        store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await?
    {
        seen.announced_tick = Some(reply::parse_number(&tick));
    }
    Ok(seen)
}

/// Pure.
fn check_rules(seen: &ObservedCrons) -> Vec<CronViolation> {
    let mut wrong = Vec::new();
    let shown = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    for (name, text) in &seen.rules {
        let is = seen.ticks.get(name).copied();
        let mut note = |rule, look, what: String| {
            wrong.push(CronViolation {
                invariant: rule,
                description: what,
                name: name.clone(),
                stored_text: text.clone(),
                check_at: look,
            });
        };
        match cron::decode_check_time(text) {
            None => note(Invariant::Readable, None, format!("cron rule {} cannot be read", shown(name))),
            // It waits for another job, and is looked at now and then.
            Some((Some(_), true)) if is.is_some() => {}
            Some((look, _)) if look == is => {}
            Some((look, _)) => {
                note(
                    Invariant::CronTicks,
                    look,
                    format!("cron rule {} is not looked at when its tick is due", shown(name)),
                );
            }
        }
    }
    for name in seen.ticks.keys().filter(|name| !seen.rules.contains_key(*name)) {
        let what = format!("cron rule {} is to be looked at, and is not there", shown(name));
        wrong.push(CronViolation {
            invariant: Invariant::CronTicks,
            description: what,
            name: name.clone(),
            stored_text: Vec::new(),
            check_at: None,
        });
    }
    let first = seen.ticks.values().min().copied();
    if first != seen.announced_tick {
        let what = format!("the first tick is at {first:?}, and claims are told {:?}", seen.announced_tick);
        wrong.push(CronViolation {
            invariant: Invariant::CronTicks,
            description: what,
            name: Vec::new(),
            stored_text: Vec::new(),
            check_at: None,
        });
    }
    wrong
}
