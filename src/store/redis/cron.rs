//! Cron rules: each rule lives with its queue, so that one operation pushes its jobs and advances its tick.
//!
//! A rule that changes its queue may change its server, which no single operation can do. It is handed over: first it
//! is marked in the old queue, with its new text, and stops firing; then it is put into the new queue; then the mark is
//! deleted. Any client that meets a leftover mark finishes the handover.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::keys::QueueKeys;
use super::reply::ScriptReply;
use super::{Redis, record, script};
use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::cron::CronRule;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::store::redis::conn::ConnectionRole;
use crate::store::{
    CRON_FIRINGS_MAX, CronFiring, CronFiringResult, CronPage, CronRecord, CronStore, DUE_CRONS_READ_MAX, DueCrons,
    FireCronsReply, OverlapWait, PutCron, PutCronResult, WAITING_TICK_RECHECK_INTERVAL,
};

/// Offset of the rule in its text, after format, revision, next and last tick, and two flags.
const HEADER_BYTES: usize = 51;

#[async_trait]
impl CronStore for Redis {
    async fn put_cron(&self, put: PutCron) -> Result<PutCronResult> {
        put_cron(self, &put).await
    }

    async fn remove_cron(&self, name: &str) -> Result<bool> {
        remove_cron(self, name).await
    }

    async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        cron(self, name).await
    }

    async fn crons(&self, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
        crons(self, queue, cursor).await
    }

    async fn due_crons(&self, queue: &str, freed: &[String]) -> Result<DueCrons> {
        due_crons(self, queue, freed).await
    }

    async fn confirm_ticks(&self, queue: &str, planned_at: SystemTime) -> Result<()> {
        confirm_ticks(self, queue, planned_at).await
    }

    async fn fire_crons(&self, queue: &str, fires: Vec<CronFiring>) -> Result<FireCronsReply> {
        fire_crons(self, queue, &fires).await
    }
}

/// Returns the time until a moment.
pub(super) fn duration_until(moment: Option<Micros>, now: Micros) -> Option<Duration> {
    moment.map(|moment| Duration::from_micros(u64::try_from(moment - now).unwrap_or(0)))
}

/// A rule in a queue.
enum QueueCronRule {
    Local(CronRecord),
    /// In a handover to another queue: the revision of the mark, and the new rule.
    HandingOver(u64, CronRecord),
}

fn encode_moment(moment: Option<std::time::SystemTime>) -> String {
    format!("{:016}", moment.map_or(0, record::clamp_moment))
}

fn encode_rule(record: &CronRecord) -> String {
    format!(
        "{}{:016}{}{}{}{}{}",
        char::from(record::RECORD_FORMAT),
        record.revision,
        encode_moment(record.next),
        encode_moment(record.last),
        u8::from(record.paused),
        u8::from(record.waiting),
        record.rule.to_json()
    )
}

/// Encodes the mark of a rule that is handed over to another queue.
fn encode_handover(record: &CronRecord) -> String {
    let text = encode_rule(record);
    format!("{}g0{text}", &text[..HEADER_BYTES - 2])
}

/// Decodes a rule; returns `None` if it is corrupted or was written by a newer version.
fn decode_rule(text: &[u8]) -> Option<QueueCronRule> {
    let rule = std::str::from_utf8(text).ok().and_then(parse);
    if rule.is_none() {
        tracing::error!("a cron rule is unreadable: it is corrupted or was written by a newer duly; run `duly verify`");
    }
    rule
}

fn parse(text: &str) -> Option<QueueCronRule> {
    let (head, rest) = text.split_at_checked(HEADER_BYTES)?;
    let bytes = head.as_bytes();
    if bytes.first() != Some(&record::RECORD_FORMAT) || !head.is_ascii() {
        return None;
    }
    let number = |from: usize| head[from..from + 16].parse::<i64>().ok();
    let moment = |from: usize| number(from).map(|micros| (micros != 0).then(|| from_micros(micros)));
    let revision = number(1)?.unsigned_abs();
    if bytes[49] == b'g' {
        return match parse(rest)? {
            QueueCronRule::Local(record) => Some(QueueCronRule::HandingOver(revision, record)),
            QueueCronRule::HandingOver(..) => None,
        };
    }
    let mut record = CronRecord::new(CronRule::from_json(rest)?, revision, moment(17)?);
    (record.paused, record.waiting, record.last) = (bytes[49] == b'1', bytes[50] == b'1', moment(33)?);
    Some(QueueCronRule::Local(record))
}

