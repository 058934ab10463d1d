//! Makes the cron rules of a store equal to a list of rules.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cron::{CronRule, Crons};
use crate::error::{Error, Result};
use crate::store::{CronRecord, CronStore};

/// The change of a rule.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, cron::CronChange};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// for (name, change) in duly.crons().diff(&[], true).await? {
///     if change == CronChange::Remove {
///         println!("would remove {name}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CronChange {
    /// The rule is added.
    Add,
    /// The rule replaces a different one with the same name.
    Update,
    /// The rule is removed.
    Remove,
    /// The rule exists already.
    Unchanged,
}

/// Changes that make the rules of a store equal to the given ones, by name.
pub type CronChanges = BTreeMap<String, CronChange>;

impl Crons<'_> {
    /// Returns the changes that would make the rules of the store equal to these. `prune` also removes all other rules.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if a rule is invalid or given twice.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push, cron::{CronChange, CronRule}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let rules = [CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?];
    /// assert_eq!(duly.crons().diff(&rules, false).await?["report"], CronChange::Add);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn diff(self, rules: &[CronRule], prune: bool) -> Result<CronChanges> {
        let found: BTreeMap<String, CronRecord> =
            self.list().await?.into_iter().map(|record| (record.rule.name.clone(), record)).collect();
        let mut changes = CronChanges::new();
        for rule in rules {
            rule.check()?;
            let change = match found.get(&rule.name) {
                None => CronChange::Add,
                Some(record) if record.rule == *rule => CronChange::Unchanged,
                Some(_) => CronChange::Update,
            };
            if changes.insert(rule.name.clone(), change).is_some() {
                return Err(Error::invalid(
                    "crons",
                    format!("{} is given twice; remove one of the two rules", rule.name),
                ));
            }
        }
        for name in found.into_keys().filter(|_| prune) {
            changes.entry(name).or_insert(CronChange::Remove);
        }
        Ok(changes)
    }

    /// Makes the rules of the store equal to these. `prune` also removes all other rules.
    ///
    /// Not atomic: if it fails, some rules may have changed: call it again.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if a rule is invalid or given twice; then nothing has changed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push, cron::{CronChange, CronRule}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let rules = [CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?];
    /// let changes = duly.crons().apply(&rules, true).await?;
    /// assert_eq!(changes["report"], CronChange::Add);
    /// assert_eq!(duly.crons().diff(&rules, true).await?["report"], CronChange::Unchanged);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn apply(self, rules: &[CronRule], prune: bool) -> Result<CronChanges> {
        let changes = self.diff(rules, prune).await?;
        for rule in rules.iter().filter(|rule| changes.get(&rule.name) != Some(&CronChange::Unchanged)) {
            self.put(rule.clone()).await?;
        }
        for (name, _) in changes.iter().filter(|(_, change)| **change == CronChange::Remove) {
            // Another client may have removed it already.
            self.duly.store.remove_cron(name).await?;
        }
        Ok(changes)
    }
}
