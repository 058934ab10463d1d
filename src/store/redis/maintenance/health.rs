//! What the servers say about themselves: what can be lost, and what should be mended.

use std::collections::HashMap;
use std::sync::LazyLock;

use redis::Value;

use crate::clock::{Clock, Micros};
use crate::error::{Error, Result};
use crate::store::Health;
use crate::store::redis::Redis;
use crate::store::redis::conn::{Said, Way, is_forbidden};
use crate::store::redis::maintenance::acl;
use crate::store::redis::record::FORMAT;
use crate::store::redis::url::{Address, Shape};

/// The oldest versions whose commands we need.
const REDIS_MIN: (u32, u32) = (7, 0);
const VALKEY_MIN: (u32, u32) = (8, 0);
/// A server whose clock differs from ours by more is worth a warning: moments that users give mean something else there.
const SKEW_MAX: Micros = 500_000;
/// Memory of which more than this part is used is worth a warning.
const FULL: f64 = 0.9;

/// What the masters say about themselves.
struct Masters {
    heard: Vec<Master>,
    /// A Cluster of which one part is away goes on with the others.
    silent: Vec<(Address, Error)>,
}

struct Master {
    address: Address,
    info: HashMap<String, String>,
    settings: Settings,
}

/// What one server is set to do with its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settings {
    /// `None` where we may not ask.
    append: Option<Append>,
    snapshots: bool,
    eviction: Option<String>,
    /// How many good replicas it must have to take writes, if it asks for any.
    least_replicas: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Append {
    Off,
    WhenTheSystemLikes,
    EverySecond,
    Always,
}

