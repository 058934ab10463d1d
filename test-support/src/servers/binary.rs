//! The supported server programs and their paths.

use std::env;
use std::path::{Path, PathBuf};

use crate::installed_in_target;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// The oldest supported version, from Debian. Has TLS.
    Redis,
    /// The newest supported version. This build has no TLS.
    Valkey,
}

impl Binary {
    /// Returns the path of the program: `DULY_REDIS_SERVER` or `DULY_VALKEY_SERVER` if set, otherwise the path that
    /// `./check stores` installs to. If the file is missing, fails the test with the install command.
    #[track_caller]
    pub fn path(self) -> PathBuf {
        let (name, variable) = match self {
            Binary::Redis => ("redis-server", "DULY_REDIS_SERVER"),
            Binary::Valkey => ("valkey-server", "DULY_VALKEY_SERVER"),
        };
        let found = match env::var_os(variable) {
            Some(path) => Some(PathBuf::from(path)).filter(|path| path.is_file()),
            None => self.installed(name),
        };
        found.unwrap_or_else(|| panic!("{name} is not here ({variable} may name it). Install it with: ./check stores"))
    }

    fn installed(self, name: &str) -> Option<PathBuf> {
        let path = match self {
            Binary::Redis => env::var_os("PATH").unwrap_or_default(),
            Binary::Valkey => return installed_in_target(&Path::new("servers/venv/bin").join(name)),
        };
        env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
    }
}
