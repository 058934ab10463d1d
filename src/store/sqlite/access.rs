//! Tokens and audit entries in the file.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::Sqlite;
use super::tx::Tx;
use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::store::{
    AccessStore, AuditBounds, AuditEntry, AuditOutcome, AuditRecord, NewToken, Role, TOKENS_MAX, Token,
};

#[async_trait]
impl AccessStore for Sqlite {
    async fn add_token(&self, token: &NewToken) -> Result<bool> {
        let token = token.clone();
        self.writer.write("add_token", move |tx| add_token(tx, &token)).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.writer.write("remove_token", move |tx| remove_token(tx, &name)).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.query("tokens", tokens).await
    }

    async fn secret(&self, fresh: &str) -> Result<String> {
        if let Some(secret) = self.query("secret", secret).await? {
            return Ok(secret);
        }
        let fresh = fresh.to_owned();
        self.writer.write("secret", move |tx| add_secret(tx, &fresh)).await
    }

    async fn add_audit_entry(&self, entry: &AuditEntry, bounds: AuditBounds) -> Result<()> {
        let entry = entry.clone();
        self.writer.write("add_audit_entry", move |tx| add_audit_entry(tx, &entry, bounds)).await
    }

    async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        self.query("audit_entries", move |conn| audit_entries(conn, before, limit)).await
    }
}

/// Implements `AccessStore::add_token`.
pub(super) fn add_token(tx: &Tx<'_>, token: &NewToken) -> rusqlite::Result<bool> {
    let expires = token.ttl.map(|lasts| tx.now + micros(lasts));
    let added = tx
        .statement(
            "INSERT INTO duly_token (name, role, hash, created_at, expires_at)
             SELECT ?1, ?2, ?3, ?4, ?5 WHERE (SELECT COUNT(*) FROM duly_token) < ?6
             ON CONFLICT (name) DO NOTHING",
        )?
        .execute(params![token.name, token.role.as_str(), token.hash, tx.now, expires, TOKENS_MAX])?;
    Ok(added > 0)
}

/// Implements `AccessStore::remove_token`.
pub(super) fn remove_token(tx: &Tx<'_>, name: &str) -> rusqlite::Result<bool> {
    Ok(tx.statement("DELETE FROM duly_token WHERE name = ?1")?.execute([name])? > 0)
}

/// Implements `AccessStore::tokens`.
pub(super) fn tokens(conn: &Connection) -> rusqlite::Result<Vec<Token>> {
    let mut statement =
        conn.prepare_cached("SELECT name, role, hash, created_at, expires_at FROM duly_token ORDER BY name")?;
    let rows = statement.query_map([], |row| {
        let role: String = row.get(1)?;
        // A role that this version does not know grants nothing.
        Ok(role
            .parse::<Role>()
            .ok()
            .map(|role| (role, row.get(0), row.get(2), row.get(3), row.get::<_, Option<i64>>(4))))
    })?;
    let mut tokens = Vec::new();
    for (role, name, hash, created, expires) in rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten() {
        let (created, expires) = (from_micros(created?), expires?.map(from_micros));
        tokens.push(Token { name: name?, role, hash: hash?, created, expires });
    }
    Ok(tokens)
}

/// Returns the secret of the store, if it has one.
fn secret(conn: &Connection) -> rusqlite::Result<Option<String>> {
    conn.query_row("SELECT value FROM duly_meta WHERE name = 'secret'", [], |row| row.get(0)).optional()
}

/// Implements `AccessStore::secret` for a store without one.
fn add_secret(tx: &Tx<'_>, fresh: &str) -> rusqlite::Result<String> {
    tx.statement("INSERT INTO duly_meta (name, value) VALUES ('secret', ?1) ON CONFLICT (name) DO NOTHING")?
        .execute([fresh])?;
    tx.statement("SELECT value FROM duly_meta WHERE name = 'secret'")?.query_row([], |row| row.get(0))
}

/// Implements `AccessStore::add_audit_entry`.
pub(super) fn add_audit_entry(tx: &Tx<'_>, entry: &AuditEntry, bounds: AuditBounds) -> rusqlite::Result<()> {
    let AuditEntry { actor, action, target, filter, count, outcome, address } = entry;
    let changed = count.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    tx.statement(
        "INSERT INTO duly_audit (recorded_at, actor, action, target, filter, changed, outcome, address)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![tx.now, actor, action, target, filter, changed, outcome.as_str(), address])?;
    let own: usize = tx
        .statement(
            "INSERT INTO duly_audit_count (actor, entries) VALUES (?1, 1)
             ON CONFLICT (actor) DO UPDATE SET entries = entries + 1 RETURNING entries",
        )?
        .query_row([actor], |row| row.get(0))?;
    if own > bounds.per_actor {
        return remove_oldest_audit_entry(tx, actor);
    }
    let total: usize = tx.statement("SELECT SUM(entries) FROM duly_audit_count")?.query_row([], |row| row.get(0))?;
    if total > bounds.total {
        remove_oldest_audit_entry(tx, &largest_actor(tx, actor)?)?;
    }
    Ok(())
}

/// Returns the actor with the most audit entries. If every actor has one, returns another than that of the new entry.
fn largest_actor(tx: &Tx<'_>, actor: &str) -> rusqlite::Result<String> {
    tx.statement(
        "SELECT actor FROM (SELECT actor, entries FROM duly_audit_count ORDER BY entries DESC, actor DESC LIMIT 2)
          ORDER BY entries = 1 AND actor = ?1, entries DESC, actor DESC LIMIT 1",
    )?
    .query_row([actor], |row| row.get(0))
}

fn remove_oldest_audit_entry(tx: &Tx<'_>, actor: &str) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_audit WHERE number = (SELECT MIN(number) FROM duly_audit WHERE actor = ?1)")?
        .execute([actor])?;
    tx.statement("UPDATE duly_audit_count SET entries = entries - 1 WHERE actor = ?1")?.execute([actor])?;
    tx.statement("DELETE FROM duly_audit_count WHERE actor = ?1 AND entries <= 0")?.execute([actor]).map(drop)
}

/// Implements `AccessStore::audit_entries`.
pub(super) fn audit_entries(
    conn: &Connection,
    before: Option<u64>,
    limit: usize,
) -> rusqlite::Result<Vec<AuditRecord>> {
    let before = before.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
    conn.prepare_cached(
        "SELECT number, recorded_at, actor, action, target, filter, changed, outcome, address
           FROM duly_audit WHERE number < ?1 ORDER BY number DESC LIMIT ?2",
    )?
    .query_map(params![before, limit], |row| {
        let outcome: String = row.get(7)?;
        let entry = AuditEntry {
            actor: row.get(2)?,
            action: row.get(3)?,
            target: row.get(4)?,
            filter: row.get(5)?,
            count: row.get(6)?,
            // A later version may know more outcomes.
            outcome: outcome.parse().unwrap_or(AuditOutcome::Unknown),
            address: row.get(8)?,
        };
        Ok(AuditRecord { number: row.get(0)?, at: from_micros(row.get(1)?), entry })
    })?
    .collect()
}
