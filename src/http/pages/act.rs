//! Deeds on many jobs: the selected ones, or all that a filter means. Counted and asked first, and never more than was counted.

use std::sync::Arc;

use askama::Template;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;

use super::frame::Frame;
use super::{Answer, done, page as answer, render, show};
use crate::admin::token::Role;
use crate::client::Duly;
use crate::error::Error;
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Who;
use crate::job::filter::Filter;
use crate::job::push::Due;
use crate::job::{JobId, State as JobState};

/// Most jobs that can be selected: more than a page shows.
const SELECTED_MAX: usize = 500;
/// Longest form, in fields.
const FIELDS_MAX: usize = SELECTED_MAX + 20;

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Retry,
    Cancel,
    Remove,
}

impl Deed {
    fn of(name: &str) -> Option<Deed> {
        match name {
            "retry" => Some(Deed::Retry),
            "cancel" => Some(Deed::Cancel),
            "remove" => Some(Deed::Remove),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Deed::Retry => "retry",
            Deed::Cancel => "cancel",
            Deed::Remove => "remove",
        }
    }

    /// What a page says afterwards.
    fn did(self) -> &'static str {
        match self {
            Deed::Retry => "retried",
            Deed::Cancel => "cancelled",
            Deed::Remove => "removed",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Deed::Retry => "Retry",
            Deed::Cancel => "Cancel",
            Deed::Remove => "Remove",
        }
    }

    /// What it means, for whoever is asked.
    fn words(self) -> &'static str {
        match self {
            Deed::Retry => {
                "Each is due now; dead ones start over, with their history kept. Those that run are left alone, and done ones \
                 unless they were asked for by state:done."
            }
            Deed::Cancel => {
                "Each is told to stop, and ends dead with the error \"cancelled\". Those that do not run are left alone."
            }
            Deed::Remove => "They are gone for good, with their history. Those that run are left alone.",
        }
    }
}

#[derive(Template)]
#[template(path = "sure.html")]
struct Sure {
    page: Frame,
    deed: Deed,
    /// All that match, or the selected.
    all: bool,
    q: String,
    ids: Vec<String>,
    next: String,
    count: u64,
    /// Not all were looked at: there may be more.
    more: bool,
    wrong: String,
}

/// What was sent: fields that may come many times.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    deed: String,
    q: String,
    next: String,
    ids: Vec<String>,
    /// How many were counted when it was asked.
    sure: String,
    /// The same, typed by hand.
    typed: String,
}

fn read(body: &[u8]) -> Result<Wish, Problem> {
    let mut wish = Wish::default();
    let mut all = String::new();
    for (at, (name, value)) in fields(body).enumerate() {
        if at == FIELDS_MAX || wish.ids.len() > SELECTED_MAX {
            return Err(Problem::invalid("id", format!("at most {SELECTED_MAX} jobs; use a filter to mean more")));
        }
        match name.as_str() {
            "do" => wish.deed = value,
            "all" => all = value,
            "q" => wish.q = value,
            "next" => wish.next = value,
            "id" => wish.ids.push(value),
            "sure" => wish.sure = value,
            "typed" => wish.typed = value,
            _ => {}
        }
    }
    if wish.deed == "all" {
        wish.deed = all;
    }
    Ok(wish)
}

/// A form's fields, in their order.
fn fields(body: &[u8]) -> impl Iterator<Item = (String, String)> + '_ {
    let decode = |part: &[u8]| {
        let spaced: Vec<u8> = part.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        percent_encoding::percent_decode(&spaced).decode_utf8_lossy().into_owned()
    };
    body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).map(move |pair| {
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        (decode(&pair[..at]), decode(pair.get(at + 1..).unwrap_or_default()))
    })
}

/// `POST /jobs/act`
pub(super) async fn act(State(app): State<Arc<App>>, who: Who, page: Frame, body: Bytes) -> Answer {
    who.may(Role::Operator)?;
    let wish = read(&body)?;
    let page = page.titled("/jobs", "Sure?");
    let (name, all) = match wish.deed.strip_suffix("-all") {
        Some(name) => (name, true),
        None => (wish.deed.as_str(), false),
    };
    let Some(deed) = Deed::of(name) else {
        return Err(Problem::invalid("do", "choose what to do: retry, cancel or remove"));
    };
    let next = super::back_to(&wish.next, "/jobs").to_owned();
    if all {
        of_all(&app.duly, page, deed, wish, next).await
    } else {
        of_selected(&app.duly, page, deed, wish, next).await
    }
}

