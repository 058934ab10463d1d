//! `duly dead`: lists, retries and removes dead jobs, grouped by kind and error.

use clap::Subcommand;
use duly::{Duly, Filter, State};

use crate::audit::BulkAction;
use crate::bulk::{self, JobSelection, JobSelector};
use crate::exit::{self, CliError};
use crate::output::Format;
use crate::{Setup, store, time};

/// List dead jobs by kind and error; retry and remove them
#[derive(Debug, Subcommand)]
pub(crate) enum DeadVerb {
    /// List groups of dead jobs with the same kind and error
    Ls {
        /// Only this queue
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
    },
    /// Start dead jobs over, selected by group, id or filter
    Retry {
        #[command(flatten)]
        selector: JobSelector,
    },
    /// Delete dead jobs, selected by group, id or filter
    Rm {
        #[command(flatten)]
        selector: JobSelector,
    },
}

pub(crate) async fn run(verb: DeadVerb, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    match verb {
        DeadVerb::Ls { queue } => list(&duly, queue.as_deref(), setup).await,
        DeadVerb::Retry { selector } => {
            for filter in select_filters(&duly, &selector).await? {
                let action = BulkAction::on_filter(&duly, "jobs.retry", &filter);
                let retry = bulk::retry_all(&duly, filter);
                bulk::confirm_and_run(setup, action, retry, "Retry", "retried", selector.is_dry_run()).await?;
            }
            Ok(())
        }
        DeadVerb::Rm { selector } => {
            for filter in select_filters(&duly, &selector).await? {
                let action = BulkAction::on_filter(&duly, "jobs.remove", &filter);
                let remove = duly.jobs().remove_all(filter);
                bulk::confirm_and_run(setup, action, remove, "Remove", "removed", selector.is_dry_run()).await?;
            }
            Ok(())
        }
    }
}

/// Returns the filters for the selected dead jobs: one per group. Each group must exist.
async fn select_filters(duly: &Duly, selector: &JobSelector) -> anyhow::Result<Vec<Filter>> {
    let is_group = |word: &String| word.len() == 16 && word.chars().all(|c| c.is_ascii_hexdigit());
    let dead_only = |filter: Filter| filter.state(State::Dead);
    if !selector.is_empty() && !selector.words().is_empty() && selector.words().iter().all(is_group) {
        let group_filter = |group: &String| dead_only(Filter::all().group(group.clone()));
        let filters: Vec<Filter> = selector.words().iter().map(group_filter).collect();
        for (group, filter) in selector.words().iter().zip(&filters) {
            if bulk::retry_all(duly, filter.clone()).dry_run().await?.matching == 0 {
                return Err(CliError::new(exit::NOT_FOUND, format!("no such group: {group}; see `duly dead ls`")));
            }
        }
        return Ok(filters);
    }
    match selector.parse()? {
        JobSelection::Ids(_) => {
            Err(CliError::new(exit::USAGE, "these are ids of jobs: use duly jobs retry, or duly jobs rm"))
        }
        JobSelection::Filter(filter) if filter.state.is_some_and(|state| state != State::Dead) => {
            Err(CliError::new(exit::USAGE, "duly dead works on dead jobs only; leave out the state, or use duly jobs"))
        }
        JobSelection::Filter(filter) => Ok(vec![dead_only(*filter)]),
    }
}

async fn list(duly: &Duly, queue: Option<&str>, setup: &Setup) -> anyhow::Result<()> {
    let groups = duly.jobs().dead_groups(queue).await?;
    match setup.out.format {
        Format::Json => setup.out.print_json(&groups),
        Format::Ndjson => groups.iter().try_for_each(|group| setup.out.print_json(group)),
        Format::Table | Format::Wide => {
            let rows = groups.into_iter().map(|group| {
                let (count, newest) = (group.count.to_string(), time::format_relative(group.newest));
                [group.id, group.queue, group.kind, count, time::format_relative(group.oldest), newest, group.error]
            });
            setup.out.print_table(["GROUP", "QUEUE", "KIND", "JOBS", "OLDEST", "NEWEST", "ERROR"], rows.collect())
        }
    }
}
