//! Who has signed in with a browser: kept here, so that signing out and a restart end it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::COOKIE;

use crate::admin::token::Secret;
use crate::clock::{Clock, Micros, micros};

/// A session ends when it was not used for so long.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// And however much it is used, after so long.
const LONGEST: Duration = Duration::from_secs(12 * 3600);
/// Most sessions at a time: the longest unused goes.
const SESSIONS_MAX: usize = 1_000;

/// The name of the cookie; the first form binds it to TLS and to this host. Where that is used the other is not heeded:
/// whoever speaks for a neighbouring host, or without TLS, could set it.
const NAME_SECURE: &str = "__Host-duly";
const NAME: &str = "duly";

struct Session {
    /// What the token's SHA-256 is: the session lives no longer than its token.
    token: [u8; 32],
    began: Micros,
    used: Micros,
}

/// All sessions of this server.
#[derive(Default)]
pub(crate) struct Sessions {
    all: Mutex<HashMap<String, Session>>,
}

impl Sessions {
    /// Signs in with a token that is good. Answers the value of the cookie header.
    pub(crate) fn begin(&self, token: [u8; 32], secure: bool) -> String {
        let (id, now) = (Secret::fresh().as_str().to_owned(), now());
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, session| !session.is_over(now));
        if all.len() >= SESSIONS_MAX {
            let oldest = all.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| id.clone());
            oldest.and_then(|id| all.remove(&id));
        }
        all.insert(id.clone(), Session { token, began: now, used: now });
        cookie(&id, secure, LONGEST)
    }

    /// The token with which this session has begun. The session counts as used.
    pub(crate) fn token(&self, id: &str) -> Option<[u8; 32]> {
        let now = now();
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let session = all.get_mut(id).filter(|session| !session.is_over(now))?;
        session.used = now;
        Some(session.token)
    }

    /// The same, without using the session: who only listens must not keep it.
    pub(crate) fn seen(&self, id: &str) -> Option<[u8; 32]> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).filter(|session| !session.is_over(now())).map(|session| session.token)
    }

    /// Signs out. Answers the value of the cookie header.
    pub(crate) fn end(&self, headers: &HeaderMap, secure: bool) -> String {
        if let Some(id) = id_of(headers, secure) {
            self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        }
        cookie("", secure, Duration::ZERO)
    }
}

impl Session {
    fn is_over(&self, now: Micros) -> bool {
        now - self.used > micros(IDLE) || now - self.began > micros(LONGEST)
    }
}

fn cookie(id: &str, secure: bool, lasts: Duration) -> String {
    let and = if secure { "; Secure" } else { "" };
    format!("{}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{and}", name(secure), lasts.as_secs())
}

fn name(secure: bool) -> &'static str {
    if secure { NAME_SECURE } else { NAME }
}

/// The session that the sender of these headers says to be in.
pub(crate) fn id_of(headers: &HeaderMap, secure: bool) -> Option<&str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name(secure)).map(|(_, id)| id)
}

fn now() -> Micros {
    Clock::system().since_boot()
}
