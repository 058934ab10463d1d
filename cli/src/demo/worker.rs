//! stub
#[derive(Debug, clap::Args)]
pub(crate) struct DemoWorker {}
pub(crate) async fn run(_: DemoWorker) -> anyhow::Result<()> {
    Ok(())
}
