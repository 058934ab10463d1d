//! `duly dead`: dead jobs by kind and error, and what to do with them.

use clap::Subcommand;
use duly::{Duly, Filter, State};

use crate::bulk::{self, Many, Meant};
use crate::exit::{self, Fail};
use crate::output::Format;
use crate::{Setup, store, time};

/// Look at dead jobs by kind and error, retry them, remove them
#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// List groups of dead jobs: those of one kind that died of the same
    Ls {
        /// Only of this queue
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
    },
    /// Let dead jobs start over: those of these groups, ids, or a filter
    Retry {
        #[command(flatten)]
        many: Many,
    },
    /// Delete dead jobs: those of these groups, ids, or a filter
    Rm {
        #[command(flatten)]
        many: Many,
    },
}

pub(crate) async fn run(verb: Dead, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open(setup).await?;
    match verb {
        Dead::Ls { queue } => list(&duly, queue.as_deref(), setup).await,
        Dead::Retry { many } => {
            for filter in filters(&duly, &many).await? {
                bulk::change(setup, bulk::retry(&duly, filter), "Retry", "retried", many.dry_run()).await?;
            }
            Ok(())
        }
        Dead::Rm { many } => {
            for filter in filters(&duly, &many).await? {
                bulk::change(setup, duly.remove_all(filter), "Remove", "removed", many.dry_run()).await?;
            }
            Ok(())
        }
    }
}

/// The dead jobs that are meant: one filter per group, of which each must be there.
async fn filters(duly: &Duly, many: &Many) -> anyhow::Result<Vec<Filter>> {
    let is_group = |word: &String| word.len() == 16 && word.chars().all(|c| c.is_ascii_hexdigit());
    let dead = |filter: Filter| Filter { state: Some(State::Dead), ..filter };
    if !many.is_empty() && !many.words().is_empty() && many.words().iter().all(is_group) {
        let of_group = |group: &String| dead(Filter { group: Some(group.clone()), ..Filter::all() });
        let filters: Vec<Filter> = many.words().iter().map(of_group).collect();
        for (group, filter) in many.words().iter().zip(&filters) {
            if bulk::retry(duly, filter.clone()).dry_run().await?.matching == 0 {
                return Err(Fail::new(exit::NOT_FOUND, format!("no such group: {group}; see `duly dead ls`")));
            }
        }
        return Ok(filters);
    }
    match many.meant()? {
        Meant::Ids(_) => Err(Fail::new(exit::USAGE, "these are ids of jobs: use duly jobs retry, or duly jobs rm")),
        Meant::Filter(filter) if filter.state.is_some_and(|state| state != State::Dead) => {
            Err(Fail::new(exit::USAGE, "this is about dead jobs: leave out the state, or use duly jobs"))
        }
        Meant::Filter(filter) => Ok(vec![dead(*filter)]),
    }
}

async fn list(duly: &Duly, queue: Option<&str>, setup: &Setup) -> anyhow::Result<()> {
    let groups = duly.dead_groups(queue).await?;
    match setup.out.format {
        Format::Json => setup.out.json(&groups),
        Format::Ndjson => groups.iter().try_for_each(|group| setup.out.json(group)),
        Format::Table | Format::Wide => {
            let rows = groups.into_iter().map(|group| {
                let (count, newest) = (group.count.to_string(), time::distance(group.newest));
                [group.id, group.queue, group.kind, count, time::distance(group.oldest), newest, group.error]
            });
            setup.out.table(["GROUP", "QUEUE", "KIND", "JOBS", "OLDEST", "NEWEST", "ERROR"], rows.collect())
        }
    }
}
