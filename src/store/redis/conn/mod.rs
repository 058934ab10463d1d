//! The way to the servers: finds the one that has a slot, sends, and makes the best of what goes wrong.
//!
//! Written by us because one thing must be known of every request: whether it may have been carried out.
//! A client that sends again by itself after a broken connection would claim twice and tell nobody.

mod abandoned;
mod all_masters;
mod connection;
mod connector;
mod errors;
mod inline_driver;
mod masters;
mod pending_replies;
mod replica_wait;
mod request;
mod slots;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::runtime::Handle;

use crate::clock;
use crate::error::{Error, Result};
use crate::store::Options;
pub(super) use crate::store::redis::conn::all_masters::Said;
use crate::store::redis::conn::connection::{Lane, Listener, NoAnswer};
use crate::store::redis::conn::connector::Connector;
use crate::store::redis::conn::errors::Fault;
pub(super) use crate::store::redis::conn::errors::is_forbidden;
use crate::store::redis::conn::masters::{Nobody, Trouble};
use crate::store::redis::conn::replica_wait::Confirming;
pub(super) use crate::store::redis::conn::request::Confirm;
use crate::store::redis::conn::request::{Request, Tries, Unanswered};
use crate::store::redis::conn::slots::SlotMap;
use crate::store::redis::script::Script;
use crate::store::redis::url::{Address, Place, Shape};

/// How long a request that was not carried out is tried again.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a worker's request is: it has a patience of its own.
const PATIENCE_AT_WORK: Duration = Duration::from_millis(500);
/// Most runtimes of a process that have a connection of their own to a server.
const RUNTIMES_MAX: usize = 256;
/// How often to listen anew to a server whose connection changes just then.
const LISTENS_MAX: usize = 3;

/// A connection that listens, while it is the same.
pub(super) struct Hearing {
    lane: Arc<Lane>,
    generation: u64,
}

impl Hearing {
    pub(super) fn is_there(&self) -> bool {
        self.generation != 0 && self.lane.generation() == self.generation
    }

    /// Listens to these no more. Should that fail, they are heard of a little longer, and nobody minds.
    pub(super) async fn end(&self, channels: &[String]) {
        if self.is_there() {
            let unsubscribe = async |channel: &String| {
                let mut cmd = redis::cmd("SUNSUBSCRIBE");
                cmd.arg(channel);
                self.lane.send(&cmd).await.is_ok()
            };
            futures_util::future::join_all(channels.iter().map(unsubscribe)).await;
        }
    }
}

/// Which connection a request takes: none waits behind those of another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// What users ask: pushes and looks.
    Door,
    /// Claims, settles, prunes, and the wakes that come back.
    Work,
    /// What a worker reads that may be long: no connection that listens may be owed much.
    Bodies,
    /// Beats, and what is said in the hall.
    Beat,
    /// Pushes and locks that wait for replicas: one at a time per connection.
    Confirm(usize),
    /// Extensions of locks that wait for replicas.
    Keep,
    /// Requests that the server answers only when something comes: one at a time per connection.
    Watch(usize),
}

impl Way {
    /// What `CLIENT LIST` of the server calls such a connection: what it is for, and whose it is.
    fn name(self) -> String {
        let way = match self {
            Way::Door => "client",
            Way::Work => "worker",
            Way::Bodies => "records",
            Way::Beat => "heartbeat",
            Way::Confirm(_) => "replicated",
            Way::Keep => "locks",
            Way::Watch(_) => "watch",
        };
        let mut host = crate::node::host();
        // The server takes no other characters in a name.
        host.retain(|c| c.is_ascii_graphic());
        format!("duly-{way}:{host}:{}", std::process::id())
    }

    /// How long a request that was not carried out is tried again.
    fn patience(self) -> Duration {
        match self {
            Way::Door | Way::Confirm(_) => PATIENCE,
            Way::Work | Way::Bodies | Way::Beat | Way::Keep | Way::Watch(_) => PATIENCE_AT_WORK,
        }
    }
}

pub(super) struct Link {
    /// For tasks of its own.
    this: Weak<Link>,
    place: Place,
    connector: Arc<Connector>,
    sentinels: Vec<Arc<Lane>>,
    /// Where connections live that must go on whatever handlers do.
    home: Handle,
    listener: Listener,
    known: Mutex<Known>,
    refreshing: tokio::sync::Mutex<()>,
}

/// A connection belongs to the runtime that drives it: what holds up one runtime holds up no request of another.
/// Those that live at home belong to none.
type LaneKey = (Way, Address, Option<tokio::runtime::Id>);

