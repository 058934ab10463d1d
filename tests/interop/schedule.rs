//! The schedule in one sorted set, safe against everything that goes wrong with the few lines that many have for it.

use std::time::{Duration, Instant, SystemTime};

use duly::compat::{DoneResult, EnqueueResult, ScoreUnit, SortedSetSchedule};
use duly::{Due, JobId};

use test_support::servers::{self, Binary, Options, Server};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The script of the post, as it is printed there.
const POST: &str = "local res = redis.call('ZRANGEBYSCORE',KEYS[1],0,ARGV[1],'LIMIT',0,1)
if #res > 0 then
  redis.call('ZADD', KEYS[1], ARGV[2], res[1])
  return res[1]
else
  return false
end";

/// A set of its own on the shared server.
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

    /// A worker of the post, whose clock is so far ahead.
    fn post(&self, ahead: f64, lease: f64) -> String {
        let now = now() + ahead;
        self.server.ask(&["EVAL", POST, "1", &self.key, &now.to_string(), &(now + lease).to_string()]).text()
    }

    fn zadd(&self, score: f64, id: &str) {
        self.server.ask(&["ZADD", &self.key, &score.to_string(), id]);
    }

    fn score(&self, id: &str) -> Option<f64> {
        self.server.ask(&["ZSCORE", &self.key, id]).text().parse().ok()
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
    schedule.enqueue("a", Due::Now).await.expect("answers");
    let late = schedule.get_expired(50 * MS).await.expect("answers").expect("due");
    pause(80 * MS).await;
    let present = schedule.get_expired(10 * SECOND).await.expect("answers").expect("due again");
    assert!(present.fence > late.fence && present.attempt == 2 && present.due == late.due);
    assert_eq!(schedule.done(&late).await.expect("answers"), DoneResult::NotHeld, "the late one is told");
    assert!(!schedule.extend(&late, SECOND).await.expect("answers"));
    assert!(set.score("a").is_some(), "nothing was removed");
    assert_eq!(schedule.done(&present).await.expect("answers"), DoneResult::Removed);
    assert_eq!(set.score("a"), None);
    assert_eq!(schedule.done(&present).await.expect("answers"), DoneResult::NotHeld, "once");
}

#[tokio::test]
async fn occurrence_requested_while_running_is_not_lost() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("answers");
    let first = schedule.get_expired(10 * SECOND).await.expect("answers").expect("due");
    let again = schedule.enqueue("a", Due::After(100 * SECOND)).await.expect("answers");
    assert_eq!(again, EnqueueResult::AfterCurrent);
    assert_eq!(schedule.done(&first).await.expect("answers"), DoneResult::Rescheduled);
    let left = set.score("a").expect("the next occurrence") - now();
    assert!((95.0..=100.5).contains(&left), "in {left} s");
}

#[tokio::test]
async fn occurrence_requested_by_others_while_running_is_not_lost() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("answers");
    let first = schedule.get_expired(10 * SECOND).await.expect("answers").expect("due");
    set.zadd(now() + 100.0, "a");
    assert_eq!(schedule.done(&first).await.expect("answers"), DoneResult::Rescheduled);
    assert!(set.score("a").is_some_and(|score| score > now() + 90.0));
}

#[tokio::test]
async fn occurrence_requested_while_running_does_not_run_concurrently() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("answers");
    let first = schedule.get_expired(10 * SECOND).await.expect("answers").expect("due");
    schedule.enqueue("a", Due::Now).await.expect("answers");
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers"), None, "it runs already");
    // Somebody who knows only the set.
    set.zadd(now() - 1.0, "a");
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers"), None, "it runs already");
    assert_eq!(schedule.done(&first).await.expect("answers"), DoneResult::Rescheduled);
    let second = schedule.get_expired(SECOND).await.expect("answers").expect("its next occurrence");
    assert_eq!((second.attempt, schedule.done(&second).await.expect("answers")), (1, DoneResult::Removed));
}

#[tokio::test]
async fn crashing_id_is_counted_and_given_up() {
    let set = Set::new();
    let schedule = SortedSetSchedule::builder(set.server.url(), &set.key).max_attempts(3).open().await.expect("opens");
    schedule.enqueue("poison", Due::Now).await.expect("answers");
    for attempt in 1..=3 {
        let taken = schedule.get_expired(20 * MS).await.expect("answers").expect("due");
        assert_eq!(taken.attempt, attempt);
        pause(40 * MS).await;
    }
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers"), None);
    let dead = schedule.dead().await.expect("answers");
    assert_eq!(dead.iter().map(|dead| (&dead.id[..], dead.attempts)).collect::<Vec<_>>(), [(&b"poison"[..], 3)]);
    schedule.enqueue("poison", Due::Now).await.expect("answers");
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers").expect("a new start").attempt, 1);
    assert!(schedule.dead().await.expect("answers").is_empty());
}

