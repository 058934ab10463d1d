//! Who is not let in is told why, at once, and nobody learns the password from it.

use std::time::{Duration, Instant};

use duly::store::StoreUrl;
use duly::{Duly, Error, Push};

use crate::helpers::{durable, open, refusal, whole};
use test_support::servers::{Binary, CALM, Cluster, Sentinel};
use test_support::wait_for;

/// Well under what a person takes for hanging.
const AT_ONCE: Duration = Duration::from_millis(1_500);
const SECRET: &str = "p4ss-w0rd";

/// The refusal, which must come at once and give nothing away.
async fn refused_at_once(url: String) -> Error {
    let start = Instant::now();
    let error = refusal(url).await;
    assert!(start.elapsed() < AT_ONCE, "took {:?}: {error}", start.elapsed());
    assert!(!whole(&error).contains(SECRET), "{}", whole(&error));
    error
}

async fn who_may_not_in_is_told_what_to_write(binary: Binary) {
    let server = durable(binary).password(SECRET).start();
    let at = server.address();
    for login in [String::new(), ":guess@".into(), format!("nobody:{SECRET}@")] {
        let error = refused_at_once(format!("redis://{login}{at}")).await;
        assert!(matches!(error, Error::Store { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("put user and password into the URL: redis://user:password@host"), "{login:?}: {said}");
        assert!(!said.contains("guess"), "{said}");
    }
    // A password in the place of the user, or a user without one, who would pass for somebody else.
    let error = refused_at_once(format!("redis://{SECRET}@{at}")).await;
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("no password"), "{error:?}");
    open(format!("redis://:{SECRET}@{at}")).await;
    open(format!("redis://default:{SECRET}@{at}")).await;
}

#[tokio::test]
async fn refused_login_error_says_what_to_write_on_redis() {
    who_may_not_in_is_told_what_to_write(Binary::Redis).await;
}

#[tokio::test]
async fn refused_login_error_says_what_to_write_on_valkey() {
    who_may_not_in_is_told_what_to_write(Binary::Valkey).await;
}

/// A server that comes back in a moment is waited for, one that does not is named.
#[tokio::test]
async fn missing_server_is_named_in_the_error() {
    let server = durable(Binary::Redis).start();
    server.kill();
    let start = Instant::now();
    let error = refusal(format!("redis://:{SECRET}@{}", server.address())).await;
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    let said = error.to_string();
    assert!(said.contains(&format!("cannot reach the server at {}", server.address())), "{said}");
    assert!(!whole(&error).contains(SECRET), "{}", whole(&error));
    let error = refusal("redis://no-such-host.invalid").await;
    assert!(error.to_string().contains("cannot reach the server at no-such-host.invalid:6379"), "{error}");
}

#[tokio::test]
async fn replica_is_rejected_by_name() {
    let master = durable(Binary::Redis).start();
    open(master.url()).await;
    let replica = durable(Binary::Redis).start();
    replica.ask(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    wait_for("a copy", || match replica.info(&["INFO", "replication"], "master_link_status").as_str() {
        "up" => Ok(()),
        other => Err(other.to_owned()),
    });
    for prefix in ["duly", "fresh"] {
        let error = refused_at_once(format!("{}?prefix={prefix}", replica.url())).await;
        let said = error.to_string();
        assert!(
            said.contains("this is a replica") && said.contains("name the master, or use redis+sentinel://"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn url_is_shown_without_its_password() {
    let server = durable(Binary::Redis).password(SECRET).start();
    let url = format!("redis://:{SECRET}@{}", server.address());
    let sentinel = format!("redis+sentinel://:{SECRET}@h/m?sentinel_password={SECRET}");
    let parsed = |url: &str| StoreUrl::parse(url).expect("a good URL");
    let shown = format!("{:?} {} {}", open(url.clone()).await, parsed(&url), parsed(&sentinel));
    assert!(shown.contains(&server.address()) && !shown.contains(SECRET), "{shown}");
}

/// Passwords with signs in them that should have been written with %: the URL is wrong, and still nobody's to read.
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
            let error = refused_at_once(url.clone()).await;
            let told = whole(&error);
            assert!(!parts.iter().any(|part| told.contains(part)), "{url} is answered by {told}");
        }
    }
}

#[tokio::test]
async fn cluster_that_does_not_open_reports_why() {
    let cluster = Cluster::start(durable(Binary::Redis).password(SECRET), CALM);
    let hosts = cluster.url().replace("redis+cluster://", "");
    for login in ["", ":guess@"] {
        let said = refused_at_once(format!("redis+cluster://{login}{hosts}")).await.to_string();
        assert!(said.contains("put user and password into the URL"), "{login:?}: {said}");
    }
    open(format!("redis+cluster://:{SECRET}@{hosts}")).await;
    // A member by itself has some of the slots only.
    for (n, server) in cluster.nodes()[..3].iter().enumerate() {
        let url = format!("redis://:{SECRET}@{}?prefix=alone-{n}", server.address());
        let said = match Duly::open(&url).await {
            Err(error) => error.to_string(),
            Ok(duly) => {
                let pushes = ["a", "b", "d"].map(|queue| Push::new("note", "{}").queue(queue));
                duly.push_all(pushes).await.expect_err("one of them is not here").to_string()
            }
        };
        assert!(said.contains("part of a Cluster: use redis+cluster://"), "{said}");
    }
    let alone = durable(Binary::Redis).start();
    let said = refused_at_once(format!("redis+cluster://{}", alone.address())).await.to_string();
    assert!(said.contains("part of no Cluster: use redis://"), "{said}");
    alone.kill();
    let said = refusal(format!("redis+cluster://{}", alone.address())).await.to_string();
    assert!(said.contains(&format!("cannot reach the server at {}", alone.address())), "{said}");
}

#[tokio::test]
async fn sentinels_that_do_not_answer_are_reported() {
    let servers = Sentinel::start(durable(Binary::Redis).password(SECRET), CALM);
    let hosts = servers.url().replace("redis+sentinel://", "");
    for login in ["", ":guess@"] {
        let said = refused_at_once(format!("redis+sentinel://{login}{hosts}")).await.to_string();
        assert!(
            said.contains("the master that Sentinels name for") && said.contains("put user and password"),
            "{said}"
        );
    }
    open(format!("redis+sentinel://:{SECRET}@{hosts}")).await;
    let elsewhere = format!("{}else", servers.url());
    let said = refused_at_once(elsewhere).await.to_string();
    assert!(said.contains("names a master for \"dulyelse\"") && said.contains("No such master"), "{said}");
    let said = refused_at_once(format!("redis://{}", servers.sentinels()[0].address())).await.to_string();
    assert!(said.contains("this is a Sentinel: use redis+sentinel://"), "{said}");
    // Sentinels with a user of their own, who may do what is needed and no more.
    for sentinel in servers.sentinels() {
        let user = ["ACL", "SETUSER", "watch", "on", ">see-all", "-@all", "+auth", "+hello", "+sentinel|master"];
        sentinel.ask(&user);
        sentinel.ask(&["ACL", "SETUSER", "default", "off"]);
    }
    let url = format!("redis+sentinel://:{SECRET}@{hosts}");
    for options in ["", "?sentinel_password=see-all", "?sentinel_user=watch&sentinel_password=guess"] {
        let said = refused_at_once(format!("{url}{options}")).await.to_string();
        assert!(said.contains("sentinel_password=") && said.contains("sentinel_user="), "{options}: {said}");
    }
    open(format!("{url}?sentinel_user=watch&sentinel_password=see-all")).await;
    // One that wants a password of its own.
    let said = refused_at_once(format!("redis+sentinel://{}/duly", servers.servers()[0].address())).await.to_string();
    assert!(said.contains("sentinel_password"), "{said}");
}
