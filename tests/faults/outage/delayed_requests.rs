//! Requests that the network delays beyond every timeout and then delivers.

use std::time::Duration;

use duly::{Duly, JobId, Push};
use tokio::sync::mpsc::unbounded_channel;

use test_support::servers::{Binary, Options, Proxy};

/// Far longer than a request timeout and a retry take.
const LONG: Duration = Duration::from_secs(40);

/// Both with an idle worker and without one, since these pushes take different paths.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_push_is_not_applied_twice() {
    let server = Options::durable(Binary::Redis).start();
    let proxy = Proxy::start(server.port());
    let options = format!("prefix={}&keep=0", JobId::fresh());
    let direct = Duly::open(format!("{}?{options}", server.url())).await.expect("opens");
    let pusher = Duly::open(format!("redis://{}?{options}", proxy.address())).await.expect("opens");
    let (sender, mut ran) = unbounded_channel();
    let work = || {
        let sender = sender.clone();
        let worker = direct.worker().queue("default", 1).on_kind("mark", move |ctx| {
            sender.send(ctx.job().args.clone()).expect("the receiver is open");
            async {}
        });
        tokio::spawn(worker.run())
    };
    let mut next = async || tokio::time::timeout(LONG, ran.recv()).await.expect("in time").expect("runs");
    let push = async |args: &str| pusher.push(Push::new("mark", args)).await.expect("is sent again").id();
    // The job has no holder any more: a duplicate that arrives late would run.
    let wait_for_completion =
        async |id: JobId| tokio::time::timeout(LONG, direct.jobs().wait(id)).await.expect("in time").expect("ends");

    // Without an idle worker, the jobs are inserted as ready.
    push("1").await;
    push("2").await;
    assert!(proxy.hold() > 0);
    let third = push("3").await;
    let worker = work();
    for expected in ["1", "2", "3"] {
        assert_eq!(next().await, expected);
    }
    wait_for_completion(third).await;
    tokio::task::block_in_place(|| proxy.hand_on());
    push("4").await;
    assert_eq!(next().await, "4", "not a duplicate that arrived late");

    // With an idle worker, the job is delivered to it.
    assert!(proxy.hold() > 0);
    let fifth = push("5").await;
    assert_eq!(next().await, "5");
    wait_for_completion(fifth).await;
    tokio::task::block_in_place(|| proxy.hand_on());
    push("6").await;
    assert_eq!(next().await, "6", "not a duplicate that arrived late");
    worker.abort();
}
