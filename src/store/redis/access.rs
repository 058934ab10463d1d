//! Access tokens and the audit log, in the slot of the peer keys.

use async_trait::async_trait;

use super::Redis;
use super::script::{self, Script};
use crate::clock::{from_micros, micros};
use crate::error::{Error, Result};
use crate::store::redis::conn::ConnectionRole;
use crate::store::{AccessStore, AuditBounds, AuditEntry, AuditRecord, NewToken, TOKENS_MAX, Token, to_hex};

/// Number of digits of a number in a record.
const NUMBER_DIGITS: usize = 16;

#[async_trait]
impl AccessStore for Redis {
    async fn add_token(&self, token: &NewToken) -> Result<bool> {
        add_token(self, token).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool> {
        remove_token(self, name).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        tokens(self).await
    }

    async fn secret(&self, fresh: &str) -> Result<String> {
        secret(self, fresh).await
    }

    async fn add_audit_entry(&self, entry: &AuditEntry, bounds: AuditBounds) -> Result<()> {
        add_audit_entry(self, entry, bounds).await
    }

    async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        audit_entries(self, before, limit).await
    }
}

/// Implements `AccessStore::add_token`.
pub(super) async fn add_token(store: &Redis, token: &NewToken) -> Result<bool> {
    let ttl = token.ttl.map_or(String::new(), |ttl| micros(ttl).to_string());
    let mut cmd = script::ADD_TOKEN.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(&token.name).arg(ttl).arg(TOKENS_MAX);
    cmd.arg(format!("{} {}", to_hex(&token.hash), token.role));
    Ok(run_script(store, "add_token", &script::ADD_TOKEN, &cmd).await?.int()? == 1)
}

/// Implements `AccessStore::remove_token`.
pub(super) async fn remove_token(store: &Redis, name: &str) -> Result<bool> {
    let mut cmd = script::REMOVE_TOKEN.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(name);
    Ok(run_script(store, "remove_token", &script::REMOVE_TOKEN, &cmd).await?.int()? == 1)
}

/// Implements `AccessStore::tokens`.
pub(super) async fn tokens(store: &Redis) -> Result<Vec<Token>> {
    let mut cmd = script::TOKENS.call(&store.peer_keys);
    cmd.arg(store.manual_now());
    let fields = run_script(store, "tokens", &script::TOKENS, &cmd).await?.list()?;
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
    // An unreadable record grants no access.
    let mut tokens: Vec<Token> =
        fields.chunks_exact(2).filter_map(|pair| parse_token(text(&pair[0]), &text(&pair[1]))).collect();
    tokens.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tokens)
}

/// Parses `<created><expires, 0 for never><hash> <role>`.
fn parse_token(name: String, record: &str) -> Option<Token> {
    let (created, rest) = record.split_at_checked(NUMBER_DIGITS)?;
    let (expires, rest) = rest.split_at_checked(NUMBER_DIGITS)?;
    let (hash, role) = rest.split_once(' ')?;
    let expires: i64 = expires.parse().ok()?;
    Some(Token {
        name,
        role: role.parse().ok()?,
        hash: decode_hash(hash)?,
        created: from_micros(created.parse().ok()?),
        expires: (expires > 0).then(|| from_micros(expires)),
    })
}

fn decode_hash(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Implements `AccessStore::secret`.
async fn secret(store: &Redis, fresh: &str) -> Result<String> {
    let (key, slot) = (&store.peer_keys.secret, store.peer_keys.slot);
    let send = async |cmd| store.servers.send_idempotent("secret", ConnectionRole::Client, slot, cmd).await;
    let mut get = redis::cmd("GET");
    get.arg(key);
    let mut found = send(&get).await?;
    if found == redis::Value::Nil {
        let mut set = redis::cmd("SETNX");
        set.arg(key).arg(fresh);
        send(&set).await?;
        found = send(&get).await?;
    }
    let unreadable = |_| Error::store("secret", format!("the key {key} has no text; delete it to get a new secret"));
    redis::from_redis_value(found).map_err(unreadable)
}

/// Implements `AccessStore::add_audit_entry`.
pub(super) async fn add_audit_entry(store: &Redis, entry: &AuditEntry, bounds: AuditBounds) -> Result<()> {
    let mut cmd = script::ADD_AUDIT_ENTRY.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(bounds.per_actor).arg(bounds.total);
    cmd.arg(&entry.actor).arg(serde_json::to_string(entry).unwrap_or_default());
    run_script(store, "add_audit_entry", &script::ADD_AUDIT_ENTRY, &cmd).await.map(drop)
}

/// Implements `AccessStore::audit_entries`.
pub(super) async fn audit_entries(store: &Redis, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
    let mut cmd = script::AUDIT_ENTRIES.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(before.map_or(String::new(), |number| number.to_string())).arg(limit);
    let entries = run_script(store, "audit_entries", &script::AUDIT_ENTRIES, &cmd).await?.list()?;
    Ok(entries.into_iter().flatten().filter_map(|bytes| parse_audit_record(&bytes)).collect())
}

/// Parses `<number><time><entry as JSON>`.
fn parse_audit_record(bytes: &[u8]) -> Option<AuditRecord> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (number, rest) = text.split_at_checked(NUMBER_DIGITS)?;
    let (at, entry) = rest.split_at_checked(NUMBER_DIGITS)?;
    let at = from_micros(at.parse().ok()?);
    Some(AuditRecord { number: number.parse().ok()?, at, entry: serde_json::from_str(entry).ok()? })
}

async fn run_script(
    store: &Redis,
    op: &'static str,
    script: &'static Script,
    cmd: &redis::Cmd,
) -> Result<super::reply::ScriptReply> {
    store.run_script(op, ConnectionRole::Client, store.peer_keys.slot, script, cmd).await
}
