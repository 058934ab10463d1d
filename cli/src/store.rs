//! Which store, with which cluster key, and opening it.

use duly::store::StoreUrl;
use duly::{CLUSTER_KEY_BYTES_MIN, Duly};

use crate::Setup;
use crate::exit::{self, CliError};

/// The store if nothing names one.
const DEFAULT_URL: &str = "./duly.db";
const URL_ENV: &str = "DULY_STORE";
/// What to do where there is no store.
pub(crate) const MISSING_STORE_HINT: &str = "push a job first, or name another with --store";
/// Cluster keys with commas between them, of which the first signs. Never an option: others can see command lines.
const CLUSTER_KEY_ENV: &str = "DULY_CLUSTER_KEY";

/// The store's URL: flag, then environment, then `duly.toml`, then the default.
pub(crate) fn resolve_url(setup: &Setup) -> anyhow::Result<String> {
    if let Some(url) = &setup.store_flag {
        return Ok(url.clone());
    }
    if let Some(url) = read_env(URL_ENV)? {
        return Ok(url);
    }
    Ok(setup.config.store.clone().unwrap_or_else(|| DEFAULT_URL.to_owned()))
}

/// A variable of the environment; an empty one is as good as none.
fn read_env(name: &str) -> anyhow::Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(CliError::new(exit::USAGE, format!("{name} is not UTF-8 text"))),
    }
}

/// What nodes sign their messages with: environment, then `duly.toml`, else nothing.
fn read_cluster_keys(setup: &Setup) -> anyhow::Result<Vec<String>> {
    let (from, keys) = match (read_env(CLUSTER_KEY_ENV)?, setup.config.cluster_key.clone()) {
        (Some(keys), _) => (CLUSTER_KEY_ENV, keys.split(',').map(str::to_owned).collect()),
        (None, Some(keys)) => ("cluster_key in duly.toml", keys.into_keys()),
        (None, None) => return Ok(Vec::new()),
    };
    if keys.is_empty() {
        return Err(CliError::new(
            exit::USAGE,
            format!("{from}: names no key; take it away if messages are not to be signed"),
        ));
    }
    if let Some(short) = keys.iter().position(|key| key.len() < CLUSTER_KEY_BYTES_MIN) {
        let (nth, bytes) = (short + 1, keys[short].len());
        let why = format!("key {nth} has {bytes} bytes; give it at least {CLUSTER_KEY_BYTES_MIN} random ones");
        return Err(CliError::new(exit::USAGE, format!("{from}: {why}, such as `openssl rand -hex 32` prints")));
    }
    Ok(keys)
}

/// Opens the store of this URL; makes its file if it is not there. It must outlive this process.
pub(crate) async fn open_or_create_at(setup: &Setup, url: &str) -> anyhow::Result<Duly> {
    if StoreUrl::parse(url)?.is_in_memory() {
        return Err(CliError::new(exit::USAGE, "store: :memory: is gone when this command ends; name a file"));
    }
    open_url(setup, url).await
}

/// Opens the store for as long as this process serves or works: it may be in memory.
pub(crate) async fn open_long_lived(setup: &Setup) -> anyhow::Result<Duly> {
    open_url(setup, &resolve_url(setup)?).await
}

async fn open_url(setup: &Setup, url: &str) -> anyhow::Result<Duly> {
    let keys = read_cluster_keys(setup)?;
    Ok(keys.into_iter().fold(Duly::builder(url), duly::Builder::cluster_key).open().await?)
}

/// Opens the store; makes its file if it is not there.
pub(crate) async fn open_or_create(setup: &Setup) -> anyhow::Result<Duly> {
    open_or_create_at(setup, &resolve_url(setup)?).await
}

/// Opens a store that must be there: whoever only looks must not leave an empty file at a mistyped path.
pub(crate) async fn open_existing(setup: &Setup) -> anyhow::Result<Duly> {
    open_existing_at(setup, &resolve_url(setup)?, MISSING_STORE_HINT).await
}

/// The same for the store of this URL, with words about what to do if it is not there.
pub(crate) async fn open_existing_at(setup: &Setup, url: &str, hint: &str) -> anyhow::Result<Duly> {
    check_exists(url, hint)?;
    open_or_create_at(setup, url).await
}

/// Looks whether the file of a store is there.
pub(crate) fn check_exists(url: &str, hint: &str) -> anyhow::Result<()> {
    match StoreUrl::parse(url)?.file().filter(|file| !file.exists()) {
        Some(file) => Err(CliError::new(exit::STORE_FAILED, format!("no store at {}: {hint}", file.display()))),
        None => Ok(()),
    }
}
