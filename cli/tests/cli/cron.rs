//! `duly cron`: adds, applies, shows and removes rules, and reports errors in them.

use serde_json::json;

use crate::sandbox::{RunOutput, Sandbox};

#[test]
fn rule_is_added_shown_and_removed() {
    let sandbox = Sandbox::new();
    let added = sandbox.run(&["cron", "add", "backup", "0 3 * * *", "--tz", "Europe/Berlin", "--", "./backup.sh"]).ok();
    assert!(added.out.contains("cron backup  next: ") && added.out.contains("03:00 CE"), "{added:?}");
    let rule = sandbox.run(&["cron", "get", "backup", "--json"]).ok().json();
    assert_eq!((&rule["kind"], &rule["tz"]), (&json!("command"), &json!("Europe/Berlin")));
    assert_eq!(rule["args"]["argv"], json!(["./backup.sh"]));
    let table = sandbox.run(&["cron", "ls"]).ok();
    assert!(table.out.contains("backup") && table.out.contains("Europe/Berlin"), "{table:?}");
    assert!(sandbox.run(&["cron", "get", "backup"]).ok().out.contains("Every day at 03:00"));
    assert!(sandbox.run(&["cron", "pause", "backup"]).ok().out.contains("paused"));
    assert!(sandbox.run(&["cron", "resume", "backup"]).ok().out.contains("next: "));
    sandbox.run(&["cron", "rm", "backup"]).ok();
    sandbox.run(&["cron", "get", "backup"]).failed(3, "no cron rule backup; see `duly cron ls`");
    sandbox.run(&["cron", "rm", "backup"]).failed(3, "no cron rule backup; see `duly cron ls`");
}

#[test]
fn triggered_rule_pushes_its_job() {
    let sandbox = Sandbox::new();
    sandbox
        .run(&["cron", "add", "mail", "0 3 * * *", "--kind", "mail", "--args", "{\"to\":\"ada\"}", "--tag", "x"])
        .ok();
    let id = sandbox.run(&["cron", "trigger", "mail"]).ok().id();
    let job = sandbox.job(&id);
    assert_eq!((&job["kind"], &job["args"]["to"], &job["tags"]), (&json!("mail"), &json!("ada"), &json!(["x"])));
}

#[test]
fn pattern_error_marks_the_position() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["cron", "add", "r", "0 25 * * *", "--kind", "mail"]).failed(2, "invalid hour \"25\"");
    assert!(ran.err.ends_with("  0 25 * * *\n    ^^\n"), "{ran:?}");
    sandbox.run(&["cron", "add", "r", "0 0 31 2 *", "--kind", "mail"]).failed(2, "never matches");
    sandbox.run(&["cron", "add", "r", "* * * * *", "--tz", "Berlin", "--kind", "mail"]).failed(2, "Europe/Berlin");
    sandbox.run(&["cron", "add", "r", "* * * * *", "--missed", "all:0", "--kind", "mail"]).failed(2, "all:N");
    sandbox
        .run(&["cron", "add", "r", "* * * * *", "--overlap", "never", "--kind", "mail"])
        .failed(2, "use allow, skip, queue or replace");
    sandbox.run(&["cron", "add", "r", "* * * * *"]).failed(2, "required");
    assert!(!sandbox.path("duly.db").exists(), "nothing was made");
}

#[test]
fn next_shows_daylight_saving_changes() {
    let sandbox = Sandbox::new();
    let next = |pattern: &str, from: &str| {
        sandbox
            .run(&["cron", "next", "--pattern", pattern, "--tz", "Europe/Berlin", "--from", from, "-n", "2"])
            .ok()
            .out
    };
    let gap = next("30 2 * * *", "2026-03-28T12:00:00Z");
    assert!(gap.starts_with("Sun 2026-03-29 03:00 CEST") && gap.contains("clocks go forward"), "{gap}");
    let fold = next("30 2 * * *", "2026-10-24T12:00:00Z");
    assert!(fold.contains("02:30 CEST") && fold.contains("first time only"), "{fold}");
    assert!(!sandbox.path("duly.db").exists(), "it needs no store");
}

