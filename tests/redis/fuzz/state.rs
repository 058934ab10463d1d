//! What is in a queue's keys: written to a server, and read back.

use std::collections::{BTreeMap, BTreeSet};

use super::record_text::{self, Bytes, Meta, shown};
use super::script::key;
use test_support::servers::{Client, Reply};

pub type Hash = BTreeMap<Bytes, Bytes>;
pub type Scores = BTreeMap<Bytes, i64>;
pub type Set = BTreeSet<Bytes>;

/// Everything that a queue and the hall keep; `keys.rs` says what each is for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub conf: Hash,
    pub job: Hash,
    pub meta: Hash,
    pub errors: Hash,
    pub held: Hash,
    pub unique: Hash,
    pub nodes: Hash,
    pub cron: Hash,
    pub history: Hash,
    pub notes: Hash,
    pub groups: Hash,
    pub due: Scores,
    pub done: Scores,
    pub dead: Scores,
    pub lease: Scores,
    pub since: Scores,
    pub idle: Scores,
    pub ticks: Scores,
    pub find: Scores,
    pub put_off: Scores,
    pub ready: [Vec<Bytes>; 4],
    pub stale: Set,
    pub gone: [Set; 2],
    /// In the hall: the names of all queues.
    pub queues: Set,
    pub locks: Hash,
    pub places: Hash,
    pub guests: Hash,
    pub connections: Hash,
    pub tokens: Hash,
    pub kinds: Hash,
    pub audit: Vec<Bytes>,
    pub line: Scores,
    pub presence: Scores,
}

/// Where a job is.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    Ready(usize),
    Due(i64),
    Held(String),
    Done,
    Dead,
}

impl Place {
    pub fn is_unfinished(&self) -> bool {
        !matches!(self, Place::Done | Place::Dead)
    }
}

/// All keys with their types and contents, in one step. Not by DUMP: what a server dumps of a hash changes when it
/// merely makes room in it.
pub const LOOK: &str = "
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
    fn hashes(&mut self) -> [(&'static str, &mut Hash); 17] {
        [
            ("conf", &mut self.conf),
            ("job", &mut self.job),
            ("meta", &mut self.meta),
            ("errors", &mut self.errors),
            ("held", &mut self.held),
            ("unique", &mut self.unique),
            ("nodes", &mut self.nodes),
            ("cron", &mut self.cron),
            ("history", &mut self.history),
            ("notes", &mut self.notes),
            ("groups", &mut self.groups),
            ("locks", &mut self.locks),
            ("places", &mut self.places),
            ("guests", &mut self.guests),
            ("connections", &mut self.connections),
            ("tokens", &mut self.tokens),
            ("kinds", &mut self.kinds),
        ]
    }

    fn scores(&mut self) -> [(&'static str, &mut Scores); 11] {
        [
            ("due", &mut self.due),
            ("done", &mut self.done),
            ("dead", &mut self.dead),
            ("lease", &mut self.lease),
            ("since", &mut self.since),
            ("idle", &mut self.idle),
            ("ticks", &mut self.ticks),
            ("find", &mut self.find),
            ("put_off", &mut self.put_off),
            ("line", &mut self.line),
            ("presence", &mut self.presence),
        ]
    }

    fn lists(&mut self) -> [(&'static str, &mut Vec<Bytes>); 5] {
        let [critical, high, normal, low] = &mut self.ready;
        [
            ("ready:critical", critical),
            ("ready:high", high),
            ("ready:normal", normal),
            ("ready:low", low),
            ("audit", &mut self.audit),
        ]
    }

    fn sets(&mut self) -> [(&'static str, &mut Set); 4] {
        let [first, second] = &mut self.gone;
        [("stale", &mut self.stale), ("gone:1", first), ("gone:2", second), ("queues", &mut self.queues)]
    }

    /// Makes this all that is on the server.
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
            put("ZADD", name, scores.iter().flat_map(|(member, at)| [at.to_string().into(), member.clone()]).collect());
        }
        for (name, list) in all.lists() {
            put("RPUSH", name, list.clone());
        }
        for (name, set) in all.sets() {
            put("SADD", name, set.iter().cloned().collect());
        }
        for command in &commands {
            client.send(command).expect("sends");
        }
        for command in &commands {
            let answer = client.read().expect("answers");
            assert!(!matches!(answer, Reply::Error(_)), "{}: {answer:?}", shown(&command.concat()));
        }
    }

    /// Asks for all that is on the server; [`State::read`] takes the answer.
    pub fn ask(client: &mut Client) {
        client.send(&["EVAL", LOOK, "0"]).expect("sends");
    }

    /// What is on the server. Fails if there is a key that no queue has.
    pub fn read(client: &mut Client) -> Result<State, String> {
        let mut state = State::default();
        for entry in client.read().map_err(|why| why.to_string())?.list() {
            let [name, kind, content] = entry.list() else { return Err(format!("not a key: {entry:?}")) };
            let (name, content) = (name.text(), content.list().iter().map(bytes).collect::<Vec<_>>());
            let name = name.strip_prefix("{q}:").ok_or_else(|| format!("a key that is none of ours: {name}"))?;
            let pairs = content.chunks(2).filter_map(|pair| Some((pair.first()?.clone(), pair.get(1)?.clone())));
            let known = match kind.text().as_str() {
                "hash" => put(state.hashes(), name, pairs.collect()),
                "zset" => put(state.scores(), name, pairs.map(|(member, score)| (member, number(&score))).collect()),
                "list" => put(state.lists(), name, content),
                "set" => put(state.sets(), name, content.into_iter().collect()),
                _ => false,
            };
            if !known {
                return Err(format!("a key that no queue has: {name}, a {}", kind.text()));
            }
        }
        Ok(state)
    }

    /// For people: one line per key.
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

    /// The tickets in the ready lists that stand for a job, each with its list. Of those of one name that is marked as
    /// stale, one does not.
    pub fn live(&self) -> Vec<(usize, &Bytes)> {
        let mut stale: BTreeSet<&Bytes> = self.stale.iter().collect();
        let all = self.ready.iter().enumerate().flat_map(|(lane, list)| list.iter().map(move |ticket| (lane, ticket)));
        all.filter(|(_, ticket)| !stale.remove(ticket)).collect()
    }

    /// Where each job is; one that is in order is in one place.
    pub fn places(&self) -> BTreeMap<Bytes, Vec<Place>> {
        let mut places: BTreeMap<Bytes, Vec<Place>> = BTreeMap::new();
        let mut put = |id: &[u8], place: Place| places.entry(record_text::id_of(id).to_vec()).or_default().push(place);
        self.live().into_iter().for_each(|(lane, ticket)| put(ticket, Place::Ready(lane)));
        self.due.iter().for_each(|(ticket, at)| put(ticket, Place::Due(*at)));
        self.held.iter().for_each(|(id, value)| put(id, Place::Held(record_text::read_held(value).0)));
        self.done.keys().for_each(|id| put(id, Place::Done));
        self.dead.keys().for_each(|id| put(id, Place::Dead));
        places
    }
}

/// Puts what was read where it belongs; answers whether there is such a place.
fn put<T, const N: usize>(fields: [(&'static str, &mut T); N], name: &str, content: T) -> bool {
    let field = fields.into_iter().find(|(known, _)| *known == name);
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
