//! The rules of the architecture, as far as a search through the source text can see them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
const EXAMPLE_LINES_MAX: usize = 60;
const SCRIPT_LINES_MAX: usize = 60;

struct File {
    path: String,
    text: String,
}

impl File {
    /// The lines before the tests in the file, with their numbers; comments are left out.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let upto = ["#[cfg(test)]", "#[cfg(doctest)]"].iter().filter_map(|mark| self.text.find(mark)).min();
        let upto = upto.unwrap_or(self.text.len());
        let lines = self.text[..upto].lines().enumerate().map(|(no, line)| (no + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files below these directories that end in one of these ways.
fn files(dirs: &[&str], ends: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = dirs.iter().map(|dir| root().join(dir)).collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).expect("readable").map(|entry| entry.expect("readable").path()));
        } else if ends.iter().any(|end| path.to_string_lossy().ends_with(end)) {
            let text = fs::read_to_string(&path).expect("text");
            let path = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            found.push(File { path, text });
        }
    }
    assert!(!found.is_empty(), "no file in {dirs:?}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Fails with every place at which `bad` holds.
fn none(rule: &str, files: &[File], bad: impl Fn(&File, &str) -> bool) {
    let mut places = Vec::new();
    for file in files {
        for (no, line) in file.code() {
            if bad(file, line) {
                places.push(format!("{}:{no}: {}", file.path, line.trim()));
            }
        }
    }
    assert!(places.is_empty(), "{rule}\n{}", places.join("\n"));
}

fn has_word(line: &str, word: &str) -> bool {
    let boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    line.match_indices(word)
        .any(|(at, _)| boundary(line[..at].chars().next_back()) && boundary(line[at + word.len()..].chars().next()))
}

#[test]
fn files_and_functions_stay_small() {
    let mut places = Vec::new();
    for file in
        files(&["src", "http/src", "cli/src", "tests", "http/tests", "cli/tests", "test-support", "examples"], &[".rs"])
    {
        let lines = file.text.lines().count();
        let max = if file.path.starts_with("examples") { EXAMPLE_LINES_MAX } else { FILE_LINES_MAX };
        if lines > max {
            places.push(format!("{}: {lines} lines", file.path));
        }
        let mut start: Option<(usize, usize)> = None;
        for (no, line) in file.text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let is_fn = ["fn ", "pub fn ", "async fn ", "pub async fn ", "pub(crate) fn ", "pub(super) fn "]
                .iter()
                .any(|head| line.trim_start().starts_with(head));
            if is_fn && !line.trim_end().ends_with(['}', ';']) {
                start = Some((no, indent));
            }
            if let Some((from, deep)) = start.filter(|(_, deep)| line.trim_end() == format!("{}}}", " ".repeat(*deep)))
            {
                if no - from > FUNCTION_LINES_MAX {
                    places.push(format!("{}:{}: a function of {} lines", file.path, from + 1, no - from));
                }
                start = None;
                let _ = deep;
            }
        }
    }
    assert!(places.is_empty(), "does each still hold one thing?\n{}", places.join("\n"));
}

#[test]
fn only_clock_rs_reads_a_clock() {
    let files = files(&["src", "http/src"], &[".rs"]);
    none("ask clock.rs for the time", &files, |file, line| {
        file.path != "src/clock.rs" && (line.contains("SystemTime::now") || line.contains("Instant::now"))
    });
}

#[test]
fn locks_go_by_a_clock_that_nobody_can_set() {
    let files: Vec<File> = files(&["src"], &[".rs"])
        .into_iter()
        .filter(|file| file.path == "src/lock.rs" || file.path.starts_with("src/hall/"))
        .collect();
    assert!(files.len() > 5, "they are elsewhere now");
    none("ask for since_boot(), or for the store's time", &files, |_, line| {
        // What is shown to people is a moment of the wall clock, and decides nothing.
        let shown = line.contains("self.hall.now() + self.held.left()") || line.contains("self.inner.clock.now()");
        let reads = line.contains(".wall()") || line.contains("now()");
        reads && !shown && !line.contains("fn now(") && !line.contains("store.now()") && !line.contains("store().now()")
    });
}

#[test]
fn no_unwrap_no_unsafe_no_print_in_the_library() {
    let files = files(&["src", "http/src"], &[".rs"]);
    none("an error, or expect with a reason", &files, |_, line| line.contains(".unwrap()"));
    none("forbidden", &files, |_, line| has_word(line, "unsafe"));
    none("a library is silent", &files, |_, line| line.contains("println!") || line.contains("eprintln!"));
}

