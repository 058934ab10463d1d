//! The code blocks of a document.

use std::path::{Path, PathBuf};

use super::document;

/// A code block with shell commands.
#[derive(Debug)]
pub(super) struct CommandBlock {
    /// The line of its first command.
    pub(super) line: usize,
    pub(super) commands: String,
}

impl CommandBlock {
    pub(super) fn first_line(&self) -> &str {
        self.commands.lines().next().unwrap_or_default()
    }
}

const COMMAND_LANGUAGES: [&str; 2] = ["sh", "console"];

/// Returns the `sh` and `console` blocks of a document. In a `console` block, commands begin with `$ ` and the other
/// lines are output.
pub(super) fn command_blocks(text: &str) -> Vec<CommandBlock> {
    let mut blocks = Vec::new();
    for (line, language, body) in code_blocks(text) {
        let commands = match language {
            "sh" => body,
            "console" => body
                .lines()
                .filter_map(|line| line.trim_start().strip_prefix("$ "))
                .map(|line| format!("{line}\n"))
                .collect(),
            _ => continue,
        };
        blocks.push(CommandBlock { line, commands });
    }
    blocks
}

/// Returns the first line, the language and the text of every code block.
pub(super) fn code_blocks(text: &str) -> Vec<(usize, &str, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, &str, String)> = None;
    for (index, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => open = Some((index + 2, language, String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, _, body)), None) => *body += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block is not closed: {open:?}");
    blocks
}

/// Returns the paths of all documents that readers get.
pub(super) fn documents() -> Vec<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned(), "RELEASING.md".to_owned()];
    found.extend(["cli/README.md", "http/README.md", "packaging/README.md"].map(str::to_owned));
    let mut dirs = vec![root.join("docs")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(relative(&path, &root));
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).expect("below the root").display().to_string()
}

/// Returns the command blocks of every document.
pub(super) fn all_command_blocks() -> Vec<(String, CommandBlock)> {
    let blocks = |name: String| command_blocks(&document(&name)).into_iter().map(move |block| (name.clone(), block));
    documents().into_iter().flat_map(blocks).collect()
}

/// A code block that no shell runs.
pub(super) struct OtherBlock {
    pub(super) path: String,
    /// The line below the fence.
    pub(super) line: usize,
    /// The text behind the fence.
    pub(super) language: String,
    pub(super) text: String,
}

/// Returns the blocks of every document that are not command blocks.
pub(super) fn all_other_blocks() -> Vec<OtherBlock> {
    let mut found = Vec::new();
    for path in documents() {
        for (line, language, text) in code_blocks(&document(&path)) {
            if !COMMAND_LANGUAGES.contains(&language) {
                found.push(OtherBlock { path: path.clone(), line, language: language.to_owned(), text });
            }
        }
    }
    found
}
