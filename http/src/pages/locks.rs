//! The held locks, and breaking them.

use std::collections::HashSet;

use askama::Template;
use axum::Form;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::confirm::Confirmation;
use super::display::{self, Moment};
use super::layout::Layout;
use super::{PageResult, redirect_with_flash, render};
use crate::api::break_holds;
use crate::audit::AuditNote;
use crate::identity::Identity;
use crate::problem::Problem;
use crate::server::AppState;
use duly::NodeId;
use duly::admin::Role;
use duly::lock::{LockOwner, LockRecord};

#[derive(Template)]
#[template(path = "locks.html")]
struct LocksPage {
    layout: Layout,
    rows: Vec<LockRow>,
    next: String,
}

struct LockRow {
    name: String,
    slot: u32,
    /// Several owners may hold the lock.
    has_slots: bool,
    /// The first of several rows of this lock.
    is_first_of_several: bool,
    owner: String,
    node: String,
    node_short: String,
    /// The node has a page: it is still known.
    has_page: bool,
    note: String,
    fence: String,
    /// Unknown for a lock of another system.
    since: Option<Moment>,
    expires: Moment,
    waiters: u64,
}

impl LockRow {
    fn list(layout: &Layout, locks: &[LockRecord], nodes: &HashSet<NodeId>) -> Vec<LockRow> {
        let is_same = |at: Option<usize>, name: &str| at.and_then(|at| locks.get(at)).is_some_and(|l| l.name == name);
        let row = |(at, lock): (usize, &LockRecord)| {
            let (follows, precedes) = (is_same(at.checked_sub(1), &lock.name), is_same(Some(at + 1), &lock.name));
            LockRow {
                has_slots: follows || precedes || lock.slot > 1,
                is_first_of_several: precedes && !follows,
                has_page: nodes.contains(&lock.node),
                ..LockRow::new(layout, lock)
            }
        };
        locks.iter().enumerate().map(row).collect()
    }

    fn new(layout: &Layout, lock: &LockRecord) -> LockRow {
        let node = lock.node.to_string();
        LockRow {
            name: lock.name.clone(),
            slot: lock.slot,
            has_slots: false,
            is_first_of_several: false,
            owner: lock.owner.to_string(),
            node_short: display::short_id(&node),
            node,
            has_page: false,
            note: lock.note.clone(),
            fence: lock.fence.to_string(),
            since: lock.since.map(|since| layout.moment(since)),
            expires: layout.moment(lock.expires),
            waiters: lock.waiters,
        }
    }
}

#[derive(Deserialize, Default)]
pub(super) struct LocksParams {
    #[serde(default)]
    cursor: String,
}

/// `GET /locks`
pub(super) async fn list(State(app): AppState, Query(params): Query<LocksParams>, layout: Layout) -> PageResult {
    let layout = layout.with_title("/locks", "Locks");
    let found = app.duly.locks().list(Some(params.cursor.as_str()).filter(|cursor| !cursor.is_empty())).await?;
    let nodes = super::known_nodes(&app).await;
    let rows = LockRow::list(&layout, &found.locks, &nodes);
    let next =
        found.next_cursor.map(|next| format!("/locks?cursor={}", display::url_encode(&next))).unwrap_or_default();
    render(&LocksPage { layout, rows, next })
}

#[derive(Deserialize)]
pub(super) struct BreakForm {
    name: String,
    /// The owner of the hold to end; all holds if it is empty.
    #[serde(default)]
    owner: String,
    #[serde(default)]
    confirm: String,
}

/// `POST /locks/break`
pub(super) async fn break_lock(
    State(app): AppState,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    Form(form): Form<BreakForm>,
) -> PageResult {
    note.set_target(&form.name);
    identity.require(Role::Operator)?;
    let owner = Some(form.owner.as_str()).filter(|owner| !owner.is_empty());
    let owner: Option<LockOwner> = owner
        .map(|owner| owner.parse().map_err(|_| Problem::invalid("owner", "must be the owner id of a hold")))
        .transpose()?;
    if form.confirm.is_empty() {
        note.skip();
        let holds = app.duly.lock(&*form.name).holders().await?;
        let Some(confirmation) = confirmation(&layout, &form.name, owner, &holds) else {
            return redirect_with_flash(&layout, "/locks", "broken", Some(0), "");
        };
        let fields = [("name", form.name), ("owner", form.owner)];
        return confirmation.page(layout.with_title("/locks", ""), "/locks/break", &fields, "/locks");
    }
    if let Some(owner) = owner {
        note.set_owner(owner);
    }
    let is_one_of_several = owner.is_some() && app.duly.lock(&*form.name).holders().await?.len() > 1;
    let broken = break_holds(&app, &form.name, owner).await?;
    note.set_count(broken);
    let flash_key = if is_one_of_several { "hold-broken" } else { "broken" };
    redirect_with_flash(&layout, "/locks", flash_key, Some(broken), "")
}

/// Returns the question, which names the holders that lose the lock; `None` if none would.
fn confirmation(layout: &Layout, name: &str, owner: Option<LockOwner>, holds: &[LockRecord]) -> Option<Confirmation> {
    let chosen: Vec<&LockRecord> = holds.iter().filter(|hold| owner.is_none_or(|owner| hold.owner == owner)).collect();
    let (question, yes, no) = match chosen[..] {
        [] => return None,
        [hold] if holds.len() > 1 || hold.slot > 1 => {
            (format!("Break slot {} of lock {name}?", hold.slot), format!("Break slot {}", hold.slot), "Keep it")
        }
        [_] => (format!("Break lock {name}?"), "Break lock".to_owned(), "Keep it"),
        _ => {
            let holds = chosen.len();
            (format!("Break all {holds} holds of lock {name}?"), format!("Break all {holds}"), "Keep them")
        }
    };
    let holders: Vec<String> = chosen.iter().map(|hold| describe_holder(layout, hold)).collect();
    let explanation = format!(
        "Held by {}. A holder is told that it has lost the lock, and the first waiter may acquire it. A holder that \
         continues anyway is only kept out if the protected resource checks the fence.",
        holders.join("; ")
    );
    Some(Confirmation { question, explanation, yes, no })
}

/// Describes a holder: its note or its node, and since when it holds the lock.
fn describe_holder(layout: &Layout, hold: &LockRecord) -> String {
    let holder = if hold.note.is_empty() { hold.node.to_string() } else { hold.note.clone() };
    match hold.since {
        Some(since) => format!("{holder} since {}", layout.time_in_sentence(since)),
        None => holder,
    }
}
