//! The scripts on Sidekiq's keys, on random states: also such as other programs may leave there, who use a key in another way.
//!
//! - No script answers an error, unless a key of Sidekiq's is of another type, and then nothing has changed.
//! - None touches a key that it did not declare.
//! - No entry is lost or doubled: what a script takes out of one place is in another, unless its answer says why not.

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

/// Scripts that are run one after the other on one state.
const STEPS: usize = 8;
const ROUNDS_MIN: u64 = 150;
const RUNS_MIN: usize = 10;

/// Sidekiq's keys, and ours beside them.
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
    let (until, mut round) = (Instant::now() + seconds, seed);
    while Instant::now() < until || round - seed < ROUNDS_MIN {
        if let Err(why) = play(&mut client, round, &all, &mut runs) {
            panic!("{why}\nDULY_FUZZ_SEED={round} runs it again");
        }
        round += 1;
    }
    println!("{} rounds; runs: {runs:?}", round - seed);
    let seldom = scripts.keys().filter(|name| runs.get(*name).is_none_or(|runs| *runs < RUNS_MIN));
    assert_eq!(seldom.collect::<Vec<_>>(), Vec::<&String>::new(), "each is run often enough to mean something");
}

/// Mistakes in the scripts are found.
#[test]
fn every_seeded_mistake_on_sidekiq_keys_is_found() {
    let (server, scripts) = (Options::new(Binary::Redis).start(), SIDEKIQ.scripts());
    let mistakes = [
        ("promote", "redis.call('LPUSH', KEYS[3], ARGV[i + 1])", "local _ = 0", "lost"),
        ("promote", "local why = mixed(KEYS[3])", "local why = nil", "has written before"),
        ("take_back", "chunks('HDEL', KEYS[6], fields)", "local _ = 0", "lost"),
        ("settle", "if values[i] then", "if true then", "lost"),
        (
            "settle",
            "redis.pcall('INCRBY', KEYS[key], more)",
            "redis.call('INCRBY', KEYS[key], more)",
            "has written before",
        ),
        ("push", "redis.call('SCARD', KEYS[2])", "", "has written before"),
        ("discard", "sound(2)", "", "has written before"),
        ("counts", "redis.call('LLEN', KEYS[2])", "redis.call('LLEN', 'queue:other')", "undeclared key"),
    ];
    for (name, right, wrong, says) in mistakes {
        let script = scripts[name].with_mistake(right, wrong);
        let mut client = server.client().expect("connects");
        let found = (0..3_000).find_map(|seed| play(&mut client, seed, &[&script], &mut BTreeMap::new()).err());
        let found = found.unwrap_or_else(|| panic!("{name} with {wrong:?} in the place of {right:?} is not found"));
        assert!(found.contains(says), "{name} with {wrong:?}: {found}");
    }
}

/// A random state, and some scripts on it.
fn play(client: &mut Client, seed: u64, scripts: &[&Script], runs: &mut BTreeMap<String, usize>) -> Result<(), String> {
    let rng = &mut Rng::with_seed(seed);
    let (mut state, nodes) = State::random(rng);
    let strange = rng.u8(..4) == 0 && state.spoil(rng);
    state.write(client);
    let mut now = NOW;
    for _ in 0..STEPS {
        now += rng.i64(0..LEASE / 2);
        let script = scripts[rng.usize(..scripts.len())];
        let call = Call::random(rng, script, &state, &nodes, now);
        *runs.entry(script.name.clone()).or_default() += 1;
        let answer = send(client, script, &call);
        let after = State::read(client)?;
        let verdict = match &answer {
            Reply::Error(why) if after != state => Err(format!("answers {why}, and has written before")),
            Reply::Error(why) if !strange || !why.contains("WRONGTYPE") => Err(format!("answers {why}")),
            Reply::Error(_) => Ok(()),
            answer => call.judge(answer.list(), &state, &after),
        };
        verdict.map_err(|why| format!("{}: {why}\nbefore {}after {}", call.shown(), state.shown(), after.shown()))?;
        state = after;
    }
    Ok(())
}

/// Sends it and the look at what it has done together: nothing comes between.
fn send(client: &mut Client, script: &Script, call: &Call) -> Reply {
    let mut command = vec![b"EVAL".to_vec(), script.code.clone().into(), call.keys.len().to_string().into()];
    command.extend(call.keys.iter().map(|key| key.clone().into_bytes()));
    command.extend(call.args.iter().cloned());
    client.send(&command).expect("sends");
    State::ask(client);
    client.read().expect("answers")
}
