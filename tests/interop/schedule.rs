//! The schedule in one sorted set, tested for the failures of the common hand-written script.

use std::time::{Duration, Instant, SystemTime};

use duly::JobId;
use duly::compat::{DoneResult, EnqueueResult, ScoreUnit, SortedSetSchedule};
use duly::job::Due;

use test_support::servers::{self, Binary, Options, Server};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// A script for such a set as published in a blog post.
const POST: &str = "local res = redis.call('ZRANGEBYSCORE',KEYS[1],0,ARGV[1],'LIMIT',0,1)
if #res > 0 then
  redis.call('ZADD', KEYS[1], ARGV[2], res[1])
  return res[1]
else
  return false
end";

/// A separate set on the shared server.
struct Set {
    server: &'static Server,
    key: String,
}

impl Set {
    fn new() -> Set {
        Set { server: servers::redis(), key: format!("scheduled_objects:{}", JobId::fresh()) }
    }

    async fn open(&self) -> SortedSetSchedule {
        SortedSetSchedule::open(self.server.url(), &self.key).await.expect("opens")
    }

    /// Runs the script of the post, with a clock that is fast by this number of seconds.
    fn post(&self, fast_by: f64, lease: f64) -> String {
        let now = now() + fast_by;
        self.server.send_command(&["EVAL", POST, "1", &self.key, &now.to_string(), &(now + lease).to_string()]).text()
    }

    fn zadd(&self, score: f64, id: &str) {
        self.server.send_command(&["ZADD", &self.key, &score.to_string(), id]);
    }

    fn score(&self, id: &str) -> Option<f64> {
        self.server.send_command(&["ZSCORE", &self.key, id]).text().parse().ok()
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test]
async fn stale_removal_is_rejected_and_reported() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    let late = schedule.get_expired(50 * MS).await.expect("succeeds").expect("due");
    pause(80 * MS).await;
    let current = schedule.get_expired(10 * SECOND).await.expect("succeeds").expect("due again");
    assert!(current.fence > late.fence && current.attempt == 2 && current.due == late.due);
    assert_eq!(schedule.done(&late).await.expect("succeeds"), DoneResult::NotHeld, "the late worker is rejected");
    assert!(!schedule.extend(&late, SECOND).await.expect("succeeds"));
    assert!(set.score("a").is_some(), "nothing was removed");
    assert_eq!(schedule.done(&current).await.expect("succeeds"), DoneResult::Removed);
    assert_eq!(set.score("a"), None);
    assert_eq!(schedule.done(&current).await.expect("succeeds"), DoneResult::NotHeld, "only once");
}

#[tokio::test]
async fn occurrence_requested_while_running_is_not_lost() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    let first = schedule.get_expired(10 * SECOND).await.expect("succeeds").expect("due");
    let again = schedule.enqueue("a", Due::After(100 * SECOND)).await.expect("succeeds");
    assert_eq!(again, EnqueueResult::AfterCurrent);
    assert_eq!(schedule.done(&first).await.expect("succeeds"), DoneResult::Rescheduled);
    let due_in = set.score("a").expect("the next occurrence") - now();
    assert!((95.0..=100.5).contains(&due_in), "in {due_in} s");
}

#[tokio::test]
async fn occurrence_requested_by_others_while_running_is_not_lost() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    let first = schedule.get_expired(10 * SECOND).await.expect("succeeds").expect("due");
    set.zadd(now() + 100.0, "a");
    assert_eq!(schedule.done(&first).await.expect("succeeds"), DoneResult::Rescheduled);
    assert!(set.score("a").is_some_and(|score| score > now() + 90.0));
}

#[tokio::test]
async fn occurrence_requested_while_running_does_not_run_concurrently() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    let first = schedule.get_expired(10 * SECOND).await.expect("succeeds").expect("due");
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds"), None, "it is leased");
    // A client that uses only the set.
    set.zadd(now() - 1.0, "a");
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds"), None, "it is leased");
    assert_eq!(schedule.done(&first).await.expect("succeeds"), DoneResult::Rescheduled);
    let second = schedule.get_expired(SECOND).await.expect("succeeds").expect("its next occurrence");
    assert_eq!((second.attempt, schedule.done(&second).await.expect("succeeds")), (1, DoneResult::Removed));
}

