//! Every script, run many times on random states with random arguments, on real servers.
//!
//! Scripts do not roll back: a script that fails after its first write leaves a partial change. Therefore
//! - no script ever replies with an error, whatever the state;
//! - if it does, nothing has changed;
//! - it accesses only declared keys;
//! - all invariants that held before hold after.
//!
//! Each server gets five seconds; `DULY_FUZZ_SECONDS` changes that. Each round has its own seed, which a failure
//! prints: `DULY_FUZZ_SEED` starts with it.

mod call;
mod check;
mod controls;
mod crons;
mod peers;
mod peers_check;
mod pushes;
mod random_state;
mod record_text;
mod repairs;
mod script;
mod settles;
mod sidekiq;
mod state;
mod transfers;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;

use call::Call;
use check::{INVARIANTS, Verdict};
use random_state::LEASE;
use script::Script;
use state::State;
use test_support::env_number;
use test_support::servers::{self, Binary, Options, Reply};

/// Scripts that are run in sequence on one state.
const CALLS_PER_ROUND: usize = 6;
/// Minimum number of rounds, whatever time they take, and minimum number of runs of each script.
const ROUNDS_MIN: u64 = 300;
const RUNS_MIN: usize = 10;

/// One in this many rounds starts with a queue under transfer to another store.
const TRANSFER_ONE_IN: u64 = 4;
/// Two in this many rounds start with a push that may be delivered; in one of them no job waits before it.
const DELIVERY_TWO_IN: u64 = 5;

#[test]
fn no_script_fails_or_breaks_anything_on_redis() {
    fuzz(Binary::Redis);
}

#[test]
fn no_script_fails_or_breaks_anything_on_valkey() {
    fuzz(Binary::Valkey);
}

fn fuzz(binary: Binary) {
    let seconds = Duration::from_secs(env_number("DULY_FUZZ_SECONDS").unwrap_or(5));
    let seed = env_number("DULY_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("{binary:?}: seed {seed}");
    let (server, scripts) = (Options::new(binary).start(), script::all());
    let mut fuzz = Fuzz::new(&server);
    let deadline = Instant::now() + seconds;
    let mut round = seed;
    while Instant::now() < deadline || round - seed < ROUNDS_MIN {
        if let Err(failure) = fuzz.round(round, &scripts.values().collect::<Vec<_>>()) {
            panic!("{failure}\nDULY_FUZZ_SEED={round} runs it again on {binary:?}");
        }
        round += 1;
    }
    println!("{binary:?}: {} rounds; runs: {:?}", round - seed, fuzz.runs);
    let rarely_run = scripts.keys().filter(|name| fuzz.runs.get(*name).is_none_or(|runs| *runs < RUNS_MIN));
    assert_eq!(rarely_run.collect::<Vec<_>>(), Vec::<&String>::new(), "each script is run often enough");
    assert!(fuzz.delivered > 0, "no push has delivered its job to a node");
    assert!(fuzz.sound > fuzz.flawed / 2, "most states are sound: {} sound, {} flawed", fuzz.sound, fuzz.flawed);
}

#[test]
fn every_script_of_a_queue_rejects_a_newer_format() {
    let (server, scripts) = (Options::new(Binary::Redis).start(), script::all());
    let mut fuzz = Fuzz::new(&server);
    for script in scripts.values().filter(|script| script.names.iter().any(|name| name == "conf")) {
        for seed in 0..5 {
            let rng = &mut Rng::with_seed(seed);
            let world = random_state::world(rng);
            let mut state = random_state::sound(rng, &world, false);
            state.conf.insert("format".into(), "2".into());
            state.write(&mut fuzz.client);
            let call = call::Client { rng, world: &world, state: &state, now: random_state::NOW }.call(script);
            let reply = fuzz.send(script, &call);
            let is_rejected = matches!(&reply, Reply::Error(error) if error == "FORMAT 2 {q}:conf");
            assert!(is_rejected, "{}: {reply:?}", call.shown());
            let after = State::read(&mut fuzz.client).expect("readable");
            assert_eq!(after, state, "{}", call.shown());
        }
    }
}

/// A server and the number of runs on it.
struct Fuzz<'s> {
    server: &'s servers::Server,
    client: servers::Client,
    runs: BTreeMap<String, usize>,
    /// Runs on sound states, and on flawed ones.
    sound: usize,
    flawed: usize,
    /// Jobs that a push has delivered to a node.
    delivered: usize,
}

