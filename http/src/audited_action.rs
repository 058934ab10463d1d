//! The name of a request in the audit log, from its route: `jobs.remove`, `queues.pause`. Pure.

use axum::http::Method;

use super::api::PREFIX;

/// The action of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditedAction {
    /// The resource and the verb.
    pub(crate) name: String,
    /// The id or name in the path.
    pub(crate) target: Option<String>,
    /// Programs send such requests all the time: they are recorded only if a handler says so.
    pub(crate) is_routine: bool,
    /// The request may wait for something, and must end if its client goes away.
    pub(crate) waits: bool,
}

/// Requests below `/nodes/{id}` that workers send all the time.
const WORKER_REQUESTS: [&str; 4] = ["heartbeat", "claim", "settle", "progress"];

impl AuditedAction {
    /// Returns the action of a request that changes something. `pattern` is the matched route, `path` the path of the
    /// request; only the path is below the place where the router is mounted.
    pub(crate) fn new(method: &Method, pattern: &str, path: &str) -> Self {
        let (is_api, path) = match path.strip_prefix(PREFIX) {
            Some(rest) => (true, rest),
            None => (false, path),
        };
        let values: Vec<&str> = path.split('/').skip(1).collect();
        let pattern: Vec<&str> = pattern.split('/').collect();
        let pattern = &pattern[pattern.len().saturating_sub(values.len())..];
        let target = pattern.iter().zip(&values).rfind(|(name, _)| name.starts_with('{') && **name != "{action}");
        let target =
            target.map(|(_, value)| percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned());
        let literals: Vec<&str> =
            pattern.iter().zip(&values).filter(|(name, _)| !is_parameter(name)).map(|(_, value)| *value).collect();
        let resource = literals.first().copied().unwrap_or_default();
        let name = match (method.as_str(), &literals[..]) {
            ("DELETE", ["queues", "jobs"]) => "queues.clear".to_owned(),
            (_, ["login"]) => "sessions.create".to_owned(),
            (_, ["logout"]) => "sessions.remove".to_owned(),
            (_, ["push"]) | ("POST", ["jobs"]) => "jobs.push".to_owned(),
            ("POST", ["cron"]) => "cron.save".to_owned(),
            ("POST", ["calls"]) if !is_api => "calls.ping".to_owned(),
            ("POST", ["calls"]) => "calls.run".to_owned(),
            ("PUT", ["locks"]) => "locks.acquire".to_owned(),
            ("PATCH", ["locks"]) => "locks.extend".to_owned(),
            ("DELETE", ["locks"]) => "locks.release".to_owned(),
            ("POST", ["nodes"]) => "nodes.join".to_owned(),
            ("DELETE", ["nodes"]) => "nodes.leave".to_owned(),
            (_, [_, .., verb]) => format!("{resource}.{verb}"),
            (method, _) => format!("{resource}.{}", verb(method)),
        };
        let last = literals.last().copied().unwrap_or_default();
        let is_worker = resource == "nodes" && WORKER_REQUESTS.contains(&last);
        let is_routine = is_api
            && (["jobs.push", "jobs.bulk", "nodes.join", "nodes.leave"].contains(&name.as_str())
                || ["locks.acquire", "locks.extend", "locks.release"].contains(&name.as_str())
                || is_worker);
        let waits = is_api && ["nodes.claim", "locks.acquire", "calls.run"].contains(&name.as_str());
        AuditedAction { is_routine: is_routine || resource == "login", name, target, waits }
    }
}

/// Returns whether a part of a route stands for any value. The verb of a page's action is one, but is part of its name.
fn is_parameter(part: &str) -> bool {
    part.starts_with('{') && part != "{action}"
}

fn verb(method: &str) -> &'static str {
    match method {
        "PUT" => "save",
        "PATCH" => "edit",
        "DELETE" => "remove",
        _ => "create",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(request: &str, pattern: &str) -> AuditedAction {
        let (method, path) = request.split_once(' ').expect("two words");
        AuditedAction::new(&method.parse().expect("a method"), pattern, path)
    }

    #[test]
    fn administrative_requests_are_named() {
        let named = |request, pattern, name: &str, target: Option<&str>| {
            let action = action(request, pattern);
            assert_eq!((action.name.as_str(), action.target.as_deref(), action.is_routine), (name, target, false));
        };
        named("DELETE /api/v1/jobs/7", "/api/v1/jobs/{id}", "jobs.remove", Some("7"));
        named("PATCH /api/v1/jobs/7", "/api/v1/jobs/{id}", "jobs.edit", Some("7"));
        named("POST /api/v1/jobs/7/retry", "/api/v1/jobs/{id}/retry", "jobs.retry", Some("7"));
        named("POST /jobs/7/retry", "/jobs/{id}/{action}", "jobs.retry", Some("7"));
        named("POST /jobs/7/edit", "/duly/jobs/{id}/edit", "jobs.edit", Some("7"));
        named("POST /api/v1/queues/a%2Fb/pause", "/x/api/v1/queues/{queue}/pause", "queues.pause", Some("a/b"));
        named("DELETE /api/v1/queues/mail/jobs", "/api/v1/queues/{queue}/jobs", "queues.clear", Some("mail"));
        named("PATCH /api/v1/queues/mail", "/api/v1/queues/{queue}", "queues.edit", Some("mail"));
        named("POST /api/v1/tokens", "/api/v1/tokens", "tokens.create", None);
        named("DELETE /api/v1/tokens/ci", "/api/v1/tokens/{name}", "tokens.remove", Some("ci"));
        named("POST /api/v1/locks/deploy/break", "/api/v1/locks/{name}/break", "locks.break", Some("deploy"));
        named("POST /locks/break", "/locks/break", "locks.break", None);
        named("POST /logout", "/logout", "sessions.remove", None);
        named("POST /cron", "/cron", "cron.save", None);
        named("POST /api/v1/calls/duly.stop", "/api/v1/calls/{method}", "calls.run", Some("duly.stop"));
        named("POST /push", "/push", "jobs.push", None);
        // A rule or a queue may have the name of a routine request.
        named("PUT /api/v1/cron/bulk", "/api/v1/cron/{name}", "cron.save", Some("bulk"));
        named(
            "POST /api/v1/queues/heartbeat/resume",
            "/api/v1/queues/{queue}/resume",
            "queues.resume",
            Some("heartbeat"),
        );
        named("POST /api/v1/nodes/claim/stop", "/api/v1/nodes/{id}/stop", "nodes.stop", Some("claim"));
    }

    #[test]
    fn requests_of_programs_are_routine() {
        for (request, pattern) in [
            ("POST /api/v1/jobs", "/api/v1/jobs"),
            ("POST /api/v1/jobs/bulk", "/api/v1/jobs/bulk"),
            ("POST /api/v1/nodes", "/api/v1/nodes"),
            ("DELETE /api/v1/nodes/7", "/api/v1/nodes/{id}"),
            ("POST /api/v1/nodes/7/claim", "/api/v1/nodes/{id}/claim"),
            ("POST /api/v1/nodes/7/heartbeat", "/api/v1/nodes/{id}/heartbeat"),
            ("PUT /api/v1/locks/deploy", "/api/v1/locks/{name}"),
            ("POST /login", "/login"),
        ] {
            assert!(action(request, pattern).is_routine, "{request}");
        }
        assert!(action("POST /api/v1/nodes/7/claim", "/api/v1/nodes/{id}/claim").waits);
        assert!(!action("POST /api/v1/jobs", "/api/v1/jobs").waits, "its change is never abandoned");
    }
}
