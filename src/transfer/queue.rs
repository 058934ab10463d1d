//! One queue between two stores: taken over from whoever moved it before, carried batch by batch, let go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::client::Duly;
use crate::clock::{Clock, Micros, from_micros, to_micros};
use crate::error::{Error, Result};
use crate::job::push::is_word;
use crate::job::{Failure, Fence, JobId, Record, State, UNREADABLE};
use crate::node::NodeId;
use crate::store::{FAILURES_MAX, Filter, MOVE_MAX, Marker, MoveIn, MovedIn};
use crate::transfer::QueueMoved;
use crate::transfer::retrying_store::Side;

/// How often a marker is read again because another mover has just changed it: it can do so once, then it is refused.
const TAKE_OVERS_MAX: u32 = 5;
/// How many batches in a row may be gone already when they are deleted: an answer may be lost.
const IN_VAIN_MAX: u32 = 3;
/// Jobs in the first batch; later ones are larger as long as they stay below so many bytes.
const BATCH_MIN: usize = 50;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// The stores at both ends.
#[derive(Clone)]
pub(crate) struct Ends {
    /// The store that the jobs leave.
    pub(crate) source: Side,
    /// The store that they go to.
    pub(crate) target: Side,
    pub(crate) mover: NodeId,
    /// Where that is, for people.
    pub(crate) to: String,
    /// Another system's programs have filled the store that the jobs leave.
    pub(crate) foreign: bool,
    /// How long dead jobs stay there.
    keep_dead: Duration,
    clock: Clock,
}

impl Ends {
    pub(crate) fn new(source: &Duly, target: &Duly, mover: NodeId, to: String, calls_left: Option<u64>) -> Self {
        let calls_left = calls_left.map(|calls| Arc::new(AtomicU64::new(calls)));
        Ends {
            source: Side::new(source.store.clone(), calls_left.clone()),
            target: Side::new(target.store.clone(), calls_left),
            mover,
            to,
            foreign: false,
            keep_dead: target.options.keep_dead,
            clock: target.options.clock.clone(),
        }
    }

    /// The same the other way round, to put in order what was carried that way.
    pub(crate) fn turned(&self, to: &str) -> Self {
        Ends { source: self.target.clone(), target: self.source.clone(), to: to.to_owned(), ..self.clone() }
    }

    /// The note that a move has left in the store that the jobs go to.
    pub(crate) async fn note(&self, queue: &str, begun_by: NodeId) -> Result<Option<String>> {
        let marker = Marker { begun_by, was: None, is: None };
        match self.put(queue, Arc::new([]), marker, Fence(0)).await? {
            MovedIn::Lost(note) => Ok(note),
            MovedIn::Yes { .. } | MovedIn::Taken(_) => Ok(None),
        }
    }

    async fn put(&self, queue: &str, jobs: Arc<[Record]>, marker: Marker, fence: Fence) -> Result<MovedIn> {
        let batch = MoveIn { queue: queue.to_owned(), jobs, marker, fence, keep_dead: self.keep_dead };
        self.target.move_in(&batch).await
    }
}

/// What a mover notes in the store that the jobs go to.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    mover: NodeId,
    /// Counts this mover's batches, so that no two notes are the same.
    step: u64,
    /// The jobs that came last, and when each was pushed.
    jobs: Vec<(JobId, Micros)>,
}

impl Note {
    fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::store("move", e.to_string()))
    }

    fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|e| {
            Error::store("move", format!("what an earlier move has noted cannot be read: {e}; was it a newer duly's?"))
        })
    }

    fn jobs(&self) -> Vec<(JobId, SystemTime)> {
        self.jobs.iter().map(|(id, pushed)| (*id, from_micros(*pushed))).collect()
    }
}

/// A queue in a mover's hands.
pub(crate) struct Carrier<'e> {
    ends: &'e Ends,
    queue: &'e str,
    begun_by: NodeId,
    fence: Fence,
    /// The marker as we have left it.
    note: Option<String>,
    step: u64,
    /// How many jobs to read next.
    limit: usize,
    /// How often a job has gone under each id, where another system's programs may give one to several.
    gone: HashMap<JobId, u32>,
    /// How often in a row nothing was found that was to be deleted.
    in_vain: u32,
}

impl<'e> Carrier<'e> {
    /// Takes a queue for this mover, and puts in order what an earlier one has left.
    pub(crate) async fn begin(ends: &'e Ends, queue: &'e str) -> Result<Self> {
        let marked = ends.source.set_moving(queue, ends.mover, Some(&ends.to)).await?;
        let Some(moving) = marked.moving else {
            return Err(Error::store("move", "the store did not keep its mark"));
        };
        let mut carrier = Carrier {
            ends,
            queue,
            begun_by: moving.begun_by,
            fence: marked.fence,
            note: None,
            step: 0,
            limit: BATCH_MIN,
            gone: HashMap::new(),
            in_vain: 0,
        };
        let last = carrier.take_over().await?;
        carrier.delete(&last).await?;
        Ok(carrier)
    }

