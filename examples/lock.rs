//! A lock and its fence: two programs add to one number in a file; the file refuses a fence that is older than its last.

use std::path::Path;
use std::time::Duration;

use duly::{Duly, Fence};

/// The resource: its number and the greatest fence that it has seen.
fn look(path: &Path) -> (u64, Fence) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut words = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
    (words.next().unwrap_or(0), Fence(words.next().unwrap_or(0)))
}

/// Also the read shows its fence: from here on an older holder can write no more.
fn read(path: &Path, fence: Fence) -> std::io::Result<u64> {
    let number = look(path).0;
    write(path, number, fence)?;
    Ok(number)
}

fn write(path: &Path, number: u64, fence: Fence) -> std::io::Result<()> {
    if look(path).1 > fence {
        return Err(std::io::Error::other(format!("fence {fence} is too old: somebody else has the lock")));
    }
    std::fs::write(path, format!("{number} {fence}"))
}

async fn add(duly: Duly, path: &Path, times: u32) -> Result<(), Box<dyn std::error::Error>> {
    for _ in 0..times {
        let guard = duly.lock("number").ttl(Duration::from_secs(5)).acquire().await?;
        let number = read(path, guard.fence())?;
        tokio::task::yield_now().await;
        write(path, number + 1, guard.fence())?;
        guard.release().await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("duly-lock-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let (store, path) = (dir.join("duly.db"), dir.join("number"));
    let one = Duly::open(store.display().to_string()).await?;
    let two = Duly::open(store.display().to_string()).await?;
    let (a, b) = tokio::join!(add(one, &path, 50), add(two, &path, 50));
    a.and(b)?;
    let (number, fence) = look(&path);
    println!("{number} after 100 additions; the last fence was {fence}");
    assert_eq!(number, 100);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
