//! `duly lock ls|get|break`: lists, shows and breaks held locks.

use std::time::SystemTime;

use duly_http::views::LockView;
use serde_json::json;

use crate::backend::Backend;
use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::{Column, ColumnArgs, Format, List};
use crate::{Setup, input, time};

/// The most pages that `ls` requests.
const LOCK_PAGES_MAX: usize = 20;

/// The columns of `ls`.
const COLUMNS: &[Column<LockView>] = &[
    Column::new("NAME", |lock| lock.name.clone()),
    Column::new("SLOT", |lock| lock.slot.to_string()),
    Column::new("FENCE", |lock| lock.fence.to_string()),
    Column::new("HOLDER", |lock| lock.note.clone()),
    Column::new("NODE", |lock| lock.node.clone()),
    Column::new("SINCE", |lock| format_since(lock, time::format_relative)),
    Column::new("EXPIRES", |lock| time::format_relative(time::from_millis(lock.expires_ms))),
    Column::new("WAITERS", |lock| lock.waiters.to_string()),
];

pub(super) async fn list(columns: &ColumnArgs, setup: &Setup) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    let mut list = backend.locks(None).await?;
    for _ in 1..LOCK_PAGES_MAX {
        let Some(next) = list.next.take() else {
            break;
        };
        let page = backend.locks(Some(&next)).await?;
        list.locks.extend(page.locks);
        list.next = page.next;
    }
    let empty = "no locks are held";
    setup.out.print_list(&list, &List { items: &list.locks, columns: COLUMNS, chosen: columns, empty })?;
    if list.next.is_some() {
        setup.out.print_message("there are more: only the first ones are shown");
    }
    Ok(())
}

pub(super) async fn get(name: &str, setup: &Setup) -> anyhow::Result<()> {
    let list = Backend::open_existing(setup).await?.lock_holders(name).await?;
    let out = &setup.out;
    match out.format {
        Format::Json => out.print_json(&list)?,
        Format::Ndjson => list.locks.iter().try_for_each(|lock| out.print_json(lock))?,
        Format::Table | Format::Wide | Format::Name => {
            for lock in &list.locks {
                detail_lines(lock)
                    .into_iter()
                    .try_for_each(|(name, value)| out.print_line(&format!("{name:<8} {}", escape_text(&value))))?;
            }
        }
    }
    if list.locks.is_empty() { Err(not_held_error(name)) } else { Ok(()) }
}

fn detail_lines(lock: &LockView) -> [(&'static str, String); 8] {
    let format_time = |moment| format!("{} ({})", time::format_date_time(moment), time::format_relative(moment));
    [
        ("lock", lock.name.clone()),
        ("slot", lock.slot.to_string()),
        ("fence", lock.fence.to_string()),
        ("holder", lock.note.clone()),
        ("node", lock.node.clone()),
        ("since", format_since(lock, format_time)),
        ("expires", format!("{}, unless it is extended", format_time(time::from_millis(lock.expires_ms)))),
        ("waiters", lock.waiters.to_string()),
    ]
}

/// Formats the start of a hold; the lock of another system does not record it.
fn format_since(lock: &LockView, format: impl Fn(SystemTime) -> String) -> String {
    lock.since_ms.map(time::from_millis).map_or_else(|| "unknown".to_owned(), format)
}

fn not_held_error(name: &str) -> anyhow::Error {
    CliError::new(exit::NOT_FOUND, format!("lock {name} is not held; `duly lock ls` lists the locks that are"))
}

/// Formats the holders: `host:123 (since 2026-12-01 14:32:07, fence 42), ...`.
pub(super) fn format_holders(locks: &[LockView]) -> String {
    let format_holder = |lock: &LockView| {
        let since = format_since(lock, time::format_date_time);
        format!("{} (since {since}, fence {})", escape_text(&lock.note), lock.fence)
    };
    locks.iter().map(format_holder).collect::<Vec<_>>().join(", ")
}

pub(super) async fn break_lock(name: &str, slot: Option<u32>, all: bool, setup: &Setup) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    let locks = holds_to_break(name, backend.lock_holders(name).await?.locks, slot, all)?;
    let (escaped_name, held_by) = (escape_text(name), format_holders(&locks));
    let what = slot.map_or(format!("Lock {escaped_name}"), |slot| format!("Slot {slot} of lock {escaped_name}"));
    if !setup.yes && !input::confirm(&format!("{what} is held by {held_by}. Break it?"))? {
        return Err(CliError::new(exit::FAILURE, "nothing was broken"));
    }
    let hold = match &locks[..] {
        [hold] if !all => Some(hold),
        _ => None,
    };
    let broken = backend.break_lock(name, hold).await?.broken;
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
fn holds_to_break(name: &str, mut locks: Vec<LockView>, slot: Option<u32>, all: bool) -> anyhow::Result<Vec<LockView>> {
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
fn format_slots(locks: &[LockView]) -> String {
    let format_slot = |lock: &LockView| format!("slot {} {}", lock.slot, format_holders(std::slice::from_ref(lock)));
    locks.iter().map(format_slot).collect::<Vec<_>>().join(", ")
}
