//! Arguments for each script on Sidekiq's keys, as a client would send them that knows this state or an earlier one;
//! and the promises of its reply.

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
    /// The names of the single arguments, in order.
    names: Vec<String>,
    /// Number of new entries.
    added: usize,
    /// Per outcome, in order: the number of entries it ends.
    ends: Vec<usize>,
}

/// A client's knowledge and source of randomness.
struct Client<'c> {
    rng: &'c mut Rng,
    state: &'c State,
    nodes: &'c [String],
    now: i64,
    script: &'c Script,
    keys: Vec<String>,
    args: Args,
    added: usize,
    ends: Vec<usize>,
}

impl Call {
    /// Builds a call of this script. A script without a case here fails the test.
    pub fn random(rng: &mut Rng, script: &Script, state: &State, nodes: &[String], now: i64) -> Call {
        let (keys, args) = (script.keys.clone(), Args::default());
        let mut client = Client { rng, state, nodes, now, script, keys, args, added: 0, ends: Vec::new() };
        client.args.number(now);
        match script.name.as_str() {
            "push" => client.push(),
            "claim" => client.claim(),
            "promote" => client.promote(),
            "bury_unreadable" => client.bury_unreadable(),
            "settle" => client.settle(),
            "move_entries" => client.move_entries(),
            "transfer_in" => client.transfer_in(),
            "transfer_reserve" => client.transfer_reserve(),
            "transfer_out" => client.transfer_out(),
            "prune" => client.prune(),
            "announce_process" => client.announce_process(),
            "take_back" => client.take_back(),
            "leave_idle" => {
                let node = client.node();
                client.args.add(CHANNEL).add(node).end();
            }
            "set_alone" => {
                let node = client.node();
                let held = format!("running:{node}");
                client.choose("running", held.as_str());
                let held = client.state.keys.get(&held).and_then(|held| held.pairs.first());
                let field = held.map_or("0000000000000001:0001".to_owned(), |(field, _)| field.clone());
                client.args.add(node).add(field).number(client.rng.u8(..2)).end();
            }
            "counts" => client.choose("reserved", "running:transfer"),
            other => panic!("a script without a case in the fuzz test: {other}"),
        }
        let Client { keys, args, added, ends, .. } = client;
        assert!(keys.iter().all(|key| !key.is_empty()), "every key of {} is known: {keys:?}", script.name);
        assert!(args.0.len() >= script.args.len(), "every argument of {} is there: {:?}", script.name, script.args);
        Call { script: script.name.clone(), keys, args: args.0, names: script.args.clone(), added, ends }
    }

    /// Returns the argument of this name.
    fn arg(&self, name: &str) -> &Bytes {
        let index = self.names.iter().position(|other| other == name);
        &self.args[index.unwrap_or_else(|| panic!("{} has no argument {name}", self.script))]
    }

    pub fn shown(&self) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| shown(arg)).collect();
        format!("{} on {:?} with {args:?}", self.script, self.keys)
    }

    /// Checks that no entry is lost or duplicated.
    pub fn check(&self, reply: &[Reply], before: &State, after: &State) -> Result<(), String> {
        let text = |index: usize| reply.get(index).map(Reply::text).unwrap_or_default();
        let size = |index: usize| reply.get(index).map_or(0, |list| list.list().len());
        let number = |index: usize| text(index).parse::<i64>().unwrap_or(0).max(0) as usize;
        let is_rejected = ["type", "items"].contains(&text(1).as_str());
        if is_rejected && before != after {
            return Err("rejects, and has written".into());
        }
        let inserted = |index: usize| self.added - size(index);
        let (more, fewer) = match self.script.as_str() {
            _ if is_rejected => (0, 0),
            "push" => (inserted(2), 0),
            "transfer_in" if text(1) == "yes" && reply[3].text() != shown(self.arg("checkpoint")) => (inserted(2), 0),
            "prune" => (0, number(1)),
            "transfer_out" => (0, number(2)),
            "move_entries" if self.arg("to").is_empty() => (0, number(2)),
            "settle" => {
                let lost: Vec<String> = reply[1].list().iter().map(Reply::text).collect();
                let held = |(index, _): &(usize, &usize)| !lost.contains(&(index + 1).to_string());
                (0, self.ends.iter().enumerate().filter(held).map(|(_, ends)| ends).sum())
            }
            _ => (0, 0),
        };
        match (before.total() + more, after.total() + fewer) {
            (expected, actual) if expected == actual => Ok(()),
            (expected, actual) => {
                Err(format!("{expected} entries have become {actual}: some are lost or duplicated; reply: {reply:?}"))
            }
        }
    }
}

