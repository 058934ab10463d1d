//! Actions on many jobs: the selected ones, or all that match a filter. A confirmation shows their number, and the
//! action never changes more.

use std::sync::Arc;

use askama::Template;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;

use super::layout::Layout;
use super::{PageResult, display, redirect_with_flash, render, render_with_status};
use crate::api::{check_command_job, without_commands};
use crate::audit::AuditNote;
use crate::bulk_task::BulkTask;
use crate::identity::Identity;
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use duly::Duly;
use duly::Error;
use duly::Filter;
use duly::JobId;
use duly::admin::Role;
use duly::job::Due;

/// The most selected jobs: more than a page shows.
const SELECTED_MAX: usize = 500;
/// The most fields of a form.
const FIELDS_MAX: usize = SELECTED_MAX + 20;

/// An action on many jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BulkAction {
    Retry,
    Cancel,
    Remove,
}

impl BulkAction {
    fn parse(name: &str) -> Option<BulkAction> {
        match name {
            "retry" => Some(BulkAction::Retry),
            "cancel" => Some(BulkAction::Cancel),
            "remove" => Some(BulkAction::Remove),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            BulkAction::Retry => "retry",
            BulkAction::Cancel => "cancel",
            BulkAction::Remove => "remove",
        }
    }

    /// Returns the key of the flash message.
    fn flash_key(self) -> &'static str {
        match self {
            BulkAction::Retry => "retried",
            BulkAction::Cancel => "cancelled",
            BulkAction::Remove => "removed",
        }
    }

    fn label(self) -> &'static str {
        match self {
            BulkAction::Retry => "Retry",
            BulkAction::Cancel => "Cancel",
            BulkAction::Remove => "Remove",
        }
    }

    /// Returns the explanation for the confirmation page.
    fn explanation(self) -> &'static str {
        match self {
            BulkAction::Retry => {
                "Each becomes due now. Dead jobs start over and keep their history. Running jobs are left alone; done and \
                 cancelled jobs too, unless the filter has state:done or state:cancelled."
            }
            BulkAction::Cancel => {
                "They do not run again. The handlers of running jobs are told to stop, and may still succeed. Done and dead \
                 jobs are left alone."
            }
            BulkAction::Remove => {
                "The jobs and their history are deleted. This cannot be undone. Running jobs are left alone."
            }
        }
    }
}

#[derive(Template)]
#[template(path = "confirm_bulk.html")]
struct ConfirmBulkPage {
    layout: Layout,
    action: BulkAction,
    /// The action applies to all jobs that match, not to the selected ones.
    all: bool,
    q: String,
    ids: Vec<String>,
    next: String,
    count: u64,
    /// Not all jobs were examined: more may match.
    more: bool,
    error: String,
}

/// The submitted form. Fields may repeat.
#[derive(Debug, Default, PartialEq, Eq)]
struct BulkForm {
    action: String,
    q: String,
    next: String,
    ids: Vec<String>,
    /// The number of jobs that the confirmation page showed.
    confirm: String,
    /// The same number, typed by the user.
    typed: String,
}

fn parse_form(body: &[u8]) -> Result<BulkForm> {
    let mut form = BulkForm::default();
    let mut all = String::new();
    for (at, (name, value)) in form_fields(body).enumerate() {
        if at == FIELDS_MAX || form.ids.len() > SELECTED_MAX {
            return Err(Problem::invalid("id", format!("at most {SELECTED_MAX} jobs; use a filter to select more")));
        }
        match name.as_str() {
            "do" => form.action = value,
            "all" => all = value,
            "q" => form.q = value,
            "next" => form.next = value,
            "id" => form.ids.push(value),
            "confirm" => form.confirm = value,
            "typed" => form.typed = value,
            _ => {}
        }
    }
    if form.action == "all" {
        form.action = all;
    }
    Ok(form)
}

/// Returns the fields of a form in their order.
fn form_fields(body: &[u8]) -> impl Iterator<Item = (String, String)> + '_ {
    let decode = |part: &[u8]| {
        let unescaped: Vec<u8> = part.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
        percent_encoding::percent_decode(&unescaped).decode_utf8_lossy().into_owned()
    };
    body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).map(move |pair| {
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        (decode(&pair[..at]), decode(pair.get(at + 1..).unwrap_or_default()))
    })
}

/// `POST /jobs/actions`
pub(super) async fn run(
    State(app): AppState,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    body: Bytes,
) -> PageResult {
    identity.require(Role::Operator)?;
    let form = parse_form(&body)?;
    let (name, all) = match form.action.strip_suffix("-all") {
        Some(name) => (name, true),
        None => (form.action.as_str(), false),
    };
    let Some(action) = BulkAction::parse(name) else {
        return Err(Problem::invalid("do", "choose an action: retry, cancel or remove"));
    };
    let layout = layout.with_title("/jobs", format!("{} jobs?", action.label()));
    let next = super::local_path_or(&form.next, "/jobs").to_owned();
    note.set_name(format!("jobs.{}", action.as_str()));
    if all {
        run_for_all(&app, &note, layout, action, form, next).await
    } else {
        run_for_selected(&app, &note, layout, action, form, next).await
    }
}

