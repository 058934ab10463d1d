//! The cron rules of a queue on their way to another store, with the tick that each is at.
//!
//! While its queue is marked no rule fires where it was. It is put there and then deleted here; killed between the two it is in both,
//! and the next mover finds it there and deletes it here. A tick that both knew of would push one job: its id is the tick's.

use crate::error::{Error, Result};
use crate::store::{CronRecord, PutCron, PutCronResult};
use crate::transfer::queue::TransferStores;

/// How often a rule is looked at again because the other store's workers have just fired it.
const PUT_TRIES_MAX: u32 = 20;

/// All rules of a queue.
pub(crate) async fn list_rules(ends: &TransferStores, queue: &str) -> Result<Vec<CronRecord>> {
    let (mut rules, mut cursor) = (Vec::new(), None);
    loop {
        let page = ends.source.crons(queue, cursor.as_deref()).await?;
        rules.extend(page.rules);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(rules),
        }
    }
}

/// Refuses rules of a queue that the other store cannot keep, before anything is moved.
pub(crate) async fn check_supported(ends: &TransferStores, queue: &str) -> Result<()> {
    match list_rules(ends, queue).await?.first() {
        Some(first) => ends.target.cron(&first.rule.name).await.map(drop),
        None => Ok(()),
    }
}

/// Brings the rules of a queue to the other store, and deletes them here. Answers how many there were.
pub(crate) async fn transfer_rules(ends: &TransferStores, queue: &str) -> Result<u64> {
    let rules = list_rules(ends, queue).await?;
    for record in &rules {
        put_rule(ends, record).await?;
        ends.source.remove_cron(&record.rule.name).await?;
    }
    Ok(rules.len() as u64)
}

async fn put_rule(ends: &TransferStores, record: &CronRecord) -> Result<()> {
    let name = &record.rule.name;
    for _ in 0..PUT_TRIES_MAX {
        let there = ends.target.cron(name).await?;
        let was = there.as_ref().map(|there| there.revision);
        let Some(record) = merge_rule(record, there) else {
            return Ok(());
        };
        match ends.target.put_cron(PutCron { record, expected_revision: was }).await? {
            PutCronResult::Applied => return Ok(()),
            PutCronResult::Stale => {}
            PutCronResult::Moving => {
                return Err(Error::Conflict(format!(
                    "the queue of cron rule {name} is moving away from the other store"
                )));
            }
        }
    }
    Err(Error::Conflict(format!("cron rule {name} is changed in the other store all the time")))
}

/// The rule as it should be in the other store; `None` if it is so already.
///
/// One that is there is what somebody wants there: it stays, but a tick that is still to be fired here comes along.
fn merge_rule(here: &CronRecord, there: Option<CronRecord>) -> Option<CronRecord> {
    let Some(there) = there else {
        return Some(here.clone());
    };
    let open = here.next.filter(|next| there.last.is_none_or(|last| last < *next));
    let sooner = open.filter(|next| !there.paused && there.next.is_none_or(|other| *next < other));
    sooner.map(|next| CronRecord { next: Some(next), revision: there.revision + 1, ..there })
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
        let next = |here, there| merge_rule(&here, Some(there)).and_then(|record| record.next);
        assert_eq!(next(cron_record(5, None), cron_record(9, None)), Some(from_micros(5)));
        assert_eq!(next(cron_record(5, None), cron_record(9, Some(5))), None, "it has been fired there");
        assert_eq!(next(cron_record(9, None), cron_record(5, None)), None);
    }
}
