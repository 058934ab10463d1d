//! rslock on one server with its default delays: a waiter retries after 0 to 200 ms, without a timeout.

use anyhow::Result;
use peer_kit::{LOCK_TTL, Locker};
use rslock::{Lock, LockManager};

struct Rslock(LockManager);

impl Locker for Rslock {
    const NAME: &'static str = "rslock 0.10";
    type Held = Lock;

    async fn connect(url: &str) -> Result<Self> {
        Ok(Rslock(LockManager::new(vec![url])))
    }

    async fn lock(&mut self, name: &str) -> Result<Lock> {
        Ok(self.0.acquire_no_guard(name, LOCK_TTL).await?)
    }

    async fn unlock(&mut self, held: Lock) -> Result<()> {
        self.0.unlock(&held).await;
        Ok(())
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    peer_kit::lock_main::<Rslock>().await
}
