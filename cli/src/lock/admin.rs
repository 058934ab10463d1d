//! `duly lock ls|get|break`: locks that are held, whoever holds them.

use duly::{Duly, LockRecord};
use serde_json::json;

use crate::escape::safe;
use crate::exit::{self, Fail};
use crate::output::Format;
use crate::{Setup, input, store, time};

/// Pages that are asked for until a list counts as long enough.
const PAGES_MAX: usize = 20;

pub(super) async fn list(setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    let (locks, more) = all(&duly).await?;
    let out = &setup.out;
    match out.format {
        Format::Json => out.json(&locks)?,
        Format::Ndjson => locks.iter().try_for_each(|lock| out.json(lock))?,
        Format::Table | Format::Wide => {
            let head = ["NAME", "SLOT", "FENCE", "HOLDER", "NODE", "SINCE", "ENDS", "WAITING"];
            out.table(head, locks.into_iter().map(row).collect())?;
        }
    }
    if more {
        out.say("there are more: only the first ones are shown");
    }
    Ok(())
}

/// All that are held, within bounds, and whether there may be more.
async fn all(duly: &Duly) -> anyhow::Result<(Vec<LockRecord>, bool)> {
    let (mut locks, mut cursor) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let page = duly.locks(cursor.as_deref()).await?;
        locks.extend(page.locks);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    Ok((locks, cursor.is_some()))
}

fn row(lock: LockRecord) -> [String; 8] {
    let [slot, fence, node] = [lock.slot.to_string(), lock.fence.to_string(), lock.node.to_string()];
    let [since, ends] = [lock.since, lock.ends].map(time::distance);
    [lock.name, slot, fence, lock.note, node, since, ends, lock.waiting.to_string()]
}

pub(super) async fn get(name: &str, setup: &Setup) -> anyhow::Result<()> {
    let locks = store::open(setup).await?.lock(name).holders().await?;
    let out = &setup.out;
    match out.format {
        Format::Json => out.json(&locks)?,
        Format::Ndjson => locks.iter().try_for_each(|lock| out.json(lock))?,
        Format::Table | Format::Wide => {
            for lock in &locks {
                lines(lock)
                    .into_iter()
                    .try_for_each(|(name, value)| out.line(&format!("{name:<8} {}", safe(&value))))?;
            }
        }
    }
    if locks.is_empty() { Err(free(name)) } else { Ok(()) }
}

fn lines(lock: &LockRecord) -> [(&'static str, String); 8] {
    let moment = |at| format!("{} ({})", time::date_of(at), time::distance(at));
    [
        ("lock", lock.name.clone()),
        ("slot", lock.slot.to_string()),
        ("fence", lock.fence.to_string()),
        ("holder", lock.note.clone()),
        ("node", lock.node.to_string()),
        ("since", moment(lock.since)),
        ("ends", format!("{}, unless it is extended", moment(lock.ends))),
        ("waiting", lock.waiting.to_string()),
    ]
}

fn free(name: &str) -> anyhow::Error {
    Fail::new(exit::NOT_FOUND, format!("nobody holds lock {name}"))
}

/// `host:123 since 4m10s, fence 42`, for each who holds it.
pub(super) fn who(locks: &[LockRecord]) -> String {
    let one =
        |lock: &LockRecord| format!("{} (since {}, fence {})", safe(&lock.note), time::date_of(lock.since), lock.fence);
    locks.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(super) async fn break_it(name: &str, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    let locks = duly.lock(name).holders().await?;
    if locks.is_empty() {
        return Err(free(name));
    }
    let (shown, held_by) = (safe(name), who(&locks));
    if !setup.yes && !input::confirmed(&format!("Lock {shown} is held by {held_by}. Break it?"))? {
        return Err(Fail::new(exit::FAILURE, "nothing was broken"));
    }
    let broken = duly.break_lock(name).await?;
    if setup.out.is_json() {
        return setup.out.json(&json!({"name": name, "broken": broken, "held_by": locks}));
    }
    match broken {
        0 => setup.out.say(&format!("lock {shown} was released just now")),
        _ => setup.out.say(&format!("lock {shown} is broken; it was held by {held_by}")),
    }
    Ok(())
}
