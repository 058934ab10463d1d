//! `duly sql`: queries a SQLite store with SQL, read-only.

use std::io::{BufRead, IsTerminal, Read, Write};

use clap::Args;
use duly::admin::{ReadOnlySql, SqlTable};
use serde_json::{Map, Value};

use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::{Format, Output};
use crate::{Setup, store};

/// The longest query.
const QUERY_BYTES_MAX: u64 = 1024 * 1024;
const PROMPT_HELP: &str = "End a query with ;  Also: .tables  .schema  .quit";
const TABLES_QUERY: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'duly%' ORDER BY name";
const SCHEMA_QUERY: &str = "SELECT sql FROM sqlite_schema WHERE name LIKE 'duly%' AND sql IS NOT NULL ORDER BY name";

/// Query a SQLite store with SQL, read-only
///
/// The query is an argument or comes from stdin; at a terminal without one, prompts for queries.
#[derive(Debug, Args)]
pub(crate) struct SqlArgs {
    /// One SQL statement
    query: Option<String>,
}

pub(crate) fn run(verb: SqlArgs, setup: &Setup) -> anyhow::Result<()> {
    let url = store::resolve_url(setup)?;
    store::check_exists(&url, store::MISSING_STORE_HINT)?;
    let sql = ReadOnlySql::open(&url)?;
    match verb.query {
        Some(query) => print_result(&sql.query(&query)?, &setup.out),
        None if std::io::stdin().is_terminal() => run_prompt(&sql, &setup.out),
        None => print_result(&sql.query(&read_query_from_stdin()?)?, &setup.out),
    }
}

fn read_query_from_stdin() -> anyhow::Result<String> {
    let mut query = Vec::new();
    std::io::stdin().lock().take(QUERY_BYTES_MAX + 1).read_to_end(&mut query)?;
    if query.len() as u64 > QUERY_BYTES_MAX {
        return Err(CliError::new(exit::USAGE, format!("query: more than {QUERY_BYTES_MAX} bytes")));
    }
    String::from_utf8(query).map_err(|_| CliError::new(exit::USAGE, "query: stdin is not UTF-8 text"))
}

/// Reads and runs queries until the input ends. Prints errors and continues.
fn run_prompt(sql: &ReadOnlySql, out: &Output) -> anyhow::Result<()> {
    out.print_message(PROMPT_HELP);
    let mut query = String::new();
    loop {
        write!(anstream::stderr(), "{}", if query.is_empty() { "duly> " } else { "  ... " })?;
        let read = std::io::stdin().lock().take(QUERY_BYTES_MAX).read_line(&mut query)?;
        let text = match query.trim() {
            _ if read == 0 => return Ok(()),
            "" => {
                query.clear();
                continue;
            }
            ".quit" | ".exit" => return Ok(()),
            ".tables" => TABLES_QUERY,
            ".schema" => SCHEMA_QUERY,
            ".help" => {
                out.print_message(PROMPT_HELP);
                query.clear();
                continue;
            }
            text if text.ends_with(';') || text.len() as u64 >= QUERY_BYTES_MAX => text,
            _ => continue,
        };
        match sql.query(text) {
            Ok(table) => print_result(&table, out)?,
            Err(error) => exit::print_error(&error.to_string()),
        }
        query.clear();
    }
}

fn print_result(table: &SqlTable, out: &Output) -> anyhow::Result<()> {
    match out.format {
        Format::Json => out.print_json(&table.rows.iter().map(|row| row_to_json(table, row)).collect::<Vec<_>>())?,
        Format::Ndjson => table.rows.iter().try_for_each(|row| out.print_json(&row_to_json(table, row)))?,
        Format::Table | Format::Wide | Format::Name => {
            let mut lines = vec![table.columns.clone()];
            lines.extend(table.rows.iter().map(|row| row.iter().map(format_cell).collect()));
            align_columns(&lines).iter().try_for_each(|line| out.print_line(line))?;
        }
    }
    if table.truncated {
        out.print_message(&format!("the query has more than {} rows; add a LIMIT to it", table.rows.len()));
    }
    Ok(())
}

fn row_to_json(table: &SqlTable, row: &[Value]) -> Value {
    Value::Object(table.columns.iter().cloned().zip(row.iter().cloned()).collect::<Map<_, _>>())
}

fn format_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escape_text(text).into_owned(),
        other => other.to_string(),
    }
}

/// Pads the cells of each column to the width of the widest one.
fn align_columns(lines: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..lines.first().map_or(0, Vec::len)).map(width).collect();
    let align = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(align).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let lines = [vec!["a".to_owned(), "long name".to_owned()], vec!["wide cell".to_owned(), "x".to_owned()]];
        assert_eq!(align_columns(&lines), ["a          long name", "wide cell  x"]);
        assert_eq!(align_columns(&[]), Vec::<String>::new());
    }
}
