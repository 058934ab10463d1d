//! `duly completions` and `duly man`: shell completions and manual pages, generated from the command line's definition.

use std::io::Write;

use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::complete::COMPLETE_ENV;
use crate::help;

/// Print completions for a shell
///
/// They complete options, and also queues, kinds, cron rules, locks, nodes and jobs of the store.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

/// Print the manual page of duly or of one verb
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// A verb, such as `push` or `jobs ls`
    verb: Vec<String>,
}

pub(crate) fn print_completions(verb: &CompletionsArgs) -> anyhow::Result<()> {
    let (shells, name) = (Shells::builtins(), verb.shell.to_string());
    let shell = shells.completer(&name).with_context(|| format!("there are no completions for {name}"))?;
    let mut text = Vec::new();
    shell.write_registration(COMPLETE_ENV, "duly", "duly", "duly", &mut text)?;
    Ok(std::io::stdout().lock().write_all(&text)?)
}

pub(crate) fn print_man_page(verb: &ManArgs) -> anyhow::Result<()> {
    let mut command = help::command();
    command.build();
    let mut found = command;
    for word in &verb.verb {
        let next = found.find_subcommand(word).cloned();
        let unknown =
            || crate::exit::CliError::new(crate::exit::USAGE, format!("man: no verb {word:?}; see duly --help"));
        found = next.ok_or_else(unknown)?;
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(found).render(&mut text)?;
    Ok(std::io::stdout().lock().write_all(&text)?)
}