/// Implements `CronStore::put_cron`.
pub(super) async fn put_cron(store: &Redis, change: &PutCron) -> Result<PutCronResult> {
    let record = &change.record;
    let keys = store.register_queue("put_cron", &record.rule.queue).await?;
    match find_rule(store, "put_cron", &record.rule.name).await? {
        Some((old, _)) if old.queue != keys.queue => hand_over(store, &old, change).await,
        _ => {
            put_in_queue(
                store,
                &keys,
                &record.rule.name,
                change.expected_revision,
                &encode_rule(record),
                check_time(record),
            )
            .await
        }
    }
}

/// Returns when to check the rule with this text, and whether its tick waits; `None` if it is unreadable.
pub(super) fn decode_check_time(text: &[u8]) -> Option<(Option<Micros>, bool)> {
    match decode_rule(text)? {
        QueueCronRule::Local(record) => Some((check_time(&record), record.waiting)),
        QueueCronRule::HandingOver(_, record) => Some((check_time(&record), false)),
    }
}

/// Returns when to check a rule.
fn check_time(record: &CronRecord) -> Option<Micros> {
    record.next.filter(|_| !record.paused).map(record::clamp_moment)
}

async fn put_in_queue(
    store: &Redis,
    keys: &QueueKeys,
    name: &str,
    expected_revision: Option<u64>,
    text: &str,
    check_time: Option<Micros>,
) -> Result<PutCronResult> {
    let mut cmd = script::PUT_CRON.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(name);
    cmd.arg(expected_revision.map_or(String::new(), |expected_revision| format!("{expected_revision:016}"))).arg(text);
    cmd.arg(check_time.map_or(String::new(), |check_time| check_time.to_string()));
    let value = store.send_replicated("put_cron", keys, Some(&script::PUT_CRON), &[cmd]).await?;
    Ok(match store.parse_reply("put_cron", value)?.text()?.as_str() {
        "yes" => PutCronResult::Applied,
        "moving" => PutCronResult::Moving,
        _ => PutCronResult::Stale,
    })
}

/// Hands a rule over from its queue to another.
async fn hand_over(store: &Redis, old: &Arc<QueueKeys>, change: &PutCron) -> Result<PutCronResult> {
    let (record, name) = (&change.record, &change.record.rule.name);
    let old_rule = match find_in_queue(store, "put_cron", old, name).await? {
        Some((_, QueueCronRule::Local(old_rule))) => old_rule,
        // The new queue is being transferred: the rule waits here until that is done.
        Some((_, QueueCronRule::HandingOver(..))) => return Ok(PutCronResult::Moving),
        None => return Ok(PutCronResult::Stale),
    };
    let marked =
        put_in_queue(store, old, name, change.expected_revision, &encode_handover(record), check_time(record)).await?;
    if marked != PutCronResult::Applied {
        return Ok(marked);
    }
    // Until the rule arrives it fires nowhere: an error must not suggest that nothing has changed.
    let put_result = put_in_target_queue(store, record).await;
    if matches!(put_result, Ok(PutCronResult::Moving) | Err(Error::Store { .. })) {
        // It cannot go there now, so the old rule is restored.
        let restored = CronRecord { revision: record.revision + 1, ..old_rule };
        let restore_result =
            put_in_queue(store, old, name, Some(record.revision), &encode_rule(&restored), check_time(&restored)).await;
        // Another client may have finished the handover meanwhile.
        return match restore_result.map_err(Error::into_unknown)? {
            PutCronResult::Applied => put_result,
            _ => put_result.map_err(Error::into_unknown),
        };
    }
    put_result.map_err(Error::into_unknown)?;
    // If the mark is gone, another client has finished the handover.
    remove_from_queue(store, old, name, Some(record.revision)).await.map_err(Error::into_unknown)?;
    Ok(PutCronResult::Applied)
}

fn local_rule((keys, rule): (Arc<QueueKeys>, QueueCronRule)) -> Option<(Arc<QueueKeys>, CronRecord)> {
    match rule {
        QueueCronRule::Local(record) => Some((keys, record)),
        QueueCronRule::HandingOver(..) => None,
    }
}

/// Puts a rule into its new queue. If it exists there, another client has finished the handover, and it may have fired.
async fn put_in_target_queue(store: &Redis, record: &CronRecord) -> Result<PutCronResult> {
    let keys = store.register_queue("put_cron", &record.rule.queue).await?;
    put_in_queue(store, &keys, &record.rule.name, None, &encode_rule(record), check_time(record)).await
}

