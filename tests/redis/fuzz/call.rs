//! Arguments for each script, as a client would send them that knows this state or an earlier one.

use fastrand::Rng;

use super::random_state::{self, LEASE, World};
use super::record_text::{self, Bytes};
use super::script::Script;
use super::state::{Hash, State};
use super::{crons, pushes, repairs, settles, transfers};

pub const CHANNEL: &str = "{q}:wake:";

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub struct Call {
    pub script: String,
    pub keys: Vec<String>,
    pub args: Vec<Bytes>,
    /// The names of the single arguments, in order.
    pub names: Vec<String>,
    /// The calling node.
    pub node: String,
    /// The store's time of this call.
    pub now: i64,
}

impl Call {
    /// Returns whether the call names this hold exactly.
    pub fn names(&self, id: &[u8], value: &[u8]) -> bool {
        match self.script.as_str() {
            "settle" => settles::acks(self).any(|(named, under)| named == id && under == value),
            _ => self.args.windows(2).any(|pair| pair[0] == id && pair[1] == value),
        }
    }

    /// Returns the argument of this name.
    pub fn arg(&self, name: &str) -> &Bytes {
        let index = self.names.iter().position(|other| other == name);
        &self.args[index.unwrap_or_else(|| panic!("{} has no argument {name}", self.script))]
    }

    /// Returns the arguments after the named ones.
    pub fn rest(&self) -> &[Bytes] {
        &self.args[self.names.len()..]
    }

    pub fn shown(&self) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| record_text::shown(arg)).collect();
        format!("{} with {args:?}", self.script)
    }
}

/// A client's knowledge and source of randomness.
pub struct Client<'c> {
    pub rng: &'c mut Rng,
    pub world: &'c World,
    pub state: &'c State,
    pub now: i64,
}

/// A list of arguments.
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

    /// Ends a chain of calls.
    pub fn end(&mut self) {}
}

