//! The rules of the architecture that a search through the source text can check.

#[path = "tidy/architecture.rs"]
mod architecture;
#[path = "../src/store/redis/assemble.rs"]
mod assemble;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
const EXAMPLE_LINES_MAX: usize = 60;
const SCRIPT_LINES_MAX: usize = 60;

/// Every folder with Rust code of our own.
const CODE: &[&str] = &["src", "http/src", "cli/src", "tests", "http/tests", "cli/tests", "test-support", "examples"];

struct File {
    path: String,
    text: String,
}

impl File {
    /// Returns the lines before the tests of the file, with their numbers and without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = ["#[cfg(test)]", "#[cfg(doctest)]"].iter().filter_map(|mark| self.text.find(mark)).min();
        let end = end.unwrap_or(self.text.len());
        let lines = self.text[..end].lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn is_in(&self, paths: &[&str]) -> bool {
        paths.iter().any(|path| self.path.starts_with(path))
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns all files below these directories with one of these suffixes, sorted by path.
fn files(dirs: &[&str], suffixes: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> = dirs.iter().map(|dir| root().join(dir)).collect();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).expect("readable").map(|entry| entry.expect("readable").path()));
        } else if suffixes.iter().any(|suffix| path.to_string_lossy().ends_with(suffix)) {
            let text = fs::read_to_string(&path).expect("text");
            let path = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            found.push(File { path, text });
        }
    }
    assert!(!found.is_empty(), "no file in {dirs:?}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Lines that some files must not contain.
///
/// A rule must be able to fail: `sample` matches, each path of `scope` exists, and each exception is needed.
struct Rule<'r> {
    name: &'r str,
    scope: &'r [&'r str],
    except: &'r [&'r str],
    sample: &'r str,
}

