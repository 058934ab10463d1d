//! Data on stdout in the requested format; messages on stderr.

use std::io::{IsTerminal, Write};

use clap::builder::styling::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Table};
use serde::Serialize;

use serde_json::Map;

use crate::escape::{escape_json, escape_text};
use crate::exit::{self, CliError};
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
    /// Only ids or names, one per line, for xargs
    Name,
}

/// A column of a list.
pub(crate) struct Column<T> {
    head: &'static str,
    /// Only with `-o wide`, or if it is chosen.
    is_wide: bool,
    cell: fn(&T) -> String,
}

impl<T> Column<T> {
    pub(crate) const fn new(head: &'static str, cell: fn(&T) -> String) -> Self {
        Column { head, is_wide: false, cell }
    }

    pub(crate) const fn wide(head: &'static str, cell: fn(&T) -> String) -> Self {
        Column { head, is_wide: true, cell }
    }

    /// Returns the name for `--columns`: `late_p50` for the column `LATE ~P50`.
    fn name(&self) -> String {
        self.head.to_ascii_lowercase().replace('~', "").replace(' ', "_")
    }
}

/// The columns of a list.
#[derive(Debug, Default, Args)]
pub(crate) struct ColumnArgs {
    /// Only these columns, in this order, such as `id,state`; a wrong name prints all names
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    columns: Vec<String>,
}

impl ColumnArgs {
    /// Returns these columns, or the others if none is chosen.
    pub(crate) fn or_else(self, names: &[&str]) -> Self {
        match self.columns.is_empty() {
            true => ColumnArgs { columns: names.iter().map(|name| (*name).to_owned()).collect() },
            false => self,
        }
    }
}

/// A list for people and for scripts. Its first column has the id or the name of an item.
pub(crate) struct List<'l, T> {
    pub(crate) items: &'l [T],
    pub(crate) columns: &'l [Column<T>],
    pub(crate) chosen: &'l ColumnArgs,
    /// The message for an empty list, such as `no jobs match`.
    pub(crate) empty: &'l str,
}

impl<'l, T> List<'l, T> {
    /// Returns the columns to print.
    fn shown_columns(&self, is_wide: bool) -> anyhow::Result<Vec<&'l Column<T>>> {
        let chosen = &self.chosen.columns;
        if chosen.is_empty() {
            return Ok(self.columns.iter().filter(|column| is_wide || !column.is_wide).collect());
        }
        let find = |name: &String| {
            let name = name.trim().to_ascii_lowercase();
            let found = self.columns.iter().find(|column| column.name() == name);
            found.ok_or_else(|| {
                let names: Vec<String> = self.columns.iter().map(Column::name).collect();
                let reason = format!("there is no column {name:?}; the columns are {}", names.join(", "));
                CliError::new(exit::USAGE, format!("columns: {reason}"))
            })
        };
        chosen.iter().map(find).collect()
    }
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

    /// Prints a list: the document of the API as JSON, its items as lines of JSON, or a table.
    pub(crate) fn print_list<T: Serialize>(&self, document: &impl Serialize, list: &List<'_, T>) -> anyhow::Result<()> {
        // Wrong names are an error in every format.
        let columns = list.shown_columns(self.format == Format::Wide)?;
        match self.format {
            Format::Json => return self.print_json(document),
            Format::Ndjson => return list.items.iter().try_for_each(|item| self.print_json(item)),
            _ if list.items.is_empty() => {
                self.print_message(list.empty);
                return Ok(());
            }
            Format::Name => {
                let names = list.items.iter().zip(std::iter::repeat(list.columns.first()));
                let names = names.filter_map(|(item, column)| Some((column?.cell)(item)));
                return names.into_iter().try_for_each(|name| self.print_line(&escape_text(&name)));
            }
            Format::Table | Format::Wide => {}
        }
        let rows = list.items.iter().map(|item| columns.iter().map(|column| (column.cell)(item)).collect());
        self.print_rows(columns.iter().map(|column| column.head).collect(), rows.collect())
    }

    /// Prints a table for people.
    pub(crate) fn print_table<const N: usize>(&self, head: [&str; N], rows: Vec<[String; N]>) -> anyhow::Result<()> {
        self.print_rows(head.to_vec(), rows.into_iter().map(Vec::from).collect())
    }

    /// Prints a table for people. The cells are untrusted data, so this escapes them.
    fn print_rows(&self, head: Vec<&str>, rows: Vec<Vec<String>>) -> anyhow::Result<()> {
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
