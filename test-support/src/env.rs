//! What the environment says: numbers of longer runs, and files that `./check` has installed.

use std::env;
use std::path::{Path, PathBuf};

/// The number in an environment variable; `None` if it is not set.
pub fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|why| panic!("{name}={text}: {why}")))
}

/// The path of a file that `./check` has put into the target directory, if it is there.
///
/// The running program lies in the target directory, or in that of a workspace beside it.
pub fn installed_in_target(file: &Path) -> Option<PathBuf> {
    let exe = env::current_exe().ok()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dirs = exe.ancestors().chain(source.ancestors());
    dirs.flat_map(|dir| [dir.join(file), dir.join("target").join(file)]).find(|path| path.exists())
}
