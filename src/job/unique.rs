//! Unique keys: their scope, and the text that stores keep.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::job::push::Push;

/// Replaces the kind in the stored text of a key that all kinds share. No kind contains it.
const ALL_KINDS: &str = "*";

/// The behaviour of a push if an unfinished job with the same unique key exists.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Push};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// use duly::job::UniqueConflict;
///
/// duly.push(Push::new("sync", "1").unique("customer-7")).await?;
/// let newer = Push::new("sync", "2").unique("customer-7").on_conflict(UniqueConflict::Replace);
/// let id = duly.push(newer).await?.id();
/// assert_eq!(duly.jobs().get(id).await?.expect("is kept").job.args, "2");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UniqueConflict {
    /// Keep the existing job and push nothing.
    #[default]
    Keep,
    /// Replace the existing job, unless it is running.
    Replace,
}

/// The jobs of a queue among which a unique key is unique.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Push};
/// use duly::job::UniqueScope;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// // By default, kinds do not share keys.
/// assert!(duly.push(Push::new("export", "{}").unique("user:7")).await?.is_new());
/// assert!(duly.push(Push::new("import", "{}").unique("user:7")).await?.is_new());
///
/// let alone = |kind: &str| Push::new(kind, "{}").unique("user:8").unique_scope(UniqueScope::Queue);
/// assert!(duly.push(alone("export")).await?.is_new());
/// assert!(!duly.push(alone("import")).await?.is_new());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum UniqueScope {
    /// The jobs of the same kind.
    #[default]
    Kind,
    /// The jobs of all kinds.
    Queue,
}

impl UniqueScope {
    /// All variants.
    pub const ALL: [UniqueScope; 2] = [UniqueScope::Kind, UniqueScope::Queue];

    /// Returns the scope in one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            UniqueScope::Kind => "kind",
            UniqueScope::Queue => "queue",
        }
    }
}

/// The unique key of a job. Stores compare its text, which starts with the scope: `KIND KEY`, or `* KEY` for all kinds.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Push};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let id = duly.push(Push::new("export", "{}").unique("user:7")).await?.id();
/// let record = duly.jobs().get(id).await?.expect("is in the store");
/// let unique = record.job.unique.expect("has a key");
/// assert_eq!((unique.key(), unique.as_str()), ("user:7", "export user:7"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UniqueKey(String);

impl UniqueKey {
    /// Returns the key with its scope, as stores keep it.
    pub(crate) fn scoped(scope: UniqueScope, kind: &str, key: &str) -> Self {
        match scope {
            UniqueScope::Kind => UniqueKey(format!("{kind} {key}")),
            UniqueScope::Queue => UniqueKey(format!("{ALL_KINDS} {key}")),
        }
    }

    /// Returns the key with this stored text.
    #[cfg_attr(not(any(feature = "sqlite", feature = "redis")), allow(dead_code, reason = "only stores read it"))]
    pub(crate) fn from_stored(text: String) -> Self {
        UniqueKey(text)
    }

    /// Returns the text that stores keep and compare, with the scope. [`UniqueKey::key`] returns the key of the push.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key, as it was pushed.
    #[must_use]
    pub fn key(&self) -> &str {
        self.0.split_once(' ').map_or(&self.0, |(_, key)| key)
    }

    /// Returns the scope of the key.
    #[must_use]
    pub fn scope(&self) -> UniqueScope {
        match self.0.split_once(' ') {
            Some((ALL_KINDS, _)) | None => UniqueScope::Queue,
            Some(_) => UniqueScope::Kind,
        }
    }
}

/// As the fields `unique` and `unique_scope`, which a push has too.
impl Serialize for UniqueKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("unique", self.key())?;
        map.serialize_entry("unique_scope", self.scope().as_str())?;
        map.end()
    }
}

impl Push {
    /// Pushes only if no unfinished job of the same kind and queue has this key. Otherwise the existing job stays.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let sync = || Push::new("sync", "{}").unique("user:7");
    /// assert!(duly.push(sync()).await?.is_new());
    /// assert!(!duly.push(sync()).await?.is_new());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn unique(mut self, key: impl Into<String>) -> Self {
        self.unique = Some(key.into());
        self.defaulted.unique = false;
        self
    }

    /// Unsets the unique key, its scope and the behaviour on a conflict, such as those of [`Args`](crate::Args::defaults).
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Push::new("sync", "{}").unique("user:7").no_unique().job_unique(), None);
    /// ```
    #[must_use]
    pub fn no_unique(mut self) -> Self {
        (self.unique, self.unique_scope, self.conflict) = (None, UniqueScope::default(), UniqueConflict::default());
        self
    }

    /// Sets whether jobs of other kinds may have the same unique key (default: they may); see [`UniqueScope`].
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Push, job::UniqueScope};
    ///
    /// let push = Push::new("export", "{}").unique("user:7").unique_scope(UniqueScope::Queue);
    /// ```
    #[must_use]
    pub fn unique_scope(mut self, scope: UniqueScope) -> Self {
        self.unique_scope = scope;
        self
    }

    /// Returns the unique key with its scope.
    pub(crate) fn unique_key(&self) -> Option<UniqueKey> {
        self.unique.as_ref().map(|key| UniqueKey::scoped(self.unique_scope, &self.kind, key))
    }

    /// Adds the scope to the unique key. Called once, before the job is given to a store.
    pub(crate) fn scope_unique_key(&mut self) {
        self.unique = self.unique_key().map(|key| key.0);
    }

    /// Sets how the push ends if an unfinished job with the same unique key exists (default: the existing job stays).
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Push, job::UniqueConflict};
    ///
    /// let push = Push::new("sync", "{}").unique("user:7").on_conflict(UniqueConflict::Replace);
    /// ```
    #[must_use]
    pub fn on_conflict(mut self, conflict: UniqueConflict) -> Self {
        self.conflict = conflict;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_of_two_scopes_differ(kind in "[a-z.:/-]{1,8}", other in "[a-z.:/-]{1,8}", key in "\\PC{1,8}") {
            let (own, shared) = (
                UniqueKey::scoped(UniqueScope::Kind, &kind, &key),
                UniqueKey::scoped(UniqueScope::Queue, &kind, &key),
            );
            prop_assert_ne!(&own, &shared);
            prop_assert_eq!(own == UniqueKey::scoped(UniqueScope::Kind, &other, &key), kind == other);
            prop_assert_eq!((own.key(), own.scope()), (key.as_str(), UniqueScope::Kind));
            prop_assert_eq!((shared.key(), shared.scope()), (key.as_str(), UniqueScope::Queue));
        }
    }
}
