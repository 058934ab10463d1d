//! The first token of a container: an admin token whose secret is in a file.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use duly::Duly;
use duly::admin::{Role, TokenSecret};

use crate::audit;
use crate::exit::{self, CliError};

/// The names of such tokens begin with this and end with the beginning of their hash.
const NAME_PREFIX: &str = "admin-file-";
/// The bytes of the hash in a name.
const HASH_BYTES: usize = 4;
/// The most bytes of the file.
const FILE_BYTES_MAX: u64 = 4_096;
/// The user whose files every user trusts.
const ROOT: u32 = 0;
/// The bits of a mode by which other users read or change the file.
const OPEN_TO_OTHERS: u32 = 0o006;

/// Creates the admin token of this file, unless the store has it, and then removes those of an earlier secret.
///
/// The new token is added first: the store must never be without a token in between.
pub(crate) async fn ensure(duly: &Duly, path: &Path) -> anyhow::Result<()> {
    let refused = |reason: String| CliError::new(exit::USAGE, format!("admin token file {}: {reason}", path.display()));
    let secret = read_secret(path).map_err(refused)?;
    let name = token_name(&secret);
    let created = duly.tokens().create_with_secret(&name, Role::Admin, &secret).await;
    match created {
        Ok(false) => {}
        Err(duly::Error::Invalid { field: "token", reason, .. }) => return Err(refused(format!("the token {reason}"))),
        created => {
            audit::record(duly, "tokens.create", &name, created).await?;
        }
    }
    for token in duly.tokens().list_all().await? {
        if is_token_of_a_file(&token.name) && token.name != name {
            // Another server may remove it at the same time.
            match audit::record(duly, "tokens.remove", &token.name, duly.tokens().remove(&token.name).await).await {
                Ok(()) | Err(duly::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

fn token_name(secret: &TokenSecret) -> String {
    let hash = secret.hash();
    hash[..HASH_BYTES].iter().fold(NAME_PREFIX.to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

/// Returns whether the name is one that [`token_name`] makes; a user may have given another token a similar one.
fn is_token_of_a_file(name: &str) -> bool {
    let hash = name.strip_prefix(NAME_PREFIX).unwrap_or_default();
    hash.len() == 2 * HASH_BYTES && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Reads the secret, the only line of the file.
fn read_secret(path: &Path) -> Result<TokenSecret, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(unreadable)?;
    check_file(&file.metadata().map_err(unreadable)?)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    match text.trim() {
        "" => Err("is empty; write a token into it, such as `openssl rand -hex 32` prints".to_owned()),
        secret => Ok(TokenSecret::new(secret)),
    }
}

/// Returns an error if another user can read or change the file.
fn check_file(file: &Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if !file.is_file() {
        return Err("is not a file; name the file with the token".to_owned());
    }
    if file.uid() != own && file.uid() != ROOT {
        let owner = file.uid();
        return Err(format!("belongs to another user (uid {owner}); run chown {own} on it"));
    }
    if file.mode() & OPEN_TO_OTHERS != 0 {
        return Err(format!("every user can read or change it (mode {:o}); run chmod 0400 on it", file.mode() & 0o777));
    }
    Ok(())
}
