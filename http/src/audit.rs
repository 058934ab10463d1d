//! Records administrative requests in the store's audit log.
//!
//! Routine requests of programs (push, claim, settle, acquire) are not recorded, unless an operator acts for another
//! client. The middleware records a request once it has ended, also if the client has gone away meanwhile.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use duly::admin::{AuditEntry, AuditOutcome};
use duly::bounds::AUDIT_TEXT_BYTES_MAX;

use super::audited_action::AuditedAction;
use super::server::App;

use crate::sync::LockExt;

/// Ids of jobs that fit into one entry; an id and a space have 37 bytes.
const IDS_PER_ENTRY: usize = AUDIT_TEXT_BYTES_MAX / 37;

/// Details of a request that only its handler knows, for the audit log.
#[derive(Clone, Default)]
pub(crate) struct AuditNote(Arc<Mutex<NoteFields>>);

/// The facts about a request that are known before its handler runs.
struct RequestFacts {
    action: AuditedAction,
    /// The name of the client; empty if it is not identified.
    actor: String,
    address: Option<IpAddr>,
}

#[derive(Default)]
struct NoteFields {
    /// `None` if the request changes nothing.
    request: Option<RequestFacts>,
    /// Whether to record the request, if the handler decides that.
    record: Option<bool>,
    actor: Option<String>,
    name: Option<String>,
    target: Option<String>,
    /// The changed things, if there may be several.
    changed_ids: Vec<String>,
    filter: Option<String>,
    count: Option<u64>,
    /// A part of the action has been carried out, however the rest ends.
    changed: bool,
}

impl NoteFields {
    /// Returns the entry; `None` if the request is not to be recorded.
    fn entry(&self, outcome: AuditOutcome) -> Option<AuditEntry> {
        let request = self.request.as_ref()?;
        let actor = self.actor.as_deref().unwrap_or(&request.actor);
        if actor.is_empty() || !self.record.unwrap_or(!request.action.is_routine) {
            return None;
        }
        let entry = AuditEntry::new(actor, self.name.as_deref().unwrap_or(&request.action.name), outcome);
        let target = self.target.clone().or_else(|| request.action.target.clone());
        let entry = entry.target(target).filter(self.filter.clone()).count(self.count);
        Some(entry.address(request.address.map(|address| address.to_string())))
    }

    /// Returns the entries: none if the request is not to be recorded, several if it names many changed things.
    fn take_entries(&mut self, outcome: AuditOutcome) -> Vec<AuditEntry> {
        let ids = std::mem::take(&mut self.changed_ids);
        match self.entry(outcome) {
            Some(entry) if !ids.is_empty() => {
                let ids = ids.chunks(IDS_PER_ENTRY);
                ids.map(|ids| entry.clone().target(ids.join(" ")).count(ids.len() as u64)).collect()
            }
            entry => entry.into_iter().collect(),
        }
    }
}

impl AuditNote {
    fn fields(&self) -> MutexGuard<'_, NoteFields> {
        self.0.lock_unpoisoned()
    }

    /// Leaves the request out: it changes nothing, as a confirmation page or a dry run.
    pub(crate) fn skip(&self) {
        self.fields().record = Some(false);
    }

    /// Records the request although it is a routine one.
    pub(crate) fn record(&self) {
        self.fields().record = Some(true);
    }

    /// Sets the client of a request that has signed in with it.
    pub(crate) fn set_actor(&self, actor: String) {
        self.fields().actor = Some(actor);
        self.record();
    }

    /// Sets the name of the action, if the route does not determine it.
    pub(crate) fn set_name(&self, name: String) {
        self.fields().name = Some(name);
    }

    pub(crate) fn set_target(&self, target: impl ToString) {
        self.fields().target = Some(target.to_string());
    }

    pub(crate) fn set_filter(&self, filter: impl ToString) {
        self.fields().filter = Some(filter.to_string());
    }

    /// Names the owner of the one hold that the action ends.
    pub(crate) fn set_owner(&self, owner: impl std::fmt::Display) {
        self.set_filter(format_args!("owner={owner}"));
    }

    pub(crate) fn set_count(&self, count: u64) {
        self.fields().count = Some(count);
    }

    /// Marks a part of the action as carried out: it is recorded even if the rest fails.
    pub(crate) fn set_changed(&self) {
        self.fields().changed = true;
    }

    /// Notes one of several things as changed: they are recorded even if the rest fails, in several entries if needed.
    pub(crate) fn add_changed(&self, id: impl ToString) {
        let mut fields = self.fields();
        fields.changed = true;
        fields.changed_ids.push(id.to_string());
    }

    /// Returns the entry of an action that a task of its own records, and leaves the request out. `None` if the request
    /// is not to be recorded.
    pub(crate) fn take_entry(&self, outcome: AuditOutcome) -> Option<AuditEntry> {
        let mut fields = self.fields();
        let entry = fields.entry(outcome);
        fields.record = Some(false);
        entry
    }
}

/// [`super::auth::handle_request`] puts the note into the request.
impl<S: Send + Sync> FromRequestParts<S> for AuditNote {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<AuditNote>().cloned().unwrap_or_default())
    }
}

/// A request to record. If it is dropped before its end, it is recorded as unknown.
pub(crate) struct AuditedRequest {
    app: Arc<App>,
    pub(crate) note: AuditNote,
    /// The request may wait for something, and must end if its client goes away.
    pub(crate) waits: bool,
    ended: bool,
}

impl AuditedRequest {
    /// `actor` is the name of the client, empty if it is not identified.
    pub(crate) fn new(app: Arc<App>, action: AuditedAction, actor: String, address: Option<IpAddr>) -> Self {
        let waits = action.waits;
        let fields = NoteFields { request: Some(RequestFacts { action, actor, address }), ..NoteFields::default() };
        AuditedRequest { app, note: AuditNote(Arc::new(Mutex::new(fields))), waits, ended: false }
    }

    /// Records the request with the status of its response.
    pub(crate) async fn end(mut self, status: StatusCode) {
        self.ended = true;
        let outcome = match status {
            _ if status.is_success() || status.is_redirection() => AuditOutcome::Done,
            StatusCode::FORBIDDEN => AuditOutcome::Refused,
            StatusCode::NOT_IMPLEMENTED => return,
            // The store or a node did not reply: the change may have been made.
            _ if status.is_server_error() => AuditOutcome::Unknown,
            _ if self.note.fields().changed => AuditOutcome::Done,
            // Nothing was changed.
            _ => return,
        };
        let entries = self.note.fields().take_entries(outcome);
        // Requests that are not recorded take nothing of this limit.
        let is_refused = outcome == AuditOutcome::Refused && !entries.is_empty();
        let actor = entries.first().map_or("", |entry| &entry.actor);
        if is_refused && !self.app.rate_limits.take_refusal(actor) {
            return;
        }
        for entry in entries {
            add(&self.app, entry).await;
        }
    }
}

impl Drop for AuditedRequest {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // The client has gone away, or the handler has panicked.
        let (entries, app) = (self.note.fields().take_entries(AuditOutcome::Unknown), self.app.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.app.tasks.track_future(async move {
                for entry in entries {
                    add(&app, entry).await;
                }
            }));
        }
    }
}

/// Adds an entry.
pub(crate) async fn add(app: &App, entry: AuditEntry) {
    // The change is already made: a store that cannot record it does not undo it.
    if let Err(error) = app.duly.audit().add(entry.clone()).await {
        tracing::error!(%error, actor = entry.actor, action = entry.action, target = entry.target, "could not record a change in the audit log");
    }
}
