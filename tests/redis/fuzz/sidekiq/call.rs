//! Arguments for each script on Sidekiq's keys, as a client might send them that knows this state, or knew it a while ago;
//! and what its answer promises.

use fastrand::Rng;

use super::state::{State, entry, id};
use crate::fuzz::call::{Args, CHANNEL};
use crate::fuzz::random_state::{self, LEASE};
use crate::fuzz::record_text::{Bytes, shown};
use crate::fuzz::script::Script;
use test_support::servers::Reply;

/// A script with its keys and arguments.
pub struct Call {
    script: String,
    pub keys: Vec<String>,
    pub args: Vec<Bytes>,
    /// How many entries it brings along.
    brings: usize,
    /// Of each outcome, in their order: how many entries it ends.
    ends: Vec<usize>,
}

/// What a client knows and chance decides.
struct Client<'c> {
    rng: &'c mut Rng,
    state: &'c State,
    nodes: &'c [String],
    now: i64,
    keys: Vec<String>,
    args: Args,
    brings: usize,
    ends: Vec<usize>,
}

impl Call {
    /// A call of this script. A script that nobody here knows how to call fails the test.
    pub fn random(rng: &mut Rng, script: &Script, state: &State, nodes: &[String], now: i64) -> Call {
        let (keys, args) = (script.keys.clone(), Args::default());
        let mut client = Client { rng, state, nodes, now, keys, args, brings: 0, ends: Vec::new() };
        client.args.number(now);
        match script.name.as_str() {
            "push" => client.push(),
            "claim" => client.claim(),
            "promote" => client.promote(),
            "discard" => client.discard(),
            "settle" => client.settle(),
            "shift" => client.shift(),
            "move_in" => client.move_in(),
            "prune" => client.prune(),
            "process" => client.process(),
            "take_back" => client.take_back(),
            "step_back" => {
                let node = client.node();
                client.args.add(CHANNEL).add(node).end();
            }
            "counts" => {}
            other => panic!("a script that the fuzz does not know how to call: {other}"),
        }
        let Client { keys, args, brings, ends, .. } = client;
        assert!(keys.iter().all(|key| !key.is_empty()), "every key of {} is known: {keys:?}", script.name);
        Call { script: script.name.clone(), keys, args: args.0, brings, ends }
    }

    pub fn shown(&self) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| shown(arg)).collect();
        format!("{} on {:?} with {args:?}", self.script, self.keys)
    }

    /// No entry is lost or doubled.
    pub fn judge(&self, answer: &[Reply], before: &State, after: &State) -> Result<(), String> {
        let word = |at: usize| answer.get(at).map(Reply::text).unwrap_or_default();
        let size = |at: usize| answer.get(at).map_or(0, |list| list.list().len());
        let number = |at: usize| word(at).parse::<i64>().unwrap_or(0).max(0) as usize;
        let refused = ["type", "items"].contains(&word(1).as_str());
        if refused && before != after {
            return Err("refuses, and has written".into());
        }
        let known = |at: usize| self.brings - size(at);
        let (more, fewer) = match self.script.as_str() {
            _ if refused => (0, 0),
            "push" => (known(2), 0),
            "move_in" if word(1) == "yes" && answer[3].text() != shown(&self.args[4]) => (known(2), 0),
            "prune" => (0, number(1)),
            "shift" if self.args[5].is_empty() => (0, number(2)),
            "settle" => {
                let lost: Vec<String> = answer[1].list().iter().map(Reply::text).collect();
                let held = |(at, _): &(usize, &usize)| !lost.contains(&(at + 1).to_string());
                (0, self.ends.iter().enumerate().filter(held).map(|(_, ends)| ends).sum())
            }
            _ => (0, 0),
        };
        match (before.total() + more, after.total() + fewer) {
            (should, is) if should == is => Ok(()),
            (should, is) => {
                Err(format!("{should} entries have become {is}: some are lost or doubled; it says {answer:?}"))
            }
        }
    }
}

