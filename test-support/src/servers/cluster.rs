//! A Cluster of six nodes on loopback: three masters, each with a replica.

use std::time::Duration;

use super::migration::{self, Step};
use super::options::Options;
use super::server::Server;
use crate::wait_for;

const MASTERS: usize = 3;
const NODES: usize = 2 * MASTERS;
const SLOTS: u16 = 16_384;

/// Six nodes, numbered from 0: 0 to 2 begin as masters, 3 to 5 as their replicas.
pub struct Cluster {
    nodes: Vec<Server>,
}

/// One line of `CLUSTER NODES`: what a node says of another, or of itself.
struct Line {
    id: String,
    flags: Vec<String>,
    /// Whom it copies, if it is a replica.
    master: String,
    slots: Vec<(u16, u16)>,
}

impl Line {
    /// `id host:port@bus flags master ping pong epoch link [slot or range]...`
    fn parse(line: &str) -> Option<Line> {
        let mut words = line.split_whitespace();
        let (id, _address, flags, master) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let slots = words.skip(4).filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            // A slot on the move stands in brackets: it is in a range too, as long as it is owned.
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        Some(Line {
            id: id.into(),
            flags: flags.split(',').map(String::from).collect(),
            master: master.into(),
            slots: slots.collect(),
        })
    }

    fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|have| have == flag)
    }

    fn owns(&self, slot: u16) -> bool {
        self.is("master") && self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }

    /// Known and believed to be alive.
    fn is_well(&self) -> bool {
        !["fail", "fail?", "handshake", "noaddr"].iter().any(|flag| self.is(flag))
    }
}

impl Cluster {
    /// A node timeout for tests that wait for a failover: it takes about two seconds then.
    pub const QUICK: Duration = Duration::from_secs(1);

    /// Starts one, and returns when every node serves all slots and every master has its replica.
    ///
    /// A node that is silent for `node_timeout` is taken for dead.
    #[track_caller]
    pub fn start(options: Options, node_timeout: Duration) -> Cluster {
        let options = options
            .set("cluster-enabled", "yes")
            .set("cluster-node-timeout", &millis(Cluster::QUICK))
            // Every replica may take over, however old its copy is, and stays with its master.
            .set("cluster-replica-validity-factor", "0")
            .set("cluster-allow-replica-migration", "no");
        let cluster = Cluster { nodes: start_all(vec![options; NODES]) };
        cluster.form();
        // Only now: nodes that are patient with each other also tell each other news seldom.
        for node in &cluster.nodes {
            node.ask(&["CONFIG", "SET", "cluster-node-timeout", &millis(node_timeout)]);
            node.ask(&["CONFIG", "REWRITE"]);
        }
        cluster
    }

