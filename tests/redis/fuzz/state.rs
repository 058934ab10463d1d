//! The content of a queue's keys: written to a server, and read back.

use std::collections::{BTreeMap, BTreeSet};

use super::record_text::{self, Bytes, Meta, shown};
use super::script::key;
use test_support::servers::{Client, Reply};

pub type Hash = BTreeMap<Bytes, Bytes>;
pub type Scores = BTreeMap<Bytes, i64>;
pub type Set = BTreeSet<Bytes>;

/// All data of a queue and of peers; `keys.rs` describes each key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub conf: Hash,
    pub job: Hash,
    pub meta: Hash,
    pub runs: Hash,
    pub held: Hash,
    pub unique: Hash,
    pub nodes: Hash,
    pub cron: Hash,
    pub history: Hash,
    pub history_hours: Hash,
    pub progress: Hash,
    pub groups: Hash,
    pub due: Scores,
    pub done: Scores,
    pub dead: Scores,
    pub cancelled: Scores,
    pub lease: Scores,
    pub since: Scores,
    pub idle: Scores,
    pub ticks: Scores,
    pub job_index: Scores,
    pub deferred: Scores,
    pub ready: [Vec<Bytes>; 4],
    pub stale: Set,
    pub gone: [Set; 2],
    /// The queue registry.
    pub queues: Set,
    pub locks: Hash,
    pub waiter_index: Hash,
    pub peers: Hash,
    pub connections: Hash,
    pub tokens: Hash,
    pub kinds: Hash,
    pub kind_minutes: Hash,
    pub audit: Scores,
    pub audit_actors: Scores,
    pub audit_counts: Scores,
    pub lock_waiters: Scores,
    pub presence: Scores,
}

/// The position of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Position {
    Ready(usize),
    Due(i64),
    Held(String),
    Done,
    Dead,
    Cancelled,
}

impl Position {
    pub fn is_unfinished(&self) -> bool {
        !matches!(self, Position::Done | Position::Dead | Position::Cancelled)
    }
}

