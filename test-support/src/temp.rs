//! Temporary directories, removed when dropped.

pub use tempfile::TempDir;

/// Creates an empty directory for one test.
pub fn temp_dir() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}
