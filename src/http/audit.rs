//! Who has changed what through this server: noted in the store for whatever somebody decided to do.
//!
//! The ordinary life of jobs (push, claim, settle) and of locks is no decision about others and is not noted.

use std::net::IpAddr;

use axum::http::{Method, StatusCode};

use super::server::App;
use super::who::Who;
use crate::store::Audit;

/// Ways that are no decisions: what programs do all day.
const DAILY: [&str; 4] = ["beat", "claim", "settle", "progress"];

/// Notes a request that has changed something, or was refused for want of a right: of refusals only so many of one name.
///
/// The request was for a route of ours: what leads nowhere is nobody's decision.
pub(super) async fn note(app: &App, who: &Who, from: Option<IpAddr>, method: &Method, path: &str, status: StatusCode) {
    if !is_decision(method, path)
        || !(status.is_success() || status.is_redirection() || status == StatusCode::FORBIDDEN)
    {
        return;
    }
    if status == StatusCode::FORBIDDEN && !app.limits.refusal(&who.name) {
        return;
    }
    let entry = Audit::new(&who.name, format!("{method} {path}"), from.map(|from| from.to_string()), status.as_u16());
    // Done is done: a store that cannot note it does not undo it.
    if let Err(error) = app.duly.put_audit(entry).await {
        tracing::error!(%error, who = who.name, %method, path, "a change could not be noted in the audit");
    }
}

fn is_decision(method: &Method, path: &str) -> bool {
    let changes = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    let api = path.strip_prefix("/api/v1");
    let parts: Vec<&str> = api.unwrap_or_default().split('/').skip(1).collect();
    let daily = match parts[..] {
        [] => path == "/login" || path == "/logout",
        ["jobs" | "nodes"] | ["jobs", "bulk"] | ["locks", _] => true,
        ["nodes", _] => method == Method::DELETE,
        ["nodes", _, deed] => DAILY.contains(&deed),
        _ => false,
    };
    changes && !daily
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_noted_and_daily_work_is_not() {
        let noted = |method: Method, path: &str| is_decision(&method, path);
        assert!(noted(Method::DELETE, "/api/v1/jobs/7"));
        assert!(noted(Method::POST, "/api/v1/jobs/7/retry"));
        assert!(noted(Method::POST, "/api/v1/queues/mail/pause"));
        assert!(noted(Method::POST, "/api/v1/tokens"));
        assert!(noted(Method::POST, "/api/v1/locks/deploy/break"));
        assert!(noted(Method::POST, "/jobs/7/retry"), "pages too");
        assert!(noted(Method::PUT, "/api/v1/cron/bulk") && noted(Method::POST, "/api/v1/queues/beat"), "by any name");
        assert!(!noted(Method::GET, "/api/v1/jobs"));
        assert!(!noted(Method::POST, "/api/v1/jobs"));
        assert!(!noted(Method::POST, "/api/v1/nodes/7/claim"));
        assert!(!noted(Method::PUT, "/api/v1/locks/deploy"));
    }
}
