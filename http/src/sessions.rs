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
/// The most sessions of one token at a time; a new one replaces the least recently used.
const SESSIONS_PER_TOKEN_MAX: usize = 20;
/// The most sessions at a time, as above: those of all tokens that a store can have.
const SESSIONS_MAX: usize = 1_000 * SESSIONS_PER_TOKEN_MAX;

/// The name of the cookie over TLS. The prefix `__Host-` binds the cookie to TLS and to this host. A server that uses it
/// ignores the other name, which a neighbouring host or a connection without TLS could set.
const NAME_SECURE: &str = "__Host-duly";
/// The name of the cookie without TLS, before the port: all servers of a host share their cookies.
const NAME: &str = "duly";

/// The credential that created a session. The session ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionCredential {
    /// The token with this SHA-256.
    Token([u8; 32]),
    /// The link of the server. It ends with the first token of the store.
    Link,
}

struct Session {
    credential: SessionCredential,
    /// The user who signed in over a loopback connection. A browser sends cookies without TLS to every port of the
    /// host, so another user of this machine may know the session id.
    uid: Option<u32>,
    created: Duration,
    last_used: Duration,
}

/// All sessions of this server.
pub(crate) struct Sessions {
    clock: Clock,
    cookie: SessionCookie,
    by_id: Mutex<HashMap<String, Session>>,
}

impl Sessions {
    pub(crate) fn new(clock: &Clock, cookie: SessionCookie) -> Self {
        Sessions { clock: clock.clone(), cookie, by_id: Mutex::default() }
    }

    /// Returns the session id in the cookie of a request.
    pub(crate) fn id_in<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        self.cookie.session_id(headers)
    }

    /// Creates a session in place of that of the request, and returns the value of the `Set-Cookie` header. `uid` is the
    /// user of a loopback connection, if it is known.
    pub(crate) fn create(&self, credential: SessionCredential, uid: Option<u32>, headers: &HeaderMap) -> String {
        let (id, now) = (TokenSecret::generate().as_str().to_owned(), self.clock.monotonic());
        let mut sessions = self.by_id.lock_unpoisoned();
        self.id_in(headers).and_then(|previous| sessions.remove(previous));
        sessions.retain(|_, session| !session.has_expired(now));
        remove_oldest(&mut sessions, SESSIONS_PER_TOKEN_MAX, |session| session.credential == credential);
        remove_oldest(&mut sessions, SESSIONS_MAX, |_| true);
        sessions.insert(id.clone(), Session { credential, uid, created: now, last_used: now });
        self.cookie.header(&id, LIFETIME_MAX)
    }

    /// Returns whether a connection of this user may use the session: the user must be known if the one who signed in is.
    pub(crate) fn accepts_user(&self, id: &str, uid: Option<u32>) -> bool {
        self.by_id.lock_unpoisoned().get(id).is_some_and(|session| session.uid == uid)
    }

    /// Returns the credential of the session, and marks the session as used.
    pub(crate) fn touch(&self, id: &str) -> Option<SessionCredential> {
        let now = self.clock.monotonic();
        let mut sessions = self.by_id.lock_unpoisoned();
        let session = sessions.get_mut(id).filter(|session| !session.has_expired(now))?;
        session.last_used = now;
        Some(session.credential)
    }

    /// As [`Sessions::touch`], but without marking the session as used: open streams and pages that refresh themselves
    /// must not keep it alive.
    pub(crate) fn peek(&self, id: &str) -> Option<SessionCredential> {
        let now = self.clock.monotonic();
        let sessions = self.by_id.lock_unpoisoned();
        sessions.get(id).filter(|session| !session.has_expired(now)).map(|session| session.credential)
    }

    /// Removes the session of a request, and returns the value of the `Set-Cookie` header.
    pub(crate) fn remove(&self, headers: &HeaderMap) -> String {
        if let Some(id) = self.id_in(headers) {
            self.by_id.lock_unpoisoned().remove(id);
        }
        self.cookie.header("", Duration::ZERO)
    }
}

/// Makes room for one more session among those that `matches` selects.
fn remove_oldest(sessions: &mut HashMap<String, Session>, max: usize, matches: impl Fn(&Session) -> bool) {
    let selected = || sessions.iter().filter(|(_, session)| matches(session));
    if selected().count() >= max {
        let oldest = selected().min_by_key(|(_, session)| session.last_used).map(|(id, _)| id.clone());
        oldest.and_then(|id| sessions.remove(&id));
    }
}

impl Session {
    fn has_expired(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_used) > IDLE_MAX || now.saturating_sub(self.created) > LIFETIME_MAX
    }
}

/// The cookie with the session id.
pub(crate) struct SessionCookie {
    name: String,
    secure: bool,
}

impl SessionCookie {
    /// `port` is that of the server, if it is known.
    pub(crate) fn new(secure: bool, port: Option<u16>) -> Self {
        let name = match port {
            _ if secure => NAME_SECURE.to_owned(),
            Some(port) => format!("{NAME}-{port}"),
            None => NAME.to_owned(),
        };
        SessionCookie { name, secure }
    }

    fn header(&self, id: &str, max_age: Duration) -> String {
        let flag = if self.secure { "; Secure" } else { "" };
        format!("{}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{flag}", self.name, max_age.as_secs())
    }

    fn session_id<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(found, _)| *found == self.name).map(|(_, id)| id)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn sessions() -> Sessions {
        Sessions::new(&Clock::system(), SessionCookie::new(false, Some(7711)))
    }

    fn id_of(cookie: &str) -> String {
        cookie.split(';').next().and_then(|pair| pair.split_once('=')).expect("a pair").1.to_owned()
    }

    #[test]
    fn sign_ins_with_one_token_end_only_its_own_sessions() {
        let (sessions, headers) = (sessions(), HeaderMap::new());
        let (ada, eve) = (SessionCredential::Token([1; 32]), SessionCredential::Token([2; 32]));
        let first = id_of(&sessions.create(ada, None, &headers));
        let of_eve: Vec<String> = (0..1_001).map(|_| id_of(&sessions.create(eve, None, &headers))).collect();
        assert_eq!(sessions.touch(&first), Some(ada));
        assert_eq!(of_eve.iter().filter(|id| sessions.peek(id).is_some()).count(), SESSIONS_PER_TOKEN_MAX);
        assert_eq!(sessions.peek(of_eve.last().expect("some")), Some(eve));
    }

    #[test]
    fn sign_in_ends_the_previous_session_of_the_browser() {
        let sessions = sessions();
        let first = id_of(&sessions.create(SessionCredential::Token([1; 32]), None, &HeaderMap::new()));
        let cookie = HeaderValue::try_from(format!("duly-7712=other; duly-7711={first}")).expect("a header");
        let second = id_of(&sessions.create(SessionCredential::Link, None, &HeaderMap::from_iter([(COOKIE, cookie)])));
        assert_eq!((sessions.peek(&first), sessions.peek(&second)), (None, Some(SessionCredential::Link)));
    }

    #[test]
    fn session_belongs_to_the_user_who_signed_in() {
        let sessions = sessions();
        let create = |uid| id_of(&sessions.create(SessionCredential::Link, uid, &HeaderMap::new()));
        let accepts = |id: &str| [Some(1000), Some(1001), None].map(|uid| sessions.accepts_user(id, uid));
        assert_eq!(accepts(&create(Some(1000))), [true, false, false]);
        assert_eq!(accepts(&create(None)), [false, false, true], "of another machine");
        assert_eq!(accepts("none"), [false; 3]);
    }
}
