//! Backups by a store that can copy itself.

use std::path::Path;

use super::capability;
use crate::error::Result;

capability! {
    /// Copies itself as of one point in time.
    pub trait SnapshotStore(snapshot: "file snapshots") {
        /// Writes a consistent snapshot of everything to a new SQLite file.
        async fn backup(&self, to: &Path) -> Result<()>;
    }
}