impl<'s> Fuzz<'s> {
    fn new(server: &'s servers::Server) -> Self {
        let client = server.client().expect("connects");
        Fuzz { server, client, runs: BTreeMap::new(), sound: 0, flawed: 0, delivered: 0 }
    }

    /// Creates a random state, and runs some scripts on it.
    fn round(&mut self, seed: u64, scripts: &[&Script]) -> Verdict {
        let rng = &mut Rng::with_seed(seed);
        let world = random_state::world(rng);
        let (calm, delivers) = (seed.is_multiple_of(DELIVERY_TWO_IN), seed % DELIVERY_TWO_IN < 2);
        let mut state = random_state::sound(rng, &world, calm);
        if seed % TRANSFER_ONE_IN == 1 {
            random_state::mark(&mut state, &world);
        }
        if rng.u8(..3) == 0 {
            (0..rng.usize(1..4)).for_each(|_| random_state::flaw(rng, &mut state, &world));
        }
        state.write(&mut self.client);
        let mut sound = check_invariants(&state).is_ok();
        let _subscriber = delivers.then(|| self.subscribe(&world.nodes));
        let mut now = random_state::NOW;
        for number in 0..CALLS_PER_ROUND {
            now += rng.i64(0..LEASE / 2);
            let delivery = scripts.iter().find(|script| script.name == "deliver_to_idle" && delivers && number == 0);
            let script = delivery.unwrap_or(&scripts[rng.usize(..scripts.len())]);
            let client = call::Client { rng, world: &world, state: &state, now };
            state = self.run(client, script, &mut sound)?;
        }
        Ok(())
    }

    /// Subscribes for nodes that accept deliveries, until it is dropped.
    fn subscribe(&self, nodes: &[String]) -> servers::Client {
        let mut subscriber = self.server.client().expect("connects");
        for node in nodes {
            let channel = format!("{}{node}:{}", pushes::DELIVERY, pushes::SUBSCRIBED_KIND);
            subscriber.send_command(&["SSUBSCRIBE", &channel]).expect("subscribes");
        }
        subscriber
    }

    /// Runs one script on the server's state, and returns the new state.
    fn run(&mut self, call: call::Client<'_>, script: &Script, sound: &mut bool) -> Result<State, String> {
        let (before, now) = (call.state, call.now);
        let mut call = call.call(script);
        let reply = self.send(script, &call);
        let after = State::read(&mut self.client).map_err(|error| format!("{}: {error}", call.shown()))?;
        *self.runs.entry(script.name.clone()).or_default() += 1;
        self.delivered += usize::from(script.name == "deliver_to_idle" && after.held.len() > before.held.len());
        call.now = reply.list().first().and_then(|now| now.text().parse().ok()).unwrap_or(now);
        let verdict = match reply {
            Reply::Error(error) if after == *before => Err(format!("replies {error}")),
            Reply::Error(error) => Err(format!("replies {error}, and has written before")),
            _ => self.check(&call, before, &after, sound),
        };
        verdict
            .map_err(|error| format!("{}: {error}\nbefore {}after {}", call.shown(), before.shown(), after.shown()))?;
        Ok(after)
    }

    /// Sends the call and the query of the new state together, so that nothing comes in between.
    fn send(&mut self, script: &Script, call: &Call) -> Reply {
        let mut command = vec![b"EVAL".to_vec(), script.code.clone().into(), call.keys.len().to_string().into()];
        command.extend(call.keys.iter().map(|key| key.clone().into_bytes()));
        command.extend(call.args.iter().cloned());
        self.client.write_command(&command).expect("sends");
        State::send_query(&mut self.client);
        self.client.read_reply().expect("a reply")
    }

    /// Checks the change and the new state, and updates `sound`.
    fn check(&mut self, call: &Call, before: &State, after: &State, sound: &mut bool) -> Verdict {
        check::check_change(call, before, after)?;
        let verdict = check_invariants(after);
        let was_sound = std::mem::replace(sound, verdict.is_ok());
        // One flaw causes others: a job in two positions ends once, and then the other position has no record.
        *if was_sound { &mut self.sound } else { &mut self.flawed } += 1;
        if was_sound { check::check_sound_change(call, before, after).and(verdict) } else { Ok(()) }
    }
}

/// Checks all invariants.
fn check_invariants(state: &State) -> Verdict {
    INVARIANTS
        .iter()
        .try_for_each(|(name, holds)| holds(state).map_err(|violation| format!("no longer holds: {name}: {violation}")))
}
