//! A rejected login fails at once with the reason, and without the password.

use std::time::{Duration, Instant};

use duly::admin::StoreUrl;
use duly::{Duly, Error, Push};

use crate::helpers::{error_chain, open, open_error};
use test_support::servers::{Binary, CALM, Cluster, Options, Sentinel};
use test_support::wait_for;

/// Below the five seconds for which a client retries.
pub const AT_ONCE_MAX: Duration = Duration::from_secs(4);
const SECRET: &str = "p4ss-w0rd";

/// Returns the error of an open, which must fail at once and not contain the password.
async fn error_at_once(url: String) -> Error {
    let start = Instant::now();
    let error = open_error(url).await;
    assert!(start.elapsed() < AT_ONCE_MAX, "took {:?}: {error}", start.elapsed());
    assert!(!error_chain(&error).contains(SECRET), "{}", error_chain(&error));
    error
}

async fn rejected_login_error_says_what_to_write(binary: Binary) {
    let server = Options::durable(binary).password(SECRET).start();
    let address = server.address();
    for login in [String::new(), ":guess@".into(), format!("nobody:{SECRET}@")] {
        let error = error_at_once(format!("redis://{login}{address}")).await;
        assert!(matches!(error, Error::Store { .. }), "{error:?}");
        let message = error.to_string();
        assert!(
            message.contains("put user and password into the URL: redis://user:password@host"),
            "{login:?}: {message}"
        );
        assert!(!message.contains("guess"), "{message}");
    }
    // A password in the user field, or a user without a password, which could be mistaken for the default user.
    let error = error_at_once(format!("redis://{SECRET}@{address}")).await;
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("no password"), "{error:?}");
    open(format!("redis://:{SECRET}@{address}")).await;
    open(format!("redis://default:{SECRET}@{address}")).await;
}

#[tokio::test]
async fn refused_login_error_says_what_to_write_on_redis() {
    rejected_login_error_says_what_to_write(Binary::Redis).await;
}

#[tokio::test]
async fn refused_login_error_says_what_to_write_on_valkey() {
    rejected_login_error_says_what_to_write(Binary::Valkey).await;
}

/// An open waits for a server that restarts soon, and names one that stays away.
#[tokio::test]
async fn missing_server_is_named_in_the_error() {
    let server = Options::durable(Binary::Redis).start();
    server.kill();
    let start = Instant::now();
    let error = open_error(format!("redis://:{SECRET}@{}", server.address())).await;
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    let message = error.to_string();
    assert!(message.contains(&format!("cannot reach the server at {}", server.address())), "{message}");
    assert!(!error_chain(&error).contains(SECRET), "{}", error_chain(&error));
    let error = open_error("redis://no-such-host.invalid").await;
    assert!(error.to_string().contains("cannot reach the server at no-such-host.invalid:6379"), "{error}");
}

