//! A master that falls silent without closing a connection, as when its machine is gone: nobody is told, somebody must look.

use std::time::Duration;

use duly::{Duly, JobId, Push};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use test_support::servers::{Binary, Cluster, Fsync, Options};

/// Far longer than it takes a worker to give up a server that does not answer, and to find another.
const LONG: Duration = Duration::from_secs(40);

/// Waits for the job with these args, which are the next to run.
async fn runs(ran: &mut UnboundedReceiver<String>, args: &str) {
    let next = tokio::time::timeout(LONG, ran.recv()).await;
    assert_eq!(next.as_ref().map(|args| args.as_deref()), Ok(Some(args)), "ran in vain");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_finds_the_new_master_after_a_silent_one() {
    // Or the others would say that something is wrong.
    let options = Options::new(Binary::Redis).aof(Fsync::EverySecond).set("cluster-require-full-coverage", "no");
    let servers = Cluster::start(options, Cluster::QUICK);
    let hall = servers.master_of("{duly}");
    let master_of = |queue: &String| servers.master_of(&format!("{{{queue}}}"));
    let mut queues = (0..).map(|n| format!("q{n}"));
    let red = queues.find(|queue| master_of(queue) != hall).expect("some");
    let green = queues.find(|queue| master_of(queue) != master_of(&red)).expect("some");

    // A handle that only works: nothing that anybody pushes or looks for through it tells it where a queue has gone.
    let url = format!("{}?prefix={}&lease=1s&keep=0", servers.url(), JobId::fresh());
    let duly = Duly::open(&url).await.expect("opens");
    let (tell, mut ran) = unbounded_channel();
    let worker = duly.worker().queue(&red, 5).queue(&green, 5).on_kind("mark", move |ctx| {
        tell.send(ctx.job().args.clone()).expect("somebody listens");
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
    runs(&mut ran, "1").await;

    servers.nodes()[master_of(&red)].pause();
    push(&green, "2").await;
    runs(&mut ran, "2").await;
    // Another one that is awake.
    tokio::task::block_in_place(|| master_of(&red));
    push(&red, "3").await;
    runs(&mut ran, "3").await;
    run.abort();
}
