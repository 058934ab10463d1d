//! Clients and the faults injected into them: kills with a restart, pauses longer than a lock lasts, partitions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::distributed_locks::checker::{Deadlines, Hold, holds};
use crate::distributed_locks::child::{Child, Start};
use crate::distributed_locks::clock::{boot_micros, build_stepped_clock};
use crate::distributed_locks::location::ms;
use crate::distributed_locks::log::{self, LockEvent};
#[cfg(feature = "redis")]
use test_support::servers::{Direction, Proxy};

pub const CLIENTS: usize = 5;
/// Number of clients with a stepped wall clock.
const STEPPED_CLIENTS: usize = 2;
/// Duration without faults at the end, in which the clients must make progress.
const QUIET_TIME: Duration = Duration::from_secs(3);

/// The connection of a client to the store.
pub struct Route {
    url: String,
    #[cfg(feature = "redis")]
    proxy: Option<Proxy>,
}

impl Route {
    pub fn direct(url: &str) -> Self {
        Route {
            url: url.into(),
            #[cfg(feature = "redis")]
            proxy: None,
        }
    }

    #[cfg(feature = "redis")]
    pub fn through(url: String, proxy: Proxy) -> Self {
        Route { url, proxy: Some(proxy) }
    }

    /// Cuts the client off in a random way.
    #[cfg(feature = "redis")]
    fn cut_off(&self) {
        let Some(proxy) = &self.proxy else { return };
        match fastrand::u8(..5) {
            0 => proxy.freeze(Direction::Requests),
            1 => proxy.freeze(Direction::Replies),
            2 => proxy.drop_replies(0.5, fastrand::u64(..)),
            3 => {
                proxy.refuse();
                proxy.cut();
            }
            _ => {
                proxy.freeze(Direction::Requests);
                proxy.freeze(Direction::Replies);
            }
        }
    }

    #[cfg(feature = "redis")]
    fn restore(&self) {
        let Some(proxy) = &self.proxy else { return };
        proxy.drop_replies(0.0, 0);
        proxy.thaw();
        proxy.accept();
    }

    #[cfg(feature = "redis")]
    fn has_proxy(&self) -> bool {
        self.proxy.is_some()
    }

    #[cfg(not(feature = "redis"))]
    fn cut_off(&self) {}
    #[cfg(not(feature = "redis"))]
    fn restore(&self) {}
    #[cfg(not(feature = "redis"))]
    fn has_proxy(&self) -> bool {
        false
    }
}

struct Client {
    /// Unique among all clients ever started.
    number: u64,
    child: Child,
    route: Route,
    resume_at: Option<Instant>,
    reconnect_at: Option<Instant>,
    preload: Option<PathBuf>,
}

pub struct Nemesis {
    dir: PathBuf,
    clients: Vec<Client>,
    died: BTreeMap<u64, i64>,
    started: u64,
    /// When fault injection stopped.
    faults_stopped: i64,
    pub kills: usize,
    pub pauses: usize,
    pub cuts: usize,
}

impl Nemesis {
    /// Starts the clients, each with its own route.
    pub fn start(dir: &Path, routes: Vec<Route>) -> Self {
        let library = build_stepped_clock(dir);
        let (died, dir) = (BTreeMap::new(), dir.to_owned());
        let mut nemesis =
            Nemesis { dir, clients: Vec::new(), died, started: 0, faults_stopped: 0, kills: 0, pauses: 0, cuts: 0 };
        for (n, route) in routes.into_iter().enumerate() {
            let preload = (n < STEPPED_CLIENTS).then(|| library.clone());
            let (number, child) = nemesis.start_client(&route, preload.as_deref());
            nemesis.clients.push(Client { number, child, route, resume_at: None, reconnect_at: None, preload });
        }
        nemesis
    }

    fn start_client(&mut self, route: &Route, preload: Option<&Path>) -> (u64, Child) {
        let number = self.started;
        self.started += 1;
        let mut start = Start::on("client", &route.url, &self.path(number), "");
        start.preload = preload.map(Path::to_owned);
        (number, start.run())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("client-{number}"))
    }

    /// Injects random faults for this long.
    pub fn inject_faults(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            // The faults wait for no event: their times are random on purpose.
            std::thread::sleep(ms(40..300));
            self.end_due_faults(Instant::now());
            let index = fastrand::usize(..self.clients.len());
            match fastrand::u8(..4) {
                0 => self.kill(index),
                1 => self.pause(index),
                2 => self.pause(self.holder().unwrap_or(index)),
                _ => self.cut_off(index),
            }
        }
    }

    /// Stops all faults and waits: the clients must make progress.
    pub fn stop_faults(&mut self) {
        self.end_due_faults(Instant::now() + Duration::from_secs(3600));
        self.faults_stopped = boot_micros();
        std::thread::sleep(QUIET_TIME);
    }

    fn end_due_faults(&mut self, now: Instant) {
        for client in &mut self.clients {
            assert!(!client.child.has_ended(), "client {} has ended by itself", client.number);
            if client.resume_at.take_if(|time| *time <= now).is_some() {
                client.child.resume();
            }
            if client.reconnect_at.take_if(|time| *time <= now).is_some() {
                client.route.restore();
            }
        }
    }

    fn kill(&mut self, index: usize) {
        let mut client = self.clients.remove(index);
        // Recorded before the kill: actions after this time do not count.
        self.died.insert(client.number, boot_micros());
        client.child.kill();
        (client.number, client.child) = self.start_client(&client.route, client.preload.as_deref());
        client.resume_at = None;
        self.clients.insert(index, client);
        self.kills += 1;
    }

    fn pause(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.resume_at.is_none() {
            client.child.pause();
            client.resume_at = Some(Instant::now() + ms(300..1_800));
            self.pauses += 1;
        }
    }

    /// Returns a client that held a lock just now and is not paused.
    fn holder(&self) -> Option<usize> {
        let holds = |client: &Client| {
            let last = log::read(&self.path(client.number)).pop();
            client.resume_at.is_none()
                && last.is_some_and(|line| matches!(line.event, LockEvent::Acquired { .. } | LockEvent::Held { .. }))
        };
        self.clients.iter().position(holds)
    }

    fn cut_off(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.route.has_proxy() && client.reconnect_at.is_none() {
            client.route.cut_off();
            client.reconnect_at = Some(Instant::now() + ms(300..1_800));
            self.cuts += 1;
        }
    }

    /// Stops all clients, and returns their holds.
    pub fn end(mut self) -> History {
        while let Some(client) = self.clients.pop() {
            self.died.insert(client.number, boot_micros());
        }
        let all = |deadlines| {
            let holds_of =
                |number| holds(number, &log::read(&self.path(number)), self.died.get(&number).copied(), deadlines);
            (0..self.started).flat_map(holds_of).collect()
        };
        History {
            holds: all(Deadlines::Respected),
            holds_without_deadlines: all(Deadlines::Ignored),
            faults_stopped: self.faults_stopped,
        }
    }
}

/// The holds of all clients.
pub struct History {
    pub holds: Vec<Hold>,
    /// The same holds if clients ignored their own deadlines.
    pub holds_without_deadlines: Vec<Hold>,
    /// From here on there were no faults.
    pub faults_stopped: i64,
}
