//! On a server: what somebody with another client may do to its keys, and a look while everything moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use duly::{Ctx, Duly, Filter, Invariant, JobId, Push, State};

use crate::verify::{Populated, found_and_repaired, populate};
use test_support::servers::{self, Reply};

/// A queue on a server under a prefix of its own.
struct Sandbox {
    prefix: String,
    url: String,
    ask: fn(&[Vec<u8>]) -> Reply,
}

impl Sandbox {
    fn new(url: String, ask: fn(&[Vec<u8>]) -> Reply) -> Sandbox {
        let prefix = JobId::fresh().to_string();
        Sandbox { url: format!("{url}?prefix={prefix}&lease=1h"), prefix, ask }
    }

    /// A command on a key of the queue.
    fn tell(&self, command: &str, key: &str, args: &[&[u8]]) -> Reply {
        let key = format!("{}:queue:{{default}}:{key}", self.prefix);
        let words = [command.as_bytes(), key.as_bytes()].into_iter().chain(args.iter().copied());
        let reply = (self.ask)(&words.map(<[u8]>::to_vec).collect::<Vec<_>>());
        assert!(!matches!(reply, Reply::Error(_)), "{command} {key}: {reply:?}");
        reply
    }

    fn text(&self, command: &str, key: &str, args: &[&[u8]]) -> Vec<u8> {
        match self.tell(command, key, args) {
            Reply::Text(bytes) => bytes,
            other => panic!("{command} {key}: {other:?}"),
        }
    }
}

