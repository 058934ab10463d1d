//! `duly doctor`: prints the health report of the store.

use duly::admin::{Health, StoreUrl};
use serde_json::{Map, Value, json};

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::{BOLD, YELLOW, paint};
use crate::{Setup, store, time};

/// The store's clock in microseconds, printed as a date instead.
const CLOCK_FACT_NAME: &str = "clock_us";

/// Report the durability of the store, and recommended changes
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print the command that creates a Redis user with the minimal rights for duly; contacts no server
    #[arg(long)]
    acl: bool,
    /// Add the right to CONFIG GET, so that `doctor` can report how often the server syncs its append-only file. CONFIG
    /// GET also shows the server's password
    #[arg(long, requires = "acl")]
    with_config: bool,
}

pub(crate) async fn run(setup: &Setup, doctor: &DoctorArgs) -> anyhow::Result<()> {
    let url = StoreUrl::parse(&store::resolve_url(setup)?)?;
    if doctor.acl {
        // Does not open the store: a user who needs these rules has no access yet.
        let unsupported = "--acl supports only redis:// and sidekiq://, also with TLS, Sentinel or Cluster; name such a server: duly --store redis://HOST doctor --acl";
        let rules = url.acl().ok_or_else(|| CliError::new(exit::USAGE, unsupported))?;
        let config = if doctor.with_config { " +config|get" } else { "" };
        return setup.out.print_line(&format!("ACL SETUSER duly on >PASSWORD {rules}{config}"));
    }
    let duly = store::open_existing(setup).await?;
    let mut health = duly.health().await?;
    let nodes = duly.nodes().list().await;
    let delayed = duly.crons().delayed().await;
    health.warnings.extend(delayed.as_ref().err().map(|error| format!("cron rules cannot be checked: {error}")));
    for record in delayed.unwrap_or_default() {
        let (name, queue) = (&record.rule.name, &record.rule.queue);
        health.warnings.push(format!(
            "cron rule {name} waits too long: its tick was planned while the clock was ahead; run a worker of queue {queue}, or duly verify --repair"
        ));
    }
    // An unavailable part of the store is a warning; the other facts are still printed.
    let alive = match nodes {
        Ok(nodes) => nodes.iter().filter(|node| node.alive).count().to_string(),
        Err(error) => {
            health.warnings.push(format!("nodes cannot be counted: {error}"));
            "unknown".to_owned()
        }
    };
    let facts = collect_facts(&url.to_string(), &health, alive);
    if setup.out.is_json() {
        let facts: Map<String, Value> = facts.into_iter().map(|(name, value)| (name, json!(value))).collect();
        let report = json!({"durability": health.durability, "facts": facts, "warnings": health.warnings});
        return setup.out.print_json(&report);
    }
    let out = &setup.out;
    out.print_line(&paint(BOLD, escape_text(&health.durability)))?;
    for (name, value) in facts {
        out.print_line(&format!("{name:<14}  {}", escape_text(&value)))?;
    }
    for warning in &health.warnings {
        out.print_line(&format!("{}  {}", paint(YELLOW, "warning       "), escape_text(warning)))?;
    }
    if health.warnings.is_empty() {
        out.print_line("nothing to repair")?;
    }
    Ok(())
}

fn collect_facts(url: &str, health: &Health, alive: String) -> Vec<(String, String)> {
    let now = time::now();
    let mut facts =
        vec![("store".to_owned(), url.to_owned()), ("duly".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    facts.extend(health.facts.iter().filter(|(name, _)| name != CLOCK_FACT_NAME).cloned());
    facts.push(("clock".to_owned(), time::format_rfc3339(now)));
    facts.push(("zone".to_owned(), time::local_zone_name()));
    facts.push(("nodes_alive".to_owned(), alive));
    facts
}
