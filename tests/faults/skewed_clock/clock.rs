//! A clock that a test sets, for processes that load a library.

use std::path::{Path, PathBuf};
use std::process::Command;

const CLOCK_FILE: &str = "DULY_CLOCK_FILE";

/// The error of a clock, shared with the processes that load the library.
pub struct SkewedClock {
    library: PathBuf,
    file: PathBuf,
}

impl SkewedClock {
    pub fn build(dir: &Path) -> SkewedClock {
        let clock = SkewedClock { library: dir.join("clock.so"), file: dir.join("error") };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/skewed_clock/clock.c");
        let status =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&clock.library).arg(&source).status();
        assert!(status.is_ok_and(|status| status.success()), "cc makes {}; ./check installs it", source.display());
        clock.set(0);
        clock
    }

    /// Sets the error, in seconds.
    pub fn set(&self, error: i64) {
        // Written in place: the processes have mapped it.
        let file = std::fs::File::options().create(true).write(true).truncate(false).open(&self.file).expect("opens");
        std::os::unix::fs::FileExt::write_all_at(&file, &error.to_ne_bytes(), 0).expect("is written");
    }

    /// Returns the environment of a process with this clock.
    pub fn env(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), (CLOCK_FILE, &self.file)]
    }
}
