//! Read-only SQL on the file of a store.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::store::StoreUrl;
use crate::store::sqlite::{errors, file};

/// Most rows that one query returns.
pub const SQL_ROWS_MAX: usize = 100_000;

/// A SQLite store, opened for read-only SQL.
#[derive(Debug)]
pub struct ReadOnlySql {
    conn: Connection,
}

/// The result of a query.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SqlTable {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows. A blob becomes hexadecimal text; a blob of 16 bytes is written as an id with hyphens.
    pub rows: Vec<Vec<Value>>,
    /// There are more than [`SQL_ROWS_MAX`] rows.
    pub truncated: bool,
}

impl ReadOnlySql {
    /// Opens the file of an existing store.
    pub fn open(url: &str) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        let path = url
            .file()
            .ok_or_else(|| Error::invalid("store", "only a SQLite file can run SQL; give the path of one"))?;
        if !path.is_file() {
            return Err(Error::not_found_with_advice("file", path.display(), "give the path of an existing store"));
        }
        ReadOnlySql::connect(path).map_err(|e| errors::from_sqlite("sql", e))
    }

    fn connect(path: &Path) -> rusqlite::Result<Self> {
        let mut conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        conn.busy_handler(Some(file::wait_while_busy))?;
        file::enable_defensive_mode(&conn)?;
        conn.execute_batch("PRAGMA query_only = ON; PRAGMA trusted_schema = OFF;")?;
        Ok(ReadOnlySql { conn })
    }

    /// Runs one statement, which must not write.
    pub fn query(&self, query: &str) -> Result<SqlTable> {
        let wrong = |e: rusqlite::Error| Error::invalid("query", e.to_string());
        let query = skip_leading_comments(query);
        if query.is_empty() {
            return Err(Error::invalid("query", "must not be empty; write a SELECT"));
        }
        let mut statement = self.conn.prepare(query).map_err(wrong)?;
        // The connection cannot write, but an ATTACH could reach another file.
        if !statement.readonly() || !is_read_only(query) {
            return Err(Error::invalid(
                "query",
                "would write, and SQL is read-only here; use duly's commands to change the store",
            ));
        }
        // `column_names` returns another type in older versions of rusqlite.
        let names = (0..statement.column_count()).map(|column| statement.column_name(column).map(str::to_owned));
        let columns = names.collect::<rusqlite::Result<Vec<String>>>().map_err(wrong)?;
        let mut table = SqlTable { columns, ..SqlTable::default() };
        let mut rows = statement.query([]).map_err(wrong)?;
        while let Some(row) = rows.next().map_err(wrong)? {
            if table.rows.len() == SQL_ROWS_MAX {
                table.truncated = true;
                break;
            }
            let cells = (0..table.columns.len()).map(|at| row.get_ref(at).map(to_json));
            table.rows.push(cells.collect::<rusqlite::Result<_>>().map_err(wrong)?);
        }
        Ok(table)
    }
}

/// Returns the query without leading comments and semicolons.
fn skip_leading_comments(query: &str) -> &str {
    let mut rest = query.trim_start();
    loop {
        let after = match rest.get(..2) {
            Some("--") => Some(rest.split_once('\n').map_or("", |(_, after)| after)),
            Some("/*") => Some(rest.split_once("*/").map_or("", |(_, after)| after)),
            _ => rest.strip_prefix(';'),
        };
        match after {
            Some(after) => rest = after.trim_start(),
            None => return rest,
        }
    }
}

/// Returns whether a statement starts like one that only reads.
fn is_read_only(query: &str) -> bool {
    let rest = skip_leading_comments(query);
    let word: String = rest.chars().take_while(char::is_ascii_alphabetic).collect::<String>().to_ascii_uppercase();
    match word.as_str() {
        "SELECT" | "WITH" | "VALUES" | "EXPLAIN" => true,
        "PRAGMA" => !rest.contains('='),
        _ => false,
    }
}

fn to_json(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(bytes) => match uuid::Uuid::from_slice(bytes) {
            Ok(id) => id.hyphenated().to_string().into(),
            Err(_) => bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::config::DbConfig;

    use super::*;

    fn open_new_store() -> (tempfile::TempDir, ReadOnlySql) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("duly.db");
        drop(crate::store::sqlite::Sqlite::open(&path, &crate::store::StoreOptions::default()).expect("opens"));
        let sql = ReadOnlySql::open(path.to_str().expect("a plain path")).expect("opens");
        (dir, sql)
    }

    #[test]
    fn query_returns_columns_and_rows() {
        let (_dir, sql) = open_new_store();
        let table = sql.query(
            "SELECT name, value, x'00112233445566778899aabbccddeeff' AS id, x'0a', 1.5, NULL
               FROM duly_meta WHERE name = 'format'",
        );
        let table = table.expect("reads");
        assert_eq!(table.columns[..3], ["name", "value", "id"]);
        let id = "00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(table.rows, [vec!["format".into(), "1".into(), id.into(), "0a".into(), 1.5.into(), Value::Null]]);
    }

    #[test]
    fn writing_statements_are_rejected() {
        let (dir, sql) = open_new_store();
        let other = dir.path().join("other.db");
        let attach = format!("ATTACH '{}' AS other", other.display());
        let into = format!("VACUUM INTO '{}'", other.display());
        for query in [
            "DELETE FROM duly_job",
            "CREATE TABLE t (x)",
            "DROP TABLE duly_job",
            "PRAGMA journal_mode = DELETE",
            "PRAGMA user_version = 7",
            "SELECT 1; DELETE FROM duly_job",
            &attach,
            &format!("/* a */ -- b\n ; {attach}"),
            &into,
        ] {
            assert_eq!(sql.query(query).map(|table| table.rows).err().map(|e| e.code()), Some("invalid"), "{query}");
        }
        assert!(!other.exists());
    }

    #[test]
    fn connection_is_in_defensive_mode() {
        let (_dir, sql) = open_new_store();
        assert!(sql.conn.db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE).expect("reads"));
    }

    #[test]
    fn invalid_queries_and_urls_are_rejected() {
        let (_dir, sql) = open_new_store();
        for query in ["", "SELEC", "SELECT * FROM nothing", "\0", "SELECT ?1"] {
            let _ = sql.query(query).map_err(|error| assert_eq!(error.code(), "invalid", "{query}"));
        }
        assert_eq!(ReadOnlySql::open("/nowhere/duly.db").map(drop).expect_err("is not there").code(), "not_found");
        assert_eq!(ReadOnlySql::open(":memory:").map(drop).expect_err("is no file").code(), "invalid");
    }
}
