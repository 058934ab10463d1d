//! The help texts: verbs in groups, examples below each verb, and the global options only once.

use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::complete;
use crate::examples::EXAMPLES;

/// The groups of verbs in `duly --help`. A test checks that every verb is in one.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Jobs", &["push", "jobs", "logs", "dead"]),
    ("Work", &["work", "queues", "nodes", "top", "stats"]),
    ("Schedules", &["cron"]),
    ("Locks and calls", &["lock", "call"]),
    ("Server", &["up", "serve", "open", "token", "openapi"]),
    ("Administration", &["doctor", "verify", "backup", "move", "sql", "demo", "completions", "man", "version", "help"]),
];

/// The columns of the names of verbs.
const NAME_WIDTH: usize = 12;

const AFTER_HELP: &str = "\
`duly help VERB` shows the options and examples of a verb.
Exit codes: 0 ok, 1 failure, 2 wrong usage or input, 3 not found, 4 conflict or lock busy, 5 store unreachable, 6 lock lost, 124 timed out.
Settings come from flags, then the environment, then duly.toml, then defaults.";

/// The last line of the help of a verb.
const GLOBAL_OPTIONS_HINT: &str = "Options of all verbs, such as --store, --server and --output: see `duly --help`";

/// Returns the command line with its help texts.
pub(crate) fn command() -> Command {
    let root = Cli::command();
    let globals: Vec<clap::Arg> = root.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    let names: Vec<String> = root.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let groups = format_groups(&root);
    let root = names
        .into_iter()
        .fold(root, |root, name| root.mut_subcommand(&name, |verb| complete_verb(verb, name.clone(), &globals)));
    root.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\nOptions:\n{{options}}{{after-help}}"
    ))
    .after_help(AFTER_HELP)
}

/// Returns the groups of verbs with their descriptions.
fn format_groups(root: &Command) -> String {
    let about = |name: &str| match root.find_subcommand(name) {
        Some(verb) => verb.get_about().map(ToString::to_string).unwrap_or_default(),
        None => "Print this help, or that of a verb".to_owned(),
    };
    let is_there = |name: &str| name == "help" || root.find_subcommand(name).is_some();
    let mut text = String::new();
    for (group, names) in GROUPS {
        text.push_str(&format!("\n{group}:\n"));
        for name in names.iter().filter(|name| is_there(name)) {
            text.push_str(&format!("  {name:<NAME_WIDTH$} {}\n", about(name)));
        }
    }
    // A brace would be a variable of the template.
    text.replace(['{', '}'], "")
}

/// Adds examples to a verb and its own verbs, and hides the options that all verbs have.
fn complete_verb(verb: Command, path: String, globals: &[clap::Arg]) -> Command {
    let verb = globals.iter().fold(verb, |verb, global| {
        let is_defined = verb.get_arguments().any(|arg| arg.get_id() == global.get_id());
        match is_defined {
            true => verb,
            // With the same id, it is the same option.
            false => verb.arg(global.clone().hide(true)),
        }
    });
    let verb = complete::add_candidates(verb, &path);
    let names: Vec<String> = verb.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    let verb = names.into_iter().fold(verb, |verb, name| {
        let path = format!("{path} {name}");
        verb.mut_subcommand(name, |verb| complete_verb(verb, path.clone(), globals))
    });
    let examples = EXAMPLES.iter().find(|(name, _)| *name == path).map_or(&[][..], |(_, examples)| examples);
    let lines: String = examples.iter().map(|example| format!("  {example}\n")).collect();
    let examples = if lines.is_empty() { String::new() } else { format!("Examples:\n{lines}\n") };
    verb.after_help(format!("{examples}{GLOBAL_OPTIONS_HINT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `visit` with the path of every verb that the help lists.
    fn visit_verbs(command: &Command, path: &str, visit: &mut impl FnMut(&str, &Command)) {
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
            let path = format!("{path} {}", verb.get_name()).trim().to_owned();
            visit(&path, verb);
            visit_verbs(verb, &path, visit);
        }
    }

    #[test]
    fn every_verb_is_in_one_group() {
        let root = command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut verbs: Vec<&str> =
            root.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name).collect();
        verbs.push("help");
        // Without the feature `tui` there is no top.
        grouped.retain(|name| *name != "top" || cfg!(feature = "tui"));
        grouped.sort_unstable();
        verbs.sort_unstable();
        assert_eq!(grouped, verbs);
        command().debug_assert();
    }

    #[test]
    fn every_verb_has_examples_that_parse() {
        let mut without = Vec::new();
        visit_verbs(&command(), "", &mut |path, verb| {
            let has = EXAMPLES.iter().any(|(name, examples)| *name == path && !examples.is_empty());
            if !has && verb.get_subcommands().count() == 0 {
                without.push(path.to_owned());
            }
        });
        assert!(without.is_empty(), "without examples: {without:?}");
        // Without the feature `tui` there is no top.
        for (path, examples) in EXAMPLES.iter().filter(|(path, _)| *path != "top" || cfg!(feature = "tui")) {
            for example in *examples {
                // A pipe feeds or reads the command.
                let command_line = example.split(" | ").find(|part| part.starts_with("duly ")).expect("a command");
                let is_end = |c: &str| command_line.find(c).unwrap_or(command_line.len());
                let words = split_words(&command_line[..is_end("   #").min(is_end(" > "))]);
                assert!(words.join(" ").contains(&format!("duly {path}")) || words.len() > 2, "{path}: {example}");
                if let Err(error) = command().try_get_matches_from(&words) {
                    panic!("{path}: {example}\n{error}");
                }
            }
        }
    }

    /// Splits a line into words as a shell does.
    fn split_words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in line.chars() {
            match (c, quote) {
                ('\'' | '"', None) => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (c, Some(open)) if c == open => quote = None,
                (' ', None) => words.extend(word.take()),
                (c, _) => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        words
    }

    #[test]
    fn help_of_a_verb_leaves_out_global_options() {
        let mut root = command();
        let text = root.render_long_help().to_string();
        assert!(text.contains("--store") && text.contains("Schedules:"), "{text}");
        root.build();
        visit_verbs(&root, "", &mut |path, verb| {
            let help = verb.clone().render_long_help().to_string();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            let (options, _) = help.split_once(GLOBAL_OPTIONS_HINT).expect("the hint");
            assert!(!options.contains("--log-format"), "{path}: {help}");
        });
    }
}
