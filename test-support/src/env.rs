//! Values from the environment: numbers for longer runs, and files that `./check` has installed.

use std::env;
use std::path::{Path, PathBuf};

/// Returns the number in an environment variable; `None` if it is not set.
pub fn env_number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Returns the path of a file that `./check` has put into the target directory, if it exists.
///
/// The running program is in the target directory, or in that of a neighbouring workspace.
pub fn installed_in_target(file: &Path) -> Option<PathBuf> {
    let exe = env::current_exe().ok()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dirs = exe.ancestors().chain(source.ancestors());
    dirs.flat_map(|dir| [dir.join(file), dir.join("target").join(file)]).find(|path| path.exists())
}
