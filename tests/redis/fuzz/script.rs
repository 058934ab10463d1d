//! The scripts as the store sends them, and a guard that sees which keys they touch.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Every key of a queue and of the hall, as the headers of the scripts name them.
const NAMES: &[&str] = &[
    "conf",
    "job",
    "meta",
    "errors",
    "due",
    "stale",
    "held",
    "done",
    "dead",
    "unique",
    "lease",
    "since",
    "nodes",
    "idle",
    "ready",
    "gone",
    "history",
    "notes",
    "groups",
    "find",
    "put_off",
    "queues",
    "locks",
    "line",
    "places",
    "presence",
    "guests",
    "connections",
    "cron",
    "ticks",
    "tokens",
    "kinds",
    "audit",
];

/// The ready lists, most urgent first, and the two halves of what is remembered.
const READY: &[&str] = &["ready:critical", "ready:high", "ready:normal", "ready:low"];
const GONE: &[&str] = &["gone:1", "gone:2"];

/// Checks the keys of every call against those that were declared, before the call is made.
/// The script sees this `redis` in the place of the server's.
const GUARD: &str = "
local server, declared, one_key = redis, {}, {}
for _, key in ipairs(KEYS) do declared[key] = true end
for command in string.gmatch('HSET HSETNX HINCRBY HGET HMGET HGETALL HDEL HEXISTS HLEN HSCAN HKEYS HVALS RPUSH LPUSH LLEN LRANGE LPOS LREM LTRIM '
  .. 'ZADD ZREM ZRANGE ZREVRANGE ZCARD ZCOUNT ZSCORE ZMSCORE ZLEXCOUNT ZRANK ZREVRANK ZPOPMAX SADD SREM SCARD SISMEMBER SMISMEMBER '
  .. 'TYPE LINDEX RPOP INCRBY EXPIRE ZREMRANGEBYSCORE ZREMRANGEBYRANK ZREMRANGEBYLEX', '%u+') do
  one_key[command] = true
end
local redis = { sha1hex = server.sha1hex }
local function check(command, ...)
  local args, first, last = { ... }, 1, 1
  if command == 'TIME' or command == 'SPUBLISH' or command == 'PUBSUB' then
    last = 0
  elseif command == 'EXISTS' or command == 'UNLINK' then
    last = #args
  elseif command == 'LMPOP' then
    first, last = 2, 1 + args[1]
  elseif not one_key[command] then
    error('the guard does not know where the keys are in ' .. command)
  end
  for at = first, last do
    if not declared[args[at]] then error('undeclared key ' .. tostring(args[at]) .. ' in ' .. command) end
  end
end
function redis.call(...)
  check(...)
  return server.call(...)
end
function redis.pcall(...)
  check(...)
  return server.pcall(...)
end
";

/// A script, whole and guarded.
#[derive(Clone)]
pub struct Script {
    pub name: String,
    pub code: String,
    /// The names of its keys, in their order; what the header says in other words is left empty.
    pub keys: Vec<String>,
}

/// Where the scripts of a store are, and how it calls the keys that their headers name: none if it has no such key.
pub struct ScriptSource {
    pub directory: &'static str,
    pub keys: fn(&str) -> Vec<String>,
}

/// The Redis store.
const OURS: ScriptSource = ScriptSource { directory: "src/store/redis/lua", keys: keys_of };

/// All scripts by name: whatever lies in the directory, so that none is forgotten.
pub fn all() -> BTreeMap<String, Script> {
    OURS.scripts()
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)
}

impl ScriptSource {
    pub fn scripts(&self) -> BTreeMap<String, Script> {
        let files = fs::read_dir(path(self.directory)).expect("the scripts are there");
        let files = files.map(|entry| entry.expect("readable").path());
        let names = files.filter(|path| path.extension().is_some_and(|end| end == "lua"));
        let names = names.map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned());
        let all: BTreeMap<_, _> = names.map(|name| (name.clone(), Script::assemble(self, &name))).collect();
        assert!(all.len() > 10, "only {} scripts", all.len());
        all
    }

    /// A file of its own, or else one that it shares with the Redis store.
    fn text(&self, file: &str) -> String {
        let own = path(&format!("{}/{file}", self.directory));
        let shared = path(&format!("{}/{file}", OURS.directory));
        fs::read_to_string(own)
            .or_else(|_| fs::read_to_string(shared))
            .unwrap_or_else(|why| panic!("{}/{file}: {why}", self.directory))
    }
}

impl Script {
    fn assemble(source: &ScriptSource, name: &str) -> Script {
        let body = source.text(&format!("{name}.lua"));
        let mut lines = body.lines();
        let mut code = format!("{}\n{GUARD}", lines.next().expect("the line with its flags"));
        for line in lines {
            match line.strip_prefix("-- include ") {
                Some(parts) => {
                    parts.split(", ").for_each(|part| code.push_str(&source.text(&format!("part/{part}.lua"))))
                }
                None => code.push_str(&format!("{line}\n")),
            }
        }
        let from = body.find("-- KEYS ").expect("a header");
        let header = &body[from + "-- KEYS ".len()..body.find("-- ARGV ").expect("a header")];
        Script { name: name.into(), code, keys: keys(&header.replace("\n--", " "), source.keys) }
    }

    /// The same with a mistake in it.
    pub fn with_mistake(&self, right: &str, wrong: &str) -> Script {
        assert!(self.code.contains(right), "{} does not say {right:?} any more: make another mistake", self.name);
        Script { code: self.code.replace(right, wrong), ..self.clone() }
    }
}

/// `1 conf 2 lease 9-12 ready, most urgent first`, one name per key.
fn keys(header: &str, called: fn(&str) -> Vec<String>) -> Vec<String> {
    let words: Vec<&str> = header.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
    let mut keys = Vec::new();
    for pair in words.windows(2).filter(|pair| pair[0].starts_with(|c: char| c.is_ascii_digit())) {
        let first: usize = pair[0].split(['-', ',']).next().unwrap_or_default().parse().expect("a number");
        assert_eq!(first, keys.len() + 1, "keys are numbered from 1: {header}");
        let named = called(pair[1]);
        keys.extend(if named.is_empty() { vec![String::new()] } else { named });
    }
    keys
}

/// The keys of ours that a header names so.
fn keys_of(name: &str) -> Vec<String> {
    match name {
        "ready" => READY.iter().map(|name| key(name)).collect(),
        "gone" => GONE.iter().map(|name| key(name)).collect(),
        name if NAMES.contains(&name) => vec![key(name)],
        _ => Vec::new(),
    }
}

/// A key as it is called on the server.
pub fn key(name: &str) -> String {
    format!("{{q}}:{name}")
}

#[test]
fn script_headers_name_their_keys() {
    let keys = keys("1 conf 2,3 gone 4-7 ready, most urgent first 8 the set (due)", keys_of);
    assert_eq!(keys[..4], [key("conf"), key("gone:1"), key("gone:2"), key("ready:critical")]);
    assert_eq!((keys.len(), keys[7].as_str()), (8, ""));
}
