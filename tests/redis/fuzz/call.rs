//! Arguments for each script, as a client might send them that knows this state, or knew it a while ago.

use fastrand::Rng;

use super::random_state::{self, LEASE, World};
use super::record_text::{self, Bytes};
use super::script::{Script, key};
use super::state::{Hash, State};
use super::{crons, pushes, repairs, settles, transfers};

pub const CHANNEL: &str = "{q}:wake:";

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub struct Call {
    pub script: String,
    pub keys: Vec<String>,
    pub args: Vec<Bytes>,
    /// Who asks.
    pub node: String,
    /// The store's time at this step.
    pub now: i64,
}

impl Call {
    /// Whether it names this hold whole.
    pub fn names(&self, id: &[u8], value: &[u8]) -> bool {
        match self.script.as_str() {
            "settle" => settles::acks(&self.args).any(|(named, under)| named == id && under == value),
            _ => self.args.windows(2).any(|pair| pair[0] == id && pair[1] == value),
        }
    }

    pub fn shown(&self) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| record_text::shown(arg)).collect();
        format!("{} with {args:?}", self.script)
    }
}

/// What a client knows and chance decides.
pub struct Client<'c> {
    pub rng: &'c mut Rng,
    pub world: &'c World,
    pub state: &'c State,
    pub now: i64,
}

/// Arguments, text by text.
#[derive(Default)]
pub struct Args(pub Vec<Bytes>);

impl Args {
    pub fn add(&mut self, arg: impl AsRef<[u8]>) -> &mut Self {
        self.0.push(arg.as_ref().to_vec());
        self
    }

    pub fn add_all(&mut self, args: impl IntoIterator<Item: AsRef<[u8]>>) {
        self.0.extend(args.into_iter().map(|arg| arg.as_ref().to_vec()));
    }

    pub fn number(&mut self, number: impl TryInto<i64>) -> &mut Self {
        let number = number.try_into().ok().expect("a number of these tests");
        self.add(number.to_string())
    }

    /// That is all of them.
    pub fn end(&mut self) {}
}