#[tokio::test]
async fn only_the_server_clock_counts() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("later", Due::After(20 * SECOND)).await.expect("answers");
    // A caller passes no time at all: nothing it believes can make this due, or end a lease.
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers"), None);
    schedule.enqueue("now", Due::Now).await.expect("answers");
    let taken = schedule.get_expired(10 * SECOND).await.expect("answers").expect("due");
    assert!((9.0..=10.1).contains(&(set.score("now").expect("leased") - now())), "the lease is the server's time on");
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers"), None);
    schedule.done(&taken).await.expect("answers");
}

#[tokio::test]
async fn takeover_by_a_client_with_a_fast_clock_is_reported_at_the_end() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("answers");
    let ours = schedule.get_expired(300 * MS).await.expect("answers").expect("due");
    assert_eq!(set.post(45.0, 60.0), "a", "the post's script believes its caller");
    pause(350 * MS).await;
    assert_eq!(schedule.done(&ours).await.expect("answers"), DoneResult::NotHeld);
    assert!(set.score("a").is_some(), "theirs is not removed");
}

#[tokio::test]
async fn ids_with_negative_scores_fire() {
    let set = Set::new();
    set.zadd(-5.0, "before 1970");
    let schedule = set.open().await;
    let taken = schedule.get_expired(SECOND).await.expect("answers").expect("due");
    assert_eq!(taken.id_lossy(), "before 1970");
    assert_eq!(schedule.done(&taken).await.expect("answers"), DoneResult::Removed);
}

#[tokio::test]
async fn lease_can_be_extended_and_released() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("answers");
    let taken = schedule.get_expired(100 * MS).await.expect("answers").expect("due");
    assert!(schedule.extend(&taken, 10 * SECOND).await.expect("answers"));
    pause(150 * MS).await;
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers"), None, "still held");
    assert!(schedule.retry(&taken, Duration::ZERO).await.expect("answers"));
    let again = schedule.get_expired(SECOND).await.expect("answers").expect("given back");
    assert_eq!(again.attempt, 2);
}

#[tokio::test]
async fn batch_is_ordered_by_first_due_even_after_a_crash() {
    let set = Set::new();
    let schedule = set.open().await;
    for n in 0..50 {
        set.zadd(1_000.0 + f64::from(n), &format!("{n:02}"));
    }
    let crashed = schedule.get_expired_batch(30 * MS, 2).await.expect("answers");
    assert_eq!(crashed.iter().map(|one| one.id_lossy()).collect::<Vec<_>>(), ["00", "01"]);
    pause(60 * MS).await;
    let batch = schedule.get_expired_batch(SECOND, 3).await.expect("answers");
    assert_eq!(
        batch.iter().map(|one| one.id_lossy()).collect::<Vec<_>>(),
        ["00", "01", "02"],
        "not behind the backlog"
    );
    let tokens: Vec<_> = batch.iter().map(|one| one.fence).collect();
    assert!(tokens.is_sorted() && tokens[0] > crashed[1].fence);
}

#[tokio::test]
async fn waiter_sleeps_until_due_or_notified() {
    let set = Set::new();
    let (schedule, other) = (set.open().await, set.open().await);
    schedule.enqueue("later", Due::After(30 * SECOND)).await.expect("answers");
    let waits = tokio::spawn(async move { (other.next_expired(SECOND).await.expect("answers"), Instant::now()) });
    pause(200 * MS).await;
    // Sooner than it thinks: it is told, and then sleeps until the very moment.
    let asked = Instant::now();
    schedule.enqueue("soon", Due::After(400 * MS)).await.expect("answers");
    let (taken, at) = tokio::time::timeout(10 * SECOND, waits).await.expect("in time").expect("ran");
    assert_eq!(taken.id_lossy(), "soon");
    let took = at - asked;
    assert!((395 * MS..600 * MS).contains(&took), "after {took:?}");
}

#[tokio::test]
async fn waiting_worker_does_not_poll() {
    let server = servers::Options::new(servers::Binary::Redis).start();
    let schedule = SortedSetSchedule::open(server.url(), "quiet").await.expect("opens");
    schedule.enqueue("far", Due::After(100 * SECOND)).await.expect("answers");
    let count = || -> u64 { server.info(&["INFO", "stats"], "total_commands_processed").parse().expect("a number") };
    let _ = tokio::time::timeout(300 * MS, schedule.next_expired(SECOND)).await;
    let before = count();
    let _ = tokio::time::timeout(3 * SECOND, schedule.next_expired(SECOND)).await;
    let sent = count() - before;
    // A look a second, and what a script does inside is counted as well.
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
            let mut got = Vec::new();
            while let Ok(Ok(taken)) = tokio::time::timeout(1_500 * MS, worker.next_expired(60 * SECOND)).await {
                assert_eq!(worker.done(&taken).await.expect("answers"), DoneResult::Removed);
                got.push(taken.id_lossy().parse::<u32>().expect("a number"));
            }
            got
        }));
    }
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.expect("ran"));
    }
    all.sort_unstable();
    assert_eq!(all, (0..500).collect::<Vec<_>>());
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers"), None);
}

