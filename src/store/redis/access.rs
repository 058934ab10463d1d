//! Tokens and the audit, in the hall's slot.

use super::Redis;
use super::script::{self, Script};
use crate::admin::token::{TOKENS_MAX, Token, hex};
use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::store::redis::conn::Way;
use crate::store::{AUDIT_MAX, Audit, AuditRecord, NewToken};

/// How many digits a number has in a record.
const DIGITS: usize = 16;

/// `put_token` of the contract.
pub(super) async fn put_token(store: &Redis, token: &NewToken) -> Result<bool> {
    let lasts = token.lasts.map_or(String::new(), |lasts| micros(lasts).to_string());
    let mut cmd = script::PUT_TOKEN.call(&store.hall);
    cmd.arg(store.manual_now()).arg(&token.name).arg(lasts).arg(TOKENS_MAX);
    cmd.arg(format!("{} {}", hex(&token.hash), token.role));
    Ok(run(store, "put_token", &script::PUT_TOKEN, &cmd).await?.int()? == 1)
}

/// `remove_token` of the contract.
pub(super) async fn remove_token(store: &Redis, name: &str) -> Result<bool> {
    let mut cmd = script::REMOVE_TOKEN.call(&store.hall);
    cmd.arg(store.manual_now()).arg(name);
    Ok(run(store, "remove_token", &script::REMOVE_TOKEN, &cmd).await?.int()? == 1)
}

/// `tokens` of the contract.
pub(super) async fn tokens(store: &Redis) -> Result<Vec<Token>> {
    let mut cmd = script::TOKENS.call(&store.hall);
    cmd.arg(store.manual_now());
    let flat = run(store, "tokens", &script::TOKENS, &cmd).await?.list()?;
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
    // A record that this version does not understand gives no right.
    let mut all: Vec<Token> = flat.chunks_exact(2).filter_map(|pair| token(text(&pair[0]), &text(&pair[1]))).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Of `<created><expires, 0 for never><hash> <role>`.
fn token(name: String, record: &str) -> Option<Token> {
    let (created, rest) = record.split_at_checked(DIGITS)?;
    let (expires, rest) = rest.split_at_checked(DIGITS)?;
    let (hash, role) = rest.split_once(' ')?;
    let expires: i64 = expires.parse().ok()?;
    Some(Token {
        name,
        role: role.parse().ok()?,
        hash: unhex(hash)?,
        created: from_micros(created.parse().ok()?),
        expires: (expires > 0).then(|| from_micros(expires)),
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// `put_audit` of the contract.
pub(super) async fn put_audit(store: &Redis, entry: &Audit) -> Result<()> {
    let mut cmd = script::ADD_AUDIT_ENTRY.call(&store.hall);
    cmd.arg(store.manual_now()).arg(AUDIT_MAX).arg(serde_json::to_string(entry).unwrap_or_default());
    run(store, "put_audit", &script::ADD_AUDIT_ENTRY, &cmd).await.map(drop)
}

/// `audits` of the contract.
pub(super) async fn audits(store: &Redis, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
    let mut cmd = script::AUDIT_ENTRIES.call(&store.hall);
    cmd.arg(store.manual_now()).arg(before.map_or(String::new(), |no| no.to_string())).arg(limit);
    let entries = run(store, "audits", &script::AUDIT_ENTRIES, &cmd).await?.list()?;
    Ok(entries.into_iter().flatten().filter_map(|bytes| record(&bytes)).collect())
}

/// Of `<number><moment><entry as JSON>`.
fn record(bytes: &[u8]) -> Option<AuditRecord> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (no, rest) = text.split_at_checked(DIGITS)?;
    let (at, entry) = rest.split_at_checked(DIGITS)?;
    let at = from_micros(at.parse().ok()?);
    Some(AuditRecord { no: no.parse().ok()?, at, entry: serde_json::from_str(entry).ok()? })
}

async fn run(
    store: &Redis,
    op: &'static str,
    script: &'static Script,
    cmd: &redis::Cmd,
) -> Result<super::reply::Reply> {
    store.reply(op, store.link.run(op, Way::Door, store.hall.slot, script, cmd).await?)
}
