//! `duly completions` and `duly man`: shell completions and manual pages, generated from the command line's definition.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;

/// Print completions for a shell
///
/// For bash: duly completions bash > ~/.local/share/bash-completion/completions/duly
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
    let mut text = Vec::new();
    clap_complete::generate(verb.shell, &mut Cli::command(), "duly", &mut text);
    Ok(std::io::stdout().lock().write_all(&text)?)
}

pub(crate) fn print_man_page(verb: &ManArgs) -> anyhow::Result<()> {
    let mut command = Cli::command();
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
