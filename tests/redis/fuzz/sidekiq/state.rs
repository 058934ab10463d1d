//! The content of Sidekiq's keys and duly's own: random, written to a server, and read back.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::fuzz::random_state::{self, LEASE, NOW};
use crate::fuzz::record_text::{Bytes, shown};
use crate::fuzz::state::{QUERY, bytes};
use test_support::servers::{Client, Reply};

/// The keys of Sidekiq that others may use in another way.
const SIDEKIQ_KEYS: &[&str] =
    &["queue", "schedule", "retry", "dead", "queues", "processes", "processed", "failed:day", "signals"];
/// Entries in most states; the few others have more than a script handles in one call.
const FEW: usize = 8;
const CROWD: usize = 1_300;
const CROWD_ONE_IN: u64 = 100;
/// Starts of entries that are not jobs; a random suffix makes each unique.
const INVALID: &[&str] = &["", "{not json", "[1,2", "\"text", "{\"args\":[]}", "{\"class\":7,\"x\":"];

/// Returns the key for a name in a header of these scripts.
pub fn keys_of(name: &str) -> String {
    match name {
        // The call chooses it.
        "source" | "target" | "running" | "reserved" => String::new(),
        "list" => "queue".into(),
        "processed_today" => "processed:day".into(),
        "failed_today" => "failed:day".into(),
        name => name.replace('[', ":").replace(']', ""),
    }
}

/// The content of a key: of a hash, of a sorted set (member and score) or of a list (index and value).
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    pub kind: String,
    pub pairs: Vec<(String, String)>,
}

/// All keys of the server, in readable form: unprintable bytes are escaped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub keys: BTreeMap<String, Content>,
    commands: Vec<Vec<Bytes>>,
}

/// Returns a random id.
pub fn id(rng: &mut Rng) -> Bytes {
    format!("{:016x}", rng.u64(..)).into()
}

