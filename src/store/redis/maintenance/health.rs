//! Checks the servers' settings: how durable they are, and which of them an operator should change.

use std::collections::HashMap;
use std::sync::LazyLock;

use redis::Value;

use crate::clock::{Clock, Micros};
use crate::error::{Error, Result};
use crate::store::Health;
use crate::store::redis::Redis;
use crate::store::redis::conn::{ConnectionRole, MasterReply, is_forbidden};
use crate::store::redis::maintenance::durability::{
    AppendMode, MasterSettings, describe_durability, parse_settings, settings_from_info,
};
use crate::store::redis::maintenance::{acl, vulnerabilities};
use crate::store::redis::record::RECORD_FORMAT;
use crate::store::redis::url::{ServerAddress, Topology};

/// The oldest versions that have all commands duly needs.
const REDIS_MIN: (u32, u32) = (7, 0);
const VALKEY_MIN: (u32, u32) = (8, 0);
/// Clock difference above which a warning is reported: due times given by users mean another moment on such a server.
const CLOCK_SKEW_MAX: Micros = 500_000;
/// Share of used memory above which a warning is reported.
const MEMORY_FULL_RATIO: f64 = 0.9;

/// Info and settings of all masters.
struct MastersInfo {
    reachable: Vec<MasterInfo>,
    /// A Cluster continues with the other masters.
    unreachable: Vec<(ServerAddress, Error)>,
}

struct MasterInfo {
    address: ServerAddress,
    info: HashMap<String, String>,
    settings: MasterSettings,
}

/// Rejects servers with settings that could lose jobs; each error contains the remedy.
pub(crate) async fn check_servers_on_open(store: &Redis) -> Result<()> {
    let masters = MastersInfo::query(store, "open").await?;
    for master in &masters.reachable {
        check_version(&master.info)?;
        if master.info.get("cluster_enabled").is_some_and(|on| on == "1")
            && store.servers.url().topology != Topology::Cluster
        {
            return Err(Error::store("open", "this server is part of a Cluster; use redis+cluster://"));
        }
        if master.info.get("role").is_some_and(|role| role == "slave")
            && store.servers.url().topology == Topology::Standalone
        {
            let reason = "this is a replica and accepts no jobs: use the address of the master, or redis+sentinel://";
            return Err(Error::store("open", reason));
        }
    }
    measure_clock_skew(store, "open", &masters).await?;
    if masters.has_peer_keys(store) {
        check_format(store).await?;
    }
    masters.warnings(store).iter().for_each(|warning| tracing::warn!("{warning}"));
    let settings = masters.weakest_settings();
    if let Some(policy) = settings.eviction_policy.as_deref().filter(|policy| *policy != "noeviction") {
        return Err(Error::store(
            "open",
            format!(
                "the server evicts keys when its memory is full (maxmemory-policy {policy}), including jobs; fix it with: CONFIG SET maxmemory-policy noeviction"
            ),
        ));
    }
    if settings.append_mode == Some(AppendMode::Off) && store.options.allow_data_loss != Some(true) {
        let lost = if settings.snapshots { "everything since its last snapshot" } else { "everything" };
        return Err(Error::store(
            "open",
            format!(
                "the server would lose {lost} when it stops; fix it with `CONFIG SET appendonly yes` and \
                 `CONFIG SET appendfsync always` (or everysec, which may lose a second or two), and put both \
                 settings into its configuration file; to use it anyway, add allow_data_loss=true to the URL"
            ),
        ));
    }
    tracing::info!(store = %store.servers.url().display_url(), "{}", describe_durability(&settings, store.options.replicas));
    Ok(())
}