    #[track_caller]
    fn form(&self) {
        // The order of seniority, which a node takes only while it knows no other.
        for (number, node) in self.nodes.iter().enumerate() {
            node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        for (number, node) in self.nodes[..MASTERS].iter().enumerate() {
            let first_of = |part: usize| usize::from(SLOTS) * part / MASTERS;
            let (first, last) = (first_of(number), first_of(number + 1) - 1);
            node.ask(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        // Everyone meets everyone: quicker than to wait for the gossip.
        for (number, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[number + 1..] {
                node.ask(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
            }
        }
        for (replica, master) in self.nodes[MASTERS..].iter().zip(&self.nodes) {
            let id = master.ask(&["CLUSTER", "MYID"]).text();
            wait_for("a replica to know its master", || {
                match replica.try_ask(&["CLUSTER", "REPLICATE", &id]).map(|reply| reply.text()) {
                    Ok(ok) if ok == "OK" => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }
        self.wait_until_whole();
    }

    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// `redis+cluster://` with all nodes.
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes().iter().map(Server::address).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(Server::port).collect()
    }

    /// The nodes that are neither killed nor paused.
    fn living(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_awake())
    }

    fn lines(node: &Server) -> Result<Vec<Line>, String> {
        let reply = node.try_ask(&["CLUSTER", "NODES"]).map_err(|why| why.to_string())?;
        Ok(reply.text().lines().filter_map(Line::parse).collect())
    }

    /// What a node says of itself.
    fn own_line(node: &Server) -> Result<Line, String> {
        Cluster::lines(node)?.into_iter().find(|line| line.is("myself")).ok_or_else(|| "no line of its own".into())
    }

    /// The slot of a key.
    #[track_caller]
    pub fn slot_of(&self, key: &str) -> u16 {
        let node = self.living().next().expect("a node that runs");
        node.ask(&["CLUSTER", "KEYSLOT", key]).text().parse().expect("a slot")
    }

    /// The number of the running node that is master of this slot; waits for one while there is none.
    #[track_caller]
    pub fn master_of_slot(&self, slot: u16) -> usize {
        wait_for("a master of the slot", || {
            let owns = |node: &Server| node.is_awake() && Cluster::own_line(node).is_ok_and(|line| line.owns(slot));
            self.nodes.iter().position(owns).ok_or_else(|| format!("nobody owns {slot}"))
        })
    }

    /// The number of the running node that is master of this key's slot; waits for one while there is none.
    #[track_caller]
    pub fn master_of(&self, key: &str) -> usize {
        self.master_of_slot(self.slot_of(key))
    }

    /// The number of the running replica of this master; waits for one while there is none.
    #[track_caller]
    pub fn replica_of(&self, master: usize) -> usize {
        let id = Cluster::own_line(&self.nodes[master]).expect("a master that runs").id;
        wait_for("a replica", || {
            let copies = |node: &Server| node.is_awake() && Cluster::own_line(node).is_ok_and(|l| l.master == id);
            self.nodes.iter().position(copies).ok_or_else(|| format!("nobody copies node {master}"))
        })
    }

    /// Kills the master of this key's slot with SIGKILL, and answers which it was.
    #[track_caller]
    pub fn kill_master_of(&self, key: &str) -> usize {
        let master = self.master_of(key);
        self.nodes[master].kill();
        master
    }

    /// Waits until every running node serves all slots, as after a failover.
    #[track_caller]
    pub fn wait_until_ok(&self) {
        for node in self.living() {
            wait_for("every slot to be served", || match node.info(&["CLUSTER", "INFO"], "cluster_state").as_str() {
                "ok" => Ok(()),
                other => Err(format!("node at {} says {other}", node.port())),
            });
        }
    }

    /// Waits until all six run, serve all slots, think well of each other, and every replica has a copy.
    #[track_caller]
    pub fn wait_until_whole(&self) {
        self.wait_until_ok();
        // All in one look: a node that was away thinks for a while that nothing has changed.
        wait_for("six nodes that are well", || self.nodes.iter().try_for_each(Cluster::sees_all));
    }

    fn sees_all(node: &Server) -> Result<(), String> {
        let lines = Cluster::lines(node)?;
        let well = lines.iter().filter(|line| line.is_well());
        let (masters, replicas): (Vec<_>, Vec<_>) = well.partition(|line| line.is("master"));
        let copied = masters.iter().filter(|m| replicas.iter().any(|r| r.master == m.id)).count();
        let link = node.info(&["INFO", "replication"], "master_link_status");
        let whole = lines.len() == NODES && copied == MASTERS && replicas.len() == MASTERS && link != "down";
        let seen = || format!("at {}: {copied} of {MASTERS} masters copied, link {link:?}", node.port());
        if whole { Ok(()) } else { Err(seen()) }
    }

    /// Makes every node run that was killed or paused, and waits until the Cluster is whole.
    #[track_caller]
    pub fn heal(&self) {
        self.nodes.iter().for_each(Server::revive);
        self.wait_until_whole();
    }

    /// Moves a slot to another master, key by key, as an operator would; `pause` is called between the steps.
    #[track_caller]
    pub fn migrate_slot(&self, slot: u16, to: usize, pause: impl FnMut(Step)) {
        let from = self.master_of_slot(slot);
        let masters = self.living().filter(|node| Cluster::own_line(node).is_ok_and(|line| line.is("master")));
        migration::migrate(slot, &self.nodes[from], &self.nodes[to], masters.collect(), pause);
    }
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

/// Starts servers side by side: most of a start is waiting.
#[track_caller]
pub fn start_all(options: Vec<Options>) -> Vec<Server> {
    std::thread::scope(|scope| {
        let starting: Vec<_> = options.into_iter().map(|options| scope.spawn(|| options.start())).collect();
        let started = starting.into_iter().map(|thread| thread.join());
        started.map(|server| server.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