#[derive(Default)]
struct Known {
    lanes: HashMap<LaneKey, Arc<Lane>>,
    /// Requests that wait for replicas, by master; of a slot whose master nobody knows yet, together.
    confirming: HashMap<Option<Address>, Arc<Confirming>>,
    /// The master that Sentinels have named.
    master: Option<Address>,
    slots: SlotMap,
    /// Why the last who were asked for them did not say.
    trouble: Option<Trouble>,
    /// Counts what was learnt, so that of many who miss something only one asks.
    lessons: u64,
}

impl Link {
    pub(super) fn new(place: Place, options: &Options, home: Handle, listener: Listener) -> Result<Arc<Self>> {
        let mut sentinels = Vec::new();
        if matches!(place.shape, Shape::Sentinel(_)) {
            let to_them = Arc::new(Connector::to_sentinels(&place, options)?);
            let lane = |host: &Address| Arc::new(Lane::new(host.clone(), to_them.clone(), Some(home.clone()), None));
            sentinels.extend(place.hosts.iter().map(lane));
        }
        let connector = Arc::new(Connector::new(&place, options)?);
        Ok(Arc::new_cyclic(|this| Link {
            this: this.clone(),
            connector,
            place,
            sentinels,
            home,
            listener,
            known: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
        }))
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Runs a script on the server that has this slot.
    ///
    /// `Store` means that it was not carried out, `Unknown` that it may have been.
    pub(super) async fn run(&self, op: &'static str, way: Way, slot: u16, script: &Script, cmd: &Cmd) -> Result<Value> {
        let request = Request { script: Some(script), idempotent: script.only_reads(), ..Request::of(cmd) };
        self.send(op, way, slot, &request).await
    }

    /// The same for a script that may be carried out twice.
    pub(super) async fn repeat(
        &self,
        op: &'static str,
        way: Way,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.send(op, way, slot, &Request { script: Some(script), idempotent: true, ..Request::of(cmd) }).await
    }

    /// The same for a plain command that may be carried out twice.
    pub(super) async fn ask(&self, op: &'static str, way: Way, slot: u16, cmd: &Cmd) -> Result<Value> {
        self.send(op, way, slot, &Request { idempotent: true, ..Request::of(cmd) }).await
    }

    /// The same for a plain command that may not.
    pub(super) async fn tell(&self, op: &'static str, way: Way, slot: u16, cmd: &Cmd) -> Result<Value> {
        self.send(op, way, slot, &Request::of(cmd)).await
    }

    /// Runs a script, or several commands in one transaction whose answers come as a list,
    /// and answers only when so many replicas have it too; else `Unknown`.
    ///
    /// A transaction cannot follow a slot that is just being moved: then it answers nothing, and nothing was carried out.
    pub(super) async fn deliver(
        &self,
        op: &'static str,
        slot: u16,
        script: Option<&Script>,
        cmds: &[Cmd],
        confirm: Option<Confirm<'_>>,
    ) -> Result<Value> {
        let request = Request { cmds, script, confirm, idempotent: false };
        if confirm.is_none() {
            return self.send(op, Way::Door, slot, &request).await;
        }
        // By master: one whose replicas are slow holds up nobody who waits for another.
        let master = self.master_of(slot);
        let confirming = self.known().confirming_at(master);
        let Some(turn) = confirming.turn().await else {
            return Err(Error::store(op, "too many wait for replicas of this server; nothing was sent"));
        };
        self.send(op, Way::Confirm(turn.at), slot, &request).await
    }

    /// Runs a script that may be carried out twice where no handler can hold it up, and answers as `deliver` does.
    pub(super) async fn keep(
        &self,
        op: &'static str,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
        confirm: Option<Confirm<'_>>,
    ) -> Result<Value> {
        let way = if confirm.is_none() { Way::Beat } else { Way::Keep };
        let request = Request { script: Some(script), confirm, idempotent: true, ..Request::of(cmd) };
        self.send(op, way, slot, &request).await
    }

    async fn send(&self, op: &'static str, way: Way, slot: u16, request: &Request<'_>) -> Result<Value> {
        let mut lost = false;
        let answer = self.try_to_send(op, way, slot, request, &mut lost).await;
        // A try whose answer was lost may have been carried out, whatever became of the others.
        answer.map_err(|error| if lost && request.writes() { error.in_doubt() } else { error })
    }

    async fn try_to_send(
        &self,
        op: &'static str,
        way: Way,
        slot: u16,
        request: &Request<'_>,
        lost: &mut bool,
    ) -> Result<Value> {
        let mut tries = Tries::until(clock::tick() + way.patience());
        let mut ask: Option<Address> = None;
        loop {
            let asked = ask.take();
            let lane = match &asked {
                Some(address) => self.lane(way, address),
                None => match self.lane_of(way, slot).await {
                    Ok(lane) => lane,
                    Err(nobody) if nobody.is_hopeless() || !tries.again().await => return Err(nobody.error(op)),
                    Err(_) => continue,
                },
            };
            let lessons = self.known().lessons;
            let error = match request.exchange(&lane, asked.is_some()).await {
                Ok(value) => return Ok(value),
                Err(Unanswered::Unconfirmed(why)) => return Err(unconfirmed(op, why)),
                Err(Unanswered::NotSent(error)) => {
                    self.doubt_unreached(&lane, &error);
                    if errors::is_hopeless(&error) || !tries.again().await {
                        return Err(errors::unreachable(op, lane.address(), error));
                    }
                    self.learn(slot, lessons).await;
                    continue;
                }
                Err(Unanswered::Answer(error)) => error,
            };
            match (errors::sort(&error), request.script) {
                (Fault::Moved(_) | Fault::Ask(_), _) if self.place.shape == Shape::One => {
                    return Err(errors::one_of_several(op, error));
                }
                (Fault::NoScript, Some(script)) if tries.redirect() => match load(&lane, script).await {
                    Ok(()) => {}
                    Err(error) if errors::is_hopeless(&error) || !tries.again().await => {
                        return Err(errors::unreachable(op, lane.address(), error));
                    }
                    Err(_) => self.learn(slot, lessons).await,
                },
                (Fault::Moved(to), _) if tries.redirect() => self.moved(slot, &to),
                (Fault::Ask(_), _) if request.cmds.len() > 1 => return Ok(Value::Nil),
                (Fault::Ask(to), _) if tries.redirect() => ask = redirected(&to, lane.address()),
                (Fault::NotMaster, _) if tries.again().await => {
                    // Its name may stand for another server by now.
                    lane.reset();
                    self.doubt(&lane);
                    self.learn(slot, lessons).await;
                }
                (Fault::NotNow | Fault::Moved(_) | Fault::Ask(_), _) if tries.again().await => {
                    self.learn(slot, lessons).await
                }
                (Fault::Unknown, _) => {
                    *lost = true;
                    self.doubt(&lane);
                    if !request.idempotent || !tries.again().await {
                        return Err(errors::unknown(op, error));
                    }
                }
                _ => return Err(errors::refused(op, error)),
            }
        }
    }

    /// Listens on channels of this slot where claims of this runtime are answered: in the order in which both were sent.
    ///
    /// `None` if the connection has changed meanwhile, and with it perhaps who listens.
    pub(super) async fn listen_at_work(&self, slot: u16, channels: &[String]) -> Result<Option<Hearing>> {
        let subscribe = async |channel: &String| {
            let mut cmd = redis::cmd("SSUBSCRIBE");
            cmd.arg(channel);
            self.ask("subscribe", Way::Work, slot, &cmd).await
        };
        for _ in 0..LISTENS_MAX {
            let before = self.lane_of(Way::Work, slot).await.map_err(|nobody| nobody.error("subscribe"))?;
            let generation = before.generation();
            futures_util::future::try_join_all(channels.iter().map(subscribe)).await?;
            let after = self.lane_of(Way::Work, slot).await.map_err(|nobody| nobody.error("subscribe"))?;
            let hearing = Hearing { lane: before, generation };
            // The slot may have moved to another server meanwhile, and who was asked first does not listen.
            if hearing.is_there() && Arc::ptr_eq(&hearing.lane, &after) {
                return Ok(Some(hearing));
            }
        }
        Ok(None)
    }

    /// Listens on a channel of this slot, and answers by which connection; 0 if it has changed meanwhile, and with it perhaps
    /// who listens.
    pub(super) async fn listen(&self, slot: u16, channel: &str) -> Result<u64> {
        let mut cmd = redis::cmd("SSUBSCRIBE");
        cmd.arg(channel);
        for _ in 0..LISTENS_MAX {
            let before = self.generation(Way::Beat, slot);
            self.ask("subscribe", Way::Beat, slot, &cmd).await?;
            if before != 0 && self.generation(Way::Beat, slot) == before {
                return Ok(before);
            }
        }
        Ok(0)
    }

    /// The latest connection that requests for this slot have taken; 0 if there is none.
    pub(super) fn generation(&self, way: Way, slot: u16) -> u64 {
        self.lanes_to(way, slot).iter().map(|lane| lane.generation()).max().unwrap_or(0)
    }

    /// The same of those requests alone that were made in this runtime: what others do changes nothing.
    pub(super) fn generation_here(&self, way: Way, slot: u16) -> u64 {
        let address = self.known().address_of(&self.place, slot).cloned();
        address.map_or(0, |address| self.lane(way, &address).generation())
    }

    /// How long nothing has been heard on the connection that listens for this slot; `None` if there is none.
    pub(super) fn silence(&self, slot: u16) -> Option<Duration> {
        self.lanes_to(Way::Beat, slot).first().and_then(|lane| lane.silence())
    }

    fn lanes_to(&self, way: Way, slot: u16) -> Vec<Arc<Lane>> {
        let known = self.known();
        let Some(address) = known.address_of(&self.place, slot) else {
            return Vec::new();
        };
        let there = known.lanes.iter().filter(|((of, to, _), _)| *of == way && to == address);
        there.map(|(_, lane)| lane.clone()).collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self, way: Way, address: &Address) -> Arc<Lane> {
        let (home, listener) = match way {
            Way::Beat => (Some(self.home.clone()), Some(self.listener.clone())),
            Way::Keep | Way::Watch(_) => (Some(self.home.clone()), None),
            Way::Work => (None, Some(self.listener.clone())),
            Way::Door | Way::Bodies | Way::Confirm(_) => (None, None),
        };
        let here = Handle::try_current().ok().filter(|_| home.is_none());
        let key: LaneKey = (way, address.clone(), here.map(|here| here.id()));
        let mut known = self.known();
        if let Some(lane) = known.lanes.get(&key) {
            return lane.clone();
        }
        known.forget_one(way, address);
        let lane = Lane::new(address.clone(), self.connector.clone(), home, listener).named(way.name());
        let lane = Arc::new(lane);
        known.lanes.insert(key, lane.clone());
        lane
    }

    async fn lane_of(&self, way: Way, slot: u16) -> Result<Arc<Lane>, Nobody> {
        let (known, lessons) = {
            let known = self.known();
            (known.address_of(&self.place, slot).cloned(), known.lessons)
        };
        if let Some(address) = known {
            return Ok(self.lane(way, &address));
        }
        self.learn(slot, lessons).await;
        let learnt = self.known().address_of(&self.place, slot).cloned();
        match learnt {
            Some(address) => Ok(self.lane(way, &address)),
            None => Err(self.nobody()),
        }
    }

    fn moved(&self, slot: u16, to: &str) {
        if let Some(address) = Address::parse(to, 0) {
            self.known().slots.moved(slot, address);
        }
    }
}

/// Where a server sends us to. One that names no host means its own.
fn redirected(to: &str, by: &Address) -> Option<Address> {
    match to.strip_prefix(':').and_then(|port| port.parse().ok()) {
        Some(port) => Some(Address { host: by.host.clone(), port }),
        None => Address::parse(to, 0),
    }
}

impl Known {
    /// Nobody uses the connections to this server any more.
    fn leave(&mut self, address: &Address) {
        let left = self.lanes.extract_if(|(_, other, _), _| other == address);
        left.for_each(|(_, lane)| lane.retire());
        self.confirming.remove(&Some(address.clone()));
    }

