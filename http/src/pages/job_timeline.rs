//! The life of a job: as a bar to scale, and as a list of what each attempt did.

use std::time::{Duration, SystemTime};

use super::display::{self, Moment};
use super::layout::Layout;
use duly::admin::NodeRecord;
use duly::job::{JobRun, RunOutcome};
use duly::{JobRecord, State as JobState};

/// The width of the bar in its own units.
const BAR_WIDTH: f64 = 1_000.0;
/// The width of an attempt that would be too narrow to see.
const RUN_WIDTH_MIN: f64 = 6.0;
/// A shorter time between attempts is no span of its own.
const GAP_MIN: Duration = Duration::from_millis(1);

/// An event in the history of a job.
pub(super) struct TimelineEntry {
    /// The CSS class of a state, for the colour.
    pub(super) class: &'static str,
    pub(super) title: String,
    pub(super) at: Option<Moment>,
    pub(super) node: String,
    pub(super) node_short: String,
    /// The node has a page: it is still known.
    pub(super) has_page: bool,
    /// When it started and how long it took.
    pub(super) facts: String,
    pub(super) error: String,
    pub(super) output: String,
}

/// Returns the history of a job, and its next known event.
pub(super) fn build_timeline(layout: &Layout, record: &JobRecord, nodes: &[NodeRecord]) -> Vec<TimelineEntry> {
    let plain = |class, title: String, at: Option<SystemTime>| TimelineEntry {
        class,
        title,
        at: at.map(|at| layout.moment(at)),
        node: String::new(),
        node_short: String::new(),
        has_page: false,
        facts: String::new(),
        error: String::new(),
        output: String::new(),
    };
    let mut entries = vec![plain("", "pushed".to_owned(), Some(record.job.pushed))];
    for run in &record.runs {
        let node = run.node.to_string();
        let (class, ending) = describe_outcome(run.outcome);
        entries.push(TimelineEntry {
            node_short: display::short_id(&node),
            has_page: nodes.iter().any(|known| known.id == run.node),
            node,
            facts: describe_run(layout, run),
            error: run.error.clone().unwrap_or_default(),
            output: run.output.clone().filter(|_| layout.can_see_args()).unwrap_or_default(),
            ..plain(class, format!("attempt {} {ending}", run.attempt), Some(run.ended))
        });
    }
    let next = record.attempts.saturating_add(1);
    entries.push(match record.state {
        JobState::Scheduled => plain("t-scheduled", format!("attempt {next} is due"), Some(record.due)),
        JobState::Ready => plain("t-ready", format!("attempt {next} is ready"), Some(record.due)),
        JobState::Running if record.cancelling => {
            plain("t-running", format!("attempt {next} is being cancelled"), None)
        }
        JobState::Running => plain("t-running", format!("attempt {next} runs"), None),
        JobState::Done => plain("t-done", "done".to_owned(), record.ended),
        JobState::Cancelled => plain("t-cancelled", "cancelled".to_owned(), record.ended),
        _ => plain("t-dead", "dead".to_owned(), record.ended),
    });
    entries
}

/// Returns the class of an event for an outcome, and how the attempt ended.
fn describe_outcome(outcome: RunOutcome) -> (&'static str, &'static str) {
    match outcome {
        RunOutcome::Ack => ("t-done", "succeeded"),
        RunOutcome::Release => ("t-ready", "was released"),
        RunOutcome::Crash => ("t-dead", "ended with its node"),
        _ => ("t-dead", "failed"),
    }
}

fn describe_run(layout: &Layout, run: &JobRun) -> String {
    let started = run.started.map(|at| format!("started {}", layout.time_in_sentence(at)));
    let took = run.duration.map(|duration| format!("took {}", display::duration(duration)));
    [started, took].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The life of a job as a bar to scale.
pub(super) struct Lifeline {
    pub(super) spans: Vec<BarSpan>,
    pub(super) sums: Vec<SpanSum>,
    pub(super) total: String,
    /// The same in words.
    pub(super) description: String,
}

/// A part of the bar.
pub(super) struct BarSpan {
    pub(super) class: &'static str,
    pub(super) x: String,
    pub(super) width: String,
    pub(super) label: String,
}

/// How long a job was in one kind of span.
pub(super) struct SpanSum {
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) duration: String,
}

/// A time in the life of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LifeSpan {
    kind: SpanKind,
    /// The attempt that ran.
    attempt: Option<u32>,
    time: Duration,
}

/// What a job did in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SpanKind {
    Scheduled,
    Waited,
    BackedOff,
    Released,
    Failed,
    Succeeded,
    /// Claimed. The store does not record since when.
    Claimed,
    Ended,
}

