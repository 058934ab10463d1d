//! The scripts as the store sends them, with a guard that checks their keys.

#[path = "../../../src/store/redis/assemble.rs"]
mod assemble;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// The ready lists, most urgent first.
const READY: &[&str] = &["ready:critical", "ready:high", "ready:normal", "ready:low"];

/// Checks the keys of every call against the declared ones, before the call. It replaces the server's `redis` for the
/// script.
const GUARD: &str = "
local server, declared, one_key = redis, {}, {}
for _, key in ipairs(KEYS) do declared[key] = true end
for command in string.gmatch('HSET HSETNX HINCRBY HGET HMGET HGETALL HDEL HEXISTS HLEN HSTRLEN HSCAN '
  .. 'HKEYS HVALS RPUSH LPUSH LLEN LRANGE LPOS LREM LTRIM '
  .. 'ZADD ZREM ZRANGE ZREVRANGE ZCARD ZCOUNT ZSCORE ZMSCORE ZLEXCOUNT ZRANK ZREVRANK '
  .. 'ZPOPMAX SADD SREM SCARD SISMEMBER SMISMEMBER '
  .. 'TYPE LINDEX RPOP INCRBY EXPIRE ZREMRANGEBYSCORE ZREMRANGEBYRANK ZREMRANGEBYLEX', '%u+') do
  one_key[command] = true
end
local redis = { sha1hex = server.sha1hex, error_reply = server.error_reply }
local function check(command, ...)
  local args, first, last = { ... }, 1, 1
  if command == 'TIME' or command == 'SPUBLISH' or command == 'PUBSUB' then
    last = 0
  elseif command == 'EXISTS' or command == 'UNLINK' then
    last = #args
  elseif command == 'LMPOP' then
    first, last = 2, 1 + args[1]
  elseif not one_key[command] then
    error('the guard does not know the key positions of ' .. command)
  end
  for index = first, last do
    if not declared[args[index]] then error('undeclared key ' .. tostring(args[index]) .. ' in ' .. command) end
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

/// A complete script with the guard.
#[derive(Clone)]
pub struct Script {
    pub name: String,
    pub code: String,
    /// Its keys, in order; keys that a call chooses are empty.
    pub keys: Vec<String>,
    /// The names of its keys and arguments, in order.
    pub names: Vec<String>,
    pub args: Vec<String>,
    /// The lines that declare them.
    header: [String; 2],
}

/// The directory of a store's scripts, and the key of each name in their headers; empty if a call chooses it.
pub struct ScriptSource {
    pub directory: &'static str,
    pub keys: fn(&str) -> String,
}

/// The Redis store.
const REDIS: ScriptSource = ScriptSource { directory: "src/store/redis/lua", keys: keys_of };

/// Returns all scripts by name: every file in the directory, so that none is missed.
pub fn all() -> BTreeMap<String, Script> {
    REDIS.scripts()
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)
}

impl ScriptSource {
    pub fn scripts(&self) -> BTreeMap<String, Script> {
        let (mut scripts, mut pending) = (BTreeMap::new(), vec![path(self.directory)]);
        while let Some(path) = pending.pop() {
            if path.is_dir() && !path.ends_with("lib") {
                pending.extend(fs::read_dir(&path).expect("readable").map(|entry| entry.expect("readable").path()));
            } else if path.extension().is_some_and(|end| end == "lua") {
                let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
                let script = Script::assemble(self, &name, &fs::read_to_string(&path).expect("a text"));
                assert!(scripts.insert(name, script).is_none(), "two scripts have one name: {}", path.display());
            }
        }
        assert!(scripts.len() > 10, "only {} scripts", scripts.len());
        scripts
    }

    /// Returns its own part, or else one of the Redis store.
    fn part(&self, name: &str) -> Option<&'static str> {
        let directories = [self.directory, REDIS.directory];
        let text =
            directories.iter().find_map(|source| fs::read_to_string(path(&format!("{source}/lib/{name}.lua"))).ok())?;
        Some(text.leak())
    }
}

impl Script {
    fn assemble(source: &ScriptSource, name: &str, body: &str) -> Script {
        let script =
            assemble::assemble(body, |part| source.part(part)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (flags, code) = script.code.split_once('\n').expect("the line with its flags");
        let keys = script.keys.iter().map(|name| (source.keys)(name)).collect();
        let code = format!("{flags}\n{GUARD}{code}");
        let line = |head: &str| body.lines().find_map(|line| line.strip_prefix(head)).unwrap_or_default().to_owned();
        let header = [line("-- keys: "), line("-- args: ")];
        Script { name: name.into(), code, keys, names: script.keys, args: script.args, header }
    }

    /// Returns the position of a key.
    pub fn key_at(&self, name: &str) -> usize {
        self.names.iter().position(|other| other == name).unwrap_or_else(|| panic!("{} has no key {name}", self.name))
    }

    /// Returns the script with a mistake. Both texts may contain names of keys and arguments, as scripts do.
    pub fn with_mistake(&self, right: &str, wrong: &str) -> Script {
        let (right, wrong) = (self.expand(right), self.expand(wrong));
        assert!(self.code.contains(&right), "{} no longer contains {right:?}: seed another mistake", self.name);
        Script { code: self.code.replace(&right, &wrong), ..self.clone() }
    }

    /// Replaces names by positions.
    fn expand(&self, text: &str) -> String {
        let header = format!("-- keys: {}\n-- args: {}\n", self.header[0], self.header[1]);
        assemble::expand(&header, text).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

/// Returns the key for a name in a header of the Redis store.
fn keys_of(name: &str) -> String {
    let list = name.strip_suffix(']').and_then(|name| name.split_once('['));
    match (name, list) {
        (_, Some(("ready", n))) => key(READY[n.parse::<usize>().expect("a number") - 1]),
        (_, Some((list, n))) => key(&format!("{list}:{n}")),
        ("counted_history", _) => key("history"),
        _ => key(name),
    }
}

/// Returns the name of a key on the server.
pub fn key(name: &str) -> String {
    format!("{{q}}:{name}")
}