impl Client<'_> {
    /// Sets the key of this name.
    fn choose(&mut self, name: &str, key: impl Into<String>) {
        let index = self.script.key_at(name);
        self.keys[index] = key.into();
    }

    fn node(&mut self) -> String {
        match self.rng.usize(..=self.nodes.len()) {
            index if index < self.nodes.len() => self.nodes[index].clone(),
            _ => random_state::node(self.rng),
        }
    }

    fn due(&mut self) -> String {
        match self.rng.bool() {
            true => format!("+{}", self.rng.i64(0..LEASE)),
            false => random_state::moment(self.rng, self.now).to_string(),
        }
    }

    /// Returns some entries of a key, each once, and sometimes a missing one.
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
        for index in 0..now + later {
            let (id, entry, due) = (id(self.rng), entry(self.rng), self.due());
            self.args.add(id).add(entry).end();
            if index >= now {
                self.args.add(due).end();
            }
        }
        self.added = now + later;
    }

    fn claim(&mut self) {
        let (node, max) = (self.node(), if self.rng.u8(..8) == 0 { 1_000 } else { self.rng.usize(1..6) });
        self.choose("running", format!("running:{node}"));
        self.args.add(CHANNEL).add(node).number(max).number(LEASE).number(self.rng.u8(..2));
        self.args.number(self.rng.u8(..2)).number(self.rng.u8(..2)).add("Echo").add("Ruby\"s").end();
    }

    fn take_back(&mut self) {
        let (node, suspect) = (self.node(), self.node());
        self.choose("running", format!("running:{suspect}"));
        self.args.add(CHANNEL).add(node).add(suspect).number(LEASE).number(self.rng.usize(1..4)).end();
    }

    fn promote(&mut self) {
        let set = ["schedule", "retry"][self.rng.usize(..2)];
        self.choose("source", set);
        self.args.add(CHANNEL).add("q").end();
        for old in self.some_of(set) {
            self.args.add(old).add(entry(self.rng)).end();
        }
    }

    fn bury_unreadable(&mut self) {
        let set = ["schedule", "retry"][self.rng.usize(..2)];
        self.choose("source", set);
        for old in self.some_of(set) {
            self.args.add(old).add(entry(self.rng)).end();
        }
    }

    fn settle(&mut self) {
        let node = self.node();
        let held = format!("running:{node}");
        self.choose("running", held.as_str());
        let held = self.state.keys.get(&held).map(|held| held.pairs.clone()).unwrap_or_default();
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

    fn move_entries(&mut self) {
        let from = [("queue", "list"), ("schedule", "set"), ("retry", "set"), ("dead", "set"), ("done", "done")];
        let to = [("queue", ""), ("queue", "list"), ("schedule", "set"), ("retry", "set")];
        let (from, to) = (from[self.rng.usize(..5)], to[self.rng.usize(..4)]);
        self.choose("source", from.0);
        self.choose("target", to.0);
        let due = if to.1 == "set" { self.due() } else { String::new() };
        self.args.add(CHANNEL).number(3 * LEASE).add(from.1).add(to.1).add(due).add("q").end();
        for old in self.some_of(from.0) {
            let name = if from.1 == "done" { Bytes::from(old.as_str()) } else { id(self.rng) };
            self.args.add(name).add(old).add(entry(self.rng)).end();
        }
    }

    fn transfer_reserve(&mut self) {
        let from =
            [("queue", "list"), ("schedule", "schedule"), ("retry", "retry"), ("dead", "dead"), ("done", "done")];
        let from = from[self.rng.usize(..5)];
        self.choose("source", from.0);
        self.choose("reserved", "running:transfer");
        self.args.add(self.nodes[0].as_str()).add(from.1).end();
        for old in self.some_of(from.0) {
            let name = if from.1 == "done" { Bytes::from(old.as_str()) } else { id(self.rng) };
            let field = [&name[..], &b"1893456000000000"[..]].concat();
            self.args.add(field).add(name).add(old).end();
        }
    }

    fn transfer_out(&mut self) {
        self.choose("reserved", "running:transfer");
        let reserved = self.state.keys.get("running:transfer").map(|held| held.pairs.clone()).unwrap_or_default();
        self.args.add(CHANNEL).add(self.nodes[0].as_str()).end();
        for (field, _) in reserved {
            if self.rng.bool() {
                self.args.add(field.as_str()).add(&field[..16]).end();
            }
        }
    }

    fn transfer_in(&mut self) {
        let texts = ["", "a", "b"];
        self.args.add(CHANNEL).add("transfer:x").add(texts[self.rng.usize(..3)]).add(texts[self.rng.usize(..3)]);
        self.args.number(self.now).add("q").number(3 * LEASE).end();
        self.added = self.rng.usize(..5);
        for _ in 0..self.added {
            let target = ["list", "schedule", "retry", "dead", "done"][self.rng.usize(..5)];
            let moment = random_state::moment(self.rng, self.now);
            self.args.add(id(self.rng)).add(target).number(moment).add(entry(self.rng)).end();
        }
    }

    fn prune(&mut self) {
        self.args.number(self.rng.usize(..4)).number(1_000).number(3 * LEASE).end();
    }

    fn announce_process(&mut self) {
        self.args.add("host:1:abc").add("{}").number(1).add("false").number(9).number(5).number(100);
        let has_work = self.rng.bool();
        self.args.number(u8::from(has_work)).end();
        if has_work {
            self.args.add("0").add("{}").end();
        }
    }
}
