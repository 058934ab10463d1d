//! Tests of the screen and the keys, without a terminal.

use std::time::{Duration, SystemTime};

use duly::{Ctx, Duly, JobId, Outcome, Push};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::state::{KeyPress, Pane, StoreSnapshot, TopAction, TopState};
use super::{load_snapshot, run_action, view};
use crate::backend::Backend;

fn draw_to_text(top: &TopState, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| view::draw(frame, top)).expect("draws");
    terminal.backend().to_string()
}

fn job_id(top: &TopState) -> JobId {
    top.snapshot.jobs[0].id.parse().expect("an id")
}

async fn load(duly: &Duly, top: &TopState) -> StoreSnapshot {
    load_snapshot(&Backend::Store(duly.clone()), &top.query()).await.expect("loads")
}

async fn top_with_jobs() -> (Duly, TopState) {
    let duly = Duly::open(":memory:").await.expect("opens");
    duly.push_all([Push::new("mail", "1"), Push::new("mail", "1").queue("slow")]).await.expect("pushes");
    duly.push(Push::new("bad", "1").queue("b")).await.expect("pushes");
    duly.worker().queue("b", 1).on_kind("bad", async |_: Ctx| Outcome::bury("no")).drain().await.expect("drains");
    duly.queues().pause("slow").await.expect("pauses");
    let mut top = TopState::default();
    top.handle_key(KeyPress::Char('d'));
    let snapshot = load(&duly, &top).await;
    top.apply_snapshot(snapshot, SystemTime::UNIX_EPOCH);
    (duly, top)
}

#[tokio::test]
async fn queues_jobs_and_nodes_are_shown() {
    let (duly, mut top) = top_with_jobs().await;
    let screen = draw_to_text(&top, 140, 30);
    for text in ["duly top", "QUEUE", "default", "slow", "paused", "dead jobs", "bad", "nodes", "? help"] {
        assert!(screen.contains(text), "{text} is not in\n{screen}");
    }
    // Jobs that are not kept count, too.
    duly.push_all((0..30).map(|_| Push::new("bad", "1").queue("b").keep(Duration::ZERO))).await.expect("pushes");
    duly.worker().queue("b", 1).on_kind("bad", async |_: Ctx| Outcome::Ack).drain().await.expect("drains");
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(3);
    let snapshot = load(&duly, &top).await;
    top.apply_snapshot(snapshot, later);
    assert!(draw_to_text(&top, 140, 30).contains("10.0"), "thirty in three seconds");
}

#[tokio::test]
async fn actions_are_recorded() {
    let (duly, top) = top_with_jobs().await;
    let dead = job_id(&top);
    let waiting = duly.push(Push::new("mail", "1")).await.expect("pushes").id();
    let actions = [
        TopAction::Pause("b".into()),
        TopAction::Resume("b".into()),
        TopAction::Retry(dead),
        TopAction::Cancel(waiting),
        // Refused: nothing to record.
        TopAction::Retry(JobId::fresh()),
    ];
    for action in actions {
        let _ = run_action(&Backend::Store(duly.clone()), action).await;
    }
    let entries = duly.audit().list(None, 10).await.expect("reads");
    let recorded: Vec<_> =
        entries.iter().rev().map(|record| (&*record.entry.action, record.entry.target.clone())).collect();
    let target = |target: &dyn ToString| Some(target.to_string());
    let expected = [
        ("queues.pause", target(&"b")),
        ("queues.resume", target(&"b")),
        ("jobs.retry", target(&dead)),
        ("jobs.cancel", target(&waiting)),
    ];
    assert_eq!(recorded, expected);
}

#[tokio::test]
async fn quiet_node_is_marked() {
    let (duly, mut top) = top_with_jobs().await;
    let worker = duly.worker().queue("b", 1).on_kind("mail", async |_: Ctx| Outcome::Ack).run();
    let worker = tokio::spawn(worker);
    let joins = async {
        while !top.snapshot.nodes.iter().any(|node| node.alive && !node.queues.is_empty()) {
            let snapshot = load(&duly, &top).await;
            top.apply_snapshot(snapshot, SystemTime::UNIX_EPOCH);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), joins).await.expect("joins in time");
    assert!(!draw_to_text(&top, 140, 30).contains("quiet"));
    top.snapshot.nodes.iter_mut().for_each(|node| node.quiet = true);
    assert!(draw_to_text(&top, 140, 30).contains("quiet"));
    worker.abort();
}

