//! ARCHITECTURE.md names only what exists.

use std::fs;
use std::path::PathBuf;

use super::{File, files, has_word, root, type_defined_by};

/// Returns whether a file defines a type, or has an `impl` block of it, and defines this function, field or variant.
fn defines_member(file: &File, type_name: &str, member: &str) -> bool {
    let is_of_type =
        |line: &str| type_defined_by(line) == Some(type_name) || line.starts_with("impl") && has_word(line, type_name);
    let is_member = |line: &str| {
        let item = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        let item = item.trim_start_matches("pub ").trim_start_matches("async ").trim_start_matches("fn ");
        let rest = item.strip_prefix(member);
        line.starts_with(' ') && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', ',', '(', '<', ' ']))
    };
    file.text.lines().any(is_of_type) && file.text.lines().any(is_member)
}

/// Returns whether a file defines this function, type, constant, field, table or Lua function.
fn defines_item(file: &File, name: &str) -> bool {
    let is_definition = |line: &str| {
        let item =
            line.trim_start().trim_start_matches("pub").trim_start_matches("(crate)").trim_start_matches("(super)");
        let item = item.trim_start().trim_start_matches("async ");
        let starts =
            ["fn ", "const ", "local function ", "macro_rules! ", "CREATE TABLE IF NOT EXISTS ", "CREATE TABLE ", ""];
        starts.iter().filter_map(|start| item.strip_prefix(start)?.strip_prefix(name)).any(|rest| {
            // A field ends in a type, a call in an argument.
            rest.starts_with([':', '<']) || rest.starts_with('(') && !item.starts_with(name) || rest.starts_with(" (")
        })
    };
    file.text.lines().any(|line| type_defined_by(line) == Some(name) || is_definition(line))
}

#[test]
fn architecture_names_paths_and_functions_that_exist() {
    // A file next to that of the user.
    const OUTSIDE: [&str; 1] = ["FILE-nodes/identity"];
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("text");
    let all = files(&["src", "tests", "docs"], &[".rs", ".lua", ".sql", ".md"]);
    let prose: Vec<&str> = text.split("```").step_by(2).collect();
    let names: Vec<&str> = prose.iter().flat_map(|part| part.split('`').skip(1).step_by(2)).collect();
    let is_path = |name: &str| name.contains('/') || [".rs", ".lua", ".sql"].iter().any(|end| name.ends_with(end));
    let path_exists = |name: &str| {
        let (file, folder) = (format!("/{name}"), format!("/{}/", name.trim_end_matches('/')));
        root().join(name).exists() || all.iter().any(|f| f.path.ends_with(&file) || f.path.contains(&folder))
    };
    // The way of a job and "what happens when": there, every word in backticks is a name in the code.
    let flows = text.find("## From push to done").zip(text.find("## Packages"));
    let prose_of_flows = flows.map(|(start, end)| &text[start..end]).expect("both headings");
    let is_identifier = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let (mut missing, mut checked) = (Vec::new(), 0);
    for name in names.into_iter().filter(|name| !name.contains(' ') && !OUTSIDE.contains(name)) {
        let exists = match name.split_once("::") {
            Some((type_name, member)) => all.iter().any(|file| defines_member(file, type_name, member)),
            None if is_path(name) => path_exists(name),
            None if prose_of_flows.contains(&format!("`{name}`")) && is_identifier(name) => {
                all.iter().any(|file| defines_item(file, name))
            }
            None => continue,
        };
        checked += 1;
        missing.extend((!exists).then_some(name));
    }
    assert!(checked > 100 && missing.is_empty(), "{checked} checked; missing: {missing:#?}");
}

/// A name in the tree is a file or folder below one of the folders that it is indented under.
#[test]
fn architecture_tree_names_what_exists() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("text");
    let tree = text.split("## The tree").nth(1).and_then(|part| part.split("```").nth(1)).expect("a tree");
    // The folders that the current line is in, outermost first, each with its indentation.
    let mut folders: Vec<(usize, Vec<PathBuf>)> = Vec::new();
    let (mut missing, mut checked) = (Vec::new(), 0);
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let indent = line.len() - line.trim_start().len();
        folders.retain(|(outer, _)| *outer < indent);
        let parents = folders.last().map_or_else(|| vec![root()], |(_, parents)| parents.clone());
        let opened: Vec<&str> = line.split_whitespace().take_while(|word| word.ends_with('/')).collect();
        if !opened.is_empty() {
            let paths = parents.iter().flat_map(|parent| opened.iter().map(|name| parent.join(name))).collect();
            folders.push((indent, paths));
        }
        let words = line.split(|c: char| c.is_whitespace() || "(),:;".contains(c));
        for name in words.filter(|word| word.ends_with('/') || word.contains('.')) {
            let in_all = |paths: &Vec<PathBuf>| paths.iter().all(|path| path.join(name).exists());
            checked += 1;
            if !in_all(&vec![root()]) && !folders.iter().any(|(_, paths)| in_all(paths)) {
                missing.push(name);
            }
        }
    }
    assert!(checked > 100 && missing.is_empty(), "{checked} checked; missing: {missing:#?}");
}