/// Implements `HealthStore::health`.
pub(crate) async fn health(store: &Redis) -> Result<Health> {
    let masters = MastersInfo::query(store, "health").await?;
    let settings = masters.weakest_settings();
    let skew = measure_clock_skew(store, "health", &masters).await?;
    // With several masters, the one with the least free memory and the one with the fewest replicas.
    let fullest = masters.reachable.iter().max_by(|a, b| a.used_memory_ratio().total_cmp(&b.used_memory_ratio()));
    let field = |name: &str| fullest.map_or("", |master| master.info_field(name));
    let replicas = masters.reachable.iter().map(|master| master.info_number("connected_slaves")).min().unwrap_or(0);
    let mut facts: Vec<(String, String)> = vec![
        ("prefix".into(), store.prefix.clone()),
        ("server".into(), describe_server(masters.peer_keys_info(store))),
        (
            "memory".into(),
            format!("{} of {}", field("used_memory_human"), describe_memory_limit(field("maxmemory_human"))),
        ),
        ("replicas".into(), replicas.to_string()),
        ("server_clock".into(), format!("{} ms from the clock of this machine", skew / 1_000)),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut warnings = masters.warnings(store);
    for master in &masters.reachable {
        warnings.extend(master.warnings(store.options.replicas));
    }
    if skew.abs() > CLOCK_SKEW_MAX {
        warnings.push(format!(
            "the clocks of the server and of this machine differ by {} ms, and jobs start by the server's clock: synchronize both with NTP",
            skew / 1_000
        ));
    }
    let durability = describe_durability(&settings, store.options.replicas);
    let mut health = Health { durability, facts, warnings, acl: Some(acl::rules(&store.prefix)) };
    health.add_history_fact(store.options.history);
    Ok(health)
}

fn describe_memory_limit(human: &str) -> &str {
    if human == "0B" { "no limit" } else { human }
}

fn describe_server(info: &HashMap<String, String>) -> String {
    let valkey = info.get("valkey_version").map(|version| format!("Valkey {version}"));
    let redis = || info.get("redis_version").map(|version| format!("Redis {version}"));
    let mode = info.get("redis_mode").or(info.get("server_mode")).map_or("", String::as_str);
    format!("{} ({mode})", valkey.or_else(redis).unwrap_or_default())
}

fn check_version(info: &HashMap<String, String>) -> Result<()> {
    let parse = |text: &String| {
        let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    };
    let (version, min, name) = match (info.get("valkey_version"), info.get("redis_version")) {
        (Some(version), _) => (parse(version), VALKEY_MIN, "Valkey"),
        (None, Some(version)) => (parse(version), REDIS_MIN, "Redis"),
        (None, None) => return Ok(()),
    };
    if version < min {
        let (major, minor) = version;
        return Err(Error::store(
            "open",
            format!("the server is {name} {major}.{minor}; duly needs at least {name} {}.{}", min.0, min.1),
        ));
    }
    Ok(())
}

/// Checks the format of everything under our prefix; rejects any other format.
async fn check_format(store: &Redis) -> Result<()> {
    let (key, slot) = (&store.peer_keys.format, store.peer_keys.slot);
    let mut get = redis::cmd("GET");
    get.arg(key);
    let mut found = store.servers.send_idempotent("open", ConnectionRole::Client, slot, &get).await?;
    if found == Value::Nil {
        let mut set = redis::cmd("SETNX");
        set.arg(key).arg(u32::from(RECORD_FORMAT - b'0'));
        store.servers.send_idempotent("open", ConnectionRole::Client, slot, &set).await?;
        found = store.servers.send_idempotent("open", ConnectionRole::Client, slot, &get).await?;
    }
    let found: u32 = redis::from_redis_value(found).unwrap_or(0);
    let ours = u32::from(RECORD_FORMAT - b'0');
    let age = match found.cmp(&ours) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Greater => "a newer",
        std::cmp::Ordering::Less => "an older",
    };
    let prefix = &store.prefix;
    let reason = format!(
        "the data under the prefix {prefix:?} has format {found}, and this version of duly reads format {ours}; use {age} duly, or another prefix"
    );
    Err(Error::store("open", reason))
}

