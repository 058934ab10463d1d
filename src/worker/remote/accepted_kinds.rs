//! The kinds of jobs that a remote worker receives.

use std::sync::Arc;

/// The kinds that a worker has named, or all kinds but an excluded one.
pub(super) struct AcceptedKinds {
    /// Without duplicates. Empty if the worker takes every kind.
    named: Vec<String>,
    excluded: Option<Arc<str>>,
}

impl AcceptedKinds {
    pub(super) fn new(named: Vec<String>, excluded: Option<Arc<str>>) -> Self {
        AcceptedKinds { named, excluded }
    }

    pub(super) fn contains(&self, kind: &str) -> bool {
        match self.named.is_empty() {
            true => self.excluded.as_deref() != Some(kind),
            false => self.named.iter().any(|named| named == kind),
        }
    }

    /// Returns the kinds that the worker has named; `None` for every kind.
    pub(super) fn named(&self) -> Option<Arc<[String]>> {
        (!self.named.is_empty()).then(|| self.named.clone().into())
    }

    /// Returns the kind that the worker must not receive.
    pub(super) fn excluded(&self) -> Option<Arc<str>> {
        self.excluded.clone()
    }
}
