//! `duly dead`: lists, retries and removes dead jobs, grouped by kind and error.

use clap::Subcommand;
use duly::{Filter, State};
use duly_http::views::{Action, GroupView};

use crate::backend::{Backend, BulkTarget};
use crate::bulk::{self, JobSelection, JobSelector};
use crate::exit::{self, CliError};
use crate::output::{Column, ColumnArgs, List};
use crate::{Setup, time};

/// List dead jobs by kind and error; retry and remove them
#[derive(Debug, Subcommand)]
pub(crate) enum DeadVerb {
    /// List groups of dead jobs with the same kind and error
    Ls {
        /// Only this queue
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
        #[command(flatten)]
        columns: ColumnArgs,
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

/// The columns of `ls`.
const COLUMNS: &[Column<GroupView>] = &[
    Column::new("GROUP", |group| group.id.clone()),
    Column::new("QUEUE", |group| group.queue.clone()),
    Column::new("KIND", |group| group.kind.clone()),
    Column::new("JOBS", |group| group.count.to_string()),
    Column::new("OLDEST", |group| time::format_relative(time::from_millis(group.oldest_ms))),
    Column::new("NEWEST", |group| time::format_relative(time::from_millis(group.newest_ms))),
    Column::new("ERROR", |group| group.error.clone()),
];

pub(crate) async fn run(verb: DeadVerb, setup: &Setup) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    let (action, selector) = match verb {
        DeadVerb::Ls { queue, columns } => {
            let list = backend.dead_groups(queue.as_deref()).await?;
            let empty = "no dead jobs";
            return setup
                .out
                .print_list(&list, &List { items: &list.groups, columns: COLUMNS, chosen: &columns, empty });
        }
        DeadVerb::Retry { selector } => (Action::Retry, selector),
        DeadVerb::Rm { selector } => (Action::Remove, selector),
    };
    for filter in select_filters(&backend, &selector).await? {
        let target = BulkTarget::Filter(action, Box::new(filter));
        bulk::confirm_and_run(setup, &backend, target, selector.is_dry_run()).await?;
    }
    Ok(())
}

/// Returns the filters for the selected dead jobs: one per group. Each group must exist.
async fn select_filters(backend: &Backend, selector: &JobSelector) -> anyhow::Result<Vec<Filter>> {
    let is_group = |word: &String| word.len() == 16 && word.chars().all(|c| c.is_ascii_hexdigit());
    let dead_only = |filter: Filter| filter.state(State::Dead);
    if !selector.is_empty() && !selector.words().is_empty() && selector.words().iter().all(is_group) {
        let group_filter = |group: &String| dead_only(Filter::all().group(group.clone()));
        let filters: Vec<Filter> = selector.words().iter().map(group_filter).collect();
        for (group, filter) in selector.words().iter().zip(&filters) {
            let target = BulkTarget::Filter(Action::Retry, Box::new(filter.clone()));
            if backend.count_jobs(&target).await?.matching == 0 {
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
