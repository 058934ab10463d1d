//! Calls: from the call of a method on a node in another process until its reply is here.

use std::time::Instant;

use anyhow::{Result, ensure};
use duly::{Asked, Duly, NodeId};

use crate::child::Playing;
use crate::config::{DEFAULTS, Setting, noop_args, open, url};
use crate::report::{Line, Unit};
use crate::single_job::micros;
use crate::stats::Samples;

const GROUP: &str = "call";
const METHOD: &str = "echo";
/// So many are made before the measuring begins: connections are there then.
const WARM: usize = 20;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let file = setting.fresh(GROUP)?.join("duly.db");
    let duly = open(&file, DEFAULTS).await?;
    let other = Other::start(&duly, &url(&file, DEFAULTS)).await?;
    let mut took = Samples::default();
    for _ in 0..if setting.quick { 100 } else { 2_000 } {
        took.record(other.call().await?);
    }
    let line = |what: &str, value| Line::alone(GROUP, format!("call and its reply, {what}"), value, Unit::Micros);
    Ok(vec![line("p50", took.median()), line("p99", took.percentile(99.0))])
}

/// A node in another process that sends back what it is called with.
pub(crate) struct Other {
    duly: Duly,
    node: NodeId,
    /// As many bytes as a job's args have.
    text: String,
    _child: Playing,
}

impl Other {
    pub(crate) async fn start(duly: &Duly, url: &str) -> Result<Self> {
        let child = Playing::answer(url)?;
        let node = child.next_line()?.parse()?;
        let other = Other { duly: duly.clone(), node, text: noop_args(), _child: child };
        for _ in 0..WARM {
            other.call().await?;
            other.call_any().await?;
        }
        Ok(other)
    }

    /// Microseconds until this node's reply is here.
    pub(crate) async fn call(&self) -> Result<f64> {
        let begin = Instant::now();
        let reply: String = self.duly.call(METHOD, &self.text).node(self.node).reply().await?;
        self.check(begin, &reply)
    }

    /// The same if any node may answer: then one that does is looked for first.
    pub(crate) async fn call_any(&self) -> Result<f64> {
        let begin = Instant::now();
        let reply: String = self.duly.call(METHOD, &self.text).reply().await?;
        self.check(begin, &reply)
    }

    fn check(&self, begin: Instant, reply: &str) -> Result<f64> {
        let took = micros(begin.elapsed());
        ensure!(reply == self.text, "something else came back");
        Ok(took)
    }
}

/// The child.
pub(crate) async fn answer(duly: &Duly) -> Result<()> {
    let echo = |text: String, _: Asked| async { Ok::<_, std::convert::Infallible>(text) };
    duly.answer(METHOD, echo).await?;
    println!("ready");
    println!("{}", duly.node()?);
    std::future::pending().await
}