    /// Puts our name on the marker. Answers what came last, which may not have been deleted yet.
    async fn take_over(&mut self) -> Result<Vec<(JobId, SystemTime)>> {
        let mut found: Option<String> = None;
        for _ in 0..TAKE_OVERS_MAX {
            let last = found.as_deref().map(Note::parse).transpose()?;
            let jobs = last.map(|note| note.jobs).unwrap_or_default();
            let note = Note { mover: self.ends.mover, step: 0, jobs };
            self.note = found;
            match self.put(Arc::new([]), Some(note.text()?)).await? {
                MovedIn::Lost(other) => found = other,
                MovedIn::Yes { .. } | MovedIn::Taken(_) => return Ok(note.jobs()),
            }
        }
        Err(self.lost())
    }

    /// Puts jobs into the other store, and changes the marker with them. Only if it answers yes is anything changed.
    async fn put(&mut self, jobs: Arc<[Record]>, is: Option<String>) -> Result<MovedIn> {
        let marker = Marker { begun_by: self.begun_by, was: self.note.clone(), is: is.clone() };
        let moved_in = self.ends.put(self.queue, jobs, marker, self.fence).await?;
        if let MovedIn::Yes { .. } = moved_in {
            self.note = is;
        }
        Ok(moved_in)
    }

    /// Deletes jobs where they came from. Answers how many were still there.
    async fn delete(&self, jobs: &[(JobId, SystemTime)]) -> Result<usize> {
        let gone = self.ends.source.move_out(self.queue, self.ends.mover, jobs).await?;
        gone.ok_or_else(|| self.lost())
    }

    fn lost(&self) -> Error {
        Error::Conflict(format!("another move has taken queue {} over", self.queue))
    }