impl MasterInfo {
    fn info_field(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn info_number(&self, name: &str) -> u64 {
        self.info_field(name).parse().unwrap_or(0)
    }

    /// Returns the used share of the memory limit; infinite without a limit.
    fn used_memory_ratio(&self) -> f64 {
        self.info_number("used_memory") as f64 / self.info_number("maxmemory") as f64
    }

    /// Returns the warnings about this master.
    fn warnings(&self, replicas: u32) -> Vec<String> {
        let (mut warnings, address) = (Vec::new(), &self.address);
        let connected = self.info_number("connected_slaves");
        if connected < u64::from(replicas) {
            warnings.push(format!(
                "the server at {address} has {connected} of the {replicas} replicas that `replicas` requires, so the outcome of every push is unknown: connect more replicas, or lower `replicas`"
            ));
        }
        // Only a server with min-replicas-to-write reports the number of good replicas.
        let good = self.info.get("min_slaves_good_slaves").and_then(|good| good.parse::<u64>().ok());
        if let Some((required, good)) = self.settings.replicas_min.zip(good).filter(|(required, good)| good < required)
        {
            warnings.push(format!(
                "the server at {address} rejects every write, because it has {good} of the {required} good replicas that min-replicas-to-write requires: check its replicas"
            ));
        }
        if self.settings.append_mode == Some(AppendMode::Off) {
            warnings.push(format!(
                "the server at {address} has no append-only file (appendonly no), so jobs are lost when it stops: set appendonly yes"
            ));
        }
        match self.info_number("maxmemory") {
            0 => warnings.push(format!(
                "the server at {address} has no memory limit: set maxmemory, so that it rejects pushes instead of being killed"
            )),
            _ if self.used_memory_ratio() > MEMORY_FULL_RATIO => warnings.push(format!(
                "the memory of the server at {address} is nearly full, and a full server rejects pushes: raise maxmemory, or remove done jobs (`duly jobs rm state:done`)"
            )),
            _ => {}
        }
        warnings.extend(vulnerabilities::warning(&self.info, address));
        for (field, action) in
            [("rdb_last_bgsave_status", "save a snapshot"), ("aof_last_write_status", "write to its append-only file")]
        {
            if !matches!(self.info_field(field), "" | "ok") {
                warnings.push(format!("the server at {address} could not {action}: check its log and its disk"));
            }
        }
        warnings
    }
}

/// Identifies the running servers and the database: the same for every URL that leads to them.
pub(crate) async fn keyspace_id(store: &Redis) -> Result<String> {
    let masters = MastersInfo::query(store, "move").await?;
    let mut run_ids: Vec<&str> = masters.reachable.iter().map(|master| master.info_field("run_id")).collect();
    run_ids.sort_unstable();
    Ok(format!("{} {}", run_ids.join(" "), store.servers.url().db))
}

impl MastersInfo {
    /// Queries all masters; fails if none replies, or if one rejects the query.
    async fn query(store: &Redis, op: &'static str) -> Result<Self> {
        let mut masters = MastersInfo { reachable: Vec::new(), unreachable: Vec::new() };
        for (address, reply) in store.servers.query_all_masters(op, &redis::cmd("INFO")).await? {
            match reply {
                MasterReply::Value(reply) => {
                    let info = parse_info(reply);
                    masters.reachable.push(MasterInfo { address, info, settings: MasterSettings::default() });
                }
                MasterReply::Rejected(error) => return Err(error),
                MasterReply::Unreachable(error) => masters.unreachable.push((address, error)),
            }
        }
        masters.query_settings(store, op).await?;
        Ok(masters)
    }