impl SpanKind {
    fn class(self) -> &'static str {
        match self {
            SpanKind::Scheduled => "s-scheduled",
            SpanKind::Waited => "s-wait",
            SpanKind::BackedOff => "s-backoff",
            SpanKind::Released => "s-released",
            SpanKind::Failed => "s-failed",
            SpanKind::Succeeded => "s-done",
            SpanKind::Claimed => "s-running",
            SpanKind::Ended => "s-ended",
        }
    }

    fn name(self) -> &'static str {
        match self {
            SpanKind::Scheduled => "scheduled",
            SpanKind::Waited => "waited",
            SpanKind::BackedOff => "backed off",
            SpanKind::Released => "ran and was released",
            SpanKind::Failed => "ran and failed",
            SpanKind::Succeeded => "ran and succeeded",
            SpanKind::Claimed => "waited, now runs",
            SpanKind::Ended => "had ended, was started over",
        }
    }
}

impl Lifeline {
    /// Returns the bar of a job; `None` if nothing has taken any time yet.
    pub(super) fn new(record: &JobRecord, now: SystemTime) -> Option<Lifeline> {
        let spans = life_spans(record, now);
        let total: Duration = spans.iter().map(|span| span.time).sum();
        if total.is_zero() {
            return None;
        }
        let labels: Vec<String> = spans.iter().map(describe_span).collect();
        Some(Lifeline {
            spans: draw_spans(&spans, total),
            sums: sum_by_kind(&spans),
            total: format!("{} in total", display::duration(total)),
            description: format!("To scale: {}", labels.join(", then ")),
        })
    }
}

/// Returns the bars of the spans. Narrow attempts are widened, at the expense of all spans.
fn draw_spans(spans: &[LifeSpan], total: Duration) -> Vec<BarSpan> {
    let width = |span: &LifeSpan| {
        let width = BAR_WIDTH * span.time.as_secs_f64() / total.as_secs_f64();
        if span.attempt.is_some() { width.max(RUN_WIDTH_MIN) } else { width }
    };
    let scale = BAR_WIDTH / spans.iter().map(width).sum::<f64>();
    let mut x = 0.0;
    let draw = |span: &LifeSpan| {
        let (from, width) = (x, width(span) * scale);
        x += width;
        let (x, width) = (format!("{from:.1}"), format!("{width:.1}"));
        BarSpan { class: span.kind.class(), x, width, label: describe_span(span) }
    };
    spans.iter().map(draw).collect()
}

fn describe_span(span: &LifeSpan) -> String {
    let time = display::duration(span.time);
    match span.attempt {
        Some(attempt) => format!("attempt {attempt} {} ({time})", span.kind.name()),
        None => format!("{} ({time})", span.kind.name()),
    }
}

