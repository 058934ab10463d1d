//! The held locks, and breaking one.

use askama::Template;
use axum::Form;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::display::{self, Moment};
use super::layout::Layout;
use super::{PageResult, redirect_with_flash, render};
use crate::identity::Identity;
use crate::server::AppState;
use duly::admin::Role;
use duly::lock::LockRecord;

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
    node: String,
    node_short: String,
    note: String,
    fence: String,
    since: Moment,
    expires: Moment,
    waiters: u64,
}

impl LockRow {
    fn new(layout: &Layout, lock: &LockRecord) -> LockRow {
        let node = lock.node.to_string();
        LockRow {
            name: lock.name.clone(),
            slot: lock.slot,
            node_short: display::short_id(&node),
            node,
            note: lock.note.clone(),
            fence: lock.fence.to_string(),
            since: layout.moment(lock.since),
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
    let found = app.duly.locks(Some(params.cursor.as_str()).filter(|cursor| !cursor.is_empty())).await?;
    let rows = found.locks.iter().map(|lock| LockRow::new(&layout, lock)).collect();
    let next =
        found.next_cursor.map(|next| format!("/locks?cursor={}", display::url_encode(&next))).unwrap_or_default();
    render(&LocksPage { layout, rows, next })
}

#[derive(Deserialize)]
pub(super) struct BreakForm {
    name: String,
    #[serde(default)]
    confirm: String,
}

#[derive(Template)]
#[template(path = "confirm_lock.html")]
struct ConfirmLockPage {
    layout: Layout,
    name: String,
}

/// `POST /locks/break`
pub(super) async fn break_lock(
    State(app): AppState,
    identity: Identity,
    layout: Layout,
    Form(form): Form<BreakForm>,
) -> PageResult {
    identity.require(Role::Operator)?;
    if form.confirm.is_empty() {
        return render(&ConfirmLockPage { layout: layout.with_title("/locks", "Sure?"), name: form.name });
    }
    app.duly.break_lock(&form.name).await?;
    redirect_with_flash(&layout, "/locks", "broken", None, "")
}
