//! Cron rules on a server: each lives with its queue, so that its jobs are pushed in the step that moves its tick.
//!
//! A rule that changes its queue may change its server, which no single step can do. It is handed over: where it was it is marked
//! as going, with what it will be, and fires no more; then it is put where it goes; then the mark is deleted.
//! Whoever meets a mark that was left behind finishes the way.

use std::sync::Arc;
use std::time::Duration;

use super::keys::QueueKeys;
use super::reply::Reply;
use super::{Redis, record, script};
use crate::clock::{Micros, from_micros, micros, to_micros};
use crate::cron::CronRule;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, Pushed};
use crate::store::redis::conn::Way;
use crate::store::{
    CRON_FIRE_MAX, CronFire, CronFired, CronPage, CronPut, CronRecord, CronsFired, DueCrons, HELD_LOOK, Hold, PutCron,
};

/// Where the rule itself begins in its text, behind format, revision, next and last tick, and two flags.
const HEAD: usize = 51;

/// How long it is until a moment.
pub(super) fn until(at: Option<Micros>, now: Micros) -> Option<Duration> {
    at.map(|at| Duration::from_micros(u64::try_from(at - now).unwrap_or(0)))
}

/// A rule as a queue has it.
enum Kept {
    Here(CronRecord),
    /// On its way to another queue: the revision of the mark, and what the rule will be.
    Going(u64, CronRecord),
}

fn digits(moment: Option<std::time::SystemTime>) -> String {
    format!("{:016}", moment.map_or(0, record::moment))
}

fn text(record: &CronRecord) -> String {
    format!(
        "{}{:016}{}{}{}{}{}",
        char::from(record::FORMAT),
        record.revision,
        digits(record.next),
        digits(record.last),
        u8::from(record.paused),
        u8::from(record.held),
        record.rule.text()
    )
}

/// The text of a rule that goes to another queue.
fn going(record: &CronRecord) -> String {
    let text = text(record);
    format!("{}g0{text}", &text[..HEAD - 2])
}

/// `None` for a rule that a newer version has written, or that is damaged.
fn read(text: &[u8]) -> Option<Kept> {
    let kept = std::str::from_utf8(text).ok().and_then(parse);
    if kept.is_none() {
        tracing::error!("a cron rule this version of duly cannot read; a newer one may");
    }
    kept
}

fn parse(text: &str) -> Option<Kept> {
    let (head, rest) = text.split_at_checked(HEAD)?;
    let bytes = head.as_bytes();
    if bytes.first() != Some(&record::FORMAT) || !head.is_ascii() {
        return None;
    }
    let number = |from: usize| head[from..from + 16].parse::<i64>().ok();
    let moment = |from: usize| number(from).map(|at| (at != 0).then(|| from_micros(at)));
    let revision = number(1)?.unsigned_abs();
    if bytes[49] == b'g' {
        return match parse(rest)? {
            Kept::Here(record) => Some(Kept::Going(revision, record)),
            Kept::Going(..) => None,
        };
    }
    let mut record = CronRecord::new(CronRule::read(rest)?, revision, moment(17)?);
    (record.paused, record.held, record.last) = (bytes[49] == b'1', bytes[50] == b'1', moment(33)?);
    Some(Kept::Here(record))
}

/// `put_cron` of the contract.
pub(super) async fn put(store: &Redis, put: &PutCron) -> Result<CronPut> {
    let record = &put.record;
    let keys = store.register("put_cron", &record.rule.queue).await?;
    match find(store, "put_cron", &record.rule.name).await? {
        Some((old, _)) if old.queue != keys.queue => hand_over(store, &old, put).await,
        _ => put_in(store, &keys, &record.rule.name, put.was, &text(record), look(record)).await,
    }
}

/// When to look at a rule of which this is the text, and whether its tick is held back; `None` if it cannot be read.
pub(super) fn look_of(text: &[u8]) -> Option<(Option<Micros>, bool)> {
    match read(text)? {
        Kept::Here(record) => Some((look(&record), record.held)),
        Kept::Going(_, record) => Some((look(&record), false)),
    }
}

/// When to look at a rule.
fn look(record: &CronRecord) -> Option<Micros> {
    record.next.filter(|_| !record.paused).map(record::moment)
}

async fn put_in(
    store: &Redis,
    keys: &QueueKeys,
    name: &str,
    was: Option<u64>,
    text: &str,
    look: Option<Micros>,
) -> Result<CronPut> {
    let mut cmd = script::PUT_CRON.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(name);
    cmd.arg(was.map_or(String::new(), |was| format!("{was:016}"))).arg(text);
    cmd.arg(look.map_or(String::new(), |look| look.to_string()));
    let value = store.deliver("put_cron", keys, Some(&script::PUT_CRON), &[cmd]).await?;
    Ok(match store.reply("put_cron", value)?.text()?.as_str() {
        "yes" => CronPut::Yes,
        "moving" => CronPut::Moving,
        _ => CronPut::Stale,
    })
}

