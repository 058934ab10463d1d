//! The persistence settings of a server, and the failures that an acknowledged push survives with them.

use std::collections::HashMap;

use redis::Value;

/// The persistence settings of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MasterSettings {
    /// `None` if the user may not read it.
    pub(super) append_mode: Option<AppendMode>,
    pub(super) snapshots: bool,
    pub(super) eviction_policy: Option<String>,
    /// Number of good replicas required for writes (`min-replicas-to-write`), if set.
    pub(super) replicas_min: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AppendMode {
    Off,
    /// The user may not read when it is synced.
    UnknownFsync,
    WithoutFsync,
    EverySecond,
    Always,
}

/// Describes the possible loss in one or two sentences.
pub(super) fn describe_durability(settings: &MasterSettings, replicas: u32) -> String {
    let own = match (settings.append_mode, settings.snapshots) {
        (Some(AppendMode::Always), _) => {
            "Every acknowledged push is on the server's disk: it survives a crash of any process and loss of power."
        }
        (Some(AppendMode::EverySecond), _) => {
            "An acknowledged push survives a crash of duly; if the server's process or machine fails, the last second or two may be lost."
        }
        (Some(AppendMode::WithoutFsync), _) => {
            "An acknowledged push survives a crash of any process; if the server's machine fails, data that its system had not yet written (about half a minute) may be lost."
        }
        (Some(AppendMode::UnknownFsync), _) => {
            "An acknowledged push survives a crash of duly, because the server has an append-only file. If its process or machine fails, the loss depends on appendfsync, which this user cannot read (`duly doctor --acl --with-config` prints rules with that right)."
        }
        (Some(AppendMode::Off), true) => "If the server stops, everything since its last snapshot is lost.",
        (Some(AppendMode::Off), false) => "If the server stops, everything is lost.",
        (None, _) => {
            "Unknown: the server reports neither in INFO nor in CONFIG GET whether it has an append-only file; ask its operator."
        }
    };
    match replicas {
        0 => format!(
            "{own} A failover may lose writes that the replica had not received; ?replicas=1 makes a push wait for a replica."
        ),
        1 => format!("{own} A push returns only when 1 replica has it too, so it survives a failover to that replica."),
        n => {
            format!(
                "{own} A push returns only when {n} replicas have it too, so it survives a failover to one of them."
            )
        }
    }
}

/// Returns the settings that INFO contains: `appendfsync` is not among them, and a server may take snapshots.
pub(super) fn settings_from_info(info: &HashMap<String, String>) -> MasterSettings {
    let append_mode = info.get("aof_enabled").map(|on| match on.as_str() {
        "0" => AppendMode::Off,
        _ => AppendMode::UnknownFsync,
    });
    MasterSettings { append_mode, snapshots: true, ..MasterSettings::default() }
}

/// Parses the reply to CONFIG GET.
pub(super) fn parse_settings(reply: Value) -> MasterSettings {
    let settings: HashMap<String, String> = redis::from_redis_value(reply).unwrap_or_default();
    let append_mode =
        settings.get("appendonly").map(|on| match (on.as_str(), settings.get("appendfsync").map(String::as_str)) {
            ("yes", Some("always")) => AppendMode::Always,
            ("yes", Some("no")) => AppendMode::WithoutFsync,
            ("yes", _) => AppendMode::EverySecond,
            _ => AppendMode::Off,
        });
    MasterSettings {
        append_mode,
        snapshots: settings.get("save").is_some_and(|points| !points.is_empty()),
        eviction_policy: settings.get("maxmemory-policy").cloned(),
        replicas_min: settings.get("min-replicas-to-write").and_then(|text| text.parse().ok()).filter(|min| *min > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durability_is_described_for_every_setting() {
        let settings = |mode, snapshots| MasterSettings { append_mode: mode, snapshots, ..MasterSettings::default() };
        assert!(
            describe_durability(&settings(Some(AppendMode::Always), false), 0)
                .contains("survives a crash of any process and loss of power")
        );
        assert!(
            describe_durability(&settings(Some(AppendMode::EverySecond), true), 0).contains("the last second or two")
        );
        assert!(describe_durability(&settings(Some(AppendMode::Off), true), 0).contains("since its last snapshot"));
        assert!(describe_durability(&settings(None, false), 0).starts_with("Unknown"));
        let from_info = |on: &str| settings_from_info(&HashMap::from([("aof_enabled".to_owned(), on.to_owned())]));
        assert!(describe_durability(&from_info("1"), 0).contains("depends on appendfsync"));
        assert_eq!(from_info("0").append_mode, Some(AppendMode::Off));
        assert!(describe_durability(&settings(Some(AppendMode::Always), false), 2).contains("2 replicas"));
    }
}