impl Rule<'_> {
    /// Fails with every line in the scope that `is_forbidden` matches.
    fn forbid(&self, is_forbidden: impl Fn(&str) -> bool) {
        let name = self.name;
        assert!(is_forbidden(self.sample), "{name}: the rule does not match its sample");
        let all = files(self.scope, &[".rs"]);
        for path in self.scope {
            assert!(all.iter().any(|file| file.is_in(&[path])), "{name}: there is no {path}");
        }
        for path in self.except {
            let mut lines = all.iter().filter(|file| file.is_in(&[path])).flat_map(File::code);
            assert!(lines.any(|(_, line)| is_forbidden(line)), "{name}: the exception for {path} is not needed");
        }
        let mut violations = Vec::new();
        for file in all.iter().filter(|file| !file.is_in(self.except)) {
            for (number, line) in file.code().filter(|(_, line)| is_forbidden(line)) {
                violations.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
        assert!(violations.is_empty(), "{name}\n{}", violations.join("\n"));
    }
}

fn has_word(line: &str, word: &str) -> bool {
    let boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    line.match_indices(word).any(|(start, _)| {
        boundary(line[..start].chars().next_back()) && boundary(line[start + word.len()..].chars().next())
    })
}

/// Returns whether a line names one of these modules of the crate, alone or in a list of imports.
fn names_module(line: &str, modules: &[&str]) -> bool {
    let in_list = line.contains("crate::{");
    modules.iter().any(|module| has_word(line, &format!("crate::{module}")) || in_list && has_word(line, module))
}

#[test]
fn files_and_functions_stay_small() {
    const VISIBILITIES: [&str; 4] = ["", "pub ", "pub(crate) ", "pub(super) "];
    let is_start = |code: &str| {
        let item = VISIBILITIES.iter().rev().find_map(|visibility| code.strip_prefix(visibility)).unwrap_or(code);
        item.starts_with("fn ") || item.starts_with("async fn ") || item.starts_with("const fn ")
    };
    let mut too_long = Vec::new();
    for file in files(CODE, &[".rs"]) {
        let lines = file.text.lines().count();
        let max = if file.path.starts_with("examples") { EXAMPLE_LINES_MAX } else { FILE_LINES_MAX };
        if lines > max {
            too_long.push(format!("{}: {lines} lines", file.path));
        }
        let mut function: Option<(usize, String)> = None;
        for (index, line) in file.text.lines().enumerate() {
            let code = line.trim_start();
            if is_start(code) && !line.trim_end().ends_with(['}', ';']) {
                function = Some((index, format!("{}}}", " ".repeat(line.len() - code.len()))));
            }
            if let Some((start, _)) = function.take_if(|(_, end)| line.trim_end() == end)
                && index - start > FUNCTION_LINES_MAX
            {
                too_long.push(format!("{}:{}: a function of {} lines", file.path, start + 1, index - start));
            }
        }
    }
    assert!(too_long.is_empty(), "does each file and function still hold one concept?\n{}", too_long.join("\n"));
}

#[test]
fn only_clock_rs_reads_a_clock() {
    Rule {
        name: "use clock.rs to read the time",
        scope: &["src", "http/src"],
        except: &["src/clock.rs"],
        sample: "let now = std::time::Instant::now();",
    }
    .forbid(|line| line.contains("SystemTime::now") || line.contains("Instant::now"));
}

#[test]
fn locks_and_peers_use_a_monotonic_clock() {
    // Times that are only displayed come from the wall clock.
    const DISPLAYED: [&str; 2] = ["self.peers.now() + self.held.remaining()", "self.inner.clock.now()"];
    const ALLOWED: [&str; 4] = ["monotonic_now()", "store.now()", "store().now()", "fn now("];
    Rule {
        name: "use monotonic_now() or the time of the store",
        scope: &["src/lock/", "src/peers/"],
        except: &[],
        sample: "let now = self.clock.now();",
    }
    .forbid(|line| line.contains("now()") && !DISPLAYED.iter().chain(&ALLOWED).any(|allowed| line.contains(allowed)));
}

#[test]
fn no_unwrap_no_unsafe_no_print_in_the_library() {
    let rule = |name, sample| Rule { name, scope: &["src", "http/src"], except: &[], sample };
    rule("return an error, or use expect with a reason", "x.unwrap()").forbid(|line| line.contains(".unwrap()"));
    rule("no unsafe code", "unsafe { f() }").forbid(|line| has_word(line, "unsafe"));
    rule("a library prints nothing", "println!()").forbid(|line| line.contains("println!"));
}

/// Returns the name of the type that a line defines.
fn type_defined_by(line: &str) -> Option<&str> {
    let item = line.trim_start();
    let item = match item.strip_prefix("pub") {
        Some(rest) => {
            rest.trim_start().strip_prefix('(').map_or(rest, |rest| rest.split_once(')').map_or("", |(_, item)| item))
        }
        None => item,
    };
    let item = item.trim_start();
    // An indented `type` belongs to a trait or an impl block.
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
            for (number, line) in file.code() {
                if let Some(name) = type_defined_by(line) {
                    defined.entry(name.to_owned()).or_default().push(format!("{}:{number}", file.path));
                }
            }
        }
        repeated.extend(defined.into_iter().filter(|(_, places)| places.len() > 1));
    }
    assert!(repeated.is_empty(), "one name per concept:\n{repeated:#?}");
}

#[test]
fn only_a_store_knows_its_database() {
    Rule {
        name: "only the SQLite store uses SQLite",
        scope: &["src"],
        except: &["src/store/sqlite/", "src/lib.rs", "src/client/transactions.rs"],
        sample: "use rusqlite::Connection;",
    }
    .forbid(|line| line.contains("rusqlite"));
    Rule {
        name: "only the Redis store uses Redis",
        scope: &["src"],
        except: &["src/store/redis/", "src/store/open.rs", "src/compat/"],
        sample: "use redis::Value;",
    }
    .forbid(|line| line.contains("redis::"));
    let stores = |name, scope, sample| Rule { name, scope, except: &[], sample };
    stores("the Redis store does not use the SQLite store", &["src/store/redis/"], "use super::sqlite::Sqlite;")
        .forbid(|line| line.contains("sqlite"));
    stores("the SQLite store does not use the Redis store", &["src/store/sqlite/"], "use super::redis::Redis;")
        .forbid(|line| line.contains("redis"));
    Rule {
        name: "workers and transfers use the contract, not a store",
        scope: &["src/worker/", "src/transfer/", "src/peers/", "src/lock/", "src/cron/", "src/admin/"],
        except: &["src/admin/mod.rs"],
        sample: "use crate::store::sqlite::Sqlite;",
    }
    .forbid(|line| (line.contains("sqlite") || line.contains("redis")) && !line.contains("feature = "));
}

