//! A lock with a fence: two programs increment a number in a file, which rejects writes with an older fence.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use duly::{Duly, Fence};

/// Reads the resource: a number and the greatest fence it has seen.
fn read_number(file: &mut File) -> io::Result<(u64, Fence)> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    let mut words = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
    Ok((words.next().unwrap_or(0), Fence(words.next().unwrap_or(0))))
}

/// Reads the number and writes `next`, if any, atomically: the lock of the file prevents writes in between.
///
/// A read also records the fence, so an older holder cannot write any more.
fn update_number(path: &Path, fence: Fence, next: Option<u64>) -> io::Result<u64> {
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    file.lock()?;
    let (number, last_fence) = read_number(&mut file)?;
    if last_fence > fence {
        return Err(io::Error::other(format!("fence {fence} is too old: another process has the lock")));
    }
    file.rewind()?;
    // Fixed width: overwrites the previous contents completely.
    file.write_all(format!("{:020} {:020}", next.unwrap_or(number), fence.0).as_bytes())?;
    Ok(number)
}

async fn add_repeatedly(duly: Duly, path: &Path, times: u32) -> Result<(), Box<dyn std::error::Error>> {
    for _ in 0..times {
        let guard = duly.lock("number").ttl(Duration::from_secs(5)).acquire().await?;
        let number = update_number(path, guard.fence(), None)?;
        tokio::task::yield_now().await;
        update_number(path, guard.fence(), Some(number + 1))?;
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
    let (a, b) = tokio::join!(add_repeatedly(one, &path, 50), add_repeatedly(two, &path, 50));
    a.and(b)?;
    let (number, fence) = read_number(&mut File::open(&path)?)?;
    println!("{number} after 100 additions; the last fence was {fence}");
    assert_eq!(number, 100);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
