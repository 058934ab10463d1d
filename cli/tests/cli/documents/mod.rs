//! The commands in the documents work, and the reference names every verb and option.

mod blocks;
mod other_languages;
mod pages;
mod shell;

use std::path::PathBuf;

use crate::sandbox::Sandbox;

/// Returns the text of a document, named by its path in the repository.
fn document(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn reference_names_every_verb_and_option() {
    let sandbox = Sandbox::new();
    let reference = document("docs/reference/command-line.md");
    let verbs: &[&[&str]] = &[
        &["push"],
        &["work"],
        &["jobs", "ls"],
        &["jobs", "get"],
        &["jobs", "retry"],
        &["jobs", "cancel"],
        &["jobs", "edit"],
        &["jobs", "rm"],
        &["jobs", "wait"],
        &["jobs", "why"],
        &["jobs", "watch"],
        &["queues", "ls"],
        &["queues", "pause"],
        &["queues", "resume"],
        &["queues", "capacity"],
        &["queues", "clear"],
        &["dead", "ls"],
        &["dead", "retry"],
        &["dead", "rm"],
        &["stats"],
        &["nodes", "ls"],
        &["nodes", "jobs"],
        &["nodes", "quiet"],
        &["nodes", "stop"],
        &["lock"],
        &["lock", "ls"],
        &["lock", "get"],
        &["lock", "break"],
        &["call"],
        &["move"],
        &["top"],
        &["verify"],
        &["backup"],
        &["sql"],
        &["completions"],
        &["man"],
        &["serve"],
        &["up"],
        &["token", "create"],
        &["token", "ls"],
        &["token", "rm"],
        &["openapi"],
        &["doctor"],
        &["demo"],
        &["version"],
    ];
    for verb in verbs {
        let name = format!("duly {}", verb.join(" "));
        assert!(reference.contains(&name), "{name} is not in the reference");
        let help = sandbox.run(&[verb, &["--help"][..]].concat()).ok().out;
        for option in help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
            let option = option.trim_end_matches([',', '.', ':', ';', ')', '`', '\'']).trim_end_matches("...");
            assert!(option == "--help" || reference.contains(option), "{option} of {name} is not in the reference");
        }
    }
}

/// Returns the verbs that a help text lists, below any heading of a group.
fn listed_verbs(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| !line.starts_with("Usage:")).skip(1);
    let lines = lines.take_while(|line| !line.ends_with("ptions:") && !line.starts_with("Examples:"));
    let verbs = lines.filter_map(|line| line.strip_prefix("  "));
    let names =
        verbs.filter(|line| !line.starts_with([' ', '-', '['])).filter_map(|line| line.split_whitespace().next());
    let is_verb = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase()) && *name != "help";
    names.filter(is_verb).map(str::to_owned).collect()
}

#[test]
fn reference_lists_every_verb() {
    let sandbox = Sandbox::new();
    let reference = document("docs/reference/command-line.md");
    let verbs = listed_verbs(&sandbox.run(&["--help"]).ok().out);
    assert!(verbs.len() > 12, "{verbs:?}");
    for verb in verbs {
        assert!(reference.contains(&format!("duly {verb}")), "duly {verb} is not in the reference");
        for subverb in listed_verbs(&sandbox.run(&[&verb, "--help"]).ok().out) {
            assert!(
                reference.contains(&format!("duly {verb} {subverb}")),
                "duly {verb} {subverb} is not in the reference"
            );
        }
    }
}
