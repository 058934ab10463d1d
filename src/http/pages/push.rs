//! A job pushed by hand.

use std::sync::Arc;

use askama::Template;
use axum::Form;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::frame::Frame;
use super::job::length;
use super::{Answer, done, page as answer, render};
use crate::admin::token::Role;
use crate::error::Error;
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Who;
use crate::job::push::{DEFAULT_QUEUE, MAX_ATTEMPTS, Push};
use crate::job::{JobId, Priority};

#[derive(Template)]
#[template(path = "push.html")]
struct Page {
    page: Frame,
    wish: Wish,
    queues: Vec<String>,
    wrong: String,
}

/// What is in the form.
#[derive(Deserialize, Clone)]
pub(super) struct Wish {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    queue: String,
    #[serde(default)]
    args: String,
    #[serde(default)]
    after: String,
    #[serde(default)]
    priority: String,
    #[serde(default)]
    max_attempts: String,
    #[serde(default)]
    unique: String,
    #[serde(default)]
    tags: String,
}

#[derive(Deserialize, Default)]
pub(super) struct Asked {
    #[serde(default)]
    queue: String,
    #[serde(default)]
    kind: String,
    /// A job to be pushed again, edited.
    #[serde(default)]
    like: String,
}

/// `GET /push`
pub(super) async fn form(State(app): State<Arc<App>>, who: Who, Query(asked): Query<Asked>, page: Frame) -> Answer {
    who.may(Role::Pusher)?;
    let mut wish = Wish {
        kind: asked.kind,
        queue: if asked.queue.is_empty() { DEFAULT_QUEUE.to_owned() } else { asked.queue },
        args: "{}".to_owned(),
        after: String::new(),
        priority: Priority::default().as_str().to_owned(),
        max_attempts: MAX_ATTEMPTS.to_string(),
        unique: String::new(),
        tags: String::new(),
    };
    if let Ok(id) = asked.like.parse::<JobId>() {
        let record = app.duly.get(id).await?.ok_or_else(|| Error::NotFound { what: "job", name: id.to_string() })?;
        let job = record.job;
        wish.kind = job.kind;
        wish.queue = job.queue;
        if page.sees_args() {
            wish.args = job.args;
        }
        wish.priority = job.priority.as_str().to_owned();
        wish.max_attempts = job.max_attempts.to_string();
        wish.tags = job.tags.join(" ");
    }
    render(&view(page, wish, String::new()))
}

fn view(page: Frame, wish: Wish, wrong: String) -> Page {
    let page = page.titled("/jobs", "Push a job");
    let queues = page.counts.iter().map(|counts| counts.queue.clone()).take(200).collect();
    Page { page, wish, queues, wrong }
}

/// `POST /push`
pub(super) async fn push(State(app): State<Arc<App>>, who: Who, page: Frame, Form(wish): Form<Wish>) -> Answer {
    who.may(Role::Pusher)?;
    super::may_be_pushed(&app, &wish.kind)?;
    let pushed = match made(&wish) {
        Ok(push) => app.duly.push(push).await,
        Err(wrong) => Err(wrong),
    };
    match pushed {
        Ok(pushed) => {
            let deed = if pushed.is_new() { "pushed" } else { "there" };
            done(&page, &format!("/jobs/{}", pushed.id()), deed, None, "")
        }
        Err(error @ (Error::Store { .. } | Error::Unknown { .. } | Error::Timeout { .. })) => Err(Problem::from(error)),
        // What was written is still there, with what is wrong with it.
        Err(error) => answer(StatusCode::UNPROCESSABLE_ENTITY, &view(page, wish, error.to_string())),
    }
}

fn made(wish: &Wish) -> Result<Push, Error> {
    let mut push =
        Push::new(wish.kind.trim(), wish.args.trim()).queue(wish.queue.trim()).priority(wish.priority.parse()?);
    if !wish.after.trim().is_empty() {
        let wrong = || Error::invalid("after", "write how long from now, such as 30s, 10m, 2h30m or 3d");
        push = push.after(length(&wish.after).ok_or_else(wrong)?);
    }
    if !wish.max_attempts.trim().is_empty() {
        let wrong = |_| Error::invalid("max_attempts", "a whole number from 1");
        push = push.max_attempts(wish.max_attempts.trim().parse().map_err(wrong)?);
    }
    if !wish.unique.trim().is_empty() {
        push = push.unique(wish.unique.trim());
    }
    Ok(push.tags(wish.tags.split([',', ' ']).filter(|tag| !tag.is_empty())))
}
