//! A program in another language that reads requests as JSON lines on stdin and writes replies as JSON lines on
//! stdout.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

use crate::TIMEOUT;

type PendingReplies = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// A running program. Killed when dropped.
pub struct JsonProgram {
    child: Mutex<Child>,
    stdin: tokio::sync::Mutex<ChildStdin>,
    pending: PendingReplies,
    next: AtomicU64,
}

impl JsonProgram {
    /// Starts the program, and returns when it reports that it is ready.
    pub async fn start(mut command: Command) -> JsonProgram {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let pending = PendingReplies::default();
        let (ready, ready_receiver) = oneshot::channel();
        pending.lock().expect("ours").insert(0, ready);
        let reader_pending = pending.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // Other output is ignored.
                let Ok(reply @ Value::Object(_)) = serde_json::from_str::<Value>(&line) else {
                    continue;
                };
                let id = if reply.get("ready").is_some() { Some(0) } else { reply["id"].as_u64() };
                let sender = id.and_then(|id| reader_pending.lock().expect("ours").remove(&id));
                sender.map(|sender| sender.send(reply));
            }
            // Pending requests fail when the program has ended.
            reader_pending.lock().expect("ours").clear();
        });
        let program = JsonProgram {
            child: Mutex::new(child),
            stdin: tokio::sync::Mutex::new(stdin),
            pending,
            next: AtomicU64::new(1),
        };
        tokio::time::timeout(TIMEOUT, ready_receiver)
            .await
            .expect("in time")
            .expect("the program has ended before it was ready");
        program
    }

    /// Sends a request and returns the value of its reply.
    pub async fn request(&self, operation: &str, params: Value) -> Value {
        let reply =
            self.try_request(operation, params).await.unwrap_or_else(|| panic!("{operation}: the program has ended"));
        assert!(reply.get("error").is_none(), "{operation}: {reply}");
        reply["value"].clone()
    }

    /// Sends a request; returns `None` if the program has ended.
    pub async fn try_request(&self, operation: &str, params: Value) -> Option<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut line = json!({ "id": id, "do": operation });
        for (name, value) in params.as_object().into_iter().flatten() {
            line[name] = value.clone();
        }
        let (sender, reply) = oneshot::channel();
        self.pending.lock().expect("ours").insert(id, sender);
        self.stdin.lock().await.write_all(format!("{line}\n").as_bytes()).await.ok()?;
        tokio::time::timeout(TIMEOUT, reply).await.unwrap_or_else(|_| panic!("{operation}: no reply in time")).ok()
    }

    pub fn is_running(&self) -> bool {
        self.child.lock().expect("ours").try_wait().is_ok_and(|status| status.is_none())
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        self.child.lock().expect("ours").start_kill().expect("killed");
    }
}