/// A name, the rule that it breaks, whether it can be put right, and how it is done.
type Seed = (&'static str, Invariant, bool, fn(&Sandbox, &Populated));

const SEEDS: &[Seed] = &[
    ("a ticket is gone", Invariant::OneState, true, |sandbox, _| drop(sandbox.text("LPOP", "ready:normal", &[]))),
    ("ready and done", Invariant::OneState, true, |sandbox, p| {
        sandbox.tell("ZADD", "done", &[b"9000000000000000", p.ids[1].as_bytes()]);
    }),
    ("ready twice", Invariant::OneState, true, |sandbox, p| {
        drop(sandbox.tell("RPUSH", "ready:normal", &[p.ids[1].as_bytes()]))
    }),
    ("ready without a record", Invariant::HasRecord, true, |sandbox, p| {
        drop(sandbox.tell("HDEL", "job", &[p.ids[1].as_bytes()]))
    }),
    ("in the wrong list", Invariant::QueuePosition, true, |sandbox, _| {
        let ticket = sandbox.text("LPOP", "ready:normal", &[]);
        sandbox.tell("RPUSH", "ready:low", &[&ticket]);
    }),
    ("scheduled by a wrong ticket", Invariant::QueuePosition, true, |sandbox, p| {
        let id = p.ids[3].as_bytes();
        sandbox.tell("ZREM", "due", &[&[&id[..], b"2 later"].concat()]);
        sandbox.tell("ZADD", "due", &[b"9000000000000000", &[&id[..], b"0 later"].concat()]);
    }),
    ("a note of a ticket that is nowhere", Invariant::QueuePosition, true, |sandbox, p| {
        sandbox.tell("SADD", "stale", &[&[p.ids[1].as_bytes(), &b"c7"[..]].concat()]);
    }),
    ("held by nobody", Invariant::Holders, true, |sandbox, p| {
        sandbox.tell("ZREM", "lease", &[p.node.to_string().as_bytes()]);
    }),
    ("bytes are miscounted", Invariant::Counts, true, |sandbox, _| {
        drop(sandbox.tell("HINCRBY", "conf", &[b"bytes", b"5"]))
    }),
    ("a group is miscounted", Invariant::Counts, true, |sandbox, _| {
        let groups = sandbox.tell("HGETALL", "groups", &[]);
        let (group, text) = (groups.list()[0].text(), groups.list()[1].text());
        sandbox.tell("HSET", "groups", &[group.as_bytes(), format!("0000000009{}", &text[10..]).as_bytes()]);
    }),
    ("a tick for no rule", Invariant::CronTicks, true, |sandbox, _| {
        drop(sandbox.tell("HSET", "conf", &[b"tick", b"0000000000000005"]))
    }),
    ("something said by no job", Invariant::AttemptRecords, true, |sandbox, _| {
        sandbox.tell("HSET", "notes", &[&[JobId::fresh().as_bytes(), &b"n"[..]].concat(), b"0"]);
    }),
    ("args are not what was written", Invariant::Readable, false, |sandbox, p| {
        let mut record = sandbox.text("HGET", "job", &[p.ids[1].as_bytes()]);
        let last = record.len() - 2;
        record[last] ^= 1;
        sandbox.tell("HSET", "job", &[p.ids[1].as_bytes(), &record]);
    }),
    ("holds are miscounted", Invariant::Holders, true, |sandbox, p| {
        sandbox.tell("HSET", "conf", &[p.node.to_string().as_bytes(), b"7"]);
    }),
    ("keys are free that are taken", Invariant::UniqueKeys, true, |sandbox, _| {
        drop(sandbox.tell("DEL", "unique", &[]))
    }),
    ("a key of nobody", Invariant::UniqueKeys, true, |sandbox, _| {
        sandbox.tell("HSET", "unique", &[b"nobody", JobId::fresh().as_bytes()]);
    }),
    ("a key of another", Invariant::UniqueKeys, true, |sandbox, p| {
        sandbox.tell("HSET", "unique", &[b"other", p.ids[1].as_bytes()]);
    }),
    ("a note of no job", Invariant::AttemptRecords, true, |sandbox, _| {
        sandbox.tell("HSET", "meta", &[JobId::fresh().as_bytes(), "0".repeat(72).as_bytes()]);
    }),
    ("a failure of no job", Invariant::AttemptRecords, true, |sandbox, _| {
        sandbox.tell("HSET", "errors", &[&[JobId::fresh().as_bytes(), &b"1"[..]].concat(), b"oh"]);
    }),
    ("a fence from the future", Invariant::Sequences, true, |sandbox, _| {
        drop(sandbox.tell("HSET", "conf", &[b"fence", b"5"]))
    }),
    ("there and gone", Invariant::RememberedIds, true, |sandbox, p| {
        drop(sandbox.tell("SADD", "gone:1", &[p.ids[1].as_bytes()]))
    }),
    ("stale tickets are hidden", Invariant::Counts, true, |sandbox, _| {
        // As of a job that was removed when many others stood behind it.
        sandbox.tell("RPUSH", "ready:normal", &[b"a gone job's id."]);
        sandbox.tell("SADD", "stale", &[b"a gone job's id."]);
        sandbox.tell("HDEL", "conf", &[b"stale"]);
    }),
    ("bytes are miscounted", Invariant::Counts, true, |sandbox, _| {
        drop(sandbox.tell("HSET", "conf", &[b"bytes", b"12345"]))
    }),
    ("bytes are not counted", Invariant::Counts, true, |sandbox, _| drop(sandbox.tell("HDEL", "conf", &[b"bytes"]))),
    ("a group is miscounted", Invariant::Counts, true, |sandbox, _| {
        let group = sandbox.tell("HKEYS", "groups", &[]).list()[0].text();
        let what = sandbox.text("HGET", "groups", &[group.as_bytes()]);
        sandbox.tell("HSET", "groups", &[group.as_bytes(), &[b"0000000007", &what[10..]].concat()]);
    }),
    ("a group is gone", Invariant::Counts, true, |sandbox, _| drop(sandbox.tell("DEL", "groups", &[]))),
    ("a group of nobody", Invariant::Counts, true, |sandbox, _| {
        let what = format!("0000000001{}{}kind\toh", "0".repeat(16), "0".repeat(16));
        sandbox.tell("HSET", "groups", &[b"00000000000000ff", what.as_bytes()]);
    }),
    ("nobody knows how long done jobs are kept", Invariant::Counts, true, |sandbox, _| {
        drop(sandbox.tell("HDEL", "conf", &[b"kept"]))
    }),
    ("the words of all jobs are gone", Invariant::JobIndex, true, |sandbox, _| drop(sandbox.tell("DEL", "find", &[]))),
    ("a word of a scheduled job is gone", Invariant::JobIndex, true, |sandbox, _| {
        let members = sandbox.tell("ZRANGEBYLEX", "find", &[b"[skretried", b"(skretriee"]).list().to_vec();
        assert_eq!(members.len(), 1);
        let Reply::Text(member) = &members[0] else { panic!("no member: {members:?}") };
        sandbox.tell("ZREM", "find", &[member]);
    }),
    ("a word that a job has not", Invariant::JobIndex, true, |sandbox, p| {
        let member = [b"stblue\x009000000000000000", &p.ids[3].as_bytes()[..]].concat();
        sandbox.tell("ZADD", "find", &[b"0", &member]);
    }),
    ("a word of no job", Invariant::JobIndex, true, |sandbox, _| {
        let member = [b"bkmail\x009000000000000000", &JobId::fresh().as_bytes()[..]].concat();
        sandbox.tell("ZADD", "find", &[b"0", &member]);
    }),
    ("a dead job that does not note its words", Invariant::JobIndex, true, |sandbox, _| {
        let dead = sandbox.tell("ZRANGE", "dead", &[b"0", b"0"]);
        let Reply::Text(id) = &dead.list()[0] else { panic!("none is dead") };
        let meta = sandbox.text("HGET", "meta", &[id]);
        sandbox.tell("HSET", "meta", &[id, &meta[..72]]);
    }),
    ("a rule that nobody looks at", Invariant::CronTicks, true, |sandbox, _| {
        drop(sandbox.tell("ZREM", "ticks", &[b"daily"]))
    }),
    ("a rule at another time", Invariant::CronTicks, true, |sandbox, _| {
        sandbox.tell("ZADD", "ticks", &[b"9000000000000000", b"daily"]);
    }),
    ("a paused rule that is looked at", Invariant::CronTicks, true, |sandbox, _| {
        sandbox.tell("ZADD", "ticks", &[b"9000000000000000", b"paused"]);
    }),
    ("a look at no rule", Invariant::CronTicks, true, |sandbox, _| {
        sandbox.tell("ZADD", "ticks", &[b"9000000000000000", b"nobody"]);
    }),
    ("claims are told of another tick", Invariant::CronTicks, true, |sandbox, _| {
        drop(sandbox.tell("HSET", "conf", &[b"tick", b"5"]))
    }),
    ("a rule that cannot be read", Invariant::Readable, false, |sandbox, _| {
        drop(sandbox.tell("HSET", "cron", &[b"daily", b"?"]))
    }),
    ("a record that cannot be read", Invariant::Readable, false, |sandbox, p| {
        sandbox.tell("HSET", "job", &[p.ids[1].as_bytes(), b"12\tgarbage"]);
    }),
];

async fn every_breach(url: String, ask: fn(&[Vec<u8>]) -> Reply) {
    for (name, rule, mends, seed) in SEEDS {
        let sandbox = Sandbox::new(url.clone(), ask);
        let populated = populate(&sandbox.url).await;
        found_and_repaired(&populated, *rule, *mends, name, || seed(&sandbox, &populated)).await;
    }
}

/// Kind and due moment of a scheduled job.
type Waiting = (String, SystemTime);
const ALMOST: Duration = Duration::from_secs(5);

/// A ticket says when a job is due, but so does what is written of the job itself.
#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn scheduled_job_without_entry_is_not_repaired_before_due() {
    let sandbox = Sandbox::new(servers::redis().url(), |command| servers::redis().ask(command));
    let Populated { duly, .. } = populate(&sandbox.url).await;
    let waiting = async || {
        let scheduled = Filter { state: Some(State::Scheduled), ..Filter::default() };
        let mut jobs = duly.list(scheduled).await.expect("lists").jobs;
        jobs.sort_by_key(|record| record.job.id);
        jobs.into_iter().map(|record| (record.job.kind, record.due)).collect::<Vec<Waiting>>()
    };
    let before = waiting().await;
    assert_eq!(before.len(), 2, "one that was pushed for later, and one that is tried again");
    sandbox.tell("DEL", "due", &[]);
    assert_eq!(waiting().await, []);
    let dir = test_support::temp_dir();
    let repaired = duly.repair(dir.path().join("copy.db")).await.expect("repairs");
    assert_eq!(repaired.after.violations, []);
    // As the pusher has reckoned it, who knows the server's time almost.
    let near = |(before, after): (&Waiting, &Waiting)| before.0 == after.0 && after.1 > before.1 - ALMOST;
    let after = waiting().await;
    assert!(after.len() == before.len() && before.iter().zip(&after).all(near), "{before:?} {after:?}");
}