    async fn query_settings(&mut self, store: &Redis, op: &'static str) -> Result<()> {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("GET")
            .arg("appendonly")
            .arg("appendfsync")
            .arg("save")
            .arg("maxmemory-policy")
            .arg("min-replicas-to-write");
        let addresses: Vec<ServerAddress> = self.reachable.iter().map(|master| master.address.clone()).collect();
        let replies = store.servers.query_masters(op, &addresses, &cmd).await;
        for (mut master, (_, reply)) in std::mem::take(&mut self.reachable).into_iter().zip(replies) {
            master.settings = match reply {
                MasterReply::Value(reply) => parse_settings(reply),
                MasterReply::Rejected(error) if !is_forbidden(&error) => return Err(error),
                // The user may not read the settings, or the server has no CONFIG. Every user can read the rest in INFO.
                MasterReply::Rejected(_) => settings_from_info(&master.info),
                // Just lost: it may persist nothing, and must not count as a server that only hides its settings.
                MasterReply::Unreachable(error) => {
                    self.unreachable.push((master.address, error));
                    continue;
                }
            };
            // INFO has this one for every user.
            master.settings.eviction_policy =
                master.settings.eviction_policy.take().or(master.info.get("maxmemory_policy").cloned());
            self.reachable.push(master);
        }
        if self.reachable.is_empty()
            && let Some((_, error)) = self.unreachable.pop()
        {
            return Err(error);
        }
        Ok(())
    }

    /// Returns the weakest settings of all reachable masters.
    fn weakest_settings(&self) -> MasterSettings {
        let weaker = |a: MasterSettings, b: MasterSettings| MasterSettings {
            // A master known to persist nothing counts, even if another one hides its settings.
            append_mode: if [a.append_mode, b.append_mode].contains(&Some(AppendMode::Off)) {
                Some(AppendMode::Off)
            } else {
                a.append_mode.min(b.append_mode)
            },
            snapshots: a.snapshots && b.snapshots,
            eviction_policy: a.eviction_policy.filter(|policy| policy != "noeviction").or(b.eviction_policy),
            replicas_min: a.replicas_min.max(b.replicas_min),
        };
        self.reachable.iter().map(|master| master.settings.clone()).reduce(weaker).unwrap_or_default()
    }

    /// Returns whether the master with the peer keys is reachable.
    fn has_peer_keys(&self, store: &Redis) -> bool {
        let peer_master = store.servers.master_of(store.peer_keys.slot);
        self.reachable.iter().any(|master| Some(&master.address) == peer_master.as_ref())
    }

    /// Returns the info of the master with the peer keys, or of any other.
    fn peer_keys_info(&self, store: &Redis) -> &HashMap<String, String> {
        static NOTHING: LazyLock<HashMap<String, String>> = LazyLock::new(HashMap::new);
        let peer_master = store.servers.master_of(store.peer_keys.slot);
        let with_peer_keys = self.reachable.iter().find(|master| Some(&master.address) == peer_master.as_ref());
        with_peer_keys.or(self.reachable.first()).map_or(&NOTHING, |master| &master.info)
    }