/// Type names that are defined more than once in a package today: the reason, and the names in order.
const REPEATED_TYPE_NAMES: &[(&str, &str)] = &[
    (
        "a page or resource of the HTTP server has its own form, row or view of it",
        "Asked Audit Beaten Calls Change Claimed Ended Entries Group Job Key Kinds Limits Link ListParams Locks \
         Next Node Nodes Options Page Progress Queues Quiet Range Replies Row Run Sent Step Sure Tokens Who Wish",
    ),
    ("a verb of the command line and its counterpart over HTTP", "Jobs Plan Push Stats Sum Summary Teller Verb"),
    (
        "another system has a word of its own for it",
        "Answered At Crash Done Failed Fields Heard Keys News Own Pending Reader Refused Schedule Token Writer",
    ),
    (
        "more than one concept, to be renamed",
        "About Address All Answer Answering Awaited Beat Called Cancel Counted Cursor Due Ears Ends Erased Fault \
         Found Hall Hold Inner Kept Known Lane Line Listener Look Looked Message Met Name Note Open Place Reply \
         Running Said Seen Settings Settling Shared State Target Told Turn Waiter Waiting Words Work",
    ),
    ("seals a trait", "Sealed"),
];

/// The name of the type that a line defines, if it defines one.
fn type_defined_by(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(rest) => {
            rest.trim_start().strip_prefix('(').map_or(rest, |rest| rest.split_once(')').map_or("", |two| two.1))
        }
        None => item,
    };
    let item = item.trim_start();
    // An indented `type` belongs to a trait or an implementation.
    let keywords: &[&str] =
        if line.starts_with(' ') { &["struct ", "enum ", "trait "] } else { &["struct ", "enum ", "trait ", "type "] };
    let name = keywords.iter().find_map(|keyword| item.strip_prefix(keyword))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

#[test]
fn no_type_name_is_defined_twice_in_a_package() {
    let mut repeated = BTreeMap::new();
    for package in ["src", "cli/src", "http/src"].into_iter().filter(|dir| root().join(dir).exists()) {
        let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for file in files(&[package], &[".rs"]).iter().filter(|file| !file.path.ends_with("tests.rs")) {
            for (no, line) in file.code() {
                if let Some(name) = type_defined_by(line) {
                    defined.entry(name.to_owned()).or_default().push(format!("{}:{no}", file.path));
                }
            }
        }
        repeated.extend(defined.into_iter().filter(|(_, places)| places.len() > 1));
    }
    let allowed: Vec<&str> = REPEATED_TYPE_NAMES.iter().flat_map(|(_, names)| names.split(' ')).collect();
    let new: Vec<_> = repeated.iter().filter(|(name, _)| !allowed.contains(&name.as_str())).collect();
    assert!(new.is_empty(), "one name, one concept:\n{new:#?}");
    let unused: Vec<_> = allowed.iter().filter(|name| !repeated.contains_key(**name)).collect();
    assert!(unused.is_empty(), "defined once now, take them off the list: {unused:?}");
    assert!(REPEATED_TYPE_NAMES.iter().all(|(_, names)| names.split(' ').is_sorted()), "sort the list");
}

#[test]
fn arrows_point_one_way() {
    let library = files(&["src"], &[".rs"]);
    none("only the SQLite store knows SQLite", &library, |file, line| {
        let knows = file.path.starts_with("src/store/sqlite/") || ["src/lib.rs", "src/duly.rs"].contains(&&*file.path);
        !knows && line.contains("rusqlite")
    });
    none("only the Redis store knows Redis", &library, |file, line| {
        let homes = ["src/store/redis/", "src/store/open.rs", "src/compat/"];
        let knows = homes.iter().any(|home| file.path.starts_with(home));
        !knows && line.contains("redis::") && !line.contains("super::redis::")
    });
    none("only who opens a store knows of other systems", &library, |file, line| {
        let knows = file.path.starts_with("src/compat/") || ["src/lib.rs", "src/store/open.rs"].contains(&&*file.path);
        !knows && has_word(line, "compat")
    });
    none("stores do not know each other", &library, |file, line| {
        (file.path.starts_with("src/store/redis/") && line.contains("sqlite"))
            || (file.path.starts_with("src/store/sqlite/") && line.contains("redis"))
    });
    none("the store never looks up", &library, |file, line| {
        let up = ["crate::worker", "crate::handler", "crate::attempt", "crate::duly", "crate::retry", "crate::moving"];
        file.path.starts_with("src/store/") && up.iter().any(|name| line.contains(name))
    });
    none("workers and movers know the contract, not a store", &library, |file, line| {
        let at_work = file.path.starts_with("src/worker/") || file.path.starts_with("src/moving/");
        at_work && (line.contains("sqlite") || line.contains("redis"))
    });
    none("an attempt never touches the store", &library, |file, line| {
        file.path == "src/attempt.rs" && line.contains("store")
    });
    none("jobs are pure data", &library, |file, line| {
        ["src/job.rs", "src/push.rs", "src/retry.rs"].contains(&&*file.path)
            && (has_word(line, "async") || line.contains("tokio"))
    });
    none("duly-http uses only the client API", &files(&["http/src"], &[".rs"]), |_, line| {
        line.contains(".store.")
            || line.contains(".store()")
            || line.contains("dyn Store")
            || line.contains("duly::store")
    });
    none("the command line goes through the door", &files(&["cli/src"], &[".rs"]), |_, line| {
        line.contains("duly::store::sqlite") || line.contains(".store()") || line.contains("rusqlite")
    });
}

