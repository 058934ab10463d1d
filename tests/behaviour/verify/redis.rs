//! Violations in the keys of a server, as another client may cause them, and verify during concurrent changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use duly::admin::Invariant;
use duly::{Ctx, Duly, Filter, JobId, Push, State};

use crate::verify::{PopulatedStore, assert_found_and_repaired, populate};
use test_support::servers::{self, Reply};

/// A queue on a shared server, under its own prefix.
struct Sandbox {
    prefix: String,
    url: String,
    send: fn(&[Vec<u8>]) -> Reply,
}

impl Sandbox {
    fn new(url: String, send: fn(&[Vec<u8>]) -> Reply) -> Sandbox {
        let prefix = JobId::fresh().to_string();
        Sandbox { url: format!("{url}?prefix={prefix}&lease=1h"), prefix, send }
    }

    /// Runs a command on a key of the queue.
    fn command(&self, command: &str, key: &str, args: &[&[u8]]) -> Reply {
        let key = format!("{}:queue:{{default}}:{key}", self.prefix);
        let words = [command.as_bytes(), key.as_bytes()].into_iter().chain(args.iter().copied());
        let reply = (self.send)(&words.map(<[u8]>::to_vec).collect::<Vec<_>>());
        assert!(!matches!(reply, Reply::Error(_)), "{command} {key}: {reply:?}");
        reply
    }

    /// The same for a command that returns text.
    fn text(&self, command: &str, key: &str, args: &[&[u8]]) -> Vec<u8> {
        match self.command(command, key, args) {
            Reply::Text(bytes) => bytes,
            other => panic!("{command} {key}: {other:?}"),
        }
    }
}

