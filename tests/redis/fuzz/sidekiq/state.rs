//! What is in Sidekiq's keys and in ours beside them: made by chance, written to a server, and read back.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::fuzz::random_state::{self, LEASE, NOW};
use crate::fuzz::record_text::{Bytes, shown};
use crate::fuzz::state::{LOOK, bytes};
use test_support::servers::{Client, Reply};

/// The keys of Sidekiq's that others may use in another way.
const THEIRS: &[&str] =
    &["queue", "schedule", "retry", "dead", "queues", "processes", "processed", "failed:day", "told"];
/// In most states; in the few others there are more than a script does in one step.
const FEW: usize = 8;
const CROWD: usize = 1_300;
const CROWD_ONE_IN: u64 = 100;
/// Entries that are no jobs, up to what makes each another one.
const STRANGE: &[&str] = &["", "{not json", "[1,2", "\"text", "{\"args\":[]}", "{\"class\":7,\"x\":"];

/// The keys that a header of these scripts names so.
pub fn keys_of(name: &str) -> Vec<String> {
    match name {
        "gone" => vec!["gone:1".into(), "gone:2".into()],
        // Which of them, the call says.
        "set" | "from" | "to" => Vec::new(),
        name => vec![name.into()],
    }
}

/// What a key holds: of a hash, of a sorted set (member and score) or of a list (place and value).
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    pub kind: String,
    pub pairs: Vec<(String, String)>,
}

/// Everything on the server, for people too: bytes that cannot be printed are escaped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub keys: BTreeMap<String, Content>,
    raw: Vec<Vec<Bytes>>,
}

/// What stands for the 16 bytes of an id.
pub fn id(rng: &mut Rng) -> Bytes {
    format!("{:016x}", rng.u64(..)).into()
}

