//! Calls: from the call of a method on a node in another process until its reply is here.

use std::time::Instant;

use anyhow::{Result, ensure};
use duly::{CallContext, Duly, NodeId};

use crate::child::BenchProcess;
use crate::config::{BenchConfig, DEFAULTS, noop_args, open_store, store_url};
use crate::report::{ReportLine, Unit};
use crate::single_job::to_micros;
use crate::stats::Samples;

const GROUP: &str = "call";
const METHOD: &str = "echo";
/// So many are made before the measuring begins: connections are there then.
const WARMUP_CALLS: usize = 20;

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let file = setting.fresh_dir(GROUP)?.join("duly.db");
    let duly = open_store(&file, DEFAULTS).await?;
    let other = EchoNode::start(&duly, &store_url(&file, DEFAULTS)).await?;
    let mut took = Samples::default();
    for _ in 0..if setting.is_quick { 100 } else { 2_000 } {
        took.record(other.call().await?);
    }
    let line =
        |what: &str, value| ReportLine::single(GROUP, format!("call and its reply, {what}"), value, Unit::Micros);
    Ok(vec![line("p50", took.median()), line("p99", took.percentile(99.0))])
}

/// A node in another process that sends back what it is called with.
pub(crate) struct EchoNode {
    duly: Duly,
    node: NodeId,
    /// As many bytes as a job's args have.
    args: String,
    _child: BenchProcess,
}

impl EchoNode {
    pub(crate) async fn start(duly: &Duly, url: &str) -> Result<Self> {
        let child = BenchProcess::start_callee(url)?;
        let node = child.next_line()?.parse()?;
        let other = EchoNode { duly: duly.clone(), node, args: noop_args(), _child: child };
        for _ in 0..WARMUP_CALLS {
            other.call().await?;
            other.call_any().await?;
        }
        Ok(other)
    }

    /// Microseconds until this node's reply is here.
    pub(crate) async fn call(&self) -> Result<f64> {
        let begin = Instant::now();
        let reply: String = self.duly.call(METHOD, &self.args).node(self.node).reply().await?;
        self.check_reply(begin, &reply)
    }

    /// The same if any node may answer: then one that does is looked for first.
    pub(crate) async fn call_any(&self) -> Result<f64> {
        let begin = Instant::now();
        let reply: String = self.duly.call(METHOD, &self.args).reply().await?;
        self.check_reply(begin, &reply)
    }

    fn check_reply(&self, begin: Instant, reply: &str) -> Result<f64> {
        let took = to_micros(begin.elapsed());
        ensure!(reply == self.args, "something else came back");
        Ok(took)
    }
}

/// The child.
pub(crate) async fn run_callee(duly: &Duly) -> Result<()> {
    let echo = |text: String, _: CallContext| async { Ok::<_, std::convert::Infallible>(text) };
    duly.on_call(METHOD, echo).await?;
    println!("ready");
    println!("{}", duly.node_id()?);
    std::future::pending().await
}
