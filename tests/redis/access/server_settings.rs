//! What a server must promise before it is trusted with jobs, and what mends one that does not.

use std::time::{Duration, Instant};

use duly::{Duly, Error, JobId, Push, PushResult};

use crate::helpers::{apart, durable, open, refusal};
use test_support::servers::{Binary, Fsync, Options, Server};
use test_support::wait_for;

/// The commands that an error gives between backticks.
fn commands(error: &Error) -> Vec<String> {
    error.to_string().split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

async fn durability(server: &Server) -> String {
    open(server.url()).await.health().await.expect("tells").durability
}

async fn a_server_that_forgets_is_refused_until_it_is_mended(binary: Binary, snapshots: &str, lost: &str) {
    let server = Options::new(binary).save(snapshots).start();
    let error = refusal(server.url()).await;
    assert!(error.to_string().contains(lost), "{error}");
    let told = format!("{}?allow_data_loss=true", server.url());
    let health = open(told).await.health().await.expect("tells");
    assert!(health.durability.contains(lost), "{}", health.durability);
    refusal(server.url()).await;

    let mend = commands(&error);
    assert_eq!(mend.len(), 2, "{error}");
    for command in mend {
        server.ask(&command.split(' ').collect::<Vec<_>>());
    }
    let durability = durability(&server).await;
    assert!(durability.contains("survives a crash of any process and loss of power"), "{durability}");
}

#[tokio::test]
async fn redis_with_snapshots_only_is_rejected_until_fixed() {
    a_server_that_forgets_is_refused_until_it_is_mended(Binary::Redis, "3600 1", "everything since its last snapshot")
        .await;
}

#[tokio::test]
async fn valkey_without_persistence_is_rejected_until_fixed() {
    a_server_that_forgets_is_refused_until_it_is_mended(Binary::Valkey, "", "everything").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_rejected_for_missing_replicas_is_retried() {
    let server = durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    server.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let warnings = duly.health().await.expect("tells").warnings;
    assert!(warnings.iter().any(|warning| warning.contains("refuses every write")), "{warnings:?}");
    let pushing = tokio::spawn({
        let duly = duly.clone();
        async move { duly.push(Push::new("mark", "null")).await }
    });
    wait_for("a refusal", || match server.info(&["INFO", "errorstats"], "errorstat_NOREPLICAS").as_str() {
        "" => Err("none yet".to_owned()),
        _ => Ok(()),
    });
    assert!(!pushing.is_finished());
    server.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    pushing.await.expect("no panic").expect("is tried until it is taken");
}

#[tokio::test]
async fn fsync_every_second_is_accepted_and_reported() {
    let server = Options::new(Binary::Redis).aof(Fsync::EverySecond).start();
    assert!(durability(&server).await.contains("the last second or two may be lost"));
    server.ask(&["CONFIG", "SET", "appendfsync", "no"]);
    assert!(durability(&server).await.contains("what its system had not yet written"));
}

#[tokio::test]
async fn evicting_server_is_rejected_until_fixed() {
    let server = durable(Binary::Redis).start();
    for policy in ["allkeys-lru", "volatile-ttl"] {
        server.ask(&["CONFIG", "SET", "maxmemory-policy", policy]);
        let error = refusal(format!("{}?allow_data_loss=true", server.url())).await;
        let mend = "CONFIG SET maxmemory-policy noeviction";
        assert!(error.to_string().contains(policy) && error.to_string().contains(mend), "{error}");
        server.ask(&mend.split(' ').collect::<Vec<_>>());
        open(server.url()).await;
    }
}

/// Who may not read the settings learns of this one all the same.
#[tokio::test]
async fn evicting_server_is_rejected_without_config_rights() {
    let server = durable(Binary::Redis).start();
    let mut rules = vec!["ACL".to_owned(), "SETUSER".into(), "duly".into(), "on".into(), ">let-me-in".into()];
    let needed = open(server.url()).await.health().await.expect("tells").acl.expect("a server has users");
    rules.extend(needed.split(' ').filter(|rule| !rule.contains("config")).map(str::to_owned));
    server.ask(&rules);
    let url = format!("redis://duly:let-me-in@{}", server.address());
    let health = open(url.clone()).await.health().await.expect("tells");
    assert!(health.durability.starts_with("Unknown"), "{}", health.durability);
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = refusal(url).await;
    assert!(error.to_string().contains("maxmemory-policy allkeys-lru"), "{error}");
}

#[tokio::test]
async fn data_of_another_version_is_rejected() {
    let server = test_support::servers::redis();
    let url = apart(&server.url());
    open(url.clone()).await;
    let prefix = url.split("prefix=").nth(1).expect("a prefix");
    let format = format!("{prefix}:hall:{{duly}}:format");
    assert_eq!(server.ask(&["GET", &format]).text(), "1");
    server.ask(&["SET", &format, "2"]);
    let said = refusal(url.clone()).await.to_string();
    assert!(said.contains("format 2") && said.contains("use a newer duly, or another prefix"), "{said}");
    server.ask(&["SET", &format, "0"]);
    let said = refusal(url.clone()).await.to_string();
    assert!(said.contains("format 0") && said.contains("use an older duly, or another prefix"), "{said}");
    server.ask(&["SET", &format, "1"]);
    open(url).await;
}

/// Nobody confirms it, so nobody knows: but the master has it, and a second push with the same id says so.
#[tokio::test]
async fn push_without_replica_confirmation_is_unknown_and_repeatable() {
    let server = durable(Binary::Redis).start();
    let duly = open(format!("{}?replicas=1", server.url())).await;
    let (id, start) = (JobId::from_name("once"), Instant::now());
    let push = async |duly: &Duly| duly.push(Push::new("ok", "{}").id(id)).await;
    for _ in 0..2 {
        let error = push(&duly).await.expect_err("nobody has confirmed it");
        assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
        let told = error.to_string();
        assert!(told.contains("fewer replicas than `replicas` asks for") && told.ends_with("the same id"), "{told}");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    let plain = open(server.url()).await;
    assert_eq!(push(&plain).await.expect("pushes"), PushResult::Existing(id));
    assert_eq!(plain.counts().await.expect("counts")[0].ready, 1);

    let replica = durable(Binary::Redis).start();
    replica.ask(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    test_support::wait_for("a replica", || match server.info(&["INFO", "replication"], "slave0") {
        line if line.contains("state=online") => Ok(()),
        other => Err(other),
    });
    assert_eq!(push(&duly).await.expect("is confirmed"), PushResult::Existing(id));
    assert!(duly.push(Push::new("ok", "{}")).await.expect("is confirmed").is_new());
}