#[tokio::test]
async fn rate_without_history_counts_kept_jobs() {
    let duly = Duly::open(":memory:?history=off").await.expect("opens");
    let mut top = TopState::default();
    for second in 0..2 {
        duly.push_all((0..20).map(|_| Push::new("mail", "1").queue("b"))).await.expect("pushes");
        duly.worker().queue("b", 5).on_kind("mail", async |_: Ctx| Outcome::Ack).drain().await.expect("drains");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let snapshot = load(&duly, &top).await;
        top.apply_snapshot(snapshot, at);
    }
    assert_eq!(top.rates.get("b").copied(), Some(20.0));
}

#[tokio::test]
async fn keys_match_help() {
    let (_duly, mut top) = top_with_jobs().await;
    assert_eq!(top.handle_key(KeyPress::Char('p')), Some(TopAction::Pause("b".into())));
    assert_eq!(top.handle_key(KeyPress::Down), None);
    assert_eq!(top.handle_key(KeyPress::Char('r')), Some(TopAction::Resume("default".into())));
    assert_eq!(top.handle_key(KeyPress::Tab), None);
    assert_eq!(top.pane, Pane::Jobs);
    let dead = job_id(&top);
    assert_eq!(top.handle_key(KeyPress::Char('t')), Some(TopAction::Retry(dead)));
    assert_eq!(top.handle_key(KeyPress::Char('c')), None, "it does not run");
    for letter in "/slo".chars() {
        top.handle_key(KeyPress::Char(letter));
    }
    assert!(top.is_typing && draw_to_text(&top, 100, 24).contains("filter: slo_"));
    assert_eq!(top.filtered_queues().len(), 1);
    assert_eq!((top.handle_key(KeyPress::Enter), top.is_typing), (None, false));
    assert_eq!((top.handle_key(KeyPress::Esc), top.filtered_queues().len()), (None, 3));
    assert_eq!(top.handle_key(KeyPress::Char('?')), None);
    assert!(draw_to_text(&top, 100, 24).contains("cancel the job"));
    assert_eq!(top.handle_key(KeyPress::Char('q')), None, "leaves the help");
    assert_eq!(top.handle_key(KeyPress::Char('d')), Some(TopAction::Refresh));
    assert_eq!(top.handle_key(KeyPress::Char('q')), Some(TopAction::Quit));
}

#[tokio::test]
async fn enter_opens_a_queue_and_a_job_and_esc_goes_back() {
    let (duly, mut top) = top_with_jobs().await;
    let keys = async |top: &mut TopState, keys: &[KeyPress]| {
        for key in keys {
            if top.handle_key(*key) == Some(TopAction::Refresh) {
                let snapshot = load(&duly, top).await;
                top.apply_snapshot(snapshot, SystemTime::UNIX_EPOCH);
            }
        }
    };
    keys(&mut top, &[KeyPress::Enter]).await;
    let screen = draw_to_text(&top, 140, 30);
    assert!(screen.contains("queue b") && screen.contains("running jobs") && screen.contains("dead 1"), "{screen}");
    assert!(top.filtered_jobs().is_empty(), "no job of the queue runs");
    keys(&mut top, &[KeyPress::Tab; 3]).await;
    let dead = job_id(&top);
    assert_eq!(top.handle_key(KeyPress::Char('t')), Some(TopAction::Retry(dead)));
    keys(&mut top, &[KeyPress::Enter]).await;
    let screen = draw_to_text(&top, 140, 30);
    for text in [dead.to_string().as_str(), "state", "dead", "bury", "no", "esc back"] {
        assert!(screen.contains(text), "{text} is not in\n{screen}");
    }
    assert_eq!(top.handle_key(KeyPress::Char('p')), Some(TopAction::Pause("b".into())));
    keys(&mut top, &[KeyPress::Down, KeyPress::Down]).await;
    assert!(!draw_to_text(&top, 140, 30).contains("state        dead"), "scrolled");
    keys(&mut top, &[KeyPress::Esc, KeyPress::Esc]).await;
    assert!(top.screens.is_empty() && draw_to_text(&top, 140, 30).contains("default"));
    keys(&mut top, &[KeyPress::Esc]).await;
    assert!(top.screens.is_empty());
}

#[test]
fn empty_state_and_tiny_screen_do_not_panic() {
    let mut top = TopState::default();
    (top.is_help_shown, top.message) = (true, "\u{1b}[31m".repeat(50));
    for (width, height) in [(1, 1), (3, 2), (30, 5), (500, 100)] {
        draw_to_text(&top, width, height);
    }
    let keys = [KeyPress::Up, KeyPress::Down, KeyPress::Tab, KeyPress::Enter, KeyPress::Esc, KeyPress::Backspace];
    for key in keys.into_iter().chain("prctjkd?x".chars().map(KeyPress::Char)) {
        top.handle_key(key);
    }
}
