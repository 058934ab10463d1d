//! Several apps on one server.

use duly::{Duly, JobId, Push, PushResult};

use crate::helpers::{open, own_prefix};
use test_support::servers::{self, Server};

async fn apps_with_their_own_prefix_do_not_see_each_other(url: &str) {
    let (one, other) = (open(own_prefix(url)).await, open(own_prefix(url)).await);
    let id = JobId::from_name("the same");
    let push = async |duly: &Duly, n: u8| duly.push(Push::new("note", n.to_string()).id(id).unique("key")).await;
    assert_eq!(push(&one, 1).await.expect("pushes"), PushResult::New(id));
    assert_eq!(push(&other, 2).await.expect("pushes"), PushResult::New(id), "neither id nor unique key exists here");
    one.push(Push::new("note", "3").queue("only-here")).await.expect("pushes");
    one.queues().pause("default").await.expect("pauses");

    assert_eq!(other.queues().counts().await.expect("counts").len(), 1);
    let args = |record: Option<duly::JobRecord>| record.map(|record| record.job.args);
    assert_eq!(args(one.jobs().get(id).await.expect("a reply")).as_deref(), Some("1"));
    let worker = other.worker().queue("default", 1).queue("only-here", 1).on_kind("note", |_| async {});
    assert_eq!(
        worker.drain().await.expect("drains").acked,
        1,
        "the pause and the other queue belong to the other prefix"
    );
    other.jobs().remove(id).await.expect("its own, which is done");
    assert_eq!(args(one.jobs().get(id).await.expect("a reply")).as_deref(), Some("1"));
    assert_eq!(one.queues().counts().await.expect("counts").iter().map(|queue| queue.ready).sum::<u64>(), 2);
}

#[tokio::test]
async fn apps_with_their_own_prefix_do_not_see_each_other_on_redis() {
    apps_with_their_own_prefix_do_not_see_each_other(&servers::redis().url()).await;
}

#[tokio::test]
async fn apps_with_their_own_prefix_do_not_see_each_other_on_a_cluster() {
    apps_with_their_own_prefix_do_not_see_each_other(&servers::cluster().url()).await;
}

/// Every key and every channel starts with the prefix, even if one prefix is the start of another.
#[tokio::test]
async fn nothing_is_kept_outside_the_prefix() {
    let server: &Server = servers::valkey();
    let url = own_prefix(&server.url());
    let prefix = url.split("prefix=").nth(1).expect("a prefix").to_owned();
    let before = foreign(server, &prefix);
    let duly = open(url).await;
    duly.push(Push::new("note", "1")).await.expect("pushes");
    duly.worker().on_kind("note", |_| async { duly::Outcome::bury("oh") }).drain().await.expect("drains");
    assert!(!server.send_command(&["KEYS", &format!("{prefix}:*")]).list().is_empty());
    assert_eq!(foreign(server, &prefix), before);
}

/// Returns keys outside of all test prefixes; other tests use a prefix that is an id.
fn foreign(server: &Server, prefix: &str) -> Vec<String> {
    let keys = server.send_command(&["KEYS", "*"]);
    let names = keys.list().iter().map(|key| key.text());
    names
        .filter(|key| !key.starts_with(prefix) && key.split(':').next().is_none_or(|p| p.parse::<JobId>().is_err()))
        .collect()
}