    fn confirming_at(&mut self, master: Option<Address>) -> Arc<Confirming> {
        self.confirming.entry(master).or_default().clone()
    }

    /// Where too many runtimes have had a connection of their own, the oldest is forgotten: a program may make a runtime for
    /// each call, and nobody tells when one has ended.
    fn forget_one(&mut self, way: Way, address: &Address) {
        let like_it = |(of, to, _): &&LaneKey| *of == way && to == address;
        if self.lanes.keys().filter(like_it).count() < RUNTIMES_MAX {
            return;
        }
        let unused = self.lanes.iter().filter(|(key, _)| like_it(key)).min_by_key(|(_, lane)| lane.generation());
        if let Some(key) = unused.map(|(key, _)| key.clone()) {
            self.lanes.remove(&key);
        }
    }

    fn address_of<'k>(&'k self, place: &'k Place, slot: u16) -> Option<&'k Address> {
        match place.shape {
            Shape::One => place.hosts.first(),
            Shape::Sentinel(_) => self.master.as_ref(),
            Shape::Cluster => self.slots.master_of(slot),
        }
    }
}

fn unconfirmed(op: &'static str, why: Option<RedisError>) -> Error {
    let too_few = || "fewer replicas than `replicas` asks for have confirmed it in time".into();
    Error::Unknown { op, source: Some(why.map_or_else(too_few, Box::from)) }
}

/// Makes a script known to a server; may be done twice.
async fn load(lane: &Arc<Lane>, script: &Script) -> Result<(), RedisError> {
    let mut cmd = redis::cmd("SCRIPT");
    cmd.arg("LOAD").arg(&script.code);
    lane.send(&cmd).await.map(drop).map_err(NoAnswer::into_error)
}