#[test]
fn dependencies_point_one_way() {
    Rule {
        name: "a store never calls its callers",
        scope: &["src/store/"],
        except: &[],
        sample: "use crate::{error::Result, worker::Worker};",
    }
    .forbid(|line| names_module(line, &["worker", "client", "peers", "lock", "transfer", "admin", "testing", "Duly"]));
    Rule {
        name: "an attempt never accesses the store",
        scope: &["src/worker/attempt.rs"],
        except: &[],
        sample: "use crate::store::Store;",
    }
    .forbid(|line| line.contains("store"));
    Rule {
        name: "jobs and cron rules are data: no I/O, no threads, no callers",
        scope: &["src/job/", "src/cron/schedule.rs", "src/cron/parse_error.rs", "src/cron/rule.rs", "src/cron/plan.rs"],
        except: &[],
        sample: "pub async fn push() {}",
    }
    .forbid(|line| {
        const SIDE_EFFECTS: [&str; 5] = ["tokio", "std::fs", "std::net", "std::thread", "dyn Store"];
        const CALLERS: &[&str] = &["worker", "client", "peers", "lock", "transfer", "compat", "testing"];
        has_word(line, "async") || SIDE_EFFECTS.iter().any(|name| line.contains(name)) || names_module(line, CALLERS)
    });
    Rule {
        name: "duly-http, duly-cli and the examples use only the public API of duly",
        scope: &["http/src", "cli/src", "examples"],
        except: &[],
        sample: "use duly::store::Store;",
    }
    .forbid(|line| {
        let is_internal = ["duly::store", ".store()", "dyn Store"].iter().any(|name| line.contains(name));
        is_internal || line.contains("duly::{") && has_word(line, "store")
    });
    Rule {
        name: "duly-http and duly-cli use no database",
        scope: &["http/src", "cli/src"],
        except: &[],
        sample: "use duly::rusqlite::Connection;",
    }
    .forbid(|line| line.contains("rusqlite") || line.contains("redis::"));
}