/// A name, the violated invariant, whether it is repairable, and the change that causes it.
type Seed = (&'static str, Invariant, bool, fn(&Sandbox, &PopulatedStore));

const SEEDS: &[Seed] = &[
    ("a ticket is gone", Invariant::OneState, true, |sandbox, _| drop(sandbox.text("LPOP", "ready:normal", &[]))),
    ("ready and done", Invariant::OneState, true, |sandbox, p| {
        sandbox.command("ZADD", "done", &[b"9000000000000000", p.ids[1].as_bytes()]);
    }),
    ("ready twice", Invariant::OneState, true, |sandbox, p| {
        drop(sandbox.command("RPUSH", "ready:normal", &[p.ids[1].as_bytes()]))
    }),
    ("ready without a record", Invariant::HasRecord, true, |sandbox, p| {
        drop(sandbox.command("HDEL", "job", &[p.ids[1].as_bytes()]))
    }),
    ("in the wrong list", Invariant::QueuePosition, true, |sandbox, _| {
        let ticket = sandbox.text("LPOP", "ready:normal", &[]);
        sandbox.command("RPUSH", "ready:low", &[&ticket]);
    }),
    ("scheduled by a wrong ticket", Invariant::QueuePosition, true, |sandbox, p| {
        let id = p.ids[3].as_bytes();
        sandbox.command("ZREM", "scheduled", &[&[&id[..], b"2 later"].concat()]);
        sandbox.command("ZADD", "scheduled", &[b"9000000000000000", &[&id[..], b"0 later"].concat()]);
    }),
    ("a stale mark without a ticket", Invariant::QueuePosition, true, |sandbox, p| {
        sandbox.command("SADD", "stale", &[&[p.ids[1].as_bytes(), &b"c7"[..]].concat()]);
    }),
    ("held by an unknown node", Invariant::Holders, true, |sandbox, p| {
        sandbox.command("ZREM", "lease", &[p.node.to_string().as_bytes()]);
    }),
    ("bytes are miscounted", Invariant::Counts, true, |sandbox, _| {
        drop(sandbox.command("HINCRBY", "conf", &[b"bytes", b"5"]))
    }),
    ("a group is miscounted", Invariant::Counts, true, |sandbox, _| {
        let groups = sandbox.command("HGETALL", "groups", &[]);
        let (group, text) = (groups.list()[0].text(), groups.list()[1].text());
        sandbox.command("HSET", "groups", &[group.as_bytes(), format!("0000000009{}", &text[10..]).as_bytes()]);
    }),
    ("a next tick before every rule", Invariant::CronTicks, true, |sandbox, _| {
        drop(sandbox.command("HSET", "conf", &[b"next_tick", b"0000000000000005"]))
    }),
    ("progress without a job", Invariant::AttemptRecords, true, |sandbox, _| {
        sandbox.command("HSET", "progress", &[&[JobId::fresh().as_bytes(), &b"n"[..]].concat(), b"0"]);
    }),
    ("args are corrupted", Invariant::Readable, false, |sandbox, p| {
        let mut record = sandbox.text("HGET", "job", &[p.ids[1].as_bytes()]);
        let last = record.len() - 2;
        record[last] ^= 1;
        sandbox.command("HSET", "job", &[p.ids[1].as_bytes(), &record]);
    }),
    ("holds are miscounted", Invariant::Holders, true, |sandbox, p| {
        sandbox.command("HSET", "conf", &[p.node.to_string().as_bytes(), b"7"]);
    }),
    ("unique keys are missing", Invariant::UniqueKeys, true, |sandbox, _| drop(sandbox.command("DEL", "unique", &[]))),
    ("a unique key of an unknown job", Invariant::UniqueKeys, true, |sandbox, _| {
        sandbox.command("HSET", "unique", &[b"nobody", JobId::fresh().as_bytes()]);
    }),
    ("a unique key of a job without one", Invariant::UniqueKeys, true, |sandbox, p| {
        sandbox.command("HSET", "unique", &[b"other", p.ids[1].as_bytes()]);
    }),
    ("metadata without a job", Invariant::AttemptRecords, true, |sandbox, _| {
        sandbox.command("HSET", "meta", &[JobId::fresh().as_bytes(), "0".repeat(72).as_bytes()]);
    }),
    ("a failure without a job", Invariant::AttemptRecords, true, |sandbox, _| {
        sandbox.command("HSET", "runs", &[&[JobId::fresh().as_bytes(), &b"1"[..]].concat(), b"oh"]);
    }),
    ("a fence from the future", Invariant::Sequences, true, |sandbox, _| {
        drop(sandbox.command("HSET", "conf", &[b"fence", b"5"]))
    }),
    ("an existing id is remembered as removed", Invariant::RememberedIds, true, |sandbox, p| {
        drop(sandbox.command("SADD", "removed:1", &[p.ids[1].as_bytes()]))
    }),
    ("stale tickets are hidden", Invariant::Counts, true, |sandbox, _| {
        // The ticket of a job that was removed while many others were behind it.
        sandbox.command("RPUSH", "ready:normal", &[b"a gone job's id."]);
        sandbox.command("SADD", "stale", &[b"a gone job's id."]);
        sandbox.command("HDEL", "conf", &[b"has_stale"]);
    }),
    ("bytes are miscounted", Invariant::Counts, true, |sandbox, _| {
        drop(sandbox.command("HSET", "conf", &[b"bytes", b"12345"]))
    }),
    ("bytes are not counted", Invariant::Counts, true, |sandbox, _| drop(sandbox.command("HDEL", "conf", &[b"bytes"]))),
    ("a group is miscounted", Invariant::Counts, true, |sandbox, _| {
        let group = sandbox.command("HKEYS", "groups", &[]).list()[0].text();
        let group_text = sandbox.text("HGET", "groups", &[group.as_bytes()]);
        sandbox.command("HSET", "groups", &[group.as_bytes(), &[b"0000000007", &group_text[10..]].concat()]);
    }),
    ("a group is gone", Invariant::Counts, true, |sandbox, _| drop(sandbox.command("DEL", "groups", &[]))),
    ("a group without jobs", Invariant::Counts, true, |sandbox, _| {
        let group_text = format!("0000000001{}{}kind\toh", "0".repeat(16), "0".repeat(16));
        sandbox.command("HSET", "groups", &[b"00000000000000ff", group_text.as_bytes()]);
    }),
    ("the keep time of done jobs is missing", Invariant::Counts, true, |sandbox, _| {
        drop(sandbox.command("HDEL", "conf", &[b"done_retention"]))
    }),
    ("the whole index is missing", Invariant::JobIndex, true, |sandbox, _| {
        drop(sandbox.command("DEL", "job_index", &[]))
    }),
    ("an index entry of a scheduled job is missing", Invariant::JobIndex, true, |sandbox, _| {
        let members = sandbox.command("ZRANGEBYLEX", "job_index", &[b"[skretried", b"(skretriee"]).list().to_vec();
        assert_eq!(members.len(), 1);
        let Reply::Text(member) = &members[0] else { panic!("no member: {members:?}") };
        sandbox.command("ZREM", "job_index", &[member]);
    }),
    ("an index entry with a wrong tag", Invariant::JobIndex, true, |sandbox, p| {
        let member = [b"stblue\x009000000000000000", &p.ids[3].as_bytes()[..]].concat();
        sandbox.command("ZADD", "job_index", &[b"0", &member]);
    }),
    ("an index entry without a job", Invariant::JobIndex, true, |sandbox, _| {
        let member = [b"bkmail\x009000000000000000", &JobId::fresh().as_bytes()[..]].concat();
        sandbox.command("ZADD", "job_index", &[b"0", &member]);
    }),
    ("a dead job without its index terms", Invariant::JobIndex, true, |sandbox, _| {
        let dead = sandbox.command("ZRANGE", "dead", &[b"0", b"0"]);
        let Reply::Text(id) = &dead.list()[0] else { panic!("none is dead") };
        let meta = sandbox.text("HGET", "meta", &[id]);
        sandbox.command("HSET", "meta", &[id, &meta[..72]]);
    }),
    ("a rule without a tick", Invariant::CronTicks, true, |sandbox, _| {
        drop(sandbox.command("ZREM", "ticks", &[b"daily"]))
    }),
    ("a rule with a wrong tick", Invariant::CronTicks, true, |sandbox, _| {
        sandbox.command("ZADD", "ticks", &[b"9000000000000000", b"daily"]);
    }),
    ("a paused rule with a tick", Invariant::CronTicks, true, |sandbox, _| {
        sandbox.command("ZADD", "ticks", &[b"9000000000000000", b"paused"]);
    }),
    ("a tick without a rule", Invariant::CronTicks, true, |sandbox, _| {
        sandbox.command("ZADD", "ticks", &[b"9000000000000000", b"nobody"]);
    }),
    ("claims return a wrong tick", Invariant::CronTicks, true, |sandbox, _| {
        drop(sandbox.command("HSET", "conf", &[b"next_tick", b"5"]))
    }),
    ("a rule that cannot be read", Invariant::Readable, false, |sandbox, _| {
        drop(sandbox.command("HSET", "cron", &[b"daily", b"?"]))
    }),
    ("a record that cannot be read", Invariant::Readable, false, |sandbox, p| {
        sandbox.command("HSET", "job", &[p.ids[1].as_bytes(), b"12\tgarbage"]);
    }),
];

async fn assert_every_violation_is_repaired(url: String, send: fn(&[Vec<u8>]) -> Reply) {
    for (name, invariant, is_repairable, seed) in SEEDS {
        let sandbox = Sandbox::new(url.clone(), send);
        let populated = populate(&sandbox.url).await;
        assert_found_and_repaired(&populated, *invariant, *is_repairable, name, || seed(&sandbox, &populated)).await;
    }
}

/// Kind and due time of a scheduled job.
type ScheduledJob = (String, SystemTime);
const TOLERANCE: Duration = Duration::from_secs(5);

/// The due time is in the ticket and in the record of the job.
#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn scheduled_job_without_entry_is_not_repaired_before_due() {
    let sandbox = Sandbox::new(servers::redis().url(), |command| servers::redis().send_command(command));
    let PopulatedStore { duly, .. } = populate(&sandbox.url).await;
    let scheduled_jobs = async || {
        let scheduled = Filter::all().state(State::Scheduled);
        let mut jobs = duly.jobs().list(scheduled).await.expect("lists").jobs;
        jobs.sort_by_key(|record| record.job.id);
        jobs.into_iter().map(|record| (record.job.kind, record.due)).collect::<Vec<ScheduledJob>>()
    };
    let before = scheduled_jobs().await;
    assert_eq!(before.len(), 2, "one pushed for later, and one retried");
    sandbox.command("DEL", "scheduled", &[]);
    assert_eq!(scheduled_jobs().await, []);
    let dir = test_support::temp_dir();
    let repair = duly.repair(dir.path().join("copy.db")).await.expect("repairs");
    assert_eq!(repair.after.violations, []);
    // The record has the due time by the clock of the pusher, which may differ from the server's.
    let is_near =
        |(before, after): (&ScheduledJob, &ScheduledJob)| before.0 == after.0 && after.1 > before.1 - TOLERANCE;
    let after = scheduled_jobs().await;
    assert!(after.len() == before.len() && before.iter().zip(&after).all(is_near), "{before:?} {after:?}");
}

