//! `duly lock ls|get|break`: lists, shows and breaks held locks.

use duly::Duly;
use duly::lock::LockRecord;
use serde_json::json;

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::Format;
use crate::{Setup, input, store, time};

/// The most pages that `ls` requests.
const LOCK_PAGES_MAX: usize = 20;

pub(super) async fn list(setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    let (locks, has_more) = list_pages(&duly).await?;
    let out = &setup.out;
    match out.format {
        Format::Json => out.print_json(&locks)?,
        Format::Ndjson => locks.iter().try_for_each(|lock| out.print_json(lock))?,
        Format::Table | Format::Wide => {
            let head = ["NAME", "SLOT", "FENCE", "HOLDER", "NODE", "SINCE", "EXPIRES", "WAITERS"];
            out.print_table(head, locks.into_iter().map(table_row).collect())?;
        }
    }
    if has_more {
        out.print_message("there are more: only the first ones are shown");
    }
    Ok(())
}

/// Returns the held locks of at most `LOCK_PAGES_MAX` pages, and whether there are more.
async fn list_pages(duly: &Duly) -> anyhow::Result<(Vec<LockRecord>, bool)> {
    let (mut locks, mut cursor) = (Vec::new(), None);
    for _ in 0..LOCK_PAGES_MAX {
        let page = duly.locks(cursor.as_deref()).await?;
        locks.extend(page.locks);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok((locks, cursor.is_some()))
}

fn table_row(lock: LockRecord) -> [String; 8] {
    let [slot, fence, node] = [lock.slot.to_string(), lock.fence.to_string(), lock.node.to_string()];
    let [since, expires] = [lock.since, lock.expires].map(time::format_relative);
    [lock.name, slot, fence, lock.note, node, since, expires, lock.waiters.to_string()]
}

pub(super) async fn get(name: &str, setup: &Setup) -> anyhow::Result<()> {
    let locks = store::open_existing(setup).await?.lock(name).holders().await?;
    let out = &setup.out;
    match out.format {
        Format::Json => out.print_json(&locks)?,
        Format::Ndjson => locks.iter().try_for_each(|lock| out.print_json(lock))?,
        Format::Table | Format::Wide => {
            for lock in &locks {
                detail_lines(lock)
                    .into_iter()
                    .try_for_each(|(name, value)| out.print_line(&format!("{name:<8} {}", escape_text(&value))))?;
            }
        }
    }
    if locks.is_empty() { Err(not_held_error(name)) } else { Ok(()) }
}

fn detail_lines(lock: &LockRecord) -> [(&'static str, String); 8] {
    let format_time = |moment| format!("{} ({})", time::format_date_time(moment), time::format_relative(moment));
    [
        ("lock", lock.name.clone()),
        ("slot", lock.slot.to_string()),
        ("fence", lock.fence.to_string()),
        ("holder", lock.note.clone()),
        ("node", lock.node.to_string()),
        ("since", format_time(lock.since)),
        ("expires", format!("{}, unless it is extended", format_time(lock.expires))),
        ("waiters", lock.waiters.to_string()),
    ]
}

fn not_held_error(name: &str) -> anyhow::Error {
    CliError::new(exit::NOT_FOUND, format!("lock {name} is not held"))
}

/// Formats the holders: `host:123 (since 2026-12-01 14:32:07, fence 42), ...`.
pub(super) fn format_holders(locks: &[LockRecord]) -> String {
    let format_holder = |lock: &LockRecord| {
        format!("{} (since {}, fence {})", escape_text(&lock.note), time::format_date_time(lock.since), lock.fence)
    };
    locks.iter().map(format_holder).collect::<Vec<_>>().join(", ")
}

pub(super) async fn break_lock(name: &str, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    let locks = duly.lock(name).holders().await?;
    if locks.is_empty() {
        return Err(not_held_error(name));
    }
    let (escaped_name, held_by) = (escape_text(name), format_holders(&locks));
    if !setup.yes && !input::confirm(&format!("Lock {escaped_name} is held by {held_by}. Break it?"))? {
        return Err(CliError::new(exit::FAILURE, "nothing was broken"));
    }
    let broken = duly.break_lock(name).await?;
    if setup.out.is_json() {
        return setup.out.print_json(&json!({"name": name, "broken": broken, "held_by": locks}));
    }
    match broken {
        0 => setup.out.print_message(&format!("lock {escaped_name} was released just now")),
        _ => setup.out.print_message(&format!("lock {escaped_name} is broken; it was held by {held_by}")),
    }
    Ok(())
}