impl Client<'_> {
    /// A call of this script. A script that nobody here knows how to call fails the test.
    pub fn call(mut self, script: &Script) -> Call {
        let mut keys = script.keys.clone();
        let mut node = self.node();
        let mut args = Args::default();
        // Now and then the server's own clock, far in the past of what the state says.
        let manual = self.rng.u8(..20) > 0;
        args.add(if manual { self.now.to_string() } else { String::new() });
        match script.name.as_str() {
            "push" => pushes::fresh(&mut self, &mut args),
            "hand" => pushes::one(&mut self, &mut args),
            "push_checked" => pushes::checked(&mut self, &mut args),
            "settle" => settles::settle(&mut self, &node, &mut args),
            "settle_others" => settles::settle_others(&mut self, &node, &mut args),
            "claim" => self.claim(&node, &mut args),
            "take_back" => self.take_back(&node, &mut args),
            "step_back" | "leave" => args.add_all([CHANNEL, &node]),
            "beat" => args.add_all([&node, &LEASE.to_string(), "{}", &(LEASE / 3).to_string()]),
            "holding" => args.add_all([if self.rng.bool() { &node } else { "" }, &self.cursor().to_string()]),
            "pause" => args.add_all([CHANNEL, &self.rng.u8(..2).to_string()]),
            "prune" => self.prune(&mut args),
            "get" => args.add_all([self.job()]),
            "note" => settles::note(&mut self, &node, &mut args),
            "edit" => self.edit(&mut args),
            "limit" => self.limit(&mut args),
            "history" => args.add_all([self.rng.u32(..1440).to_string(), self.rng.u32(1..=60).to_string()]),
            "groups" => {}
            "watch_ends" => args.number(LEASE).end(),
            "ended" => args.add_all([self.job(), self.job()]),
            "find" => self.find(&mut args),
            "remove" => self.remove(&mut args),
            "reschedule" => self.reschedule(&mut args),
            "set_moving" => {
                node = transfers::mover(&mut self, &node);
                transfers::mark(&mut self, &node, &mut args);
            }
            "move_in" => transfers::into(&mut self, &mut args),
            "move_out" => {
                node = transfers::mover(&mut self, &node);
                transfers::out(&mut self, &node, &mut args);
            }
            "page" => keys[2] = self.page(&mut args),
            "register" => args.add_all(["q"]),
            "counts" | "nodes" | "measure" | "seal" => {}
            "recount" => args.add_all(["no such mark", "7", "", "00000000000000aa", ""]),
            "tally" => args.add_all([self.rng.u8(..2).to_string()]),
            "inspect" => repairs::inspect(&mut self, &mut args),
            "mend" => repairs::mend(&mut self, &mut args),
            other if crons::call(&mut self, other, &mut args) => {}
            other if self.in_the_hall(other, &node, &mut args) => {}
            other => panic!("a script that the fuzz does not know how to call: {other}"),
        }
        assert!(keys.iter().all(|key| !key.is_empty()), "every key of {} is known: {keys:?}", script.name);
        Call { script: script.name.clone(), keys, args: args.0, node, now: self.now }
    }

    /// A node of this world, or one that has never been seen.
    fn node(&mut self) -> String {
        match self.rng.usize(..=self.world.nodes.len()) {
            at if at < self.world.nodes.len() => self.world.nodes[at].clone(),
            _ => random_state::node(self.rng),
        }
    }

    pub fn any(&mut self, of: &Hash) -> Option<Bytes> {
        self.rng.choice(of.keys()).cloned()
    }

    /// The id of a job that is there, or of one that is not.
    pub fn job(&mut self) -> Bytes {
        let state = self.state;
        match self.rng.u8(..8) {
            0 => random_state::id(self.rng),
            1 => self.rng.choice(&state.gone[0]).cloned().unwrap_or_else(|| random_state::id(self.rng)),
            2 => self
                .rng
                .choice(&state.stale)
                .map_or_else(|| random_state::id(self.rng), |ticket| record_text::id_of(ticket).to_vec()),
            _ => self.any(&state.job).unwrap_or_else(|| random_state::id(self.rng)),
        }
    }

    /// So many, most often few, now and then as many as a script takes in one step.
    pub fn amount(&mut self, most: usize) -> usize {
        let crowd = self.state.job.len() >= random_state::CROWD / 2 && self.rng.bool();
        if crowd || self.rng.u8(..20) == 0 { most } else { self.rng.usize(1..6) }
    }

    /// A delay or a moment, as a push says it.
    pub fn due(&mut self) -> String {
        match self.rng.u8(..4) {
            0 => format!("+{}", self.rng.i64(0..LEASE)),
            1 => "+4000000000000000".into(),
            _ => random_state::moment(self.rng, self.now).to_string(),
        }
    }

    pub fn cursor(&mut self) -> u64 {
        if self.rng.bool() { 0 } else { self.rng.u64(..64) }
    }

    fn claim(&mut self, node: &str, args: &mut Args) {
        args.add(CHANNEL).add(node).number(self.amount(1_000)).number(self.amount(1_000)).number(LEASE);
        args.number(self.rng.u8(..2));
        let kinds: &[&str] =
            [&[][..], &["kind"], &["other", "kind"], &["kin", "kindly"], &["kind", "kind"], &[""]][self.rng.usize(..6)];
        args.add_all(kinds);
    }

    fn take_back(&mut self, node: &str, args: &mut Args) {
        args.add(CHANNEL).add(node).add(self.node()).number(LEASE).number(self.cursor());
        args.number(self.amount(500)).add("it died");
    }

    fn prune(&mut self, args: &mut Args) {
        let done_max = if self.rng.bool() { 10_000 } else { self.rng.usize(..4) };
        args.number(3 * LEASE).number(done_max).number(self.amount(1_000));
    }

    fn key_of(&self, id: &[u8]) -> String {
        self.state.job.get(id).map(|record| record_text::key_of(record)).unwrap_or_default()
    }

    fn remove(&mut self, args: &mut Args) {
        let id = self.job();
        args.add(&id).number(3 * LEASE).add(self.key_of(&id)).add(self.expected()).add(CHANNEL);
    }

    /// The state that a change to many wants, or any.
    fn expected(&mut self) -> &'static str {
        ["", "", "s", "r", "d", "b"][self.rng.usize(..6)]
    }

    /// Another record, with another priority and other args; now and then as it was not seen.
    fn edit(&mut self, args: &mut Args) {
        let id = self.job();
        let seen = self.state.job.get(&id).cloned().unwrap_or_default();
        let key = record_text::key_of(&seen);
        let seen = if self.rng.u8(..8) == 0 { Bytes::new() } else { seen };
        args.add(&id).add(seen).add(record_text::record(self.rng.u8(..4), &key, "{\"other\":1}"));
    }

    fn limit(&mut self, args: &mut Args) {
        for _ in 0..2 {
            args.add(if self.rng.bool() { String::new() } else { self.rng.u32(..40).to_string() });
        }
    }

    fn reschedule(&mut self, args: &mut Args) {
        let id = self.job();
        args.add(CHANNEL).add(&id).add(self.due()).add(self.key_of(&id)).add(self.expected());
    }

    /// Jobs by their words, from the beginning or from behind something.
    fn find(&mut self, args: &mut Args) {
        let (state, behind) = (self.state, if self.rng.bool() { Bytes::new() } else { self.job() });
        let [last, since, until] = [(); 3].map(|()| random_state::moment(self.rng, self.now));
        args.number(self.rng.u8(..2)).add(behind).number(last).number(since).number(until).number(self.amount(1_000));
        for _ in 0..self.rng.usize(1..4) {
            let known = self.rng.choice(state.find.keys()).and_then(|member| member.split(|byte| *byte == 0).next());
            args.add([known.unwrap_or(b"skkind"), &b"\0"[..]].concat());
        }
    }

    /// A page of one state, from its beginning or from behind something that was there; answers the key it looks at.
    fn page(&mut self, args: &mut Args) -> String {
        let state = self.state;
        let (kind, key_name, behind) = match self.rng.u8(..4) {
            0 => ("scheduled", "due", self.rng.choice(state.due.keys())),
            1 => ("ended", "done", self.rng.choice(state.done.keys())),
            2 => ("ended", "dead", self.rng.choice(state.dead.keys())),
            _ => ("ready", "ready:normal", self.rng.choice(&state.ready[2])),
        };
        let behind = match self.rng.u8(..3) {
            0 => Bytes::new(),
            1 => random_state::id(self.rng),
            _ => behind.cloned().unwrap_or_default(),
        };
        let number = if kind == "ready" { self.rng.i64(0..5) } else { random_state::moment(self.rng, self.now) };
        args.add(kind).add(behind).number(number).number(self.amount(1_000));
        key(key_name)
    }
}