/// Refuses servers that cannot keep what they are given, each with what mends it.
pub(crate) async fn admit(store: &Redis) -> Result<()> {
    let masters = Masters::ask(store, "open").await?;
    for master in &masters.heard {
        check_version(&master.info)?;
        if master.info.get("cluster_enabled").is_some_and(|on| on == "1") && store.link.place().shape != Shape::Cluster
        {
            return Err(Error::store("open", "this server is part of a Cluster: use redis+cluster://"));
        }
        if master.info.get("role").is_some_and(|role| role == "slave") && store.link.place().shape == Shape::One {
            let reason = "this is a replica, and takes no jobs: name the master, or use redis+sentinel://";
            return Err(Error::store("open", reason));
        }
    }
    skew(store, "open", &masters).await?;
    if masters.has_hall(store) {
        check_format(store).await?;
    }
    masters.warnings(store).iter().for_each(|warning| tracing::warn!("{warning}"));
    let settings = masters.settings();
    if let Some(policy) = settings.eviction.as_deref().filter(|policy| *policy != "noeviction") {
        return Err(Error::store(
            "open",
            format!(
                "the server evicts keys when its memory is full (maxmemory-policy {policy}), jobs among them; mend it with: CONFIG SET maxmemory-policy noeviction"
            ),
        ));
    }
    if settings.append == Some(Append::Off) && !store.options.allow_data_loss {
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
    tracing::info!(store = %store.link.place().shown(), "{}", durability(&settings, store.options.replicas));
    Ok(())
}

/// `health` of the contract.
pub(crate) async fn health(store: &Redis) -> Result<Health> {
    let masters = Masters::ask(store, "health").await?;
    let settings = masters.settings();
    let skew = skew(store, "health", &masters).await?;
    // Of several the one with the least room, and the one with the fewest replicas.
    let fullest = masters.heard.iter().max_by(|one, other| one.fullness().total_cmp(&other.fullness()));
    let get = |name: &str| fullest.map_or("", |master| master.get(name));
    let replicas = masters.heard.iter().map(|master| master.number("connected_slaves")).min().unwrap_or(0);
    let mut facts: Vec<(String, String)> = vec![
        ("prefix".into(), store.prefix.clone()),
        ("server".into(), server(masters.info(store))),
        ("memory".into(), format!("{} of {}", get("used_memory_human"), limit(get("maxmemory_human")))),
        ("replicas".into(), replicas.to_string()),
        ("server_clock".into(), format!("{} ms from ours", skew / 1_000)),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    let mut warnings = masters.warnings(store);
    for master in &masters.heard {
        warnings.extend(master.warnings(store.options.replicas));
    }
    if skew.abs() > SKEW_MAX {
        warnings.push(format!(
            "the server's clock is {} ms from ours: a job pushed for a moment runs when the server's clock says so; set both by NTP",
            skew / 1_000
        ));
    }
    let durability = durability(&settings, store.options.replicas);
    let mut health = Health { durability, facts, warnings, acl: Some(acl::rules(&store.prefix)) };
    health.history(store.options.history);
    Ok(health)
}

fn limit(human: &str) -> &str {
    if human == "0B" { "no limit" } else { human }
}

fn durability(settings: &Settings, replicas: u32) -> String {
    let own = match (settings.append, settings.snapshots) {
        (Some(Append::Always), _) => {
            "Every acknowledged push is on the server's disk: it survives a crash of any process and loss of power."
        }
        (Some(Append::EverySecond), _) => {
            "An acknowledged push survives a crash of duly; if the server's process or machine fails, the last second or two may be lost."
        }
        (Some(Append::WhenTheSystemLikes), _) => {
            "An acknowledged push survives a crash of any process; if the server's machine fails, what its system had not yet written (half a minute) may be lost."
        }
        (Some(Append::Off), true) => "If the server stops, everything since its last snapshot is lost.",
        (Some(Append::Off), false) => "If the server stops, everything is lost.",
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

fn server(info: &HashMap<String, String>) -> String {
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
    let (key, slot) = (&store.hall.format, store.hall.slot);
    let mut get = redis::cmd("GET");
    get.arg(key);
    let mut found = store.link.ask("open", Way::Door, slot, &get).await?;
    if found == Value::Nil {
        let mut set = redis::cmd("SETNX");
        set.arg(key).arg(u32::from(FORMAT - b'0'));
        store.link.ask("open", Way::Door, slot, &set).await?;
        found = store.link.ask("open", Way::Door, slot, &get).await?;
    }
    let found: u32 = redis::from_redis_value(found).unwrap_or(0);
    let ours = u32::from(FORMAT - b'0');
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

impl Master {
    fn get(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }

    /// Which part of the memory that it may use is used; more than any if there is no limit.
    fn fullness(&self) -> f64 {
        self.number("used_memory") as f64 / self.number("maxmemory") as f64
    }

    /// What should be mended of this one, or nothing works.
    fn warnings(&self, replicas: u32) -> Vec<String> {
        let (mut warnings, at) = (Vec::new(), &self.address);
        let there = self.number("connected_slaves");
        if there < u64::from(replicas) {
            warnings.push(format!(
                "the server at {at} has {there} of the {replicas} replicas that `replicas` asks for: every push ends in doubt (`unknown`) until it has them"
            ));
        }
        // Only a server that counts them says how many are good.
        let good = self.info.get("min_slaves_good_slaves").and_then(|good| good.parse::<u64>().ok());
        if let Some((least, good)) = self.settings.least_replicas.zip(good).filter(|(least, good)| good < least) {
            warnings.push(format!(
                "the server at {at} refuses every write: it has {good} of the {least} good replicas that min-replicas-to-write asks for"
            ));
        }
        if self.settings.append == Some(Append::Off) {
            warnings.push(format!(
                "the server at {at} does not append to a file (appendonly no), which allow_data_loss=true permits: when it stops, jobs are lost"
            ));
        }
        match self.number("maxmemory") {
            0 => warnings.push(format!(
                "the server at {at} has no memory limit: set maxmemory, so that it refuses pushes instead of being killed"
            )),
            _ if self.fullness() > FULL => warnings.push(format!(
                "the memory of the server at {at} is nearly full: pushes are refused when it is; raise maxmemory, or remove done jobs (`duly jobs rm state:done`)"
            )),
            _ => {}
        }
        for (field, what) in
            [("rdb_last_bgsave_status", "save a snapshot"), ("aof_last_write_status", "write to its append-only file")]
        {
            if !matches!(self.get(field), "" | "ok") {
                warnings.push(format!("the server at {at} could not {what}: look at its log and its disk"));
            }
        }
        warnings
    }
}

/// The servers that run now, and the database on them: the same for every URL that leads there.
pub(crate) async fn servers(store: &Redis) -> Result<String> {
    let masters = Masters::ask(store, "move").await?;
    let mut runs: Vec<&str> = masters.heard.iter().map(|master| master.get("run_id")).collect();
    runs.sort_unstable();
    Ok(format!("{} {}", runs.join(" "), store.link.place().db))
}

impl Masters {
    /// Asks all of them; fails if none answers, or one will never do.
    async fn ask(store: &Redis, op: &'static str) -> Result<Self> {
        let mut masters = Masters { heard: Vec::new(), silent: Vec::new() };
        for (address, said) in store.link.ask_each(op, &redis::cmd("INFO")).await? {
            match said {
                Said::Answer(answer) => {
                    let info = read_info(answer);
                    masters.heard.push(Master { address, info, settings: Settings::default() });
                }
                Said::Refusal(error) => return Err(error),
                Said::Nothing(error) => masters.silent.push((address, error)),
            }
        }
        masters.ask_settings(store, op).await?;
        Ok(masters)
    }

    async fn ask_settings(&mut self, store: &Redis, op: &'static str) -> Result<()> {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("GET")
            .arg("appendonly")
            .arg("appendfsync")
            .arg("save")
            .arg("maxmemory-policy")
            .arg("min-replicas-to-write");
        let addresses: Vec<Address> = self.heard.iter().map(|master| master.address.clone()).collect();
        let said = store.link.ask_these(op, &addresses, &cmd).await;
        for (mut master, (_, said)) in std::mem::take(&mut self.heard).into_iter().zip(said) {
            master.settings = match said {
                Said::Answer(answer) => read_settings(answer),
                Said::Refusal(error) if !is_forbidden(&error) => return Err(error),
                // Not allowed to ask, or no such command: then nobody knows.
                Said::Refusal(_) => Settings::default(),
                // Just gone: it may keep nothing, and must not pass for one that only hides what it keeps.
                Said::Nothing(error) => {
                    self.silent.push((master.address, error));
                    continue;
                }
            };
            // This it tells everybody.
            master.settings.eviction = master.settings.eviction.take().or(master.info.get("maxmemory_policy").cloned());
            self.heard.push(master);
        }
        if self.heard.is_empty()
            && let Some((_, error)) = self.silent.pop()
        {
            return Err(error);
        }
        Ok(())
    }

    /// The settings of all that answer; where they differ, the weaker one counts.
    fn settings(&self) -> Settings {
        let weaker = |one: Settings, other: Settings| Settings {
            // That one keeps nothing is known, whatever another does not tell.
            append: if [one.append, other.append].contains(&Some(Append::Off)) {
                Some(Append::Off)
            } else {
                one.append.min(other.append)
            },
            snapshots: one.snapshots && other.snapshots,
            eviction: one.eviction.filter(|policy| policy != "noeviction").or(other.eviction),
            least_replicas: one.least_replicas.max(other.least_replicas),
        };
        self.heard.iter().map(|master| master.settings.clone()).reduce(weaker).unwrap_or_default()
    }

    /// Whether the server answers that has the names of all queues.
    fn has_hall(&self, store: &Redis) -> bool {
        let hall = store.link.master_of(store.hall.slot);
        self.heard.iter().any(|master| Some(&master.address) == hall.as_ref())
    }

    /// What the one says that has the hall, or else any other.
    fn info(&self, store: &Redis) -> &HashMap<String, String> {
        static NOTHING: LazyLock<HashMap<String, String>> = LazyLock::new(HashMap::new);
        let hall = store.link.master_of(store.hall.slot);
        let of_hall = self.heard.iter().find(|master| Some(&master.address) == hall.as_ref());
        of_hall.or(self.heard.first()).map_or(&NOTHING, |master| &master.info)
    }

    /// What should be known of those that do not answer.
    fn warnings(&self, store: &Redis) -> Vec<String> {
        let hall = store.link.master_of(store.hall.slot);
        let warning = |(address, error): &(Address, Error)| {
            let lost = match Some(address) == hall.as_ref() {
                true => "its queues stand still, others are not found by those who look for all, locks and calls wait",
                false => "its queues stand still",
            };
            format!("the master at {address} does not answer: {lost}, and nobody knows how it is set up: {error}")
        };
        self.silent.iter().map(warning).collect()
    }
}

fn read_info(answer: Value) -> HashMap<String, String> {
    let text: String = redis::from_redis_value(answer).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

fn read_settings(answer: Value) -> Settings {
    let settings: HashMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
    let append =
        settings.get("appendonly").map(|on| match (on.as_str(), settings.get("appendfsync").map(String::as_str)) {
            ("yes", Some("always")) => Append::Always,
            ("yes", Some("no")) => Append::WhenTheSystemLikes,
            ("yes", _) => Append::EverySecond,
            _ => Append::Off,
        });
    Settings {
        append,
        snapshots: settings.get("save").is_some_and(|points| !points.is_empty()),
        eviction: settings.get("maxmemory-policy").cloned(),
        least_replicas: settings
            .get("min-replicas-to-write")
            .and_then(|text| text.parse().ok())
            .filter(|least| *least > 0),
    }
}

/// How far the server's clock is ahead of ours; from then on the store knows about what time it is there.
///
/// That of the hall, or else of any other: those of one Cluster should agree.
async fn skew(store: &Redis, op: &'static str, masters: &Masters) -> Result<Micros> {
    let before = Clock::system().wall();
    let time = redis::cmd("TIME");
    let answer = match masters.heard.first() {
        Some(other) if !masters.has_hall(store) => {
            let said = store.link.ask_these(op, std::slice::from_ref(&other.address), &time).await;
            match said.into_iter().next() {
                Some((_, Said::Answer(answer))) => answer,
                Some((_, Said::Refusal(error) | Said::Nothing(error))) => return Err(error),
                None => Value::Nil,
            }
        }
        _ => store.link.ask(op, Way::Door, store.hall.slot, &time).await?,
    };
    let (seconds, micros): (Micros, Micros) = redis::from_redis_value(answer).unwrap_or((0, 0));
    store.tell_time(seconds * 1_000_000 + micros);
    let between = before + (Clock::system().wall() - before) / 2;
    Ok(seconds * 1_000_000 + micros - between)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, version: &str) -> Result<()> {
        check_version(&HashMap::from([(name.to_owned(), version.to_owned())]))
    }

    #[test]
    fn old_servers_are_refused() {
        assert!(version("redis_version", "7.0.15").is_ok());
        assert!(version("redis_version", "6.2.14").expect_err("too old").to_string().contains("at least Redis 7.0"));
        assert!(version("valkey_version", "7.2.5").expect_err("too old").to_string().contains("at least Valkey 8.0"));
    }

    #[test]
    fn of_several_masters_the_weakest_counts() {
        let all = |appends: &[Option<Append>]| {
            let master = |append: &Option<Append>| Master {
                address: Address { host: "h".to_owned(), port: 1 },
                info: HashMap::new(),
                settings: Settings { append: *append, ..Settings::default() },
            };
            Masters { heard: appends.iter().map(master).collect(), silent: Vec::new() }.settings().append
        };
        let (off, second, always) = (Some(Append::Off), Some(Append::EverySecond), Some(Append::Always));
        assert_eq!(all(&[always, second]), second);
        assert_eq!(all(&[always, None]), None, "nobody knows");
        for hidden in [[None, off], [off, None]] {
            assert_eq!(all(&hidden), off, "that one keeps nothing is known");
        }
    }

    #[test]
    fn what_keeps_pushes_out_is_said() {
        let warnings = |info: &[(&str, &str)], least_replicas, replicas| {
            let info = info.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let address = Address { host: "h".to_owned(), port: 1 };
            let settings = Settings { least_replicas, ..Settings::default() };
            Master { address, info, settings }.warnings(replicas).join("\n")
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
    fn every_setting_has_its_sentence() {
        let set = |append, snapshots| Settings { append, snapshots, ..Settings::default() };
        assert!(
            durability(&set(Some(Append::Always), false), 0)
                .contains("survives a crash of any process and loss of power")
        );
        assert!(durability(&set(Some(Append::EverySecond), true), 0).contains("the last second or two"));
        assert!(durability(&set(Some(Append::Off), true), 0).contains("since its last snapshot"));
        assert!(durability(&set(None, false), 0).starts_with("Unknown"));
        assert!(durability(&set(Some(Append::Always), false), 2).contains("2 replicas"));
    }
}
