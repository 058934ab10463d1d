//! The index of words: what of a filter it answers, and where in it that stands.
//!
//! The jobs of one word stand together, in the order of their moments, and every word has the same order: so a list may go on with
//! another word where it ended with this one, and the script takes the one that fewest jobs have.

use redis::Cmd;

use crate::clock::Micros;
use crate::job::State;
use crate::job::filter::{Filter, Matcher};
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::{Redis, script};

/// The last moment that has 16 digits.
const MOMENT_MAX: Micros = 9_999_999_999_999_999;

/// The word that all dead jobs have.
const ALL_DEAD_TERM: &str = "";

/// What of a filter the index answers.
pub(crate) struct RedisIndexQuery {
    /// Kind, tags and group.
    terms: Vec<String>,
    /// Whether anything else is said but the moment.
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

    /// Whether the index has the jobs of this state that are meant, and perhaps others.
    pub(crate) fn can_answer(&self, state: State, range: (Option<Micros>, Option<Micros>)) -> bool {
        let in_range = range.0.is_some() || range.1.is_some();
        match state {
            State::Scheduled => !self.terms.is_empty(),
            State::Dead => !self.terms.is_empty() || in_range,
            State::Ready | State::Running | State::Done => false,
        }
    }

    /// Whether what the index has may be more than what is meant.
    pub(crate) fn needs_filtering(&self) -> bool {
        self.has_other_conditions || self.terms.len() > 1
    }

    /// The script that reads a page, but for how many.
    pub(crate) fn page_command(
        &self,
        store: &Redis,
        keys: &QueueKeys,
        state: State,
        (last, moment): (&[u8], Micros),
        (since, until): (Option<Micros>, Option<Micros>),
        most: usize,
    ) -> Cmd {
        let (letter, is_dead) = if state == State::Dead { ('b', 1) } else { ('s', 0) };
        let mut cmd = script::LIST_BY_INDEX.call(keys);
        let digits = |moment: Micros| format!("{:016}", moment.clamp(0, MOMENT_MAX));
        cmd.arg(store.manual_now()).arg(is_dead).arg(last).arg(digits(moment));
        cmd.arg(digits(since.unwrap_or(0))).arg(digits(until.unwrap_or(MOMENT_MAX))).arg(most);
        if self.terms.is_empty() {
            cmd.arg(member_prefix(letter, ALL_DEAD_TERM));
        }
        for word in &self.terms {
            cmd.arg(member_prefix(letter, word));
        }
        cmd
    }
}

fn member_prefix(letter: char, word: &str) -> String {
    format!("{letter}{word}\0")
}

/// Where the jobs of a record stand in the index. Pure, and as the scripts have it.
pub(crate) mod members {
    /// Of a job that is due at this moment.
    pub(in crate::store::redis) fn scheduled(id: &[u8], words: &str, due: i64) -> Vec<Vec<u8>> {
        prefixed_terms('s', words).map(|word| encode_member(&word, &format!("{due:016}"), id)).collect()
    }

    /// Of a dead job with this meta.
    pub(in crate::store::redis) fn dead(id: &[u8], words: &str, meta: &[u8]) -> Vec<Vec<u8>> {
        let text = |from: usize, to: usize| {
            String::from_utf8_lossy(&meta[from.min(meta.len())..to.min(meta.len())]).into_owned()
        };
        let (died, group) = (text(16, 32), text(72, 88));
        let group = (!group.is_empty()).then(|| format!("bg{group}"));
        let all = ["b".to_owned()].into_iter().chain(group).chain(prefixed_terms('b', words));
        all.map(|word| encode_member(&word, &died, id)).collect()
    }

    fn prefixed_terms(letter: char, words: &str) -> impl Iterator<Item = String> {
        let words = words.split(' ').filter(|word| !word.is_empty()).enumerate();
        words.map(move |(n, word)| format!("{letter}{}{word}", if n == 0 { 'k' } else { 't' }))
    }

    fn encode_member(word: &str, moment: &str, id: &[u8]) -> Vec<u8> {
        [word.as_bytes(), b"\0", moment.as_bytes(), id].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index_query(text: &str) -> RedisIndexQuery {
        RedisIndexQuery::from_filter(&text.parse().expect("a filter"))
    }

    #[test]
    fn index_answers_only_what_it_contains() {
        let some = (Some(1), None);
        assert!(index_query("kind:mail").can_answer(State::Scheduled, (None, None)));
        assert!(!index_query("").can_answer(State::Scheduled, some), "the schedule has that order itself");
        assert!(
            index_query("").can_answer(State::Dead, some) && !index_query("").can_answer(State::Dead, (None, None))
        );
        assert!(index_query("tag:x").can_answer(State::Dead, (None, None)));
        assert!(!index_query("kind:mail").can_answer(State::Ready, some));
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
        let at = |word: &str| [word.as_bytes(), b"\x000000000000000005", &id].concat();
        assert_eq!(members::scheduled(&id, "mail a b", 5), [at("skmail"), at("sta"), at("stb")]);
        let meta = format!("{:016}{:016}{}{}mail", 9, 5, "0".repeat(40), "f".repeat(16));
        let group = format!("bg{}", "f".repeat(16));
        assert_eq!(members::dead(&id, "mail", meta.as_bytes()), [at("b"), at(&group), at("bkmail")]);
    }
}
