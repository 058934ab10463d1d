//! Places in a line that a server has forgotten: whoever waits gets the lock all the same.

use std::time::Duration;

use crate::servers::{Binary, Options};
use crate::support::{MS, Place, soon};

const WAITERS: u64 = 3;
/// A few signs of life later; far less than it takes those who look although nobody says so.
const SOON: Duration = Duration::from_secs(10);

/// As a failover does that loses the last writes, or an operator who deletes keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_whose_places_were_lost_get_the_lock_all_the_same() {
    let server = Options::new(Binary::Redis).aof(crate::servers::Fsync::EverySecond).start();
    let place = Place::on(&server.url()).with("lease=600ms");
    let (holder, waiter) = (place.open().await, place.open().await);
    let guard = holder.lock("a").ttl(500 * MS).acquire().await.expect("is free");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = waiter.lock("a").ttl(500 * MS);
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    soon(async {
        while holder.lock("a").checked().await.expect("looks").is_none_or(|held| held.waiting < WAITERS) {
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    for key in ["line", "places"] {
        let keys = server.ask(&["KEYS", &format!("*:hall:*:{key}")]);
        keys.list().iter().for_each(|key| assert_eq!(server.ask(&["DEL", &key.text()]).text(), "1"));
    }
    guard.release().await.expect("is held");
    for one in waiting {
        let one = tokio::time::timeout(SOON, one).await.expect("in time");
        one.expect("no panic").expect("gets it, and holds it");
    }
}
