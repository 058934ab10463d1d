//! A master and its replica, monitored by three Sentinels.

use std::time::Duration;

use super::cluster::start_all;
use super::options::Options;
use super::server::Server;
use crate::wait_for;

const SENTINELS: usize = 3;
const QUORUM: usize = 2;
/// A failover that takes longer is aborted and retried.
const FAILOVER_TIMEOUT_MS: &str = "3000";
/// How often Sentinels check servers and announce themselves. The defaults of seconds would dominate the time of a
/// test.
///
/// `ping-period` is also the delay before a reconnect, and has a narrow range. Closer to the down timeout, the new
/// master counts as down before the first ping, and a second failover follows. Below 200, information about the
/// replica, refreshed once a second, counts as too old for a promotion.
const QUICK_PERIODS: [&str; 8] =
    ["ping-period", "400", "info-period", "200", "publish-period", "100", "tilt-period", "1000"];

/// Two servers, 0 (starts as master) and 1 (its replica), and three Sentinels with a quorum of two.
pub struct Sentinel {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinel {
    /// The Sentinels' name of the master.
    pub const MASTER: &str = "duly";
    /// Down timeout for tests that wait for a failover, which then takes about two seconds.
    pub const QUICK: Duration = Duration::from_secs(1);

    /// Starts all five, and returns when the replica has its copy and the Sentinels know each other and the replica.
    ///
    /// A server that is silent for `down_after` is considered failed.
    #[track_caller]
    pub fn start(options: Options, down_after: Duration) -> Sentinel {
        let master = options.clone().start();
        let replica = options.clone().set("replicaof", &format!("127.0.0.1 {}", master.port())).start();
        wait_for_link(&replica);
        let name = Sentinel::MASTER;
        let mut watch = Options::sentinel(options.binary)
            .set("sentinel monitor", &format!("{name} 127.0.0.1 {} {QUORUM}", master.port()))
            .set("sentinel down-after-milliseconds", &format!("{name} {}", down_after.as_millis()))
            .set("sentinel failover-timeout", &format!("{name} {FAILOVER_TIMEOUT_MS}"));
        if let Some(password) = master.password() {
            watch = watch.set("sentinel auth-pass", &format!("{name} {password}"));
        }
        let sentinels = start_all(vec![watch; SENTINELS]);
        for sentinel in &sentinels {
            sentinel.send_command(&[&["SENTINEL", "DEBUG"], QUICK_PERIODS.as_slice()].concat());
        }
        let started = Sentinel { servers: vec![master, replica], sentinels };
        started.wait_until_whole();
        started
    }

    /// Returns the servers that hold data.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Returns a `redis+sentinel://` URL with all Sentinels.
    pub fn url(&self) -> String {
        let sentinels: Vec<String> = self.sentinels.iter().map(Server::address).collect();
        format!("redis+sentinel://{}/{}", sentinels.join(","), Sentinel::MASTER)
    }

    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(Server::port).collect()
    }

    /// Returns the server that all running Sentinels name as master, if its own role is master.
    fn agreed_master(&self) -> Result<usize, String> {
        let mut named = Vec::new();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_awake()) {
            let reply = sentinel.try_send_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Sentinel::MASTER]);
            let reply = reply.map_err(|error| error.to_string())?;
            named.push(reply.list().last().map(|port| port.text()).unwrap_or_default());
        }
        named.dedup();
        let [port] = named.as_slice() else { return Err(format!("Sentinels name {named:?}")) };
        let master = self.servers.iter().position(|server| server.port().to_string() == *port);
        let master = master.ok_or_else(|| format!("Sentinels name an unknown master at {port}"))?;
        if !self.servers[master].is_awake() {
            return Err(format!("the server at {port} is killed or paused"));
        }
        let role = self.servers[master].try_send_command(&["ROLE"]).map_err(|error| error.to_string())?;
        match role.list().first().map(|role| role.text()) {
            Some(role) if role == "master" => Ok(master),
            role => Err(format!("the server at {port} is {role:?}")),
        }
    }

    /// Returns the number of the current master; waits until there is one.
    #[track_caller]
    pub fn master(&self) -> usize {
        wait_for("Sentinels to agree on a master", || self.agreed_master())
    }

    /// Kills the master with SIGKILL, and returns its number.
    #[track_caller]
    pub fn kill_master(&self) -> usize {
        let master = self.master();
        self.servers[master].kill();
        master
    }

    /// Waits until a server other than `old` is master, and returns its number.
    #[track_caller]
    pub fn wait_for_failover(&self, old: usize) -> usize {
        wait_for("a failover", || {
            self.agreed_master().and_then(|new| if new == old { Err("still the old master".into()) } else { Ok(new) })
        })
    }

    /// Waits until both servers run, one replicates the other, and every Sentinel knows all of them.
    #[track_caller]
    pub fn wait_until_whole(&self) {
        let master = self.master();
        wait_for_link(&self.servers[1 - master]);
        for sentinel in &self.sentinels {
            wait_for("Sentinels to know each other", || {
                let reply = sentinel
                    .try_send_command(&["SENTINEL", "MASTER", Sentinel::MASTER])
                    .map_err(|error| error.to_string())?;
                let field = |name: &str| reply.field(name).unwrap_or_default();
                let (others, replicas) = (field("num-other-sentinels"), field("num-slaves"));
                let is_complete =
                    others == (SENTINELS - 1).to_string() && replicas == "1" && field("flags") == "master";
                if is_complete {
                    Ok(())
                } else {
                    Err(format!("{others} others, {replicas} replicas, {}", field("flags")))
                }
            });
        }
    }

    /// Restarts or resumes every killed or paused server and Sentinel, and waits until all is whole.
    #[track_caller]
    pub fn heal(&self) {
        self.servers.iter().chain(&self.sentinels).for_each(Server::revive);
        self.wait_until_whole();
    }
}

#[track_caller]
fn wait_for_link(replica: &Server) {
    wait_for("a replica to have its copy", || {
        match replica.info(&["INFO", "replication"], "master_link_status").as_str() {
            "up" => Ok(()),
            other => Err(format!("link {other:?}")),
        }
    });
}