/// Finishes a handover that was interrupted: puts the rule into its new queue and deletes the mark.
async fn finish_handover(store: &Redis, old: &Arc<QueueKeys>, mark: u64, record: &CronRecord) -> Result<PutCronResult> {
    let name = &record.rule.name;
    let put_result = put_in_target_queue(store, record).await?;
    if put_result == PutCronResult::Moving || remove_from_queue(store, old, name, Some(mark)).await? {
        return Ok(put_result);
    }
    // The mark is gone: another client finished the handover, or the rule was restored. It must not be in both queues.
    let is_restored = find_in_queue(store, "put_cron", old, name).await?.and_then(local_rule).is_some();
    if put_result == PutCronResult::Applied && is_restored {
        remove_from_queue(store, &store.keys(&record.rule.queue), name, Some(record.revision)).await?;
    }
    Ok(put_result)
}

/// Finishes several handovers within a timeout. The rest is met again, and other rules fire meanwhile.
async fn finish_handovers(store: &Redis, old: &Arc<QueueKeys>, handovers: &[(u64, CronRecord)]) {
    let finishing = handovers.iter().map(async |(mark, record)| {
        if let Err(error) = finish_handover(store, old, *mark, record).await {
            let rule = &record.rule;
            tracing::warn!(name = rule.name, queue = rule.queue, %error, "cannot hand a cron rule over to its queue yet");
        }
    });
    if tokio::time::timeout(HANDOVER_TIMEOUT, futures_util::future::join_all(finishing)).await.is_err() {
        tracing::warn!(queue = %old.queue, "timed out handing cron rules over to their queues; retrying later");
    }
}

async fn remove_from_queue(store: &Redis, keys: &QueueKeys, name: &str, revision: Option<u64>) -> Result<bool> {
    let mut cmd = script::REMOVE_CRON.call(keys);
    cmd.arg(store.manual_now()).arg(name).arg(revision.map_or(String::new(), |revision| format!("{revision:016}")));
    let value = store.send_replicated("remove_cron", keys, Some(&script::REMOVE_CRON), &[cmd]).await?;
    Ok(store.parse_reply("remove_cron", value)?.int()? == 1)
}

/// Implements `CronStore::remove_cron`: removes the rule from all queues. A rule that is being handed over right now
/// may reappear, because the client that finishes the handover has read it before.
pub(super) async fn remove_cron(store: &Redis, name: &str) -> Result<bool> {
    let mut removed = false;
    for queue in store.queue_names("remove_cron").await? {
        let result = remove_from_queue(store, &store.keys(&queue), name, None).await;
        removed |= result.map_err(|error| if removed { error.into_unknown() } else { error })?;
    }
    Ok(removed)
}

/// Implements `CronStore::cron`.
pub(super) async fn cron(store: &Redis, name: &str) -> Result<Option<CronRecord>> {
    Ok(find_rule(store, "cron", name).await?.map(|(_, record)| record))
}

/// Finds a rule in all queues. Finishes a handover first. If the same name was created in two queues at once, the rule
/// with the greater revision stays.
async fn find_rule(store: &Redis, op: &'static str, name: &str) -> Result<Option<(Arc<QueueKeys>, CronRecord)>> {
    let mut found: Option<(Arc<QueueKeys>, CronRecord)> = None;
    for (keys, rule) in find_in_all_queues(store, op, name).await? {
        let (keys, record) = match rule {
            QueueCronRule::Local(record) => (keys, record),
            QueueCronRule::HandingOver(mark, record) => {
                let put_result = finish_handover(store, &keys, mark, &record).await?;
                let new_keys = store.keys(&record.rule.queue);
                match find_in_queue(store, op, &new_keys, name).await?.and_then(local_rule) {
                    Some(new_keys) => new_keys,
                    // It waits in the old queue until the transfer of the new one is done.
                    None if put_result == PutCronResult::Moving => (keys, record),
                    None => continue,
                }
            }
        };
        match &found {
            Some((other, newer)) if other.queue != keys.queue && newer.revision >= record.revision => {
                remove_from_queue(store, &keys, name, Some(record.revision)).await?;
            }
            Some((other, older)) if other.queue != keys.queue => {
                remove_from_queue(store, other, name, Some(older.revision)).await?;
                found = Some((keys, record));
            }
            _ => found = Some((keys, record)),
        }
    }
    Ok(found)
}

async fn find_in_all_queues(
    store: &Redis,
    op: &'static str,
    name: &str,
) -> Result<Vec<(Arc<QueueKeys>, QueueCronRule)>> {
    let keys: Vec<Arc<QueueKeys>> = store.queue_names(op).await?.iter().map(|queue| store.keys(queue)).collect();
    let requests = keys.iter().map(|keys| find_in_queue(store, op, keys, name));
    let mut found = Vec::new();
    for result in futures_util::future::join_all(requests).await {
        found.extend(result?);
    }
    Ok(found)
}

