//! Clients, and what is done to them: killed and started anew, paused for longer than a lock lasts, cut off.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::distributed_locks::checker::{Deadlines, Hold, holds};
use crate::distributed_locks::child::{Child, Start};
use crate::distributed_locks::clock::{boot_micros, stepped};
use crate::distributed_locks::location::ms;
use crate::distributed_locks::log::{self, Said};
#[cfg(feature = "redis")]
use test_support::servers::{Direction, Proxy};

pub const CLIENTS: usize = 5;
/// Of those, so many see a wall clock that is set all the time.
const STEPPED: usize = 2;
/// How long nothing is done to them at the end: they must go on.
const PEACE: Duration = Duration::from_secs(3);

/// How a client reaches the store.
pub struct Way {
    url: String,
    #[cfg(feature = "redis")]
    proxy: Option<Proxy>,
}

impl Way {
    pub fn direct(url: &str) -> Self {
        Way {
            url: url.into(),
            #[cfg(feature = "redis")]
            proxy: None,
        }
    }

    #[cfg(feature = "redis")]
    pub fn through(url: String, proxy: Proxy) -> Self {
        Way { url, proxy: Some(proxy) }
    }

    /// Cuts it off, one way or another.
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
    fn is_breakable(&self) -> bool {
        self.proxy.is_some()
    }

    #[cfg(not(feature = "redis"))]
    fn cut_off(&self) {}
    #[cfg(not(feature = "redis"))]
    fn restore(&self) {}
    #[cfg(not(feature = "redis"))]
    fn is_breakable(&self) -> bool {
        false
    }
}

struct Client {
    /// No two that ever ran have the same.
    number: u64,
    child: Child,
    way: Way,
    resumes: Option<Instant>,
    is_back: Option<Instant>,
    preload: Option<PathBuf>,
}

pub struct Nemesis {
    dir: PathBuf,
    clients: Vec<Client>,
    died: BTreeMap<u64, i64>,
    started: u64,
    /// When they were let be.
    peace: i64,
    pub kills: usize,
    pub pauses: usize,
    pub cuts: usize,
}

impl Nemesis {
    /// Starts the clients, each by its own way.
    pub fn start(dir: &Path, ways: Vec<Way>) -> Self {
        let library = stepped(dir);
        let (died, dir) = (BTreeMap::new(), dir.to_owned());
        let mut nemesis =
            Nemesis { dir, clients: Vec::new(), died, started: 0, peace: 0, kills: 0, pauses: 0, cuts: 0 };
        for (n, way) in ways.into_iter().enumerate() {
            let preload = (n < STEPPED).then(|| library.clone());
            let (number, child) = nemesis.client(&way, preload.as_deref());
            nemesis.clients.push(Client { number, child, way, resumes: None, is_back: None, preload });
        }
        nemesis
    }

    fn client(&mut self, way: &Way, preload: Option<&Path>) -> (u64, Child) {
        let number = self.started;
        self.started += 1;
        let mut start = Start::on("client", &way.url, &self.path(number), "");
        start.preload = preload.map(Path::to_owned);
        (number, start.run())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("client-{number}"))
    }

    /// Does something to somebody every now and then, for so long.
    pub fn rage(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            // There is no event to wait for: its moments are random on purpose.
            std::thread::sleep(ms(40..300));
            self.forgive(Instant::now());
            let at = fastrand::usize(..self.clients.len());
            match fastrand::u8(..4) {
                0 => self.kill(at),
                1 => self.pause(at),
                2 => self.pause(self.holder().unwrap_or(at)),
                _ => self.cut_off(at),
            }
        }
    }

    /// Lets all of them go on in peace for a while: they must.
    pub fn rest(&mut self) {
        self.forgive(Instant::now() + Duration::from_secs(3600));
        self.peace = boot_micros();
        std::thread::sleep(PEACE);
    }

    fn forgive(&mut self, now: Instant) {
        for client in &mut self.clients {
            assert!(!client.child.has_ended(), "client {} has ended by itself", client.number);
            if client.resumes.take_if(|at| *at <= now).is_some() {
                client.child.resume();
            }
            if client.is_back.take_if(|at| *at <= now).is_some() {
                client.way.restore();
            }
        }
    }

    fn kill(&mut self, at: usize) {
        let mut client = self.clients.remove(at);
        // Noted first: what it does after this moment nobody may hold against the lock.
        self.died.insert(client.number, boot_micros());
        client.child.kill();
        (client.number, client.child) = self.client(&client.way, client.preload.as_deref());
        client.resumes = None;
        self.clients.insert(at, client);
        self.kills += 1;
    }

    fn pause(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.resumes.is_none() {
            client.child.pause();
            client.resumes = Some(Instant::now() + ms(300..1_800));
            self.pauses += 1;
        }
    }

    /// Somebody who held a lock a moment ago, and is not paused.
    fn holder(&self) -> Option<usize> {
        let holds = |client: &Client| {
            let last = log::read(&self.path(client.number)).pop();
            client.resumes.is_none()
                && last.is_some_and(|line| matches!(line.said, Said::Acquired { .. } | Said::Holds { .. }))
        };
        self.clients.iter().position(holds)
    }

    fn cut_off(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if client.way.is_breakable() && client.is_back.is_none() {
            client.way.cut_off();
            client.is_back = Some(Instant::now() + ms(300..1_800));
            self.cuts += 1;
        }
    }

    /// Ends all of them, and answers what they have said they held.
    pub fn end(mut self) -> History {
        while let Some(client) = self.clients.pop() {
            self.died.insert(client.number, boot_micros());
        }
        let all = |deadlines| {
            let of = |number| holds(number, &log::read(&self.path(number)), self.died.get(&number).copied(), deadlines);
            (0..self.started).flat_map(of).collect()
        };
        History { holds: all(Deadlines::Minded), careless: all(Deadlines::Ignored), peace: self.peace }
    }
}

/// What clients have held.
pub struct History {
    pub holds: Vec<Hold>,
    /// The same, had they not minded their own deadlines.
    pub careless: Vec<Hold>,
    /// From here on nothing was done to them.
    pub peace: i64,
}