#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn every_breach_is_found_and_repaired_on_redis() {
    every_breach(servers::redis().url(), |command| servers::redis().ask(command)).await;
}

#[tokio::test]
#[ignore = "needs servers: ./check stores"]
async fn every_breach_is_found_and_repaired_on_valkey() {
    every_breach(servers::valkey().url(), |command| servers::valkey().ask(command)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs servers: ./check stores"]
async fn concurrent_changes_are_not_breaches() {
    let sandbox = Sandbox::new(servers::redis().url(), |command| servers::redis().ask(command));
    let duly = Duly::open(&sandbox.url).await.expect("opens");
    let over = Arc::new(AtomicBool::new(false));
    let pusher = tokio::spawn({
        let (duly, over) = (duly.clone(), over.clone());
        async move {
            while !over.load(Ordering::Relaxed) {
                let jobs = (0..50).map(|n| Push::new("one", "1").unique(format!("key {n}")).keep(Duration::ZERO));
                duly.push_all(jobs).await.expect("pushes");
            }
        }
    });
    let stop = duly::CancellationToken::new();
    let again = |ctx: Ctx| async move { if ctx.attempt() < 3 { Err("once more") } else { Ok(()) } };
    let retry = duly::Retry::fixed(Duration::from_millis(1));
    let worker = duly.worker().queue("default", 20).default_retry(retry).on_any_kind(again);
    let work = tokio::spawn(worker.run_until(stop.clone()));
    for _ in 0..10 {
        let verified = duly.verify().await.expect("verifies");
        assert_eq!(verified.violations, Vec::new());
    }
    over.store(true, Ordering::Relaxed);
    pusher.await.expect("no panic");
    stop.cancel();
    let tally = work.await.expect("no panic").expect("ends well");
    assert!(tally.acked > 0, "something moved");
    assert_eq!(duly.verify().await.expect("verifies").violations, Vec::new());
}