pub fn entry(rng: &mut Rng) -> String {
    let class = ["Echo", "Other", "Ruby\\\"s"][rng.usize(..3)];
    let retry = ["true", "false", "3"][rng.usize(..3)];
    format!(r#"{{"retry":{retry},"queue":"q","class":"{class}","args":[{}],"jid":"{:024x}"}}"#, rng.u8(..), rng.u64(..))
}

/// An entry, or now and then something that is none; never the same twice.
fn something(rng: &mut Rng) -> String {
    match rng.u8(..8) {
        0 => format!("{}{}", STRANGE[rng.usize(..STRANGE.len())], rng.u64(..)),
        _ => entry(rng),
    }
}

/// A moment in seconds: in the past or the future, or what no clock says.
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
            self.raw.push([vec![command.into(), key.into()], values].concat());
        }
    }

    /// A state as it may be found, and the nodes in it.
    pub fn random(rng: &mut Rng) -> (State, Vec<String>) {
        let mut state = State::default();
        let nodes: Vec<String> = (0..rng.usize(1..4)).map(|_| random_state::node(rng)).collect();
        let many = |rng: &mut Rng| if rng.u64(..CROWD_ONE_IN) == 0 { CROWD } else { rng.usize(..FEW) };
        let list: Vec<Bytes> = (0..many(rng)).map(|_| something(rng).into()).collect();
        state.put("RPUSH", "queue", list);
        if rng.u8(..12) == 0 {
            state.put("RPUSH", "queue", vec![r#"["id", "q", "name", []]"#.into()]);
        }
        for set in ["schedule", "retry"] {
            let pairs = (0..many(rng)).flat_map(|_| [score(rng).into(), something(rng).into()]).collect();
            state.put("ZADD", set, pairs);
        }
        let dead =
            (0..rng.usize(..FEW)).flat_map(|n| [format!("{}.{n:03}", NOW / 1_000_000).into(), entry(rng).into()]);
        let dead = dead.collect();
        state.put("ZADD", "dead", dead);
        let done: Vec<(Bytes, i64)> =
            (0..rng.usize(..FEW)).map(|_| (id(rng), random_state::moment(rng, NOW))).collect();
        state.put("ZADD", "done", done.iter().flat_map(|(id, at)| [at.to_string().into(), id.clone()]).collect());
        state.put("HSET", "job", done.iter().flat_map(|(id, _)| [id.clone(), entry(rng).into()]).collect());
        for half in ["gone:1", "gone:2"] {
            let ids = (0..rng.usize(..3)).map(|_| id(rng)).collect();
            state.put("SADD", half, ids);
        }
        state.people(rng, &nodes);
        if rng.bool() {
            state.put("SADD", "queues", vec!["q".into()]);
            state.put("SET", "processed", vec![rng.u32(..).to_string().into()]);
        }
        (state, nodes)
    }

    /// Who works here, holds something and is waiting.
    fn people(&mut self, rng: &mut Rng, nodes: &[String]) {
        let mut conf: Vec<Bytes> = vec!["fence".into(), (NOW - LEASE).to_string().into()];
        for node in nodes {
            let held: Vec<String> = (0..rng.usize(..FEW)).map(|n| format!("{:016}:{n:04}", NOW - LEASE)).collect();
            conf.extend([Bytes::from(node.as_str()), held.len().to_string().into()]);
            self.put("HSET", &format!("held:{node}"), {
                held.iter().flat_map(|field| [field.as_str().into(), something(rng).into()]).collect()
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
            ("half", &["1", "2", "x"]),
            ("since", &["1893456000000000", "x", "inf"]),
            ("fence", &["", "x", "1e300", "-"]),
            (&nodes[0], &["", "x", "-3", "1e300"]),
        ] {
            if rng.u8(..8) == 0 {
                conf.extend([field.into(), texts[rng.usize(..texts.len())].into()]);
            }
        }
        if rng.u8(..8) == 0 {
            conf.extend([b"moving".to_vec(), format!("{0}{0}elsewhere", nodes[0]).into()]);
        }
        self.put("HSET", "conf", conf);
        if rng.bool() {
            let count = ["1", "x", "999999999999999999999"][rng.usize(..3)];
            self.put("HSET", "crashes", vec![b"x".to_vec(), format!("{count} {NOW:016}{}", nodes[0]).into()]);
        }
        if rng.u8(..3) == 0 {
            self.put("LPUSH", "told", vec![b"TSTP".to_vec(), b"TERM".to_vec()]);
        }
    }

    /// Somebody uses a key of Sidekiq's in another way. Answers whether it is so now.
    pub fn spoil(&mut self, rng: &mut Rng) -> bool {
        let key = THEIRS[rng.usize(..THEIRS.len())];
        self.raw.retain(|command| command[1] != key.as_bytes());
        match rng.bool() {
            true => self.put("SET", key, vec![b"x".to_vec()]),
            false => self.put("HSET", key, vec![b"x".to_vec(), b"y".to_vec()]),
        }
        true
    }

    /// Makes this all that is on the server.
    pub fn write(&mut self, client: &mut Client) {
        self.raw.insert(0, vec![b"FLUSHALL".to_vec()]);
        for command in &self.raw {
            let answer = client.ask(command).expect("answers");
            assert!(!matches!(answer, Reply::Error(_)), "{}: {answer:?}", shown(&command.concat()));
        }
        State::ask(client);
        *self = State::read(client).expect("readable");
    }

    /// Asks for all that is on the server; [`State::read`] takes the answer.
    pub fn ask(client: &mut Client) {
        client.send(&["EVAL", LOOK, "0"]).expect("sends");
    }

    pub fn read(client: &mut Client) -> Result<State, String> {
        let mut state = State::default();
        for entry in client.read().map_err(|why| why.to_string())?.list() {
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

    /// For people: one line per key.
    pub fn shown(&self) -> String {
        let line = |(key, content): (&String, &Content)| format!("  {key}, a {}: {:?}\n", content.kind, content.pairs);
        format!("the keys were:\n{}", self.keys.iter().map(line).collect::<String>())
    }

    /// The entries in a place.
    pub fn entries(&self, key: &str) -> Vec<String> {
        let Some(content) = self.keys.get(key) else { return Vec::new() };
        let of = |(first, second): &(String, String)| match content.kind.as_str() {
            "zset" => first.clone(),
            _ => second.clone(),
        };
        content.pairs.iter().map(of).collect()
    }

    /// How many entries there are in all places in which an entry may be.
    pub fn total(&self) -> usize {
        let kinds = [("queue", "list"), ("schedule", "zset"), ("retry", "zset"), ("dead", "zset"), ("done", "zset")];
        let sized = |(key, kind): &(&str, &str)| {
            self.keys.get(*key).filter(|content| content.kind == *kind).map_or(0, |content| content.pairs.len())
        };
        let held = self.keys.iter().filter(|(key, _)| key.starts_with("held:")).map(|(_, held)| held.pairs.len());
        kinds.iter().map(sized).sum::<usize>() + held.sum::<usize>()
    }
}
