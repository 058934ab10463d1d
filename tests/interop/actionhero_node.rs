//! Real ActionHero nodes of both generations.

use serde_json::{Value, json};
use tokio::process::Command;

use crate::programs::{installed, source};
use test_support::JsonProgram;
use test_support::servers::Server;

pub const TOKEN: &str = "a token that all nodes have";

/// ActionHero 12 uses `requestId` and ignores the reply to `SETNX` in its locks; the newest version uses `messageId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    Twelve,
    Newest,
}

pub struct ActionHero(pub JsonProgram);

impl ActionHero {
    pub async fn start(generation: Generation, server: &Server, name: &str) -> ActionHero {
        let directory = match generation {
            Generation::Twelve => "actionhero-12",
            Generation::Newest => "actionhero-newest",
        };
        let mut command = Command::new("node");
        command.arg(source("actionhero.js")).arg(installed(directory));
        command.env("REDIS_HOST", "127.0.0.1").env("REDIS_PORT", server.port().to_string());
        command.env("SERVER_TOKEN", TOKEN).env("NODE_NAME", name).env("NODE_ENV", "development");
        ActionHero(JsonProgram::start(command).await)
    }

    pub async fn lock(&self, key: &str, ms: u64) -> bool {
        self.0.request("lock", json!({ "key": key, "ms": ms })).await == json!(true)
    }

    pub async fn unlock(&self, key: &str) -> bool {
        self.0.request("unlock", json!({ "key": key })).await == json!(true)
    }

    /// Returns whether the lock is free or held by this node.
    pub async fn may_lock(&self, key: &str) -> bool {
        self.0.request("checkLock", json!({ "key": key })).await == json!(true)
    }

    /// Tries to take all of these locks at once. Returns those that the node believes to hold.
    pub async fn race(&self, keys: &[String], ms: u64) -> Vec<String> {
        let locked = self.0.request("race", json!({ "keys": keys, "ms": ms })).await;
        serde_json::from_value(locked).expect("names")
    }

    pub async fn call(&self, method: &str, args: Value, connection: Option<&str>) -> Value {
        self.0.request("call", json!({ "method": method, "args": args, "connection": connection })).await
    }
}
