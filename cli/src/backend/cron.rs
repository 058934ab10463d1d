//! Cron rules.

use duly::cron::{CronChange, CronChanges, CronRecord, CronRule};
use duly_http::views::{PushedView, RuleView, Rules};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Backend, to_millis};
use crate::api_client::{ApiClient, url_encode};
use crate::exit::{self, CliError};
use crate::{audit, time};

impl Backend {
    /// Returns all rules.
    pub(crate) async fn rules(&self) -> anyhow::Result<Rules> {
        match self {
            Backend::Store(duly) => Ok(Rules::new(&duly.crons().list().await?, duly.now())),
            Backend::Server(server) => server.get("/cron").await,
        }
    }

    /// Returns the rule with this name.
    pub(crate) async fn rule(&self, name: &str) -> anyhow::Result<RuleView> {
        let found = match self {
            Backend::Store(duly) => {
                let found = duly.crons().get(name).await?;
                found.map(|record| RuleView::new(&record, duly.now())).ok_or_else(|| unknown_rule(name))
            }
            Backend::Server(server) => server.get(&rule_path(name)).await,
        };
        found.map_err(|error| name_rules(error, name))
    }

    /// Stores a rule.
    pub(crate) async fn save_rule(&self, rule: CronRule) -> anyhow::Result<RuleView> {
        match self {
            Backend::Store(duly) => {
                let name = rule.name.clone();
                let saved = duly.crons().put(rule).await;
                Ok(RuleView::new(&audit::record(duly, "cron.save", name, saved).await?, duly.now()))
            }
            Backend::Server(server) => put_rule(server, &rule).await,
        }
    }

    /// Stops a rule from firing, or lets it fire again.
    pub(crate) async fn set_rule_paused(&self, name: &str, paused: bool) -> anyhow::Result<RuleView> {
        let verb = if paused { "pause" } else { "resume" };
        let changed = match self {
            Backend::Store(duly) => {
                let record = match paused {
                    true => duly.crons().pause(name).await,
                    false => duly.crons().resume(name).await,
                };
                let record = audit::record(duly, &format!("cron.{verb}"), name, record).await;
                record.map(|record| RuleView::new(&record, duly.now())).map_err(Into::into)
            }
            Backend::Server(server) => server.post(&format!("{}/{verb}", rule_path(name))).await,
        };
        changed.map_err(|error| name_rules(error, name))
    }

    /// Pushes the job of a rule now.
    pub(crate) async fn trigger_rule(&self, name: &str) -> anyhow::Result<PushedView> {
        let pushed = match self {
            Backend::Store(duly) => {
                let pushed = duly.crons().trigger(name).await;
                audit::record(duly, "cron.trigger", name, pushed).await.map(PushedView::from).map_err(Into::into)
            }
            Backend::Server(server) => server.post(&format!("{}/trigger", rule_path(name))).await,
        };
        pushed.map_err(|error| name_rules(error, name))
    }

    /// Deletes a rule.
    pub(crate) async fn remove_rule(&self, name: &str) -> anyhow::Result<()> {
        let removed = match self {
            Backend::Store(duly) => {
                let removed = duly.crons().remove(name).await;
                audit::record(duly, "cron.remove", name, removed).await.map_err(Into::into)
            }
            Backend::Server(server) => server.send("DELETE", &rule_path(name), None).await,
        };
        removed.map_err(|error| name_rules(error, name))
    }

