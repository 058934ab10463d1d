//! Verifies and repairs cron rules: each rule has a check time at its tick, and claims get the first one of a queue.

use std::collections::BTreeMap;

use redis::Value;

use crate::clock::Micros;
use crate::error::Result;
use crate::store::Invariant;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::verify::{ENTRIES_PER_BATCH, scan_pairs};
use crate::store::redis::{Redis, cron, reply, script};

/// A violation of a cron rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CronViolation {
    pub(crate) invariant: Invariant,
    pub(crate) description: String,
    name: Vec<u8>,
    /// The observed text; empty if there is no such rule.
    stored_text: Vec<u8>,
    /// The correct check time.
    check_at: Option<Micros>,
}

/// Rules, their check times, and the first tick that claims get.
#[derive(Default)]
struct ObservedCrons {
    rules: BTreeMap<Vec<u8>, Vec<u8>>,
    ticks: BTreeMap<Vec<u8>, Micros>,
    announced_tick: Option<Micros>,
}

/// Finds violations of a queue's rules. Rule and tick change atomically, so a difference in two reads is a violation.
pub(crate) async fn find_violations(store: &Redis, keys: &QueueKeys) -> Result<Vec<CronViolation>> {
    let mut violations = check_rules(&observe_rules(store, keys).await?);
    if !violations.is_empty() {
        let repeated = check_rules(&observe_rules(store, keys).await?);
        violations.retain(|violation| repeated.contains(violation));
    }
    Ok(violations)
}

/// Repairs ticks. An unreadable rule is left for a version that can read it.
pub(crate) async fn repair_ticks(store: &Redis, keys: &QueueKeys) -> Result<()> {
    for violation in
        find_violations(store, keys).await?.iter().filter(|violation| violation.invariant == Invariant::CronTicks)
    {
        let mut cmd = script::REPAIR_TICK.call(keys);
        cmd.arg(store.manual_now()).arg(&violation.name[..]).arg(&violation.stored_text[..]);
        cmd.arg(violation.check_at.map_or(String::new(), |check_at| check_at.to_string()));
        // A rule that changed meanwhile was written with its tick.
        store.servers.run_script("repair", ConnectionRole::Client, keys.slot, &script::REPAIR_TICK, &cmd).await?;
    }
    Ok(())
}

async fn observe_rules(store: &Redis, keys: &QueueKeys) -> Result<ObservedCrons> {
    let mut observed = ObservedCrons::default();
    scan_pairs(store, keys, "HSCAN", &keys.cron, ENTRIES_PER_BATCH, |name, text| {
        drop(observed.rules.insert(name, text))
    })
    .await?;
    scan_pairs(store, keys, "ZSCAN", &keys.ticks, ENTRIES_PER_BATCH, |name, time| {
        observed.ticks.insert(name, reply::parse_number(&time));
    })
    .await?;
    let mut cmd = redis::cmd("HGET");
    cmd.arg(&keys.conf).arg("next_tick");
    if let Value::BulkString(tick) =
        store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await?
    {
        observed.announced_tick = Some(reply::parse_number(&tick));
    }
    Ok(observed)
}

/// Compares rules and ticks. No I/O.
fn check_rules(observed: &ObservedCrons) -> Vec<CronViolation> {
    let mut violations = Vec::new();
    let display = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    for (name, text) in &observed.rules {
        let tick = observed.ticks.get(name).copied();
        let mut add = |invariant, check_at, description: String| {
            violations.push(CronViolation {
                invariant,
                description,
                name: name.clone(),
                stored_text: text.clone(),
                check_at,
            });
        };
        match cron::decode_check_time(text) {
            None => add(Invariant::Readable, None, format!("cron rule {} is unreadable", display(name))),
            // A waiting tick is checked at intervals.
            Some((Some(_), true)) if tick.is_some() => {}
            Some((check_at, _)) if check_at == tick => {}
            Some((check_at, _)) => {
                add(
                    Invariant::CronTicks,
                    check_at,
                    format!("cron rule {} is not checked when its tick is due", display(name)),
                );
            }
        }
    }
    for name in observed.ticks.keys().filter(|name| !observed.rules.contains_key(*name)) {
        let description = format!("cron rule {} has a check time, but does not exist", display(name));
        violations.push(CronViolation {
            invariant: Invariant::CronTicks,
            description,
            name: name.clone(),
            stored_text: Vec::new(),
            check_at: None,
        });
    }
    let first_tick = observed.ticks.values().min().copied();
    if first_tick != observed.announced_tick {
        let description = format!("the first tick is at {first_tick:?}, but claims get {:?}", observed.announced_tick);
        violations.push(CronViolation {
            invariant: Invariant::CronTicks,
            description,
            name: Vec::new(),
            stored_text: Vec::new(),
            check_at: None,
        });
    }
    violations
}