/// Hides the system's zone data from this one process.
#[test]
fn time_zones_work_without_system_data() {
    const HIDE: &str = "for dir in /usr/share/zoneinfo /usr/share/lib/zoneinfo /etc/zoneinfo; do \
        [ ! -d $dir ] || mount --bind \"$TZDIR\" $dir || exit 99; done; exec \"$0\" \"$@\"";
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("empty")).expect("makes a directory");
    let duly = sandbox.command(&["cron", "next", "--pattern", "0 3 * * *", "--tz", "Europe/Berlin", "-n", "1"]);
    let mut hidden = std::process::Command::new("unshare");
    hidden.args(["--map-root-user", "--mount", "sh", "-c", HIDE]).arg(duly.get_program()).args(duly.get_args());
    hidden.env("TZDIR", sandbox.path("empty")).current_dir(sandbox.path("."));
    let ran = RunOutput::from(hidden.output().expect("unshare of util-linux"));
    assert!(ran.ok().out.contains("03:00 CE"));
}

const FILE: &str = r#"
[[cron]]
name = "report"
pattern = "0 3 * * *"
tz = "Europe/Berlin"
kind = "report"
args = { to = "ada", copies = 2 }
overlap = "skip"
missed = "all:3"
jitter = "30s"

[[cron]]
name = "backup"
pattern = "*/10 * * * *"
command = ["./backup.sh", "--all"]
paused = true
"#;

#[test]
fn cron_file_is_applied_as_a_whole() {
    let sandbox = Sandbox::new();
    sandbox.run(&["cron", "add", "old", "* * * * *", "--kind", "x"]).ok();
    sandbox.write("rules.toml", FILE);
    let dry = sandbox.run(&["cron", "apply", "-f", "rules.toml", "--dry-run"]).ok();
    assert_eq!(dry.out, "+ backup\n- old\n+ report\n");
    sandbox.run(&["cron", "apply", "-f", "rules.toml"]).failed(2, "pass --yes to confirm");
    sandbox.run(&["cron", "apply", "-f", "rules.toml", "--yes"]).ok();
    let rules = sandbox.run(&["cron", "ls", "--json"]).ok().json();
    let rules = &rules["rules"];
    assert_eq!(rules.as_array().expect("a list").len(), 2);
    assert_eq!((&rules[0]["name"], &rules[0]["paused"]), (&json!("backup"), &json!(true)));
    assert_eq!((&rules[1]["args"], &rules[1]["missed"]), (&json!({"to": "ada", "copies": 2}), &json!("all:3")));
    assert_eq!(sandbox.run(&["cron", "apply", "-f", "rules.toml"]).ok().out, "", "the same again changes nothing");
    sandbox.write("rules.toml", &FILE.replace("0 3 * * *", "0 4 * * *"));
    assert_eq!(sandbox.run(&["cron", "apply", "-f", "rules.toml"]).ok().out, "~ report\n");
}

#[test]
fn errors_in_a_cron_file_name_their_rule() {
    let sandbox = Sandbox::new();
    let fails = |text: &str, message: &str| {
        sandbox.write("rules.toml", text);
        sandbox.run(&["cron", "apply", "-f", "rules.toml"]).failed(2, message)
    };
    fails(&FILE.replace("0 3 * * *", "0 33 * * *"), "rule report: pattern: invalid hour");
    fails(&FILE.replace("skip", "sometimes"), "rule report: overlap");
    fails(&FILE.replace("jitter", "jiter"), "jiter");
    fails(&FILE.replace("command =", "kind = \"x\"\ncommand ="), "either a kind");
    fails(&FILE.replace("command =", "dir = \"/\"\nkind = \"x\"\n#"), "either a kind");
    let rule = "[[cron]]\nname = \"a\"\npattern = \"@daily\"\nkind = \"x\"\n";
    fails(&format!("{rule}args = {{ at = [2026-12-01] }}"), "times such as 2026-12-01");
    fails(&format!("{rule}args = inf"), "JSON has no inf");
    fails("[[cron", "rules.toml");
    sandbox.run(&["cron", "apply", "-f", "none.toml"]).failed(2, "cannot read none.toml");
}