#[test]
fn other_systems_are_named_only_in_compat() {
    let rule =
        |except, sample| Rule { name: "other systems are named only in compat", scope: &["src"], except, sample };
    rule(&["src/compat/", "src/lib.rs", "src/store/open.rs"], "use crate::compat::sidekiq;")
        .forbid(|line| has_word(line, "compat") && !line.contains(r#"feature = "compat""#));
    rule(&["src/compat/", "src/guide/", "src/store/open.rs"], "let class = sidekiq_class(job);").forbid(|line| {
        let line = line.to_lowercase();
        ["sidekiq", "actionhero", "resque", "redis_in_action", "bullmq"].iter().any(|name| line.contains(name))
    });
}

#[test]
fn every_module_starts_with_a_doc_comment() {
    let undocumented: Vec<_> =
        files(CODE, &[".rs"]).into_iter().filter(|f| !f.text.starts_with("//! ")).map(|f| f.path).collect();
    assert!(undocumented.is_empty(), "without a doc comment at the top: {undocumented:?}");
}

#[test]
fn every_table_name_has_our_prefix() {
    let schema = fs::read_to_string(root().join("src/store/sqlite/schema.sql")).expect("text");
    let statements: Vec<&str> = schema.lines().filter(|line| line.starts_with("CREATE")).collect();
    assert!(statements.len() > 20, "{statements:?}");
    for statement in statements {
        let has_prefix = statement.split_whitespace().any(|word| word.starts_with("duly_"));
        assert!(has_prefix, "the file may hold tables of the user: {statement}");
    }
}

#[test]
fn scripts_follow_their_rules() {
    for file in files(&["src/store/redis/lua", "src/compat"], &[".lua"]) {
        let (path, text) = (&file.path, &file.text);
        assert!(text.lines().count() <= SCRIPT_LINES_MAX, "{path}: more than {SCRIPT_LINES_MAX} lines");
        let only_decodes = path == "src/compat/sidekiq/lua/lib/take_entries.lua" && !text.contains("cjson.encode");
        assert!(!text.contains("cjson") || only_decodes, "{path}: args are opaque bytes; cjson would corrupt them");
        let time_reads = text.matches("'TIME'").count();
        assert_eq!(
            time_reads,
            usize::from(path.ends_with("lib/read_time.lua")),
            "{path}: the time is read once, in one place"
        );
        assert!(!text.contains("KEYS["), "{path}: use the names of keys");
        let name = path.rsplit('/').next().and_then(|name| name.strip_suffix(".lua")).unwrap_or_default();
        let summary = text.lines().find(|line| line.starts_with("-- ")).unwrap_or_default();
        assert!(summary.starts_with(&format!("-- {name}: ")), "{path}: the first comment does not start with {name}:");
        if !path.contains("/lib/") {
            assert!(text.starts_with("#!lua"), "{path}: lacks the line #!lua");
            for word in ["-- keys: ", "-- args: now", "-- Returns ", "-- include read_time"] {
                assert!(text.contains(word), "{path}: lacks {word:?}");
            }
        }
    }
}

#[test]
fn no_two_parts_have_the_same_name() {
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files(&["src/store/redis/lua/lib", "src/compat"], &[".lua"]) {
        if let Some((_, name)) = file.path.rsplit_once("/lib/") {
            names.entry(name.to_owned()).or_default().push(file.path.clone());
        }
    }
    names.retain(|_, paths| paths.len() > 1);
    assert!(names.is_empty(), "a reader cannot tell which one a script includes: {names:#?}");
}

/// A part defines a function of its name, or the functions that its header lists.
#[test]
fn parts_define_the_functions_they_name() {
    // These define constants or run statements.
    const NO_FUNCTION: [&str; 5] = ["read_time", "check_format", "log_limits", "run_limits", "cancelled_limits"];
    let mut missing = Vec::new();
    for file in files(&["src/store/redis/lua/lib", "src/compat"], &[".lua"]) {
        let Some((_, name)) = file.path.strip_suffix(".lua").and_then(|path| path.rsplit_once("/lib/")) else {
            continue;
        };
        let listed = file.text.lines().find_map(|line| line.strip_prefix("-- functions: "));
        for function in listed.unwrap_or(name).split(", ").filter(|name| !NO_FUNCTION.contains(name)) {
            let starts = [format!("local function {function}("), format!("local {function} = {{}}")];
            if !file.text.lines().any(|line| starts.iter().any(|start| line.starts_with(start))) {
                missing.push(format!("{}: {function}", file.path));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The header of a script declares exactly the keys and arguments that the script and its parts use.
#[test]
fn scripts_declare_their_keys_and_arguments() {
    const DIRS: [&str; 3] = ["src/store/redis/lua", "src/compat/lua", "src/compat/sidekiq/lua"];
    let parts: Vec<(String, String)> =
        files(&DIRS, &[".lua"]).into_iter().filter(|f| f.path.contains("/lib/")).map(|f| (f.path, f.text)).collect();
    let (mut errors, mut scripts) = (Vec::new(), 0);
    for dir in DIRS {
        let part = |name: &str| {
            let paths = [dir, DIRS[0]].map(|dir| format!("{dir}/lib/{name}.lua"));
            paths.iter().find_map(|wanted| parts.iter().find(|(path, _)| path == wanted)).map(|(_, text)| text.as_str())
        };
        for file in files(&[dir], &[".lua"]).iter().filter(|file| !file.path.contains("/lib/")) {
            errors.extend(assemble::assemble(&file.text, part).err().map(|error| format!("{}: {error}", file.path)));
            scripts += 1;
        }
    }
    assert!(scripts > 90, "found only {scripts} scripts");
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn only_keys_rs_spells_keys() {
    Rule {
        name: "keys.rs spells every key",
        scope: &["src"],
        except: &["src/store/redis/keys.rs"],
        sample: r#"format!("{prefix}:queue:{{{queue}}}:job")"#,
    }
    .forbid(|line| line.contains(":queue:{") || line.contains(":peers:{"));
    Rule {
        name: "keys.rs spells every key of Sidekiq",
        scope: &["src/compat/sidekiq/"],
        except: &["src/compat/sidekiq/keys.rs"],
        sample: r#"format!("{namespace}queue:{name}")"#,
    }
    .forbid(|line| ["queue:{", "\"stat:", "\":work"].iter().any(|key| line.contains(key)));
}

/// The address of the repository: links to files that are not part of the book start with this.
const REPOSITORY: &str = "https://github.com/duly-rs/duly/blob/main/";

/// Returns the link definitions of a document: label and target.
fn link_definitions(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    lines.filter(|(label, target)| !label.contains(']') && !target.contains(' ')).collect()
}

#[test]
fn links_between_documents_resolve() {
    let mut broken = Vec::new();
    let documents = fs::read_dir(root()).expect("readable").map(|entry| entry.expect("readable").path());
    let mut documents: Vec<PathBuf> = documents.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    documents.extend(files(&["docs"], &[".md"]).into_iter().map(|file| root().join(file.path)));
    for path in documents {
        let text = fs::read_to_string(&path).expect("text");
        let inline = text.match_indices("](").map(|(start, _)| text[start + 2..].split(')').next().unwrap_or_default());
        for link in inline.chain(link_definitions(&text).into_iter().map(|(_, target)| target)) {
            let file = link.split('#').next().unwrap_or_default();
            let target = match file.strip_prefix(REPOSITORY) {
                Some(file) => root().join(file),
                None => path.parent().unwrap_or(Path::new(".")).join(file),
            };
            let is_external = file.contains("://") && !file.starts_with(REPOSITORY);
            if !file.is_empty() && !is_external && !target.exists() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_document_starts_with_its_title() {
    let documents = files(&["docs"], &[".md"]);
    let untitled: Vec<_> =
        documents.iter().filter(|file| !file.text.starts_with("# ")).map(|file| &file.path).collect();
    assert!(documents.len() > 30 && untitled.is_empty(), "{untitled:#?}");
}

/// The guides are also modules of the crate. There, a relative link would lead nowhere: `links.md` redirects it.
#[test]
fn guides_link_only_through_definitions_that_the_crate_redirects() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("text");
    let (pages, redirects) = (read("src/guide/mod.rs"), read("src/guide/links.md"));
    let redirects: BTreeMap<&str, &str> = link_definitions(&redirects).into_iter().collect();
    let pages: Vec<&str> = pages.split('"').filter(|path| path.ends_with(".md") && *path != "links.md").collect();
    assert!(pages.len() > 20, "{pages:?}");
    let (mut broken, mut used) = (Vec::new(), Vec::new());
    for page in pages {
        let text = read(&format!("docs/{page}"));
        for (start, _) in text.match_indices("](") {
            let link = text[start + 2..].split(')').next().unwrap_or_default();
            if !link.starts_with('#') && !link.contains("://") {
                broken.push(format!("{page}: write ({link}) as a definition at the end of the page"));
            }
        }
        for (label, target) in link_definitions(&text) {
            used.push(label.to_owned());
            let fragment = |link: &str| link.split_once('#').map(|(_, fragment)| fragment.to_owned());
            if redirects.get(label).is_none_or(|redirect| fragment(redirect) != fragment(target)) {
                broken.push(format!("{page}: src/guide/links.md has no definition of [{label}] for {target}"));
            }
        }
    }
    broken.extend(
        redirects
            .into_keys()
            .filter(|label| !used.iter().any(|used| used == label))
            .map(|label| format!("src/guide/links.md: no page uses [{label}]")),
    );
    assert!(broken.is_empty(), "{broken:#?}");
}
