//! Transfer of the cron rules of a queue, each with its next tick.
//!
//! While its queue is marked, no rule fires in the source. A rule is added to the target, then deleted from the source.
//! If the mover is killed in between, the rule is in both stores until the next mover deletes it from the source. A
//! tick known to both stores pushes one job, because the job's id is derived from the tick.

use crate::error::{ConflictKind, Error, Result};
use crate::store::{CronRecord, PutCron, PutCronResult};
use crate::transfer::queue::TransferStores;

/// How often adding a rule is retried because workers of the target have just fired it.
const PUT_TRIES_MAX: u32 = 20;

/// Returns all rules of a queue.
pub(crate) async fn list_rules(stores: &TransferStores, queue: &str) -> Result<Vec<CronRecord>> {
    let (mut rules, mut cursor) = (Vec::new(), None);
    loop {
        let page = stores.source.crons(queue, cursor.as_deref()).await?;
        rules.extend(page.rules);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(rules),
        }
    }
}

/// Returns an error before anything is transferred if the queue has rules that the target does not support.
pub(crate) async fn check_supported(stores: &TransferStores, queue: &str) -> Result<()> {
    match list_rules(stores, queue).await?.first() {
        Some(first) => stores.target.cron(&first.rule.name).await.map(drop),
        None => Ok(()),
    }
}

/// Adds the rules of a queue to the target and deletes them from the source. Returns how many there were.
pub(crate) async fn transfer_rules(stores: &TransferStores, queue: &str) -> Result<u64> {
    let rules = list_rules(stores, queue).await?;
    for record in &rules {
        put_rule(stores, record).await?;
        stores.source.remove_cron(&record.rule.name).await?;
    }
    Ok(rules.len() as u64)
}

async fn put_rule(stores: &TransferStores, record: &CronRecord) -> Result<()> {
    let name = &record.rule.name;
    for _ in 0..PUT_TRIES_MAX {
        let existing = stores.target.cron(name).await?;
        let revision = existing.as_ref().map(|existing| existing.revision);
        let Some(record) = merge_rule(record, existing) else {
            return Ok(());
        };
        match stores.target.put_cron(PutCron { record, expected_revision: revision }).await? {
            PutCronResult::Applied => return Ok(()),
            PutCronResult::Stale => {}
            PutCronResult::Moving => {
                return Err(Error::conflict(
                    ConflictKind::Moving,
                    format!(
                        "the queue of cron rule {name} is moving away from the target store; complete that move first"
                    ),
                ));
            }
        }
    }
    Err(Error::conflict(
        ConflictKind::Changed,
        format!(
            "gave up updating cron rule {name} in the target store: too many concurrent changes; run the move again"
        ),
    ))
}

/// Returns the rule to store in the target; `None` if it is up to date.
///
/// An existing rule in the target stays, but adopts a sooner tick that has not fired in the source.
fn merge_rule(source: &CronRecord, target: Option<CronRecord>) -> Option<CronRecord> {
    let Some(target) = target else {
        return Some(source.clone());
    };
    let unfired = source.next.filter(|next| target.last.is_none_or(|last| last < *next));
    let sooner = unfired.filter(|next| !target.paused && target.next.is_none_or(|other| *next < other));
    sooner.map(|next| CronRecord { next: Some(next), revision: target.revision + 1, ..target })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_micros;
    use crate::cron::CronRule;
    use crate::job::push::Push;

    fn cron_record(next: i64, last: Option<i64>) -> CronRecord {
        let rule = CronRule::new("r", "* * * * *", Push::new("mail", "{}")).expect("a rule");
        CronRecord { last: last.map(from_micros), ..CronRecord::new(rule, 7, Some(from_micros(next))) }
    }

    #[test]
    fn unfired_tick_survives_transfer() {
        assert_eq!(merge_rule(&cron_record(5, None), None), Some(cron_record(5, None)));
        let next = |source, target| merge_rule(&source, Some(target)).and_then(|record| record.next);
        assert_eq!(next(cron_record(5, None), cron_record(9, None)), Some(from_micros(5)));
        assert_eq!(next(cron_record(5, None), cron_record(9, Some(5))), None, "it has been fired there");
        assert_eq!(next(cron_record(9, None), cron_record(5, None)), None);
    }
}