    /// Returns what would change if the rules became exactly these; rules that are not among them stay unless `prune`.
    pub(crate) async fn compare_rules(&self, rules: &[CronRule], prune: bool) -> anyhow::Result<CronChanges> {
        let server = match self {
            Backend::Store(duly) => return Ok(duly.crons().diff(rules, prune).await?),
            Backend::Server(server) => server,
        };
        let stored: Rules = server.get("/cron").await?;
        let mut changes = CronChanges::new();
        for rule in rules {
            let new = RuleView::new(&CronRecord::new(rule.clone(), 0, None), time::now());
            let change = match stored.rules.iter().find(|found| found.name == rule.name) {
                None => CronChange::Add,
                Some(found) if is_same_rule(found, &new) => CronChange::Unchanged,
                Some(_) => CronChange::Update,
            };
            if changes.insert(rule.name.clone(), change).is_some() {
                return Err(CliError::new(exit::USAGE, format!("two rules have the name {}", rule.name)));
            }
        }
        for found in stored.rules.into_iter().filter(|_| prune) {
            changes.entry(found.name).or_insert(CronChange::Remove);
        }
        Ok(changes)
    }

    /// Makes the changes of [`Backend::compare_rules`]. `target` names their source for the audit log.
    pub(crate) async fn apply_rules(
        &self,
        rules: &[CronRule],
        prune: bool,
        changes: &CronChanges,
        target: &str,
    ) -> anyhow::Result<()> {
        let server = match self {
            Backend::Store(duly) => {
                let apply = duly.crons().apply(rules, prune);
                audit::record_steps(&[duly], "cron.apply", target, apply, || None).await?;
                return Ok(());
            }
            Backend::Server(server) => server,
        };
        for rule in rules {
            if changes.get(&rule.name).is_some_and(|change| *change != CronChange::Unchanged) {
                put_rule(server, rule).await?;
            }
        }
        for (name, _) in changes.iter().filter(|(_, change)| **change == CronChange::Remove) {
            self.remove_rule(name).await?;
        }
        Ok(())
    }
}

fn rule_path(name: &str) -> String {
    format!("/cron/{}", url_encode(name))
}

fn unknown_rule(name: &str) -> anyhow::Error {
    duly::Error::not_found("cron rule", name).into()
}

/// Adds to the error for an unknown rule how to find the names.
fn name_rules(error: anyhow::Error, name: &str) -> anyhow::Error {
    match exit::exit_code(&error) {
        exit::NOT_FOUND => CliError::new(exit::NOT_FOUND, format!("there is no cron rule {name}; see `duly cron ls`")),
        _ => error,
    }
}

/// A rule for a server.
#[derive(Serialize)]
struct RuleRequest<'r> {
    pattern: &'r str,
    tz: &'r str,
    kind: &'r str,
    args: Box<RawValue>,
    queue: &'r str,
    priority: &'static str,
    max_attempts: u32,
    timeout_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_ms: Option<u64>,
    tags: &'r [String],
    missed: String,
    overlap: &'static str,
    jitter_ms: u64,
}

async fn put_rule(server: &ApiClient, rule: &CronRule) -> anyhow::Result<RuleView> {
    let request = RuleRequest {
        pattern: &rule.pattern,
        tz: &rule.tz,
        kind: &rule.kind,
        args: super::jobs::parse_args(&rule.args)?,
        queue: &rule.queue,
        priority: rule.priority.as_str(),
        max_attempts: rule.max_attempts,
        timeout_ms: to_millis(rule.timeout),
        keep_ms: rule.keep.map(to_millis),
        tags: &rule.tags,
        missed: rule.missed.to_string(),
        overlap: rule.overlap.as_str(),
        jitter_ms: to_millis(rule.jitter),
    };
    server.request("PUT", &rule_path(&rule.name), Some(serde_json::to_string(&request)?)).await
}

/// Returns whether two rules push the same jobs at the same times.
fn is_same_rule(stored: &RuleView, new: &RuleView) -> bool {
    let settings = |rule: &RuleView| {
        let texts = [&rule.pattern, &rule.tz, &rule.queue, &rule.kind, &rule.priority, &rule.missed, &rule.overlap];
        let args = rule.args.as_ref().map(|args| args.get().to_owned());
        let numbers = (rule.max_attempts, rule.timeout_ms, rule.keep_ms, rule.jitter_ms);
        (texts.map(String::clone), args, numbers, rule.tags.clone())
    };
    settings(stored) == settings(new)
}