#[test]
fn every_module_says_what_it_is() {
    let silent: Vec<_> = files(
        &["src", "http/src", "cli/src", "tests", "http/tests", "cli/tests", "test-support", "examples"],
        &[".rs"],
    )
    .into_iter()
    .filter(|file| !file.text.starts_with("//! "))
    .map(|file| file.path)
    .collect();
    assert!(silent.is_empty(), "no word at the top: {silent:?}");
}

#[test]
fn every_table_is_ours_by_name() {
    let schema = fs::read_to_string(root().join("src/store/sqlite/schema.sql")).expect("text");
    for line in schema.lines().filter(|line| line.starts_with("CREATE")) {
        let name = line.split_whitespace().find(|word| word.starts_with("duly_"));
        assert!(name.is_some(), "users share the file: {line}");
    }
}

#[test]
fn scripts_keep_their_rules() {
    for file in files(&["src/store/redis/lua", "src/compat"], &[".lua"]) {
        let (path, text) = (&file.path, &file.text);
        assert!(text.lines().count() <= SCRIPT_LINES_MAX, "{path}: more than {SCRIPT_LINES_MAX} lines");
        let only_looks = path == "src/compat/sidekiq/lua/part/pick.lua" && !text.contains("cjson.encode");
        assert!(!text.contains("cjson") || only_looks, "{path}: args are bytes to a script; cjson would corrupt them");
        let clocks = text.matches("'TIME'").count();
        assert_eq!(clocks, usize::from(path.ends_with("part/now.lua")), "{path}: the time is read once, in one place");
        if !path.contains("/part/") {
            assert!(text.starts_with("#!lua"), "{path}: says how it is to be run");
            for word in ["-- KEYS ", "-- ARGV ", "-- Returns ", "-- include now"] {
                assert!(text.contains(word), "{path}: has no line {word:?}");
            }
        }
    }
}

#[test]
fn keys_are_spelled_in_one_place() {
    none("keys.rs spells every key", &files(&["src/store"], &[".rs"]), |file, line| {
        !file.path.ends_with("redis/keys.rs") && (line.contains(":queue:") || line.contains(":hall:"))
    });
    none("keys.rs spells every key", &files(&["src/compat/sidekiq"], &[".rs"]), |file, line| {
        !file.path.ends_with("/keys.rs")
            && (line.contains("queue:{") || line.contains("stat:") || line.contains("\":work"))
    });
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut dead = Vec::new();
    let documents = fs::read_dir(root()).expect("readable").map(|entry| entry.expect("readable").path());
    let mut documents: Vec<PathBuf> = documents.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    documents.extend(files(&["docs"], &[".md"]).into_iter().map(|file| root().join(file.path)));
    for path in documents {
        let text = fs::read_to_string(&path).expect("text");
        for (at, _) in text.match_indices("](") {
            let link = text[at + 2..].split([')', '#']).next().unwrap_or_default();
            let outside = link.is_empty() || link.contains("://");
            if !outside && !path.parent().unwrap_or(Path::new(".")).join(link).exists() {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

/// A step that has a default would else be answered by that, not by the store behind.
#[test]
fn stores_around_a_store_pass_every_step_on() {
    let read = |name: &str| fs::read_to_string(root().join("src/store").join(name)).expect("text");
    let (contract, around) = (read("mod.rs"), [read("traced.rs"), read("faulty.rs")]);
    let (_, contract) = contract.split_once("pub trait Store").expect("the contract");
    let steps: Vec<&str> =
        contract.lines().filter_map(|line| line.trim().strip_prefix("async fn ")?.split('(').next()).collect();
    assert!(steps.len() > 50, "{steps:?}");
    for step in steps {
        let passed = |text: &String| text.lines().any(|line| line.contains(&format!(" {step}(")));
        assert!(around.iter().all(passed), "{step} is passed on by all");
    }
}
