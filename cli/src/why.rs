//! `duly jobs why`: explains in one sentence why a job is not running.

use duly::admin::Why;
use duly::{Duly, JobId};
use serde::Serialize;

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::Output;
use crate::time;

/// The cause for scripts, with the sentence for people.
#[derive(Serialize)]
struct WhyOutput<'w> {
    id: JobId,
    #[serde(flatten)]
    why: &'w Why,
    sentence: String,
}

pub(crate) async fn run(duly: &Duly, id: JobId, out: &Output) -> anyhow::Result<()> {
    let why = duly.jobs().why(id).await?;
    if why == Why::NotFound {
        return Err(CliError::new(exit::NOT_FOUND, format!("job {id}: {why}")));
    }
    if out.is_json() {
        return out.print_json(&WhyOutput { id, sentence: why.to_string(), why: &why });
    }
    out.print_line(&escape_text(&why.describe(time::format_date_time)))
}