async fn find_in_queue(
    store: &Redis,
    op: &'static str,
    keys: &Arc<QueueKeys>,
    name: &str,
) -> Result<Option<(Arc<QueueKeys>, QueueCronRule)>> {
    let (_, found) = read_rules(store, op, keys, name, "0").await?;
    Ok(found.into_iter().next().map(|rule| (keys.clone(), rule)))
}

/// Reads one rule of a queue, or a part of all rules; returns the next cursor too.
async fn read_rules(
    store: &Redis,
    op: &'static str,
    keys: &QueueKeys,
    name: &str,
    cursor: &str,
) -> Result<(String, Vec<QueueCronRule>)> {
    let mut cmd = script::CRONS.call(keys);
    cmd.arg(store.manual_now()).arg(name).arg(cursor);
    let mut reply = store.run_script(op, ConnectionRole::Client, keys.slot, &script::CRONS, &cmd).await?;
    let cursor = reply.text()?;
    Ok((cursor, reply.list()?.iter().flatten().filter_map(|text| decode_rule(text)).collect()))
}

/// Implements `CronStore::crons`, queue by queue. A cursor is a queue and the position in it.
pub(super) async fn crons(store: &Redis, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
    let invalid = || Error::invalid("cursor", "is not from a list of cron rules; use the cursor of the previous page");
    let (from, mut position) = match cursor {
        Some(cursor) => cursor.split_once(' ').ok_or_else(invalid)?,
        None => ("", "0"),
    };
    if !position.bytes().all(|byte| byte.is_ascii_digit()) || position.is_empty() {
        return Err(invalid());
    }
    let mut queues = store.queue_names("crons").await?;
    queues.retain(|name| name.as_str() >= from && queue.is_none_or(|queue| queue == name));
    for (index, name) in queues.iter().enumerate() {
        let position = std::mem::replace(&mut position, "0");
        let (next, rules) =
            read_rules(store, "crons", &store.keys(name), "", if name == from { position } else { "0" }).await?;
        let next = match next.as_str() {
            "0" => queues.get(index + 1).map(|name| format!("{name} 0")),
            next => Some(format!("{name} {next}")),
        };
        // A rule in a handover is listed as its new version.
        let into_record = |(QueueCronRule::Local(record) | QueueCronRule::HandingOver(_, record))| record;
        if !rules.is_empty() || next.is_none() {
            return Ok(CronPage { rules: rules.into_iter().map(into_record).collect(), next_cursor: next });
        }
    }
    Ok(CronPage::default())
}

/// Maximum time that handovers may delay other due rules.
const HANDOVER_TIMEOUT: Duration = Duration::from_millis(500);

/// Implements `CronStore::due_crons`.
pub(super) async fn due_crons(store: &Redis, queue: &str, freed: &[String]) -> Result<DueCrons> {
    let keys = store.keys(queue);
    let (mut rules, mut handovers, mut freed_rules, mut skipped) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut reply;
    loop {
        let mut cmd = script::DUE_CRONS.call(&*keys);
        cmd.arg(store.manual_now()).arg(CRON_FIRINGS_MAX).arg(skipped).arg(if skipped == 0 { freed } else { &[] });
        reply = store.run_script("due_crons", ConnectionRole::BulkRead, keys.slot, &script::DUE_CRONS, &cmd).await?;
        let texts = reply.list()?;
        let mut unreadable = texts.len();
        for rule in texts.iter().flatten().filter_map(|text| decode_rule(text)) {
            unreadable -= 1;
            match rule {
                QueueCronRule::Local(record) => rules.push(record),
                QueueCronRule::HandingOver(mark, record) => handovers.push((mark, record)),
            }
        }
        let local = |text: &Vec<u8>| local_rule((keys.clone(), decode_rule(text)?)).map(|(_, record)| record);
        freed_rules.extend(reply.list()?.iter().flatten().filter_map(local));
        skipped += texts.len();
        // Rules that cannot be read stay due. They must not keep the others from firing.
        let is_full = rules.len() + handovers.len() >= CRON_FIRINGS_MAX;
        if unreadable == 0 || is_full || skipped >= DUE_CRONS_READ_MAX {
            break;
        }
    }
    rules.extend(freed_rules);
    rules.truncate(CRON_FIRINGS_MAX);
    if !handovers.is_empty() {
        finish_handovers(store, &keys, &handovers).await;
    }
    let next_tick = duration_until(reply.optional_int()?, reply.now);
    let planned_at = reply.optional_int()?.map(from_micros);
    Ok(DueCrons { rules, now: from_micros(reply.now), next_tick, planned_at })
}

