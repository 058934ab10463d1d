//! Records administrative requests in the store's audit log.
//!
//! Routine requests of jobs, workers and locks (push, claim, settle, acquire) are not recorded.

use std::net::IpAddr;

use axum::http::{Method, StatusCode};
use duly::admin::AuditEntry;

use super::identity::Identity;
use super::server::App;

/// Requests below `/nodes/{id}` that workers make all the time.
const WORKER_REQUESTS: [&str; 4] = ["heartbeat", "claim", "settle", "progress"];

/// Records a request that changed something, or that was refused because of the client's role. Refusals are recorded
/// only at a limited rate per client.
///
/// The caller passes only requests that matched a route.
pub(super) async fn record(
    app: &App,
    identity: &Identity,
    address: Option<IpAddr>,
    method: &Method,
    path: &str,
    status: StatusCode,
) {
    if !is_audited(method, path) || !(status.is_success() || status.is_redirection() || status == StatusCode::FORBIDDEN)
    {
        return;
    }
    if status == StatusCode::FORBIDDEN && !app.rate_limits.take_refusal(&identity.name) {
        return;
    }
    let address = address.map(|address| address.to_string());
    let entry = AuditEntry::new(&identity.name, format!("{method} {path}"), address, status.as_u16());
    // The change is already made: a store that cannot record it does not undo it.
    if let Err(error) = app.duly.add_audit_entry(entry).await {
        tracing::error!(%error, actor = identity.name, %method, path, "could not record a change in the audit log");
    }
}

fn is_audited(method: &Method, path: &str) -> bool {
    let changes = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let api = path.strip_prefix("/api/v1");
    let segments: Vec<&str> = api.unwrap_or_default().split('/').skip(1).collect();
    let routine = match segments[..] {
        [] => path == "/login" || path == "/logout",
        ["jobs" | "nodes"] | ["jobs", "bulk"] | ["locks", _] => true,
        ["nodes", _] => method == Method::DELETE,
        ["nodes", _, request] => WORKER_REQUESTS.contains(&request),
        _ => false,
    };
    changes && !routine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrative_requests_are_audited_and_routine_ones_are_not() {
        let audited = |method: Method, path: &str| is_audited(&method, path);
        assert!(audited(Method::DELETE, "/api/v1/jobs/7"));
        assert!(audited(Method::POST, "/api/v1/jobs/7/retry"));
        assert!(audited(Method::POST, "/api/v1/queues/mail/pause"));
        assert!(audited(Method::POST, "/api/v1/tokens"));
        assert!(audited(Method::POST, "/api/v1/locks/deploy/break"));
        assert!(audited(Method::POST, "/jobs/7/retry"), "pages too");
        let by_any_name =
            audited(Method::PUT, "/api/v1/cron/bulk") && audited(Method::POST, "/api/v1/queues/heartbeat");
        assert!(by_any_name, "a rule or a queue may be called like a routine request");
        assert!(!audited(Method::GET, "/api/v1/jobs"));
        assert!(!audited(Method::POST, "/api/v1/jobs"));
        assert!(!audited(Method::POST, "/api/v1/nodes/7/claim"));
        assert!(!audited(Method::POST, "/api/v1/nodes/7/heartbeat"));
        assert!(!audited(Method::PUT, "/api/v1/locks/deploy"));
    }
}
