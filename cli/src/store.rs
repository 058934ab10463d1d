//! Which store, with which cluster key, and opening it.

use duly::store::StoreUrl;
use duly::{CLUSTER_KEY_BYTES_MIN, Duly};

use crate::Setup;
use crate::exit::{self, Fail};

/// The store if nothing names one.
const DEFAULT: &str = "./duly.db";
const ENV: &str = "DULY_STORE";
/// What to do where there is no store.
pub(crate) const NOT_THERE: &str = "push a job first, or name another with --store";
/// Cluster keys with commas between them, of which the first signs. Never an option: others can see command lines.
const KEY_ENV: &str = "DULY_CLUSTER_KEY";

/// The store's URL: flag, then environment, then `duly.toml`, then the default.
pub(crate) fn url(setup: &Setup) -> anyhow::Result<String> {
    if let Some(url) = &setup.store_flag {
        return Ok(url.clone());
    }
    if let Some(url) = env(ENV)? {
        return Ok(url);
    }
    Ok(setup.config.store.clone().unwrap_or_else(|| DEFAULT.to_owned()))
}

/// A variable of the environment; an empty one is as good as none.
fn env(name: &str) -> anyhow::Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Fail::new(exit::USAGE, format!("{name} is not UTF-8 text"))),
    }
}

/// What nodes sign their messages with: environment, then `duly.toml`, else nothing.
fn cluster_keys(setup: &Setup) -> anyhow::Result<Vec<String>> {
    let (from, keys) = match (env(KEY_ENV)?, setup.config.cluster_key.clone()) {
        (Some(keys), _) => (KEY_ENV, keys.split(',').map(str::to_owned).collect()),
        (None, Some(keys)) => ("cluster_key in duly.toml", keys.into_keys()),
        (None, None) => return Ok(Vec::new()),
    };
    if keys.is_empty() {
        return Err(Fail::new(
            exit::USAGE,
            format!("{from}: names no key; take it away if messages are not to be signed"),
        ));
    }
    if let Some(short) = keys.iter().position(|key| key.len() < CLUSTER_KEY_BYTES_MIN) {
        let (nth, bytes) = (short + 1, keys[short].len());
        let why = format!("key {nth} has {bytes} bytes; give it at least {CLUSTER_KEY_BYTES_MIN} random ones");
        return Err(Fail::new(exit::USAGE, format!("{from}: {why}, such as `openssl rand -hex 32` prints")));
    }
    Ok(keys)
}

/// Opens the store of this URL; makes its file if it is not there. It must outlive this process.
pub(crate) async fn open_or_make_at(setup: &Setup, url: &str) -> anyhow::Result<Duly> {
    if StoreUrl::parse(url)?.is_in_memory() {
        return Err(Fail::new(exit::USAGE, "store: :memory: is gone when this command ends; name a file"));
    }
    open_any(setup, url).await
}

/// Opens the store for as long as this process serves or works: it may be in memory.
pub(crate) async fn open_to_stay(setup: &Setup) -> anyhow::Result<Duly> {
    open_any(setup, &url(setup)?).await
}

async fn open_any(setup: &Setup, url: &str) -> anyhow::Result<Duly> {
    let keys = cluster_keys(setup)?;
    Ok(keys.into_iter().fold(Duly::builder(url), duly::Builder::cluster_key).open().await?)
}

/// Opens the store; makes its file if it is not there.
pub(crate) async fn open_or_make(setup: &Setup) -> anyhow::Result<Duly> {
    open_or_make_at(setup, &url(setup)?).await
}

/// Opens a store that must be there: whoever only looks must not leave an empty file at a mistyped path.
pub(crate) async fn open(setup: &Setup) -> anyhow::Result<Duly> {
    open_at(setup, &url(setup)?, NOT_THERE).await
}

/// The same for the store of this URL, with words about what to do if it is not there.
pub(crate) async fn open_at(setup: &Setup, url: &str, hint: &str) -> anyhow::Result<Duly> {
    must_be_there(url, hint)?;
    open_or_make_at(setup, url).await
}

/// Looks whether the file of a store is there.
pub(crate) fn must_be_there(url: &str, hint: &str) -> anyhow::Result<()> {
    match StoreUrl::parse(url)?.file().filter(|file| !file.exists()) {
        Some(file) => Err(Fail::new(exit::STORE, format!("no store at {}: {hint}", file.display()))),
        None => Ok(()),
    }
}
