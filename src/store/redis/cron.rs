//! Cron rules on a server: each lives with its queue, so that its jobs are pushed in the step that moves its tick.
//!
//! A rule that changes its queue may change its server, which no single step can do. It is handed over: where it was it is marked
//! as going, with what it will be, and fires no more; then it is put where it goes; then the mark is deleted.
//! Whoever meets a mark that was left behind finishes the way.

use std::sync::Arc;
use std::time::Duration;

use super::keys::QueueKeys;
use super::reply::ScriptReply;
use super::{Redis, record, script};
use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::cron::CronRule;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::store::redis::conn::ConnectionRole;
use crate::store::{
    CRON_FIRINGS_MAX, CronFiring, CronFiringResult, CronPage, CronRecord, DueCrons, FireCronsReply, OverlapWait,
    PutCron, PutCronResult, WAITING_TICK_RECHECK_INTERVAL,
};

/// Where the rule itself begins in its text, behind format, revision, next and last tick, and two flags.
const HEADER_BYTES: usize = 51;

/// How long it is until a moment.
pub(super) fn duration_until(at: Option<Micros>, now: Micros) -> Option<Duration> {
    at.map(|at| Duration::from_micros(u64::try_from(at - now).unwrap_or(0)))
}

/// A rule as a queue has it.
enum QueueCronRule {
    Local(CronRecord),
    /// On its way to another queue: the revision of the mark, and what the rule will be.
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

/// The text of a rule that goes to another queue.
fn encode_handover(record: &CronRecord) -> String {
    let text = encode_rule(record);
    format!("{}g0{text}", &text[..HEADER_BYTES - 2])
}

/// `None` for a rule that a newer version has written, or that is damaged.
fn decode_rule(text: &[u8]) -> Option<QueueCronRule> {
    let kept = std::str::from_utf8(text).ok().and_then(parse);
    if kept.is_none() {
        tracing::error!("a cron rule this version of duly cannot read; a newer one may");
    }
    kept
}

fn parse(text: &str) -> Option<QueueCronRule> {
    let (head, rest) = text.split_at_checked(HEADER_BYTES)?;
    let bytes = head.as_bytes();
    if bytes.first() != Some(&record::RECORD_FORMAT) || !head.is_ascii() {
        return None;
    }
    let number = |from: usize| head[from..from + 16].parse::<i64>().ok();
    let moment = |from: usize| number(from).map(|at| (at != 0).then(|| from_micros(at)));
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

/// `put_cron` of the contract.
pub(super) async fn put_cron(store: &Redis, put: &PutCron) -> Result<PutCronResult> {
    let record = &put.record;
    let keys = store.register_queue("put_cron", &record.rule.queue).await?;
    match find_rule(store, "put_cron", &record.rule.name).await? {
        Some((old, _)) if old.queue != keys.queue => hand_over(store, &old, put).await,
        _ => {
            put_in_queue(
                store,
                &keys,
                &record.rule.name,
                put.expected_revision,
                &encode_rule(record),
                check_time(record),
            )
            .await
        }
    }
}

/// When to look at a rule of which this is the text, and whether its tick is held back; `None` if it cannot be read.
pub(super) fn decode_check_time(text: &[u8]) -> Option<(Option<Micros>, bool)> {
    match decode_rule(text)? {
        QueueCronRule::Local(record) => Some((check_time(&record), record.waiting)),
        QueueCronRule::HandingOver(_, record) => Some((check_time(&record), false)),
    }
}

/// When to look at a rule.
fn check_time(record: &CronRecord) -> Option<Micros> {
    record.next.filter(|_| !record.paused).map(record::clamp_moment)
}

async fn put_in_queue(
    store: &Redis,
    keys: &QueueKeys,
    name: &str,
    was: Option<u64>,
    text: &str,
    look: Option<Micros>,
) -> Result<PutCronResult> {
    let mut cmd = script::PUT_CRON.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(name);
    cmd.arg(was.map_or(String::new(), |was| format!("{was:016}"))).arg(text);
    cmd.arg(look.map_or(String::new(), |look| look.to_string()));
    let value = store.send_replicated("put_cron", keys, Some(&script::PUT_CRON), &[cmd]).await?;
    Ok(match store.parse_reply("put_cron", value)?.text()?.as_str() {
        "yes" => PutCronResult::Applied,
        "moving" => PutCronResult::Moving,
        _ => PutCronResult::Stale,
    })
}

/// Takes a rule from the queue that it is in to another.
async fn hand_over(store: &Redis, old: &Arc<QueueKeys>, put: &PutCron) -> Result<PutCronResult> {
    let (record, name) = (&put.record, &put.record.rule.name);
    let before = match find_in_queue(store, "put_cron", old, name).await? {
        Some((_, QueueCronRule::Local(before))) => before,
        // Where it goes is moving: it waits here until that has been done.
        Some((_, QueueCronRule::HandingOver(..))) => return Ok(PutCronResult::Moving),
        None => return Ok(PutCronResult::Stale),
    };
    let marked =
        put_in_queue(store, old, name, put.expected_revision, &encode_handover(record), check_time(record)).await?;
    if marked != PutCronResult::Applied {
        return Ok(marked);
    }
    // Until it is there it fires nowhere: who is told of an error must not think that nothing has changed.
    let arrived = put_in_target_queue(store, record).await;
    if matches!(arrived, Ok(PutCronResult::Moving) | Err(Error::Store { .. })) {
        // It cannot go there now: it stays as it was.
        let back = CronRecord { revision: record.revision + 1, ..before };
        let put_back =
            put_in_queue(store, old, name, Some(record.revision), &encode_rule(&back), check_time(&back)).await;
        // Somebody may have brought it there meanwhile.
        return match put_back.map_err(Error::into_unknown)? {
            PutCronResult::Applied => arrived,
            _ => arrived.map_err(Error::into_unknown),
        };
    }
    arrived.map_err(Error::into_unknown)?;
    // If the mark is gone, somebody else has brought the rule there too.
    remove_from_queue(store, old, name, Some(record.revision)).await.map_err(Error::into_unknown)?;
    Ok(PutCronResult::Applied)
}

fn local_rule((keys, kept): (Arc<QueueKeys>, QueueCronRule)) -> Option<(Arc<QueueKeys>, CronRecord)> {
    match kept {
        QueueCronRule::Local(record) => Some((keys, record)),
        QueueCronRule::HandingOver(..) => None,
    }
}

/// Puts a rule where it goes. If there is one already, somebody else has brought it, and it may have fired since.
async fn put_in_target_queue(store: &Redis, record: &CronRecord) -> Result<PutCronResult> {
    let keys = store.register_queue("put_cron", &record.rule.queue).await?;
    put_in_queue(store, &keys, &record.rule.name, None, &encode_rule(record), check_time(record)).await
}

/// Brings a rule that was left on its way to where it goes, and deletes the mark that it has left where it was.
async fn finish_handover(store: &Redis, old: &Arc<QueueKeys>, mark: u64, record: &CronRecord) -> Result<PutCronResult> {
    let name = &record.rule.name;
    let put = put_in_target_queue(store, record).await?;
    if put == PutCronResult::Moving || remove_from_queue(store, old, name, Some(mark)).await? {
        return Ok(put);
    }
    // The mark is gone: others have brought it, or whoever sent it has put it back meanwhile. It must not be in both.
    let is_back = find_in_queue(store, "put_cron", old, name).await?.and_then(local_rule).is_some();
    if put == PutCronResult::Applied && is_back {
        remove_from_queue(store, &store.keys(&record.rule.queue), name, Some(record.revision)).await?;
    }
    Ok(put)
}

/// The same for some, as far as that can be done now: they are met again, and others go on meanwhile.
async fn finish_handovers(store: &Redis, old: &Arc<QueueKeys>, going: &[(u64, CronRecord)]) {
    let all = going.iter().map(async |(mark, record)| {
        if let Err(error) = finish_handover(store, old, *mark, record).await {
            let rule = &record.rule;
            tracing::warn!(name = rule.name, queue = rule.queue, %error, "a cron rule cannot go to its queue yet");
        }
    });
    if tokio::time::timeout(HANDOVER_TIMEOUT, futures_util::future::join_all(all)).await.is_err() {
        tracing::warn!(queue = %old.queue, "cron rules cannot go to their queues yet: no answer");
    }
}

async fn remove_from_queue(store: &Redis, keys: &QueueKeys, name: &str, revision: Option<u64>) -> Result<bool> {
    let mut cmd = script::REMOVE_CRON.call(keys);
    cmd.arg(store.manual_now()).arg(name).arg(revision.map_or(String::new(), |revision| format!("{revision:016}")));
    let value = store.send_replicated("remove_cron", keys, Some(&script::REMOVE_CRON), &[cmd]).await?;
    Ok(store.parse_reply("remove_cron", value)?.int()? == 1)
}

/// `remove_cron` of the contract: wherever it is. One that is on its way in this very moment may arrive afterwards: whoever
/// brings it has read it before it was removed.
pub(super) async fn remove_cron(store: &Redis, name: &str) -> Result<bool> {
    let mut removed = false;
    for queue in store.queue_names("remove_cron").await? {
        let gone = remove_from_queue(store, &store.keys(&queue), name, None).await;
        removed |= gone.map_err(|error| if removed { error.into_unknown() } else { error })?;
    }
    Ok(removed)
}

/// `cron` of the contract.
pub(super) async fn cron(store: &Redis, name: &str) -> Result<Option<CronRecord>> {
    Ok(find_rule(store, "cron", name).await?.map(|(_, record)| record))
}

/// A rule, asked for in all queues. One that is on its way is brought to where it goes first; of two that were made at the same
/// moment in two queues the one with the greater revision stays.
async fn find_rule(store: &Redis, op: &'static str, name: &str) -> Result<Option<(Arc<QueueKeys>, CronRecord)>> {
    let mut found: Option<(Arc<QueueKeys>, CronRecord)> = None;
    for (keys, kept) in find_in_all_queues(store, op, name).await? {
        let (keys, record) = match kept {
            QueueCronRule::Local(record) => (keys, record),
            QueueCronRule::HandingOver(mark, record) => {
                let put = finish_handover(store, &keys, mark, &record).await?;
                let there = store.keys(&record.rule.queue);
                match find_in_queue(store, op, &there, name).await?.and_then(local_rule) {
                    Some(there) => there,
                    // It waits where it was until its queue has moved.
                    None if put == PutCronResult::Moving => (keys, record),
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
    let asks = keys.iter().map(|keys| find_in_queue(store, op, keys, name));
    let mut found = Vec::new();
    for answer in futures_util::future::join_all(asks).await {
        found.extend(answer?);
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
    Ok(found.into_iter().next().map(|kept| (keys.clone(), kept)))
}

/// One rule of a queue, or a step through all of them; with where to go on.
async fn read_rules(
    store: &Redis,
    op: &'static str,
    keys: &QueueKeys,
    name: &str,
    cursor: &str,
) -> Result<(String, Vec<QueueCronRule>)> {
    let mut cmd = script::CRONS.call(keys);
    cmd.arg(store.manual_now()).arg(name).arg(cursor);
    let mut reply = store.parse_reply(
        op,
        store.servers.run_script(op, ConnectionRole::Client, keys.slot, &script::CRONS, &cmd).await?,
    )?;
    let cursor = reply.text()?;
    Ok((cursor, reply.list()?.iter().flatten().filter_map(|text| decode_rule(text)).collect()))
}

/// `crons` of the contract: queue by queue. A cursor is the queue and where to go on in it.
pub(super) async fn crons(store: &Redis, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
    let wrong = || Error::invalid("cursor", "is not one that a list of cron rules has given");
    let (from, mut at) = match cursor {
        Some(cursor) => cursor.split_once(' ').ok_or_else(wrong)?,
        None => ("", "0"),
    };
    if !at.bytes().all(|byte| byte.is_ascii_digit()) || at.is_empty() {
        return Err(wrong());
    }
    let mut queues = store.queue_names("crons").await?;
    queues.retain(|name| name.as_str() >= from && queue.is_none_or(|queue| queue == name));
    for (no, name) in queues.iter().enumerate() {
        let at = std::mem::replace(&mut at, "0");
        let (next, kept) =
            read_rules(store, "crons", &store.keys(name), "", if name == from { at } else { "0" }).await?;
        let next = match next.as_str() {
            "0" => queues.get(no + 1).map(|name| format!("{name} 0")),
            next => Some(format!("{name} {next}")),
        };
        // One that is on its way is shown as what it will be.
        let shown = |kept| match kept {
            QueueCronRule::Local(record) | QueueCronRule::HandingOver(_, record) => record,
        };
        if !kept.is_empty() || next.is_none() {
            return Ok(CronPage { rules: kept.into_iter().map(shown).collect(), next_cursor: next });
        }
    }
    Ok(CronPage::default())
}

/// How long the way of rules to their queues may hold up others that are due.
const HANDOVER_TIMEOUT: Duration = Duration::from_millis(500);

/// `due_crons` of the contract.
pub(super) async fn due_crons(store: &Redis, queue: &str, freed: &[String]) -> Result<DueCrons> {
    let keys = store.keys(queue);
    let mut cmd = script::DUE_CRONS.call(&*keys);
    cmd.arg(store.manual_now()).arg(CRON_FIRINGS_MAX).arg(freed);
    let value =
        store.servers.run_script("due_crons", ConnectionRole::BulkRead, keys.slot, &script::DUE_CRONS, &cmd).await?;
    let mut reply = store.parse_reply("due_crons", value)?;
    let (mut rules, mut going) = (Vec::new(), Vec::new());
    for kept in reply.list()?.iter().flatten().filter_map(|text| decode_rule(text)) {
        match kept {
            QueueCronRule::Local(record) => rules.push(record),
            QueueCronRule::HandingOver(mark, record) => going.push((mark, record)),
        }
    }
    if !going.is_empty() {
        finish_handovers(store, &keys, &going).await;
    }
    let next_tick = duration_until(reply.optional_int()?, reply.now);
    Ok(DueCrons { rules, now: from_micros(reply.now), next_tick })
}

/// `fire_crons` of the contract.
pub(super) async fn fire_crons(store: &Redis, queue: &str, fires: &[CronFiring]) -> Result<FireCronsReply> {
    if fires.len() > CRON_FIRINGS_MAX {
        return Err(Error::invalid("fires", format!("more than {CRON_FIRINGS_MAX} rules in one step")));
    }
    let keys = store.keys(queue);
    let mut cmd = script::FIRE_CRONS.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(micros(WAITING_TICK_RECHECK_INTERVAL));
    let now = Redis::now(store);
    for fire in fires {
        let hold = match fire.overlap_wait {
            OverlapWait::Never => "n",
            OverlapWait::WhileRunning => "r",
            OverlapWait::WhileUnfinished => "t",
        };
        cmd.arg(&fire.name).arg(format!("{:016}", fire.revision)).arg(encode_moment(Some(fire.tick)));
        cmd.arg(encode_moment(fire.next)).arg(encode_moment(fire.last)).arg(hold).arg(fire.jobs.len());
        for job in &fire.jobs {
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
    let fired = fires.iter().zip(rows).map(|(fire, row)| parse_firing_result(fire, row)).collect::<Result<_>>()?;
    Ok(FireCronsReply { results: fired, next_tick: duration_until(reply.optional_int()?, reply.now) })
}

fn due_micros(job: &Push) -> Option<Micros> {
    match job.due {
        Due::At(moment) => Some(to_micros(moment).clamp(0, 2 * record::DELAY_MAX)),
        // A tick gives its jobs moments.
        Due::Now | Due::After(_) => None,
    }
}

fn parse_firing_result(fire: &CronFiring, mut row: ScriptReply) -> Result<CronFiringResult> {
    let word = row.text()?;
    let others = row.list()?;
    let other = |at: usize| others.get(at).and_then(|id| id.as_deref()).and_then(super::reply::parse_job_id);
    Ok(match (word.as_str(), other(0)) {
        ("yes", _) => {
            let pushed = |(at, job): (usize, &Push)| other(at).map_or(PushResult::New(job.id), PushResult::Existing);
            CronFiringResult::Fired(fire.jobs.iter().enumerate().map(pushed).collect())
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
        fn a_rule_survives_its_text(revision in 0u64..9_999_999_999_999_999, next in proptest::option::of(1i64..4_000_000_000_000_000),
                                    last in proptest::option::of(1i64..4_000_000_000_000_000), paused: bool, held: bool) {
            let rule = CronRule::new("r", "* * * * *", Push::new("mail", "{}")).expect("a rule");
            let mut record = CronRecord::new(rule, revision, next.map(from_micros));
            (record.paused, record.waiting, record.last) = (paused, held, last.map(from_micros));
            prop_assert!(matches!(decode_rule(encode_rule(&record).as_bytes()), Some(QueueCronRule::Local(read)) if read == record));
            prop_assert!(matches!(decode_rule(encode_handover(&record).as_bytes()), Some(QueueCronRule::HandingOver(mark, read)) if read == record && mark == revision));
        }

        #[test]
        fn any_bytes_read_or_are_left_alone(bytes in proptest::collection::vec(any::<u8>(), 0..120), text in "1[0-9]{48}[01g][01].{0,80}") {
            let _ = (decode_rule(&bytes), decode_rule(text.as_bytes()));
        }
    }
}