#[tokio::test]
async fn schedule_works_beside_the_original_workers() {
    let set = Set::new();
    set.zadd(now() - 2.0, "a");
    set.zadd(now() - 1.0, "b");
    let schedule = set.open().await;
    let ours = schedule.get_expired(10 * SECOND).await.expect("answers").expect("due");
    assert_eq!((ours.id_lossy().as_ref(), set.post(0.0, 10.0).as_str()), ("a", "b"), "each gets another");
    assert_eq!(set.post(0.0, 10.0), "", "and leaves alone what the other has");
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers"), None);
    assert_eq!(schedule.done(&ours).await.expect("answers"), DoneResult::Removed);
    set.server.ask(&["ZREM", &set.key, "b"]);
    assert_eq!(set.server.ask(&["ZCARD", &set.key]).text(), "0");
}

#[tokio::test]
async fn milliseconds_are_distinguished_from_seconds() {
    let set = Set::new();
    set.zadd((now() * 1_000.0).round() + 60_000.0, "a");
    let schedule = set.open().await;
    assert_eq!(schedule.score_unit(), ScoreUnit::Millis);
    schedule.enqueue("b", Due::Now).await.expect("answers");
    assert!((set.score("b").expect("there") - now() * 1_000.0).abs() < 5_000.0);
    assert_eq!(schedule.get_expired(SECOND).await.expect("answers").expect("due").id_lossy(), "b");
    let error = SortedSetSchedule::builder(set.server.url(), &set.key).score_unit(ScoreUnit::Seconds).open().await;
    assert!(error.expect_err("they disagree").to_string().contains("counts millis"));
}

#[tokio::test]
async fn remove_removes_waiting_and_running_ids() {
    let set = Set::new();
    let schedule = set.open().await;
    schedule.enqueue("a", Due::Now).await.expect("answers");
    let taken = schedule.get_expired(10 * SECOND).await.expect("answers").expect("due");
    assert!(schedule.remove("a").await.expect("answers"));
    assert!(!schedule.remove("a").await.expect("answers"));
    assert_eq!(schedule.done(&taken).await.expect("answers"), DoneResult::NotHeld);
    let left = set.server.ask(&["KEYS", &format!("*{}*", set.key)]);
    let left: Vec<String> = left.list().iter().map(|key| key.text()).filter(|key| !key.ends_with("conf")).collect();
    assert!(left.is_empty(), "nothing is left behind: {left:?}");
}

#[tokio::test]
async fn schedule_works_on_a_cluster() {
    let key = format!("scheduled:{}", JobId::fresh());
    let schedule = SortedSetSchedule::open(servers::cluster().url(), &key).await.expect("opens");
    schedule.enqueue("a", Due::Now).await.expect("answers");
    let taken = schedule.next_expired(SECOND).await.expect("due");
    assert_eq!(schedule.done(&taken).await.expect("answers"), DoneResult::Removed);
}

/// Who waits is told by nobody then, and looks once a second.
#[tokio::test]
async fn user_without_publish_rights_can_enqueue() {
    let users = "user default on nopass ~* &* +@all\nuser app on >secret ~* +@all resetchannels";
    let server = Options::new(Binary::Redis).users(users).start();
    let url = server.url().replacen("redis://", "redis://app:secret@", 1);
    let schedule = SortedSetSchedule::open(url, "objects").await.expect("opens");
    assert_eq!(schedule.enqueue("a", Due::Now).await.expect("is there"), EnqueueResult::Scheduled);
    let taken = schedule.get_expired(SECOND).await.expect("takes").expect("is due");
    assert!(schedule.retry(&taken, Duration::ZERO).await.expect("is held"), "and is given back");
    let taken = schedule.get_expired(SECOND).await.expect("takes").expect("is due again");
    assert_eq!(schedule.enqueue("a", Due::Now).await.expect("runs"), EnqueueResult::AfterCurrent);
    assert_eq!(schedule.done(&taken).await.expect("is held"), DoneResult::Rescheduled);
    assert_eq!(server.ask(&["ZCARD", "objects"]).text(), "1");
}

/// What nothing here keeps to is refused, rather than believed in.
#[tokio::test]
async fn schedule_and_actionhero_locks_reject_replicas() {
    let server = servers::redis();
    let refused = |opened: duly::Result<()>| {
        let error = opened.expect_err("refused");
        assert!(error.code() == "invalid" && error.to_string().starts_with("replicas: "), "{error}");
        assert!(error.to_string().ends_with("Leave it out of this URL"), "{error}");
    };
    refused(SortedSetSchedule::open(format!("{}?replicas=1", server.url()), "objects").await.map(drop));
    let url = server.url().replacen("redis://", "actionhero://", 1);
    refused(duly::Duly::open(format!("{url}?replicas=1")).await.map(drop));
    let bridge = duly::compat::actionhero::Bridge::builder(format!("{url}?replicas=1")).token("x");
    refused(bridge.join().await.map(drop));
    let duly = duly::Duly::open(format!("{url}?replicas=0")).await.expect("opens");
    let health = duly.health().await.expect("answers");
    assert!(!health.durability.contains("replicas="), "nor does it advise it: {}", health.durability);
}
