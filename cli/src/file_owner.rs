//! Checks who could have written a file that no argument names.
//!
//! Any user can put a file, or a link to one, into a directory such as /tmp or a home directory.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The user whose files every user trusts.
const ROOT: u32 = 0;
/// The bit of a file's mode that lets every user write to it.
const WRITABLE_BY_OTHERS: u32 = 0o002;

/// Returns an error if another user could have written the file or put the link at its path. `file` describes the file
/// behind a link; `option` names the file.
pub(crate) fn check_owner(path: &Path, file: &Metadata, option: &str) -> Result<(), String> {
    let link = std::fs::symlink_metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    check(file, option)?;
    check(&link, option)
}

fn check(file: &Metadata, option: &str) -> Result<(), String> {
    let (owner, own) = (file.uid(), rustix::process::geteuid().as_raw());
    let advice = format!("to use it anyway, pass {option}");
    if owner != own && owner != ROOT {
        return Err(format!("belongs to another user (uid {owner}), so it is not used; {advice}"));
    }
    if !file.is_symlink() && file.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(format!("every user can change it, so it is not used; run chmod o-w on it; {advice}"));
    }
    Ok(())
}
