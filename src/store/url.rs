//! The URL of a store, parsed without opening the store.

use std::fmt;
use std::path::Path;

use crate::error::Result;
use crate::store::open::{StoreAddress, StoreOptions, parse_url};

/// The parsed URL of a store. Displayed without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    address: StoreAddress,
    options: String,
    acl: Option<String>,
}

impl StoreUrl {
    /// Parses a URL as [`Duly::open`](crate::Duly::open) does, without opening the store.
    pub fn parse(url: &str) -> Result<Self> {
        let (address, parsed) = parse_url(url, StoreOptions::default())?;
        let acl = address.acl(&parsed)?;
        let options = url.split_once('?').map_or("", |(_, options)| options);
        let shown = options.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("sentinel_password="));
        Ok(StoreUrl { address, options: shown.collect::<Vec<_>>().join("&"), acl })
    }

    /// Returns the rules for `ACL SETUSER` that duly needs; `None` if the store has no users.
    #[must_use]
    pub fn acl(&self) -> Option<&str> {
        self.acl.as_deref()
    }

    /// Returns the path, if the store is a file.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.address {
            StoreAddress::File(path) => Some(path),
            _ => None,
        }
    }

    /// Returns whether the store exists only in the memory of the process that opened it.
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