pub fn entry(rng: &mut Rng) -> String {
    let class = ["Echo", "Other", "Ruby\\\"s"][rng.usize(..3)];
    let retry = ["true", "false", "3"][rng.usize(..3)];
    format!(r#"{{"retry":{retry},"queue":"q","class":"{class}","args":[{}],"jid":"{:024x}"}}"#, rng.u8(..), rng.u64(..))
}

/// Returns an entry, sometimes an invalid one; never the same twice.
fn entry_or_invalid(rng: &mut Rng) -> String {
    match rng.u8(..8) {
        0 => format!("{}{}", INVALID[rng.usize(..INVALID.len())], rng.u64(..)),
        _ => entry(rng),
    }
}

/// Returns a time in seconds, past or future, or an invalid one.
fn score(rng: &mut Rng) -> String {
    match rng.u8(..12) {
        0 => "-inf".into(),
        1 => "inf".into(),
        2 => "-5.5".into(),
        _ => format!("{:.6}", random_state::moment(rng, NOW) as f64 / 1e6),
    }
}

impl State {
    fn put(&mut self, command: &str, key: &str, values: Vec<Bytes>) {
        if !values.is_empty() {
            self.commands.push([vec![command.into(), key.into()], values].concat());
        }
    }

    /// Returns a random state, and the nodes in it.
    pub fn random(rng: &mut Rng) -> (State, Vec<String>) {
        let mut state = State::default();
        let nodes: Vec<String> = (0..rng.usize(1..4)).map(|_| random_state::node(rng)).collect();
        let many = |rng: &mut Rng| if rng.u64(..CROWD_ONE_IN) == 0 { CROWD } else { rng.usize(..FEW) };
        let list: Vec<Bytes> = (0..many(rng)).map(|_| entry_or_invalid(rng).into()).collect();
        state.put("RPUSH", "queue", list);
        if rng.u8(..12) == 0 {
            state.put("RPUSH", "queue", vec![r#"["id", "q", "name", []]"#.into()]);
        }
        for set in ["schedule", "retry"] {
            let pairs = (0..many(rng)).flat_map(|_| [score(rng).into(), entry_or_invalid(rng).into()]).collect();
            state.put("ZADD", set, pairs);
        }
        let dead =
            (0..rng.usize(..FEW)).flat_map(|n| [format!("{}.{n:03}", NOW / 1_000_000).into(), entry(rng).into()]);
        let dead = dead.collect();
        state.put("ZADD", "dead", dead);
        let done: Vec<(Bytes, i64)> =
            (0..rng.usize(..FEW)).map(|_| (id(rng), random_state::moment(rng, NOW))).collect();
        state.put("ZADD", "done", done.iter().flat_map(|(id, until)| [until.to_string().into(), id.clone()]).collect());
        state.put("HSET", "job", done.iter().flat_map(|(id, _)| [id.clone(), entry(rng).into()]).collect());
        for half in ["removed:1", "removed:2"] {
            let ids = (0..rng.usize(..3)).map(|_| id(rng)).collect();
            state.put("SADD", half, ids);
        }
        state.add_nodes(rng, &nodes);
        if rng.bool() {
            state.put("SADD", "queues", vec!["q".into()]);
            state.put("SET", "processed", vec![rng.u32(..).to_string().into()]);
        }
        (state, nodes)
    }

    /// Adds nodes with leases, held entries and idle marks.
    fn add_nodes(&mut self, rng: &mut Rng, nodes: &[String]) {
        let mut conf: Vec<Bytes> = vec!["fence".into(), (NOW - LEASE).to_string().into()];
        for node in nodes {
            let held: Vec<String> = (0..rng.usize(..FEW)).map(|n| format!("{:016}:{n:04}", NOW - LEASE)).collect();
            conf.extend([Bytes::from(node.as_str()), held.len().to_string().into()]);
            self.put("HSET", &format!("running:{node}"), {
                held.iter().flat_map(|field| [field.as_str().into(), entry_or_invalid(rng).into()]).collect()
            });
            let ends = if rng.u8(..5) == 0 { 0 } else { random_state::moment(rng, NOW) };
            self.put("ZADD", "lease", vec![ends.to_string().into(), node.as_str().into()]);
            self.put("ZADD", "since", vec![(NOW - rng.i64(0..3 * LEASE)).to_string().into(), node.as_str().into()]);
            if rng.bool() {
                self.put("ZADD", "idle", vec!["1".into(), node.as_str().into()]);
            }
        }
        for (field, texts) in [
            ("paused", &["1"][..]),
            ("removed_half", &["1", "2", "x"]),
            ("removed_since", &["1893456000000000", "x", "inf"]),
            ("fence", &["", "x", "1e300", "-"]),
            (&nodes[0], &["", "x", "-3", "1e300"]),
        ] {
            if rng.u8(..8) == 0 {
                conf.extend([field.into(), texts[rng.usize(..texts.len())].into()]);
            }
        }
        if rng.u8(..8) == 0 {
            conf.extend([b"transfer_mark".to_vec(), format!("{0}{0}elsewhere", nodes[0]).into()]);
        }
        self.put("HSET", "conf", conf);
        if rng.bool() {
            let count = ["1", "x", "999999999999999999999"][rng.usize(..3)];
            self.put("HSET", "crashes", vec![b"x".to_vec(), format!("{count} {NOW:016}{}", nodes[0]).into()]);
        }
        if rng.u8(..3) == 0 {
            self.put("LPUSH", "signals", vec![b"TSTP".to_vec(), b"TERM".to_vec()]);
        }
    }

    /// Uses a key of Sidekiq in another way. Always returns true.
    pub fn spoil(&mut self, rng: &mut Rng) -> bool {
        let key = SIDEKIQ_KEYS[rng.usize(..SIDEKIQ_KEYS.len())];
        self.commands.retain(|command| command[1] != key.as_bytes());
        match rng.bool() {
            true => self.put("SET", key, vec![b"x".to_vec()]),
            false => self.put("HSET", key, vec![b"x".to_vec(), b"y".to_vec()]),
        }
        true
    }

    /// Replaces the content of the server by this state.
    pub fn write(&mut self, client: &mut Client) {
        self.commands.insert(0, vec![b"FLUSHALL".to_vec()]);
        for command in &self.commands {
            let reply = client.send_command(command).expect("a reply");
            assert!(!matches!(reply, Reply::Error(_)), "{}: {reply:?}", shown(&command.concat()));
        }
        State::send_query(client);
        *self = State::read(client).expect("readable");
    }

    /// Sends a query of all keys; [`State::read`] reads its reply.
    pub fn send_query(client: &mut Client) {
        client.write_command(&["EVAL", QUERY, "0"]).expect("sends");
    }

    pub fn read(client: &mut Client) -> Result<State, String> {
        let mut state = State::default();
        for entry in client.read_reply().map_err(|error| error.to_string())?.list() {
            let [name, kind, content] = entry.list() else { return Err(format!("not a key: {entry:?}")) };
            let values: Vec<String> = content.list().iter().map(|value| shown(&bytes(value))).collect();
            let mut pairs: Vec<(String, String)> = match kind.text().as_str() {
                "hash" | "zset" => values.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect(),
                _ => values.iter().enumerate().map(|(n, value)| (format!("{n:06}"), value.clone())).collect(),
            };
            if kind.text() != "list" {
                pairs.sort();
            }
            state.keys.insert(name.text(), Content { kind: kind.text(), pairs });
        }
        Ok(state)
    }

    /// Returns a readable form with one line per key.
    pub fn shown(&self) -> String {
        let line = |(key, content): (&String, &Content)| format!("  {key}, a {}: {:?}\n", content.kind, content.pairs);
        format!("the keys were:\n{}", self.keys.iter().map(line).collect::<String>())
    }

    /// Returns the entries of a key.
    pub fn entries(&self, key: &str) -> Vec<String> {
        let Some(content) = self.keys.get(key) else { return Vec::new() };
        let entry = |(first, second): &(String, String)| match content.kind.as_str() {
            "zset" => first.clone(),
            _ => second.clone(),
        };
        content.pairs.iter().map(entry).collect()
    }

    /// Returns the number of entries in all keys that hold entries.
    pub fn total(&self) -> usize {
        let kinds = [("queue", "list"), ("schedule", "zset"), ("retry", "zset"), ("dead", "zset"), ("done", "zset")];
        let size = |(key, kind): &(&str, &str)| {
            self.keys.get(*key).filter(|content| content.kind == *kind).map_or(0, |content| content.pairs.len())
        };
        let held = self.keys.iter().filter(|(key, _)| key.starts_with("running:")).map(|(_, held)| held.pairs.len());
        kinds.iter().map(size).sum::<usize>() + held.sum::<usize>()
    }
}
