//! `duly sql`: looks into a SQLite store with plain SQL, and cannot write.

use std::io::{BufRead, IsTerminal, Read, Write};

use clap::Args;
use duly::{Sql, SqlTable};
use serde_json::{Map, Value};

use crate::escape::safe;
use crate::exit::{self, Fail};
use crate::output::{Format, Out};
use crate::{Setup, store};

/// The longest text that is read as one query.
const QUERY_BYTES_MAX: u64 = 1024 * 1024;
const HELP: &str = "End a query with ;  Also: .tables  .schema  .quit";
const TABLES: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'duly%' ORDER BY name";
const SCHEMA: &str = "SELECT sql FROM sqlite_schema WHERE name LIKE 'duly%' AND sql IS NOT NULL ORDER BY name";

/// Look into a SQLite store with SQL; nothing can be written
///
/// The query comes as an argument or from stdin; at a terminal without one, queries are asked for.
#[derive(Debug, Args)]
pub(crate) struct Query {
    /// One SQL statement
    query: Option<String>,
}

pub(crate) fn run(verb: Query, setup: &Setup) -> anyhow::Result<()> {
    let url = store::url(setup)?;
    store::must_be_there(&url, store::NOT_THERE)?;
    let sql = Sql::open(&url)?;
    match verb.query {
        Some(query) => show(&sql.query(&query)?, &setup.out),
        None if std::io::stdin().is_terminal() => prompt(&sql, &setup.out),
        None => show(&sql.query(&from_stdin()?)?, &setup.out),
    }
}

fn from_stdin() -> anyhow::Result<String> {
    let mut query = Vec::new();
    std::io::stdin().lock().take(QUERY_BYTES_MAX + 1).read_to_end(&mut query)?;
    if query.len() as u64 > QUERY_BYTES_MAX {
        return Err(Fail::new(exit::USAGE, format!("query: more than {QUERY_BYTES_MAX} bytes")));
    }
    String::from_utf8(query).map_err(|_| Fail::new(exit::USAGE, "query: what came on stdin is not UTF-8 text"))
}

/// Query after query, until the input ends. A mistake is told, and ends nothing.
fn prompt(sql: &Sql, out: &Out) -> anyhow::Result<()> {
    out.say(HELP);
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
            ".tables" => TABLES,
            ".schema" => SCHEMA,
            ".help" => {
                out.say(HELP);
                query.clear();
                continue;
            }
            text if text.ends_with(';') || text.len() as u64 >= QUERY_BYTES_MAX => text,
            _ => continue,
        };
        match sql.query(text) {
            Ok(table) => show(&table, out)?,
            Err(error) => exit::say(&error.to_string()),
        }
        query.clear();
    }
}

fn show(table: &SqlTable, out: &Out) -> anyhow::Result<()> {
    match out.format {
        Format::Json => out.json(&table.rows.iter().map(|row| object(table, row)).collect::<Vec<_>>())?,
        Format::Ndjson => table.rows.iter().try_for_each(|row| out.json(&object(table, row)))?,
        Format::Table | Format::Wide => {
            let mut lines = vec![table.columns.clone()];
            lines.extend(table.rows.iter().map(|row| row.iter().map(cell).collect()));
            columns(&lines).iter().try_for_each(|line| out.line(line))?;
        }
    }
    if table.more {
        out.say(&format!("there are more than {} rows: say LIMIT", table.rows.len()));
    }
    Ok(())
}

fn object(table: &SqlTable, row: &[Value]) -> Value {
    Value::Object(table.columns.iter().cloned().zip(row.iter().cloned()).collect::<Map<_, _>>())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => safe(text).into_owned(),
        other => other.to_string(),
    }
}

/// Lines whose columns are as wide as their widest cell.
fn columns(lines: &[Vec<String>]) -> Vec<String> {
    let width =
        |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines.first().map_or(0, Vec::len)).map(width).collect();
    let line = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let lines = [vec!["a".to_owned(), "long name".to_owned()], vec!["wide cell".to_owned(), "x".to_owned()]];
        assert_eq!(columns(&lines), ["a          long name", "wide cell  x"]);
        assert_eq!(columns(&[]), Vec::<String>::new());
    }
}
