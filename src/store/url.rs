//! What the URL of a store says, without opening anything.

use std::fmt;
use std::path::Path;

use crate::error::Result;
use crate::store::open::{StoreAddress, StoreOptions, parse_url};

/// Where a store is, as its URL says. Shown without what is secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    address: StoreAddress,
    options: String,
    acl: Option<String>,
}

impl StoreUrl {
    /// Reads a URL as [`Duly::open`](crate::Duly::open) would, without opening anything.
    pub fn parse(url: &str) -> Result<Self> {
        let (target, read) = parse_url(url, StoreOptions::default())?;
        let acl = target.acl(&read)?;
        let options = url.split_once('?').map_or("", |(_, options)| options);
        let shown = options.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("sentinel_password="));
        Ok(StoreUrl { address: target, options: shown.collect::<Vec<_>>().join("&"), acl })
    }

    /// What a user of the server must be allowed, as words for `ACL SETUSER`; `None` where the store has no users.
    #[must_use]
    pub fn acl(&self) -> Option<&str> {
        self.acl.as_deref()
    }

    /// The file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.address {
            StoreAddress::File(path) => Some(path),
            _ => None,
        }
    }

    /// Whether it is gone with the process that has opened it.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.address == StoreAddress::Memory
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address.to_display_string())?;
        if !self.options.is_empty() {
            write!(f, "?{}", self.options)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_hides_secrets() {
        let shown = |url: &str| StoreUrl::parse(url).expect("a good URL").to_string();
        assert_eq!(shown("sqlite:a.db?keep=1h"), "a.db?keep=1h");
        #[cfg(feature = "redis")]
        assert_eq!(
            shown("redis+sentinel://me:secret@a,b/m?sentinel_password=secret&prefix=x"),
            "redis+sentinel://a:26379,b:26379/m?prefix=x"
        );
    }

    #[test]
    #[cfg(feature = "redis")]
    fn acl_rules_are_known_without_a_server() {
        let acl = |url: &str| StoreUrl::parse(url).expect("a good URL").acl().map(str::to_owned);
        assert!(acl("redis+cluster://h?prefix=app").expect("users").starts_with("resetkeys ~app:* "));
        assert!(acl("sidekiq://h?namespace=app").expect("users").contains(" ~app:queue:* "));
        assert_eq!((acl("duly.db"), acl("actionhero://h")), (None, None));
    }
}
