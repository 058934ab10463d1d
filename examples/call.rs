//! Calls: two nodes provide a method; a third calls one of them, then all.

use std::time::Duration;

use duly::Duly;
use duly::call::CallContext;

async fn open_node(store: &str, name: &'static str) -> duly::Result<Duly> {
    let duly = Duly::open(store).await?;
    let greet =
        move |user: String, _: CallContext| async move { Ok::<_, duly::Error>(format!("{name} greets {user}")) };
    duly.on_call("greet", greet).await?;
    Ok(duly)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("duly-call-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let store = dir.join("duly.db").display().to_string();
    let (_one, _two) = (open_node(&store, "one").await?, open_node(&store, "two").await?);
    let caller = Duly::open(&store).await?;

    let greeting: String = caller.call("greet", &"ada").reply().await?;
    println!("any:  {greeting}");

    let replies = caller.call("greet", &"ada").all().timeout(Duration::from_secs(2)).replies::<String>().await?;
    for reply in replies.collect().await {
        match reply.result {
            Ok(greeting) => println!("all:  {greeting}"),
            Err(error) => println!("all:  {error}"), // the caller is a node, too, but lacks the method
        }
    }
    match caller.call("dance", &()).reply::<()>().await {
        Err(error) => println!("none: {error}"),
        Ok(()) => unreachable!("no node has this method"),
    }
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
