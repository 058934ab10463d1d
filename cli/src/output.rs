//! Data on stdout in the requested format; messages on stderr.

use std::io::{IsTerminal, Write};

use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

use serde_json::Map;

use crate::escape::{escape_json, escape_text};
use crate::logs::{self, Level};

pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();

/// Returns text in a style; anstream removes the style if the stream does not support it.
pub(crate) fn paint(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// `1 job`, `2 jobs`.
pub(crate) fn pluralize(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The format of data on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people
    Table,
    /// One JSON document
    Json,
    /// One JSON document per line
    Ndjson,
    /// More columns
    Wide,
}

/// The output of a verb.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) format: Format,
    quiet: bool,
}

impl Output {
    pub(crate) fn new(format: Format, quiet: bool) -> Self {
        Output { format, quiet }
    }

    pub(crate) fn is_json(&self) -> bool {
        matches!(self.format, Format::Json | Format::Ndjson)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints a line of data.
    pub(crate) fn print_line(&self, line: &str) -> anyhow::Result<()> {
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{line}")?;
        Ok(stdout.flush()?)
    }

    /// Prints one value as JSON: indented in `json`, on a single line in `ndjson`.
    pub(crate) fn print_json(&self, value: &impl Serialize) -> anyhow::Result<()> {
        if self.format == Format::Ndjson {
            return self.print_line(&escape_json(&serde_json::to_string(value)?, true));
        }
        self.print_line(&escape_json(&serde_json::to_string_pretty(value)?, false))
    }

    /// Prints a table for people. The cells are untrusted data, so this escapes them.
    pub(crate) fn print_table<const N: usize>(&self, head: [&str; N], rows: Vec<[String; N]>) -> anyhow::Result<()> {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(head);
        for row in &rows {
            table.add_row(row.iter().map(|cell| escape_text(cell).into_owned()));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let text = table.trim_fmt();
        let (head, body) = text.split_once('\n').unwrap_or((text.as_str(), ""));
        self.print_line(&paint(BOLD, head))?;
        if body.is_empty() { Ok(()) } else { self.print_line(body) }
    }

    /// Prints a message on stderr unless `--quiet` is set.
    pub(crate) fn print_message(&self, message: &str) {
        if self.quiet {
            return;
        }
        match logs::is_json() {
            true => logs::print_line(Level::Info, message, Map::new()),
            // A closed stderr is not an error.
            false => drop(writeln!(anstream::stderr().lock(), "{message}")),
        }
    }

    /// Prints a message for people: only if stderr is a terminal, and not in JSON logs.
    pub(crate) fn print_hint(&self, message: &str) {
        if std::io::stderr().is_terminal() && !logs::is_json() {
            self.print_message(message);
        }
    }
}