#[tokio::test]
async fn crashing_id_is_counted_and_given_up() {
    let set = Set::new();
    let schedule = SortedSetSchedule::builder(set.server.url(), &set.key).max_attempts(3).open().await.expect("opens");
    schedule.enqueue("poison", Due::Now).await.expect("succeeds");
    for attempt in 1..=3 {
        let leased = schedule.get_expired(20 * MS).await.expect("succeeds").expect("due");
        assert_eq!(leased.attempt, attempt);
        pause(40 * MS).await;
    }
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds"), None);
    let dead = schedule.dead().await.expect("succeeds");
    assert_eq!(dead.iter().map(|dead| (&dead.id[..], dead.attempts)).collect::<Vec<_>>(), [(&b"poison"[..], 3)]);
    schedule.enqueue("poison", Due::Now).await.expect("succeeds");
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds").expect("a new start").attempt, 1);
    assert!(schedule.dead().await.expect("succeeds").is_empty());
}

#[tokio::test]
async fn only_the_server_clock_counts() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("later", Due::After(20 * SECOND)).await.expect("succeeds");
    // The caller passes no time, so its clock can neither make an id due nor end a lease.
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds"), None);
    schedule.enqueue("now", Due::Now).await.expect("succeeds");
    let leased = schedule.get_expired(10 * SECOND).await.expect("succeeds").expect("due");
    assert!((9.0..=10.1).contains(&(set.score("now").expect("leased") - now())), "counted from the server's time");
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds"), None);
    schedule.done(&leased).await.expect("succeeds");
}

#[tokio::test]
async fn takeover_by_a_client_with_a_fast_clock_is_reported_at_the_end() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    let leased = schedule.get_expired(300 * MS).await.expect("succeeds").expect("due");
    assert_eq!(set.post(45.0, 60.0), "a", "the post's script trusts its caller's clock");
    pause(350 * MS).await;
    assert_eq!(schedule.done(&leased).await.expect("succeeds"), DoneResult::NotHeld);
    assert!(set.score("a").is_some(), "the other worker's id is not removed");
}

#[tokio::test]
async fn ids_with_negative_scores_fire() {
    let set = Set::new();
    set.zadd(-5.0, "before 1970");
    let schedule = set.open().await;
    let leased = schedule.get_expired(SECOND).await.expect("succeeds").expect("due");
    assert_eq!(leased.id_lossy(), "before 1970");
    assert_eq!(schedule.done(&leased).await.expect("succeeds"), DoneResult::Removed);
}

#[tokio::test]
async fn lease_can_be_extended_and_released() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    let leased = schedule.get_expired(100 * MS).await.expect("succeeds").expect("due");
    assert!(schedule.extend(&leased, 10 * SECOND).await.expect("succeeds"));
    pause(150 * MS).await;
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds"), None, "still held");
    assert!(schedule.retry(&leased, Duration::ZERO).await.expect("succeeds"));
    let again = schedule.get_expired(SECOND).await.expect("succeeds").expect("given back");
    assert_eq!(again.attempt, 2);
}

#[tokio::test]
async fn batch_is_ordered_by_first_due_even_after_a_crash() {
    let set = Set::new();
    let schedule = set.open().await;
    for n in 0..50 {
        set.zadd(1_000.0 + f64::from(n), &format!("{n:02}"));
    }
    let crashed = schedule.get_expired_batch(30 * MS, 2).await.expect("succeeds");
    assert_eq!(crashed.iter().map(|id| id.id_lossy()).collect::<Vec<_>>(), ["00", "01"]);
    pause(60 * MS).await;
    let batch = schedule.get_expired_batch(SECOND, 3).await.expect("succeeds");
    assert_eq!(
        batch.iter().map(|id| id.id_lossy()).collect::<Vec<_>>(),
        ["00", "01", "02"],
        "must not wait behind the backlog"
    );
    let fences: Vec<_> = batch.iter().map(|id| id.fence).collect();
    assert!(fences.is_sorted() && fences[0] > crashed[1].fence);
}