fn sum_by_kind(spans: &[LifeSpan]) -> Vec<SpanSum> {
    let mut kinds: Vec<SpanKind> = spans.iter().map(|span| span.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let sum = |kind: SpanKind| {
        let time = spans.iter().filter(|span| span.kind == kind).map(|span| span.time).sum();
        SpanSum { class: kind.class(), name: kind.name(), duration: display::duration(time) }
    };
    kinds.into_iter().map(sum).collect()
}

/// Collects the spans of a life from its push on.
struct SpanCollector {
    spans: Vec<LifeSpan>,
    /// The end of the last span.
    cursor: SystemTime,
}

impl SpanCollector {
    /// Adds a span up to a time, unless that is past.
    fn add_until(&mut self, kind: SpanKind, to: SystemTime) {
        if let Ok(time) = to.duration_since(self.cursor)
            && time >= GAP_MIN
        {
            self.spans.push(LifeSpan { kind, attempt: None, time });
            self.cursor = to;
        }
    }

    /// Adds the time in which no attempt ran: before the job was due, if that is known, and after that.
    fn add_gap(&mut self, kind: SpanKind, due: Option<SystemTime>, to: SystemTime) {
        match due {
            Some(due) => {
                self.add_until(kind, due.min(to));
                self.add_until(SpanKind::Waited, to);
            }
            None => self.add_until(kind, to),
        }
    }

    /// Adds an attempt. One of unknown length has none.
    fn add_run(&mut self, run: &JobRun) {
        let kind = match run.outcome {
            RunOutcome::Ack => SpanKind::Succeeded,
            RunOutcome::Release => SpanKind::Released,
            _ => SpanKind::Failed,
        };
        let time = run.duration.unwrap_or_default();
        self.spans.push(LifeSpan { kind, attempt: Some(run.attempt), time });
        self.cursor += time;
    }
}

fn life_spans(record: &JobRecord, now: SystemTime) -> Vec<LifeSpan> {
    let mut life = SpanCollector { spans: Vec::new(), cursor: record.job.pushed };
    let mut gap = SpanKind::Scheduled;
    for (index, run) in record.runs.iter().enumerate() {
        let is_last = index + 1 == record.runs.len() && record.state.is_final();
        // Only the last due time is known. Before the first attempt a job mostly waits for a worker.
        let due = match (is_last, index) {
            (true, _) => Some(record.due),
            (false, 0) => Some(record.job.pushed),
            (false, _) => None,
        };
        life.add_gap(gap, due, run.started.unwrap_or(run.ended));
        life.add_run(run);
        gap = match run.outcome {
            RunOutcome::Retry => SpanKind::BackedOff,
            RunOutcome::Ack | RunOutcome::Bury => SpanKind::Ended,
            _ => SpanKind::Waited,
        };
    }
    match record.state {
        JobState::Running => {
            life.add_until(gap, record.due.min(now));
            life.add_until(SpanKind::Claimed, now);
        }
        JobState::Scheduled | JobState::Ready => life.add_gap(gap, Some(record.due), now),
        _ if record.runs.is_empty() => life.add_gap(gap, Some(record.due), record.ended.unwrap_or(now)),
        _ => {}
    }
    life.spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use duly::store::{AttemptEnd, AttemptTiming, Claim, JobStore, Node};
    use duly::{Duly, Outcome, Push};

    const SECOND: Duration = Duration::from_secs(1);

    /// Claims the ready job, runs it for this many seconds, and settles it with this outcome.
    async fn run(duly: &Duly, clock: &duly::Clock, secs: u32, outcome: Outcome) {
        let (store, node) = (duly.store(), Node::fresh(vec!["default".to_owned()]));
        store.heartbeat(&node).await.expect("joins");
        let held = store.claim(node.id, Claim::new("default", 1)).await.expect("claims").jobs.pop().expect("a job");
        let started = clock.now();
        clock.advance(secs * SECOND);
        let mut end = AttemptEnd::from_held(&held, outcome, 1_000 * SECOND);
        end.timing = Some(AttemptTiming { lateness: Duration::ZERO, duration: secs * SECOND });
        end.started = Some(started);
        store.settle(node.id, vec![end]).await.expect("settles");
    }

    /// A job that is scheduled for 10 s, waits 5 s, fails after 2 s, backs off for 30 s, waits 3 s, and succeeds after 1 s.
    #[tokio::test]
    async fn life_of_a_job_is_drawn_to_scale() {
        let clock = duly::Clock::manual();
        let duly = Duly::builder(":memory:").clock(clock.clone()).open().await.expect("opens");
        let id = duly.push(Push::new("mail", "{}").after(10 * SECOND)).await.expect("pushes").id();
        let lifeline = async || Lifeline::new(&duly.jobs().get(id).await.expect("reads").expect("exists"), duly.now());
        assert!(lifeline().await.is_none(), "nothing has taken any time");
        clock.advance(15 * SECOND);
        let waiting = lifeline().await.expect("has waited");
        assert_eq!(waiting.description, "To scale: scheduled (10 s), then waited (5.0 s)");
        run(&duly, &clock, 2, Outcome::retry(30 * SECOND, "oh")).await;
        clock.advance(33 * SECOND);
        run(&duly, &clock, 1, Outcome::Ack).await;
        clock.advance(100 * SECOND);

        let done = lifeline().await.expect("has a life");
        assert_eq!(done.total, "51 s in total", "the time since its end does not count");
        assert_eq!(
            done.description,
            "To scale: waited (15 s), then attempt 1 ran and failed (2.0 s), then backed off (30 s), then waited (3.0 s), \
             then attempt 2 ran and succeeded (1.0 s)"
        );
        let widths: Vec<f64> = done.spans.iter().map(|span| span.width.parse().expect("a number")).collect();
        let expected = [15.0, 2.0, 30.0, 3.0, 1.0].map(|secs| 1_000.0 * secs / 51.0);
        assert!(widths.iter().zip(expected).all(|(width, secs)| (width - secs).abs() < 0.2), "{widths:?}");
        let sums: Vec<_> = done.sums.iter().map(|sum| (sum.name, sum.duration.as_str())).collect();
        assert_eq!(sums[..2], [("waited", "18 s"), ("backed off", "30 s")]);
    }

    #[test]
    fn short_runs_of_a_long_life_stay_visible() {
        let spans = [(SpanKind::Waited, 90_000), (SpanKind::Failed, 0), (SpanKind::BackedOff, 10_000)];
        let spans = spans.map(|(kind, secs)| LifeSpan {
            kind,
            attempt: (kind == SpanKind::Failed).then_some(1),
            time: secs * SECOND,
        });
        let bars = draw_spans(&spans, 100_000 * SECOND);
        let widths: Vec<f64> = bars.iter().map(|bar| bar.width.parse().expect("a number")).collect();
        assert!((widths.iter().sum::<f64>() - BAR_WIDTH).abs() < 1.0 && widths[1] > 5.0, "{widths:?}");
    }
}
