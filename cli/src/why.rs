//! `duly jobs why`: explains in one sentence why a job is not running.

use duly::JobId;

use crate::backend::Backend;
use crate::escape::escape_text;
use crate::output::Output;

pub(crate) async fn run(backend: &Backend, id: JobId, out: &Output) -> anyhow::Result<()> {
    let (why, sentence) = backend.why(id).await?;
    if out.is_json() { out.print_json(&why) } else { out.print_line(&escape_text(&sentence)) }
}
