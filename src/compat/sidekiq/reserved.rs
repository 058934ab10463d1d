//! Entries that a transfer has reserved: it has taken them out of their positions, and has not yet deleted them. If it is
//! interrupted, they stay so until it continues or is abandoned.

use crate::clock::Micros;
use crate::compat::sidekiq::counts::{self, QueueContent};
use crate::compat::sidekiq::find_job::{EntryPosition, LocatedEntry};
use crate::compat::sidekiq::{Sidekiq, convert_reply, keys};
use crate::error::Result;
use crate::job::State;
use crate::store::redis::{ConnectionRole, QueueKeys};

/// Most warnings about queues with reserved entries.
const WARNINGS_MAX: usize = 10;

/// Returns the reserved entries of a queue, given its current state.
pub(super) async fn read(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    state: &QueueContent,
) -> Result<Vec<LocatedEntry>> {
    if state.reserved.total() == 0 {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("HVALS");
    cmd.arg(keys::reserved_key(keys));
    let values: Vec<Vec<u8>> =
        convert_reply(op, store.redis.send_idempotent(op, ConnectionRole::BulkRead, 0, &cmd).await?)?;
    Ok(values.iter().filter_map(|value| parse(&keys.queue, value)).collect())
}

/// Parses what `transfer_reserve` has written: position, score, number and entry.
fn parse(queue: &str, value: &[u8]) -> Option<LocatedEntry> {
    let mut parts = value.splitn(4, |byte| *byte == b' ');
    let (position, score, _number, entry) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let score: f64 = std::str::from_utf8(score).ok()?.parse().ok()?;
    let seconds = (score * 1e6).round() as Micros;
    let position = match position {
        b"schedule" | b"retry" => EntryPosition::Reserved(State::Scheduled, seconds),
        b"dead" => EntryPosition::Reserved(State::Dead, seconds),
        // The scores of done jobs are duly's own, in microseconds.
        b"done" => EntryPosition::Reserved(State::Done, score as Micros),
        _ => EntryPosition::Reserved(State::Ready, 0),
    };
    Some(LocatedEntry { queue: queue.to_owned(), position, bytes: entry.into() })
}

/// Returns a warning for each queue with reserved entries, up to a number.
pub(super) async fn warnings(store: &Sidekiq) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for queue in store.queue_names("health").await? {
        let state = counts::read_queue(store, "health", &store.redis.keys(&queue)).await?;
        let (Some(mark), count @ 1..) = (&state.counts.moving, state.reserved.total()) else {
            continue;
        };
        warnings.push(format!(
            "{count} jobs of {queue} are reserved by a move to {}, so no worker and no Ruby process sees them; if that move has ended, run it again, or put them back: duly queues resume {queue} --abandon-move",
            mark.to
        ));
        if warnings.len() == WARNINGS_MAX {
            break;
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_entry_keeps_its_state_and_time() {
        let position = |value: &str| parse("default", value.as_bytes()).map(|entry| entry.position);
        assert_eq!(position("list 0 000001 {\"a b\":1}"), Some(EntryPosition::Reserved(State::Ready, 0)));
        let retry = EntryPosition::Reserved(State::Scheduled, 1_794_765_574_492_900);
        assert_eq!(position("retry 1794765574.4928999 000001 {}"), Some(retry));
        let done = EntryPosition::Reserved(State::Done, 1_794_765_574_492_900);
        assert_eq!(position("done 1794765574492900 000001 {}"), Some(done));
        assert_eq!(position("list 0"), None);
        assert_eq!(&*parse("default", b"list 0 000001 {\"a b\":1}").expect("parses").bytes, b"{\"a b\":1}");
    }
}
