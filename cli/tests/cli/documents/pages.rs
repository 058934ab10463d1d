//! Every command block of every document runs as written, or is listed with the reason why it does not.

use test_support::servers::{Binary, Options, Server};

use super::blocks::{CommandBlock, all_command_blocks, command_blocks};
use super::document;
use super::shell::{Page, run};

/// Blocks that no test runs: the page, the beginning of the block's first line, and the reason.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "cargo add duly", INSTALLS),
    ("docs/start/getting-started.md", "git clone", INSTALLS),
    ("docs/start/getting-started.md", "cargo new thumbnails", INSTALLS),
    ("docs/start/getting-started.md", "cargo add duly", INSTALLS),
    ("docs/how-to/send-mail.md", "cargo new shop", INSTALLS),
    ("docs/how-to/send-mail.md", "curl -i", "the test of the page's program sends the same request"),
    ("docs/guide/securing.md", "docker compose", CONTAINER),
    ("docs/internals/benchmarks.md", "cd bench", "measures for hours"),
    ("RELEASING.md", "   git tag", "publishes a release"),
    ("packaging/README.md", "docker build", CONTAINER),
    ("packaging/README.md", "cargo build --release && packaging/make-manuals", SYSTEM),
    ("packaging/README.md", "systemd-run", SYSTEM),
    ("packaging/README.md", "cargo install cargo-deb", SYSTEM),
    ("packaging/README.md", "packaging/make-manuals", SYSTEM),
    ("packaging/README.md", "install -m 644 -t /etc/prometheus", SYSTEM),
];
const INSTALLS: &str = "adds crates from a registry";
const CONTAINER: &str = "needs a container engine";
const SYSTEM: &str = "changes the machine; packaging/check checks the files";

/// A text of a page, and its replacement.
pub(super) type Replacement = (&'static str, &'static str);

