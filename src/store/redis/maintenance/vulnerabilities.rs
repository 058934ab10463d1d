//! Server versions with known vulnerabilities of scripts. duly needs scripts, so `doctor` warns about such a server.
//!
//! From the release notes of Redis and Valkey. A branch without a fix is listed as such; a branch that is not listed was
//! either never affected, or its fix could not be verified.

use std::collections::HashMap;

use crate::store::redis::url::ServerAddress;

/// A released version: major, minor and patch.
type Version = (u32, u32, u32);

/// Vulnerabilities that were fixed by the same releases.
struct Vulnerability {
    cves: &'static [&'static str],
    /// The first release with the fix, per branch.
    redis: &'static [Version],
    valkey: &'static [Version],
    /// Branches of Redis that got no release with the fix.
    redis_unfixed: &'static [(u32, u32)],
}

/// The newest first.
const VULNERABILITIES: &[Vulnerability] = &[
    Vulnerability {
        cves: &["CVE-2026-23631"],
        redis: &[(7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3)],
        valkey: &[(8, 1, 7)],
        redis_unfixed: &[],
    },
    Vulnerability {
        cves: &["CVE-2025-67733"],
        redis: &[],
        valkey: &[(8, 0, 7), (8, 1, 6), (9, 0, 2)],
        redis_unfixed: &[],
    },
    Vulnerability {
        cves: &["CVE-2025-49844", "CVE-2025-46817", "CVE-2025-46818", "CVE-2025-46819"],
        redis: &[(7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)],
        valkey: &[(8, 0, 6), (8, 1, 4)],
        redis_unfixed: &[(7, 0)],
    },
    Vulnerability {
        cves: &["CVE-2024-46981"],
        redis: &[(7, 2, 7), (7, 4, 2)],
        valkey: &[(8, 0, 2)],
        redis_unfixed: &[(7, 0)],
    },
    Vulnerability {
        cves: &["CVE-2024-31449"],
        redis: &[(7, 2, 6), (7, 4, 1)],
        valkey: &[(8, 0, 1)],
        redis_unfixed: &[(7, 0)],
    },
    Vulnerability { cves: &["CVE-2022-24834"], redis: &[(7, 0, 12)], valkey: &[], redis_unfixed: &[] },
];

/// Returns a warning if this version of the server has known vulnerabilities.
pub(super) fn warning(info: &HashMap<String, String>, address: &ServerAddress) -> Option<String> {
    let (name, text) = match (info.get("valkey_version"), info.get("redis_version")) {
        (Some(version), _) => ("Valkey", version),
        (None, Some(version)) => ("Redis", version),
        (None, None) => return None,
    };
    let version = parse_version(text)?;
    let mut cves: Vec<&str> = Vec::new();
    let mut fixed_in: Option<Version> = None;
    for vulnerability in VULNERABILITIES {
        let (fixes, unfixed) = match name {
            "Valkey" => (vulnerability.valkey, &[][..]),
            _ => (vulnerability.redis, vulnerability.redis_unfixed),
        };
        let fix = fixes.iter().find(|fix| (fix.0, fix.1) == (version.0, version.1));
        if fix.is_some_and(|fix| version < *fix) || unfixed.contains(&(version.0, version.1)) {
            cves.extend(vulnerability.cves);
            fixed_in = fixed_in.max(fix.copied());
        }
    }
    if cves.is_empty() {
        return None;
    }
    let update = match fixed_in {
        Some((major, minor, patch)) if !has_unfixed(name, version) => {
            format!("update it to {name} {major}.{minor}.{patch} or newer")
        }
        _ => format!("no release of {name} {}.{} has fixes for all of them: use a newer branch", version.0, version.1),
    };
    Some(format!(
        "the server at {address} reports {name} {text}; in this version, scripts of a logged-in client can harm the server ({}); {update}, unless the package of your distribution has the fixes under this version number",
        cves.join(", ")
    ))
}

fn has_unfixed(name: &str, version: Version) -> bool {
    name == "Redis" && VULNERABILITIES.iter().any(|known| known.redis_unfixed.contains(&(version.0, version.1)))
}

fn parse_version(text: &str) -> Option<Version> {
    let mut parts = text.split(['.', '-']).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning_for(field: &str, version: &str) -> String {
        // Valkey reports a version of Redis too.
        let redis = ("redis_version".to_owned(), "7.2.4".to_owned());
        let info = HashMap::from([redis, (field.to_owned(), version.to_owned())]);
        warning(&info, &ServerAddress { host: "h".to_owned(), port: 1 }).unwrap_or_default()
    }

    #[test]
    fn vulnerable_versions_are_named_with_their_fix() {
        let redis = |version| warning_for("redis_version", version);
        assert!(redis("7.4.5").contains("CVE-2025-49844") && redis("7.4.5").contains("Redis 7.4.9 or newer"));
        assert!(!redis("7.4.5").contains("CVE-2024-46981"), "fixed in 7.4.2");
        assert!(redis("7.2.6").contains("CVE-2024-46981") && !redis("7.2.6").contains("CVE-2024-31449"));
        assert!(redis("7.0.15").contains("CVE-2025-49844") && redis("7.0.15").contains("newer branch"));
        assert!(redis("7.0.11").contains("CVE-2022-24834") && !redis("7.0.15").contains("CVE-2022-24834"));
        let valkey = |version| warning_for("valkey_version", version);
        assert!(valkey("8.1.3").contains("CVE-2025-49844") && valkey("8.1.3").contains("Valkey 8.1.7"));
        assert!(valkey("9.0.1").contains("CVE-2025-67733") && !valkey("9.0.1").contains("CVE-2025-49844"));
        for (field, version) in [
            ("redis_version", "7.4.9"),
            ("redis_version", "8.2.6"),
            ("redis_version", "99.0.0"),
            ("redis_version", "unstable"),
            ("valkey_version", "8.1.7"),
            ("valkey_version", "9.1.2"),
        ] {
            assert_eq!(warning_for(field, version), "", "{version}");
        }
    }
}