/// Takes a rule from the queue that it is in to another.
async fn hand_over(store: &Redis, old: &Arc<QueueKeys>, put: &PutCron) -> Result<CronPut> {
    let (record, name) = (&put.record, &put.record.rule.name);
    let before = match find_in(store, "put_cron", old, name).await? {
        Some((_, Kept::Here(before))) => before,
        // Where it goes is moving: it waits here until that has been done.
        Some((_, Kept::Going(..))) => return Ok(CronPut::Moving),
        None => return Ok(CronPut::Stale),
    };
    let marked = put_in(store, old, name, put.was, &going(record), look(record)).await?;
    if marked != CronPut::Yes {
        return Ok(marked);
    }
    // Until it is there it fires nowhere: who is told of an error must not think that nothing has changed.
    let arrived = put_there(store, record).await;
    if matches!(arrived, Ok(CronPut::Moving) | Err(Error::Store { .. })) {
        // It cannot go there now: it stays as it was.
        let back = CronRecord { revision: record.revision + 1, ..before };
        let put_back = put_in(store, old, name, Some(record.revision), &text(&back), look(&back)).await;
        // Somebody may have brought it there meanwhile.
        return match put_back.map_err(Error::in_doubt)? {
            CronPut::Yes => arrived,
            _ => arrived.map_err(Error::in_doubt),
        };
    }
    arrived.map_err(Error::in_doubt)?;
    // If the mark is gone, somebody else has brought the rule there too.
    remove_in(store, old, name, Some(record.revision)).await.map_err(Error::in_doubt)?;
    Ok(CronPut::Yes)
}

fn here((keys, kept): (Arc<QueueKeys>, Kept)) -> Option<(Arc<QueueKeys>, CronRecord)> {
    match kept {
        Kept::Here(record) => Some((keys, record)),
        Kept::Going(..) => None,
    }
}

/// Puts a rule where it goes. If there is one already, somebody else has brought it, and it may have fired since.
async fn put_there(store: &Redis, record: &CronRecord) -> Result<CronPut> {
    let keys = store.register("put_cron", &record.rule.queue).await?;
    put_in(store, &keys, &record.rule.name, None, &text(record), look(record)).await
}

/// Brings a rule that was left on its way to where it goes, and deletes the mark that it has left where it was.
async fn arrive(store: &Redis, old: &Arc<QueueKeys>, mark: u64, record: &CronRecord) -> Result<CronPut> {
    let name = &record.rule.name;
    let put = put_there(store, record).await?;
    if put == CronPut::Moving || remove_in(store, old, name, Some(mark)).await? {
        return Ok(put);
    }
    // The mark is gone: others have brought it, or whoever sent it has put it back meanwhile. It must not be in both.
    let is_back = find_in(store, "put_cron", old, name).await?.and_then(here).is_some();
    if put == CronPut::Yes && is_back {
        remove_in(store, &store.keys(&record.rule.queue), name, Some(record.revision)).await?;
    }
    Ok(put)
}

/// The same for some, as far as that can be done now: they are met again, and others go on meanwhile.
async fn arrive_all(store: &Redis, old: &Arc<QueueKeys>, going: &[(u64, CronRecord)]) {
    let all = going.iter().map(async |(mark, record)| {
        if let Err(error) = arrive(store, old, *mark, record).await {
            let rule = &record.rule;
            tracing::warn!(name = rule.name, queue = rule.queue, %error, "a cron rule cannot go to its queue yet");
        }
    });
    if tokio::time::timeout(ARRIVE_MAX, futures_util::future::join_all(all)).await.is_err() {
        tracing::warn!(queue = %old.queue, "cron rules cannot go to their queues yet: no answer");
    }
}

async fn remove_in(store: &Redis, keys: &QueueKeys, name: &str, revision: Option<u64>) -> Result<bool> {
    let mut cmd = script::REMOVE_CRON.call(keys);
    cmd.arg(store.manual_now()).arg(name).arg(revision.map_or(String::new(), |revision| format!("{revision:016}")));
    let value = store.deliver("remove_cron", keys, Some(&script::REMOVE_CRON), &[cmd]).await?;
    Ok(store.reply("remove_cron", value)?.int()? == 1)
}

