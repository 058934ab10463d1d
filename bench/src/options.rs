//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result};

pub(crate) const USAGE: &str = "\
usage: bench [NAMES] [--quick] [--plot FILE.svg] [--json] [--dir DIR]

NAMES    push lifecycle peers single-job growth flood reopen wake shrink lock call cron list http history;
         all of them if none is named
         on Redis: redis-push redis-push-paths redis-drain redis-lifecycle redis-wake redis-lateness redis-memory
         redis-growth redis-failover redis-lock redis-call redis-cron redis-history redis-list sidekiq-drain; redis means all of these
         redis-peers is a table of the peers alone
--quick  a smoke run of under a minute, small and without peers: its figures are not meaningful
--plot   writes a bar chart
--json   prints the figures as JSON too
--dir    where the files are made, on a real disk (default: target)";

/// A group of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Push,
    Lifecycle,
    Peers,
    SingleJob,
    Growth,
    Flood,
    Reopen,
    Wake,
    Shrink,
    Lock,
    Call,
    Cron,
    List,
    Http,
    History,
    RedisPush,
    RedisPushPaths,
    RedisDrain,
    RedisLifecycle,
    RedisWake,
    RedisLateness,
    RedisMemory,
    RedisGrowth,
    RedisFailover,
    RedisLock,
    RedisCall,
    SidekiqDrain,
    RedisCron,
    RedisHistory,
    RedisList,
    RedisPeers,
}

/// The groups on SQLite, which run if no group is named.
const EMBEDDED_GROUPS: [Group; 15] = [
    Group::Push,
    Group::Lifecycle,
    Group::Peers,
    Group::SingleJob,
    Group::Growth,
    Group::Flood,
    Group::Reopen,
    Group::Wake,
    Group::Shrink,
    Group::Lock,
    Group::Call,
    Group::Cron,
    Group::List,
    Group::Http,
    Group::History,
];

/// The groups of the name `redis`.
const REDIS_GROUPS: [Group; 15] = [
    Group::RedisPush,
    Group::RedisPushPaths,
    Group::RedisDrain,
    Group::RedisLifecycle,
    Group::RedisWake,
    Group::RedisLateness,
    Group::RedisMemory,
    Group::RedisGrowth,
    Group::RedisFailover,
    Group::RedisLock,
    Group::RedisCall,
    Group::SidekiqDrain,
    Group::RedisCron,
    Group::RedisHistory,
    Group::RedisList,
];

impl Group {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Group::Push => "push",
            Group::Lifecycle => "lifecycle",
            Group::Peers => "peers",
            Group::SingleJob => "single-job",
            Group::Growth => "growth",
            Group::Flood => "flood",
            Group::Reopen => "reopen",
            Group::Wake => "wake",
            Group::Shrink => "shrink",
            Group::Lock => "lock",
            Group::Call => "call",
            Group::Cron => "cron",
            Group::List => "list",
            Group::Http => "http",
            Group::History => "history",
            Group::RedisPush => "redis-push",
            Group::RedisPushPaths => "redis-push-paths",
            Group::RedisDrain => "redis-drain",
            Group::RedisLifecycle => "redis-lifecycle",
            Group::RedisWake => "redis-wake",
            Group::RedisLateness => "redis-lateness",
            Group::RedisMemory => "redis-memory",
            Group::RedisGrowth => "redis-growth",
            Group::RedisFailover => "redis-failover",
            Group::RedisLock => "redis-lock",
            Group::RedisCall => "redis-call",
            Group::SidekiqDrain => "sidekiq-drain",
            Group::RedisCron => "redis-cron",
            Group::RedisHistory => "redis-history",
            Group::RedisList => "redis-list",
            Group::RedisPeers => "redis-peers",
        }
    }

    /// Returns the groups of a name on the command line.
    fn parse_name(name: &str) -> Result<Vec<Group>> {
        if name == "redis" {
            return Ok(REDIS_GROUPS.into());
        }
        let mut all = EMBEDDED_GROUPS.into_iter().chain(REDIS_GROUPS).chain([Group::RedisPeers]);
        let found = all.find(|group| group.name() == name);
        Ok(vec![found.with_context(|| format!("there is no measurement or option {name:?}"))?])
    }
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) groups: Vec<Group>,
    pub(crate) quick: bool,
    pub(crate) json: bool,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) dir: PathBuf,
}

impl Options {
    pub(crate) fn parse(args: &[String]) -> Result<Self> {
        let mut options =
            Options { groups: Vec::new(), quick: false, json: false, plot: None, dir: PathBuf::from("target") };
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => options.quick = true,
                "--json" => options.json = true,
                "--plot" => options.plot = Some(words.next().context("--plot needs a file")?.into()),
                "--dir" => options.dir = words.next().context("--dir needs a directory")?.into(),
                name => options.groups.extend(Group::parse_name(name)?),
            }
        }
        if options.groups.is_empty() {
            // A smoke run must need nothing but a Rust toolchain.
            options.groups =
                EMBEDDED_GROUPS.into_iter().filter(|group| !options.quick || *group != Group::Peers).collect();
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn names_select_groups_and_none_selects_all() {
        assert_eq!(parse("").expect("good").groups, EMBEDDED_GROUPS);
        assert_eq!(parse("redis").expect("good").groups, REDIS_GROUPS);
        assert_eq!(
            parse("redis-peers redis-lateness").expect("good").groups,
            [Group::RedisPeers, Group::RedisLateness]
        );
        assert_eq!(parse("wake push").expect("good").groups, [Group::Wake, Group::Push]);
        let quick = parse("--quick --plot a.svg").expect("good");
        assert!(quick.quick && quick.plot.is_some() && !quick.groups.contains(&Group::Peers));
        assert!(parse("--plot").is_err());
        assert!(parse("wakes").expect_err("bad").to_string().contains("wakes"));
    }
}
