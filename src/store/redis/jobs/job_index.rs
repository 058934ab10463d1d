//! The job index: finds scheduled and dead jobs by kind, tag, group and time; and the groups of dead jobs.
//!
//! The index is one sorted set. All jobs with a term are adjacent, ordered by time, and every term has the same order.
//! A list can therefore continue with another term, and the script uses the term with the fewest jobs.
//!
//! A page of 50 by kind or tag takes about 1 ms, with 10,000 scheduled jobs as with 1,000,000 (benchmark `redis-list`);
//! without the index it may read every job. The price is one member per term and job: written by every scheduled push
//! and every death, removed by every promotion (`redis-growth`). Ready jobs are not indexed, so most jobs never pay it.

use redis::Cmd;

use crate::clock::{Micros, from_micros};
use crate::error::Result;
use crate::job::State;
use crate::job::filter::{Filter, Matcher};
use crate::store::DeadGroup;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::{Redis, script};

/// The last time with 16 digits.
const MOMENT_MAX: Micros = 9_999_999_999_999_999;

/// Number of concurrent queues.
const QUEUES_AT_ONCE: usize = 50;

/// The term of all dead jobs.
const ALL_DEAD_TERM: &str = "";

/// The part of a filter that the index can answer.
pub(crate) struct RedisIndexQuery {
    /// Kind, tags and group.
    terms: Vec<String>,
    /// Whether the filter has conditions besides the terms and the time.
    has_other_conditions: bool,
}

impl RedisIndexQuery {
    pub(crate) fn from_filter(filter: &Filter) -> Self {
        let kind = filter.kind.iter().map(|kind| format!("k{kind}"));
        let tags = filter.tags.iter().map(|tag| format!("t{tag}"));
        let group = filter.group.iter().map(|group| format!("g{group}"));
        let rest = Filter { kind: None, tags: Vec::new(), group: None, ..filter.clone() };
        RedisIndexQuery {
            terms: kind.chain(tags).chain(group).collect(),
            has_other_conditions: Matcher::new(&rest, 0).has_job_conditions(),
        }
    }

    /// Returns whether the index contains all matching jobs of this state, and possibly others.
    pub(crate) fn can_answer(&self, state: State, range: (Option<Micros>, Option<Micros>)) -> bool {
        let in_range = range.0.is_some() || range.1.is_some();
        match state {
            State::Scheduled => !self.terms.is_empty(),
            State::Dead => !self.terms.is_empty() || in_range,
            State::Ready | State::Running | State::Done | State::Cancelled => false,
        }
    }

    /// Returns whether the index may return jobs that do not match.
    pub(crate) fn needs_filtering(&self) -> bool {
        self.has_other_conditions || self.terms.len() > 1
    }

    /// Builds the command that reads a page of at most `max` jobs, of this state and in ascending or descending order.
    pub(crate) fn page_command(
        &self,
        store: &Redis,
        keys: &QueueKeys,
        (state, is_descending): (State, bool),
        (last, moment): (&[u8], Micros),
        (since, until): (Option<Micros>, Option<Micros>),
        max: usize,
    ) -> Cmd {
        let letter = if state == State::Dead { 'b' } else { 's' };
        let mut cmd = script::LIST_BY_INDEX.call(keys);
        let digits = |moment: Micros| format!("{:016}", moment.clamp(0, MOMENT_MAX));
        cmd.arg(store.manual_now()).arg(u8::from(is_descending)).arg(last).arg(digits(moment));
        cmd.arg(digits(since.unwrap_or(0))).arg(digits(until.unwrap_or(MOMENT_MAX))).arg(max);
        if self.terms.is_empty() {
            cmd.arg(member_prefix(letter, ALL_DEAD_TERM));
        }
        for term in &self.terms {
            cmd.arg(member_prefix(letter, term));
        }
        cmd
    }
}

fn member_prefix(letter: char, term: &str) -> String {
    format!("{letter}{term}\0")
}

/// The members of a job in the index, exactly as the scripts build them.
pub(crate) mod members {
    /// Returns the members of a job that is due at this time.
    pub(in crate::store::redis) fn scheduled(id: &[u8], terms: &str, due: i64) -> Vec<Vec<u8>> {
        prefixed_terms('s', terms).map(|term| encode_member(&term, &format!("{due:016}"), id)).collect()
    }

