//! The paths of the programs of other systems.

use std::path::{Path, PathBuf};

use test_support::installed_in_target;

/// Returns the path of a file that `./check interop` has installed.
pub fn installed(name: &str) -> PathBuf {
    installed_in_target(&Path::new("interop").join(name))
        .unwrap_or_else(|| panic!("{name} is not installed; install it with `./check interop`"))
}

/// Returns the path of a file in `tests/interop/programs`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/programs").join(name)
}