#[tokio::test]
async fn replica_is_rejected_by_name() {
    let master = Options::durable(Binary::Redis).start();
    open(master.url()).await;
    let replica = Options::durable(Binary::Redis).start();
    replica.send_command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    wait_for("a copy", || match replica.info(&["INFO", "replication"], "master_link_status").as_str() {
        "up" => Ok(()),
        other => Err(other.to_owned()),
    });
    for prefix in ["duly", "fresh"] {
        let error = error_at_once(format!("{}?prefix={prefix}", replica.url())).await;
        let message = error.to_string();
        assert!(
            message.contains("this is a replica")
                && message.contains("use the address of the master, or redis+sentinel://"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn url_is_shown_without_its_password() {
    let server = Options::durable(Binary::Redis).password(SECRET).start();
    let url = format!("redis://:{SECRET}@{}", server.address());
    let sentinel = format!("redis+sentinel://:{SECRET}@h/m?sentinel_password={SECRET}");
    let parsed = |url: &str| StoreUrl::parse(url).expect("a good URL");
    let shown = format!("{:?} {} {}", open(url.clone()).await, parsed(&url), parsed(&sentinel));
    assert!(shown.contains(&server.address()) && !shown.contains(SECRET), "{shown}");
}

/// Passwords with characters that should be escaped with %: the URL is invalid, and the password must still not
/// appear.
#[tokio::test]
async fn invalid_url_is_not_repeated_with_its_password() {
    let parts = ["p4ss", "w0rd"];
    for sign in ["?", "/", "#", "@", ":", "&", "%", "?a=", "?lease=", "/?"] {
        let password = parts.join(sign);
        for url in [
            format!("redis://me:{password}@127.0.0.1:1/x"),
            format!("redis://:{password}@127.0.0.1:1/x"),
            format!("redis+sentinel://me:{password}@127.0.0.1"),
            format!("redis+cluster://me:{password}@127.0.0.1/7"),
            format!("redis+ring://me:{password}@127.0.0.1"),
            format!("redis://me:{password}@127.0.0.1:1?speed=9"),
        ] {
            let error = error_at_once(url.clone()).await;
            let message = error_chain(&error);
            assert!(!parts.iter().any(|part| message.contains(part)), "{url} fails with {message}");
        }
    }
}

#[tokio::test]
async fn cluster_that_does_not_open_reports_why() {
    let cluster = Cluster::start(Options::durable(Binary::Redis).password(SECRET), CALM);
    let hosts = cluster.url().replace("redis+cluster://", "");
    for login in ["", ":guess@"] {
        let message = error_at_once(format!("redis+cluster://{login}{hosts}")).await.to_string();
        assert!(message.contains("put user and password into the URL"), "{login:?}: {message}");
    }
    open(format!("redis+cluster://:{SECRET}@{hosts}")).await;
    // A single node has only some of the slots.
    for (n, server) in cluster.nodes()[..3].iter().enumerate() {
        let url = format!("redis://:{SECRET}@{}?prefix=alone-{n}", server.address());
        let message = match Duly::open(&url).await {
            Err(error) => error.to_string(),
            Ok(duly) => {
                let pushes = ["a", "b", "d"].map(|queue| Push::new("note", "{}").queue(queue));
                duly.push_all(pushes).await.expect_err("one of them is not here").to_string()
            }
        };
        assert!(message.contains("part of a Cluster; use redis+cluster://"), "{message}");
    }
    let alone = Options::durable(Binary::Redis).start();
    let message = error_at_once(format!("redis+cluster://{}", alone.address())).await.to_string();
    assert!(message.contains("not part of a Cluster: use redis://"), "{message}");
    alone.kill();
    let message = open_error(format!("redis+cluster://{}", alone.address())).await.to_string();
    assert!(message.contains(&format!("cannot reach the server at {}", alone.address())), "{message}");
}

#[tokio::test]
async fn sentinels_that_do_not_answer_are_reported() {
    let servers = Sentinel::start(Options::durable(Binary::Redis).password(SECRET), CALM);
    let hosts = servers.url().replace("redis+sentinel://", "");
    for login in ["", ":guess@"] {
        let message = error_at_once(format!("redis+sentinel://{login}{hosts}")).await.to_string();
        assert!(
            message.contains("the Sentinels name a master for") && message.contains("put user and password"),
            "{message}"
        );
    }
    open(format!("redis+sentinel://:{SECRET}@{hosts}")).await;
    let unknown_master = format!("{}else", servers.url());
    let message = error_at_once(unknown_master).await.to_string();
    assert!(message.contains("names a master for \"dulyelse\"") && message.contains("No such master"), "{message}");
    let message = error_at_once(format!("redis://{}", servers.sentinels()[0].address())).await.to_string();
    assert!(message.contains("this is a Sentinel: use redis+sentinel://"), "{message}");
    // Sentinels with their own user, which has only the needed rights.
    for sentinel in servers.sentinels() {
        let user = ["ACL", "SETUSER", "watch", "on", ">see-all", "-@all", "+auth", "+hello", "+sentinel|master"];
        sentinel.send_command(&user);
        sentinel.send_command(&["ACL", "SETUSER", "default", "off"]);
    }
    let url = format!("redis+sentinel://:{SECRET}@{hosts}");
    for options in ["", "?sentinel_password=see-all", "?sentinel_user=watch&sentinel_password=guess"] {
        let message = error_at_once(format!("{url}{options}")).await.to_string();
        assert!(message.contains("sentinel_password=") && message.contains("sentinel_user="), "{options}: {message}");
    }
    open(format!("{url}?sentinel_user=watch&sentinel_password=see-all")).await;
    // A server that needs its own password.
    let message = error_at_once(format!("redis+sentinel://{}/duly", servers.servers()[0].address())).await.to_string();
    assert!(message.contains("sentinel_password"), "{message}");
}
