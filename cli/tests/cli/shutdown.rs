//! Shutdown by SIGTERM, by a second signal, and by SIGKILL.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::sandbox::{Sandbox, is_running, until};

#[test]
fn sigterm_releases_a_long_job_and_exits_gracefully() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "echo $$ > pid; exec sleep 60"]);
    let worker = sandbox.start(&["work", "--grace", "100ms"]);
    until("the job runs", || sandbox.read("pid").ends_with('\n'));
    let started = Instant::now();
    worker.signal(Signal::TERM);
    let ran = worker.wait().ok();
    assert!(started.elapsed() < Duration::from_secs(3), "{ran:?}");
    assert!(ran.out.contains("stopping") && ran.out.contains("released"), "{ran:?}");
    assert!(!is_running(&sandbox.read("pid")));
    let job = sandbox.job(&id);
    assert_eq!((&job["state"], &job["attempts"]), (&"ready".into(), &0.into()), "claimable at once, not counted");
}

#[test]
fn job_that_ends_within_the_grace_time_is_done() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "touch runs; until test -e go; do sleep 0.01; done"]);
    let worker = sandbox.start(&["work", "--grace", "20s"]);
    until("the job runs", || sandbox.path("runs").exists());
    worker.signal(Signal::TERM);
    sandbox.write("go", "");
    worker.wait().ok();
    assert_eq!(sandbox.job(&id)["state"], "done");
}

#[test]
fn second_signal_ends_the_grace_time() {
    let sandbox = Sandbox::new();
    for (nth, options) in [&[][..], &["--until-empty"]].into_iter().enumerate() {
        let pid = format!("pid{nth}");
        let id = sandbox.push(&["--queue", &pid, "--", "sh", "-c", &format!("echo $$ > {pid}; exec sleep 60")]);
        let worker = sandbox.start(&[&["work", "--queue", &pid, "--grace", "60s"], options].concat());
        until("the job runs", || sandbox.read(&pid).ends_with('\n'));
        let started = Instant::now();
        worker.signal(Signal::INT);
        // Two signals at the same moment count as one.
        std::thread::sleep(Duration::from_millis(100));
        worker.signal(Signal::INT);
        let ran = worker.wait();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "{ran:?}");
        until("the child is gone", || !is_running(&sandbox.read(&pid)));
        assert_ne!(sandbox.job(&id)["state"], "done");
    }
}

#[test]
fn sigkill_of_a_worker_kills_its_commands() {
    let sandbox = Sandbox::new();
    // The shell is a child of the worker, the sleep a grandchild.
    sandbox.push(&["--", "sh", "-c", "sleep 60 & echo $! > grandchild; echo $$ > child; wait"]);
    let worker = sandbox.start(&["work"]);
    until("the job runs", || sandbox.read("child").ends_with('\n'));
    worker.signal(Signal::KILL);
    worker.wait();
    until("the child is gone", || !is_running(&sandbox.read("child")));
    until("its child is gone", || !is_running(&sandbox.read("grandchild")));
}

#[test]
fn another_worker_takes_over_after_a_kill() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "echo x >> runs; test $(wc -l < runs) -ge 2 || sleep 60"]);
    let first = sandbox.start(&["work"]);
    until("the job runs", || sandbox.path("runs").exists());
    let _second = sandbox.start(&["work"]);
    until("both have joined", || {
        sandbox.run(&["nodes", "ls", "--json"]).ok().json()["nodes"].as_array().expect("nodes").len() == 2
    });
    first.signal(Signal::KILL);
    let killed = Instant::now();
    sandbox.run(&["jobs", "wait", &id, "--timeout", "10s"]).ok();
    assert!(killed.elapsed() < Duration::from_secs(3));
    assert_eq!(sandbox.read("runs"), "x\nx\n");
    assert_eq!(sandbox.job(&id)["crashes"], 1);
}

#[test]
fn sigterm_to_the_whole_group_is_not_a_job_failure() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["--", "sh", "-c", "echo $$ > pid; exec sleep 60"]);
    let worker = sandbox.start(&["work"]);
    until("the job runs", || sandbox.read("pid").ends_with('\n'));
    let child = sandbox.read("pid").trim().parse().ok().and_then(rustix::process::Pid::from_raw).expect("a process");
    // A service manager may signal the child first.
    rustix::process::kill_process(child, Signal::TERM).expect("it runs");
    worker.signal(Signal::TERM);
    worker.wait().ok();
    let job = sandbox.job(&id);
    assert_eq!((&job["state"], &job["attempts"]), (&"ready".into(), &0.into()), "{job}");
}

#[test]
fn systemd_is_notified() {
    let sandbox = Sandbox::new();
    let socket = UnixDatagram::bind(sandbox.path("notify")).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let mut command = sandbox.command(&["work"]);
    command.env("NOTIFY_SOCKET", sandbox.path("notify")).env("WATCHDOG_USEC", "100000");
    let worker = Sandbox::start_command(command);
    let wait_for_message = |word: &str| {
        let mut bytes = [0; 256];
        let receive = |bytes: &mut [u8]| {
            let len = socket.recv(bytes).unwrap_or_else(|error| panic!("no {word}: {error}"));
            String::from_utf8_lossy(&bytes[..len]).contains(word)
        };
        while !receive(&mut bytes) {}
    };
    wait_for_message("READY=1");
    wait_for_message("WATCHDOG=1");
    worker.signal(Signal::TERM);
    wait_for_message("STOPPING=1");
    worker.wait().ok();
}