impl Client<'_> {
    fn node(&mut self) -> String {
        match self.rng.usize(..=self.nodes.len()) {
            at if at < self.nodes.len() => self.nodes[at].clone(),
            _ => random_state::node(self.rng),
        }
    }

    fn due(&mut self) -> String {
        match self.rng.bool() {
            true => format!("+{}", self.rng.i64(0..LEASE)),
            false => random_state::moment(self.rng, self.now).to_string(),
        }
    }

    /// Some entries of a place, each once, and now and then one that is not there.
    fn some_of(&mut self, key: &str) -> Vec<String> {
        let mut entries = self.state.entries(key);
        self.rng.shuffle(&mut entries);
        entries.dedup();
        entries.truncate(self.rng.usize(..6));
        if self.rng.u8(..4) == 0 {
            entries.push(entry(self.rng));
        }
        entries
    }

    fn push(&mut self) {
        let (now, later) = (self.rng.usize(..4), self.rng.usize(..4));
        self.args.add(CHANNEL).number(3 * LEASE).add("q").number(self.rng.u8(..2)).number(now).end();
        for at in 0..now + later {
            let (id, entry, due) = (id(self.rng), entry(self.rng), self.due());
            self.args.add(id).add(entry).end();
            if at >= now {
                self.args.add(due).end();
            }
        }
        self.brings = now + later;
    }

    fn claim(&mut self) {
        let (node, most) = (self.node(), if self.rng.u8(..8) == 0 { 1_000 } else { self.rng.usize(1..6) });
        self.keys[3] = format!("held:{node}");
        self.args.add(CHANNEL).add(node).number(most).number(LEASE).number(self.rng.u8(..2));
        self.args.number(self.rng.u8(..2)).number(self.rng.u8(..2)).add("Echo").add("Ruby\"s").end();
    }

    fn take_back(&mut self) {
        let (node, suspect) = (self.node(), self.node());
        self.keys[5] = format!("held:{suspect}");
        self.args.add(CHANNEL).add(node).add(suspect).number(LEASE).number(self.rng.usize(1..4)).end();
    }

    fn promote(&mut self) {
        self.keys[0] = ["schedule", "retry"][self.rng.usize(..2)].into();
        self.args.add(CHANNEL).add("q").end();
        for old in self.some_of(&self.keys[0].clone()) {
            self.args.add(old).add(entry(self.rng)).end();
        }
    }

    fn discard(&mut self) {
        self.keys[0] = ["schedule", "retry"][self.rng.usize(..2)].into();
        for old in self.some_of(&self.keys[0].clone()) {
            self.args.add(old).add(entry(self.rng)).end();
        }
    }

    fn settle(&mut self) {
        let node = self.node();
        self.keys[1] = format!("held:{node}");
        for (at, name) in [(12, "processed"), (13, "processed:day"), (14, "failed"), (15, "failed:day")] {
            self.keys[at] = name.into();
        }
        let held = self.state.keys.get(&self.keys[1]).map(|held| held.pairs.clone()).unwrap_or_default();
        let mut fields: Vec<String> = held.into_iter().map(|(field, _)| field).collect();
        self.rng.shuffle(&mut fields);
        if self.rng.u8(..3) == 0 {
            fields.push("0000000000000001:0001".into());
        }
        let others = fields.split_off(self.rng.usize(..=fields.len()));
        let ids: Vec<Bytes> = (0..self.rng.usize(..3)).map(|_| id(self.rng)).collect();
        self.args.add(CHANNEL).add(node).number(3 * LEASE).number(fields.len()).number(ids.len()).end();
        self.ends = vec![1; fields.len()];
        self.args.add_all(fields);
        self.args.add_all(ids);
        for field in others {
            let (outcome, ends) =
                [("a", 1), ("d", 1), ("k", 0), ("b", 0), ("r", 0), ("l", 0), ("w", 0)][self.rng.usize(..7)];
            self.ends.push(ends);
            self.args
                .add(field)
                .add(outcome)
                .number(self.rng.i64(1..LEASE))
                .add(entry(self.rng))
                .add(id(self.rng))
                .end();
        }
    }

    fn shift(&mut self) {
        let from = [("queue", "list"), ("schedule", "set"), ("retry", "set"), ("dead", "set"), ("done", "done")];
        let to = [("queue", ""), ("queue", "list"), ("schedule", "set"), ("retry", "set")];
        let (from, to) = (from[self.rng.usize(..5)], to[self.rng.usize(..4)]);
        // A mover takes out and puts nowhere.
        let mover = if self.rng.u8(..4) == 0 { self.node() } else { String::new() };
        let to = if mover.is_empty() { to } else { ("queue", "") };
        (self.keys[1], self.keys[2]) = (from.0.into(), to.0.into());
        let due = if to.1 == "set" { self.due() } else { String::new() };
        self.args.add(CHANNEL).number(3 * LEASE).add(mover).add(from.1).add(to.1).add(due).add("q").end();
        for old in self.some_of(from.0) {
            let name = if from.1 == "done" { Bytes::from(old.as_str()) } else { id(self.rng) };
            self.args.add(name).add(old).add(entry(self.rng)).end();
        }
    }

    fn move_in(&mut self) {
        let texts = ["", "a", "b"];
        self.args.add(CHANNEL).add("note:x").add(texts[self.rng.usize(..3)]).add(texts[self.rng.usize(..3)]);
        self.args.number(self.now).add("q").number(3 * LEASE).end();
        self.brings = self.rng.usize(..5);
        for _ in 0..self.brings {
            let place = [3, 4, 5, 6, 8][self.rng.usize(..5)];
            let moment = random_state::moment(self.rng, self.now);
            self.args.add(id(self.rng)).number(place).number(moment).add(entry(self.rng)).end();
        }
    }

    fn prune(&mut self) {
        self.args.number(self.rng.usize(..4)).number(1_000).number(3 * LEASE).end();
    }

    fn process(&mut self) {
        self.args.add("host:1:abc").add("{}").number(1).add("false").number(9).number(5).number(100);
        let with = self.rng.bool();
        self.args.number(u8::from(with)).end();
        if with {
            self.args.add("0").add("{}").end();
        }
    }
}