#[tokio::test]
async fn waiter_sleeps_until_due_or_notified() {
    let set = Set::new();
    let (schedule, other) = (set.open().await, set.open().await);
    schedule.enqueue("later", Due::After(30 * SECOND)).await.expect("succeeds");
    let waiting = tokio::spawn(async move { (other.next_expired(SECOND).await.expect("succeeds"), Instant::now()) });
    pause(200 * MS).await;
    // A wake announces the earlier id, and the waiter then sleeps until it is due.
    let enqueued = Instant::now();
    schedule.enqueue("soon", Due::After(400 * MS)).await.expect("succeeds");
    let (leased, returned) = tokio::time::timeout(10 * SECOND, waiting).await.expect("in time").expect("ran");
    assert_eq!(leased.id_lossy(), "soon");
    let elapsed = returned - enqueued;
    assert!((395 * MS..600 * MS).contains(&elapsed), "after {elapsed:?}");
}

#[tokio::test]
async fn waiting_worker_does_not_poll() {
    let server = servers::Options::new(servers::Binary::Redis).start();
    let schedule = SortedSetSchedule::open(server.url(), "quiet").await.expect("opens");
    schedule.enqueue("far", Due::After(100 * SECOND)).await.expect("succeeds");
    let count = || -> u64 { server.info(&["INFO", "stats"], "total_commands_processed").parse().expect("a number") };
    let _ = tokio::time::timeout(300 * MS, schedule.next_expired(SECOND)).await;
    let before = count();
    let _ = tokio::time::timeout(3 * SECOND, schedule.next_expired(SECOND)).await;
    let sent = count() - before;
    // One poll a second; commands inside scripts are counted as well.
    assert!(sent < 60, "{sent} commands in 3 s");
}

#[tokio::test]
async fn many_workers_get_each_id_once() {
    let set = Set::new();
    let schedule = set.open().await;
    for n in 0..500 {
        set.zadd(now() + f64::from(n) / 1_000.0, &n.to_string());
    }
    let mut workers = Vec::new();
    for _ in 0..4 {
        let worker = set.open().await;
        workers.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            while let Ok(Ok(leased)) = tokio::time::timeout(1_500 * MS, worker.next_expired(60 * SECOND)).await {
                assert_eq!(worker.done(&leased).await.expect("succeeds"), DoneResult::Removed);
                ids.push(leased.id_lossy().parse::<u32>().expect("a number"));
            }
            ids
        }));
    }
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.expect("ran"));
    }
    all.sort_unstable();
    assert_eq!(all, (0..500).collect::<Vec<_>>());
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds"), None);
}

#[tokio::test]
async fn schedule_works_beside_the_original_workers() {
    let set = Set::new();
    set.zadd(now() - 2.0, "a");
    set.zadd(now() - 1.0, "b");
    let schedule = set.open().await;
    let leased = schedule.get_expired(10 * SECOND).await.expect("succeeds").expect("due");
    assert_eq!((leased.id_lossy().as_ref(), set.post(0.0, 10.0).as_str()), ("a", "b"), "each gets a different id");
    assert_eq!(set.post(0.0, 10.0), "", "leased ids are not leased");
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds"), None);
    assert_eq!(schedule.done(&leased).await.expect("succeeds"), DoneResult::Removed);
    set.server.send_command(&["ZREM", &set.key, "b"]);
    assert_eq!(set.server.send_command(&["ZCARD", &set.key]).text(), "0");
}

