//! What has happened, minute by minute; and the groups of dead jobs.

pub(crate) mod kinds;

use crate::clock::from_micros;
use crate::error::Result;
use crate::store::redis::conn::Way;
use crate::store::redis::jobs::push::MINUTE;
use crate::store::redis::{Redis, reply, script};
use crate::store::{DeadGroup, HISTORY_MINUTES_MAX, History, HistoryAsk, HistoryTally, Point, TALLY};

/// Minutes read in one step.
const STEP: u32 = 60;
/// Most steps in which what nobody has added up yet is: a year of minutes, should no worker have lived so long.
const ROLLS_MAX: usize = 366 * 24;
/// Queues asked at a time.
const AT_ONCE: usize = 50;

/// `history` of the contract.
pub(super) async fn history(store: &Redis, ask: &HistoryAsk) -> Result<History> {
    let minutes = if ask.minutes == 0 { HISTORY_MINUTES_MAX } else { ask.minutes.min(HISTORY_MINUTES_MAX) };
    let mut queues = store.queues("history").await?;
    queues.retain(|queue| ask.queue.as_ref().is_none_or(|only| only == queue));
    let mut history = History { now: Some(from_micros(store.now())), ..History::default() };
    for some in queues.chunks(AT_ONCE) {
        let asks = some.iter().map(|queue| of_queue(store, queue, minutes));
        for points in futures_util::future::join_all(asks).await {
            history.points.extend(points?);
        }
    }
    history.points.sort_by(|a, b| (a.minute, &a.queue).cmp(&(b.minute, &b.queue)));
    Ok(history)
}

async fn of_queue(store: &Redis, queue: &str, minutes: u32) -> Result<Vec<Point>> {
    let keys = store.keys(queue);
    let mut points = Vec::new();
    let mut ago = minutes;
    while ago > 0 {
        let count = ago.min(STEP);
        let mut cmd = script::HISTORY.call(&*keys);
        cmd.arg(store.manual_now()).arg(ago - 1).arg(count);
        let value = store.link.run("history", Way::Door, keys.slot, &script::HISTORY, &cmd).await?;
        let mut reply = store.reply("history", value)?;
        let (first, numbers) = (reply.int()?, reply.list()?);
        for (at, numbers) in numbers.chunks_exact(TALLY).enumerate() {
            let mut tally = [0u64; TALLY];
            for (sum, number) in tally.iter_mut().zip(numbers) {
                *sum = number.as_deref().map_or(0, |text| u64::try_from(reply::number(text)).unwrap_or(0));
            }
            if tally != [0; TALLY] {
                let minute = from_micros((first + at as i64) * MINUTE);
                points.push(Point { minute, queue: queue.to_owned(), tally: HistoryTally::from_numbers(&tally) });
            }
        }
        ago -= count;
    }
    Ok(points)
}

/// `totals` of the contract.
pub(super) async fn totals(store: &Redis) -> Result<Vec<(String, HistoryTally)>> {
    let queues = store.queues("totals").await?;
    let mut totals = Vec::with_capacity(queues.len());
    for some in queues.chunks(AT_ONCE) {
        let asks = some.iter().map(|queue| totals_of(store, queue));
        for (queue, tally) in some.iter().zip(futures_util::future::join_all(asks).await) {
            totals.push((queue.clone(), tally?));
        }
    }
    Ok(totals)
}

async fn totals_of(store: &Redis, queue: &str) -> Result<HistoryTally> {
    let keys = store.keys(queue);
    let mut cmd = script::TOTALS.call(&*keys);
    cmd.arg(store.manual_now());
    let mut tally = [0u64; TALLY];
    for _ in 0..ROLLS_MAX {
        let value = store.link.run("totals", Way::Door, keys.slot, &script::TOTALS, &cmd).await?;
        let mut reply = store.reply("totals", value)?;
        let (more, numbers) = (reply.int()? == 1, reply.list()?);
        for (sum, number) in tally.iter_mut().zip(numbers) {
            *sum = number.as_deref().map_or(0, |text| u64::try_from(reply::number(text)).unwrap_or(0));
        }
        if !more {
            break;
        }
    }
    Ok(HistoryTally::from_numbers(&tally))
}

/// `dead_groups` of the contract.
pub(super) async fn groups(store: &Redis, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
    let mut queues = store.queues("dead").await?;
    queues.retain(|name| queue.is_none_or(|only| only == name));
    let mut groups = Vec::new();
    for some in queues.chunks(AT_ONCE) {
        let asks = some.iter().map(|queue| groups_of(store, queue));
        for of_queue in futures_util::future::join_all(asks).await {
            groups.extend(of_queue?);
        }
    }
    groups.sort_by(|a: &DeadGroup, b| (b.count, b.newest, &a.id).cmp(&(a.count, a.newest, &b.id)));
    Ok(groups)
}

async fn groups_of(store: &Redis, queue: &str) -> Result<Vec<DeadGroup>> {
    let keys = store.keys(queue);
    let mut cmd = script::DEAD_GROUPS.call(&*keys);
    cmd.arg(store.manual_now());
    let value = store.link.run("dead", Way::Door, keys.slot, &script::DEAD_GROUPS, &cmd).await?;
    let pairs = store.reply("dead", value)?.list()?;
    let group = |pair: &[Option<Vec<u8>>]| match pair {
        [Some(id), Some(text)] => read_group(queue, id, text),
        _ => None,
    };
    Ok(pairs.chunks(2).filter_map(group).collect())
}

fn read_group(queue: &str, id: &[u8], text: &[u8]) -> Option<DeadGroup> {
    let text = std::str::from_utf8(text).ok()?;
    let moment = |from: usize| text.get(from..from + 16)?.parse().ok().map(from_micros);
    let (kind, error) = text.get(42..)?.split_once('\t')?;
    Some(DeadGroup {
        id: String::from_utf8(id.to_vec()).ok()?,
        queue: queue.to_owned(),
        kind: kind.to_owned(),
        error: error.to_owned(),
        count: text.get(..10)?.parse().ok()?,
        oldest: moment(10)?,
        newest: moment(26)?,
    })
}
