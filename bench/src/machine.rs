//! The machine of the measurements; figures have no meaning without it.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) cores: usize,
    pub(crate) cpu: String,
    pub(crate) kernel: String,
    /// The file system and the device of the benchmark files.
    pub(crate) disk: String,
    /// The load average of the last minute before the start; above about 0.5, other programs were running.
    pub(crate) load: String,
    pub(crate) sqlite: String,
    /// The version of the installed Redis server, if any.
    pub(crate) redis: Option<String>,
}

impl Machine {
    pub(crate) fn detect(dir: &Path) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            date: jiff::Zoned::now().strftime("%Y-%m-%d %H:%M").to_string(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: cpu.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned()),
            kernel: format!("{} {}", std::env::consts::OS, kernel_release(&read("/proc/sys/kernel/osrelease"))),
            disk: describe_disk(dir, &read("/proc/mounts")),
            load: read("/proc/loadavg").split(' ').next().unwrap_or("?").to_owned(),
            sqlite: duly::rusqlite::version().to_owned(),
            redis: redis_version(),
        }
    }

    /// Returns true if the files are in memory, where syncs are free and figures are not meaningful.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.disk.starts_with("tmpfs") || self.disk.starts_with("ramfs")
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { date, cores, cpu, kernel, disk, load, sqlite, redis } = self;
        let redis = redis.as_ref().map(|version| format!("Redis {version}, ")).unwrap_or_default();
        write!(f, "{date}, {cores} cores ({cpu}), {kernel}, {disk}, SQLite {sqlite}, {redis}load at the start {load}")
    }
}

/// The CPU time so far and the stolen part, which the host gave to other machines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuTime {
    total: u64,
    stolen: u64,
}

impl CpuTime {
    pub(crate) fn read() -> Option<Self> {
        CpuTime::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses `cpu  user nice system idle iowait irq softirq steal ..`; user and nice include the later fields.
    fn parse(stat: &str) -> Option<Self> {
        let ticks = stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace().take(8);
        let ticks: Vec<u64> = ticks.map(|tick| tick.parse().ok()).collect::<Option<_>>()?;
        Some(CpuTime { total: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }

    /// Returns the stolen CPU time since `before` in percent; above a few percent, slow rounds are not meaningful.
    pub(crate) fn stolen_since(self, before: Self) -> f64 {
        let (total, stolen) = (self.total.saturating_sub(before.total), self.stolen.saturating_sub(before.stolen));
        100.0 * stolen as f64 / total.max(1) as f64
    }
}

/// Returns the kernel version without the distribution's suffix.
fn kernel_release(text: &str) -> &str {
    text.trim().split('-').next().unwrap_or_default()
}

/// Parses the version from `Redis server v=7.0.15 sha=..`.
pub(crate) fn redis_version() -> Option<String> {
    let output = Command::new("redis-server").arg("--version").output().ok()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    output.split(' ').find_map(|word| word.strip_prefix("v=")).map(str::to_owned)
}

/// Describes the file system that contains the directory.
fn describe_disk(dir: &Path, mounts: &str) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let nearest = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?, words.next()?))
        })
        .filter(|(_, point, _)| dir.starts_with(point))
        .max_by_key(|(_, point, _)| point.len());
    match nearest {
        Some((device, _, system)) => format!("{system} on {device}"),
        None => "unknown file system".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_total() {
        let cpu_time = |idle, stolen| CpuTime::parse(&format!("cpu  10 0 10 {idle} 5 0 5 {stolen} 0 0\ncpu0 1 2\n"));
        let (before, after) = (cpu_time(100, 0).expect("ticks"), cpu_time(170, 30).expect("ticks"));
        assert_eq!(after.stolen_since(before), 30.0);
        assert_eq!(CpuTime::parse("cpu  1 2 3\n"), None);
    }

    #[test]
    fn nearest_mount_is_described() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n";
        assert_eq!(describe_disk(Path::new("/tmp"), mounts), "tmpfs on tmpfs");
        assert_eq!(describe_disk(Path::new("/usr"), mounts), "ext4 on /dev/vda");
        assert_eq!(describe_disk(Path::new("/usr"), ""), "unknown file system");
    }
}
