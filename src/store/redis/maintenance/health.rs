//! What the servers say about themselves: what can be lost, and what should be mended.

use std::collections::HashMap;
use std::sync::LazyLock;

use redis::Value;

use crate::clock::{Clock, Micros};
use crate::error::{Error, Result};
use crate::store::Health;
use crate::store::redis::Redis;
use crate::store::redis::conn::{ConnectionRole, MasterReply, is_forbidden};
use crate::store::redis::maintenance::acl;
use crate::store::redis::record::RECORD_FORMAT;
use crate::store::redis::url::{ServerAddress, Topology};

/// The oldest versions whose commands we need.
const REDIS_MIN: (u32, u32) = (7, 0);
const VALKEY_MIN: (u32, u32) = (8, 0);
/// A server whose clock differs from ours by more is worth a warning: moments that users give mean something else there.
const CLOCK_SKEW_MAX: Micros = 500_000;
/// Memory of which more than this part is used is worth a warning.
const MEMORY_FULL_RATIO: f64 = 0.9;

/// What the masters say about themselves.
struct MastersInfo {
    reachable: Vec<MasterInfo>,
    /// A Cluster of which one part is away goes on with the others.
    unreachable: Vec<(ServerAddress, Error)>,
}

struct MasterInfo {
    address: ServerAddress,
    info: HashMap<String, String>,
    settings: MasterSettings,
}

/// What one server is set to do with its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MasterSettings {
    /// `None` where we may not ask.
    append_mode: Option<AppendMode>,
    snapshots: bool,
    eviction_policy: Option<String>,
    /// How many good replicas it must have to take writes, if it asks for any.
    replicas_min: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AppendMode {
    Off,
    WithoutFsync,
    EverySecond,
    Always,
}

/// Refuses servers that cannot keep what they are given, each with what mends it.
pub(crate) async fn check_servers_on_open(store: &Redis) -> Result<()> {
    let masters = MastersInfo::query(store, "open").await?;
    for master in &masters.reachable {
        check_version(&master.info)?;
        if master.info.get("cluster_enabled").is_some_and(|on| on == "1")
            && store.servers.url().topology != Topology::Cluster
        {
            return Err(Error::store("open", "this server is part of a Cluster: use redis+cluster://"));
        }
        if master.info.get("role").is_some_and(|role| role == "slave")
            && store.servers.url().topology == Topology::Standalone
        {
            let reason = "this is a replica, and takes no jobs: name the master, or use redis+sentinel://";
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
                "the server evicts keys when its memory is full (maxmemory-policy {policy}), jobs among them; mend it with: CONFIG SET maxmemory-policy noeviction"
            ),
        ));
    }
    if settings.append_mode == Some(AppendMode::Off) && !store.options.allow_data_loss {
        let lost = if settings.snapshots { "everything since its last snapshot" } else { "everything" };
        return Err(Error::store(
            "open",
            format!(
                "the server would lose {lost} when it stops. Mend it with two commands: \
                 `CONFIG SET appendonly yes` and `CONFIG SET appendfsync always` (or everysec, which may lose a second or two), \
                 and put both into its configuration file. To run all the same, add allow_data_loss=true to the URL"
            ),
        ));
    }
    tracing::info!(store = %store.servers.url().display_url(), "{}", describe_durability(&settings, store.options.replicas));
    Ok(())
}

