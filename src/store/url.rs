//! The URL of a store, parsed without opening the store.

use std::fmt;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::error::{Error, Result};
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

/// Characters that need no encoding in the URL of a file.
const PATH_CHARACTERS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

/// Returns the URL of a file, whatever its path contains.
pub(crate) fn file_url(path: &Path) -> String {
    #[cfg(unix)]
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
    #[cfg(not(unix))]
    let text = path.to_string_lossy();
    #[cfg(not(unix))]
    let bytes = text.as_bytes();
    format!("file://{}", percent_encode(bytes, PATH_CHARACTERS))
}

/// Returns the file with this path, which is percent-encoded if the URL has a scheme.
pub(super) fn parse_file(path: &str, is_encoded: bool) -> Result<StoreAddress> {
    let bytes = match path {
        "" => return Err(Error::invalid("store", "names no file; give a path such as duly.db, or :memory:")),
        ":memory:" => return Ok(StoreAddress::Memory),
        path if is_encoded => percent_decode_str(path).collect(),
        path => path.as_bytes().to_vec(),
    };
    if bytes.contains(&0) {
        return Err(Error::invalid("store", "must not contain a NUL character"));
    }
    Ok(StoreAddress::File(path_from_bytes(bytes)))
}

fn path_from_bytes(path: Vec<u8>) -> PathBuf {
    #[cfg(unix)]
    let path: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(path);
    #[cfg(not(unix))]
    let path = String::from_utf8_lossy(&path).into_owned();
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_of_a_file_keeps_every_path() {
        for path in ["/var/lib/a.db", "a.db", "what?.db", "100%.db", "a%20b#c.db", ":memory:", "redis://h", "ä ö.db"]
        {
            let url = StoreUrl::parse(&file_url(Path::new(path))).expect("a good URL");
            assert_eq!(url.file(), Some(Path::new(path)));
        }
        #[cfg(unix)]
        {
            let path = path_from_bytes(b"/not utf-8 \xff".to_vec());
            assert_eq!(StoreUrl::parse(&file_url(&path)).expect("a good URL").file(), Some(path.as_path()));
        }
        assert!(StoreUrl::parse("file:a%00b").is_err());
    }

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
