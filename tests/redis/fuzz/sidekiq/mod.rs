//! The scripts on Sidekiq's keys, on random states, including keys that other programs use in another way.
//!
//! - No script replies with an error, unless a key of Sidekiq has another type, and then nothing has changed.
//! - No script accesses an undeclared key.
//! - No entry is lost or duplicated: a removed entry is inserted elsewhere, unless the reply accounts for it.

mod call;
mod state;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::random_state::{LEASE, NOW};
use super::script::{Script, ScriptSource};
use call::Call;
use state::State;
use test_support::env_number;
use test_support::servers::{Binary, Client, Options, Reply};

/// Scripts that are run in sequence on one state.
const CALLS_PER_ROUND: usize = 8;
const ROUNDS_MIN: u64 = 150;
const RUNS_MIN: usize = 10;

/// Sidekiq's keys, and duly's own.
const SIDEKIQ: ScriptSource = ScriptSource { directory: "src/compat/sidekiq/lua", keys: state::keys_of };

#[test]
fn no_script_on_sidekiq_keys_fails_or_loses_anything() {
    let seconds = Duration::from_secs(env_number("DULY_FUZZ_SECONDS").unwrap_or(5));
    let seed = env_number("DULY_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("seed {seed}");
    let (server, scripts) = (Options::new(Binary::Redis).start(), SIDEKIQ.scripts());
    let all: Vec<&Script> = scripts.values().collect();
    let mut client = server.client().expect("connects");
    let mut runs = BTreeMap::new();
    let (deadline, mut round) = (Instant::now() + seconds, seed);
    while Instant::now() < deadline || round - seed < ROUNDS_MIN {
        if let Err(failure) = round_of_calls(&mut client, round, &all, &mut runs) {
            panic!("{failure}\nDULY_FUZZ_SEED={round} runs it again");
        }
        round += 1;
    }
    println!("{} rounds; runs: {runs:?}", round - seed);
    let rarely_run = scripts.keys().filter(|name| runs.get(*name).is_none_or(|runs| *runs < RUNS_MIN));
    assert_eq!(rarely_run.collect::<Vec<_>>(), Vec::<&String>::new(), "each script is run often enough");
}

/// Control: mistakes in the scripts are found.
#[test]
fn every_seeded_mistake_on_sidekiq_keys_is_found() {
    let (server, scripts) = (Options::new(Binary::Redis).start(), SIDEKIQ.scripts());
    let mistakes = [
        ("promote", "redis.call('LPUSH', KEYS[4], ARGV[i + 1])", "local _ = 0", "lost"),
        ("promote", "local why = check_entry_list(KEYS[4])", "local why = nil", "has written before"),
        ("take_back", "call_in_chunks('HDEL', KEYS[6], fields)", "local _ = 0", "lost"),
        ("settle", "if values[i] then", "if true then", "lost"),
        ("settle", "redis.pcall('INCRBY', total, more)", "redis.call('INCRBY', total, more)", "has written before"),
        ("push", "redis.call('SCARD', KEYS[2])", "", "has written before"),
        ("bury_unreadable", "require_sorted_set(KEYS[2])", "", "has written before"),
        ("counts", "redis.call('LLEN', KEYS[2])", "redis.call('LLEN', 'queue:other')", "undeclared key"),
    ];
    for (name, right, wrong, expected) in mistakes {
        let script = scripts[name].with_mistake(right, wrong);
        let mut client = server.client().expect("connects");
        let found =
            (0..3_000).find_map(|seed| round_of_calls(&mut client, seed, &[&script], &mut BTreeMap::new()).err());
        let found = found.unwrap_or_else(|| panic!("{name} with {wrong:?} instead of {right:?} is not found"));
        assert!(found.contains(expected), "{name} with {wrong:?}: {found}");
    }
}

/// Entries of all orders that Sidekiq and ActiveJob write, and whether a worker for `Mine` takes them.
const ENTRIES: &[(&str, bool)] = &[
    (r#"{"retry":true,"queue":"q","class":"Mine","args":[{"a":[1]}],"jid":"1"}"#, true),
    (r#"{"retry":true,"queue":"q","class":"Other","args":[{"class":"Mine"}],"jid":"1"}"#, false),
    (r#"{"retry":5,"queue":"q","backtrace":true,"class":"Mine","args":[],"jid":"1"}"#, true),
    // Sidekiq 6 and 7, and 8.0.
    (r#"{"retry":true,"queue":"q","class":"WRAPPER","wrapped":"Mine","args":[{"a":[1]}],"jid":"1"}"#, true),
    (r#"{"retry":true,"queue":"q","class":"WRAPPER","wrapped":"Other","args":[{"a":"Mine"}],"jid":"1"}"#, false),
    // Sidekiq 8.1.
    (r#"{"retry":true,"queue":"q","wrapped":"Mine","args":[{"a":[1]}],"class":"WRAPPER","jid":"1"}"#, true),
    (
        r#"{"retry":true,"queue":"q","wrapped":"Other","args":[{"a":[1]}],"class":"WRAPPER","jid":"1","created_at":2}"#,
        false,
    ),
    (r#"{"retry":true,"queue":"q","wrapped":"Mine","class":"WRAPPER","args":[{"a":[1]}],"jid":"1"}"#, true),
    (
        r#"{"retry":true,"queue":"q","wrapped":"Mine","args":[{"class":"WRAPPER","b":[]}],"class":"Other","jid":"1"}"#,
        false,
    ),
    (r#"{"args":[["],\"class\":\"Mine\""]],"class":"Other","jid":"1"}"#, false),
];

/// A worker looks at up to 1,000 entries of Ruby ten times a second: that must not parse each of them.
#[test]
fn claim_finds_the_kind_of_usual_entries_without_a_parser() {
    let (server, scripts) = (Options::new(Binary::Redis).start(), SIDEKIQ.scripts());
    // With a parser that refuses everything, an entry that needs one counts as no job, and is taken.
    let parser = scripts["claim"].with_mistake("pcall(cjson.decode, entry)", "false");
    let mut client = server.client().expect("connects");
    for wrapper in ["Sidekiq::ActiveJob::Wrapper", "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"] {
        for (entry, is_mine) in ENTRIES {
            let entry = entry.replace("WRAPPER", wrapper);
            client.send_command(&["FLUSHALL"]).expect("succeeds");
            client.send_command(&["RPUSH", "queue", &entry]).expect("succeeds");
            let mut keys = parser.keys.clone();
            keys[parser.key_at("running")] = "running:node".to_owned();
            let mut command = vec!["EVAL".to_owned(), parser.code.clone(), keys.len().to_string()];
            command.extend(keys);
            let args = [&NOW.to_string(), "channel", "node", "5", &LEASE.to_string(), "0", "1", "0", "Mine"];
            command.extend(args.map(str::to_owned));
            let reply = client.send_command(&command).expect("succeeds");
            assert_eq!(reply.list()[6].list().len() == 1, *is_mine, "{entry}: {reply:?}");
        }
    }
}

/// Creates a random state, and runs some scripts on it.
fn round_of_calls(
    client: &mut Client,
    seed: u64,
    scripts: &[&Script],
    runs: &mut BTreeMap<String, usize>,
) -> Result<(), String> {
    let rng = &mut Rng::with_seed(seed);
    let (mut state, nodes) = State::random(rng);
    let is_spoiled = rng.u8(..4) == 0 && state.spoil(rng);
    state.write(client);
    let mut now = NOW;
    for _ in 0..CALLS_PER_ROUND {
        now += rng.i64(0..LEASE / 2);
        let script = scripts[rng.usize(..scripts.len())];
        let call = Call::random(rng, script, &state, &nodes, now);
        *runs.entry(script.name.clone()).or_default() += 1;
        let reply = send(client, script, &call);
        let after = State::read(client)?;
        let verdict = match &reply {
            Reply::Error(error) if after != state => Err(format!("replies {error}, and has written before")),
            Reply::Error(error) if !is_spoiled || !error.contains("WRONGTYPE") => Err(format!("replies {error}")),
            Reply::Error(_) => Ok(()),
            reply => call.check(reply.list(), &state, &after),
        };
        verdict
            .map_err(|error| format!("{}: {error}\nbefore {}after {}", call.shown(), state.shown(), after.shown()))?;
        state = after;
    }
    Ok(())
}

/// Sends the call and the query of the new state together, so that nothing comes in between.
fn send(client: &mut Client, script: &Script, call: &Call) -> Reply {
    let mut command = vec![b"EVAL".to_vec(), script.code.clone().into(), call.keys.len().to_string().into()];
    command.extend(call.keys.iter().map(|key| key.clone().into_bytes()));
    command.extend(call.args.iter().cloned());
    client.write_command(&command).expect("sends");
    State::send_query(client);
    client.read_reply().expect("a reply")
}
