//! Which store, and opening it.

use std::path::{Path, PathBuf};

use duly::Duly;

use crate::Setup;
use crate::exit::{self, Fail};

/// The store if nothing names one.
const DEFAULT: &str = "./duly.db";
const ENV: &str = "DULY_STORE";

/// The store's URL: flag, then environment, then `duly.toml`, then the default.
pub(crate) fn url(setup: &Setup) -> anyhow::Result<String> {
    if let Some(url) = &setup.store_flag {
        return Ok(url.clone());
    }
    match std::env::var(ENV) {
        Ok(url) if !url.is_empty() => return Ok(url),
        Err(std::env::VarError::NotUnicode(_)) => {
            return Err(Fail::new(exit::USAGE, format!("{ENV} is not UTF-8 text")));
        }
        _ => {}
    }
    Ok(setup.config.store.clone().unwrap_or_else(|| DEFAULT.to_owned()))
}

/// Opens the store; makes its file if it is not there.
pub(crate) async fn open_or_make(setup: &Setup) -> anyhow::Result<Duly> {
    Ok(Duly::open(url(setup)?).await?)
}

/// Opens a store that must be there: whoever only looks must not leave an empty file at a mistyped path.
pub(crate) async fn open(setup: &Setup) -> anyhow::Result<Duly> {
    let url = url(setup)?;
    if let Some(file) = file_of(&url).filter(|file| !file.exists()) {
        return Err(Fail::new(
            exit::STORE,
            format!("no store at {}: push a job first, or name another with --store", file.display()),
        ));
    }
    Ok(Duly::open(url).await?)
}

/// The file that a URL names, as far as can be told without opening it.
pub(crate) fn file_of(url: &str) -> Option<PathBuf> {
    let place = url.split_once('?').map_or(url, |(place, _)| place);
    let path = match place.strip_prefix("sqlite:") {
        Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
        None if place.contains("://") => return None,
        None => place,
    };
    (!path.is_empty() && path != ":memory:").then(|| Path::new(path).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_url_names_a_file_or_none(url in ".*") {
            let _ = file_of(&url);
        }
    }

    #[test]
    fn files_in_urls() {
        assert_eq!(file_of("a.db?keep=1h"), Some("a.db".into()));
        assert_eq!(file_of("sqlite:///x/a.db"), Some("/x/a.db".into()));
        assert_eq!(file_of(":memory:"), None);
        assert_eq!(file_of("redis://host/0"), None);
    }
}