/// Implements `CronStore::confirm_ticks`.
pub(super) async fn confirm_ticks(store: &Redis, queue: &str, planned_at: SystemTime) -> Result<()> {
    let keys = store.keys(queue);
    let mut cmd = script::CONFIRM_TICKS.call(&*keys);
    cmd.arg(store.manual_now()).arg(encode_moment(Some(planned_at)));
    store.run_script("confirm_ticks", ConnectionRole::Client, keys.slot, &script::CONFIRM_TICKS, &cmd).await.map(drop)
}

/// Implements `CronStore::fire_crons`.
pub(super) async fn fire_crons(store: &Redis, queue: &str, firings: &[CronFiring]) -> Result<FireCronsReply> {
    if firings.len() > CRON_FIRINGS_MAX {
        return Err(Error::invalid("firings", format!("at most {CRON_FIRINGS_MAX} rules in one request")));
    }
    let keys = store.keys(queue);
    let mut cmd = script::FIRE_CRONS.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(micros(WAITING_TICK_RECHECK_INTERVAL));
    let now = Redis::now(store);
    for firing in firings {
        let overlap_code = match firing.overlap_wait {
            OverlapWait::Never => "n",
            OverlapWait::WhileRunning => "r",
            OverlapWait::WhileUnfinished => "t",
        };
        cmd.arg(&firing.name).arg(format!("{:016}", firing.revision)).arg(encode_moment(Some(firing.tick)));
        cmd.arg(encode_moment(firing.next)).arg(encode_moment(firing.last)).arg(overlap_code).arg(firing.jobs.len());
        for job in &firing.jobs {
            let due = due_micros(job);
            cmd.arg(job.id.as_bytes()).arg(record::encode_push(job, now, due.map_or(now, |due| due.max(now))));
            cmd.arg(due.map_or(String::new(), |due| due.to_string()));
            cmd.arg(record::encode_due_ticket(job.id, job.priority, None, &job.kind, &job.tags))
                .arg(job.unique.as_deref().unwrap_or(""));
        }
    }
    let value = store.send_replicated("fire_crons", &keys, Some(&script::FIRE_CRONS), &[cmd]).await?;
    let mut reply = store.parse_reply("fire_crons", value)?;
    let rows = reply.rows()?;
    let results =
        firings.iter().zip(rows).map(|(firing, row)| parse_firing_result(firing, row)).collect::<Result<_>>()?;
    Ok(FireCronsReply { results, next_tick: duration_until(reply.optional_int()?, reply.now) })
}

fn due_micros(job: &Push) -> Option<Micros> {
    match job.due {
        Due::At(moment) => Some(to_micros(moment).clamp(0, 2 * record::DELAY_MAX)),
        // The jobs of a tick have absolute due times.
        Due::Now | Due::After(_) => None,
    }
}

fn parse_firing_result(firing: &CronFiring, mut row: ScriptReply) -> Result<CronFiringResult> {
    let outcome = row.text()?;
    let holders = row.list()?;
    let holder = |index: usize| holders.get(index).and_then(|id| id.as_deref()).and_then(super::reply::parse_job_id);
    Ok(match (outcome.as_str(), holder(0)) {
        ("yes", _) => {
            let pushed =
                |(index, job): (usize, &Push)| holder(index).map_or(PushResult::New(job.id), PushResult::Existing);
            CronFiringResult::Fired(firing.jobs.iter().enumerate().map(pushed).collect())
        }
        ("full", _) => CronFiringResult::QueueFull,
        ("waiting", Some(holder)) => CronFiringResult::Waiting(holder),
        _ => CronFiringResult::Stale,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rules_round_trip_as_text(revision in 0u64..9_999_999_999_999_999, next in proptest::option::of(1i64..4_000_000_000_000_000),
                                    last in proptest::option::of(1i64..4_000_000_000_000_000), paused: bool, waiting: bool) {
            let rule = CronRule::new("r", "* * * * *", Push::new("mail", "{}")).expect("a rule");
            let mut record = CronRecord::new(rule, revision, next.map(from_micros));
            (record.paused, record.waiting, record.last) = (paused, waiting, last.map(from_micros));
            prop_assert!(matches!(decode_rule(encode_rule(&record).as_bytes()), Some(QueueCronRule::Local(decoded)) if decoded == record));
            prop_assert!(matches!(decode_rule(encode_handover(&record).as_bytes()), Some(QueueCronRule::HandingOver(mark, decoded)) if decoded == record && mark == revision));
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120), text in "1[0-9]{48}[01g][01].{0,80}") {
            let _ = (decode_rule(&bytes), decode_rule(text.as_bytes()));
        }
    }
}
