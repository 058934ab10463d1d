//! The settings a server must have before duly uses it, and the commands that fix them.

use std::time::{Duration, Instant};

use duly::admin::CancelResult;
use duly::{Duly, Error, JobId, Push, PushResult};

use crate::helpers::{open, open_error, own_prefix};
use test_support::servers::{Binary, Options, Server};
use test_support::wait_for;

/// Returns the commands between backticks in an error.
fn commands(error: &Error) -> Vec<String> {
    error.to_string().split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

async fn durability(server: &Server) -> String {
    open(server.url()).await.health().await.expect("a report").durability
}

async fn server_without_durability_is_rejected_until_fixed(binary: Binary, snapshots: &str, lost: &str) {
    let server = Options::new(binary).save(snapshots).start();
    let error = open_error(server.url()).await;
    assert!(error.to_string().contains(lost), "{error}");
    let allowing = format!("{}?allow_data_loss=true", server.url());
    let health = open(allowing).await.health().await.expect("a report");
    assert!(health.durability.contains(lost), "{}", health.durability);
    open_error(server.url()).await;

    let fix = commands(&error);
    assert_eq!(fix.len(), 2, "{error}");
    for command in fix {
        server.send_command(&command.split(' ').collect::<Vec<_>>());
    }
    let durability = durability(&server).await;
    assert!(durability.contains("survives a crash of any process and loss of power"), "{durability}");
}

#[tokio::test]
async fn redis_with_snapshots_only_is_rejected_until_fixed() {
    server_without_durability_is_rejected_until_fixed(Binary::Redis, "3600 1", "everything since its last snapshot")
        .await;
}

#[tokio::test]
async fn valkey_without_persistence_is_rejected_until_fixed() {
    server_without_durability_is_rejected_until_fixed(Binary::Valkey, "", "everything").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_rejected_for_missing_replicas_is_retried() {
    let server = Options::durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    server.send_command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let warnings = duly.health().await.expect("a report").warnings;
    assert!(warnings.iter().any(|warning| warning.contains("rejects every write")), "{warnings:?}");
    let pushing = tokio::spawn({
        let duly = duly.clone();
        async move { duly.push(Push::new("mark", "null")).await }
    });
    wait_for("a open_error", || match server.info(&["INFO", "errorstats"], "errorstat_NOREPLICAS").as_str() {
        "" => Err("none yet".to_owned()),
        _ => Ok(()),
    });
    assert!(!pushing.is_finished());
    server.send_command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    pushing.await.expect("no panic").expect("is retried until it is accepted");
}

#[tokio::test]
async fn fsync_every_second_is_accepted_and_reported() {
    let server = Options::durable(Binary::Redis).start();
    assert!(durability(&server).await.contains("the last second or two may be lost"));
    server.send_command(&["CONFIG", "SET", "appendfsync", "no"]);
    assert!(durability(&server).await.contains("data that its system had not yet written"));
}

#[tokio::test]
async fn evicting_server_is_rejected_until_fixed() {
    let server = Options::durable(Binary::Redis).start();
    for policy in ["allkeys-lru", "volatile-ttl"] {
        server.send_command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        let error = open_error(format!("{}?allow_data_loss=true", server.url())).await;
        let fix = "CONFIG SET maxmemory-policy noeviction";
        assert!(error.to_string().contains(policy) && error.to_string().contains(fix), "{error}");
        server.send_command(&fix.split(' ').collect::<Vec<_>>());
        open(server.url()).await;
    }
}

/// Also found by a user that may not read the settings.
#[tokio::test]
async fn evicting_server_is_rejected_without_config_rights() {
    let server = Options::durable(Binary::Redis).start();
    let mut rules = vec!["ACL".to_owned(), "SETUSER".into(), "duly".into(), "on".into(), ">let-me-in".into()];
    let needed = open(server.url()).await.health().await.expect("a report").acl.expect("a server has users");
    rules.extend(needed.split(' ').filter(|rule| !rule.contains("config")).map(str::to_owned));
    server.send_command(&rules);
    let url = format!("redis://duly:let-me-in@{}", server.address());
    let health = open(url.clone()).await.health().await.expect("a report");
    assert!(health.durability.contains("depends on appendfsync"), "{}", health.durability);
    server.send_command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = open_error(url).await;
    assert!(error.to_string().contains("maxmemory-policy allkeys-lru"), "{error}");
}

#[tokio::test]
async fn data_of_another_version_is_rejected() {
    let server = test_support::servers::redis();
    let url = own_prefix(&server.url());
    open(url.clone()).await;
    let prefix = url.split("prefix=").nth(1).expect("a prefix");
    let format = format!("{prefix}:peers:{{duly}}:format");
    assert_eq!(server.send_command(&["GET", &format]).text(), "1");
    server.send_command(&["SET", &format, "2"]);
    let message = open_error(url.clone()).await.to_string();
    assert!(message.contains("format 2") && message.contains("use a newer duly, or another prefix"), "{message}");
    server.send_command(&["SET", &format, "0"]);
    let message = open_error(url.clone()).await.to_string();
    assert!(message.contains("format 0") && message.contains("use an older duly, or another prefix"), "{message}");
    server.send_command(&["SET", &format, "1"]);
    open(url).await;
}

/// Without a confirmation the outcome is unknown. The master has the job, and a repeated push with the same id finds
/// it.
#[tokio::test]
async fn push_without_replica_confirmation_is_unknown_and_repeatable() {
    let server = Options::durable(Binary::Redis).start();
    let duly = open(format!("{}?replicas=1", server.url())).await;
    let (id, start) = (JobId::from_name("once"), Instant::now());
    let push = async |duly: &Duly| duly.push(Push::new("ok", "{}").id(id)).await;
    for _ in 0..2 {
        let error = push(&duly).await.expect_err("no replica has confirmed it");
        assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
        let message = error.to_string();
        assert!(
            message.contains("fewer replicas confirmed it in time than `replicas` requires")
                && message.ends_with("the same id"),
            "{message}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    let plain = open(server.url()).await;
    assert_eq!(push(&plain).await.expect("pushes"), PushResult::Existing(id));
    assert_eq!(plain.queues().counts().await.expect("counts")[0].ready, 1);

    let replica = Options::durable(Binary::Redis).start();
    replica.send_command(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    test_support::wait_for("a replica", || match server.info(&["INFO", "replication"], "slave0") {
        line if line.contains("state=online") => Ok(()),
        other => Err(other),
    });
    assert_eq!(push(&duly).await.expect("is confirmed"), PushResult::Existing(id));
    assert!(duly.push(Push::new("ok", "{}")).await.expect("is confirmed").is_new());
}

/// A failover would lose a cancel that no replica has, and the job would run again.
#[tokio::test]
async fn cancel_without_replica_confirmation_is_unknown_and_repeatable() {
    let server = Options::durable(Binary::Redis).start();
    let plain = open(server.url()).await;
    let duly = open(format!("{}?replicas=1", server.url())).await;
    let id = plain.push(Push::new("ok", "{}")).await.expect("pushes").id();
    let error = duly.jobs().cancel(id).await.expect_err("no replica has confirmed it");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert_eq!(plain.jobs().cancel(id).await.expect("is cancelled"), CancelResult::Cancelled);
}
