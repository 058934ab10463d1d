//! A master that stops replying without closing connections, as if its machine were gone: clients must detect it
//! themselves.

use std::time::Duration;

use duly::{Duly, JobId, Push};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use test_support::servers::{Binary, Cluster, Options};

/// Far longer than a worker takes to abandon a silent server and find the new one.
const LONG: Duration = Duration::from_secs(40);

/// Waits for the next job, which must have these args.
async fn assert_next(ran: &mut UnboundedReceiver<String>, args: &str) {
    let next = tokio::time::timeout(LONG, ran.recv()).await;
    assert_eq!(next.as_ref().map(|args| args.as_deref()), Ok(Some(args)), "the next job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_finds_the_new_master_after_a_silent_one() {
    // Otherwise the other servers would report an error.
    let options = Options::durable(Binary::Redis).set("cluster-require-full-coverage", "no");
    let servers = Cluster::start(options, Cluster::QUICK);
    let peers_master = servers.master_of("{duly}");
    let master_of = |queue: &String| servers.master_of(&format!("{{{queue}}}"));
    let mut queues = (0..).map(|n| format!("q{n}"));
    let red = queues.find(|queue| master_of(queue) != peers_master).expect("some");
    let green = queues.find(|queue| master_of(queue) != master_of(&red)).expect("some");

    // A handle that only works: no push or query through it reveals where a queue has moved.
    let url = format!("{}?prefix={}&lease=1s&keep=0", servers.url(), JobId::fresh());
    let duly = Duly::open(&url).await.expect("opens");
    let (sender, mut ran) = unbounded_channel();
    let worker = duly.worker().queue(&red, 5).queue(&green, 5).on_kind("mark", move |ctx| {
        sender.send(ctx.job().args.clone()).expect("the receiver is open");
        async {}
    });
    let run = tokio::spawn(worker.run());
    let pusher = Duly::open(&url).await.expect("opens");
    let push = async |queue: &String, args: &str| {
        let id = JobId::fresh();
        while let Err(error) = pusher.push(Push::new("mark", args).queue(queue).id(id)).await {
            println!("pushed again: {error}");
        }
    };
    push(&red, "1").await;
    assert_next(&mut ran, "1").await;

    servers.nodes()[master_of(&red)].pause();
    push(&green, "2").await;
    assert_next(&mut ran, "2").await;
    // Waits until another node is master.
    tokio::task::block_in_place(|| master_of(&red));
    push(&red, "3").await;
    assert_next(&mut ran, "3").await;
    run.abort();
}
