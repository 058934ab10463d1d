//! stub
pub(crate) mod worker;
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {}
pub(crate) async fn run(_: Demo, _: &crate::Session) -> anyhow::Result<()> {
    Ok(())
}