    /// The next jobs in this state; `None` if there are no more.
    pub(crate) async fn read(&mut self, state: State) -> Result<Option<Vec<Record>>> {
        let mut cursor: Option<String> = None;
        loop {
            let filter = Filter {
                queue: Some(self.queue.to_owned()),
                state: Some(state),
                limit: self.limit,
                cursor,
                failures: true,
                ..Filter::default()
            };
            let page = self.ends.source.list(filter).await?;
            if !page.jobs.is_empty() {
                return self.batch(page.jobs).map(Some);
            }
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// As many of these jobs as fit into one step.
    fn batch(&mut self, mut jobs: Vec<Record>) -> Result<Vec<Record>> {
        if let Some(strange) = jobs.iter().find(|record| record.job.kind == UNREADABLE) {
            let id = strange.job.id;
            return Err(Error::store("move", format!("job {id} was written by a newer duly: move with that one")));
        }
        if let Some(odd) = jobs.iter().find(|record| !is_word(&record.job.kind)) {
            let (id, kind) = (odd.job.id, &odd.job.kind);
            let reason =
                format!("job {id} is of the kind {kind:?}, which only its own store can keep: remove it there first");
            return Err(Error::store("move", reason));
        }
        if let Some(running) = jobs.iter().find(|record| record.state == State::Running) {
            return Err(Error::Conflict(format!("job {} runs although its queue is moving", running.job.id)));
        }
        let (fit, limit) = fit(&jobs.iter().map(bytes).collect::<Vec<_>>(), self.limit);
        jobs.truncate(fit);
        self.limit = limit;
        // Each id once in a step: a second job with one is for the next.
        let mut ids = HashSet::new();
        let twice = jobs.iter().position(|record| !ids.insert(record.job.id));
        jobs.truncate(twice.unwrap_or(fit));
        Ok(jobs)
    }

    /// Nothing goes on if what is to be deleted is never found, and comes again each time.
    fn check_progress(&mut self, deleted: usize, named: &[(JobId, Micros)]) -> Result<()> {
        self.in_vain = if deleted == 0 { self.in_vain + 1 } else { 0 };
        match self.in_vain {
            0..=IN_VAIN_MAX => Ok(()),
            _ => Err(Error::Conflict(format!(
                "jobs of queue {} come back each time they are deleted, such as {}; stop whatever else writes there",
                self.queue,
                named.first().map(|(id, _)| id.to_string()).unwrap_or_default()
            ))),
        }
    }

    /// A second job under an id that has gone is another job, where ids are not duly's: it gets one of its own.
    fn tell_apart(&self, record: &mut Record) {
        if let Some(no) = self.gone.get(&record.job.id) {
            record.job.id = JobId::named(&format!("{} {no} {}", record.job.id, to_micros(record.job.pushed)));
        }
    }

    /// Brings jobs to the other store, and deletes them here.
    pub(crate) async fn carry(&mut self, mut jobs: Vec<Record>, moved: &mut QueueMoved) -> Result<()> {
        let named: Vec<_> = jobs.iter().map(|record| (record.job.id, to_micros(record.job.pushed))).collect();
        jobs.iter_mut().for_each(|record| self.tell_apart(record));
        self.step += 1;
        let note = Note { mover: self.ends.mover, step: self.step, jobs: named };
        let is = note.text()?;
        let (mut jobs, mut buried): (Arc<[Record]>, u64) = (jobs.into(), 0);
        // Each turn there are fewer that have a key to be taken.
        let known = loop {
            match self.put(jobs.clone(), Some(is.clone())).await? {
                MovedIn::Yes { known } => break known,
                MovedIn::Lost(_) => return Err(self.lost()),
                MovedIn::Taken(taken) => {
                    let mut some = jobs.to_vec();
                    some.iter_mut().filter(|record| taken.contains(&record.job.id)).for_each(|r| self.bury(r));
                    (jobs, buried) = (some.into(), buried + taken.len() as u64);
                }
            }
        };
        // One that was not found may still be there, and then it is the same job when it comes again.
        let deleted = self.delete(&note.jobs()).await?;
        if deleted == note.jobs.len() && self.ends.foreign {
            note.jobs.iter().for_each(|(id, _)| *self.gone.entry(*id).or_default() += 1);
        }
        self.check_progress(deleted, &note.jobs)?;
        count(&jobs, &known, moved);
        moved.buried += buried;
        Ok(())
    }

    /// Of two unfinished jobs with one unique key only one may stay so; the other is kept for people to look at.
    fn bury(&self, record: &mut Record) {
        let now = self.ends.clock.now();
        record.state = State::Dead;
        record.ended = Some(now);
        record.failures.push(Failure {
            at: now,
            attempt: record.attempts.saturating_add(1),
            node: self.ends.mover,
            error: "when it was moved here, another job had its unique key".to_owned(),
        });
        let too_many = record.failures.len().saturating_sub(FAILURES_MAX);
        record.failures.drain(..too_many);
    }

    /// Nothing is left: the marker goes, then the mark.
    pub(crate) async fn end(mut self) -> Result<()> {
        if let MovedIn::Lost(_) = self.put(Arc::new([]), None).await? {
            return Err(self.lost());
        }
        self.ends.source.set_moving(self.queue, self.ends.mover, None).await.map(drop)
    }
}

/// About how much room a job takes on its way.
fn bytes(record: &Record) -> usize {
    let history: usize = record.failures.iter().map(|failed| failed.error.len()).sum();
    let said: usize = record.log.iter().map(|said| said.line.len()).sum();
    record.job.args.len() + history + said + record.result.as_ref().map_or(0, String::len)
}

/// How many jobs of these sizes go into one step, at least one; and how many to read after `limit`.
fn fit(sizes: &[usize], limit: usize) -> (usize, usize) {
    let mut sum = 0;
    let fit = sizes.iter().take_while(|size| {
        sum += **size;
        sum <= BATCH_BYTES
    });
    let fit = fit.count().max(1).min(sizes.len());
    let next = if fit < sizes.len() || sum > BATCH_BYTES / 2 { fit } else { 2 * limit };
    (fit, next.clamp(1, MOVE_MAX))
}

fn count(jobs: &[Record], known: &[JobId], moved: &mut QueueMoved) {
    let known: HashSet<&JobId> = known.iter().collect();
    for record in jobs {
        let count = match record.state {
            _ if known.contains(&record.job.id) => &mut moved.known,
            State::Ready | State::Running => &mut moved.ready,
            State::Scheduled => &mut moved.scheduled,
            State::Dead => &mut moved.dead,
            State::Done => &mut moved.done,
        };
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_until_they_are_heavy() {
        assert_eq!(fit(&[10; 50], 50), (50, 100));
        assert_eq!(fit(&[10; 7], 400), (7, MOVE_MAX));
        assert_eq!(fit(&[BATCH_BYTES + 1, 1], 50), (1, 1), "one goes, however heavy");
        assert_eq!(fit(&[BATCH_BYTES / 4; 8], 50), (4, 4));
        assert_eq!(fit(&[BATCH_BYTES], 1), (1, 1));
        assert_eq!(fit(&[10], 1), (1, 2), "and they grow again");
    }

    #[test]
    fn a_note_survives_its_text() {
        let note = Note { mover: NodeId::fresh(), step: 7, jobs: vec![(JobId::named("a"), 5)] };
        let read = Note::parse(&note.text().expect("writes")).expect("reads");
        assert_eq!((read.mover, read.step, read.jobs), (note.mover, note.step, note.jobs));
        assert!(Note::parse("nonsense").is_err());
    }
}