impl Client<'_> {
    /// Builds a call of this script. A script without a case here fails the test.
    pub fn call(mut self, script: &Script) -> Call {
        let keys = script.keys.clone();
        let mut node = self.node();
        let mut args = Args::default();
        // Sometimes the server's own clock, which is far before the times in the state.
        let manual = self.rng.u8(..20) > 0;
        args.add(if manual { self.now.to_string() } else { String::new() });
        match script.name.as_str() {
            "push" => pushes::fresh(&mut self, &mut args),
            "deliver_to_idle" => pushes::one(&mut self, &mut args),
            "push_checked" => pushes::checked(&mut self, &mut args),
            "settle" => settles::settle(&mut self, &node, &mut args),
            "settle_others" => settles::settle_others(&mut self, &node, &mut args),
            "claim" => self.claim(&node, &mut args),
            "take_back" => self.take_back(&node, &mut args),
            "leave" => args.add_all([CHANNEL, &node]),
            "leave_idle" => args.add_all([CHANNEL, &node, &LEASE.to_string()]),
            "heartbeat" => {
                args.add_all([&node, &LEASE.to_string(), &format!("{LEASE:016}{{}}"), &(LEASE / 3).to_string()])
            }
            "list_held" => args.add_all([if self.rng.bool() { &node } else { "" }, &self.cursor().to_string()]),
            "set_paused" => args.add_all([CHANNEL, &self.rng.u8(..2).to_string()]),
            "prune" => self.prune(&mut args),
            "get" => args.add_all([self.job()]),
            "record_progress" => settles::record_progress(&mut self, &node, &mut args),
            "edit" => self.edit(&mut args),
            "remove_queue" => args.add_all([self.rng.u8(..2).to_string()]),
            "set_capacity" => self.set_capacity(&mut args),
            "history" => args.add_all([self.rng.u32(..1440).to_string(), self.rng.u32(1..=60).to_string()]),
            "history_hours" => args.add_all([self.rng.u32(..720).to_string(), self.rng.u32(1..=720).to_string()]),
            "dead_groups" => {}
            "watch_completions" => args.number(LEASE).end(),
            "completed_among" => args.add_all([self.job(), self.job()]),
            "list_by_index" => self.list_by_index(&mut args),
            "remove" => self.remove(&mut args),
            "set_alone" => {
                let fence = format!("{:016}", self.now - self.rng.i64(..LEASE));
                args.add(&node).add(self.job()).add(fence).number(self.rng.u8(..2)).end()
            }
            "cancel" => args.add(CHANNEL).add(self.job()).number(LEASE).end(),
            "reschedule" => self.reschedule(&mut args),
            "set_transfer_mark" => {
                node = transfers::transfer_node(&mut self, &node);
                transfers::mark(&mut self, &node, &mut args);
            }
            "transfer_in" => transfers::into(&mut self, &mut args),
            "transfer_out" => {
                node = transfers::transfer_node(&mut self, &node);
                transfers::out(&mut self, &node, &mut args);
            }
            "list" => self.list(&mut args),
            "register_queues" => args.add_all(["q"]),
            "counts" | "nodes" | "measure_counts" | "mark_write" => {}
            "repair_counts" => args.add_all(["no such mark", "7", "", "00000000000000aa", ""]),
            "verify_held" => args.add_all([self.rng.u8(..2).to_string()]),
            "inspect_job" => repairs::inspect(&mut self, &mut args),
            "repair_job" => repairs::repair(&mut self, &mut args),
            other if crons::call(&mut self, other, &mut args) => {}
            other if self.peer_call(other, &node, &mut args) => {}
            other => panic!("a script without a case in the fuzz test: {other}"),
        }
        assert!(keys.iter().all(|key| !key.is_empty()), "every key of {} is known: {keys:?}", script.name);
        assert!(args.0.len() >= script.args.len(), "every argument of {} is there: {:?}", script.name, script.args);
        Call { script: script.name.clone(), keys, args: args.0, names: script.args.clone(), node, now: self.now }
    }

    /// Returns a node of this world, or an unknown one.
    fn node(&mut self) -> String {
        match self.rng.usize(..=self.world.nodes.len()) {
            index if index < self.world.nodes.len() => self.world.nodes[index].clone(),
            _ => random_state::node(self.rng),
        }
    }

    pub fn any(&mut self, hash: &Hash) -> Option<Bytes> {
        self.rng.choice(hash.keys()).cloned()
    }

    /// Returns the id of an existing job, or of a missing one.
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

    /// Returns a count, usually small, sometimes the maximum of a script.
    pub fn amount(&mut self, max: usize) -> usize {
        let is_crowded = self.state.job.len() >= random_state::CROWD / 2 && self.rng.bool();
        if is_crowded || self.rng.u8(..20) == 0 { max } else { self.rng.usize(1..6) }
    }

    /// Returns a delay or a time, in the form of a push.
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
        args.number(self.rng.u8(..2)).add(["", "0", "60", "300"][self.rng.usize(..4)]);
        let kinds: [&[&str]; 7] =
            [&[], &["kind"], &["other", "kind"], &["kin", "kindly"], &["kind", "kind"], &[""], &["\0kind"]];
        let kinds = kinds[self.rng.usize(..7)];
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

    /// Returns the state that a bulk change expects, or any.
    fn expected(&mut self) -> &'static str {
        ["", "", "s", "r", "d", "b", "c"][self.rng.usize(..7)]
    }

    /// Changes a record to another priority and args; sometimes with an outdated expectation.
    fn edit(&mut self, args: &mut Args) {
        let id = self.job();
        let expected = self.state.job.get(&id).cloned().unwrap_or_default();
        let key = record_text::key_of(&expected);
        let expected = if self.rng.u8(..8) == 0 { Bytes::new() } else { expected };
        args.add(&id).add(expected).add(record_text::record(self.rng.u8(..4), &key, "{\"other\":1}"));
    }

    fn set_capacity(&mut self, args: &mut Args) {
        for _ in 0..2 {
            args.add(if self.rng.bool() { String::new() } else { self.rng.u32(..40).to_string() });
        }
    }

    fn reschedule(&mut self, args: &mut Args) {
        let id = self.job();
        args.add(CHANNEL).add(&id).add(self.due()).add(self.key_of(&id)).add(self.expected());
    }

    /// Lists jobs by index terms, from the start or after a position.
    fn list_by_index(&mut self, args: &mut Args) {
        let (state, after) = (self.state, if self.rng.bool() { Bytes::new() } else { self.job() });
        let [last, since, until] = [(); 3].map(|()| random_state::moment(self.rng, self.now));
        args.number(self.rng.u8(..2)).add(after).number(last).number(since).number(until).number(self.amount(1_000));
        for _ in 0..self.rng.usize(1..4) {
            let term =
                self.rng.choice(state.job_index.keys()).and_then(|member| member.split(|byte| *byte == 0).next());
            args.add([term.unwrap_or(b"skkind"), &b"\0"[..]].concat());
        }
    }

    /// Lists a page of one state, from its start or after a position.
    fn list(&mut self, args: &mut Args) {
        let state = self.state;
        let (kind, after) = match self.rng.u8(..5) {
            0 => ("scheduled", self.rng.choice(state.due.keys())),
            1 => ("done", self.rng.choice(state.done.keys())),
            2 => ("dead", self.rng.choice(state.dead.keys())),
            3 => ("cancelled", self.rng.choice(state.cancelled.keys())),
            _ => ("ready", self.rng.choice(&state.ready[2])),
        };
        let after = match self.rng.u8(..3) {
            0 => Bytes::new(),
            1 => random_state::id(self.rng),
            _ => after.cloned().unwrap_or_default(),
        };
        let number = if kind == "ready" { self.rng.i64(0..5) } else { random_state::moment(self.rng, self.now) };
        args.add(kind).number(2).add(after).number(number).number(self.amount(1_000)).number(self.rng.i64(0..2));
    }
}
