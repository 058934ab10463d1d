//! Browser sessions, kept in memory: signing out and a restart end them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use duly::Clock;
use duly::admin::TokenSecret;

use crate::sync::LockExt;

/// A session expires after this time without a request.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// A session expires after this time in any case.
const LIFETIME_MAX: Duration = Duration::from_secs(12 * 3600);
/// The most sessions at a time; a new one replaces the least recently used.
const SESSIONS_MAX: usize = 1_000;

/// The name of the cookie. The prefix `__Host-` binds the cookie to TLS and to this host. A server that uses it ignores the
/// other name, which a neighbouring host or a connection without TLS could set.
const NAME_SECURE: &str = "__Host-duly";
const NAME: &str = "duly";

struct Session {
    /// The SHA-256 of the token: the session ends with its token.
    token: [u8; 32],
    created: Duration,
    last_used: Duration,
}

/// All sessions of this server.
#[derive(Default)]
pub(crate) struct Sessions {
    by_id: Mutex<HashMap<String, Session>>,
}

impl Sessions {
    /// Creates a session for a valid token, and returns the value of the `Set-Cookie` header.
    pub(crate) fn create(&self, token: [u8; 32], secure: bool) -> String {
        let (id, now) = (TokenSecret::generate().as_str().to_owned(), now());
        let mut sessions = self.by_id.lock_unpoisoned();
        sessions.retain(|_, session| !session.has_expired(now));
        if sessions.len() >= SESSIONS_MAX {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.last_used).map(|(id, _)| id.clone());
            oldest.and_then(|id| sessions.remove(&id));
        }
        sessions.insert(id.clone(), Session { token, created: now, last_used: now });
        cookie(&id, secure, LIFETIME_MAX)
    }

    /// Returns the hash of the session's token, and marks the session as used.
    pub(crate) fn touch(&self, id: &str) -> Option<[u8; 32]> {
        let now = now();
        let mut sessions = self.by_id.lock_unpoisoned();
        let session = sessions.get_mut(id).filter(|session| !session.has_expired(now))?;
        session.last_used = now;
        Some(session.token)
    }

    /// As [`Sessions::touch`], but without marking the session as used: an open stream must not keep it alive.
    pub(crate) fn peek(&self, id: &str) -> Option<[u8; 32]> {
        let sessions = self.by_id.lock_unpoisoned();
        sessions.get(id).filter(|session| !session.has_expired(now())).map(|session| session.token)
    }

    /// Removes the session of a request, and returns the value of the `Set-Cookie` header.
    pub(crate) fn remove(&self, headers: &HeaderMap, secure: bool) -> String {
        if let Some(id) = session_id(headers, secure) {
            self.by_id.lock_unpoisoned().remove(id);
        }
        cookie("", secure, Duration::ZERO)
    }
}

impl Session {
    fn has_expired(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_used) > IDLE_MAX || now.saturating_sub(self.created) > LIFETIME_MAX
    }
}

fn cookie(id: &str, secure: bool, max_age: Duration) -> String {
    let flag = if secure { "; Secure" } else { "" };
    format!("{}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{flag}", name(secure), max_age.as_secs())
}

fn name(secure: bool) -> &'static str {
    if secure { NAME_SECURE } else { NAME }
}

/// Returns the session id in the cookie of a request.
pub(crate) fn session_id(headers: &HeaderMap, secure: bool) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name(secure)).map(|(_, id)| id)
}

fn now() -> Duration {
    Clock::system().monotonic()
}
