//! Resolves the URL and the cluster keys of the store, and opens it.

use std::path::Path;

use duly::Duly;
use duly::admin::StoreUrl;
use duly::bounds::CLUSTER_KEY_BYTES_MIN;

use crate::Setup;
use crate::exit::{self, CliError};
use crate::file_owner;

/// The store if no setting names one.
const DEFAULT_URL: &str = "./duly.db";
const URL_ENV: &str = "DULY_STORE";
/// The hint for a store file that does not exist.
pub(crate) const MISSING_STORE_HINT: &str = "push a job first, or name another with --store";
/// Comma-separated cluster keys; the first signs. Not an option, because other users can read command lines.
const CLUSTER_KEY_ENV: &str = "DULY_CLUSTER_KEY";

/// Returns the store's URL: flag, then environment, then `duly.toml`, then the default.
pub(crate) fn resolve_url(setup: &Setup) -> anyhow::Result<String> {
    let url = find_url(setup)?;
    match url.starts_with("http://") || url.starts_with("https://") {
        // The text may contain a password.
        true => Err(CliError::new(
            exit::USAGE,
            "store: this is the address of a `duly serve`, not of a store; use --server URL for it",
        )),
        false => Ok(url),
    }
}

fn find_url(setup: &Setup) -> anyhow::Result<String> {
    if let Some(url) = &setup.store_flag {
        return Ok(url.clone());
    }
    if let Some(url) = read_env(URL_ENV)? {
        return Ok(url);
    }
    match &setup.config.store {
        Some(url) => Ok(url.clone()),
        None => check_default_file().map(|()| DEFAULT_URL.to_owned()),
    }
}

/// Returns an error if another user could have written the default file: its jobs could run any command as this user.
fn check_default_file() -> anyhow::Result<()> {
    let path = Path::new(DEFAULT_URL);
    let refused = |reason: String| CliError::new(exit::USAGE, format!("{DEFAULT_URL}: {reason}"));
    match std::fs::metadata(path) {
        Ok(file) => file_owner::check_owner(path, &file, &format!("--store {DEFAULT_URL}")).map_err(refused),
        // Opening it reports other errors.
        Err(_) => Ok(()),
    }
}

/// Reads an environment variable; an empty value counts as unset.
fn read_env(name: &str) -> anyhow::Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(CliError::new(exit::USAGE, format!("{name} is not UTF-8 text"))),
    }
}

/// Returns the keys that sign messages between nodes: environment, then `duly.toml`, else none.
fn read_cluster_keys(setup: &Setup) -> anyhow::Result<Vec<String>> {
    let (source, keys) = match (read_env(CLUSTER_KEY_ENV)?, setup.config.cluster_key.clone()) {
        (Some(keys), _) => (CLUSTER_KEY_ENV, keys.split(',').map(str::to_owned).collect()),
        (None, Some(keys)) => ("cluster_key in duly.toml", keys.into_keys()),
        (None, None) => return Ok(Vec::new()),
    };
    if keys.is_empty() {
        return Err(CliError::new(
            exit::USAGE,
            format!("{source}: has no key; remove it if messages need no signature"),
        ));
    }
    if let Some(index) = keys.iter().position(|key| key.len() < CLUSTER_KEY_BYTES_MIN) {
        let (nth, bytes) = (index + 1, keys[index].len());
        let reason = format!("key {nth} has {bytes} bytes; use at least {CLUSTER_KEY_BYTES_MIN} random bytes");
        return Err(CliError::new(
            exit::USAGE,
            format!("{source}: {reason}, such as the output of `openssl rand -hex 32`"),
        ));
    }
    Ok(keys)
}

/// Opens the store at this URL and creates its file if needed. Rejects stores in memory, which end with this process.
pub(crate) async fn open_or_create_at(setup: &Setup, url: &str) -> anyhow::Result<Duly> {
    if StoreUrl::parse(url)?.is_in_memory() {
        return Err(CliError::new(exit::USAGE, "store: :memory: is gone when this command ends; name a file"));
    }
    open_url(setup, url).await
}

/// Opens the store for a process that serves or works: it may be in memory.
pub(crate) async fn open_long_lived(setup: &Setup) -> anyhow::Result<Duly> {
    open_url(setup, &resolve_url(setup)?).await
}

async fn open_url(setup: &Setup, url: &str) -> anyhow::Result<Duly> {
    let keys = read_cluster_keys(setup)?;
    Ok(keys.into_iter().fold(Duly::builder(url), duly::Builder::cluster_key).open().await?)
}

/// Opens the store and creates its file if needed.
pub(crate) async fn open_or_create(setup: &Setup) -> anyhow::Result<Duly> {
    open_or_create_at(setup, &resolve_url(setup)?).await
}

/// Opens an existing store: a query must not create an empty file at a mistyped path.
pub(crate) async fn open_existing(setup: &Setup) -> anyhow::Result<Duly> {
    open_existing_at(setup, &resolve_url(setup)?, MISSING_STORE_HINT).await
}

/// Opens the existing store at this URL; the error for a missing store ends with `hint`.
pub(crate) async fn open_existing_at(setup: &Setup, url: &str, hint: &str) -> anyhow::Result<Duly> {
    check_exists(url, hint)?;
    open_or_create_at(setup, url).await
}

/// Returns an error if the file of the store does not exist.
pub(crate) fn check_exists(url: &str, hint: &str) -> anyhow::Result<()> {
    match StoreUrl::parse(url)?.file().filter(|file| !file.exists()) {
        Some(file) => Err(CliError::new(exit::STORE_FAILED, format!("no store at {}: {hint}", file.display()))),
        None => Ok(()),
    }
}
