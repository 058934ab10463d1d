//! Every script, run again and again on random states with random arguments, on real servers.
//!
//! Scripts do not roll back: one that fails after its first write leaves half a step behind. So
//! - no script ever answers an error, whatever it finds;
//! - if it should, nothing has changed;
//! - it touches no key that it did not declare;
//! - what held of the state before holds after.
//!
//! Each server has five seconds; `DULY_FUZZ_SECONDS` gives them more. Each round has a seed of its own, which a failure
//! tells: with `DULY_FUZZ_SEED` it is the first to be run again.

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

/// Scripts that are run one after the other on one state.
const STEPS: usize = 6;
/// So many rounds are run however long they take, and so many runs of each script are the least that is worth a word.
const ROUNDS_MIN: u64 = 300;
const RUNS_MIN: usize = 10;

/// Of so many rounds one begins with a queue that is moving to another store.
const MOVING_ONE_IN: u64 = 4;
/// Of so many, two begin with a push that may find a node for its job; in one of them nothing waits before it.
const HEARD_TWO_IN: u64 = 5;

#[test]
fn no_script_fails_or_breaks_anything_on_redis() {
    on(Binary::Redis);
}

#[test]
fn no_script_fails_or_breaks_anything_on_valkey() {
    on(Binary::Valkey);
}

fn on(binary: Binary) {
    let seconds = Duration::from_secs(env_number("DULY_FUZZ_SECONDS").unwrap_or(5));
    let seed = env_number("DULY_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("{binary:?}: seed {seed}");
    let (server, scripts) = (Options::new(binary).start(), script::all());
    let mut fuzz = Fuzz::new(&server);
    let until = Instant::now() + seconds;
    let mut round = seed;
    while Instant::now() < until || round - seed < ROUNDS_MIN {
        if let Err(why) = fuzz.round(round, &scripts.values().collect::<Vec<_>>()) {
            panic!("{why}\nDULY_FUZZ_SEED={round} runs it again on {binary:?}");
        }
        round += 1;
    }
    println!("{binary:?}: {} rounds; runs: {:?}", round - seed, fuzz.runs);
    let seldom = scripts.keys().filter(|name| fuzz.runs.get(*name).is_none_or(|runs| *runs < RUNS_MIN));
    assert_eq!(seldom.collect::<Vec<_>>(), Vec::<&String>::new(), "each is run often enough to mean something");
    assert!(fuzz.given > 0, "no push has put its job into the hands of a node");
    assert!(fuzz.sound > fuzz.flawed / 2, "most states are sound: {} sound, {} flawed", fuzz.sound, fuzz.flawed);
}

/// A server of its own, and how often what was run on it.
struct Fuzz<'s> {
    server: &'s servers::Server,
    client: servers::Client,
    runs: BTreeMap<String, usize>,
    /// Runs on states of which everything held, and of which something did not.
    sound: usize,
    flawed: usize,
    /// Jobs that a push has put into the hands of a node.
    given: usize,
}

impl<'s> Fuzz<'s> {
    fn new(server: &'s servers::Server) -> Self {
        let client = server.client().expect("connects");
        Fuzz { server, client, runs: BTreeMap::new(), sound: 0, flawed: 0, given: 0 }
    }

    /// A random state, and some scripts on it.
    fn round(&mut self, seed: u64, scripts: &[&Script]) -> Verdict {
        let rng = &mut Rng::with_seed(seed);
        let world = random_state::world(rng);
        let (calm, heard) = (seed.is_multiple_of(HEARD_TWO_IN), seed % HEARD_TWO_IN < 2);
        let mut state = random_state::sound(rng, &world, calm);
        if seed % MOVING_ONE_IN == 1 {
            random_state::mark(&mut state, &world);
        }
        if rng.u8(..3) == 0 {
            (0..rng.usize(1..4)).for_each(|_| random_state::flaw(rng, &mut state, &world));
        }
        state.write(&mut self.client);
        let mut sound = look_over(&state).is_ok();
        let _ears = heard.then(|| self.listen(&world.nodes));
        let mut now = random_state::NOW;
        for step in 0..STEPS {
            now += rng.i64(0..LEASE / 2);
            let hands = scripts.iter().find(|script| script.name == "hand" && heard && step == 0);
            let script = hands.unwrap_or(&scripts[rng.usize(..scripts.len())]);
            let client = call::Client { rng, world: &world, state: &state, now };
            state = self.step(client, script, &mut sound)?;
        }
        Ok(())
    }

    /// Listens for nodes to which jobs are given, until it is dropped.
    fn listen(&self, nodes: &[String]) -> servers::Client {
        let mut ears = self.server.client().expect("connects");
        for node in nodes {
            let channel = format!("{}{node}:{}", pushes::JOBS, pushes::HEARD);
            ears.ask(&["SSUBSCRIBE", &channel]).expect("listens");
        }
        ears
    }

    /// One script on the state that is on the server; answers what it made of it.
    fn step(&mut self, call: call::Client<'_>, script: &Script, sound: &mut bool) -> Result<State, String> {
        let (before, now) = (call.state, call.now);
        let mut call = call.call(script);
        let answer = self.send(script, &call);
        let after = State::read(&mut self.client).map_err(|why| format!("{}: {why}", call.shown()))?;
        *self.runs.entry(script.name.clone()).or_default() += 1;
        self.given += usize::from(script.name == "hand" && after.held.len() > before.held.len());
        call.now = answer.list().first().and_then(|now| now.text().parse().ok()).unwrap_or(now);
        let verdict = match answer {
            Reply::Error(why) if after == *before => Err(format!("answers {why}")),
            Reply::Error(why) => Err(format!("answers {why}, and has written before")),
            _ => self.judge(&call, before, &after, sound),
        };
        verdict.map_err(|why| format!("{}: {why}\nbefore {}after {}", call.shown(), before.shown(), after.shown()))?;
        Ok(after)
    }

    /// Sends it and the look at what it has done together: nothing comes between.
    fn send(&mut self, script: &Script, call: &Call) -> Reply {
        let mut command = vec![b"EVAL".to_vec(), script.code.clone().into(), call.keys.len().to_string().into()];
        command.extend(call.keys.iter().map(|key| key.clone().into_bytes()));
        command.extend(call.args.iter().cloned());
        self.client.send(&command).expect("sends");
        State::ask(&mut self.client);
        self.client.read().expect("answers")
    }

    /// What the script did, and what it left; notes whether that is sound.
    fn judge(&mut self, call: &Call, before: &State, after: &State, sound: &mut bool) -> Verdict {
        check::step(call, before, after)?;
        let verdict = look_over(after);
        let was_sound = std::mem::replace(sound, verdict.is_ok());
        // One flaw makes others: a job in two places ends once, and the other place has no record then.
        *if was_sound { &mut self.sound } else { &mut self.flawed } += 1;
        if was_sound { check::sound_step(call, before, after).and(verdict) } else { Ok(()) }
    }
}

/// Whether all that should hold does.
fn look_over(state: &State) -> Verdict {
    INVARIANTS.iter().try_for_each(|(name, holds)| holds(state).map_err(|why| format!("not any more: {name}: {why}")))
}
