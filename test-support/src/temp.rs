//! Directories that are removed with their value.

pub use tempfile::TempDir;

/// An empty directory for one test.
pub fn temp_dir() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}