/// `remove_cron` of the contract: wherever it is. One that is on its way in this very moment may arrive afterwards: whoever
/// brings it has read it before it was removed.
pub(super) async fn remove(store: &Redis, name: &str) -> Result<bool> {
    let mut removed = false;
    for queue in store.queues("remove_cron").await? {
        let gone = remove_in(store, &store.keys(&queue), name, None).await;
        removed |= gone.map_err(|error| if removed { error.in_doubt() } else { error })?;
    }
    Ok(removed)
}

/// `cron` of the contract.
pub(super) async fn get(store: &Redis, name: &str) -> Result<Option<CronRecord>> {
    Ok(find(store, "cron", name).await?.map(|(_, record)| record))
}

/// A rule, asked for in all queues. One that is on its way is brought to where it goes first; of two that were made at the same
/// moment in two queues the one with the greater revision stays.
async fn find(store: &Redis, op: &'static str, name: &str) -> Result<Option<(Arc<QueueKeys>, CronRecord)>> {
    let mut found: Option<(Arc<QueueKeys>, CronRecord)> = None;
    for (keys, kept) in find_all(store, op, name).await? {
        let (keys, record) = match kept {
            Kept::Here(record) => (keys, record),
            Kept::Going(mark, record) => {
                let put = arrive(store, &keys, mark, &record).await?;
                let there = store.keys(&record.rule.queue);
                match find_in(store, op, &there, name).await?.and_then(here) {
                    Some(there) => there,
                    // It waits where it was until its queue has moved.
                    None if put == CronPut::Moving => (keys, record),
                    None => continue,
                }
            }
        };
        match &found {
            Some((other, newer)) if other.queue != keys.queue && newer.revision >= record.revision => {
                remove_in(store, &keys, name, Some(record.revision)).await?;
            }
            Some((other, older)) if other.queue != keys.queue => {
                remove_in(store, other, name, Some(older.revision)).await?;
                found = Some((keys, record));
            }
            _ => found = Some((keys, record)),
        }
    }
    Ok(found)
}

async fn find_all(store: &Redis, op: &'static str, name: &str) -> Result<Vec<(Arc<QueueKeys>, Kept)>> {
    let keys: Vec<Arc<QueueKeys>> = store.queues(op).await?.iter().map(|queue| store.keys(queue)).collect();
    let asks = keys.iter().map(|keys| find_in(store, op, keys, name));
    let mut found = Vec::new();
    for answer in futures_util::future::join_all(asks).await {
        found.extend(answer?);
    }
    Ok(found)
}

async fn find_in(
    store: &Redis,
    op: &'static str,
    keys: &Arc<QueueKeys>,
    name: &str,
) -> Result<Option<(Arc<QueueKeys>, Kept)>> {
    let (_, found) = step(store, op, keys, name, "0").await?;
    Ok(found.into_iter().next().map(|kept| (keys.clone(), kept)))
}

/// One rule of a queue, or a step through all of them; with where to go on.
async fn step(
    store: &Redis,
    op: &'static str,
    keys: &QueueKeys,
    name: &str,
    cursor: &str,
) -> Result<(String, Vec<Kept>)> {
    let mut cmd = script::CRONS.call(keys);
    cmd.arg(store.manual_now()).arg(name).arg(cursor);
    let mut reply = store.reply(op, store.link.run(op, Way::Door, keys.slot, &script::CRONS, &cmd).await?)?;
    let cursor = reply.text()?;
    Ok((cursor, reply.list()?.iter().flatten().filter_map(|text| read(text)).collect()))
}

/// `crons` of the contract: queue by queue. A cursor is the queue and where to go on in it.
pub(super) async fn page(store: &Redis, queue: Option<&str>, cursor: Option<&str>) -> Result<CronPage> {
    let wrong = || Error::invalid("cursor", "is not one that a list of cron rules has given");
    let (from, mut at) = match cursor {
        Some(cursor) => cursor.split_once(' ').ok_or_else(wrong)?,
        None => ("", "0"),
    };
    if !at.bytes().all(|byte| byte.is_ascii_digit()) || at.is_empty() {
        return Err(wrong());
    }
    let mut queues = store.queues("crons").await?;
    queues.retain(|name| name.as_str() >= from && queue.is_none_or(|queue| queue == name));
    for (no, name) in queues.iter().enumerate() {
        let at = std::mem::replace(&mut at, "0");
        let (next, kept) = step(store, "crons", &store.keys(name), "", if name == from { at } else { "0" }).await?;
        let next = match next.as_str() {
            "0" => queues.get(no + 1).map(|name| format!("{name} 0")),
            next => Some(format!("{name} {next}")),
        };
        // One that is on its way is shown as what it will be.
        let shown = |kept| match kept {
            Kept::Here(record) | Kept::Going(_, record) => record,
        };
        if !kept.is_empty() || next.is_none() {
            return Ok(CronPage { rules: kept.into_iter().map(shown).collect(), next });
        }
    }
    Ok(CronPage::default())
}