    /// Returns the warnings about unreachable masters.
    fn warnings(&self, store: &Redis) -> Vec<String> {
        let peer_master = store.servers.master_of(store.peer_keys.slot);
        let warning = |(address, error): &(ServerAddress, Error)| {
            let effect = match Some(address) == peer_master.as_ref() {
                true => "its queues stop, lists of all queues are incomplete, locks and calls wait",
                false => "its queues stop",
            };
            format!("the master at {address} does not reply: {effect}, and its settings are unknown: {error}")
        };
        self.unreachable.iter().map(warning).collect()
    }
}

fn parse_info(reply: Value) -> HashMap<String, String> {
    let text: String = redis::from_redis_value(reply).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// Returns whether every reachable master has an append-only file; `true` if that is not known.
pub(crate) async fn has_append_only_file(store: &Redis) -> Result<bool> {
    let masters = MastersInfo::query(store, "heartbeat").await?;
    Ok(masters.weakest_settings().append_mode != Some(AppendMode::Off))
}

/// Returns the difference between the server's clock and ours, and records the server's time in the store.
///
/// Uses the master with the peer keys, or any other: the clocks of one Cluster should agree.
async fn measure_clock_skew(store: &Redis, op: &'static str, masters: &MastersInfo) -> Result<Micros> {
    let start = Clock::system().now_micros();
    let time = redis::cmd("TIME");
    let reply = match masters.reachable.first() {
        Some(master) if !masters.has_peer_keys(store) => {
            let replies = store.servers.query_masters(op, std::slice::from_ref(&master.address), &time).await;
            match replies.into_iter().next() {
                Some((_, MasterReply::Value(reply))) => reply,
                Some((_, MasterReply::Rejected(error) | MasterReply::Unreachable(error))) => return Err(error),
                None => Value::Nil,
            }
        }
        _ => store.servers.send_idempotent(op, ConnectionRole::Client, store.peer_keys.slot, &time).await?,
    };
    let (seconds, micros): (Micros, Micros) = redis::from_redis_value(reply).unwrap_or((0, 0));
    store.note_server_time(seconds * 1_000_000 + micros);
    let midpoint = start + (Clock::system().now_micros() - start) / 2;
    Ok(seconds * 1_000_000 + micros - midpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one_version(name: &str, version: &str) -> Result<()> {
        check_version(&HashMap::from([(name.to_owned(), version.to_owned())]))
    }

    #[test]
    fn old_server_version_is_rejected() {
        assert!(check_one_version("redis_version", "7.0.15").is_ok());
        let error = |name, version| check_one_version(name, version).expect_err("too old").to_string();
        assert!(error("redis_version", "6.2.14").contains("at least Redis 7.0"));
        assert!(error("valkey_version", "7.2.5").contains("at least Valkey 8.0"));
    }

    #[test]
    fn weakest_append_mode_of_all_masters_counts() {
        let weakest = |modes: &[Option<AppendMode>]| {
            let master = |mode: &Option<AppendMode>| MasterInfo {
                address: ServerAddress { host: "h".to_owned(), port: 1 },
                info: HashMap::new(),
                settings: MasterSettings { append_mode: *mode, ..MasterSettings::default() },
            };
            MastersInfo { reachable: modes.iter().map(master).collect(), unreachable: Vec::new() }
                .weakest_settings()
                .append_mode
        };
        let (off, every_second, always) =
            (Some(AppendMode::Off), Some(AppendMode::EverySecond), Some(AppendMode::Always));
        assert_eq!(weakest(&[always, every_second]), every_second);
        assert_eq!(weakest(&[always, None]), None, "one is unknown");
        for modes in [[None, off], [off, None]] {
            assert_eq!(weakest(&modes), off, "one is known to persist nothing");
        }
    }

    #[test]
    fn warnings_name_what_blocks_pushes() {
        let warnings = |info: &[(&str, &str)], replicas_min, replicas| {
            let info = info.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let address = ServerAddress { host: "h".to_owned(), port: 1 };
            let settings = MasterSettings { replicas_min, ..MasterSettings::default() };
            MasterInfo { address, info, settings }.warnings(replicas).join("\n")
        };
        let healthy_info =
            [("maxmemory", "100"), ("used_memory", "50"), ("connected_slaves", "1"), ("min_slaves_good_slaves", "1")];
        assert_eq!(warnings(&healthy_info, Some(1), 1), "");
        assert!(warnings(&healthy_info, None, 2).contains("h:1 has 1 of the 2 replicas"));
        assert!(warnings(&healthy_info, Some(2), 1).contains("rejects every write"));
        assert!(warnings(&[("maxmemory", "100"), ("used_memory", "95")], None, 0).contains("nearly full"));
        assert!(warnings(&[("maxmemory", "0")], None, 0).contains("no memory limit"));
        assert!(warnings(&[("maxmemory", "100"), ("aof_last_write_status", "err")], None, 0).contains("append-only"));
    }
}
