//! Requests that something between client and server keeps for longer than anybody waits, and hands on after all.

use std::time::Duration;

use duly::{Duly, JobId, Push};
use tokio::sync::mpsc::unbounded_channel;

use test_support::servers::{Binary, Fsync, Options, Proxy};

/// Far longer than it takes to give up an answer and to send again.
const LONG: Duration = Duration::from_secs(40);

/// With a worker that waits, and while none does: a push goes another way then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_push_is_not_applied_twice() {
    let server = Options::new(Binary::Redis).aof(Fsync::EverySecond).start();
    let proxy = Proxy::start(server.port());
    let options = format!("prefix={}&keep=0", JobId::fresh());
    let direct = Duly::open(format!("{}?{options}", server.url())).await.expect("opens");
    let pusher = Duly::open(format!("redis://{}?{options}", proxy.address())).await.expect("opens");
    let (tell, mut ran) = unbounded_channel();
    let work = || {
        let tell = tell.clone();
        let worker = direct.worker().queue("default", 1).on_kind("mark", move |ctx| {
            tell.send(ctx.job().args.clone()).expect("somebody listens");
            async {}
        });
        tokio::spawn(worker.run())
    };
    let mut next = async || tokio::time::timeout(LONG, ran.recv()).await.expect("in time").expect("runs");
    let push = async |args: &str| pusher.push(Push::new("mark", args)).await.expect("is sent again").id();
    // Nobody holds it any more: one that came late now would be run.
    let ended = async |id: JobId| tokio::time::timeout(LONG, direct.wait(id)).await.expect("in time").expect("ends");

    // Nobody waits: the jobs are put there as they are.
    push("1").await;
    push("2").await;
    assert!(proxy.hold() > 0);
    let third = push("3").await;
    let worker = work();
    for expected in ["1", "2", "3"] {
        assert_eq!(next().await, expected);
    }
    ended(third).await;
    tokio::task::block_in_place(|| proxy.hand_on());
    push("4").await;
    assert_eq!(next().await, "4", "instead of one that arrived late");

    // The worker waits: the job is put into its hands.
    assert!(proxy.hold() > 0);
    let fifth = push("5").await;
    assert_eq!(next().await, "5");
    ended(fifth).await;
    tokio::task::block_in_place(|| proxy.hand_on());
    push("6").await;
    assert_eq!(next().await, "6", "instead of one that arrived late");
    worker.abort();
}
