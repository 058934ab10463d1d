//! What is shown, and what keys do, without a terminal.

use std::time::{Duration, SystemTime};

use duly::{Ctx, Duly, Outcome, Push};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::state::{Act, Key, Pane, Top};
use super::{look, view};

fn drawn(top: &Top, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| view::draw(frame, top)).expect("draws");
    terminal.backend().to_string()
}

async fn seen() -> (Duly, Top) {
    let duly = Duly::open(":memory:").await.expect("opens");
    duly.push_all([Push::new("mail", "1"), Push::new("mail", "1").queue("slow")]).await.expect("pushes");
    duly.push(Push::new("bad", "1").queue("b")).await.expect("pushes");
    duly.worker().queue("b", 1).on_kind("bad", async |_: Ctx| Outcome::bury("no")).drain().await.expect("drains");
    duly.pause("slow").await.expect("pauses");
    let mut top = Top::default();
    top.key(Key::Char('d'));
    top.see(look(&duly, true).await.expect("looks"), SystemTime::UNIX_EPOCH);
    (duly, top)
}

#[tokio::test]
async fn queues_jobs_and_nodes_are_shown() {
    let (duly, mut top) = seen().await;
    let shown = drawn(&top, 140, 30);
    for words in ["duly top", "QUEUE", "default", "slow", "paused", "dead jobs", "bad", "nodes", "? help"] {
        assert!(shown.contains(words), "{words} is not in\n{shown}");
    }
    // Not kept, and counted all the same.
    duly.push_all((0..30).map(|_| Push::new("bad", "1").queue("b").keep(Duration::ZERO))).await.expect("pushes");
    duly.worker().queue("b", 1).on_kind("bad", async |_: Ctx| Outcome::Ack).drain().await.expect("drains");
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(3);
    top.see(look(&duly, true).await.expect("looks"), later);
    assert!(drawn(&top, 140, 30).contains("10.0"), "thirty in three seconds");
}

#[tokio::test]
async fn a_node_that_claims_nothing_is_shown_so() {
    let (duly, mut top) = seen().await;
    let worker = duly.worker().queue("b", 1).on_kind("mail", async |_: Ctx| Outcome::Ack).run();
    let worker = tokio::spawn(worker);
    let joins = async {
        while !top.look.nodes.iter().any(|node| node.alive && !node.queues.is_empty()) {
            top.see(look(&duly, true).await.expect("looks"), SystemTime::UNIX_EPOCH);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), joins).await.expect("joins in time");
    assert!(!drawn(&top, 140, 30).contains("quiet"));
    top.look.nodes.iter_mut().for_each(|node| node.takes.quiet = true);
    assert!(drawn(&top, 140, 30).contains("quiet"));
    worker.abort();
}

#[tokio::test]
async fn without_a_history_ended_jobs_that_are_kept_are_counted() {
    let duly = Duly::open(":memory:?history=off").await.expect("opens");
    let mut top = Top::default();
    for second in 0..2 {
        duly.push_all((0..20).map(|_| Push::new("mail", "1").queue("b"))).await.expect("pushes");
        duly.worker().queue("b", 5).on_kind("mail", async |_: Ctx| Outcome::Ack).drain().await.expect("drains");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        top.see(look(&duly, false).await.expect("looks"), at);
    }
    assert_eq!(top.rates.get("b").copied(), Some(20.0));
}

#[tokio::test]
async fn keys_do_what_the_help_says() {
    let (_duly, mut top) = seen().await;
    assert_eq!(top.key(Key::Char('p')), Some(Act::Pause("b".into())));
    assert_eq!(top.key(Key::Down), None);
    assert_eq!(top.key(Key::Char('r')), Some(Act::Resume("default".into())));
    assert_eq!(top.key(Key::Tab), None);
    assert_eq!(top.pane, Pane::Jobs);
    let dead = top.look.jobs[0].job.id;
    assert_eq!(top.key(Key::Char('t')), Some(Act::Retry(dead)));
    assert_eq!(top.key(Key::Char('c')), None, "it does not run");
    for letter in "/slo".chars() {
        top.key(Key::Char(letter));
    }
    assert!(top.typing && drawn(&top, 100, 24).contains("filter: slo_"));
    assert_eq!(top.queues().len(), 1);
    assert_eq!((top.key(Key::Enter), top.typing), (None, false));
    assert_eq!((top.key(Key::Esc), top.queues().len()), (None, 3));
    assert_eq!(top.key(Key::Char('?')), None);
    assert!(drawn(&top, 100, 24).contains("cancel the running job"));
    assert_eq!(top.key(Key::Char('q')), None, "leaves the help");
    assert_eq!(top.key(Key::Char('d')), Some(Act::Look));
    assert_eq!(top.key(Key::Char('q')), Some(Act::Quit));
}

#[test]
fn nothing_to_show_and_no_room_are_no_reason_to_panic() {
    let mut top = Top::default();
    (top.help, top.said) = (true, "\u{1b}[31m".repeat(50));
    for (width, height) in [(1, 1), (3, 2), (30, 5), (500, 100)] {
        drawn(&top, width, height);
    }
    let keys = [Key::Up, Key::Down, Key::Tab, Key::Enter, Key::Esc, Key::Backspace];
    for key in keys.into_iter().chain("prctjkd?x".chars().map(Key::Char)) {
        top.key(key);
    }
}
