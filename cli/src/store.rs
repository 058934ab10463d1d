//! Which store, and opening it.

use duly::Duly;
use duly::store::StoreUrl;

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
    open_at(&url(setup)?, "push a job first, or name another with --store").await
}

/// The same for the store of this URL, with words about what to do if it is not there.
pub(crate) async fn open_at(url: &str, hint: &str) -> anyhow::Result<Duly> {
    if let Some(file) = StoreUrl::parse(url)?.file().filter(|file| !file.exists()) {
        return Err(Fail::new(exit::STORE, format!("no store at {}: {hint}", file.display())));
    }
    Ok(Duly::open(url).await?)
}
