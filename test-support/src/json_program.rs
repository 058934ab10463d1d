//! A program in another language, driven by lines of JSON on stdin; it answers by lines of JSON on stdout.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;

use crate::TIMEOUT;

type Answers = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// A running program. Killed when dropped.
pub struct JsonProgram {
    child: Mutex<Child>,
    stdin: tokio::sync::Mutex<ChildStdin>,
    answers: Answers,
    next: AtomicU64,
}

impl JsonProgram {
    /// Starts it, and returns when it says that it is ready.
    pub async fn start(mut command: Command) -> JsonProgram {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|why| panic!("{command:?} cannot be started: {why}"));
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let answers = Answers::default();
        let (ready, is_ready) = oneshot::channel();
        answers.lock().expect("ours").insert(0, ready);
        let waiting = answers.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // Whatever else it prints is none of our business.
                let Ok(answer @ Value::Object(_)) = serde_json::from_str::<Value>(&line) else {
                    continue;
                };
                let id = if answer.get("ready").is_some() { Some(0) } else { answer["id"].as_u64() };
                let waits = id.and_then(|id| waiting.lock().expect("ours").remove(&id));
                waits.map(|waits| waits.send(answer));
            }
            // Nobody waits for a program that has ended.
            waiting.lock().expect("ours").clear();
        });
        let program = JsonProgram {
            child: Mutex::new(child),
            stdin: tokio::sync::Mutex::new(stdin),
            answers,
            next: AtomicU64::new(1),
        };
        tokio::time::timeout(TIMEOUT, is_ready)
            .await
            .expect("in time")
            .expect("the program has ended before it was ready");
        program
    }

    /// Tells it to do something, and gives its answer.
    pub async fn ask(&self, what: &str, with: Value) -> Value {
        let answer = self.try_ask(what, with).await.unwrap_or_else(|| panic!("{what}: the program has ended"));
        assert!(answer.get("error").is_none(), "{what}: {answer}");
        answer["value"].clone()
    }

    /// The same; `None` if it has ended.
    pub async fn try_ask(&self, what: &str, with: Value) -> Option<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut line = json!({ "id": id, "do": what });
        for (name, value) in with.as_object().into_iter().flatten() {
            line[name] = value.clone();
        }
        let (sender, answer) = oneshot::channel();
        self.answers.lock().expect("ours").insert(id, sender);
        self.stdin.lock().await.write_all(format!("{line}\n").as_bytes()).await.ok()?;
        tokio::time::timeout(TIMEOUT, answer).await.unwrap_or_else(|_| panic!("{what}: no answer")).ok()
    }

    pub fn is_running(&self) -> bool {
        self.child.lock().expect("ours").try_wait().is_ok_and(|status| status.is_none())
    }

    /// SIGKILL.
    pub fn kill(&self) {
        self.child.lock().expect("ours").start_kill().expect("killed");
    }
}
