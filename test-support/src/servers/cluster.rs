//! A Cluster of six nodes on loopback: three masters, each with a replica.

use std::time::Duration;

use super::migration::{self, MigrationStage};
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

/// One line of `CLUSTER NODES`: a node's view of another node or of itself.
struct NodeLine {
    id: String,
    flags: Vec<String>,
    /// The id of its master, if it is a replica.
    master: String,
    slots: Vec<(u16, u16)>,
}

impl NodeLine {
    /// `id host:port@bus flags master ping pong epoch link [slot or range]...`
    fn parse(line: &str) -> Option<NodeLine> {
        let mut words = line.split_whitespace();
        let (id, _address, flags, master) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let slots = words.skip(4).filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            // A migrating slot is in brackets. It is also part of a range for as long as the node owns it.
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        Some(NodeLine {
            id: id.into(),
            flags: flags.split(',').map(String::from).collect(),
            master: master.into(),
            slots: slots.collect(),
        })
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|other| other == flag)
    }

    fn owns(&self, slot: u16) -> bool {
        self.has_flag("master") && self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }

    /// The node is known and not suspected of having failed.
    fn is_healthy(&self) -> bool {
        !["fail", "fail?", "handshake", "noaddr"].iter().any(|flag| self.has_flag(flag))
    }
}

impl Cluster {
    /// Node timeout for tests that wait for a failover, which then takes about two seconds.
    pub const QUICK: Duration = Duration::from_secs(1);

