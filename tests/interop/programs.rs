//! Where the programs of other systems lie.

use std::path::{Path, PathBuf};

use test_support::installed_in_target;

/// The path of a file that `./check interop` has installed.
pub fn installed(name: &str) -> PathBuf {
    installed_in_target(&Path::new("interop").join(name))
        .unwrap_or_else(|| panic!("{name} is not installed. Install it with: ./check interop"))
}

/// The path of a file of `tests/interop/programs`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/programs").join(name)
}