/// Returns all keys with their types and contents atomically. DUMP is not usable: the dump of a hash changes when the
/// server only resizes it.
pub const QUERY: &str = "
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, content = redis.call('TYPE', key).ok, {}
  if kind == 'hash' then content = redis.call('HGETALL', key) end
  if kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  if kind == 'list' then content = redis.call('LRANGE', key, 0, -1) end
  if kind == 'set' then content = redis.call('SMEMBERS', key) end
  if kind == 'string' then content = { redis.call('GET', key) } end
  all[#all + 1] = { key, kind, content }
end
return all";

impl State {
    fn hashes(&mut self) -> [(&'static str, &mut Hash); 19] {
        [
            ("conf", &mut self.conf),
            ("job", &mut self.job),
            ("meta", &mut self.meta),
            ("runs", &mut self.runs),
            ("running", &mut self.held),
            ("unique", &mut self.unique),
            ("nodes", &mut self.nodes),
            ("cron", &mut self.cron),
            ("history", &mut self.history),
            ("history_hours", &mut self.history_hours),
            ("progress", &mut self.progress),
            ("groups", &mut self.groups),
            ("locks", &mut self.locks),
            ("waiter_index", &mut self.waiter_index),
            ("peers", &mut self.peers),
            ("connections", &mut self.connections),
            ("tokens", &mut self.tokens),
            ("kinds", &mut self.kinds),
            ("kind_minutes", &mut self.kind_minutes),
        ]
    }

    fn scores(&mut self) -> [(&'static str, &mut Scores); 15] {
        [
            ("scheduled", &mut self.due),
            ("done", &mut self.done),
            ("dead", &mut self.dead),
            ("cancelled", &mut self.cancelled),
            ("lease", &mut self.lease),
            ("since", &mut self.since),
            ("idle", &mut self.idle),
            ("ticks", &mut self.ticks),
            ("job_index", &mut self.job_index),
            ("deferred", &mut self.deferred),
            ("lock_waiters", &mut self.lock_waiters),
            ("presence", &mut self.presence),
            ("audit", &mut self.audit),
            ("audit_actors", &mut self.audit_actors),
            ("audit_counts", &mut self.audit_counts),
        ]
    }

    fn lists(&mut self) -> [(&'static str, &mut Vec<Bytes>); 4] {
        let [critical, high, normal, low] = &mut self.ready;
        [("ready:critical", critical), ("ready:high", high), ("ready:normal", normal), ("ready:low", low)]
    }

    fn sets(&mut self) -> [(&'static str, &mut Set); 4] {
        let [first, second] = &mut self.gone;
        [("stale", &mut self.stale), ("removed:1", first), ("removed:2", second), ("queues", &mut self.queues)]
    }

    /// Replaces the content of the server by this state.
    pub fn write(&self, client: &mut Client) {
        let mut commands: Vec<Vec<Bytes>> = vec![vec!["FLUSHALL".into()]];
        let mut all = self.clone();
        let mut put = |command: &str, name: &str, values: Vec<Bytes>| {
            if !values.is_empty() {
                commands.push([vec![command.into(), key(name).into()], values].concat());
            }
        };
        for (name, hash) in all.hashes() {
            put("HSET", name, hash.iter().flat_map(|(field, value)| [field.clone(), value.clone()]).collect());
        }
        for (name, scores) in all.scores() {
            put(
                "ZADD",
                name,
                scores.iter().flat_map(|(member, score)| [score.to_string().into(), member.clone()]).collect(),
            );
        }
        for (name, list) in all.lists() {
            put("RPUSH", name, list.clone());
        }
        for (name, set) in all.sets() {
            put("SADD", name, set.iter().cloned().collect());
        }
        for command in &commands {
            client.write_command(command).expect("sends");
        }
        for command in &commands {
            let reply = client.read_reply().expect("a reply");
            assert!(!matches!(reply, Reply::Error(_)), "{}: {reply:?}", shown(&command.concat()));
        }
    }

    /// Sends a query of all keys; [`State::read`] reads its reply.
    pub fn send_query(client: &mut Client) {
        client.write_command(&["EVAL", QUERY, "0"]).expect("sends");
    }

    /// Reads the content of the server. Fails if there is an unknown key.
    pub fn read(client: &mut Client) -> Result<State, String> {
        let mut state = State::default();
        for entry in client.read_reply().map_err(|error| error.to_string())?.list() {
            let [name, kind, content] = entry.list() else { return Err(format!("not a key: {entry:?}")) };
            let (name, content) = (name.text(), content.list().iter().map(bytes).collect::<Vec<_>>());
            let name = name.strip_prefix("{q}:").ok_or_else(|| format!("a foreign key: {name}"))?;
            let pairs = content.chunks(2).filter_map(|pair| Some((pair.first()?.clone(), pair.get(1)?.clone())));
            let is_known = match kind.text().as_str() {
                "hash" => put(state.hashes(), name, pairs.collect()),
                "zset" => put(state.scores(), name, pairs.map(|(member, score)| (member, number(&score))).collect()),
                "list" => put(state.lists(), name, content),
                "set" => put(state.sets(), name, content.into_iter().collect()),
                _ => false,
            };
            if !is_known {
                return Err(format!("an unknown key: {name}, a {}", kind.text()));
            }
        }
        Ok(state)
    }

    /// Returns a readable form with one line per key.
    pub fn shown(&self) -> String {
        let mut all = self.clone();
        let mut lines = vec!["the keys were:".to_owned()];
        let mut line = |name: &str, entries: Vec<String>| {
            if !entries.is_empty() {
                lines.push(format!("  {name}: {}", entries.join(", ")));
            }
        };
        for (name, hash) in all.hashes() {
            line(name, hash.iter().map(|(field, value)| format!("{} = {}", shown(field), shown(value))).collect());
        }
        for (name, scores) in all.scores() {
            line(name, scores.iter().map(|(member, score)| format!("{} at {score}", shown(member))).collect());
        }
        for (name, list) in all.lists() {
            line(name, list.iter().map(|ticket| shown(ticket)).collect());
        }
        for (name, set) in all.sets() {
            line(name, set.iter().map(|member| shown(member)).collect());
        }
        lines.join("\n") + "\n"
    }

    pub fn meta_of(&self, id: &[u8]) -> Option<Meta> {
        self.meta.get(id).and_then(|text| Meta::read(text))
    }

    /// Returns the tickets of jobs in the ready lists, each with its list. Of several equal tickets marked as stale,
    /// one is skipped.
    pub fn live(&self) -> Vec<(usize, &Bytes)> {
        let mut stale: BTreeSet<&Bytes> = self.stale.iter().collect();
        let all = self
            .ready
            .iter()
            .enumerate()
            .flat_map(|(priority, list)| list.iter().map(move |ticket| (priority, ticket)));
        all.filter(|(_, ticket)| !stale.remove(ticket)).collect()
    }

    /// Returns the positions of each job; a sound job has one.
    pub fn positions(&self) -> BTreeMap<Bytes, Vec<Position>> {
        let mut positions: BTreeMap<Bytes, Vec<Position>> = BTreeMap::new();
        let mut put = |id: &[u8], position: Position| {
            positions.entry(record_text::id_of(id).to_vec()).or_default().push(position)
        };
        self.live().into_iter().for_each(|(priority, ticket)| put(ticket, Position::Ready(priority)));
        self.due.iter().for_each(|(ticket, due)| put(ticket, Position::Due(*due)));
        self.held.iter().for_each(|(id, value)| put(id, Position::Held(record_text::read_held(value).0)));
        self.done.keys().for_each(|id| put(id, Position::Done));
        self.dead.keys().for_each(|id| put(id, Position::Dead));
        self.cancelled.keys().for_each(|id| put(id, Position::Cancelled));
        positions
    }
}

/// Stores the content of a key; returns whether the key is known.
fn put<T, const N: usize>(fields: [(&'static str, &mut T); N], name: &str, content: T) -> bool {
    let field = fields.into_iter().find(|(other, _)| *other == name);
    field.map(|(_, field)| *field = content).is_some()
}

pub fn bytes(reply: &Reply) -> Bytes {
    match reply {
        Reply::Text(bytes) => bytes.clone(),
        other => other.text().into_bytes(),
    }
}

fn number(score: &[u8]) -> i64 {
    String::from_utf8_lossy(score).parse::<f64>().map_or(i64::MIN, |score| score as i64)
}
