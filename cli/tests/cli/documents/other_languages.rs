//! Every code block that is not a shell command runs in another test, or is listed with the reason why it does not.

use super::blocks::{OtherBlock, all_other_blocks, code_blocks};
use super::document;
use crate::sandbox::Sandbox;

/// Blocks in other languages than Rust: the page, the language, and the test that runs them or the reason why none does.
const LISTED: &[(&str, &str, &str)] = &[
    ("docs/guide/deploying.md", "ini", UNIT),
    ("docs/guide/deploying.md", "yaml", "a part of the configuration of Prometheus"),
    ("docs/guide/fences.md", "sql", "tests/behaviour/inbox.rs"),
    ("docs/guide/http.md", "json", "output; the schemas are tested against the API"),
    ("docs/guide/jobs.md", "python", "http/tests/web/api/examples.rs"),
    ("docs/guide/jobs.md", "rust,ignore", "test-support/beside.rs, which ./check docs builds with sqlx and diesel"),
    ("docs/guide/jobs.md", "sql", "tests/behaviour/inbox.rs"),
    ("docs/guide/redis.md", "ini", UNIT),
    ("docs/guide/running.md", "ini", UNIT),
    ("docs/guide/securing.md", "nginx", "needs nginx and a certificate"),
    ("docs/how-to/python-worker.md", "python", "python_worker_of_the_page_is_the_example"),
    ("docs/how-to/shell-commands.md", "crontab", "would run at a quarter past three"),
    ("docs/reference/command-line.md", "toml", "settings_of_the_reference_are_accepted"),
    ("docs/reference/cron-file.md", "toml", "cron_file_of_the_reference_is_accepted"),
];
const UNIT: &str = "a part of a unit or of its settings; packaging/check verifies whole units";

/// Pages whose Rust the packages compile as tests: this text includes them.
const DOCTESTS: [&str; 3] = ["src/guide/mod.rs", "src/lib.rs", "http/src/lib.rs"];

#[test]
fn every_block_of_another_language_runs_or_is_listed() {
    let blocks = all_other_blocks();
    let included = DOCTESTS.map(document).concat();
    for OtherBlock { path, line, language, text } in &blocks {
        let runs = match &language[..] {
            // Output and pictures.
            "text" => !text.lines().any(|line| line.trim_start().starts_with("$ ")),
            "rust" | "rust,no_run" => {
                let inside_docs = path.strip_prefix("docs/").unwrap_or(path);
                included.contains(&format!("{inside_docs}\"")) || path == "http/README.md"
            }
            _ => LISTED.iter().any(|(page, listed, _)| page == path && listed == language),
        };
        assert!(runs, "no test runs the {language:?} block at {path}:{line}");
    }
    for (page, language, _) in LISTED {
        let exists = blocks.iter().any(|block| block.path == *page && block.language == *language);
        assert!(exists, "{page} has no {language} block; remove it from the list");
    }
}

#[test]
fn python_worker_of_the_page_is_the_example() {
    let page = document("docs/how-to/python-worker.md");
    let (_, _, program) = code_blocks(&page).into_iter().find(|block| block.1 == "python").expect("a Python block");
    assert!(document("http/examples/worker.py").ends_with(&program), "copy it from http/examples/worker.py");
}

/// sqlx and diesel take minutes to build, so `./check docs` builds the program, and this test compares it with the page.
#[test]
fn sqlx_and_diesel_of_the_page_are_those_of_the_tested_program() {
    let without_spaces = |text: &str| text.split_whitespace().collect::<String>();
    let program = without_spaces(&document("test-support/beside.rs"));
    let page = document("docs/guide/jobs.md");
    let blocks = code_blocks(&page).into_iter().filter(|block| block.1 == "rust,ignore");
    let mut compared = 0;
    for (line, _, text) in blocks {
        assert!(program.contains(&without_spaces(&text)), "line {line}: copy it to test-support/beside.rs");
        compared += 1;
    }
    assert_eq!(compared, 2, "sqlx and diesel");
}

#[test]
fn settings_of_the_reference_are_accepted() {
    let sandbox = Sandbox::new();
    let page = document("docs/reference/command-line.md");
    let (_, _, settings) = code_blocks(&page).into_iter().find(|block| block.1 == "toml").expect("a TOML block");
    sandbox.write(
        "duly.toml",
        &settings.replace("/var/lib/duly/", "./").replace("at least 32 random bytes", &"k".repeat(32)),
    );
    sandbox.run(&["push", "kind"]).ok();
    sandbox.run(&["jobs", "ls"]).ok();
}

#[test]
fn cron_file_of_the_reference_is_accepted() {
    let sandbox = Sandbox::new();
    let page = document("docs/reference/cron-file.md");
    let (_, _, rules) = code_blocks(&page).into_iter().find(|block| block.1 == "toml").expect("a TOML block");
    sandbox.write("cron.toml", &rules);
    sandbox.run(&["cron", "apply", "--file", "cron.toml"]).ok();
    let listed = sandbox.run(&["cron", "ls"]).ok().out;
    assert!(listed.contains("report") && listed.contains("backup"), "{listed}");
}
