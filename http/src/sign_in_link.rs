//! The link that signs a browser in once, for a server that cannot tell which clients are local.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duly::Clock;
use duly::admin::TokenSecret;
use subtle::ConstantTimeEq;

/// How long a sign-in link works after the start of its server. It is printed, and so may end up in a log.
pub const SIGN_IN_LINK_TTL: Duration = Duration::from_secs(15 * 60);

/// The link of a server. The default is no link.
#[derive(Debug, Default)]
pub(crate) struct SignInLink(Option<PrintedLink>);

#[derive(Debug)]
struct PrintedLink {
    /// The SHA-256 of the secret.
    hash: [u8; 32],
    clock: Clock,
    created: Duration,
    is_used: AtomicBool,
}

impl SignInLink {
    /// Returns a link with its URL, below the URL of the server.
    pub(crate) fn generate(server: &str, clock: &Clock) -> (Self, String) {
        let secret = TokenSecret::generate();
        let (hash, created) = (secret.hash(), clock.monotonic());
        let link = PrintedLink { hash, clock: clock.clone(), created, is_used: AtomicBool::new(false) };
        (SignInLink(Some(link)), format!("{server}/login?link={}", secret.as_str()))
    }

    /// Returns whether this is the secret of the link, even if the link has ended.
    pub(crate) fn has_secret(&self, secret: &TokenSecret) -> bool {
        self.0.as_ref().is_some_and(|link| bool::from(link.hash.ct_eq(&secret.hash())))
    }

    /// Uses the link. Returns whether it was unused and had not expired.
    pub(crate) fn use_once(&self) -> bool {
        self.0.as_ref().is_some_and(|link| {
            let age = link.clock.monotonic().saturating_sub(link.created);
            age < SIGN_IN_LINK_TTL && !link.is_used.swap(true, Ordering::Relaxed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_works_once() {
        let (link, url) = SignInLink::generate("http://127.0.0.1:7711/duly", &Clock::system());
        let secret = url.strip_prefix("http://127.0.0.1:7711/duly/login?link=").expect("the URL").to_owned();
        assert!(!link.has_secret(&TokenSecret::new("duly_0")) && link.has_secret(&TokenSecret::new(secret)));
        assert!(link.use_once());
        assert!(!link.use_once());
        let none = SignInLink::default();
        assert!(!none.has_secret(&TokenSecret::new("")) && !none.use_once());
    }
}