#[tokio::test]
async fn milliseconds_are_distinguished_from_seconds() {
    let set = Set::new();
    set.zadd((now() * 1_000.0).round() + 60_000.0, "a");
    let schedule = set.open().await;
    assert_eq!(schedule.score_unit(), ScoreUnit::Millis);
    schedule.enqueue("b", Due::Now).await.expect("succeeds");
    assert!((set.score("b").expect("exists") - now() * 1_000.0).abs() < 5_000.0);
    assert_eq!(schedule.get_expired(SECOND).await.expect("succeeds").expect("due").id_lossy(), "b");
    let error = SortedSetSchedule::builder(set.server.url(), &set.key).score_unit(ScoreUnit::Seconds).open().await;
    assert!(error.expect_err("another unit").to_string().contains("are in millis,"));
}

#[tokio::test]
async fn remove_removes_waiting_and_running_ids() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    let leased = schedule.get_expired(10 * SECOND).await.expect("succeeds").expect("due");
    assert!(schedule.remove("a").await.expect("succeeds"));
    assert!(!schedule.remove("a").await.expect("succeeds"));
    assert_eq!(schedule.done(&leased).await.expect("succeeds"), DoneResult::NotHeld);
    let keys = set.server.send_command(&["KEYS", &format!("*{}*", set.key)]);
    let keys: Vec<String> = keys.list().iter().map(|key| key.text()).filter(|key| !key.ends_with("conf")).collect();
    assert!(keys.is_empty(), "keys were left behind: {keys:?}");
}

#[tokio::test]
async fn schedule_works_on_a_cluster() {
    let key = format!("scheduled:{}", JobId::fresh());
    let schedule = SortedSetSchedule::open(servers::cluster().url(), &key).await.expect("opens");
    schedule.enqueue("a", Due::Now).await.expect("succeeds");
    let leased = schedule.next_expired(SECOND).await.expect("due");
    assert_eq!(schedule.done(&leased).await.expect("succeeds"), DoneResult::Removed);
}

/// Waiting workers then get no wake, and poll once a second.
#[tokio::test]
async fn user_without_publish_rights_can_enqueue() {
    let users = "user default on nopass ~* &* +@all\nuser app on >secret ~* +@all resetchannels";
    let server = Options::new(Binary::Redis).users(users).start();
    let url = server.url().replacen("redis://", "redis://app:secret@", 1);
    let schedule = SortedSetSchedule::open(url, "objects").await.expect("opens");
    assert_eq!(schedule.enqueue("a", Due::Now).await.expect("enqueues"), EnqueueResult::Scheduled);
    let leased = schedule.get_expired(SECOND).await.expect("takes").expect("is due");
    assert!(schedule.retry(&leased, Duration::ZERO).await.expect("is held"), "released");
    let leased = schedule.get_expired(SECOND).await.expect("takes").expect("is due again");
    assert_eq!(schedule.enqueue("a", Due::Now).await.expect("enqueues"), EnqueueResult::AfterCurrent);
    assert_eq!(schedule.done(&leased).await.expect("is held"), DoneResult::Rescheduled);
    assert_eq!(server.send_command(&["ZCARD", "objects"]).text(), "1");
}

/// An option without effect is rejected, so that no user relies on it.
#[tokio::test]
async fn schedule_and_actionhero_locks_reject_replicas() {
    let server = servers::redis();
    let assert_rejected = |opened: duly::Result<()>| {
        let error = opened.expect_err("rejected");
        assert!(error.code() == "invalid" && error.to_string().starts_with("replicas: "), "{error}");
        assert!(error.to_string().ends_with("remove `replicas` from this URL"), "{error}");
    };
    assert_rejected(SortedSetSchedule::open(format!("{}?replicas=1", server.url()), "objects").await.map(drop));
    let url = server.url().replacen("redis://", "actionhero://", 1);
    assert_rejected(duly::Duly::open(format!("{url}?replicas=1")).await.map(drop));
    let bridge = duly::compat::actionhero::Bridge::builder(format!("{url}?replicas=1")).token("x");
    assert_rejected(bridge.join().await.map(drop));
    let duly = duly::Duly::open(format!("{url}?replicas=0")).await.expect("opens");
    let health = duly.health().await.expect("succeeds");
    assert!(!health.durability.contains("replicas="), "must not recommend `replicas`: {}", health.durability);
}