#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn every_violation_is_found_and_repaired_on_redis() {
    assert_every_violation_is_repaired(servers::redis().url(), |command| servers::redis().send_command(command)).await;
}

#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn every_violation_is_found_and_repaired_on_valkey() {
    assert_every_violation_is_repaired(servers::valkey().url(), |command| servers::valkey().send_command(command))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs servers: ./check stores"]
async fn concurrent_changes_are_not_violations() {
    let sandbox = Sandbox::new(servers::redis().url(), |command| servers::redis().send_command(command));
    let duly = Duly::open(&sandbox.url).await.expect("opens");
    let stopped = Arc::new(AtomicBool::new(false));
    let pusher = tokio::spawn({
        let (duly, stopped) = (duly.clone(), stopped.clone());
        async move {
            while !stopped.load(Ordering::Relaxed) {
                let jobs = (0..50).map(|n| Push::new("one", "1").unique(format!("key {n}")).keep(Duration::ZERO));
                duly.push_all(jobs).await.expect("pushes");
            }
        }
    });
    let stop = duly::CancellationToken::new();
    let fail_twice = |ctx: Ctx| async move { if ctx.attempt() < 3 { Err("once more") } else { Ok(()) } };
    let retry = duly::Retry::fixed(Duration::from_millis(1));
    let worker = duly.worker().queue("default", 20).default_retry(retry).on_any_kind(fail_twice);
    let work = tokio::spawn(worker.run_until(stop.clone()));
    for _ in 0..10 {
        let report = duly.verify().await.expect("verifies");
        assert_eq!(report.violations, Vec::new());
    }
    stopped.store(true, Ordering::Relaxed);
    pusher.await.expect("no panic");
    stop.cancel();
    let summary = work.await.expect("no panic").expect("ends well");
    assert!(summary.acked > 0, "jobs ran meanwhile");
    assert_eq!(duly.verify().await.expect("verifies").violations, Vec::new());
}