/// Shell lines that run before those of a page, and the texts that a reader of the page replaces. Lines that another
/// test runs become `:`.
const ASSUMED: &[(&str, &str, &[Replacement])] = &[
    ("README.md", "printf '#!/bin/sh\\n' > report.sh; chmod +x report.sh", &[]),
    ("CONTRIBUTING.md", "", &[("cargo run --example", ": "), ("cargo run --", "duly"), ("/tmp/", "./")]),
    ("cli/README.md", "", &[("cargo install", ": ")]),
    ("docs/start/getting-started.md", "", &[("\ncargo run", "\n:")]),
    (
        "docs/how-to/nightly-report.md",
        "duly --store report.db cron add nightly-report '0 3 * * *' --kind report.nightly
         id=$(duly --store report.db push report.nightly)",
        &[("jobs get ID", "jobs get $id")],
    ),
    // The second rule is rejected, which is the point of its block.
    ("docs/guide/cron.md", "", &[("--kind report\n", "--kind report && exit 1 || :\n")]),
    ("docs/guide/debugging.md", "duly push -- true; duly backup backup.db", &[]),
    (
        "docs/guide/managing-jobs.md",
        "id=$(duly push --max-attempts 1 -- false); duly work --until-empty
         group=$(duly dead ls --json | grep -o '\"id\": *\"[0-9a-f]*' | head -n 1 | grep -o '[0-9a-f]*$')
         duly push newsletter --in 1h; duly push mail --queue mail; duly push file --queue import",
        &[("0198c1f0-...", "$id"), ("5f0c7a9e1b2d3c44", "$group --yes"), ("queue:import  ", "queue:import --yes  ")],
    ),
    (
        "docs/guide/moving-stores.md",
        "duly push mail --queue mail; duly push image --queue images",
        &[
            ("redis://old.example.com?prefix=app", "redis://localhost"),
            ("rediss+cluster://a,b,c", "redis://localhost?prefix=new"),
            ("redis://:PASSWORD@redis.example.com", "redis://localhost?prefix=newer"),
        ],
    ),
    (
        "docs/guide/redis.md",
        "",
        &[
            ("redis-cli config resetstat; sleep 60", "duly work --queue other --exec true & sleep 2"),
            ("seq 1000", "seq 20"),
        ],
    ),
    ("docs/guide/securing.md", "", &[("create ada --role admin\n", "create eve --role admin\n")]),
    ("docs/guide/workers-in-any-language.md", "DULY=http://$DULY_LISTEN", &[]),
    ("docs/internals/sqlite-tables.md", "duly push -- true", &[]),
];
/// Declares a test for each page, and the list of these pages.
macro_rules! pages {
    ($list:ident, $run:path; $($(#[$attribute:meta])* $test:ident: $path:literal,)*) => {
        pub(super) const $list: &[&str] = &[$($path),*];
        $(#[test]
        $(#[$attribute])*
        fn $test() {
            $run($path);
        })*
    };
}

pages! { LOCAL_PAGES, run_page;
    readme: "README.md",
    contributing: "CONTRIBUTING.md",
    cli_readme: "cli/README.md",
    getting_started: "docs/start/getting-started.md",
    shell_commands: "docs/how-to/shell-commands.md",
    python_worker: "docs/how-to/python-worker.md",
    nightly_report: "docs/how-to/nightly-report.md",
    cron: "docs/guide/cron.md",
    dashboard: "docs/guide/dashboard.md",
    debugging: "docs/guide/debugging.md",
    durability: "docs/guide/durability.md",
    http: "docs/guide/http.md",
    managing_jobs: "docs/guide/managing-jobs.md",
    running: "docs/guide/running.md",
    securing: "docs/guide/securing.md",
    workers_in_any_language: "docs/guide/workers-in-any-language.md",
    sidekiq: "docs/migrating/sidekiq.md",
    sqlite_tables: "docs/internals/sqlite-tables.md",
}

/// The blocks that need a server.
mod redis {
    pages! { SERVER_PAGES, super::run_page_on_server;
        #[ignore = "needs servers: ./check stores"]
        readme: "README.md",
        #[ignore = "needs servers: ./check stores"]
        getting_started: "docs/start/getting-started.md",
        #[ignore = "needs servers: ./check stores"]
        debugging: "docs/guide/debugging.md",
        #[ignore = "needs servers: ./check stores"]
        deploying: "docs/guide/deploying.md",
        #[ignore = "needs servers: ./check stores"]
        moving_stores: "docs/guide/moving-stores.md",
        #[ignore = "needs servers: ./check stores"]
        redis: "docs/guide/redis.md",
        #[ignore = "needs servers: ./check stores"]
        sidekiq: "docs/migrating/sidekiq.md",
    }
}

fn is_not_run(path: &str, block: &CommandBlock) -> bool {
    NOT_RUN.iter().any(|(page, start, _)| *page == path && block.first_line().starts_with(start))
}

fn needs_server(block: &CommandBlock) -> bool {
    ["redis:", "redis+", "redis-cli", "rediss", "sidekiq:"].iter().any(|word| block.commands.contains(word))
}

fn run_blocks(path: &str, server: Option<&Server>) {
    let blocks = command_blocks(&document(path)).into_iter().filter(|block| !is_not_run(path, block));
    let blocks: Vec<_> = blocks.filter(|block| needs_server(block) == server.is_some()).collect();
    assert!(!blocks.is_empty(), "{path} has no such block; remove it from the list");
    let assumed = ASSUMED.iter().find(|(page, ..)| *page == path);
    let (before, replace) = assumed.map_or(("", &[][..]), |(_, before, replace)| (before, replace));
    run(&Page { before, replace, server }, &blocks);
}

fn run_page(path: &str) {
    run_blocks(path, None);
}

fn run_page_on_server(path: &str) {
    run_blocks(path, Some(&Options::durable(Binary::Redis).start()));
}

#[test]
fn every_command_block_runs_or_is_listed() {
    let blocks = all_command_blocks();
    for (path, block) in &blocks {
        let pages = if needs_server(block) { redis::SERVER_PAGES } else { LOCAL_PAGES };
        let runs = pages.contains(&path.as_str());
        assert!(runs || is_not_run(path, block), "no test runs {path}:{}: {}", block.line, block.first_line());
    }
    for (page, start, _) in NOT_RUN {
        let matches = blocks.iter().filter(|(path, block)| path == page && block.first_line().starts_with(start));
        assert!(matches.count() > 0, "{page} has no block that begins with {start:?}; remove it from NOT_RUN");
    }
}