/// How long the way of rules to their queues may hold up others that are due.
const ARRIVE_MAX: Duration = Duration::from_millis(500);

/// `due_crons` of the contract.
pub(super) async fn due(store: &Redis, queue: &str, freed: &[String]) -> Result<DueCrons> {
    let keys = store.keys(queue);
    let mut cmd = script::DUE_CRONS.call(&*keys);
    cmd.arg(store.manual_now()).arg(CRON_FIRE_MAX).arg(freed);
    let value = store.link.run("due_crons", Way::Bodies, keys.slot, &script::DUE_CRONS, &cmd).await?;
    let mut reply = store.reply("due_crons", value)?;
    let (mut rules, mut going) = (Vec::new(), Vec::new());
    for kept in reply.list()?.iter().flatten().filter_map(|text| read(text)) {
        match kept {
            Kept::Here(record) => rules.push(record),
            Kept::Going(mark, record) => going.push((mark, record)),
        }
    }
    if !going.is_empty() {
        arrive_all(store, &keys, &going).await;
    }
    let next_tick = until(reply.maybe_int()?, reply.now);
    Ok(DueCrons { rules, now: from_micros(reply.now), next_tick })
}

/// `fire_crons` of the contract.
pub(super) async fn fire(store: &Redis, queue: &str, fires: &[CronFire]) -> Result<CronsFired> {
    if fires.len() > CRON_FIRE_MAX {
        return Err(Error::invalid("fires", format!("more than {CRON_FIRE_MAX} rules in one step")));
    }
    let keys = store.keys(queue);
    let mut cmd = script::FIRE_CRONS.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(micros(HELD_LOOK));
    let now = Redis::now(store);
    for fire in fires {
        let hold = match fire.hold {
            Hold::No => "n",
            Hold::WhileRunning => "r",
            Hold::WhileThere => "t",
        };
        cmd.arg(&fire.name).arg(format!("{:016}", fire.revision)).arg(digits(Some(fire.tick)));
        cmd.arg(digits(fire.next)).arg(digits(fire.last)).arg(hold).arg(fire.jobs.len());
        for job in &fire.jobs {
            let due = due_of(job);
            cmd.arg(job.id.as_bytes()).arg(record::write(job, now, due.map_or(now, |due| due.max(now))));
            cmd.arg(due.map_or(String::new(), |due| due.to_string()));
            cmd.arg(record::due_ticket(job.id, job.priority, None, &job.kind, &job.tags))
                .arg(job.unique.as_deref().unwrap_or(""));
        }
    }
    let value = store.deliver("fire_crons", &keys, Some(&script::FIRE_CRONS), &[cmd]).await?;
    let mut reply = store.reply("fire_crons", value)?;
    let rows = reply.rows()?;
    let fired = fires.iter().zip(rows).map(|(fire, row)| answer(fire, row)).collect::<Result<_>>()?;
    Ok(CronsFired { fired, next_tick: until(reply.maybe_int()?, reply.now) })
}

fn due_of(job: &Push) -> Option<Micros> {
    match job.due {
        Due::At(moment) => Some(to_micros(moment).clamp(0, 2 * record::DELAY_MAX)),
        // A tick gives its jobs moments.
        Due::Now | Due::After(_) => None,
    }
}

fn answer(fire: &CronFire, mut row: Reply) -> Result<CronFired> {
    let word = row.text()?;
    let others = row.list()?;
    let other = |at: usize| others.get(at).and_then(|id| id.as_deref()).and_then(super::reply::id);
    Ok(match (word.as_str(), other(0)) {
        ("yes", _) => {
            let pushed = |(at, job): (usize, &Push)| other(at).map_or(Pushed::New(job.id), Pushed::Existing);
            CronFired::Yes(fire.jobs.iter().enumerate().map(pushed).collect())
        }
        ("full", _) => CronFired::Full,
        ("waiting", Some(holder)) => CronFired::Held(holder),
        _ => CronFired::Stale,
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
            (record.paused, record.held, record.last) = (paused, held, last.map(from_micros));
            prop_assert!(matches!(read(text(&record).as_bytes()), Some(Kept::Here(read)) if read == record));
            prop_assert!(matches!(read(going(&record).as_bytes()), Some(Kept::Going(mark, read)) if read == record && mark == revision));
        }

        #[test]
        fn any_bytes_read_or_are_left_alone(bytes in proptest::collection::vec(any::<u8>(), 0..120), text in "1[0-9]{48}[01g][01].{0,80}") {
            let _ = (read(&bytes), read(text.as_bytes()));
        }
    }
}