async fn run_for_selected(
    app: &App,
    note: &AuditNote,
    layout: Layout,
    action: BulkAction,
    form: BulkForm,
    next: String,
) -> PageResult {
    let ids: Vec<JobId> = form.ids.iter().map(|id| id.parse()).collect::<Result<_, Error>>()?;
    if ids.is_empty() {
        return Err(Problem::invalid("id", "select at least one job first"));
    }
    note.set_target(ids.iter().map(JobId::to_string).collect::<Vec<_>>().join(" "));
    // A retry is harmless, and needs no confirmation.
    if action != BulkAction::Retry && form.confirm.is_empty() {
        note.skip();
        let count = ids.len() as u64;
        let (q, ids) = (form.q, form.ids);
        return render(&ConfirmBulkPage {
            layout,
            action,
            all: false,
            q,
            ids,
            next,
            count,
            more: false,
            error: String::new(),
        });
    }
    let mut changed = 0;
    let mut refusal = None;
    if action == BulkAction::Retry {
        for id in &ids {
            check_command_job(app, *id).await?;
        }
    }
    for id in ids {
        match run_for_one(&app.duly, action, id).await {
            Ok(()) => {
                changed += 1;
                note.add_changed(id);
            }
            Err(error @ (Error::Conflict { .. } | Error::NotFound { .. })) => refusal = Some(error),
            Err(error) => {
                // The request may have been executed.
                note.add_changed(id);
                return Err(error.into());
            }
        }
    }
    match refusal {
        Some(error) if changed == 0 => Err(error.into()),
        _ => redirect_with_flash(&layout, &next, action.flash_key(), Some(changed), ""),
    }
}

async fn run_for_one(duly: &Duly, action: BulkAction, id: JobId) -> Result<(), Error> {
    match action {
        BulkAction::Retry => duly.jobs().reschedule(id, Due::Now).await,
        BulkAction::Cancel => duly.jobs().cancel(id).await.map(drop),
        BulkAction::Remove => duly.jobs().remove(id).await,
    }
}

async fn run_for_all(
    app: &Arc<App>,
    note: &AuditNote,
    layout: Layout,
    action: BulkAction,
    form: BulkForm,
    next: String,
) -> PageResult {
    let (duly, filter): (&Duly, Filter) = (&app.duly, Filter::parse_for_change(&form.q)?);
    note.set_filter(&form.q);
    let bulk = match action {
        BulkAction::Retry => duly.jobs().reschedule_all(without_commands(app, filter), Due::Now),
        BulkAction::Cancel => duly.jobs().cancel_all(filter),
        BulkAction::Remove => duly.jobs().remove_all(filter),
    };
    let counted = bulk.dry_run().await?;
    let count = counted.matching;
    let confirmed = form.confirm.parse::<u64>().ok();
    let mut view = ConfirmBulkPage {
        layout,
        action,
        all: true,
        q: form.q,
        ids: Vec::new(),
        next,
        count,
        more: !counted.is_complete,
        error: String::new(),
    };
    let Some(confirmed) = confirmed else {
        note.skip();
        return render(&view);
    };
    // A removal is final: the user must type the number of jobs, and the action never removes more.
    if action == BulkAction::Remove && parse_count(&form.typed) != Some(confirmed) {
        view.error = format!("type {} to confirm", display::count(count));
        return render_with_status(StatusCode::UNPROCESSABLE_ENTITY, &view);
    }
    if count > confirmed {
        view.error = format!(
            "the filter matched {} when you were asked, and matches more now; check the number and confirm again",
            display::count(confirmed)
        );
        return render_with_status(StatusCode::CONFLICT, &view);
    }
    match BulkTask::start(app, note, bulk, |_| {}).await.wait().await? {
        Some(done) => redirect_with_flash(&view.layout, &view.next, action.flash_key(), Some(done.applied), ""),
        None => redirect_with_flash(&view.layout, &view.next, "continues", None, ""),
    }
}

fn parse_count(text: &str) -> Option<u64> {
    text.chars().filter(|c| !matches!(c, ',' | ' ' | '_' | '.')).collect::<String>().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_repeat() {
        let form = parse_form(
            b"do=all&all=remove-all&q=state%3Adead+kind%3Amail&id=a&id=b&next=%2Fdead&confirm=12&typed=1%2C2",
        )
        .expect("read");
        assert_eq!(form.action, "remove-all");
        assert_eq!((form.q.as_str(), form.next.as_str()), ("state:dead kind:mail", "/dead"));
        assert_eq!(form.ids, ["a", "b"]);
        assert_eq!(parse_count("1,234"), Some(1_234));
        assert_eq!(parse_count("many"), None);
    }

    #[test]
    fn the_number_of_selected_jobs_is_bounded() {
        let body = "id=a&".repeat(SELECTED_MAX + 2);
        assert_eq!(parse_form(body.as_bytes()).expect_err("too many").code, "invalid");
    }
}
