//! The command line: global options and the list of verbs. Each verb declares its options in its own file.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::output::Format;
use crate::{call, child, cron, dead, demo, jobs, lock, nodes, push, queues, stats, transfer, work};

/// Durable jobs that run on time, kept in a SQLite file without a server, or on Redis or Valkey
#[derive(Debug, Parser)]
#[command(name = "duly", version, subcommand_required = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    /// Without a verb, `up` if stdin and stdout are a terminal.
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The store: the path of a file or the URL of a server (`redis://host`), with options such as
    /// `jobs.db?keep=1h` [env: DULY_STORE] [default: ./duly.db]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// Use the `duly serve` at this URL, such as http://127.0.0.1:7711, instead of a store; the token is read from
    /// DULY_TOKEN
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,

    /// The output format: tables for people, json or ndjson (the JSON of the HTTP API) for scripts
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    output: Format,

    /// The same as -o json
    #[arg(long, global = true, conflicts_with = "output")]
    json: bool,

    /// Print only data and errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Print more messages on stderr: -v for events, -vv for everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// The format of logs on stderr
    #[arg(long, global = true, value_enum, value_name = "FORMAT", env = "DULY_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormat>,

    /// The logs to show, such as `info` or `duly=debug`; overrides -v
    #[arg(long, global = true, value_name = "FILTER", env = "DULY_LOG", hide = true)]
    pub(crate) log: Option<String>,

    /// When to use colours; by default only on a terminal, and never if NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Color::Auto)]
    pub(crate) color: Color,

    /// The settings file [default: ./duly.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Skip all questions
    #[arg(short = 'y', long, global = true)]
    pub(crate) yes: bool,
}

impl Global {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

impl Color {
    /// Applies this choice to every stream of anstream.
    pub(crate) fn write_global(self) {
        match self {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::AlwaysAnsi,
            Color::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Push(push::PushArgs),
    Work(work::WorkArgs),
    #[command(subcommand)]
    Jobs(jobs::JobsVerb),
    Logs(crate::job_logs::LogsArgs),
    #[command(subcommand)]
    Queues(queues::QueuesVerb),
    #[command(subcommand)]
    Cron(cron::CronVerb),
    #[command(subcommand)]
    Dead(dead::DeadVerb),
    Stats(stats::StatsArgs),
    #[command(subcommand)]
    Nodes(nodes::NodesVerb),
    Lock(lock::LockArgs),
    Call(call::CallArgs),
    Move(transfer::MoveArgs),
    Serve(crate::serve::ServeArgs),
    Up(crate::serve::UpArgs),
    Open(crate::open::OpenArgs),
    #[command(subcommand)]
    Token(crate::token::TokenVerb),
    /// Print the description of the HTTP API (OpenAPI)
    Openapi,
    #[cfg(feature = "tui")]
    Top(crate::top::TopArgs),
    Verify(crate::verify::VerifyArgs),
    Backup(crate::backup::BackupArgs),
    Sql(crate::sql::SqlArgs),
    Completions(crate::manual::CompletionsArgs),
    Man(crate::manual::ManArgs),
    Doctor(crate::doctor::DoctorArgs),
    Demo(demo::DemoArgs),
    /// Print the version
    Version,
    #[command(hide = true)]
    RunChild(child::RunChildArgs),
    /// Kills the children of a worker that has died
    #[command(hide = true)]
    GuardChildren,
    #[command(hide = true)]
    DemoWorker(demo::worker::DemoWorkerArgs),
}

impl Verb {
    /// Returns the name of a verb that needs a store and cannot use a server.
    pub(crate) fn store_only_name(&self) -> Option<&'static str> {
        match self {
            Verb::Work(_) => Some("work"),
            Verb::Lock(lock) if lock.acquires() => Some("holding a lock for a command"),
            Verb::Move(_) => Some("move"),
            Verb::Serve(_) => Some("serve"),
            Verb::Up(_) => Some("up"),
            Verb::Verify(_) => Some("verify"),
            Verb::Backup(_) => Some("backup"),
            Verb::Sql(_) => Some("sql"),
            Verb::Doctor(_) => Some("doctor"),
            Verb::Demo(_) => Some("demo"),
            _ => None,
        }
    }
}
