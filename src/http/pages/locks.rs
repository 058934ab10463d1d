//! Locks that are held: by whom, since when, who waits; breaking one.

use std::sync::Arc;

use askama::Template;
use axum::Form;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::frame::Frame;
use super::show::{self, Moment};
use super::{Answer, done, render};
use crate::admin::token::Role;
use crate::http::server::App;
use crate::http::who::Who;
use crate::store::LockRecord;

#[derive(Template)]
#[template(path = "locks.html")]
struct Locks {
    page: Frame,
    rows: Vec<Row>,
    next: String,
}

struct Row {
    name: String,
    slot: u32,
    node: String,
    node_short: String,
    note: String,
    fence: String,
    since: Moment,
    ends: Moment,
    waiting: u64,
}

impl Row {
    fn of(page: &Frame, lock: &LockRecord) -> Row {
        let node = lock.node.to_string();
        Row {
            name: lock.name.clone(),
            slot: lock.slot,
            node_short: show::short(&node),
            node,
            note: lock.note.clone(),
            fence: lock.fence.to_string(),
            since: page.moment(lock.since),
            ends: page.moment(lock.ends),
            waiting: lock.waiting,
        }
    }
}

#[derive(Deserialize, Default)]
pub(super) struct Asked {
    #[serde(default)]
    cursor: String,
}

/// `GET /locks`
pub(super) async fn list(State(app): State<Arc<App>>, Query(asked): Query<Asked>, page: Frame) -> Answer {
    let page = page.titled("/locks", "Locks");
    let found = app.duly.locks(Some(asked.cursor.as_str()).filter(|cursor| !cursor.is_empty())).await?;
    let rows = found.locks.iter().map(|lock| Row::of(&page, lock)).collect();
    let next = found.next.map(|next| format!("/locks?cursor={}", show::encode(&next))).unwrap_or_default();
    render(&Locks { page, rows, next })
}

#[derive(Deserialize)]
pub(super) struct Wish {
    name: String,
    #[serde(default)]
    sure: String,
}

#[derive(Template)]
#[template(path = "sure_lock.html")]
struct Sure {
    page: Frame,
    name: String,
}

/// `POST /locks/break`
pub(super) async fn end(State(app): State<Arc<App>>, who: Who, page: Frame, Form(wish): Form<Wish>) -> Answer {
    who.may(Role::Operator)?;
    if wish.sure.is_empty() {
        return render(&Sure { page: page.titled("/locks", "Sure?"), name: wish.name });
    }
    app.duly.break_lock(&wish.name).await?;
    done(&page, "/locks", "broken", None, "")
}
