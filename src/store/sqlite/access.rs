//! Tokens and audit entries in the file.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use super::Sqlite;
use super::tx::Tx;
use crate::admin::token::{Role, TOKENS_MAX, Token};
use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::store::{AUDIT_ENTRIES_MAX, AccessStore, AuditEntry, AuditRecord, NewToken};

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

    async fn add_audit_entry(&self, entry: &AuditEntry) -> Result<()> {
        let entry = entry.clone();
        self.writer.write("add_audit_entry", move |tx| add_audit_entry(tx, &entry)).await
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

/// Implements `AccessStore::add_audit_entry`.
pub(super) fn add_audit_entry(tx: &Tx<'_>, entry: &AuditEntry) -> rusqlite::Result<()> {
    tx.statement("INSERT INTO duly_audit (recorded_at, actor, action, address, status) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![tx.now, entry.actor, entry.action, entry.address, entry.status])?;
    tx.statement("DELETE FROM duly_audit WHERE number <= (SELECT MAX(number) FROM duly_audit) - ?1")?
        .execute([AUDIT_ENTRIES_MAX])
        .map(drop)
}

/// Implements `AccessStore::audit_entries`.
pub(super) fn audit_entries(
    conn: &Connection,
    before: Option<u64>,
    limit: usize,
) -> rusqlite::Result<Vec<AuditRecord>> {
    let before = before.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
    conn.prepare_cached(
        "SELECT number, recorded_at, actor, action, address, status
           FROM duly_audit WHERE number < ?1 ORDER BY number DESC LIMIT ?2",
    )?
    .query_map(params![before, limit], |row| {
        let entry = AuditEntry { actor: row.get(2)?, action: row.get(3)?, address: row.get(4)?, status: row.get(5)? };
        Ok(AuditRecord { number: row.get(0)?, at: from_micros(row.get(1)?), entry })
    })?
    .collect()
}