    /// Starts a Cluster, and returns when every node serves all slots and every master has its replica.
    ///
    /// A node that is silent for `node_timeout` is considered failed.
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
        // Set only now: with a long timeout, nodes also exchange gossip less often.
        for node in &cluster.nodes {
            node.send_command(&["CONFIG", "SET", "cluster-node-timeout", &millis(node_timeout)]);
            node.send_command(&["CONFIG", "REWRITE"]);
        }
        cluster
    }

    #[track_caller]
    fn form(&self) {
        // A node accepts a config epoch only while it knows no other node.
        for (number, node) in self.nodes.iter().enumerate() {
            node.send_command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        for (number, node) in self.nodes[..MASTERS].iter().enumerate() {
            let first_of = |part: usize| usize::from(SLOTS) * part / MASTERS;
            let (first, last) = (first_of(number), first_of(number + 1) - 1);
            node.send_command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        // Explicit meetings between all nodes are quicker than gossip.
        for (number, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[number + 1..] {
                node.send_command(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()]);
            }
        }
        for (replica, master) in self.nodes[MASTERS..].iter().zip(&self.nodes) {
            let id = master.send_command(&["CLUSTER", "MYID"]).text();
            wait_for("a replica to know its master", || {
                match replica.try_send_command(&["CLUSTER", "REPLICATE", &id]).map(|reply| reply.text()) {
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

    /// Returns a `redis+cluster://` URL with all nodes.
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes().iter().map(Server::address).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(Server::port).collect()
    }

    /// Returns the nodes that are neither killed nor paused.
    fn living(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_awake())
    }

    fn lines(node: &Server) -> Result<Vec<NodeLine>, String> {
        let reply = node.try_send_command(&["CLUSTER", "NODES"]).map_err(|error| error.to_string())?;
        Ok(reply.text().lines().filter_map(NodeLine::parse).collect())
    }

    /// Returns a node's line about itself.
    fn own_line(node: &Server) -> Result<NodeLine, String> {
        Cluster::lines(node)?
            .into_iter()
            .find(|line| line.has_flag("myself"))
            .ok_or_else(|| "no line of its own".into())
    }

    /// Returns the slot of a key.
    #[track_caller]
    pub fn slot_of(&self, key: &str) -> u16 {
        let node = self.living().next().expect("a node that runs");
        node.send_command(&["CLUSTER", "KEYSLOT", key]).text().parse().expect("a slot")
    }

    /// Returns the number of the running master of this slot; waits until there is one.
    #[track_caller]
    pub fn master_of_slot(&self, slot: u16) -> usize {
        wait_for("a master of the slot", || {
            let owns = |node: &Server| node.is_awake() && Cluster::own_line(node).is_ok_and(|line| line.owns(slot));
            self.nodes.iter().position(owns).ok_or_else(|| format!("no node owns slot {slot}"))
        })
    }

    /// Returns the number of the running master of this key's slot; waits until there is one.
    #[track_caller]
    pub fn master_of(&self, key: &str) -> usize {
        self.master_of_slot(self.slot_of(key))
    }

    /// Returns the number of the running replica of this master; waits until there is one.
    #[track_caller]
    pub fn replica_of(&self, master: usize) -> usize {
        let id = Cluster::own_line(&self.nodes[master]).expect("a master that runs").id;
        wait_for("a replica", || {
            let copies = |node: &Server| node.is_awake() && Cluster::own_line(node).is_ok_and(|l| l.master == id);
            self.nodes.iter().position(copies).ok_or_else(|| format!("node {master} has no replica"))
        })
    }

    /// Kills the master of this key's slot with SIGKILL, and returns its number.
    #[track_caller]
    pub fn kill_master_of(&self, key: &str) -> usize {
        let master = self.master_of(key);
        self.nodes[master].kill();
        master
    }

    /// Waits until a running node is master of this key's slot and every running node serves all slots.
    ///
    /// `wait_until_ok` alone is not enough: right after a kill, no node has noticed it yet.
    #[track_caller]
    pub fn wait_for_failover(&self, key: &str) {
        self.master_of(key);
        self.wait_until_ok();
    }

    /// Waits until every running node serves all slots.
    #[track_caller]
    pub fn wait_until_ok(&self) {
        for node in self.living() {
            wait_for("every slot to be served", || match node.info(&["CLUSTER", "INFO"], "cluster_state").as_str() {
                "ok" => Ok(()),
                other => Err(format!("node at {} reports {other}", node.port())),
            });
        }
    }

    /// Waits until all six nodes run, serve all slots, consider each other healthy, and every replica has a copy.
    #[track_caller]
    pub fn wait_until_whole(&self) {
        self.wait_until_ok();
        // All conditions are checked in one pass: a node that was away reports its old view for a while.
        wait_for("six healthy nodes", || self.nodes.iter().try_for_each(Cluster::sees_all));
        // Only now: a node that was away may have become a replica after its own view was checked.
        wait_for("a copy on every replica", || {
            let link = |node: &Server| node.info(&["INFO", "replication"], "master_link_status");
            match self.nodes.iter().filter(|node| link(node) == "up").count() {
                MASTERS => Ok(()),
                other => Err(format!("{other} of {MASTERS} replicas have a copy")),
            }
        });
    }

    fn sees_all(node: &Server) -> Result<(), String> {
        let lines = Cluster::lines(node)?;
        let healthy = lines.iter().filter(|line| line.is_healthy());
        let (masters, replicas): (Vec<_>, Vec<_>) = healthy.partition(|line| line.has_flag("master"));
        let copied = masters.iter().filter(|m| replicas.iter().any(|r| r.master == m.id)).count();
        let link = node.info(&["INFO", "replication"], "master_link_status");
        let whole = lines.len() == NODES && copied == MASTERS && replicas.len() == MASTERS && link != "down";
        let state = || format!("at {}: {copied} of {MASTERS} masters copied, link {link:?}", node.port());
        if whole { Ok(()) } else { Err(state()) }
    }

    /// Restarts or resumes every killed or paused node, and waits until the Cluster is whole.
    #[track_caller]
    pub fn heal(&self) {
        self.nodes.iter().for_each(Server::revive);
        self.wait_until_whole();
    }

    /// Moves a slot to another master, key by key, as an operator would; calls `pause` after each step.
    #[track_caller]
    pub fn migrate_slot(&self, slot: u16, to: usize, pause: impl FnMut(MigrationStage)) {
        let from = self.master_of_slot(slot);
        let masters = self.living().filter(|node| Cluster::own_line(node).is_ok_and(|line| line.has_flag("master")));
        migration::migrate(slot, &self.nodes[from], &self.nodes[to], masters.collect(), pause);
    }
}

fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

/// Starts servers in parallel, since most of a start is waiting.
#[track_caller]
pub fn start_all(options: Vec<Options>) -> Vec<Server> {
    std::thread::scope(|scope| {
        let starting: Vec<_> = options.into_iter().map(|options| scope.spawn(|| options.start())).collect();
        let started = starting.into_iter().map(|thread| thread.join());
        started.map(|server| server.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
