//! `duly lock ls|get|break`: lists, shows and breaks held locks.

use std::time::SystemTime;

use duly::Duly;
use duly::lock::LockRecord;
use serde_json::json;

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::Format;
use crate::{Setup, audit, input, store, time};

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
        let page = duly.locks().list(cursor.as_deref()).await?;
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
    let since = format_since(&lock, time::format_relative);
    let expires = time::format_relative(lock.expires);
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
        ("since", format_since(lock, format_time)),
        ("expires", format!("{}, unless it is extended", format_time(lock.expires))),
        ("waiters", lock.waiters.to_string()),
    ]
}

/// Formats the start of a hold; the lock of another system does not record it.
fn format_since(lock: &LockRecord, format: impl Fn(SystemTime) -> String) -> String {
    lock.since.map_or_else(|| "unknown".to_owned(), format)
}

fn not_held_error(name: &str) -> anyhow::Error {
    CliError::new(exit::NOT_FOUND, format!("lock {name} is not held; `duly lock ls` lists the locks that are"))
}

/// Formats the holders: `host:123 (since 2026-12-01 14:32:07, fence 42), ...`.
pub(super) fn format_holders(locks: &[LockRecord]) -> String {
    let format_holder = |lock: &LockRecord| {
        let since = format_since(lock, time::format_date_time);
        format!("{} (since {since}, fence {})", escape_text(&lock.note), lock.fence)
    };
    locks.iter().map(format_holder).collect::<Vec<_>>().join(", ")
}

pub(super) async fn break_lock(name: &str, slot: Option<u32>, all: bool, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    let locks = holds_to_break(name, duly.lock(name).holders().await?, slot, all)?;
    let (escaped_name, held_by) = (escape_text(name), format_holders(&locks));
    let what = slot.map_or(format!("Lock {escaped_name}"), |slot| format!("Slot {slot} of lock {escaped_name}"));
    if !setup.yes && !input::confirm(&format!("{what} is held by {held_by}. Break it?"))? {
        return Err(CliError::new(exit::FAILURE, "nothing was broken"));
    }
    // By its owner: the slot may have a new one by now.
    let owner = match &locks[..] {
        [hold] if !all => Some(hold.owner),
        _ => None,
    };
    let result = match owner {
        Some(owner) => duly.locks().break_hold(name, owner).await.map(u64::from),
        None => duly.locks().break_lock(name).await,
    };
    let broken = audit::record_break(&duly, name, owner, result).await?;
    if setup.out.is_json() {
        return setup.out.print_json(&json!({"name": name, "broken": broken, "held_by": locks}));
    }
    match broken {
        0 => setup.out.print_message(&format!("lock {escaped_name} was released just now")),
        _ => setup.out.print_message(&format!("lock {escaped_name} is broken; it was held by {held_by}")),
    }
    Ok(())
}

/// Returns the holds that the user has chosen. Several holds end only by choice: each is another process.
fn holds_to_break(
    name: &str,
    mut locks: Vec<LockRecord>,
    slot: Option<u32>,
    all: bool,
) -> anyhow::Result<Vec<LockRecord>> {
    if locks.is_empty() {
        return Err(not_held_error(name));
    }
    let holders = format_slots(&locks);
    if let Some(slot) = slot {
        locks.retain(|lock| lock.slot == slot);
        if locks.is_empty() {
            let reason = format!("slot {slot} of lock {} is not held; held are: {holders}", escape_text(name));
            return Err(CliError::new(exit::NOT_FOUND, reason));
        }
    } else if locks.len() > 1 && !all {
        let reason = format!("lock {} has several holders; choose --slot N or --all: {holders}", escape_text(name));
        return Err(CliError::new(exit::USAGE, reason));
    }
    Ok(locks)
}

/// Formats the holders by slot: `slot 1 host:123 (since ...), slot 2 ...`.
fn format_slots(locks: &[LockRecord]) -> String {
    let format_slot = |lock: &LockRecord| format!("slot {} {}", lock.slot, format_holders(std::slice::from_ref(lock)));
    locks.iter().map(format_slot).collect::<Vec<_>>().join(", ")
}
