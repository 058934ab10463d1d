//! Calls: the time from calling a method on a node in another process until its reply arrives.

use std::time::Instant;

use anyhow::{Result, ensure};
use duly::call::CallContext;
use duly::{Duly, NodeId};

use crate::child::BenchProcess;
use crate::config::{BenchConfig, DEFAULTS, noop_args, open_store, store_url};
use crate::report::{ReportLine, Unit};
use crate::single_job::to_micros;
use crate::stats::Samples;

const GROUP: &str = "call";
const METHOD: &str = "echo";
/// Calls before the measurement begins, to establish connections.
const WARMUP_CALLS: usize = 20;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let file = config.fresh_dir(GROUP)?.join("duly.db");
    let duly = open_store(&file, DEFAULTS).await?;
    let node = EchoNode::start(&duly, &store_url(&file, DEFAULTS)).await?;
    let mut durations = Samples::default();
    for _ in 0..if config.is_quick { 100 } else { 2_000 } {
        durations.record(node.call().await?);
    }
    let line =
        |label: &str, value| ReportLine::single(GROUP, format!("call and its reply, {label}"), value, Unit::Micros);
    Ok(vec![line("p50", durations.median()), line("p99", durations.percentile(99.0))])
}

/// A node in another process that replies with its args.
pub(crate) struct EchoNode {
    duly: Duly,
    node: NodeId,
    /// As many bytes as the args of a job.
    args: String,
    _child: BenchProcess,
}

impl EchoNode {
    pub(crate) async fn start(duly: &Duly, url: &str) -> Result<Self> {
        let child = BenchProcess::start_callee(url)?;
        let node = child.next_line()?.parse()?;
        let echo_node = EchoNode { duly: duly.clone(), node, args: noop_args(), _child: child };
        for _ in 0..WARMUP_CALLS {
            echo_node.call().await?;
            echo_node.call_any().await?;
        }
        Ok(echo_node)
    }

    /// Returns the microseconds until this node's reply arrives.
    pub(crate) async fn call(&self) -> Result<f64> {
        let begin = Instant::now();
        let reply: String = self.duly.call(METHOD, &self.args).node(self.node).reply().await?;
        self.check_reply(begin, &reply)
    }

    /// Like `call`, but for any node: the caller first looks for one with the method.
    pub(crate) async fn call_any(&self) -> Result<f64> {
        let begin = Instant::now();
        let reply: String = self.duly.call(METHOD, &self.args).reply().await?;
        self.check_reply(begin, &reply)
    }

    fn check_reply(&self, begin: Instant, reply: &str) -> Result<f64> {
        let duration = to_micros(begin.elapsed());
        ensure!(reply == self.args, "the reply differs from the args");
        Ok(duration)
    }
}

/// Runs the child process.
pub(crate) async fn run_callee(duly: &Duly) -> Result<()> {
    let echo = |text: String, _: CallContext| async { Ok::<_, std::convert::Infallible>(text) };
    duly.on_call(METHOD, echo).await?;
    println!("ready");
    println!("{}", duly.node_id()?);
    std::future::pending().await
}
