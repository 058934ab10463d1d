//! `duly jobs why`: one sentence why a job is not running.

use duly::{Duly, JobId, Why};
use serde::Serialize;

use crate::escape::safe;
use crate::exit::{self, Fail};
use crate::output::Out;

/// The cause for scripts, with the sentence for people.
#[derive(Serialize)]
struct Told<'w> {
    id: JobId,
    #[serde(flatten)]
    why: &'w Why,
    sentence: String,
}

pub(crate) async fn run(duly: &Duly, id: JobId, out: &Out) -> anyhow::Result<()> {
    let why = duly.why(id).await?;
    if why == Why::NotFound {
        return Err(Fail::new(exit::NOT_FOUND, format!("job {id}: {why}")));
    }
    if out.is_json() {
        return out.json(&Told { id, sentence: why.to_string(), why: &why });
    }
    out.line(&safe(&why.to_string()))
}
