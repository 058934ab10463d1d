//! The `duly` command: pushes, runs and manages durable jobs.
//!
//! It contains no job logic: each verb parses its arguments, calls [`duly::Duly`] and prints the result.

mod admin_token;
mod api_client;
mod args;
mod audit;
mod backend;
mod backup;
mod bulk;
mod call;
mod child;
mod complete;
mod config;
mod cron;
mod dead;
mod demo;
mod doctor;
mod escape;
mod events;
mod examples;
mod exec;
mod exit;
mod file_owner;
mod help;
mod input;
mod job;
mod job_logs;
mod jobs;
mod lock;
mod logs;
mod manual;
mod ndjson;
mod nodes;
mod open;
mod open_files;
mod output;
mod printer;
mod push;
mod queues;
mod serve;
mod sql;
mod stats;
mod store;
mod sync;
mod systemd;
mod time;
mod token;
#[cfg(feature = "tui")]
mod top;
mod transfer;
mod verify;
mod wait;
mod watch;
mod why;
mod work;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::FromArgMatches;
use clap_complete::CompleteEnv;
use tokio::runtime::Builder;

use crate::args::{Cli, Verb};
use crate::config::Config;
use crate::exit::{CliError, SilentExit};
use crate::output::Output;

/// The settings that all verbs share.
pub(crate) struct Setup {
    /// The output format and its streams.
    pub(crate) out: Output,
    /// The settings from `duly.toml`.
    pub(crate) config: Config,
    /// The value of `--store`, without environment and defaults.
    pub(crate) store_flag: Option<String>,
    /// The URL of the server to use instead of a store.
    pub(crate) server: Option<String>,
    /// Skips all confirmation prompts.
    pub(crate) yes: bool,
}

fn main() -> ExitCode {
    logs::detect_format();
    // Ends the process if a shell asks for completions.
    CompleteEnv::with_factory(help::command).var(complete::COMPLETE_ENV).complete();
    let parsed = help::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return exit::report_usage_error(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report_error(&error),
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let global = cli.global;
    global.color.write_global();
    // Children of jobs start through this binary: they must not read settings or start a runtime.
    let verb = match cli.verb {
        // Without a verb, a terminal session runs `up`; a script gets the help text and a usage error.
        None if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() => Verb::Up(serve::UpArgs::default()),
        None => {
            help::command().print_help()?;
            return Err(SilentExit(exit::USAGE).into());
        }
        Some(verb) => verb,
    };
    let verb = match verb {
        Verb::RunChild(child) => return child::exec_program(&child),
        Verb::GuardChildren => return child::guard_children(),
        Verb::Completions(completions) => return manual::print_completions(&completions),
        Verb::Man(man) => return manual::print_man_page(&man),
        verb => verb,
    };
    let config = Config::load(global.config.as_deref())?;
    logs::init_logging(&global, &config, matches!(verb, Verb::Serve(_) | Verb::Up(_)))?;
    let setup = Setup {
        out: Output::new(global.format(), global.quiet),
        config,
        store_flag: global.store,
        server: global.server,
        yes: global.yes,
    };
    if setup.server.is_some() && setup.store_flag.is_some() {
        return Err(CliError::new(exit::USAGE, "both --server and --store are given; leave one of them out"));
    }
    if let (Some(_), Some(name)) = (&setup.server, verb.store_only_name()) {
        return Err(backend::needs_store(name));
    }
    if matches!(verb, Verb::Work(_) | Verb::Serve(_) | Verb::Up(_)) {
        hide_environment();
    }
    // Only verbs that run jobs or serve requests need several threads.
    let needs_threads =
        matches!(verb, Verb::Work(_) | Verb::Serve(_) | Verb::Up(_) | Verb::Demo(_) | Verb::DemoWorker(_));
    let mut builder = if needs_threads { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    let runtime = builder.enable_all().build().context("cannot start threads")?;
    let result = runtime.block_on(run_verb(verb, setup));
    // An abandoned read of the terminal must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Keeps other processes of this user from reading the environment and memory of this one: a command that a job runs
/// must not find the secrets that it did not inherit in `/proc`. Root can still read them.
fn hide_environment() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "other processes of this user can read the environment of this one");
    }
}

async fn run_verb(verb: Verb, setup: Setup) -> anyhow::Result<()> {
    match verb {
        Verb::Push(verb) => push::run(verb, &setup).await,
        Verb::Work(verb) => work::run(verb, setup).await,
        Verb::Jobs(verb) => jobs::run(verb, &setup).await,
        Verb::Logs(verb) => job_logs::run(&backend::Backend::open_existing(&setup).await?, verb, &setup.out).await,
        Verb::Queues(verb) => queues::run(verb, &setup).await,
        Verb::Cron(verb) => cron::run(verb, &setup).await,
        Verb::Dead(verb) => dead::run(verb, &setup).await,
        Verb::Stats(verb) => stats::run(verb, &setup).await,
        Verb::Nodes(verb) => nodes::run(verb, &setup).await,
        Verb::Lock(verb) => lock::run(verb, &setup).await,
        Verb::Call(verb) => call::run(verb, &setup).await,
        Verb::Move(verb) => transfer::run(verb, &setup).await,
        Verb::Serve(verb) => serve::run(verb, &setup).await,
        Verb::Up(verb) => serve::run_up(verb, setup).await,
        Verb::Open(verb) => open::run(&verb, &setup).await,
        Verb::Token(verb) => token::run(verb, &setup).await,
        Verb::Openapi => setup.out.print_line(duly_http::openapi().trim_end()),
        #[cfg(feature = "tui")]
        Verb::Top(verb) => top::run(verb, &setup).await,
        Verb::Verify(verb) => verify::run(verb, &setup).await,
        Verb::Backup(verb) => backup::run(verb, &setup).await,
        Verb::Sql(verb) => sql::run(verb, &setup),
        Verb::Doctor(doctor) => doctor::run(&setup, &doctor).await,
        Verb::Demo(verb) => demo::run(verb, &setup).await,
        Verb::DemoWorker(verb) => demo::worker::run(verb, &setup).await,
        Verb::Version => setup.out.print_line(&format!("duly {}", env!("CARGO_PKG_VERSION"))),
        // `run` handles these before it starts the runtime.
        Verb::RunChild(_) | Verb::GuardChildren | Verb::Completions(_) | Verb::Man(_) => Ok(()),
    }
}
