//! A process that is stopped in the middle of a transaction keeps the write lock of the file.

use duly::rusqlite::Connection;
use duly::{Duly, Error, Push};

use crate::crash::child::{Child, ChildEvent, Role};
use crate::crash::file;
use crate::runtime;

#[test]
fn stopped_holder_of_the_write_lock_is_named() {
    let (file, runtime) = (file(""), runtime());
    let duly = runtime.block_on(Duly::open(&file.url)).expect("opens");
    let mut holder = Child::start(Role::LockHolder, &file.url);
    holder.wait(|event| matches!(event, ChildEvent::Joined));
    holder.pause();
    runtime.block_on(async {
        let reader = Duly::open(&file.url).await.expect("opens");
        reader.queues().counts().await.expect("reads");
    });

    let (url, store) = (file.url.clone(), duly.clone());
    let push_in = runtime.spawn_blocking(move || {
        let mut conn = Connection::open(url).expect("opens");
        let tx = conn.transaction().expect("begins");
        store.push_in(&tx, [Push::new("kind", "{}")]).map(drop)
    });
    let errors = runtime.block_on(async {
        let push = async { duly.push(Push::new("kind", "{}")).await.map(drop) };
        // A longer lease is recorded in the file.
        let open = async { Duly::open(format!("{}?lease=30s", file.url)).await.map(drop) };
        let (pushed, opened, pushed_in) = tokio::join!(push, open, push_in);
        [pushed, opened, pushed_in.expect("no panic")].map(|result| result.expect_err("the write lock is taken"))
    });
    for error in errors {
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        let (process, error) = (format!("process {} (", holder.id()), error.to_string());
        assert!(error.contains(&process) && error.contains("is stopped (SIGSTOP)"), "{error}");
        assert!(error.contains(&format!("kill -CONT {}", holder.id())), "{error}");
    }
    holder.resume();
    holder.kill();
    runtime.block_on(duly.push(Push::new("kind", "{}"))).expect("goes on");
}