    /// Returns the members of a dead job with this meta.
    pub(in crate::store::redis) fn dead(id: &[u8], terms: &str, meta: &[u8]) -> Vec<Vec<u8>> {
        let text = |from: usize, to: usize| {
            String::from_utf8_lossy(&meta[from.min(meta.len())..to.min(meta.len())]).into_owned()
        };
        let (died, group) = (text(16, 32), text(72, 88));
        let group = (!group.is_empty()).then(|| format!("bg{group}"));
        let all = ["b".to_owned()].into_iter().chain(group).chain(prefixed_terms('b', terms));
        all.map(|term| encode_member(&term, &died, id)).collect()
    }

    fn prefixed_terms(letter: char, terms: &str) -> impl Iterator<Item = String> {
        let terms = terms.split(' ').filter(|term| !term.is_empty()).enumerate();
        terms.map(move |(n, term)| format!("{letter}{}{term}", if n == 0 { 'k' } else { 't' }))
    }

    fn encode_member(term: &str, moment: &str, id: &[u8]) -> Vec<u8> {
        [term.as_bytes(), b"\0", moment.as_bytes(), id].concat()
    }
}

/// Implements `AdminStore::dead_groups`.
pub(crate) async fn dead_groups(store: &Redis, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
    let mut queues = store.queue_names("dead_groups").await?;
    queues.retain(|name| queue.is_none_or(|only| only == name));
    let mut groups = Vec::new();
    for batch in queues.chunks(QUEUES_AT_ONCE) {
        let requests = batch.iter().map(|queue| dead_groups_of_queue(store, queue));
        for queue_groups in futures_util::future::join_all(requests).await {
            groups.extend(queue_groups?);
        }
    }
    groups.sort_by(|a: &DeadGroup, b| (b.count, b.newest, &a.id).cmp(&(a.count, a.newest, &b.id)));
    Ok(groups)
}

async fn dead_groups_of_queue(store: &Redis, queue: &str) -> Result<Vec<DeadGroup>> {
    let keys = store.keys(queue);
    let mut cmd = script::DEAD_GROUPS.call(&*keys);
    cmd.arg(store.manual_now());
    let pairs =
        store.run_script("dead_groups", ConnectionRole::Client, keys.slot, &script::DEAD_GROUPS, &cmd).await?.list()?;
    let group = |pair: &[Option<Vec<u8>>]| match pair {
        [Some(id), Some(text)] => decode_dead_group(queue, id, text),
        _ => None,
    };
    Ok(pairs.chunks(2).filter_map(group).collect())
}

fn decode_dead_group(queue: &str, id: &[u8], text: &[u8]) -> Option<DeadGroup> {
    let text = std::str::from_utf8(text).ok()?;
    let moment = |from: usize| text.get(from..from + 16)?.parse().ok().map(from_micros);
    let (kind, error) = text.get(42..)?.split_once('\t')?;
    Some(DeadGroup {
        id: String::from_utf8(id.to_vec()).ok()?,
        queue: queue.to_owned(),
        kind: kind.to_owned(),
        error: error.to_owned(),
        count: text.get(..10)?.parse().ok()?,
        oldest: moment(10)?,
        newest: moment(26)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index_query(text: &str) -> RedisIndexQuery {
        RedisIndexQuery::from_filter(&text.parse().expect("a filter"))
    }

    #[test]
    fn index_answers_only_what_it_contains() {
        let since_one = (Some(1), None);
        assert!(index_query("kind:mail").can_answer(State::Scheduled, (None, None)));
        assert!(!index_query("").can_answer(State::Scheduled, since_one), "the schedule has that order itself");
        assert!(
            index_query("").can_answer(State::Dead, since_one)
                && !index_query("").can_answer(State::Dead, (None, None))
        );
        assert!(index_query("tag:x").can_answer(State::Dead, (None, None)));
        assert!(!index_query("kind:mail").can_answer(State::Ready, since_one));
    }

    #[test]
    fn single_term_query_needs_no_filtering() {
        assert!(!index_query("state:dead kind:mail since:1h").needs_filtering());
        assert!(index_query("kind:mail tag:x").needs_filtering());
        assert!(index_query("kind:mail error:oh").needs_filtering());
    }

    #[test]
    fn job_has_a_member_for_each_term() {
        let id = [7; 16];
        let member = |term: &str| [term.as_bytes(), b"\x000000000000000005", &id].concat();
        assert_eq!(members::scheduled(&id, "mail a b", 5), [member("skmail"), member("sta"), member("stb")]);
        let meta = format!("{:016}{:016}{}{}mail", 9, 5, "0".repeat(40), "f".repeat(16));
        let group = format!("bg{}", "f".repeat(16));
        assert_eq!(members::dead(&id, "mail", meta.as_bytes()), [member("b"), member(&group), member("bkmail")]);
    }
}