async fn of_selected(duly: &Duly, page: Frame, deed: Deed, wish: Wish, next: String) -> Answer {
    let ids: Vec<JobId> = wish.ids.iter().map(|id| id.parse()).collect::<Result<_, Error>>()?;
    if ids.is_empty() {
        return Err(Problem::invalid("id", "select at least one job first"));
    }
    // What can be taken back, or does no harm twice, needs no question.
    if deed != Deed::Retry && wish.sure.is_empty() {
        let count = ids.len() as u64;
        let (q, ids) = (wish.q, wish.ids);
        return render(&Sure { page, deed, all: false, q, ids, next, count, more: false, wrong: String::new() });
    }
    let mut changed = 0;
    let mut refused = None;
    for id in ids {
        match one(duly, deed, id).await {
            Ok(()) => changed += 1,
            Err(error @ (Error::Conflict(_) | Error::NotFound { .. })) => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    match refused {
        Some(error) if changed == 0 => Err(error.into()),
        _ => done(&page, &next, deed.did(), Some(changed), ""),
    }
}

async fn one(duly: &Duly, deed: Deed, id: JobId) -> Result<(), Error> {
    match deed {
        Deed::Retry => duly.reschedule(id, Due::Now).await,
        Deed::Cancel => duly.cancel(id).await,
        Deed::Remove => duly.remove(id).await,
    }
}

async fn of_all(duly: &Duly, page: Frame, deed: Deed, wish: Wish, next: String) -> Answer {
    let filter: Filter = wish.q.parse()?;
    let bulk = match deed {
        Deed::Retry => duly.reschedule_all(filter, Due::Now),
        Deed::Cancel => duly.cancel_all(Filter { state: Some(JobState::Running), ..filter }),
        Deed::Remove => duly.remove_all(filter),
    };
    let counted = bulk.dry_run().await?;
    let count = counted.matching;
    let sure = wish.sure.parse::<u64>().ok();
    let mut view = Sure {
        page,
        deed,
        all: true,
        q: wish.q,
        ids: Vec::new(),
        next,
        count,
        more: !counted.whole,
        wrong: String::new(),
    };
    let Some(sure) = sure else {
        return render(&view);
    };
    // Gone for good needs a hand that typed how many, and never takes more than that.
    if deed == Deed::Remove && digits(&wish.typed) != Some(sure) {
        view.wrong = format!("type {} to say that you mean it", show::count(count));
        return answer(StatusCode::UNPROCESSABLE_ENTITY, &view);
    }
    if count > sure {
        view.wrong = format!("there were {} when this was asked; look again", show::count(sure));
        return answer(StatusCode::CONFLICT, &view);
    }
    let changed = bulk.run().await?;
    done(&view.page, &view.next, deed.did(), Some(changed.done), "")
}

fn digits(text: &str) -> Option<u64> {
    text.chars().filter(|c| !matches!(c, ',' | ' ' | '_' | '.')).collect::<String>().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_come_many_times() {
        let wish = read(b"do=all&all=remove-all&q=state%3Adead+kind%3Amail&id=a&id=b&next=%2Fdead&sure=12&typed=1%2C2")
            .expect("read");
        assert_eq!(wish.deed, "remove-all");
        assert_eq!((wish.q.as_str(), wish.next.as_str()), ("state:dead kind:mail", "/dead"));
        assert_eq!(wish.ids, ["a", "b"]);
        assert_eq!(digits("1,234"), Some(1_234));
        assert_eq!(digits("many"), None);
    }

    #[test]
    fn there_are_not_more_of_them_than_that() {
        let body = "id=a&".repeat(SELECTED_MAX + 2);
        assert_eq!(read(body.as_bytes()).expect_err("too many").code, "invalid");
    }
}