/// `health` of the contract.
pub(crate) async fn health(store: &Redis) -> Result<Health> {
    let masters = MastersInfo::query(store, "health").await?;
    let settings = masters.weakest_settings();
    let skew = measure_clock_skew(store, "health", &masters).await?;
    // Of several the one with the least room, and the one with the fewest replicas.
    let fullest =
        masters.reachable.iter().max_by(|one, other| one.used_memory_ratio().total_cmp(&other.used_memory_ratio()));
    let get = |name: &str| fullest.map_or("", |master| master.info_field(name));
    let replicas = masters.reachable.iter().map(|master| master.info_number("connected_slaves")).min().unwrap_or(0);
    let mut facts: Vec<(String, String)> = vec![
        ("prefix".into(), store.prefix.clone()),
        ("server".into(), describe_server(masters.peer_keys_info(store))),
        ("memory".into(), format!("{} of {}", get("used_memory_human"), describe_memory_limit(get("maxmemory_human")))),
        ("replicas".into(), replicas.to_string()),
        ("server_clock".into(), format!("{} ms from ours", skew / 1_000)),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut warnings = masters.warnings(store);
    for master in &masters.reachable {
        warnings.extend(master.warnings(store.options.replicas));
    }
    if skew.abs() > CLOCK_SKEW_MAX {
        warnings.push(format!(
            "the server's clock is {} ms from ours: a job pushed for a moment runs when the server's clock says so; set both by NTP",
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

fn describe_durability(settings: &MasterSettings, replicas: u32) -> String {
    let own = match (settings.append_mode, settings.snapshots) {
        (Some(AppendMode::Always), _) => {
            "Every acknowledged push is on the server's disk: it survives a crash of any process and loss of power."
        }
        (Some(AppendMode::EverySecond), _) => {
            "An acknowledged push survives a crash of duly; if the server's process or machine fails, the last second or two may be lost."
        }
        (Some(AppendMode::WithoutFsync), _) => {
            "An acknowledged push survives a crash of any process; if the server's machine fails, what its system had not yet written (half a minute) may be lost."
        }
        (Some(AppendMode::Off), true) => "If the server stops, everything since its last snapshot is lost.",
        (Some(AppendMode::Off), false) => "If the server stops, everything is lost.",
        (None, _) => {
            "Unknown: the server does not let us read its settings (CONFIG GET); ask whoever runs it for appendonly and appendfsync."
        }
    };
    match replicas {
        0 => format!(
            "{own} A failover to a replica may lose what it had not received; ?replicas=1 makes a push wait for one."
        ),
        1 => format!("{own} A push returns only when 1 replica has it too: it survives a failover to that one."),
        n => {
            format!("{own} A push returns only when {n} replicas have it too: it survives a failover to one of those.")
        }
    }
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
    let (found, least, name) = match (info.get("valkey_version"), info.get("redis_version")) {
        (Some(version), _) => (parse(version), VALKEY_MIN, "Valkey"),
        (None, Some(version)) => (parse(version), REDIS_MIN, "Redis"),
        (None, None) => return Ok(()),
    };
    if found < least {
        let (major, minor) = found;
        return Err(Error::store(
            "open",
            format!("the server is {name} {major}.{minor}; duly needs at least {name} {}.{}", least.0, least.1),
        ));
    }
    Ok(())
}

/// Everything under our prefix has one format; a newer one is not for us.
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
        "what is under the prefix {prefix:?} has format {found}, and this version of duly reads format {ours}; use {age} duly, or another prefix"
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

    /// Which part of the memory that it may use is used; more than any if there is no limit.
    fn used_memory_ratio(&self) -> f64 {
        self.info_number("used_memory") as f64 / self.info_number("maxmemory") as f64
    }

    /// What should be mended of this one, or nothing works.
    fn warnings(&self, replicas: u32) -> Vec<String> {
        let (mut warnings, at) = (Vec::new(), &self.address);
        let there = self.info_number("connected_slaves");
        if there < u64::from(replicas) {
            warnings.push(format!(
                "the server at {at} has {there} of the {replicas} replicas that `replicas` asks for: every push ends in doubt (`unknown`) until it has them"
            ));
        }
        // Only a server that counts them says how many are good.
        let good = self.info.get("min_slaves_good_slaves").and_then(|good| good.parse::<u64>().ok());
        if let Some((least, good)) = self.settings.replicas_min.zip(good).filter(|(least, good)| good < least) {
            warnings.push(format!(
                "the server at {at} refuses every write: it has {good} of the {least} good replicas that min-replicas-to-write asks for"
            ));
        }
        if self.settings.append_mode == Some(AppendMode::Off) {
            warnings.push(format!(
                "the server at {at} does not append to a file (appendonly no), which allow_data_loss=true permits: when it stops, jobs are lost"
            ));
        }
        match self.info_number("maxmemory") {
            0 => warnings.push(format!(
                "the server at {at} has no memory limit: set maxmemory, so that it refuses pushes instead of being killed"
            )),
            _ if self.used_memory_ratio() > MEMORY_FULL_RATIO => warnings.push(format!(
                "the memory of the server at {at} is nearly full: pushes are refused when it is; raise maxmemory, or remove done jobs (`duly jobs rm state:done`)"
            )),
            _ => {}
        }
        for (field, what) in
            [("rdb_last_bgsave_status", "save a snapshot"), ("aof_last_write_status", "write to its append-only file")]
        {
            if !matches!(self.info_field(field), "" | "ok") {
                warnings.push(format!("the server at {at} could not {what}: look at its log and its disk"));
            }
        }
        warnings
    }
}

/// The servers that run now, and the database on them: the same for every URL that leads there.
pub(crate) async fn keyspace_id(store: &Redis) -> Result<String> {
    let masters = MastersInfo::query(store, "move").await?;
    let mut runs: Vec<&str> = masters.reachable.iter().map(|master| master.info_field("run_id")).collect();
    runs.sort_unstable();
    Ok(format!("{} {}", runs.join(" "), store.servers.url().db))
}

impl MastersInfo {
    /// Asks all of them; fails if none answers, or one will never do.
    async fn query(store: &Redis, op: &'static str) -> Result<Self> {
        let mut masters = MastersInfo { reachable: Vec::new(), unreachable: Vec::new() };
        for (address, said) in store.servers.query_all_masters(op, &redis::cmd("INFO")).await? {
            match said {
                MasterReply::Value(answer) => {
                    let info = parse_info(answer);
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
        let said = store.servers.query_masters(op, &addresses, &cmd).await;
        for (mut master, (_, said)) in std::mem::take(&mut self.reachable).into_iter().zip(said) {
            master.settings = match said {
                MasterReply::Value(answer) => parse_settings(answer),
                MasterReply::Rejected(error) if !is_forbidden(&error) => return Err(error),
                // Not allowed to ask, or no such command: then nobody knows.
                MasterReply::Rejected(_) => MasterSettings::default(),
                // Just gone: it may keep nothing, and must not pass for one that only hides what it keeps.
                MasterReply::Unreachable(error) => {
                    self.unreachable.push((master.address, error));
                    continue;
                }
            };
            // This it tells everybody.
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

    /// The settings of all that answer; where they differ, the weaker one counts.
    fn weakest_settings(&self) -> MasterSettings {
        let weaker = |one: MasterSettings, other: MasterSettings| MasterSettings {
            // That one keeps nothing is known, whatever another does not tell.
            append_mode: if [one.append_mode, other.append_mode].contains(&Some(AppendMode::Off)) {
                Some(AppendMode::Off)
            } else {
                one.append_mode.min(other.append_mode)
            },
            snapshots: one.snapshots && other.snapshots,
            eviction_policy: one.eviction_policy.filter(|policy| policy != "noeviction").or(other.eviction_policy),
            replicas_min: one.replicas_min.max(other.replicas_min),
        };
        self.reachable.iter().map(|master| master.settings.clone()).reduce(weaker).unwrap_or_default()
    }

    /// Whether the server answers that has the names of all queues.
    fn has_peer_keys(&self, store: &Redis) -> bool {
        let hall = store.servers.master_of(store.peer_keys.slot);
        self.reachable.iter().any(|master| Some(&master.address) == hall.as_ref())
    }

    /// What the one says that has the hall, or else any other.
    fn peer_keys_info(&self, store: &Redis) -> &HashMap<String, String> {
        static NOTHING: LazyLock<HashMap<String, String>> = LazyLock::new(HashMap::new);
        let hall = store.servers.master_of(store.peer_keys.slot);
        let of_hall = self.reachable.iter().find(|master| Some(&master.address) == hall.as_ref());
        of_hall.or(self.reachable.first()).map_or(&NOTHING, |master| &master.info)
    }

    /// What should be known of those that do not answer.
    fn warnings(&self, store: &Redis) -> Vec<String> {
        let hall = store.servers.master_of(store.peer_keys.slot);
        let warning = |(address, error): &(ServerAddress, Error)| {
            let lost = match Some(address) == hall.as_ref() {
                true => "its queues stand still, others are not found by those who look for all, locks and calls wait",
                false => "its queues stand still",
            };
            format!("the master at {address} does not answer: {lost}, and nobody knows how it is set up: {error}")
        };
        self.unreachable.iter().map(warning).collect()
    }
}

fn parse_info(answer: Value) -> HashMap<String, String> {
    let text: String = redis::from_redis_value(answer).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

fn parse_settings(answer: Value) -> MasterSettings {
    let settings: HashMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
    let append =
        settings.get("appendonly").map(|on| match (on.as_str(), settings.get("appendfsync").map(String::as_str)) {
            ("yes", Some("always")) => AppendMode::Always,
            ("yes", Some("no")) => AppendMode::WithoutFsync,
            ("yes", _) => AppendMode::EverySecond,
            _ => AppendMode::Off,
        });
    MasterSettings {
        append_mode: append,
        snapshots: settings.get("save").is_some_and(|points| !points.is_empty()),
        eviction_policy: settings.get("maxmemory-policy").cloned(),
        replicas_min: settings
            .get("min-replicas-to-write")
            .and_then(|text| text.parse().ok())
            .filter(|least| *least > 0),
    }
}

/// How far the server's clock is ahead of ours; from then on the store knows about what time it is there.
///
/// That of the hall, or else of any other: those of one Cluster should agree.
async fn measure_clock_skew(store: &Redis, op: &'static str, masters: &MastersInfo) -> Result<Micros> {
    let before = Clock::system().now_micros();
    let time = redis::cmd("TIME");
    let answer = match masters.reachable.first() {
        Some(other) if !masters.has_peer_keys(store) => {
            let said = store.servers.query_masters(op, std::slice::from_ref(&other.address), &time).await;
            match said.into_iter().next() {
                Some((_, MasterReply::Value(answer))) => answer,
                Some((_, MasterReply::Rejected(error) | MasterReply::Unreachable(error))) => return Err(error),
                None => Value::Nil,
            }
        }
        _ => store.servers.send_idempotent(op, ConnectionRole::Client, store.peer_keys.slot, &time).await?,
    };
    let (seconds, micros): (Micros, Micros) = redis::from_redis_value(answer).unwrap_or((0, 0));
    store.note_server_time(seconds * 1_000_000 + micros);
    let between = before + (Clock::system().now_micros() - before) / 2;
    Ok(seconds * 1_000_000 + micros - between)
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
        assert!(
            check_one_version("redis_version", "6.2.14")
                .expect_err("too old")
                .to_string()
                .contains("at least Redis 7.0")
        );
        assert!(
            check_one_version("valkey_version", "7.2.5")
                .expect_err("too old")
                .to_string()
                .contains("at least Valkey 8.0")
        );
    }

    #[test]
    fn weakest_append_mode_of_all_masters_counts() {
        let all = |appends: &[Option<AppendMode>]| {
            let master = |append: &Option<AppendMode>| MasterInfo {
                address: ServerAddress { host: "h".to_owned(), port: 1 },
                info: HashMap::new(),
                settings: MasterSettings { append_mode: *append, ..MasterSettings::default() },
            };
            MastersInfo { reachable: appends.iter().map(master).collect(), unreachable: Vec::new() }
                .weakest_settings()
                .append_mode
        };
        let (off, second, always) = (Some(AppendMode::Off), Some(AppendMode::EverySecond), Some(AppendMode::Always));
        assert_eq!(all(&[always, second]), second);
        assert_eq!(all(&[always, None]), None, "nobody knows");
        for hidden in [[None, off], [off, None]] {
            assert_eq!(all(&hidden), off, "that one keeps nothing is known");
        }
    }

    #[test]
    fn warnings_name_what_blocks_pushes() {
        let warnings = |info: &[(&str, &str)], least_replicas, replicas| {
            let info = info.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let address = ServerAddress { host: "h".to_owned(), port: 1 };
            let settings = MasterSettings { replicas_min: least_replicas, ..MasterSettings::default() };
            MasterInfo { address, info, settings }.warnings(replicas).join("\n")
        };
        let sound =
            [("maxmemory", "100"), ("used_memory", "50"), ("connected_slaves", "1"), ("min_slaves_good_slaves", "1")];
        assert_eq!(warnings(&sound, Some(1), 1), "");
        assert!(warnings(&sound, None, 2).contains("h:1 has 1 of the 2 replicas"));
        assert!(warnings(&sound, Some(2), 1).contains("refuses every write"));
        assert!(warnings(&[("maxmemory", "100"), ("used_memory", "95")], None, 0).contains("nearly full"));
        assert!(warnings(&[("maxmemory", "0")], None, 0).contains("no memory limit"));
        assert!(warnings(&[("maxmemory", "100"), ("aof_last_write_status", "err")], None, 0).contains("append-only"));
    }

    #[test]
    fn durability_is_described_for_every_setting() {
        let set = |append, snapshots| MasterSettings { append_mode: append, snapshots, ..MasterSettings::default() };
        assert!(
            describe_durability(&set(Some(AppendMode::Always), false), 0)
                .contains("survives a crash of any process and loss of power")
        );
        assert!(describe_durability(&set(Some(AppendMode::EverySecond), true), 0).contains("the last second or two"));
        assert!(describe_durability(&set(Some(AppendMode::Off), true), 0).contains("since its last snapshot"));
        assert!(describe_durability(&set(None, false), 0).starts_with("Unknown"));
        assert!(describe_durability(&set(Some(AppendMode::Always), false), 2).contains("2 replicas"));
    }
}
